"""Stages of a pipeline: messages between neighbours, passes, the mean over replicas, the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from refsgd.algorithms.allreduce.mean import Collective, Peers, Reduce, reduction
from refsgd.algorithms.replica import Replica
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Piece, Program, Recv, Send


class Divisible(Protocol):
    """What a pipeline needs to know about its problem, see `refsgd.problems.chain`."""

    def split(self, stages: int, cut: str) -> Sequence[Any]:
        """Its stages, between cuts that are chosen or given."""
        ...


class Activations(NamedTuple):
    """stage k -> stage k + 1: the result of a forward pass."""

    a: Array


class Gradients(NamedTuple):
    """stage k -> stage k - 1: the gradient of those activations."""

    d: Array


class Held(NamedTuple):
    """The result of a node: the parameters of its stages."""

    part: int
    x: Array | tuple[Array, ...]


@dataclass
class Worker(Replica):
    """A node of one replica, which holds the parameters of its stages one after another."""

    k: int
    stages: Sequence[Any]  # k, K + k, 2 K + k, ...: its chunks
    names: Sequence[str]  # of the replica's K nodes
    group: Sequence[str]  # the nodes with the same stages in all replicas, which average their gradients
    reduce: Reduce

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = list(accumulate((stage.x0.size for stage in self.stages), initial=0))
        self.places = [slice(a, b) for a, b in pairwise(ends)]
        self.same = Peers(self, self.group, self.stages[0], self.reduce, slice(0, self.x.size))

    @property
    def held(self) -> Held:
        """What the program returns."""
        parts = tuple(self.x[place] for place in self.places)
        return Held(self.k, parts if len(parts) > 1 else self.x)

    def _beside(self, chunk: int, step: int) -> str | None:
        """The node of the stage before a chunk's stage, or after it; None at the ends of the net."""
        depth = len(self.names)
        stage = chunk * depth + self.k + step
        return self.names[stage % depth] if 0 <= stage < depth * len(self.stages) else None

    def forward(self, x: Array, rows: Any, j: int = 0, chunk: int = 0, first: bool = False) -> Program[Any]:
        """These examples, micro-batch j, through a stage at x.  Returns what `backward` needs."""
        stage, a = self.stages[chunk], None
        if left := self._beside(chunk, -1):
            _, (a,) = yield Recv(Activations, src=left)
        piece = Piece("forward", j, stage.share * rows.share / 3, first)
        out, kept = yield Compute(stage.forward, x[self.places[chunk]], rows, a, piece=piece)
        if right := self._beside(chunk, 1):
            yield Send(right, Activations(out))
        return kept

    def backward(self, x: Array, rows: Any, kept: Any, j: int = 0, chunk: int = 0,
                 last: bool = False) -> Program[Array]:
        """The gradient of the stage's parameters at x, of these examples' part of the mean loss."""
        stage, d = self.stages[chunk], None
        if right := self._beside(chunk, 1):
            _, (d,) = yield Recv(Gradients, src=right)
        piece = Piece("backward", j, stage.share * rows.share * 2 / 3, last=last)
        g, d = yield Compute(stage.backward, x[self.places[chunk]], rows, kept, d, piece=piece)
        if left := self._beside(chunk, -1):
            yield Send(left, Gradients(d))
        return g  # type: ignore[no-any-return]

    def update(self, g: Array, t: int, read: int) -> Program[None]:
        """Update t, with the mean of all replicas' gradients at version `read`; reported to observers."""
        if len(self.group) > 1:
            g = yield from self.same.mean(g, t)
        yield from self.step(g, t)
        yield Mark("update", part=self.k, version=t, reads=((self.names[self.k], read),), t=t,
                   x=self.held.x)
        yield Mark("clock", t=t)


def deploy(problem: Divisible, workers: int, sgd: SGD, stages: int | None, cut: str, collective: Collective,
           program: Callable[[Worker], Program[Any]], chunks: int = 1) -> Deployment:
    """Stages, `chunks` of them on each node, in one replica of the net or several; ranks go through the
    replicas of the first stage, then through those of the second."""
    if workers < 1:
        raise ValueError(f"workers {workers}; expected at least 1")
    depth = workers if stages is None else stages
    if depth < 1 or workers % depth:
        raise ValueError(f"stages {stages} on {workers} workers; expected a divisor of {workers}: each "
                         "worker holds one stage of a replica, and replicas are equal")
    replicas, reduce, nodes = workers // depth, reduction(collective), {}
    names = [[f"stage{k}" + f".{r}" * (replicas > 1) for k in range(depth)] for r in range(replicas)]
    split = problem.split(depth * chunks, cut)
    for r, own in enumerate(names):
        for k, name in enumerate(own):
            held = split[k::depth]
            x = np.concatenate([stage.x0 for stage in held]) if chunks > 1 else held[0].x0
            worker = Worker(r, x, sgd, k, held, own, [each[k] for each in names], reduce)
            nodes[name] = Node(program(worker), rank=k * replicas + r)
    return nodes
