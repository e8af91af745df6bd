"""Monte Carlo means, kinds of predictions, and checks of formulas' arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from refsgd.cluster.devices import Device, Time
from refsgd.cluster.distributions import Distribution
from refsgd.theory.prediction import STANDARD_ERROR, DomainError, Kind, Prediction

Values = npt.NDArray[np.float64]

LARGEST = 10_000  #: most workers or servers for formulas that loop over them
WIDEST = 2_000  #: most workers for recursions, whose evaluation then takes a second or two


class Uncovered(DomainError):
    """No formula covers any metric of the setting; the message says why."""


def kind_of(faithful: bool, error: float = 0.0) -> Kind:
    """The kind of a prediction that is not a bound; `faithful`: its model is exact."""
    return "approximation" if not faithful else "numerical" if error else "exact"


def sampling(error: float) -> dict[str, float]:
    """The standard error of a Monte Carlo mean as a term; empty if nothing is drawn."""
    return {STANDARD_ERROR: error} if error else {}


def sampled(rng: np.random.Generator, times: Sequence[Distribution | None], replicas: int,
            count: int) -> Values:
    """Drawn times, (replicas, workers, count); zeros for None."""
    shape = replicas, count
    return np.stack([np.zeros(shape) if time is None else time.sample(rng, replicas * count).reshape(shape)
                     for time in times], axis=1)


@dataclass(frozen=True)
class Estimate:
    """A Monte Carlo mean and its standard error, 0 if nothing was drawn."""

    value: float
    error: float = 0.0

    @classmethod
    def of(cls, values: Values) -> Estimate:
        """The mean of independent values; one value alone, which is not drawn, has no error."""
        return cls(float(np.mean(values)), float(np.std(values)) / math.sqrt(len(values)))

    def continued(self, steps: float, pace: Estimate) -> Estimate:
        """A run continued for some steps at a constant pace."""
        return Estimate(self.value + steps * pace.value, self.error + steps * pace.error)

    def scaled(self, factor: float) -> Estimate:
        """The estimate of a multiple."""
        return Estimate(factor * self.value, abs(factor) * self.error)

    def predicted(self, unit: str, terms: Mapping[str, float], formula: str, source: str,
                  assumptions: str = "", *, faithful: bool = True, lower: float | None = None,
                  upper: float | None = None) -> Prediction:
        """The prediction with this value; an approximation unless the model is `faithful`."""
        return Prediction(self.value, unit, kind_of(faithful, self.error),
                          {**terms, **sampling(self.error)}, formula, source, assumptions,
                          lower=lower, upper=upper)


def check_count(name: str, value: int, least: int = 1) -> int:
    """`value` if it is a whole number of at least `least`; otherwise DomainError."""
    if isinstance(value, bool) or int(value) != value or value < least:
        raise DomainError(f"{name} {value}; the formula assumes a whole number of at least {least}")
    return int(value)


def check_time(name: str, value: float) -> float:
    """`value` if it is a finite number of seconds >= 0; otherwise DomainError."""
    if not value >= 0 or math.isinf(value):
        raise DomainError(f"{name} {value} s; the formula assumes a finite time >= 0")
    return float(value)


def check_distribution(name: str, time: Time | None) -> Distribution:
    """`time` if it is given and has a finite mean; otherwise DomainError."""
    if isinstance(time, Device):
        raise DomainError(f"{name} {time}; the formula assumes a distribution of seconds, which a device has "
                          "for the work of a gradient")
    if time is None:
        raise DomainError(f"{name} is not stated; the formula assumes a distribution, e.g. exponential(0.02)")
    if not math.isfinite(time.mean):
        raise DomainError(f"{name} {time}; the formula assumes a distribution with a finite mean")
    return time


def certain(*times: Distribution | None) -> bool:
    """Whether all times are fixed; None is no time."""
    return all(time is None or time.family == "fixed" for time in times)


def replayed(times: Sequence[Distribution | None]) -> bool:
    """Whether some times come in the order of a list, so that they are not independent."""
    return any(time is not None and time.family == "replayed" for time in times)


def check_width(workers: int) -> None:
    """Raise Uncovered if there are too many workers to evaluate a recursion."""
    if workers > WIDEST:
        raise Uncovered(f"the recursion of waiting times has no closed form and is evaluated for at most "
                        f"{WIDEST} workers, not for {workers}")
