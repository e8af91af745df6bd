"""Pipelines of stages: the bubble of equal ones, and the recursion of any.

A stage works through its passes in a fixed order and waits for its neighbours' messages, so that its times
follow from a recursion of max and plus (`refsgd.theory.phenomena.scripts`).  It is exact for fixed times,
equal stages or not.

References
----------
Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019.
Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019.
Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.theory.estimate import check_count
from refsgd.theory.phenomena import scripts
from refsgd.theory.phenomena.ring import Rounds
from refsgd.theory.phenomena.scripts import BACK, MARK, RECEIVE, SEND, TAKE, WORK, Order, Script, ring
from refsgd.theory.prediction import Prediction


class Pipeline(NamedTuple):
    """Shares of a gradient's time by stage; bytes that cross each cut, for one example or, unless `by_row`,
    for any number; examples of each batch of an epoch, by replica; bytes of each stage's parameters; stages
    on each node.

    Node k * replicas + r has the stages k, depth + k, ... of replica r.
    """

    shares: tuple[float, ...]
    crossing: tuple[float, ...]
    by_row: bool
    examples: tuple[tuple[int, ...], ...]
    held: tuple[int, ...] = ()
    chunks: int = 1

    @property
    def depth(self) -> int:
        """Nodes of a replica."""
        return len(self.shares) // self.chunks

    def share(self, k: int) -> float:
        """Node k's share of a gradient's time."""
        return sum(self.shares[k::self.depth])

    def part(self, k: int, chunk: int) -> float:
        """A chunk's share of its node's time."""
        return self.shares[chunk * self.depth + k] / whole if (whole := self.share(k)) else 0.0

    @property
    def replicas(self) -> int:
        """How many pipelines run side by side."""
        return len(self.examples)

    def parts(self, r: int, t: int, micro: int = 1) -> list[tuple[float, int]]:
        """The micro-batches of replica r's batch t: their share of it, their size in units of `crossing`."""
        count = self.examples[r][t % len(self.examples[r])]
        m = max(1, min(micro, count))
        sizes = [count * (j + 1) // m - count * j // m for j in range(m)]
        return [(size / count if count else 1.0, size if self.by_row else 1) for size in sizes]

    def sent(self, steps: int, micro: int = 1) -> float:
        """Bytes of all activations, and as many of gradients back."""
        return 2 * sum(self.crossing) * sum(size for r in range(self.replicas) for t in range(steps)
                                            for _, size in self.parts(r, t, micro))


DRAWN = 100_000  # events of all replicas of random times


def bubble(micro_batches: int, stages: int, chunks: int = 1) -> Prediction:
    """Idle share of k nodes with v equal chunks each and m micro-batches: (k-1)/(vm+k-1), exact.

    A node works in v m of the v m + k - 1 slots from filling the pipeline to draining it.

    >>> bubble(4, 4).value
    0.42857142857142855
    """
    m, k = check_count("micro-batches", micro_batches), check_count("stages", stages)
    share = (k - 1) / (check_count("chunks", chunks) * m + k - 1)
    return Prediction(share, "1", "exact", {"filling and draining": share}, "(k-1)/(v m+k-1)",
                      "Huang et al. 2019, section 2.3; Narayanan et al. 2021, section 2.2",
                      "equal stages; no time to hand over; with v > 1, m a multiple of k")


def through(p: Pipeline, i: int, chunk: int, time: float, size: int, back: bool = False) -> Script:
    """A pass through a chunk on node i, `back` or forward, with what it receives and sends.

    A forward pass takes a third of the time of both.
    """
    n, (k, r) = p.replicas, divmod(i, p.replicas)
    stage, ahead = chunk * p.depth + k, -1 if back else 1
    first, last = stage == 0, stage == len(p.crossing)
    if not (last if back else first):
        yield TAKE if back else RECEIVE, (k - ahead) % p.depth * n + r, 0
    yield WORK, i, time * (1 + back) / 3
    if not (first if back else last):
        yield BACK if back else SEND, (k + ahead) % p.depth * n + r, p.crossing[stage - back] * size


def update(p: Pipeline, i: int, time: float, reduction: float) -> Script:
    """The ring of a stage's replicas, the update, and the end of a step."""
    k, r = divmod(i, p.replicas)
    d, n = sum(p.held[k::p.depth]) // 4, p.replicas
    sizes = [4 * (d * (j + 1) // n - d * j // n) for j in range(n)]
    for what, other, much in ring(r, n, sizes, reduction):
        yield what, k * n + other, much
    yield WORK, i, time
    yield MARK, i, 0


def together(p: Pipeline, micro: int, reduction: float, at_once: bool) -> Order:
    """GPipe: all micro-batches of a step, the update.

    Those `at_once` all go forward, then all backward, else a node alternates: with one chunk as soon as K - k
    are in flight.
    """

    def script(i: int, steps: Sequence[int], times: Iterator[float], updates: Iterator[float]) -> Script:
        k, r = divmod(i, p.replicas)
        for t in range(len(steps)):
            parts, time = p.parts(r, t, micro), next(times)
            many = max(1, len(parts) // p.depth)
            edges = [len(parts) * g // many for g in range(many + 1)]
            there = [(c, j) for a, b in pairwise(edges) for c in range(p.chunks) for j in range(a, b)]
            most = len(there) if at_once else p.depth - k
            if p.chunks > 1 and not at_once:
                most = 2 * (p.depth - k) - 1 + (p.chunks - 1) * (edges[-1] - edges[-2])
            back = there[::-1] if at_once else [(p.chunks - 1 - c, j) for c, j in there]
            gone = 0
            for done, (c, j) in enumerate(back):
                for fore, at in there[gone:min(done + most, len(there))]:
                    yield from through(p, i, fore, time * p.part(k, fore) * parts[at][0], parts[at][1])
                    gone += 1
                yield from through(p, i, c, time * p.part(k, c) * parts[j][0], parts[j][1], True)
            yield from update(p, i, next(updates), reduction)

    return script


def in_turn(p: Pipeline, reduction: float) -> Order:
    """PipeDream: one forward, one backward and an update, with K - k batches in flight."""

    def script(i: int, steps: Sequence[int], times: Iterator[float], updates: Iterator[float]) -> Script:
        k, r = divmod(i, p.replicas)
        ahead = 0
        for b in range(len(steps)):
            time = next(times)
            while ahead < min(b + p.depth - k, len(steps)):
                yield from through(p, i, 0, time, p.parts(r, ahead)[0][1])
                ahead += 1
            yield from through(p, i, 0, time, p.parts(r, b)[0][1], True)
            yield from update(p, i, next(updates), reduction)

    return script


def rounds(machine: Machine, times: Sequence[Distribution], own: Sequence[Distribution | None], p: Pipeline,
           order: Order, steps: int, micro: int, more: int = 0) -> Rounds:
    """Seconds of a batch in the long run, and of the whole run.

    With `more` steps behind them, in which the pipeline drains, the steps have the pace of the long run.
    """
    n, copies = len(times), p.replicas
    pairs = {(i, j % n) for i in range(n) for j in (i - copies, i + copies)
             if p.depth > 1 and (p.chunks > 1 or 0 <= j < n)}
    pairs |= {(i, i - i % copies + (i + 1) % copies) for i in range(n) if copies > 1}
    passes = 2 * n * (micro * p.chunks + copies - 1)
    return scripts.rounds(machine, times, own, [1] * steps, sorted(pairs), passes, order, works=passes,
                          more=more, drawn=DRAWN, seed=2019,
                          many=f"the recursion of a pipeline has no closed form, and {n} stages with {micro} "
                               "micro-batches are too many to evaluate it")
