"""Stages that work through their passes in a fixed order and wait for their neighbours' messages.

References
----------
Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from benchmarks.oracle.scripts import BACK, MARK, RECEIVE, SEND, TAKE, WORK, Order, Script, ring
from refsgd.theory.phenomena.pipeline import Pipeline


def part(p: Pipeline, k: int, chunk: int) -> float:
    """A chunk's share of its node's time."""
    return p.shares[chunk * p.depth + k] / whole if (whole := p.share(k)) else 0.0


def micro_batches(p: Pipeline, r: int, t: int, micro: int) -> list[tuple[float, int]]:
    """Those of replica r's batch t: their share of it, their size in units of `crossing`."""
    count = p.examples[r][t % len(p.examples[r])]
    m = max(1, min(micro, count))
    sizes = [count * (j + 1) // m - count * j // m for j in range(m)]
    return [(size / count if count else 1.0, size if p.by_row else 1) for size in sizes]


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
            parts, time = micro_batches(p, r, t, micro), next(times)
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
                    yield from through(p, i, fore, time * part(p, k, fore) * parts[at][0], parts[at][1])
                    gone += 1
                yield from through(p, i, c, time * part(p, k, c) * parts[j][0], parts[j][1], True)
            yield from update(p, i, next(updates), reduction)

    return script
