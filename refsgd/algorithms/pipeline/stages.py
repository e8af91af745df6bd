"""Stages of a pipeline: messages between neighbours, one pass in each direction, the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

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
    """The result of a stage: its parameters, which are one part of the model's."""

    part: int
    x: Array


@dataclass
class Worker:
    """Stage k on its node: its parameters with the state of the update rule, and the names of all stages."""

    k: int
    names: Sequence[str]
    stage: Any
    sgd: SGD

    def __post_init__(self) -> None:
        self.x: Array = self.stage.x0
        self.v = self.sgd.start(self.x)

    @property
    def held(self) -> Held:
        """What the program returns."""
        return Held(self.k, self.x)

    def forward(self, x: Array, rows: Any, j: int = 0) -> Program[Any]:
        """These examples through the stage at x; micro-batch j.  Returns what `backward` needs."""
        a = None
        if self.k > 0:
            _, (a,) = yield Recv(Activations, src=self.names[self.k - 1])
        piece = Piece("forward", j, self.stage.share * rows.share / 3)
        out, kept = yield Compute(self.stage.forward, x, rows, a, piece=piece)
        if self.k < len(self.names) - 1:
            yield Send(self.names[self.k + 1], Activations(out))
        return kept

    def backward(self, x: Array, rows: Any, kept: Any, j: int = 0) -> Program[Array]:
        """The gradient of the stage's parameters at x, of these examples' part of the mean loss."""
        d = None
        if self.k < len(self.names) - 1:
            _, (d,) = yield Recv(Gradients, src=self.names[self.k + 1])
        piece = Piece("backward", j, self.stage.share * rows.share * 2 / 3)
        g, d = yield Compute(self.stage.backward, x, rows, kept, d, piece=piece)
        if self.k > 0:
            yield Send(self.names[self.k - 1], Gradients(d))
        return g  # type: ignore[no-any-return]

    def update(self, g: Array, t: int, read: int) -> Program[None]:
        """Update t, with a gradient at version `read`; reported to observers."""
        self.x, self.v = yield Compute(self.sgd.step, self.x, self.v, g, t, kind="update")
        yield Mark("update", part=self.k, version=t, reads=((self.names[self.k], read),), t=t, x=self.x)
        yield Mark("clock", t=t)


def deploy(problem: Divisible, workers: int, sgd: SGD, stages: int | None, cut: str,
           program: Callable[[Worker], Program[Held]]) -> Deployment:
    """A deployment of stages, one on each node.

    Parameters
    ----------
    problem : Divisible
    workers : int
        Number of nodes, at least 1.
    sgd : SGD
        The update rule of each stage.
    stages : int or None
        K, by default one for each node; pipelines beside each other are not deployed yet.
    cut : str
        Where the problem is cut, see `refsgd.problems.chain.Chain.cut`.
    program : callable
        The main program of a stage.
    """
    if workers < 1:
        raise ValueError(f"workers {workers}; expected at least 1")
    if stages not in (None, workers):
        raise ValueError(f"stages {stages} on {workers} workers; expected one stage on each worker, stages "
                         f"{workers}: a pipeline has no replicas yet")
    names = [f"stage{k}" for k in range(workers)]
    return {name: Node(program(Worker(k, names, stage, sgd)), rank=k)
            for k, (name, stage) in enumerate(zip(names, problem.split(workers, cut), strict=True))}
