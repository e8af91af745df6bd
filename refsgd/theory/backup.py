"""Synchronous SGD with backup workers: the first N of n = N + k gradients count.

A worker that comes too late *finishes* its gradient, which is discarded, and only then starts on the new model
(a computation cannot be cut short).  So a step begins with N fresh workers and k stale ones.  For exponential
times the rest of each is again exponential: with F fresh and Z stale workers computing, the next to end is
fresh with probability F/(F+Z) and contributes, else stale and starts afresh::

    h(F, Z) = [1 + F h(F-1, Z) + Z h(F+1, Z-1)] / (F + Z),    h = 0 where F + Z = k

and a step takes h(N, k) E[T].  If late workers are cancelled instead, it is the N-th of n order statistic.

References
----------
Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting distributed synchronous SGD", 2016.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from refsgd.machine import Law
from refsgd.theory.prediction import DomainError, Prediction, check_count, check_law
from refsgd.theory.stragglers import mean_of_maximum, mean_of_order


@functools.lru_cache(maxsize=256)
def steps_of_mean(fresh: int, backups: int) -> float:
    """h(N, k): seconds of a step over E[T], exponential times, late workers finish.

    >>> steps_of_mean(3, 0), round(steps_of_mean(3, 1), 4)
    (1.8333333333333333, 1.3542)
    """
    n = fresh + backups
    h: dict[tuple[int, int], float] = {}
    for active in range(backups, n + 1):
        for z in range(min(backups, active) + 1):
            f = active - z
            if active == backups:
                h[f, z] = 0.0
                continue
            later = h[f + 1, z - 1] if z else 0.0
            h[f, z] = (1 + (f * h[f - 1, z] if f else 0.0) + z * later) / active
    return h[fresh, backups]


@functools.lru_cache(maxsize=256)
def late_of_step(fresh: int, backups: int) -> float:
    """Gradients of a step that are dropped, exponential times: d(F, Z) = [F d(F-1, Z) + Z (1 + d(F+1, Z-1))] / (F + Z).

    A step begins with F = N fresh and Z = k late workers and ends where F + Z = k.

    Parameters
    ----------
    fresh, backups : int
        N and k.

    Returns
    -------
    float

    Examples
    --------
    >>> late_of_step(3, 0), round(late_of_step(1, 1), 4)
    (0.0, 0.5)
    """
    n = fresh + backups
    d: dict[tuple[int, int], float] = {}
    for active in range(backups, n + 1):
        for z in range(min(backups, active) + 1):
            f = active - z
            more = f * d[f - 1, z] if f and active > backups else 0.0
            d[f, z] = (more + (z * (1 + d[f + 1, z - 1]) if z else 0.0)) / active if active > backups else 0.0
    return d[fresh, backups]


def computing(law: Law, workers: int, backups: int, step: float) -> Prediction | None:
    """Share of the time in which a worker computes, late gradients too; None for laws other than exponential and fixed.

    (N + late) E[T] / (n step): every gradient, counted or dropped, takes E[T].

    Parameters
    ----------
    law : Law
        Compute time [s].
    workers : int
        n, at least 1.
    backups : int
        Workers whose gradients are not waited for.
    step : float
        Seconds of an iteration.

    Returns
    -------
    Prediction or None
    """
    n, k = check_count("workers", workers), check_count("backups", backups, 0)
    if k and law.family != "exponential":
        return None
    late = late_of_step(n - k, k) if k else 0.0
    value = min((n - k + late) * law.mean / (n * step), 1.0)
    return Prediction(value, "1", "exact", {"counted": (n - k) / n * law.mean / step, "dropped": late / n * law.mean / step},
                      "(N + late) E[T]/(n step)", "Chen et al. 2016", "late workers finish; long run")


def _drawn(law: Law, n: int, needed: int) -> tuple[float, float]:
    """Monte Carlo of the process itself for any law: mean step and its standard error."""
    rounds, replicas = min(max(20_000 // n, 40), 260), min(max(20_000 // n, 16), 256)
    rng = np.random.default_rng(1604)
    ends = law.sample(rng, replicas * n).reshape(replicas, n)
    fresh = np.ones((replicas, n), bool)
    now, marks = np.zeros(replicas), []
    rows = np.arange(replicas)
    for _ in range(rounds):
        got = np.zeros(replicas, int)
        while True:
            open_ = got < needed
            if not open_.any():
                break
            first = np.argmin(ends, axis=1)
            good, late = open_ & fresh[rows, first], open_ & ~fresh[rows, first]
            now = np.where(open_, ends[rows, first], now)
            got += good
            ends[rows[good], first[good]] = math.inf
            ends[rows[late], first[late]] = now[late] + law.sample(rng, int(late.sum()))
            fresh[rows[late], first[late]] = True
        done = np.isinf(ends)
        fresh = done
        ends = np.where(done, now[:, None] + law.sample(rng, replicas * n).reshape(replicas, n), ends)
        marks.append(now)
    each = (marks[-1] - marks[9]) / (rounds - 10)
    return float(each.mean()), float(each.std() / math.sqrt(replicas))


def backup_workers(laws: Sequence[Law], backups: int, *, cancelled: bool = False, exchange: float = 0.0) -> Prediction:
    """Seconds per iteration with n workers of which the first n - k count.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker.
    backups : int
        k, less than n.
    cancelled : bool
        Late workers drop their gradient and start afresh at once: E[T_(N:n)], exact, unequal laws too.
    exchange : float
        Seconds of the exchange, added to each step (an approximation then).

    Returns
    -------
    Prediction
        Late workers finish: exact for equal exponential times (h) and, by Monte Carlo, for other equal laws;
        unequal laws: the order statistic, a lower bound.  E[T_(N:n)] <= step <= E[max of N fresh] holds for
        equal laws.
    """
    n, k = check_count("workers", len(laws)), check_count("backups", backups, 0)
    if k >= n:
        raise DomainError(f"{k} backups of {n} workers; the formula assumes at least one that counts")
    for law in laws:
        check_law("compute", law)
    needed, first = n - k, laws[0]
    equal = len(set(laws)) == 1
    quickest = mean_of_order(laws, needed)
    slowest = mean_of_maximum([first] * needed) if equal else mean_of_maximum(laws)
    error, bound = 0.0, False
    if cancelled or k == 0 or (equal and first.family == "fixed"):
        value, formula = quickest, "E[T_(N:n)]"
    elif equal and first.family == "exponential":
        value, formula = first.mean * steps_of_mean(needed, k), "h(N, k) E[T]"
    elif equal:
        value, error = _drawn(first, n, needed)
        formula = "N-th fresh end, late workers finish; by Monte Carlo"
    else:
        value, formula, bound = quickest, "E[T_(N:n)]", True
    mean = math.fsum(law.mean for law in laws) / n
    terms = {"compute E[T]": mean, "straggling": value - mean, "transfer": exchange}
    if error:
        terms["standard error"] = error
    return Prediction(value + exchange, "s", "bound" if bound else "approximation" if exchange else "exact", terms,
                      formula + (" + exchange" if exchange else ""), "Chen et al. 2016", "independent times; late workers "
                      + ("are cancelled" if cancelled else "finish"), bound="lower" if bound else "",
                      lower=quickest + exchange, upper=slowest + exchange)
