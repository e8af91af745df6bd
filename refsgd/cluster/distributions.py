"""Distributions of random durations: the time of a gradient, a pause, a service.

Each has a mean, a variance and a distribution function, so that a formula and a simulation of the same
machine use the same one; `Distribution.parse` reads one from text, ``exponential(0.02)``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from refsgd.cluster import units
from refsgd.cluster.checks import prefixed

Samples = npt.NDArray[np.float64]


def _special() -> Any:
    """`scipy.special`, which takes a fifth of a second to load and is optional."""
    import scipy.special

    return scipy.special


def is_number(value: Any) -> bool:
    """Whether a value is a real number that a float can hold; True and False are not."""
    if type(value) is float:  # the usual case; an empirical distribution may have thousands
        return True
    return (isinstance(value, Real) and not isinstance(value, bool)
            and not (isinstance(value, int) and abs(value) > 1e308))


def _sigma2(cv: float) -> float:
    """Variance of log T of a log-normal distribution with coefficient of variation `cv`."""
    return math.log1p(cv * cv)


@dataclass(frozen=True)
class _Family:
    """One family of distributions: its parameters, mean, variance, survival function and sampler."""

    parameters: tuple[str, ...]
    mean: Callable[..., float]
    variance: Callable[..., float]
    survival: Callable[..., Any]
    sample: Callable[..., Any]
    check: Callable[..., bool]
    help: str


def _straggler_parts(mean: float, p: float, factor: float) -> tuple[float, float]:
    fast = mean / (1 - p + p * factor)
    return fast, fast * factor


FAMILIES: dict[str, _Family] = {
    "fixed": _Family(
        ("mean",), lambda m: m, lambda m: 0.0,
        lambda t, m: np.where(t >= m, 0.0, 1.0), lambda r, k, m: np.full(k, m), lambda m: m >= 0,
        "fixed(mean): always the same"),
    "exponential": _Family(
        ("mean",), lambda m: m, lambda m: m * m,
        lambda t, m: np.exp(-np.maximum(t, 0) / m), lambda r, k, m: r.exponential(m, k), lambda m: m > 0,
        "exponential(mean): memoryless"),
    "shifted": _Family(
        ("mean", "floor"), lambda m, f: m, lambda m, f: (m - f) ** 2,
        lambda t, m, f: np.exp(-np.maximum(t - f, 0) / (m - f)),
        lambda r, k, m, f: f + r.exponential(m - f, k),
        lambda m, f: 0 <= f < m, "shifted(mean,floor): at least floor seconds, then exponential"),
    "uniform": _Family(
        ("low", "high"), lambda a, c: (a + c) / 2, lambda a, c: (c - a) ** 2 / 12,
        lambda t, a, c: 1 - np.clip((t - a) / (c - a), 0, 1), lambda r, k, a, c: r.uniform(a, c, k),
        lambda a, c: 0 <= a < c, "uniform(low,high)"),
    "lognormal": _Family(
        ("mean", "cv"), lambda m, cv: m, lambda m, cv: (m * cv) ** 2,
        lambda t, m, cv: _special().ndtr(
            -(np.log(np.maximum(t, 1e-300)) - math.log(m) + _sigma2(cv) / 2) / math.sqrt(_sigma2(cv))),
        lambda r, k, m, cv: r.lognormal(math.log(m) - _sigma2(cv) / 2, math.sqrt(_sigma2(cv)), k),
        lambda m, cv: m > 0 and cv > 0, "lognormal(mean,cv): cv = standard deviation / mean"),
    "gamma": _Family(
        ("mean", "shape"), lambda m, k: m, lambda m, k: m * m / k,
        lambda t, m, k: _special().gammaincc(k, np.maximum(t, 0) * k / m),
        lambda r, n, m, k: r.gamma(k, m / k, n),
        lambda m, k: m > 0 and k > 0, "gamma(mean,shape): Erlang for an integer shape"),
    "normal": _Family(
        ("mean", "sd"),
        lambda m, s: m * _special().ndtr(m / s) + s
        * math.exp(-((m / s) ** 2) / 2) / math.sqrt(2 * math.pi),
        lambda m, s: _normal_variance(m, s),
        lambda t, m, s: np.where(t < 0, 1.0, _special().ndtr((m - t) / s)),
        lambda r, k, m, s: np.maximum(r.normal(m, s, k), 0.0), lambda m, s: m > 0 and s > 0,
        "normal(mean,sd), cut at 0: a negative draw counts as 0"),
    "pareto": _Family(
        ("mean", "index"), lambda m, a: m, lambda m, a: m * m / (a * (a - 2)) if a > 2 else math.inf,
        lambda t, m, a: np.minimum(
            1.0, (m * (a - 1) / a / np.maximum(t, 1e-300)) ** a),
        lambda r, k, m, a: m * (a - 1) / a * (1 + r.pareto(a, k)), lambda m, a: m > 0 and a > 1,
        "pareto(mean,index): heavy tail; index > 1, otherwise there is no mean"),
    "straggler": _Family(
        ("mean", "p", "factor"), lambda m, p, f: m,
        lambda m, p, f: _straggler_parts(m, p, f)[0] ** 2 * (1 - p + p * f * f) - m * m,
        lambda t, m, p, f: 1 - (np.where(t >= _straggler_parts(m, p, f)[0], 1 - p, 0.0)
                                + np.where(t >= _straggler_parts(m, p, f)[1], p, 0.0)),
        lambda r, k, m, p, f: np.where(r.random(k) < p, _straggler_parts(m, p, f)[1],
                                       _straggler_parts(m, p, f)[0]),
        lambda m, p, f: m > 0 and 0 <= p <= 1 and f >= 1,
        "straggler(mean,p,factor): with probability p an iteration is factor times as long; mean is over "
        "all"),
}


#: name and parameters of each distribution, one line each
DISTRIBUTIONS = (*(family.help for family in FAMILIES.values()),
        "empirical(t1,t2,...): one of these observed durations, each equally likely",
        "replayed(t1,t2,...): these observed durations in their order, again and again; each node has its "
        "own place in its own list")
SHOWN = 8  #: most parameters of a distribution that its text has
LISTS = ("empirical", "replayed")  #: families whose parameters are observed durations


def _in_seconds(family: str, count: int) -> int:
    """The number of times among the `count` parameters; they come first."""
    return {"uniform": 2, "shifted": 2, "normal": 2}.get(family, count if family in LISTS else 1)


def _normal_variance(m: float, s: float) -> float:
    a = m / s
    first = FAMILIES["normal"].mean(m, s)
    second = (m * m + s * s) * _special().ndtr(a) + m * s * math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    return float(second - first * first)


@dataclass(frozen=True)
class Distribution:
    """A distribution of durations in seconds, e.g. ``Distribution.parse("exponential(0.02)")``.

    Parameters
    ----------
    family : str
        A key of `FAMILIES`, or "empirical", or "replayed".
    parameters : tuple of float
        As the family's help says; the first is the mean in seconds, except for ``uniform(low,high)``.
        For "empirical" and "replayed": the observed durations [s].

    Examples
    --------
    >>> found = Distribution.parse("exponential(0.02)")
    >>> found.mean, round(float(found.cdf(0.02)), 3)
    (0.02, 0.632)
    """

    family: str
    parameters: tuple[float, ...]

    def __post_init__(self) -> None:
        if (not isinstance(self.family, str) or not isinstance(self.parameters, (tuple, list))
                or not all(map(is_number, self.parameters))):
            raise ValueError(f"distribution of family {self.family!r} and parameters {self.parameters!r}; "
                             "expected a name and a tuple of numbers, e.g. 'fixed' and (0.02,)")
        if self.family in LISTS:
            if not self.parameters or not all(0 <= p < math.inf for p in self.parameters):
                raise ValueError(f"distribution {self.family}: expected at least one finite duration >= 0")
            return
        known = FAMILIES.get(self.family)
        if known is None:
            raise ValueError(f"distribution {self.family!r} is unknown; expected one of "
                             f"{', '.join((*FAMILIES, *LISTS))}")
        bad = not all(map(math.isfinite, self.parameters)) or len(self.parameters) != len(known.parameters)
        if bad or not known.check(*self.parameters):
            raise ValueError(f"distribution {self} is outside its domain; expected {known.help}")

    @classmethod
    def parse(cls, text: str) -> Distribution:
        """Read ``name(number,...)``; a time alone is ``fixed``.  Raises ValueError with the expected form.

        Parameters
        ----------
        text : str
            E.g. ``"exponential(0.02)"``, ``"exponential(20ms)"`` or ``"158ms"``: a time without a unit is in
            seconds.

        Returns
        -------
        Distribution
        """
        call = re.fullmatch(r"\s*([A-Za-z]+)\s*\(([^()]*)\)\s*", text)
        family, parts = (call[1].lower(), call[2].split(",")) if call else ("fixed", [text])
        try:
            timed = _in_seconds(family, len(parts))
            numbers = tuple(units.seconds(part) if i < timed else float(part) for i, part in enumerate(parts))
        except ValueError:
            if call is None:
                raise ValueError(f"distribution {text.strip()!r} not understood; expected e.g. "
                                 "exponential(0.02), 20ms or 0.02") from None
            known = f" of {FAMILIES[family].help}" if family in FAMILIES else ""
            raise ValueError(f"distribution {text.strip()!r}: expected numbers between the brackets{known}; "
                             "times may carry a unit, as 20ms") from None
        return cls(family, numbers)

    def __str__(self) -> str:
        each = [f"{p:g}" for p in self.parameters]
        if len(each) > SHOWN:  # of a calibration or a trace
            each[2:-1] = ["..."]
        return f"{self.family}({','.join(each)})"

    @property
    def exact(self) -> str:
        """The text that `parse` reads as the same distribution, with every digit and parameter."""
        return f"{self.family}({','.join(map(units.exact, self.parameters))})"

    @property
    def mean(self) -> float:
        """E[T] in seconds; of replayed times, over a whole round of their list."""
        if self.family in LISTS:
            return float(np.mean(self.parameters))
        return float(FAMILIES[self.family].mean(*self.parameters))

    @property
    def variance(self) -> float:
        """Var[T] in seconds squared; infinite for a Pareto index of at most 2."""
        if self.family in LISTS:
            return float(np.var(self.parameters))
        return float(FAMILIES[self.family].variance(*self.parameters))

    def cdf(self, t: Any) -> Any:
        """P(T <= t) for t in seconds, elementwise.

        Parameters
        ----------
        t : float or ndarray
            Seconds.

        Returns
        -------
        float or ndarray
            Probabilities, of the shape of `t`.
        """
        return 1 - survival(self, t)

    def sample(self, rng: np.random.Generator, count: int) -> Samples:
        """Draw `count` durations [s], shape (count,); replayed ones from the first on, again and again.

        Parameters
        ----------
        rng : numpy.random.Generator
        count : int
            Number of draws, >= 0.

        Returns
        -------
        ndarray, (count,) float64
            Seconds.
        """
        if self.family == "replayed":
            return np.resize(np.asarray(self.parameters, float), count)
        if self.family == "empirical":
            return rng.choice(np.asarray(self.parameters, float), count)
        return np.asarray(FAMILIES[self.family].sample(rng, count, *self.parameters), float)

    def scaled(self, factor: float) -> Distribution:
        """The distribution of factor * T.

        Parameters
        ----------
        factor : float
            > 0.

        Returns
        -------
        Distribution
        """
        if factor == 1:
            return self
        timed = _in_seconds(self.family, len(self.parameters))
        return Distribution(self.family,
                            tuple(p * factor if i < timed else p for i, p in enumerate(self.parameters)))


def survival(time: Distribution, t: Any) -> Any:
    """P(T > t), elementwise, accurate even if it is small, unlike 1 - cdf."""
    if time.family in LISTS:
        return 1 - np.searchsorted(np.sort(time.parameters), t, side="right") / len(time.parameters)
    return FAMILIES[time.family].survival(np.asarray(t, float), *time.parameters)


def as_distribution(name: str, value: Any) -> Distribution | None:
    """A distribution from the value of an argument: a distribution, its text, or a number of seconds."""
    if value is None or isinstance(value, Distribution):
        return value
    with prefixed(f"{name}: "):
        if is_number(value):
            return Distribution("fixed", (float(value),))
        if isinstance(value, str):
            return Distribution.parse(value)
    raise ValueError(f"{name} {value!r} of type {type(value).__name__}; expected a distribution such as "
                     "'exponential(0.02)', a number of seconds, or None")
