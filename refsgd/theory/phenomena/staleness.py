"""Staleness of gradients at their application, in updates, and the learning rates that it allows.

If every worker reads the model immediately after its own update, then for all speeds, links and queues
(docs/algorithms/asp.md)::

    (sum of the staleness of all updates) + (ages of the reads outstanding at the end) = (n-1) x updates

In the long run the mean is n-1; that of a finite run is lower by the ages at its end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement

from refsgd.cluster.distributions import Distribution
from refsgd.theory.estimate import check_count, check_distribution
from refsgd.theory.prediction import DomainError, Prediction

SOURCE = "pathwise identity: staleness + outstanding ages = (n-1) x updates"


def match_boxes(steps: int) -> float:
    """C(2N, N) / 4^N: the mean number of events by which one of two equal Poisson processes is behind when
    the other has N, over 2N (Banach's match boxes: Feller 1968, section VI.8).

    >>> round(match_boxes(1), 9), round(match_boxes(90), 4)
    (0.5, 0.0594)
    """
    return math.exp(math.lgamma(2 * steps + 1) - 2 * math.lgamma(steps + 1) - 2 * steps * math.log(2))


def asp_of_worker(rates: Sequence[float]) -> list[Prediction]:
    """Exact long-run mean staleness of each worker's gradients: (X - X_i)/X_i, X_i its updates per second."""
    if not rates or any(not r > 0 for r in rates):
        raise DomainError(f"rates {list(rates)}; the formula assumes a positive rate of every worker")
    total = math.fsum(rates)
    return [Prediction((total - r) / r, "updates", "exact", {"updates of others per own": (total - r) / r},
                       "(X - X_i)/X_i", SOURCE, "each worker reads right after its own update; long run")
                       for r in rates]


def asp_run(times: Sequence[Distribution], steps: int, exchanges: Sequence[float] = ()) -> Prediction:
    """Mean staleness of an ASP run with N = `steps` iterations of each worker: n-1 minus the ages at the end.

    Each pair of workers contributes the updates that the later one makes after the earlier one has ended:
    exact for equal fixed times, where it is one, and for equal exponential times without exchange
    (`match_boxes`).  Otherwise sums of N times are taken as normal.
    """
    n, steps = check_count("workers", len(times)), check_count("steps", steps)
    exchanges = exchanges or [0.0] * n
    first, equal = check_distribution("compute", times[0]), len(set(zip(times, exchanges, strict=True))) == 1
    exact = True
    if n == 1:
        lost = 0.0
    elif equal and first.family == "fixed":
        lost = (n - 1) / (2 * steps)
    elif equal and first.family == "exponential" and exchanges[0] == 0:
        lost = (n - 1) * match_boxes(steps)
    else:
        exact = False
        lost = min(_ages(times, steps, exchanges) / (n * steps), n - 1.0)
    return Prediction(n - 1 - lost, "updates", "exact" if exact else "approximation",
                      {"long run": n - 1.0, "reads left at the end": -lost},
                      "n - 1 - (ages of the reads left at the end)/(updates)", SOURCE,
                      "each worker reads right after its own update; equal numbers of iterations",
                      lower=0.0, upper=n - 1.0)


def _ages(times: Sequence[Distribution], steps: int, exchanges: Sequence[float]) -> float:
    """Sum over workers of the updates after their last one; sums of `steps` times are taken as normal."""
    counts, total = Counter(zip(times, exchanges, strict=True)), 0.0
    for one, other in combinations_with_replacement(counts, 2):
        pairs = counts[one] * (counts[one] - 1) / 2 if one == other else counts[one] * counts[other]
        if pairs:
            total += pairs * _left_of_pair(one, other, steps)
    return total


def _left_of_pair(one: tuple[Distribution, float], other: tuple[Distribution, float], steps: int) -> float:
    """Mean number of updates that the later of two workers makes after the earlier one's last."""
    rounds = [time.mean + e for time, e in (one, other)]
    variances = [time.variance if math.isfinite(time.variance) else time.mean * time.mean
                 for time, _ in (one, other)]
    apart = steps * (rounds[1] - rounds[0])
    spread = math.sqrt(steps * (variances[0] + variances[1]))
    density = spread * math.exp(-((apart / spread) ** 2) / 2) / math.sqrt(2 * math.pi) if spread else 0.0
    tail = 0.5 * math.erfc(-apart / spread / math.sqrt(2)) if spread else float(apart > 0)
    later = density + apart * tail  # E[(end of other - end of one)+]
    earlier = later - apart
    left = (later / rounds[1] if rounds[1] else 0.0) + (earlier / rounds[0] if rounds[0] else 0.0)
    # A renewal argument: the first remaining update comes after (1 + cv^2)/2 of a round.
    cv2 = sum(v / (r * r) if r else 0.0 for v, r in zip(variances, rounds, strict=True)) / 2
    return min(max(left + (1 - cv2) / 2, 0.0), float(steps))


def geometric(workers: int, tau: int) -> float:
    """P(staleness = tau) of ASP with equal exponential times and no queueing: (1/n)(1 - 1/n)^tau, exact,
    since each next update is any worker's (Mitliagkas et al. 2016).

    >>> geometric(4, 0), geometric(4, 1)
    (0.25, 0.1875)
    """
    n = check_count("workers", workers)
    check_count("tau", tau, 0)
    return (1 - 1 / n) ** tau / n


def geometric_maximum(workers: int, updates: int) -> Prediction:
    """Mean of the largest staleness of `updates` gradients, sum over j >= 1 of 1 - (1 - (1-1/n)^j)^updates;
    an approximation, since successive gradients are not independent."""
    n, m = check_count("workers", workers), check_count("updates", updates, 0)
    total, j, q = 0.0, 1, 1 - 1 / n
    while n > 1 and m:
        term = -math.expm1(m * math.log1p(-(q**j)))
        total += term
        if term < 1e-9:
            break
        j += 1
    return Prediction(total, "updates", "approximation", {"expected largest": total},
                      "sum_j 1 - (1 - (1-1/n)^j)^updates", "Mitliagkas et al. 2016: geometric law",
                      "equal exponential times; no queueing; independent draws")


def ssp_bound(workers: int, staleness: float, steps: int) -> Prediction:
    """Largest staleness of SSP(s) in updates of others: (2s+1)(n-1), which is reached.

    A read at clock C misses at most s clocks of each other worker, which can complete clock C+s+1 before the
    gradient of clock C is applied.  A cache (lazy, eager) is read at clock C only if it has the others' first
    C-s clocks, so the bound is the same; its own updates do not count, since the worker adds them to it.
    """
    n, steps = check_count("workers", workers), check_count("steps", steps, 0)
    value = float((n - 1) * min(2 * staleness + 1, steps))
    return Prediction(value, "updates", "bound",
                      {"of each other worker": float(min(2 * staleness + 1, steps))},
                      "(2s+1)(n-1)", "Ho et al. 2013: the gate", "one update per clock and worker",
                      bound="upper")


def constant_delay(tau: int) -> Prediction:
    """Largest stable lr a, learning rate times curvature, of x_{t+1} = x_t - lr a x_{t-tau}.

    At the limit z^{tau+1} - z^tau + lr a = 0 has a root exp(i phi).  Its modulus gives lr a = 2 sin(phi/2),
    its argument phi (tau + 1/2) = pi/2 as the smallest solution.
    """
    value = 2 * math.sin(math.pi / (2 * (2 * check_count("tau", tau, 0) + 1)))
    return Prediction(value, "1", "exact", {"without delay": 2.0}, "2 sin(pi/(2 (2 tau + 1)))",
                      "Levin and May 1976", "quadratic; every gradient tau updates old")
