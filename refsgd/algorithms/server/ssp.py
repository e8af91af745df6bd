"""Stale synchronous parallel SGD (SSP): run ahead of the slowest worker, but at most `staleness` clocks.

A clock is one iteration.  A worker that has completed c clocks may start the next one only when every
worker has completed c - s, s being the slack.  There are three ways to get a new model:

* ``fresh``: the server answers each push with its newest model, once the bound allows it.  s = 0 waits as
  BSP does, s = infinity is ASP.
* ``lazy`` (Ho et al.): the worker computes on its cache, to which it adds its own updates, and asks for a new
  copy only when the cache is older than c - s.  Fewest bytes, oldest parameters.
* ``eager`` (ESSP, Dai et al.): as lazy, but the server sends its model to all when the slowest clock advances.

Server, fresh::

    on push g from w:  x = update(x, g);  clock[w] += 1
    answer every waiting w with clock[w] <= min(clock) + s

Quick facts
-----------
synchronous: bounded | centralised: yes | roles: n workers, K servers with a slice each | messages per worker and
iteration: K up; K down (fresh), K up and K down per refresh (lazy), K down per advance of the slowest (eager) | bytes
per worker and iteration: M up; M down (fresh), M / (s + 1) to M (lazy), M per advance (eager) | clock gap: at most s
started, s + 1 completed | staleness: at most (2 s + 1)(n - 1) updates (fresh) | momentum: at the server |
aggregation: sum, as Ho et al.: each push is applied with the full rate | deterministic: given the order of arrival

What differs from the papers
----------------------------
`fresh` is in neither: SSP with a read after every clock.  Workers of Ho et al. send updates -lr * g that the server
adds; here they send g and the server applies the rule, so that momentum can live there.  A cache adds its own updates
as plain -lr * g, without momentum or weight decay.  Their clock is any work; the table has rows, here slices.

References
----------
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013,
section 2: the bound and read-my-writes.  Dai et al., "High-performance distributed ML at scale through
parameter server consistency models", AAAI 2015 (arXiv:1410.8043): ESSP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy, equal, worker
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Died, Mark, Poll, Program, Recv, Send

Refresh = Literal["fresh", "lazy", "eager"]


class Read(NamedTuple):
    """worker -> server: send me your slice once every worker has completed `clock` iterations."""

    clock: float


class Row(NamedTuple):
    """server -> worker: a slice with all updates of the first `clock` iterations of every worker."""

    x: Array
    version: int  # updates applied to it so far
    clock: int  # iterations completed by all workers
    own: int  # iterations of the receiver that it contains


def cache_worker(rank: int, servers: Sequence[str], problem: Objective, steps: int, sgd: SGD, staleness: float,
                 workers: int, eager: bool) -> Program[Array]:
    """Ho et al.'s client: compute on a cached model plus own updates; refresh it when it is older than c - staleness."""
    x = problem.x0
    cut = dict(zip(servers, equal(x.size, len(servers)), strict=True))
    row = {s: Row(x[cut[s]], 0, 0, 0) for s in servers}
    mine: dict[int, Array] = {}  # own steps that some row does not contain yet
    for c in range(steps):
        oldest = min(r.clock for r in row.values())
        if oldest < c - staleness and eager:
            yield Mark("block", worker=f"worker{rank}")
        elif oldest < c - staleness:
            for s in servers:
                yield Send(s, Read(c - staleness))
        while min(r.clock for r in row.values()) < c - staleness:
            s, row[s] = yield Recv(Row)  # too old: wait for it
        while hit := (yield Poll(Row)):  # young enough: take what has come
            row[hit[0]] = hit[1]
        mine = {t: step for t, step in mine.items() if t >= min(r.own for r in row.values())}
        # Read-my-writes without double counting: the row, and only those own steps that it does not contain.
        x = np.concatenate([sum((mine[t][cut[s]] for t in range(row[s].own, c)), start=row[s].x) for s in servers])
        g: Array = yield Compute(problem.gradient, x, rank, c)
        for s in servers:
            known = row[s].version + c - row[s].own  # updates that x contains: the row's and own later ones
            yield Send(s, Push(g[cut[s]], problem.images(rank, c), known))
        mine[c] = -sgd.rate(c * workers) * g  # the rate that the server has when all workers have completed c clocks
        yield Mark("clock", t=c)
    return x


def row_server(shard: Shard, workers: Sequence[str], steps: int, eager: bool) -> Program[Array]:
    """Lazy: answer reads when the slowest clock allows; eager: send rows to all when it advances."""
    clock = dict.fromkeys(workers, 0)  # gradients received from each living worker
    parked: dict[str, float] = {}
    while (before := min(clock.values(), default=steps)) < steps:
        w, message = yield Recv(Push, Read, Died)
        if isinstance(message, Died):
            clock.pop(w, None)  # the others wait for it no more
        elif isinstance(message, Push):
            yield from shard.apply(w, message)
            clock[w] += 1
        else:
            parked[w] = message.clock
            if message.clock > before:
                yield Mark("block", worker=w)
        slowest = min(clock.values(), default=steps)
        ready = list(clock) if eager and slowest > before else [w for w in clock if parked.get(w, np.inf) <= slowest]
        for w in ready:
            parked.pop(w, None)
            yield Send(w, Row(shard.x, shard.version, slowest, clock[w]))
    return shard.x


def server(shard: Shard, workers: Sequence[str], steps: int, staleness: float) -> Program[Array]:
    """Fresh: answer a worker once it is at most `staleness` clocks ahead of the slowest."""
    clock, waiting = dict.fromkeys(workers, 0), set()  # gradients received from each living worker
    while min(clock.values(), default=steps) < steps:
        w, message = yield Recv(Push, Died)
        if isinstance(message, Died):
            clock.pop(w, None)  # the others wait for it no more
        else:
            yield from shard.apply(w, message)
            clock[w] += 1
            waiting.add(w)
        slowest = min(clock.values(), default=steps)
        if clock.get(w, 0) > slowest + staleness:
            yield Mark("block", worker=w)
        ready = [w for w in clock if w in waiting and clock[w] <= slowest + staleness]
        for w in ready:
            waiting.remove(w)
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


def ssp(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
        staleness: float = 3, refresh: Refresh = "fresh") -> Deployment:
    """Deploy SSP.

    Parameters
    ----------
    problem : Objective
    workers, servers : int
        n and K, at least 1.
    steps : int
        Iterations (clocks) of each worker, >= 0.
    sgd : SGD
    rotated : bool
        Worker i begins with server i (fresh): where every worker's node has a server.
    staleness : int or inf
        Slack s >= 0 in clocks; inf never blocks.
    refresh : {"fresh", "lazy", "eager"}
        When a worker gets a new model.
    """
    if not staleness >= 0 or staleness % 1 > 0:  # inf % 1 is NaN
        raise ValueError(f"staleness {staleness}; expected a whole number of clocks >= 0, or inf")
    if refresh not in ("fresh", "lazy", "eager"):
        raise ValueError(f"refresh {refresh!r}; expected fresh, lazy or eager")
    eager = refresh == "eager"
    if refresh == "fresh":
        return deploy(problem, workers, servers, sgd,
                      lambda rank, servers: worker(rank, servers, problem, steps, rotated),
                      lambda shard, workers: server(shard, workers, steps, staleness))
    return deploy(problem, workers, servers, sgd,
                  lambda rank, servers: cache_worker(rank, servers, problem, steps, sgd, staleness, workers, eager),
                  lambda shard, workers: row_server(shard, workers, steps, eager))
