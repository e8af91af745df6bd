"""Shared sub-programs without servers: the names of the peers, a replica with its update or as a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from refsgd.algorithms.parts import Objective
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program


class Model(NamedTuple):
    """peer -> peer: a replica, which the sender does not change."""

    x: Array  # (d,)


def peers(workers: int) -> list[str]:
    """Names of the nodes, by rank; raises ValueError if there are none.

    >>> peers(2)
    ['peer0', 'peer1']
    """
    if workers < 1:
        raise ValueError(f"workers {workers}; expected at least 1")
    return [f"peer{rank}" for rank in range(workers)]


@dataclass
class Replica:
    """One peer's copy of the parameters, which its programs share, with the state of the update rule."""

    rank: int
    x: Array  # (d,)
    sgd: SGD

    def __post_init__(self) -> None:
        self.v = self.sgd.start(self.x)  #: velocity, which is never sent

    def __getstate__(self) -> dict[str, Any]:
        """State that a process returns at its end: without the update rule, whose schedule may be a
        lambda."""
        return {**vars(self), "sgd": None}

    def step(self, g: Array, t: int) -> Program[None]:
        """x <- update(x, g), which takes the time of an update; g is the gradient of iteration t."""
        self.x, self.v = yield Compute(self.sgd.step, self.x, self.v, g, t, kind="update")

    def mark(self, t: int, x: Array) -> Program[None]:
        """Report update t, whose result is x, to observers; its gradient read the model before it."""
        yield Mark("update", part=0, version=t, reads=((f"peer{self.rank}", t),), t=t, x=x)

    def apply(self, g: Array, t: int) -> Program[None]:
        """Update x and report it to observers."""
        yield from self.step(g, t)
        yield from self.mark(t, self.x)


def deploy(problem: Objective, workers: int, sgd: SGD,
           program: Callable[[Any, Sequence[str]], Program[Any]],
           handler: Callable[[Any], Program[None]] | None = None, survives: bool = False,
           kind: Callable[[int, Array, SGD], Replica] = Replica) -> Deployment:
    """Peers with a replica each, of a `kind`: the main `program` gets it and the names of all peers, a
    `handler` of the same replica serves other peers, and peers may survive the death of another."""
    names, nodes = peers(workers), {}
    for rank, name in enumerate(names):
        replica = kind(rank, problem.x0, sgd)
        handlers = [handler(replica)] if handler else []
        nodes[name] = Node(program(replica, names), handlers, rank=rank, survives=survives)
    return nodes


def others_of(replica: Replica, names: Sequence[str]) -> list[str]:
    """The names of the other peers."""
    return [name for rank, name in enumerate(names) if rank != replica.rank]
