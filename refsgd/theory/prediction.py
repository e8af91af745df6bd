"""The result of a formula: a number with its unit, its terms, and its kind (exact, approximation, ...)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Kind = Literal["exact", "numerical", "approximation", "bound", "simulated"]
Side = Literal["", "lower", "upper"]
STANDARD_ERROR = "standard error"  #: name of the term with the standard error


class DomainError(ValueError):
    """The arguments of a formula violate its assumptions; the message names the assumption."""


@dataclass(frozen=True)
class Prediction:
    """One predicted metric.

    Parameters
    ----------
    value : float
        The predicted value; if `kind` is "bound", a limit that the true value does not cross.
    unit : str
        "s", "bytes", "images/s", "updates", "iterations", or "1" for a share.
    kind : {"exact", "numerical", "approximation", "bound", "simulated"}
        exact: a closed form, up to quadrature, under its assumptions.  numerical: a Monte Carlo mean of an
        exact recursion, with its standard error as a term.  approximation: the model itself is simplified.
        simulated: the mean of runs of the simulator.
    terms : mapping of str to float
        Parts of the value, in `unit` unless `units` names another unit.
    formula, source, assumptions : str
        Text for readers.
    units : mapping of str to str
        Units of the terms that are not in `unit`.
    bound : {"", "lower", "upper"}
        The side, if `kind` is "bound".
    lower, upper : float or None
        Proven limits of the same metric, if known.

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
        """Standard error of a Monte Carlo mean, in `unit`; otherwise 0."""
        return self.terms.get(STANDARD_ERROR, 0.0)

    @property
    def faithful(self) -> bool:
        """Whether the kind is exact or numerical."""
        return self.kind in ("exact", "numerical")

    @property
    def binding(self) -> str:
        """Name of the largest term in `unit`; "" if there is none."""
        own = {name: v for name, v in self.terms.items() if name not in (*self.units, STANDARD_ERROR)}
        return max(own, key=lambda name: own[name]) if own else ""

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values; numbers that are not finite become None."""
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


class Figures(dict[str, Prediction]):
    """Predictions by name of the metric.

    Attributes
    ----------
    missing : dict of str to str
        The reason for each metric without a prediction.
    """

    def __init__(self, found: Mapping[str, Prediction] | None = None) -> None:
        super().__init__(found or {})
        self.missing: dict[str, str] = {}
        self._open: set[str] = set()

    @property
    def open(self) -> set[str]:
        """The missing metrics that a simulation gives."""
        return self._open - self.keys()

    def simplify(self, assumption: str) -> None:
        """Turn all metrics that depend on times into approximations with one more assumption.

        Parameters
        ----------
        assumption : str
        """
        for name, p in self.items():
            if p.faithful and name not in ("updates", "bytes_per_iteration", "bytes_sent"):
                self[name] = replace(p, kind="approximation",
                                     assumptions="; ".join(filter(None, (p.assumptions, assumption))))

    def without(self, reason: str, *names: str) -> Figures:
        """Leave metrics out, with a reason.

        Parameters
        ----------
        reason, *names : str
            Why, and the names of the metrics.

        Returns
        -------
        Figures
            The same object.
        """
        for name in names:
            self.pop(name, None)
            self.missing[name] = reason
        self._open -= {*names}
        return self

    def leave(self, reason: str, *names: str) -> Figures:
        """Leave metrics to a simulation, since no formula gives them.

        Parameters
        ----------
        reason, *names : str
            Why, and the names of the metrics.

        Returns
        -------
        Figures
            The same object.
        """
        self.without(reason, *names)._open |= {*names}
        return self


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
