"""Tuning of one learning rate: which runs are made, and which rate is chosen, by the same rule for all.

A tuning asks for runs and is sent their results; so runs of several algorithms share the processors.  Rates
are `FINEST` x 2^k: a start with its neighbours, then outwards while the best is at an edge, then near it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Mapping, Sequence
from typing import NamedTuple

from refsgd.algorithms.facts import Facts, Options
from refsgd.experiment.race.target import Heat

FINEST = 0.01
START = 0.32  #: of one update in a round, on a small problem; the more updates, the smaller
WIDEST = 6  #: rates that are tried at most on either side of the start
CUT = 1.5  #: a run ends after this multiple of the gradients that the best rate took
NEAR = 0.1


class Asked(NamedTuple):
    """A run that is to be made."""

    rate: float
    seed: int
    most: float  #: gradients of all workers after which it ends
    cut: bool  #: whether that is because another rate was better


Asking = Generator[list[Asked], list[Heat], Mapping[float, float]]


def start_of(facts: Facts, workers: int, options: Options, small: bool) -> float:
    """The rate of the grid with which a tuning starts: smaller if a round has many updates."""
    updates = facts.updates(workers, 1, options) or 1
    rate = START / max(1.0, updates / 2) / (1 if small else 2)
    return float(FINEST * 2.0 ** round(math.log2(rate / FINEST)))


def tuning(start: float, seeds: Sequence[int], most: float, rates: Sequence[float] = ()) -> Asking:
    """Ask for the runs of a tuning; the result has the median seconds of each rate."""
    tried, cap = dict[float, float](), most

    def learn(some: Sequence[float]) -> Generator[list[Asked], list[Heat], None]:
        nonlocal cap
        heats = yield [Asked(rate, seed, cap, cap < most) for rate in some for seed in seeds]
        for i, rate in enumerate(some):
            own = heats[i * len(seeds):(i + 1) * len(seeds)]
            tried[rate] = statistics.median(heat.seconds for heat in own)
            cap = min(cap, CUT * statistics.median(heat.gradients for heat in own))

    if rates:
        middle = sorted(rates)[len(rates) // 2]
        for some in ([middle], [rate for rate in rates if rate != middle]):
            if some:
                yield from learn(some)
        return tried
    for some in ([start], [start / 2, start * 2]):
        yield from learn(some)
    while True:
        best, low, high = quickest(tried), min(tried), max(tried)
        none = tried[best] == math.inf
        wider = [rate for rate, edge in ((low / 2, low), (high * 2, high))
                 if (none or best == edge) and abs(math.log2(rate / start)) <= WIDEST + 0.1]
        if not wider:
            break
        yield from learn(wider)
    if not none:
        yield from learn([best / math.sqrt(2), best * math.sqrt(2)])
    return tried


def quickest(tried: Mapping[float, float]) -> float:
    """The rate with the least median, of equal ones the smallest."""
    return min(tried, key=lambda rate: (tried[rate], rate))


def chosen(tried: Mapping[float, float]) -> float:
    """The smallest rate whose median is within `NEAR` of the best; the first tried if none arrived.

    >>> chosen({0.16: 1.3, 0.32: 0.95, 0.64: 0.9})
    0.32
    """
    best = tried[quickest(tried)]
    if best == math.inf:
        return next(iter(tried))
    return min(rate for rate, median in tried.items() if median <= (1 + NEAR) * best)
