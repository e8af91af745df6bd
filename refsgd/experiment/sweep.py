"""Formulas over a range of one quantity: curves of several algorithms, and where they cross."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refsgd.cluster.machine import Machine
from refsgd.cluster.units import bytes_per_second, seconds
from refsgd.experiment.arguments import Usage, check_numbers, check_whole, options_of
from refsgd.experiment.prepare import DEFAULT_MACHINE, Algorithm, deployment_function, predict

#: what can be swept, and how the value reaches `predict`
QUANTITIES = ("workers", "servers", "batch", "bandwidth", "latency", "staleness")


@dataclass(frozen=True)
class Sweep:
    """Curves of one predicted metric over one quantity."""

    quantity: str
    figure: str  #: the metric
    unit: str
    values: tuple[float, ...]
    curves: dict[str, list[float | None]]  #: by algorithm; None where the formula does not cover the point
    crossings: list[tuple[str, str, float]]  #: two algorithms and where they cross, interpolated linearly

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"quantity": self.quantity, "figure": self.figure, "unit": self.unit,
                "values": list(self.values), "curves": self.curves,
                "crossings": [list(c) for c in self.crossings]}


def parse_range(text: str) -> tuple[str, tuple[float, ...]]:
    """Read ``workers=1:64`` (a geometric range where it is long), ``workers=1:9:2`` or
    ``bandwidth=1Gbps,10Gbps``."""
    name, _, rest = text.partition("=")
    if name not in QUANTITIES:
        raise Usage(f"sweep over {name!r}; expected one of {', '.join(QUANTITIES)}, e.g. workers=1:64")
    read = {"latency": seconds, "bandwidth": bytes_per_second}.get(name, float)
    try:
        if "," in rest or ":" not in rest:
            return name, tuple(read(v) for v in rest.split(","))
        low, high, *step = (read(v) for v in rest.split(":"))
        if not math.isfinite(low - high) or low == high or (step and not step[0] > 0) or len(step) > 1:
            raise ValueError
    except ValueError:
        raise Usage(f"sweep {text!r} not understood; expected e.g. workers=1:64, workers=2:16:2 or "
                    "bandwidth=1Gbps,10Gbps") from None
    if high < low:
        raise Usage(f"sweep {text!r} goes down; expected the smaller end first, e.g. {name}={high:g}:{low:g}")
    return name, _points(low, high, step[0] if step else None,
                         name in ("workers", "servers", "batch", "staleness"))


def _points(low: float, high: float, step: float | None, whole: bool) -> tuple[float, ...]:
    if step is not None:
        return tuple(low + i * step for i in range(int((high - low) / step + 1e-9) + 1))
    if whole and high - low <= 64:
        return tuple(low + i for i in range(int(high - low) + 1))
    if low <= 0:
        return tuple(low + (high - low) * i / 24 for i in range(25))
    found = [low * (high / low) ** (i / 24) for i in range(25)]
    return tuple(sorted({float(round(v)) for v in found})) if whole else tuple(found)


def _check(quantity: str, values: Sequence[float]) -> None:
    """Refuse values that no formula can be asked about."""
    if quantity not in QUANTITIES:
        raise Usage(f"sweep over {quantity!r}; expected one of {', '.join(QUANTITIES)}")
    for value in values:
        check_numbers(**{quantity: value})
        if quantity in ("latency", "bandwidth"):
            try:
                DEFAULT_MACHINE.with_(**{quantity: value})
            except ValueError as error:
                raise Usage(str(error)) from None
            continue
        least = 0 if quantity == "staleness" else 1
        if not float(value).is_integer():
            raise Usage(f"{quantity} {value:g}; expected whole numbers, at least {least}")
        check_whole(least, **{quantity: int(value)})


def sweep(algorithms: Algorithm | Sequence[Algorithm], quantity: str, values: Sequence[float], *,
          figure: str = "images_per_second", **arguments: Any) -> Sweep:
    """Predict one figure of several algorithms over a range."""
    _check(quantity, values)
    curves: dict[str, list[float | None]] = {}
    unit, refused = "", None
    for algorithm in [algorithms] if isinstance(algorithms, str) or callable(algorithms) else algorithms:
        name, function = deployment_function(algorithm)
        points: list[float | None] = []
        for value in values:
            given = dict(arguments)
            machine = given.get("machine") or DEFAULT_MACHINE
            if quantity in ("latency", "bandwidth"):
                given["machine"] = machine.with_(**{quantity: value})
            elif quantity == "workers":
                given |= {"workers": int(value), "machine": machine.for_workers(int(value))
                          if isinstance(machine, Machine) else machine}
            elif quantity != "staleness" or "staleness" in options_of(function):
                given[quantity] = int(value)
            try:
                found = predict(algorithm, **given).get(figure)
            except ValueError as error:
                # outside the formula's domain, or more servers than it allows
                found, refused = None, refused or error
            unit = found.unit if found is not None else unit
            points.append(float(found.value) if found is not None else None)
        curves[name] = points
    if not any(p is not None for points in curves.values() for p in points):
        if isinstance(refused, Usage):
            raise refused
        raise Usage(f"no formula gives {figure!r} for {', '.join(curves)} here; expected e.g. "
                    "images_per_second, seconds_per_iteration, idle_ratio, staleness_mean, "
                    "bytes_per_iteration")
    return Sweep(quantity, figure, unit, tuple(values), curves, crossings(values, curves))


def crossings(values: Sequence[float], curves: dict[str, list[float | None]]) -> list[tuple[str, str, float]]:
    """Where two curves cross strictly; those that coincide over a stretch do not."""
    out = []
    for (a, ya), (b, yb) in itertools.combinations(curves.items(), 2):
        last: tuple[float, float] | None = None
        for x, p, q in zip(values, ya, yb):
            if p is None or q is None or math.isclose(p, q, rel_tol=1e-9):
                continue
            if last is not None and (p - q) * last[1] < 0:
                x0, d0 = last
                out.append((a, b, x0 + (x - x0) * d0 / (d0 - (p - q))))
            last = x, p - q
    return out
