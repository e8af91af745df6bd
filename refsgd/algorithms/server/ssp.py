"""Stale synchronous parallel SGD (SSP): run ahead of the slowest worker, but at most `staleness` clocks.

A clock is one iteration.  A worker that has completed c clocks may start the next one only when every
worker has completed c - s, where s is the slack.  There are three ways to get a new model:

* ``lazy`` (Ho et al.): the worker computes on its cache, to which it adds its own updates, and asks for a new
  copy only when the cache is older than c - s.  Fewest bytes, oldest parameters.
* ``eager`` (ESSP, Dai et al.): as lazy, but the server sends its model to all when the slowest clock
  advances.
* ``fresh``: the server answers each push with its newest model, once the bound allows it, see `ssp_gate`.

Quick facts
-----------
synchronous: bounded | centralised: yes | roles: n workers, K servers with a part each | messages per worker
and iteration: K up; K down (fresh), K up and K down per refresh (lazy), K down per advance of the slowest
(eager) | bytes per worker and iteration: M up; M down (fresh), M / (s + 1) to M (lazy), M per advance (eager)
| clock gap: at most s started, s + 1 completed | staleness: at most (2 s + 1)(n - 1) updates (fresh) |
momentum: at the server | aggregation: sum, as Ho et al.: each push is applied with the full rate |
deterministic: given the order of arrival

Unequal batches: every push has the same weight, whatever its number of examples, as in the papers.

What differs from the papers
----------------------------
`fresh` is in neither: SSP with a read after every clock.  Workers of Ho et al. send updates -lr * g that the
server adds; here they send g and the server applies the rule, so that momentum can live there.  A cache adds
its own updates as plain -lr * g, without momentum or weight decay.  Their clock is any unit of work; their
table has rows, here parts.

References
----------
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013,
section 2: the bound and read-my-writes; section 3: read_row, inc and clock.  Dai et al., "High-performance
distributed ML at scale through parameter server consistency models", AAAI 2015 (arXiv:1410.8043): ESSP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from refsgd.algorithms.facts import ONE_WORKER, SERVED, Facts, Options, declare, each_push, one_of
from refsgd.algorithms.parts import Objective, Push, Servers, Shard, deploy
from refsgd.algorithms.server import ssp_gate
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Died, Mark, Poll, Program, Recv, Send

Refresh = Literal["fresh", "lazy", "eager"]


class Read(NamedTuple):
    """worker -> server: send me your part once every worker has completed `clock` iterations."""

    clock: float


class Row(NamedTuple):
    """server -> worker: a part with all updates of the first `clock` iterations of every worker."""

    x: Array
    version: int  # updates applied to it so far
    clock: int  # iterations completed by all workers
    own: int  # iterations of the receiver that it contains


def cache_worker(rank: int, servers: Sequence[str], problem: Objective, steps: int, sgd: SGD,
                 staleness: float, workers: int, eager: bool) -> Program[Array]:
    """Compute on a cached model plus own updates; refresh it when it is older than c - staleness."""
    x, there = problem.x0, Servers(servers, problem)
    row = {s: Row(x[part], 0, 0, 0) for s, part in there.part.items()}
    mine: dict[int, Array] = {}  # own steps that some row does not contain yet
    for c in range(steps):
        # read_row: a row of the cache that has all updates before clock c - s is young enough
        oldest = min(r.clock for r in row.values())
        if oldest < c - staleness and eager:
            yield Mark("block", worker=f"worker{rank}")
        elif oldest < c - staleness:
            for s in servers:
                yield Send(s, Read(c - staleness))
        while min(r.clock for r in row.values()) < c - staleness:
            s, row[s] = yield Recv(Row)  # too old: wait for it
        while hit := (yield Poll(Row)):  # young enough: take rows that have arrived
            row[hit[0]] = hit[1]
        # read-my-writes: the row, and those own steps that it does not contain
        mine = {t: step for t, step in mine.items() if t >= min(r.own for r in row.values())}
        read = [sum((mine[t][there.part[s]] for t in range(row[s].own, c)), start=row[s].x) for s in servers]
        x = np.concatenate(read)
        there.version = {s: row[s].version + c - row[s].own for s in servers}  # updates that x contains
        g = yield from there.gradient(x, rank, c, there.pushes(problem.images(rank, c)))
        # inc, whose rate is the server's when all workers have completed c clocks
        mine[c] = -sgd.rate(c * workers) * g
        yield Mark("clock", t=c)
    return x


def row_server(shard: Shard, workers: Sequence[str], steps: int, eager: bool) -> Program[Array]:
    """Lazy: answer reads when the slowest clock allows; eager: send rows to all when it advances."""
    clock = dict.fromkeys(workers, 0)  # gradients received from each living worker
    parked: dict[str, float] = {}
    while (before := min(clock.values(), default=steps)) < steps:
        w, message = yield from shard.recv(Push, Read, Died)
        if isinstance(message, Died):
            clock.pop(w, None)  # the others no longer wait for it
        elif isinstance(message, Push):
            yield from shard.apply(w, message)
            clock[w] += 1
        else:
            parked[w] = message.clock
            if message.clock > before:
                yield Mark("block", worker=w)
        slowest = min(clock.values(), default=steps)
        ready = [w for w in clock if parked.get(w, np.inf) <= slowest or (eager and slowest > before)]
        for w in ready:
            parked.pop(w, None)
            yield Send(w, Row(shard.x, shard.version, slowest, clock[w]))
    return shard.x


def facts(options: Options) -> Facts:
    """The facts for a server that answers each push, or for workers that read through a cache."""
    alike = replace(SERVED, updates=each_push, mean_of=ONE_WORKER, formula="ssp", recursion="waits",
                    lost=f"{SERVED.lost}; the bound then counts the living workers",
                    gate=lambda options: (options["staleness"], options["staleness"]),
                    tight=({"staleness": 0}, {"staleness": 1}))
    return alike if options["refresh"] == "fresh" else replace(
        alike, recursion="its workers add their own updates to what they read, which no recursion follows",
        only_sgd="its caches make their own steps along the plain gradient; refresh fresh has no "
                 "caches",
        because={**alike.because,
                 "overlap both": "its caches do not wait for the answer to a push; refresh fresh does"})


@declare(facts)
def ssp(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
        staleness: float = 3, refresh: Refresh = "fresh") -> Deployment:
    """Deploy SSP.

    Parameters
    ----------
    rotated : bool
        Of `fresh` only: worker i begins with server i.
    staleness : int or inf
        Slack s >= 0 in clocks; inf never blocks.
    refresh : {"fresh", "lazy", "eager"}
        When a worker gets a new model.
    """
    ssp_gate.check(staleness)
    one_of("refresh", refresh, Refresh)
    if refresh == "fresh":
        return deploy(problem, workers, steps, sgd, servers, rotated,
                      lambda shard, workers: ssp_gate.server(shard, workers, steps, staleness))
    eager = refresh == "eager"
    return deploy(problem, workers, steps, sgd, servers, rotated,
                  lambda shard, workers: row_server(shard, workers, steps, eager),
                  lambda rank, servers: cache_worker(rank, servers, problem, steps, sgd, staleness, workers,
                                                     eager))
