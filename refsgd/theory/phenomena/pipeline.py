"""Pipelines of stages: the bubble of equal ones, and the recursion of any.

A stage works through its passes in a fixed order and waits for its neighbours' messages, so that its times
follow from a recursion of max and plus (`refsgd.theory.phenomena.scripts`).  It is exact for fixed times,
equal stages or not.

References
----------
Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019.
Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.theory.estimate import Uncovered, check_count
from refsgd.theory.phenomena.ring import Rounds
from refsgd.theory.phenomena.scripts import (
    EVENTS,
    MARK,
    RECEIVE,
    REPLICAS,
    SEND,
    WORK,
    Peers,
    Script,
    summary,
    wired,
)
from refsgd.theory.prediction import Prediction


class Pipeline(NamedTuple):
    """Shares of a gradient's time by stage; bytes that cross each cut, for one example or, unless `by_row`,
    for any number; examples of each batch of an epoch."""

    shares: tuple[float, ...]
    crossing: tuple[float, ...]
    by_row: bool
    examples: tuple[int, ...]

    def parts(self, t: int, micro: int = 1) -> list[tuple[float, int]]:
        """The micro-batches of batch t: their share of it, and their size in units of `crossing`."""
        count = self.examples[t % len(self.examples)]
        m = max(1, min(micro, count))
        sizes = [count * (j + 1) // m - count * j // m for j in range(m)]
        return [(size / count if count else 1.0, size if self.by_row else 1) for size in sizes]

    def sent(self, steps: int, micro: int = 1) -> float:
        """Bytes of all messages: activations there and as many bytes of gradients back."""
        return 2 * sum(self.crossing) * sum(size for t in range(steps) for _, size in self.parts(t, micro))


DRAWN = 100_000  # events of all replicas of random times
#: a stage's script: of stage k, with its times and those of its updates
Order = Callable[[int, Iterator[float], Iterator[float]], Script]


def bubble(micro_batches: int, stages: int) -> Prediction:
    """Idle share of k equal stages with m micro-batches: (k-1)/(m+k-1), exact.

    A stage works in m of the m + k - 1 slots from filling the pipeline to draining it.

    >>> bubble(4, 4).value
    0.42857142857142855
    """
    m, k = check_count("micro-batches", micro_batches), check_count("stages", stages)
    return Prediction((k - 1) / (m + k - 1), "1", "exact", {"filling and draining": (k - 1) / (m + k - 1)},
                      "(k-1)/(m+k-1)", "Huang et al. 2019, section 2.3", "equal stages; no time to hand over")


def forward(p: Pipeline, k: int, time: float, size: int) -> Script:
    """A forward pass of so many seconds, with what it receives and sends."""
    if k > 0:
        yield RECEIVE, k - 1, 0
    yield WORK, k, time / 3
    if k < len(p.crossing):
        yield SEND, k + 1, p.crossing[k] * size


def backward(p: Pipeline, k: int, time: float, size: int) -> Script:
    """A backward pass."""
    if k < len(p.crossing):
        yield RECEIVE, k + 1, 0
    yield WORK, k, time * 2 / 3
    if k > 0:
        yield SEND, k - 1, p.crossing[k - 1] * size


def all_forward(p: Pipeline, steps: int, micro: int) -> Order:
    """GPipe: all micro-batches forward, all backward, the update."""

    def script(k: int, times: Iterator[float], updates: Iterator[float]) -> Script:
        for t in range(steps):
            parts, time = p.parts(t, micro), next(times)
            for share, size in parts:
                yield from forward(p, k, time * share, size)
            for share, size in reversed(parts):
                yield from backward(p, k, time * share, size)
            yield WORK, k, next(updates)
            yield MARK, k, 0

    return script


def in_turn(p: Pipeline, steps: int) -> Order:
    """PipeDream: one forward, one backward and an update, with K - k batches in flight."""

    def script(k: int, times: Iterator[float], updates: Iterator[float]) -> Script:
        ahead = 0
        for b in range(steps):
            time = next(times)
            while ahead < min(b + len(p.shares) - k, steps):
                yield from forward(p, k, time, p.parts(ahead)[0][1])
                ahead += 1
            yield from backward(p, k, time, p.parts(b)[0][1])
            yield WORK, k, next(updates)
            yield MARK, k, 0

    return script


def rounds(machine: Machine, times: Sequence[Distribution], own: Sequence[Distribution | None], p: Pipeline,
           order: Callable[[int], Order], steps: int, micro: int, more: int = 0) -> Rounds:
    """Seconds of a batch in the long run, and of the whole run; `order`: by the number of steps.

    With `more` steps behind them, in which the pipeline drains, the steps have the pace of the long run.
    """
    n = len(times)
    links, way, hops = wired(machine, n, [(i, j) for i in range(n) for j in (i - 1, i + 1) if 0 <= j < n])
    random = any(time.family != "fixed" for time in (*times, *own) if time is not None)
    events = 2 * n * micro * (1 + hops)
    most = DRAWN if random else EVENTS
    if events * (8 if random else 2) > most:
        raise Uncovered(f"the recursion of a pipeline has no closed form, and {n} stages with {micro} "
                        "micro-batches are too many to evaluate it")
    seen = min(steps, max(2, int(most / (events * (6 if random else 1)))))
    replicas = max(4, min(REPLICAS, int(most / (events * seen)))) if random else 1
    total = seen + more
    rng, ends = np.random.default_rng(2019), np.zeros((replicas, total, n))
    for r in range(replicas):
        drawn = [iter(time.sample(rng, total).tolist()) for time in times]
        paid = [iter([0.0] * total if u is None else u.sample(rng, total).tolist()) for u in own]
        made = order(total)
        peers = Peers(links, way, [made(k, drawn[k], paid[k]) for k in range(n)])
        ends[r] = np.array(peers.ends).T
    return summary(ends[:, :seen], [1] * seen, [1] * steps, random)
