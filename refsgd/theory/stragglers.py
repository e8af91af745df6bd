"""How long the slowest of n takes: order statistics of independent compute times.

A synchronous step ends with its last worker, so what counts is not E[T] but E[max T].  For independent times
P(max <= t) = F_1(t) ... F_n(t), and since times are >= 0::

    E[max] = integral over t from 0 to infinity of  1 - F_1(t) ... F_n(t)
    E[j-th smallest] = integral of  P(fewer than j have ended by t)

Where closed forms exist (fixed, exponential, shifted exponential, uniform) they are used; everything else is
integrated piece by piece between the atoms, kinks and scales of the laws, so that laws with jumps (fixed,
straggler, empirical) come out exactly.

References
----------
David and Nagaraja, "Order statistics", 3rd ed., 2003, chapters 2 and 3.
Renyi, "On the theory of order statistics", Acta Math. Acad. Sci. Hung. 4, 1953: exponential spacings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy import special

from refsgd.laws import Law
from refsgd.theory.prediction import DomainError, Prediction, check_count, check_law

Values = npt.NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)


def harmonic(n: int) -> float:
    """H_n = 1 + 1/2 + ... + 1/n.

    Parameters
    ----------
    n : int
        >= 0.

    Returns
    -------
    float

    Examples
    --------
    >>> round(harmonic(8), 4)
    2.7179
    """
    return math.fsum(1 / k for k in range(1, n + 1))


def survival(law: Law, t: Values) -> Values:
    """P(T > t), accurate where it is small (1 - cdf is not).

    Parameters
    ----------
    law : Law
        Compute time [s].
    t : ndarray
        Seconds.

    Returns
    -------
    ndarray
        Probabilities, of the shape of `t`.
    """
    p = law.parameters
    if law.family == "exponential":
        return np.exp(-t / p[0])
    if law.family == "shifted":
        return np.exp(-np.maximum(t - p[1], 0) / (p[0] - p[1]))
    if law.family == "lognormal":
        sigma2 = math.log1p(p[1] ** 2)
        z = (np.log(np.maximum(t, 1e-300)) - math.log(p[0]) + sigma2 / 2) / math.sqrt(sigma2)
        return np.asarray(special.ndtr(-z))
    if law.family == "gamma":
        return np.asarray(special.gammaincc(p[1], np.maximum(t, 0) * p[1] / p[0]))
    if law.family == "normal":
        return np.asarray(special.ndtr((p[0] - t) / p[1]))
    if law.family == "pareto":
        return np.asarray(np.minimum(1.0, (p[0] * (p[1] - 1) / p[1] / np.maximum(t, 1e-300)) ** p[1]))
    return np.asarray(1 - law.cdf(t), float)


def _atoms(law: Law) -> list[float]:
    """Where the distribution function jumps; between them the laws listed here are flat."""
    if law.family == "fixed":
        return [law.parameters[0]]
    if law.family == "empirical":
        return sorted(set(law.parameters))
    if law.family == "straggler":
        mean, p, factor = law.parameters
        fast = mean / (1 - p + p * factor)
        return [fast, fast * factor]
    return []


def _landmarks(law: Law) -> list[float]:
    """Points that cut [0, infinity) into pieces on which the distribution function is smooth."""
    p, steps = law.parameters, range(-9, 10)
    if law.family == "uniform":
        return [p[0], p[1]]
    if law.family == "shifted":
        return [p[1], *(p[1] + (p[0] - p[1]) * 2.0**k for k in range(-4, 7))]
    if law.family == "normal":
        return [p[0] + p[1] * k for k in steps]
    if law.family == "lognormal":
        sigma2 = math.log1p(p[1] ** 2)
        return [p[0] * math.exp(-sigma2 / 2 + math.sqrt(sigma2) * k) for k in steps]
    if law.family == "gamma":
        return [p[0] * (1 + k / math.sqrt(p[1])) for k in steps] if p[1] > 1 else []
    if law.family == "pareto":
        low = p[0] * (p[1] - 1) / p[1]
        return [low * math.exp(k / p[1]) for k in range(20) if k / p[1] < 60]
    return _atoms(law)


def _grid(laws: Sequence[Law], survive: Callable[[Values], Values]) -> list[float]:
    """Ends of the pieces, from 0 to where nothing is left that counts."""
    scale = max(law.mean for law in laws)
    points = {0.0, *(scale * 2.0**k for k in range(-60, 8))}
    for law in laws:
        points.update(x for x in _landmarks(law) if x > 0 and math.isfinite(x))
    last = max(points)
    for _ in range(800):
        if float(survive(np.array([last]))[0]) * last <= 1e-18 * scale:
            break
        if any(law.family == "pareto" for law in laws) and float(survive(np.array([last]))[0]) < 1e-9:
            break
        last *= 2
        points.add(last)
    return sorted(points)


def integrate_survival(laws: Sequence[Law], survive: Callable[[Values], Values]) -> float:
    """The integral from 0 to infinity of P(> t) of a statistic of independent times with these laws.

    Parameters
    ----------
    laws : sequence of Law
        The laws that enter; they say where to cut the integral.
    survive : callable
        P(statistic > t), elementwise; right-continuous and between atoms smooth.

    Returns
    -------
    float
        Seconds.  Exact where all laws are discrete; else Gauss-Legendre on each piece, relative error
        around 1e-10 (Pareto with an index below 1.1: 1e-6).
    """
    if all(_atoms(law) for law in laws):
        jumps = np.array(sorted({0.0, *(x for law in laws for x in _atoms(law))}))
        return float(np.dot(np.diff(jumps), survive(jumps[:-1])))
    grid = np.array(_grid(laws, survive))
    half, mid = np.diff(grid) / 2, (grid[1:] + grid[:-1]) / 2
    points = mid[:, None] + half[:, None] * _NODES[None, :]
    values = survive(points.ravel()).reshape(points.shape)
    total = float(np.sum(half[:, None] * _WEIGHTS[None, :] * values))
    end = float(grid[-1])
    heavy = min((law.parameters[1] for law in laws if law.family == "pareto"), default=math.inf)
    if math.isfinite(heavy):  # beyond the grid the survival function is a power of t
        total += float(survive(np.array([end]))[0]) * end / (heavy - 1)
    return total


def mean_of_maximum(laws: Sequence[Law]) -> float:
    """E[max of independent times] in seconds, equal laws or not; see `maximum`.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker [s].

    Returns
    -------
    float
        Seconds.
    """
    if not laws:
        raise DomainError("0 workers; the maximum assumes at least one")
    for law in laws:
        check_law("compute", law)
    if len(laws) == 1:
        return laws[0].mean
    first, n = laws[0], len(laws)
    if all(law == first for law in laws):
        if first.family == "exponential":
            return first.mean * harmonic(n)
        if first.family == "shifted":
            return first.parameters[1] + (first.mean - first.parameters[1]) * harmonic(n)
        if first.family == "uniform":
            low, high = first.parameters
            return low + (high - low) * n / (n + 1)
    counts: dict[Law, int] = {}
    for law in laws:
        counts[law] = counts.get(law, 0) + 1

    def survive(t: Values) -> Values:
        with np.errstate(divide="ignore"):
            logs = sum(k * np.log1p(-survival(law, t)) for law, k in counts.items())
        return np.asarray(-np.expm1(logs))

    return integrate_survival(list(counts), survive)


def mean_of_order(laws: Sequence[Law], j: int) -> float:
    """E[j-th smallest of independent times] in seconds; see `order_statistic`.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker [s].
    j : int
        1 for the smallest, n for the largest.

    Returns
    -------
    float
        Seconds.
    """
    n = len(laws)
    if not 1 <= j <= n:
        raise DomainError(f"order {j} of {n} workers; the order statistic assumes 1 <= j <= n")
    if j == n:
        return mean_of_maximum(laws)
    for law in laws:
        check_law("compute", law)
    first = laws[0]
    if all(law == first for law in laws):
        if first.family == "exponential":
            return first.mean * (harmonic(n) - harmonic(n - j))
        if first.family == "shifted":
            floor = first.parameters[1]
            return floor + (first.mean - floor) * (harmonic(n) - harmonic(n - j))
        # fewer than j ended: at least n-j+1 of n are still running
        return integrate_survival([first], lambda t: np.asarray(special.bdtrc(n - j, n, survival(first, t))))

    def survive(t: Values) -> Values:
        ended = np.zeros((j, len(t)))  # ended[i]: probability that i have ended so far, i < j
        ended[0] = 1.0
        for law in laws:
            s = survival(law, t)
            shifted = np.vstack([np.zeros(len(t)), ended[:-1]])
            ended = ended * s + shifted * (1 - s)
        return np.asarray(np.minimum(ended.sum(axis=0), 1.0))

    return integrate_survival(list(dict.fromkeys(laws)), survive)


def maximum(laws: Sequence[Law]) -> Prediction:
    """Mean time of the slowest of independent workers.

    Parameters
    ----------
    laws : sequence of Law
        One per worker, equal or not, each with a finite mean.

    Returns
    -------
    Prediction
        Seconds, exact.  fixed: max t_i; exponential: mean x H_n, since the gaps between successive ends are
        exponential with rates n, n-1, ..., 1; shifted: floor + that; uniform(a, c): a + (c-a) n/(n+1); else
        the integral of 1 - F_1 ... F_n.

    Examples
    --------
    >>> round(maximum([Law("exponential", (1.0,))] * 8).value, 4)
    2.7179
    """
    value = mean_of_maximum(laws)
    mean = math.fsum(law.mean for law in laws) / len(laws)
    return Prediction(value, "s", "exact", {"compute E[T]": mean, "straggling": value - mean},
                      f"E[max of {len(laws)}] = integral of 1 - F_1(t) ... F_n(t)",
                      "David and Nagaraja 2003, section 3.1", "independent times")


def order_statistic(laws: Sequence[Law], j: int) -> Prediction:
    """Mean of the j-th smallest of independent times, 1 <= j <= n.

    Parameters
    ----------
    laws : sequence of Law
        One per worker.
    j : int
        1: the fastest; n: the slowest.

    Returns
    -------
    Prediction
        Seconds, exact.  Equal exponential: mean x (H_n - H_{n-j}); else the integral of P(fewer than j ended).

    Examples
    --------
    >>> round(order_statistic([Law("exponential", (1.0,))] * 3, 2).value, 4)
    0.8333
    """
    n = check_count("workers", len(laws))
    value = mean_of_order(laws, j)
    return Prediction(value, "s", "exact", {f"E[T_({j}:{n})]": value},
                      f"E[T_({j}:{n})] = integral of P(fewer than {j} have ended by t)",
                      "David and Nagaraja 2003, section 3.1", "independent times")


def sum_law(law: Law, count: int) -> tuple[Law, bool]:
    """The law of the sum of `count` independent times, and whether it is exact.

    fixed, exponential and gamma times add up within their families (Erlang); anything else is given the gamma
    law of the same mean and variance, which the sum approaches as `count` grows.  Where the variance is
    infinite, `count` times one draw: one draw dominates such a sum, and a maximum of it is an upper bound.

    Parameters
    ----------
    law : Law
        Compute time [s].
    count : int
        At least 1.

    Returns
    -------
    (Law, bool)
    """
    check_count("count", count)
    mean = check_law("compute", law).mean
    if count == 1:
        return law, True
    if law.family == "fixed" or mean == 0:
        return Law("fixed", (mean * count,)), True
    if law.family == "exponential":
        return Law("gamma", (mean * count, float(count))), True
    if law.family == "gamma":
        return Law("gamma", (mean * count, law.parameters[1] * count)), True
    variance = law.variance
    if not math.isfinite(variance):
        return law.scaled(count), False
    if variance <= 0:
        return Law("fixed", (mean * count,)), True
    return Law("gamma", (mean * count, count * mean * mean / variance)), False
