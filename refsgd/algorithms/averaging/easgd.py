"""Elastic averaging SGD (EASGD): each worker trains its own replica, tied to a centre by an elastic force.

Few messages and no stale gradients: a replica steps alone and every `period` iterations exchanges with the
centre the same vector e, which pulls the replica to the centre and the centre to the replica.  The centre is
the result.

Worker i, iteration t::

    z = x + momentum v                      # where the gradient is taken: from before the exchange
    if t mod period = 0:
        fetch center;  e = alpha (x - center)
        send e to the servers: center = center + e;  x = x - e
    v = momentum v - lr * (gradient at z)
    x = x + v

With momentum this is EAMSGD (Nesterov's form); v never leaves its worker.  ``async``: a worker asks for the
centre and exchanges alone.  ``sync``: all exchange with the same centre, which then moves by the sum of the n
forces, center = (1 - beta) center + beta mean(x_i) with beta = n alpha.

Quick facts
-----------
synchronous: as `mode` says | centralised: yes | roles: n workers, K servers with a slice of the centre each |
messages per worker and exchange: K requests, K down, K up | bytes per worker and iteration: M / period down,
M / period up | staleness: gradients 0 (own replica), forces unbounded (async) or 0 | clock gap: unbounded
(async), at most 2 period - 1 started and 2 period completed (sync) | momentum: at the worker | aggregation:
sum of forces | deterministic: sync yes, async given the order of arrival

An exchange keeps the sum of all replicas and the centre.  alpha = 0 is n independent SGDs; 1/2 moves both to
the middle; 1 swaps them.  Exchanges alone are stable for alpha < 1 (async, fresh centre) or alpha (n + 1) < 2
(sync).

What differs from the paper
---------------------------
Forces of async workers may cross on their way: the centre adds what each computed from the centre it was
sent. The centre takes no part in the last iterations after an exchange, as in the paper's endless loop.

References
----------
Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", NIPS 2015, section 3: the
synchronous rule; algorithm 1: asynchronous EASGD; algorithm 2: EAMSGD; beta = 0.9, alpha = beta / n.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import numpy as np

from refsgd.algorithms.parts import Model, Objective, equal, names, rotate
from refsgd.algorithms.server.downpour import Fetch, fetch
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, RunEnded, Send

Mode = Literal["async", "sync"]


class Elastic(NamedTuple):
    """worker -> server: the force on the server's slice of the centre; the worker has applied its
    negative."""

    force: Array  # (slice,)
    version: int  # of the slice from which it was computed


def nesterov(sgd: SGD, x: Array, v: Array, z: Array, g: Array, t: int) -> tuple[Array, Array]:
    """Replica and velocity after iteration t, whose gradient g was taken at z; all (d,)."""
    g = g + np.float32(sgd.weight_decay) * z
    v = np.float32(sgd.momentum) * v - sgd.rate(t) * g
    return x + v, v


def worker(rank: int, servers: Sequence[str], problem: Objective, steps: int, sgd: SGD, period: int,
           alpha: float,
           rotated: bool) -> Program[Array]:
    """Step alone; every `period` iterations exchange a force with the centre; returns the replica, shape
    (d,)."""
    x, v = problem.x0, sgd.start(problem.x0)
    cut = dict(zip(servers, equal(x.size, len(servers)), strict=True))
    order = rotate(servers, rank) if rotated else servers
    for t in range(steps):
        z = x + np.float32(sgd.momentum) * v  # before the exchange
        if t % period == 0:
            center, version = yield from fetch(order, servers, t)
            e = np.float32(alpha) * (x - center)
            for server in order:
                yield Send(server, Elastic(e[cut[server]], version[server]))
            x = x - e
        g: Array = yield Compute(problem.gradient, z, rank, t)
        x, v = yield Compute(nesterov, sgd, x, v, z, g, t, kind="update")
        yield Mark("clock", t=t, x=x)
    return x


def add(center: Array, forces: Sequence[Array]) -> Array:
    """The centre after these forces, added in the order given."""
    for e in forces:
        center = center + e
    return center


def async_server(k: int, x: Array, exchanges: int) -> Program[Array]:
    """Answer requests and add each of `exchanges` forces to slice k of the centre as it comes; returns
    the slice."""
    version = 0
    with suppress(RunEnded):  # raised after a death, when nobody sends any more
        while version < exchanges:
            w, message = yield Recv(Fetch, Elastic)
            if isinstance(message, Fetch):
                yield Send(w, Model(x, version))
            else:
                x = yield Compute(add, x, [message.force], kind="update")
                yield Mark("update", part=k, version=version, reads=((w, message.version),), x=x)
                version += 1
    return x


def sync_server(k: int, workers: Sequence[str], x: Array, rounds: int) -> Program[Array]:
    """Show all workers the same centre, add their forces in worker order, and again; returns slice k."""
    waiting: list[str] = []  # workers that ask for the next centre
    for version in range(rounds):
        for w in waiting:
            yield Send(w, Model(x, version))
        waiting, forces = [], dict[str, Array]()
        while len(forces) < len(workers):
            w, message = yield Recv(Fetch, Elastic)
            if isinstance(message, Elastic):
                forces[w] = message.force
            elif w in forces:
                waiting.append(w)
            else:
                yield Send(w, Model(x, version))
        x = yield Compute(add, x, [forces[w] for w in workers], kind="update")
        yield Mark("update", part=k, version=version, reads=tuple((w, version) for w in workers), x=x)
    return x


def easgd(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
          period: int = 4, alpha: float | None = None, mode: Mode = "async") -> Deployment:
    """Deploy EASGD; with a momentum in `sgd`, EAMSGD.

    Parameters
    ----------
    problem : Objective
    workers, servers : int
        n and K, at least 1.
    steps : int
        Iterations of each worker, >= 0.
    sgd : SGD
    rotated : bool
        Worker i begins with server i: where every worker's node has a server.
    period : int
        Iterations between two exchanges of a worker, at least 1 (the paper's tau).
    alpha : float, optional
        Share of the distance to the centre that an exchange takes away, >= 0; by default 0.9 / n.
    mode : {"async", "sync"}
    """
    if period < 1:
        raise ValueError(f"period {period}; expected at least 1 iteration")
    if alpha is not None and not 0 <= alpha < float("inf"):
        raise ValueError(f"alpha {alpha}; expected a finite number >= 0")
    if mode not in ("async", "sync"):
        raise ValueError(f"mode {mode!r}; expected async or sync")
    ws, ss = names(workers, servers)
    share = 0.9 / workers if alpha is None else alpha
    deployment = {w: Node(worker(i, ss, problem, steps, sgd, period, share, rotated), rank=i)
                  for i, w in enumerate(ws)}
    rounds = -(-steps // period)
    for k, (s, cut) in enumerate(zip(ss, equal(problem.x0.size, servers), strict=True)):
        x = problem.x0[cut]
        deployment[s] = Node(sync_server(k, ws, x, rounds) if mode == "sync"
                             else async_server(k, x, rounds * workers), role="server", rank=k,
                             survives=mode == "async")
    return deployment
