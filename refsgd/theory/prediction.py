"""What a formula gives back: a number with its unit, its terms, and how far it can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from refsgd.cluster.distributions import Distribution

Kind = Literal["exact", "numerical", "approximation", "bound"]
Side = Literal["", "lower", "upper"]
LARGEST = 10_000  #: workers or servers that formulas go through one by one
STANDARD_ERROR = "standard error"  #: the term that holds it


class DomainError(ValueError):
    """A formula was asked for something that its assumptions do not cover; the message names the
    assumption."""


class TooWide(DomainError):
    """More workers than those for which a recursion is evaluated in a second or two."""


@dataclass(frozen=True)
class Prediction:
    """One predicted figure.

    Parameters
    ----------
    value : float
        The figure; a limit that the truth does not cross where `kind` is "bound".
    unit : str
        "s", "bytes", "images/s", "updates", "iterations", or "1" for a share.
    kind : {"exact", "numerical", "approximation", "bound"}
        exact: a closed form, under its assumptions, evaluated up to quadrature.  numerical: a Monte Carlo
        mean of the same, whose standard error is a term.  approximation: the model itself is simplified.
    terms : mapping of str to float
        What the value is made of, in `unit` unless `units` names another one.
    formula, source, assumptions : str
        For people: the formula in words and symbols, where it comes from, when it holds.
    units : mapping of str to str
        Units of the terms that are not in `unit`.
    bound : {"", "lower", "upper"}
        Which side, where `kind` is "bound".
    lower, upper : float or None
        Proven limits of the same figure, where they are known.

    Examples
    --------
    >>> p = Prediction(0.03, "s", "exact", {"compute E[T]": 0.02, "transfer": 0.01}, "E[T] + 2 latency")
    >>> p.binding
    'compute E[T]'
    """

    value: float
    unit: str
    kind: Kind
    terms: Mapping[str, float] = field(default_factory=dict)
    formula: str = ""
    source: str = ""
    assumptions: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    bound: Side = ""
    lower: float | None = None
    upper: float | None = None

    def __post_init__(self) -> None:
        if (self.kind == "bound") != bool(self.bound):
            raise ValueError(
                f"kind {self.kind!r} with bound {self.bound!r}; expected lower or upper for a bound only")
        if self.faithful and (self.kind == "numerical") != bool(self.error):
            raise ValueError(
                f"kind {self.kind!r} with standard error {self.error:g}; expected numerical with one, exact "
                "without")

    def __float__(self) -> float:
        return float(self.value)

    @property
    def error(self) -> float:
        """Standard error of a Monte Carlo mean, in `unit`; 0 where nothing was drawn."""
        return self.terms.get(STANDARD_ERROR, 0.0)

    @property
    def faithful(self) -> bool:
        """Whether its assumptions suffice: exact or numerical, and no approximation or bound."""
        return self.kind in ("exact", "numerical")

    @property
    def binding(self) -> str:
        """Name of the largest term in the value's own unit; "" if there is none."""
        own = {name: v for name, v in self.terms.items() if name not in (*self.units, STANDARD_ERROR)}
        return max(own, key=lambda name: own[name]) if own else ""

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values (a figure that is not finite becomes None)."""
        out: dict[str, Any] = {
            "value": _finite(self.value), "unit": self.unit, "kind": self.kind,
            "terms": {name: _finite(v) for name, v in self.terms.items()},
            "formula": self.formula, "source": self.source, "assumptions": self.assumptions,
        }
        if self.units:
            out["units"] = dict(self.units)
        if self.bound:
            out["bound"] = self.bound
        for name in ("lower", "upper"):
            limit = getattr(self, name)
            if limit is not None:
                out[name] = _finite(limit)
        return out


def kind_of(faithful: bool, error: float = 0.0) -> Kind:
    """The kind of a figure without a bound.

    Parameters
    ----------
    faithful : bool
        Whether nothing is simplified.
    error : float
        Standard error of a Monte Carlo mean; 0 where nothing is drawn.

    Returns
    -------
    str
    """
    return "approximation" if not faithful else "numerical" if error else "exact"


def sampling(error: float) -> dict[str, float]:
    """The term of a Monte Carlo mean's standard error; none where nothing is drawn.

    Parameters
    ----------
    error : float
        In the unit of the figure.

    Returns
    -------
    dict of str to float
    """
    return {STANDARD_ERROR: error} if error else {}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def check_count(name: str, value: int, least: int = 1) -> int:
    """`value` if it is a whole number of at least `least`; else DomainError.

    Parameters
    ----------
    name : str
        What the value is called in the error.
    value : int
    least : int
        The smallest admitted value.

    Returns
    -------
    int
        The value.
    """
    if isinstance(value, bool) or int(value) != value or value < least:
        raise DomainError(f"{name} {value}; the formula assumes a whole number of at least {least}")
    return int(value)


def check_time(name: str, value: float) -> float:
    """`value` if it is a finite number of seconds >= 0; else DomainError.

    Parameters
    ----------
    name : str
        What the value is called in the error.
    value : float

    Returns
    -------
    float
        The value.
    """
    if not value >= 0 or math.isinf(value):
        raise DomainError(f"{name} {value} s; the formula assumes a finite time >= 0")
    return float(value)


def check_share(name: str, value: float) -> float:
    """`value` if it lies in [0, 1]; else DomainError.

    Parameters
    ----------
    name : str
        What the value is called in the error.
    value : float

    Returns
    -------
    float
        The value.
    """
    if not 0 <= value <= 1:
        raise DomainError(f"{name} {value}; the formula assumes a share between 0 and 1")
    return float(value)


def check_distribution(name: str, time: Distribution | None) -> Distribution:
    """`time` if it is stated and has a finite mean; else DomainError.

    Parameters
    ----------
    name : str
        What the value is called in the error.
    time : Distribution or None

    Returns
    -------
    Distribution
        The distribution.
    """
    if time is None:
        raise DomainError(
            f"{name} is not stated; the formula assumes a distribution, e.g. exponential(0.02)")
    if not math.isfinite(time.mean):
        raise DomainError(f"{name} {time}; the formula assumes a distribution with a finite mean")
    return time
