"""FedBuff: federated averaging without rounds; the server steps once per K moves of any clients.

A client's move, by which its model has left the one that it was given, is added to what the model is by then;
`fedasync` moves towards the client's model instead.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n clients, of which C work at a time, one server | messages per
job: 1 down, 1 up | bytes per job: M down, M up (M = 4 d) | staleness: unbounded, mean (C - 1)/K updates |
clock gap: unbounded | momentum: local, kept between the client's jobs | aggregation: mean of K moves, each
with a weight that falls with its staleness, whatever its examples | deterministic: given the order of arrival
and the draws

With H = 1 and constant weights it is softsync with c = K, and with K = 1 too, ASP.  K = 1 is *not* FedAsync,
except at staleness 0.

What differs from the paper
---------------------------
Each client does the same number of steps, so that a run ends; at its end the last update takes the moves that
are left.  A client that is free is drawn among those with steps left.

References
----------
Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, "Federated learning with buffered asynchronous
aggregation", AISTATS 2022, arXiv:2106.06639.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from refsgd.algorithms.facts import declare
from refsgd.algorithms.federated.clients import (
    CLIENTS,
    Rule,
    Trained,
    Weight,
    Work,
    apply,
    check,
    client,
    draw,
    some,
    stop,
    weighted,
)
from refsgd.algorithms.parts import Objective, Shard, deploy
from refsgd.algorithms.sgd import SGD, mean_gradient
from refsgd.effects import Array, Deployment, Died, Program, Recv, Send


def add_moves(x: Array, state: Any, models: Sequence[Trained], reads: Sequence[Array],
              rates: Sequence[float]) -> tuple[Array, Any]:
    """x plus the mean of the moves from what was read, each at its rate."""
    moves = [np.float32(rate) * (y.x - read) for y, read, rate in zip(models, reads, rates, strict=True)]
    return x + mean_gradient(moves, [1] * len(moves)), state


def alike(period: int, done: int, most: int) -> int:
    """H for each client, however fast."""
    return period


def server(shard: Shard, clients: Sequence[str], steps: int, period: int, size: int, concurrency: int,
           weight: Weight, rate: float, rule: Rule = add_moves,
           length: Callable[[int, int, int], int] = alike) -> Program[Array]:
    """Keep `concurrency` clients at work and step with `size` models at a time; returns x, (d,)."""
    done = dict.fromkeys(clients, 0)  # steps of which the server has heard, of those that live
    jobs: dict[str, Work] = {}  # of the clients at work
    kept: list[tuple[str, Trained, Array, float]] = []
    chosen = yield from draw(clients if steps else [], concurrency)
    while True:
        for w in chosen:
            h = length(period, done[w], max(done.values()))
            jobs[w] = Work(shard.x, shard.version, done[w], min(h, steps - done[w]))
            yield Send(w, jobs[w])
        if not jobs:
            break
        w, message = yield Recv(Trained, Died)
        if isinstance(message, Died):
            jobs.pop(message.node, None)
            del done[message.node]
        else:
            job = jobs.pop(w)
            done[w] += job.steps
            kept.append((w, message, job.x, rate * weighted(shard.version - message.version, weight)))
        ready = [v for v in done if v not in jobs and done[v] < steps]
        if len(kept) == size or (kept and not jobs and not ready):
            kept.sort(key=lambda each: clients.index(each[0]))  # not by arrival: sums are the same bits
            names, models, reads, rates = zip(*kept, strict=True)
            yield from apply(shard, list(zip(names, models, strict=True)), rule, reads, rates)
            kept = []
        chosen = yield from draw(ready, concurrency - len(jobs))
    yield from stop([*done] if steps else [])
    return shard.x


def buffered(workers: int, buffer: int | None) -> int:
    """K, by default half of the clients."""
    return (workers + 1) // 2 if buffer is None else buffer


ANY_TIME = replace(CLIENTS, lost="its job; the server asks another client",
                   recursion="moves of several steps that are stale: no recursion here follows both")


@declare(ANY_TIME, mean_of=lambda workers, options: buffered(workers, options["buffer"]), formula="fedbuff")
def fedbuff(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8,
            buffer: int | None = None, concurrency: int | None = None, weight: Weight = "polynomial",
            outer_lr: float = 1.0) -> Deployment:
    """Deploy FedBuff.

    Parameters
    ----------
    steps : int
        Of each client.
    period : int
        H, steps of a job, at least 1.
    buffer : int, optional
        K, the moves of an update, at least 1; by default half of `workers`.
    concurrency : int, optional
        C, the clients that work at a time, by default all.
    weight : {"constant", "polynomial", "hinge"}
        How the weight of a move falls with its staleness.
    outer_lr : float
        The server's rate, > 0.
    """
    check(period, weight, outer_lr)
    if buffer is not None and buffer < 1:
        raise ValueError(f"buffer {buffer}; expected at least 1")
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, clients: server(
                      shard, clients, steps, period, buffered(len(clients), buffer),
                      some(len(clients), concurrency, "concurrency"), weight, outer_lr),
                  lambda rank, servers: client(rank, servers[0], problem, sgd, steps))
