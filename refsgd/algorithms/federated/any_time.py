"""The server of federated algorithms without rounds: it keeps clients at work and steps with a few of their
models at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from refsgd.algorithms.averaging.local_sgd import check_period
from refsgd.algorithms.facts import Options, one_of
from refsgd.algorithms.federated.clients import CLIENTS, Rule, Trained, Work, apply, draw, stop
from refsgd.algorithms.parts import Shard
from refsgd.effects import Array, Died, Program, Recv, Send

Weight = Literal["constant", "polynomial", "hinge"]


def needs(options: Options, workers: int) -> dict[str, str]:
    """A client that works alone is never stale."""
    alone = options["concurrency"] == 1 or workers == 1
    return {"weight": "several clients at a time"} if alone else {}


ANY_TIME = replace(CLIENTS, lost="its job; the server asks another client", needs=needs,
                   recursion="moves of several steps that are stale: no recursion here follows both")


def weighted(staleness: int, weight: Weight) -> float:
    """The weight of a model by its staleness, as Xie et al. recommend: 1/sqrt(1 + tau), or a hinge at 4."""
    if weight == "hinge":
        return 1 / (10 * max(staleness - 4, 0) + 1)
    return 1.0 if weight == "constant" else 1 / math.sqrt(1 + staleness)


def check(period: int, weight: Weight, rate: float) -> None:
    """Raise ValueError if an option has no such value."""
    check_period(period, 1)
    one_of("weight", weight, Weight)
    if not 0 < rate < float("inf"):
        raise ValueError(f"rate {rate} of the server; expected a finite number > 0")


def alike(period: int, done: int, most: int) -> int:
    """H for each client, however fast."""
    return period


def paced(period: int, done: int, most: int) -> int:
    """DyLU: H steps for the client that has done the most, and in proportion for others."""
    return max(1, period * done // most) if most else period


def server(shard: Shard, clients: Sequence[str], steps: int, period: int, size: int, concurrency: int,
           weight: Weight, rate: float, rule: Rule,
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
