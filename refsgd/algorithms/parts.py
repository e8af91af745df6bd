"""What the programs with parameter servers share: messages, the cut into parts, push and pull, updates, deployment.

The parameters are cut into K parts, one per server (Li et al., OSDI 2014).  Most algorithms have the same `worker`;
their servers differ in what one update is (BSP: the mean of all; ASP, SSP: each push) and in when they answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, Send

Name = TypeVar("Name")
Layout = Callable[[int, int], list[slice]]  #: cuts range(d) into one part for each of K servers


class Objective(Protocol):
    """What an algorithm needs to know of the problem it solves."""

    x0: Array  #: (d,) the common starting point
    gradient: Callable[[Array, int, int], Array]  #: (x, rank, t) -> (d,), mean over the worker's share of step t
    images: Callable[[int, int], int]  #: (rank, t) -> examples in that share, which is its weight in a mean


class Push(NamedTuple):
    """worker -> server: a gradient of the server's part."""

    grad: Array  # (part,)
    examples: int  # how many examples it is the mean of
    version: int  # of the part at which it was computed


class Model(NamedTuple):
    """server -> worker: the server's part of the parameters."""

    x: Array  # (part,)
    version: int  # updates applied to it so far


def equal(d: int, servers: int) -> list[slice]:
    """The layout of contiguous parts of equal length to within one.

    >>> equal(10, 3)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    edges = [d * k // servers for k in range(servers + 1)]
    return [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]


def rotate(items: Sequence[Name], first: int) -> list[Name]:
    """The items starting with number `first`: where all servers are co-located, no two start at the same one."""
    k = first % len(items)
    return [*items[k:], *items[:k]]


def names(workers: int, servers: int) -> tuple[list[str], list[str]]:
    """Names of the workers and of the servers; raises ValueError where there is none of either."""
    if workers < 1:
        raise ValueError(f"workers {workers}; expected at least 1")
    if servers < 1:
        raise ValueError(f"servers {servers}; expected at least 1")
    return [f"worker{i}" for i in range(workers)], [f"server{k}" for k in range(servers)]


# -- the worker's side -----------------------------------------------------------------------------------------


@dataclass
class Servers:
    """The servers as one worker sees them: the part of each, the order in which it talks to them, the versions read."""

    part: dict[str, slice]
    order: list[str]
    version: dict[str, int]


def connect(servers: Sequence[str], d: int, first: int = 0, layout: Layout = equal) -> Servers:
    """The servers of d parameters, for a worker that begins with number `first`."""
    part = dict(zip(servers, layout(d, len(servers)), strict=True))
    return Servers(part, rotate(servers, first), dict.fromkeys(servers, 0))


def push(servers: Servers, g: Array, examples: int) -> Program[None]:
    """Send each server its part of a gradient."""
    for s in servers.order:
        yield Send(s, Push(g[servers.part[s]], examples, servers.version[s]))


def pull(servers: Servers) -> Program[Array]:
    """Wait for the part of each server; the whole model, (d,)."""
    parts = {}
    for s in servers.order:
        _, (parts[s], servers.version[s]) = yield Recv(Model, src=s)
    return np.concatenate([parts[s] for s in servers.part])


def worker(rank: int, servers: Sequence[str], problem: Objective, steps: int, rotated: bool = False) -> Program[Array]:
    """Compute a gradient, push it part by part, wait for every part of the new model; returns the last model, (d,).

    A `rotated` worker begins with the server of its own number.
    """
    x = problem.x0
    there = connect(servers, x.size, rank if rotated else 0)
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, x, rank, t)
        yield from push(there, g, problem.images(rank, t))
        x = yield from pull(there)
        yield Mark("clock", t=t)
    return x


# -- the server's side -----------------------------------------------------------------------------------------


@dataclass
class Shard:
    """One part of the parameters at its server, with the state of the update rule.

    Parameters
    ----------
    part : int
        Number of the part, which is the server's.
    x : ndarray, (part,)
        Its contents at the start.
    sgd : SGD
        The update rule.
    """

    part: int
    x: Array
    sgd: SGD
    version: int = 0  #: updates applied so far

    def __post_init__(self) -> None:
        self.v = self.sgd.start(self.x)  #: velocity

    def apply(self, w: str, push: Push) -> Program[None]:
        """One update with the gradient of one worker."""
        yield from self.update([(w, push)], SGD.step, push.grad)

    def update(self, pushes: Iterable[tuple[str, Push]], rule: Callable[..., Any], *given: Any) -> Program[None]:
        """One update with gradients of some workers: ``x, v = rule(sgd, x, v, given[0], version, *given[1:])``."""
        reads = tuple((w, push.version) for w, push in pushes)
        self.x, self.v = yield Compute(rule, self.sgd, self.x, self.v, given[0], self.version, *given[1:],
                                       kind="update")
        yield from self.mark(reads)

    def mark(self, reads: tuple[tuple[str, int], ...]) -> Program[None]:
        """Tell observers of an update that read these versions, and count it."""
        yield Mark("update", part=self.part, version=self.version, reads=reads, x=self.x)
        self.version += 1


def deploy(problem: Objective, workers: int, servers: int, sgd: SGD, worker: Callable[[int, list[str]], Program[Any]],
           server: Callable[[Shard, list[str]], Program[Array]], survives: bool = True,
           layout: Layout = equal) -> Deployment:
    """A deployment of workers and of servers with a part each.

    Parameters
    ----------
    problem : Objective
    workers, servers : int
        n and K, at least 1.
    sgd : SGD
        The update rule of each shard.
    worker, server : callable
        Their programs, of the rank and the names of the servers, and of the shard and the names of the workers.
    survives : bool
        Whether the servers handle the death of a worker.
    layout : callable
        The cut of the parameters.
    """
    ws, ss = names(workers, servers)
    nodes = {w: Node(worker(i, ss), rank=i) for i, w in enumerate(ws)}
    for k, (s, part) in enumerate(zip(ss, layout(problem.x0.size, servers), strict=True)):
        shard = Shard(k, problem.x0[part], sgd)
        nodes[s] = Node(server(shard, ws), role="server", rank=k, survives=survives)
    return nodes
