"""What the algorithms with parameter servers share: two messages, and the worker that pushes and waits.

The parameters are cut into K slices, one per server (Li et al., OSDI 2014).  BSP, ASP and SSP have the same
worker; the servers differ in what is one update (BSP: the mean of all; ASP, SSP: each push) and in when they answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from refsgd.effects import Array, Compute, Mark, Program, Recv, Send


class Objective(Protocol):
    """What an algorithm needs to know of the problem it solves."""

    x0: Array  #: (d,) the common starting point
    gradient: Callable[[Array, int, int], Array]  #: (x, rank, t) -> (d,), mean over the worker's share of step t
    images: Callable[[int, int], int]  #: (rank, t) -> images in that share, which is its weight in a mean


class Push(NamedTuple):
    """worker -> server: a gradient of the server's slice."""

    grad: Array  # (slice,)
    images: int  # how many images it is the mean of
    version: int  # of the slice at which it was computed


class Model(NamedTuple):
    """server -> worker: the server's slice of the parameters."""

    x: Array  # (slice,)
    version: int  # updates applied to it so far


def slices(d: int, servers: int) -> list[slice]:
    """Cut range(d) into contiguous parts of equal length to within one.

    Parameters
    ----------
    d : int
        Length of the parameters.
    servers : int
        K, at least 1.

    Returns
    -------
    list of slice
        One for each server, in their order.

    Examples
    --------
    >>> slices(10, 3)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    edges = [d * k // servers for k in range(servers + 1)]
    return [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]


def rotate(items: Sequence[str], first: int) -> list[str]:
    """The items starting with number `first`: where all servers are collocated, no two start at the same one.

    Parameters
    ----------
    items : sequence of str
        At least one.
    first : int
        Taken modulo their number.

    Returns
    -------
    list of str
    """
    k = first % len(items)
    return [*items[k:], *items[:k]]


def names(workers: int, servers: int) -> tuple[list[str], list[str]]:
    """Names of the nodes; raises ValueError where there is no worker or no server.

    Parameters
    ----------
    workers : int
        n, at least 1.
    servers : int
        K, at least 1.

    Returns
    -------
    (list of str, list of str)
        Of the workers, and of the servers.
    """
    if workers < 1:
        raise ValueError(f"workers {workers}; expected at least 1")
    if servers < 1:
        raise ValueError(f"servers {servers}; expected at least 1")
    return [f"worker{i}" for i in range(workers)], [f"server{k}" for k in range(servers)]


def worker(rank: int, servers: Sequence[str], problem: Objective, steps: int, rotated: bool = False) -> Program[Array]:
    """Compute a gradient, push it slice by slice, wait for every slice of the new model.

    Parameters
    ----------
    rank : int
        This worker, 0 to n - 1.
    servers : sequence of str
        Their names, by slice.
    problem : Objective
    steps : int
        Iterations, >= 0.
    rotated : bool
        Whether it begins with the server of its own number.

    Returns
    -------
    ndarray, (d,)
        The last model it was sent.
    """
    x = problem.x0
    cut = dict(zip(servers, slices(x.size, len(servers)), strict=True))
    version = dict.fromkeys(servers, 0)
    order = rotate(servers, rank) if rotated else servers
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, x, rank, t)
        for server in order:
            yield Send(server, Push(g[cut[server]], problem.images(rank, t), version[server]))
        part = {}
        for server in order:
            _, (part[server], version[server]) = yield Recv(Model, src=server)
        x = np.concatenate([part[server] for server in servers])
        yield Mark("clock", t=t)
    return x
