"""How many gradients count where a server takes those of the fastest workers, and how long that takes.

Workers are alike, their times exponential, messages and updates free.  Let q = p(n-1)/(p(n-1)+1) be the
chance that the next gradient to count is another worker's: then the staleness of a gradient is geometric.

References
----------
Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and stale gradients can win the race", AISTATS 2018: K-async.
Tyurin and Richtarik, "Optimal time complexities of parallel stochastic optimization methods under a fixed
computation model", NeurIPS 2023: Rennala.
Maranjyan, Tyurin and Richtarik, "Ringmaster ASGD", ICML 2025.
Maranjyan and Richtarik, "Ringleader ASGD", ICLR 2026.
"""

from __future__ import annotations

import functools
import itertools


@functools.lru_cache(maxsize=256)
def gradients_of_rennala(workers: int, size: int) -> float:
    """h(n - 1, B): gradients that are computed for an update of B, as n - 1 workers begin on an old model.

    A gradient is late, and dropped, with probability Z/n while Z workers are on an old model; its worker then
    begins on the new one.  For B = 1 it is Ramanujan's Q(n), about sqrt(pi n / 2).

    >>> gradients_of_rennala(1, 5), gradients_of_rennala(2, 1), round(gradients_of_rennala(8, 1), 4)
    (5.0, 1.5, 3.245)
    """
    h = [0.0] * workers  # of b = 0, by the number on an old model
    for _ in range(size):
        row = [h[0] + 1.0]
        for z in range(1, workers):
            row.append(1 + z / workers * row[z - 1] + (1 - z / workers) * h[z])
        h = row
    return h[workers - 1]


@functools.lru_cache(maxsize=256)
def round_of_ringleader(workers: int) -> float:
    """Mean computing times in a round: until each worker has a gradient in it, then until each of the n - 1
    others has another one.

    At the end, b workers have not given a gradient of the next round, which takes the largest of b times, H_b
    on average.  While a of the n - 1 are awaited, the next gradient is of one of these with probability
    a/(a+b), and then b grows, or else of one of the b.

    >>> [round(round_of_ringleader(n), 4) for n in (1, 2, 8)]
    [1.0, 2.25, 4.2356]
    """
    harmonic = [0.0, *itertools.accumulate(1 / k for k in range(1, workers + 1))]
    mean = harmonic[:]  # of the largest of b, by b, with a = 0
    for a in range(1, workers):
        row = [mean[1]]
        for b in range(1, workers - a + 1):
            row.append((a * mean[b + 1] + b * row[b - 1]) / (a + b))
        mean = row
    return harmonic[workers - 1] + mean[1]


def accepted(workers: int, threshold: float) -> tuple[float, float]:
    """Share p of the gradients of a delay below R, and the mean staleness of these; an approximation.

    p = 1 - q^R with q = p(n-1)/(p(n-1)+1), as if a worker's reads were independent of what it gave before.

    >>> tuple(round(each, 4) for each in accepted(8, 8)), accepted(8, float("inf"))
    ((0.7515, 2.615), (1.0, 7.0))
    """
    p = 1.0
    for _ in range(200):
        q = p * (workers - 1) / (p * (workers - 1) + 1)
        p = 1 - q**threshold
    left = threshold * q**threshold / p if q**threshold else 0.0
    return p, q / (1 - q) - left
