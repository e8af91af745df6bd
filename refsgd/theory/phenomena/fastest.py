"""Servers that take the gradients of the fastest workers: how many count, and how long that takes.

Synchronous SGD with backup workers takes the first N of n = N + k (Chen et al. 2016).  A late worker
*finishes* its gradient, which is dropped, and only then starts on the new model; the recursion h(F, Z) of a
step is in docs/algorithms/backup-workers.md.  For the other servers, workers are alike, their times
exponential, messages and updates free.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refsgd.cluster.distributions import Distribution
from refsgd.theory.estimate import Estimate, certain, check_count, check_distribution, check_width, sampled
from refsgd.theory.phenomena.stragglers import mean_of_maximum, mean_of_order
from refsgd.theory.prediction import DomainError, Prediction

SEED = 1604
DRAWS = 200_000  # compute times drawn for all replicas


@functools.lru_cache(maxsize=256)
def of_step(fresh: int, backups: int) -> tuple[float, float]:
    """Of a step with exponential times, if late workers finish: h(N, k), its seconds over E[T], and how many
    late gradients are dropped.

    >>> of_step(3, 0), of_step(1, 1)
    ((1.8333333333333333, 0.0), (0.75, 0.5))
    """
    n = fresh + backups
    h: dict[tuple[int, int], tuple[float, float]] = {}
    for active in range(backups, n + 1):
        for z in range(min(backups, active) + 1):
            f = active - z
            if active == backups:
                h[f, z] = 0.0, 0.0
                continue
            on_time, late = h.get((f - 1, z), (0.0, 0.0)), h.get((f + 1, z - 1), (0.0, 0.0))
            h[f, z] = ((1 + f * on_time[0] + z * late[0]) / active,
                       (z + f * on_time[1] + z * late[1]) / active)
    return h[fresh, backups]


@dataclass(frozen=True)
class Quorum:
    """Means of a run in which the first n - k gradients of a step count, and late ones finish."""

    pace: Estimate
    end: Estimate
    computing: Estimate  #: share of the run, mean over the workers
    pushes: Estimate  #: of the run


def evaluated(times: Sequence[Distribution], backups: int, steps: int, exchange: float = 0.0) -> Quorum:
    """The recursion of steps, with a constant exchange.

    A worker that is free at f_i ends a gradient of the step that began at t at A_i = max(t, f_i) + T_i.  The
    step ends at the (n-k)-th of these, and the others go on: f_i = A_i for all that began before this end.
    """
    n = len(times)
    check_width(n)
    seen = max(min(steps, DRAWS // (32 * n)), 1)
    replicas = 1 if certain(*times) else max(8, min(256, DRAWS // (n * seen)))
    drawn = sampled(np.random.default_rng(SEED), times, replicas, seen)
    now, free, ends = np.zeros((replicas, 1)), np.zeros((replicas, n)), np.zeros((replicas, seen))
    busy, pushes = np.zeros(replicas), np.zeros(replicas)
    for t in range(seen):
        begin = np.maximum(now, free)
        push = begin + exchange + drawn[:, :, t]
        now = np.sort(push, axis=1)[:, n - backups - 1, None]
        began = begin < now
        busy += (drawn[:, :, t] * began).sum(axis=1)
        pushes += began.sum(axis=1)
        free, ends[:, t] = np.where(began, push, free), now[:, 0]
    low, last = seen // 4, np.maximum(ends[:, -1], free.max(axis=1))
    pace = Estimate.of((ends[:, -1] - ends[:, low - 1] * (low > 0)) / (seen - low))
    return Quorum(pace, Estimate.of(last).continued(steps - seen, pace), Estimate.of(busy / (n * last)),
                  Estimate.of(pushes / seen).scaled(steps))


def backup_workers(times: Sequence[Distribution], backups: int, *, cancelled: bool = False) -> Prediction:
    """Seconds per iteration if the first n - k of n equal workers count, without a network; if late workers
    finish, exact for exponential times (h), otherwise by Monte Carlo."""
    n, k = check_count("workers", len(times)), check_count("backups", backups, 0)
    if k >= n or len(set(times)) > 1:
        raise DomainError(f"{k} backups of {n} workers; the formula assumes equal workers, and at least one "
                          "that counts")
    needed, first = n - k, check_distribution("compute", times[0])
    quickest = mean_of_order(times, needed)
    if cancelled or k == 0 or first.family == "fixed":
        step, formula = Estimate(quickest), "E[T_(N:n)]"
    elif first.family == "exponential":
        step, formula = Estimate(first.mean * of_step(needed, k)[0]), "h(N, k) E[T]"
    else:
        step = evaluated(times, k, 400).pace
        formula = "N-th fresh end, late workers finish; by Monte Carlo"
    return step.predicted("s", {"compute E[T]": first.mean, "straggling": step.value - first.mean}, formula,
                          "Chen et al. 2016",
                          f"independent times; late workers {'are cancelled' if cancelled else 'finish'}",
                          lower=quickest, upper=mean_of_maximum(times[:needed]))


@functools.lru_cache(maxsize=256)
def gradients_of_rennala(workers: int, size: int) -> float:
    """h(n - 1, B): gradients that are computed for an update of B, as n - 1 workers begin on an old model
    (Tyurin and Richtarik 2023; docs/algorithms/rennala.md).

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
    """Mean computing times in a round (Maranjyan and Richtarik 2026): until each worker has a gradient in it,
    then until each of the n - 1 others has another one.

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
    """Share p of the gradients of a delay below R, and the mean staleness of these; an approximation
    (Maranjyan et al. 2025).

    The chance that the next gradient to count is another worker's is q = p(n-1)/(p(n-1)+1), so the staleness
    is geometric and p = 1 - q^R, as if a worker's reads were independent of what it gave before.

    >>> tuple(round(each, 4) for each in accepted(8, 8)), accepted(8, float("inf"))
    ((0.7515, 2.615), (1.0, 7.0))
    """
    p = 1.0
    for _ in range(200):
        q = p * (workers - 1) / (p * (workers - 1) + 1)
        p = 1 - q**threshold
    left = threshold * q**threshold / p if q**threshold else 0.0
    return p, q / (1 - q) - left
