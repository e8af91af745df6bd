"""Shared sub-programs for parameter servers: messages, division into parts, push and pull, updates,
deployment.

The parameters are divided into K parts, one per server (Li et al., OSDI 2014).  Most algorithms have the same
`worker`; their servers differ in the update (BSP: the mean of all gradients; ASP, SSP: each push) and in the
time of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, Send


class Objective(Protocol):
    """What an algorithm needs to know about its problem."""

    x0: Array  #: (d,) the common starting point
    gradient: Callable[[Array, int, int], Array]  #: (x, rank, t) -> (d,), mean over the share of step t
    images: Callable[[int, int], int]  #: (rank, t) -> examples in that share, its weight in a mean


class Push(NamedTuple):
    """worker -> server: a gradient of the server's part."""

    grad: Array  # (part,)
    examples: int  # number of examples in its mean
    version: int  # of the part at which it was computed


class Model(NamedTuple):
    """server -> worker: the server's part of the parameters."""

    x: Array  # (part,)
    version: int  # updates applied to it so far


class Fetch(NamedTuple):
    """worker -> server: send me your part."""

    t: int  # the worker's iteration


def equal(d: int, servers: int) -> list[slice]:
    """Divide range(d) into contiguous parts, one per server, of equal length to within one.

    >>> equal(10, 3)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    edges = [d * k // servers for k in range(servers + 1)]
    return [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]


def rotate(items: Sequence[str], first: int) -> list[str]:
    """The items starting with number `first`, so that no two workers begin with the same server."""
    k = first % len(items)
    return [*items[k:], *items[:k]]


def names(workers: int, servers: int) -> tuple[list[str], list[str]]:
    """Names of the workers and of the servers; raises ValueError if there are no workers or no servers."""
    if workers < 1:
        raise ValueError(f"workers {workers}; expected at least 1")
    if servers < 1:
        raise ValueError(f"servers {servers}; expected at least 1")
    return [f"worker{i}" for i in range(workers)], [f"server{k}" for k in range(servers)]


# -- the worker's side ---------------------------------------------------------------------------------------


class Servers:
    """The servers as one worker sees them: their parts of d parameters, the order in which it contacts them
    (starting with number `first`), and the version of each part that it has read."""

    def __init__(self, servers: Sequence[str], d: int, first: int = 0) -> None:
        self.part = dict(zip(servers, equal(d, len(servers)), strict=True))
        self.order = rotate(servers, first)
        self.version = dict.fromkeys(servers, 0)


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


def fetch(servers: Servers, t: int) -> Program[Array]:
    """Ask each server for its part in iteration t; the whole model, (d,)."""
    for s in servers.order:
        yield Send(s, Fetch(t))
    return (yield from pull(servers))


def worker(rank: int, servers: Sequence[str], problem: Objective, steps: int,
           rotated: bool = False) -> Program[Array]:
    """Compute a gradient, push it part by part, wait for each part of the new model; returns the last, (d,).

    It is the worker of Li et al., algorithm 1.  A `rotated` worker begins with the server of its own number.
    """
    x = problem.x0
    there = Servers(servers, x.size, rank if rotated else 0)
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, x, rank, t)
        yield from push(there, g, problem.images(rank, t))
        x = yield from pull(there)
        yield Mark("clock", t=t)
    return x


# -- the server's side ---------------------------------------------------------------------------------------


@dataclass
class Shard:
    """One part of the parameters at its server, with the state of the update rule."""

    part: int  #: its number, which is the server's
    x: Array  #: (part,) its contents
    sgd: SGD  #: the update rule
    version: int = 0  #: updates applied so far

    def __post_init__(self) -> None:
        self.state: Any = self.sgd.start(self.x)  #: the state of the rule between updates: the velocity

    def apply(self, w: str, push: Push) -> Program[None]:
        """One update with the gradient of one worker."""
        yield from self.update([(w, push)], SGD.step, push.grad, self.version)

    def update(self, pushes: Iterable[tuple[str, Push]], rule: Callable[..., Any],
               *given: Any) -> Program[None]:
        """One update with gradients of some workers: ``x, state = rule(sgd, x, state, *given)``."""
        reads = tuple((w, push.version) for w, push in pushes)
        self.x, self.state = yield Compute(rule, self.sgd, self.x, self.state, *given, kind="update")
        yield from self.mark(reads)

    def mark(self, reads: tuple[tuple[str, int], ...]) -> Program[None]:
        """Report an update whose gradients were computed at these versions to observers, and count it."""
        yield Mark("update", part=self.part, version=self.version, reads=reads, x=self.x)
        self.version += 1


def deploy(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int, rotated: bool,
           server: Callable[[Shard, list[str]], Program[Array]],
           client: Callable[[int, list[str]], Program[Array]] | None = None,
           survives: bool = True) -> Deployment:
    """A deployment of workers, and of servers with a part each.

    Parameters
    ----------
    problem : Objective
        The objective to minimise.
    workers, servers : int
        n and K, at least 1.
    steps : int
        Iterations of each worker, which SSP calls clocks, >= 0.
    sgd : SGD
        The update rule of each shard.
    rotated : bool
        Worker i begins with server i: for deployments in which every worker's node has a server.
    server : callable
        (shard, names of the workers) -> a server's program.
    client : callable, optional
        (rank, names of the servers) -> a worker's program; by default `worker`.
    survives : bool
        Whether the servers handle the death of a worker.
    """
    ws, ss = names(workers, servers)
    nodes = {w: Node(client(i, ss) if client else worker(i, ss, problem, steps, rotated), rank=i)
             for i, w in enumerate(ws)}
    for k, (s, part) in enumerate(zip(ss, equal(problem.x0.size, servers), strict=True)):
        shard = Shard(k, problem.x0[part], sgd)
        nodes[s] = Node(server(shard, ws), role="server", rank=k, survives=survives)
    return nodes
