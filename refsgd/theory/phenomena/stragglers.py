"""The slowest of n workers: order statistics of independent compute times (David and Nagaraja 2003).

A synchronous step ends with its last worker, so it takes E[max T], not E[T].  Since times are >= 0::

    E[max] = integral over t from 0 to infinity of  1 - F_1(t) ... F_n(t)
    E[j-th smallest] = integral of  P(fewer than j have ended by t)

Closed forms are used where they exist (exponential spacings: Renyi 1953).  Otherwise the integral is
evaluated in pieces between the atoms, kinks and scales of the distributions, so that jumps (fixed, straggler,
empirical) are exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from refsgd.cluster.distributions import Distribution, survival
from refsgd.theory.estimate import Values, check_count, check_distribution, replayed
from refsgd.theory.prediction import DomainError

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def harmonic(n: int) -> float:
    """H_n = 1 + 1/2 + ... + 1/n."""
    return math.fsum(1 / k for k in range(1, n + 1))


def atoms(time: Distribution) -> list[float]:
    """The jumps of a distribution function that is constant in between; empty for other distributions."""
    if time.family == "fixed":
        return [time.parameters[0]]
    if time.family == "empirical":
        return sorted(set(time.parameters))
    if time.family == "straggler":
        mean, p, factor = time.parameters
        fast = mean / (1 - p + p * factor)
        return [fast, fast * factor]
    return []


def _landmarks(time: Distribution) -> list[float]:
    """Points that divide [0, infinity) into pieces on which the distribution function is smooth."""
    p, steps = time.parameters, range(-9, 10)
    if time.family == "uniform":
        return [p[0], p[1]]
    if time.family == "shifted":
        return [p[1], *(p[1] + (p[0] - p[1]) * 2.0**k for k in range(-4, 7))]
    if time.family == "normal":
        return [p[0] + p[1] * k for k in steps]
    if time.family == "lognormal":
        sigma2 = math.log1p(p[1] ** 2)
        return [p[0] * math.exp(-sigma2 / 2 + math.sqrt(sigma2) * k) for k in steps]
    if time.family == "gamma":
        return [p[0] * (1 + k / math.sqrt(p[1])) for k in steps] if p[1] > 1 else []
    if time.family == "pareto":
        low = p[0] * (p[1] - 1) / p[1]
        return [low * math.exp(k / p[1]) for k in range(20) if k / p[1] < 60]
    return atoms(time)


def _grid(times: Sequence[Distribution], survive: Callable[[Values], Values]) -> list[float]:
    """The borders of the pieces, from 0 to where the rest is negligible."""
    scale = max(time.mean for time in times)
    points = {0.0, *(scale * 2.0**k for k in range(-60, 8))}
    for time in times:
        points.update(x for x in _landmarks(time) if x > 0 and math.isfinite(x))
    last = max(points)
    for _ in range(800):
        if float(survive(np.array([last]))[0]) * last <= 1e-18 * scale:
            break
        if any(time.family == "pareto" for time in times) and float(survive(np.array([last]))[0]) < 1e-9:
            break
        last *= 2
        points.add(last)
    return sorted(points)


def integrate_survival(times: Sequence[Distribution], survive: Callable[[Values], Values]) -> float:
    """The integral over t of P(> t) of a statistic of independent times with these distributions, in seconds.

    Exact if all distributions are discrete; otherwise Gauss-Legendre on each piece, with a relative error of
    about 1e-10 (1e-6 for Pareto with an index below 1.1).
    """
    if all(atoms(time) for time in times):
        jumps = np.array(sorted({0.0, *(x for time in times for x in atoms(time))}))
        return float(np.dot(np.diff(jumps), survive(jumps[:-1])))
    grid = np.array(_grid(times, survive))
    half, mid = np.diff(grid) / 2, (grid[1:] + grid[:-1]) / 2
    points = mid[:, None] + half[:, None] * _NODES[None, :]
    values = survive(points.ravel()).reshape(points.shape)
    total = float(np.sum(half[:, None] * _WEIGHTS[None, :] * values))
    end = float(grid[-1])
    heavy = min((time.parameters[1] for time in times if time.family == "pareto"), default=math.inf)
    if math.isfinite(heavy):  # beyond the grid the survival function is a power of t
        total += float(survive(np.array([end]))[0]) * end / (heavy - 1)
    return total


def _in_closed_form(time: Distribution, n: int, j: int) -> float | None:
    """E[j-th smallest of n such times], where it has a closed form."""
    p, spacings = time.parameters, harmonic(n) - harmonic(n - j)
    closed = {"exponential": lambda: p[0] * spacings, "shifted": lambda: p[1] + (p[0] - p[1]) * spacings,
              "uniform": lambda: p[0] + (p[1] - p[0]) * j / (n + 1)}
    return closed[time.family]() if time.family in closed else None


def _by_columns(times: Sequence[Distribution], j: int) -> float:
    """Mean over k of the j-th smallest of the k-th times, some of them replayed and the others fixed."""
    length = math.lcm(*(len(time.parameters) for time in times))
    if any(time.family not in ("replayed", "fixed") for time in times) or length > 1_000_000:
        raise DomainError("replayed times beside random ones, or of lengths with no common multiple up to "
                          "1,000,000; the order statistic assumes lists that repeat together")
    return float(np.sort([np.resize(time.parameters, length) for time in times], axis=0)[j - 1].mean())


def mean_of_maximum(times: Sequence[Distribution]) -> float:
    """E[max of independent times] in seconds; of replayed times, the mean over their common rounds."""
    if not times:
        raise DomainError("0 workers; the maximum assumes at least one")
    for time in times:
        check_distribution("compute", time)
    if len(times) == 1:
        return times[0].mean
    if replayed(times):
        return _by_columns(times, len(times))
    counts, n = Counter(times), len(times)
    if len(counts) == 1 and (known := _in_closed_form(times[0], n, n)) is not None:
        return known

    def survive(t: Values) -> Values:
        with np.errstate(divide="ignore"):
            logs = sum(k * np.log1p(-survival(time, t)) for time, k in counts.items())
        return np.asarray(-np.expm1(logs))

    return integrate_survival(list(counts), survive)


def mean_of_order(times: Sequence[Distribution], j: int) -> float:
    """E[j-th smallest of independent equal times] in seconds."""
    n, first = len(times), check_distribution("compute", times[0])
    if not 1 <= j <= n or len(set(times)) > 1:
        raise DomainError(f"order {j} of {n} workers; the order statistic assumes equal ones, 1 <= j <= n")
    if replayed(times):
        return _by_columns(times, j)
    if j == n:
        return mean_of_maximum(times)
    if (known := _in_closed_form(first, n, j)) is not None:
        return known
    # fewer than j have ended: at least n-j+1 of n are still running
    return integrate_survival([first], lambda t: np.asarray(special.bdtrc(n - j, n, survival(first, t))))


def sum_of(time: Distribution, count: int) -> tuple[Distribution, bool]:
    """The distribution of the sum of `count` independent times, and whether it is exact.

    Sums outside the families of fixed, exponential and gamma times are replaced by a gamma distribution of
    the same mean and variance, which they approach as `count` grows.  With infinite variance one draw
    dominates, so the sum is taken as `count` times one draw; its maximum is an upper bound.
    """
    check_count("count", count)
    mean = check_distribution("compute", time).mean
    if count == 1:
        return time, True
    if time.family == "replayed":
        raise DomainError("replayed times; the distribution of a sum assumes independent ones")
    if time.family == "fixed" or mean == 0:
        return Distribution("fixed", (mean * count,)), True
    if time.family == "exponential":
        return Distribution("gamma", (mean * count, float(count))), True
    if time.family == "gamma":
        return Distribution("gamma", (mean * count, time.parameters[1] * count)), True
    variance = time.variance
    if not math.isfinite(variance):
        return time.scaled(count), False
    if variance <= 0:
        return Distribution("fixed", (mean * count,)), True
    return Distribution("gamma", (mean * count, count * mean * mean / variance)), False
