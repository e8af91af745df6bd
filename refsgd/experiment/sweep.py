"""Predictions over a range of one quantity: curves of several algorithms, and their crossings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from refsgd.algorithms.facts import facts_of
from refsgd.cluster.units import bytes_per_second, seconds
from refsgd.effects import Deployment
from refsgd.experiment.arguments import Usage, check_kind, check_whole, checked, options_of, suggestion
from refsgd.experiment.functions import Algorithm, deployment_function, is_place, listed, shared
from refsgd.experiment.options import unused
from refsgd.experiment.prepare import DEFAULT_MACHINE, prepare
from refsgd.trace.metrics import METRICS

POINTS = 1000  #: most values of a sweep
#: quantities that can be swept, and their least whole number; None for a quantity of the machine
QUANTITIES = {"workers": 1, "servers": 1, "batch": 1, "bandwidth": None, "latency": None, "staleness": 0}


@dataclass(frozen=True)
class Sweep:
    """Curves of one predicted metric over one quantity."""

    quantity: str
    metric: str
    unit: str
    values: tuple[float, ...]
    curves: dict[str, list[float | None]]  #: by algorithm; None outside the formula's domain
    crossings: list[tuple[str, str, float]]  #: two algorithms and where they cross, interpolated linearly
    toothed: bool = False  #: whether images per second have teeth, as some gradients have fewer images
    absent: Mapping[str, str] = field(default_factory=dict)  #: why algorithms have no value somewhere


def parse_range(text: str) -> tuple[str, tuple[float, ...]]:
    """Read ``workers=1:64`` (geometric if long), ``workers=1:9:2`` or ``bandwidth=1Gbps,10Gbps``."""
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
    if step and (high - low) / step[0] > POINTS:
        raise Usage(f"sweep {text!r} has more than {POINTS} values; expected a larger step")
    if high < low:
        raise Usage(f"sweep {text!r} goes down; expected the smaller end first, e.g. {name}={high:g}:{low:g}")
    whole = QUANTITIES[name] is not None
    if step or (whole and high - low <= 64):
        by = step[0] if step else 1
        return name, tuple(low + i * by for i in range(int((high - low) / by + 1e-9) + 1))
    points = np.geomspace(low, high, 25) if low > 0 else np.linspace(low, high, 25)
    return name, tuple(sorted({float(round(v)) for v in points}) if whole else points.tolist())


@checked()
def check_values(quantity: str, values: Sequence[float]) -> None:
    """Refuse values outside the quantity's range."""
    if quantity not in QUANTITIES:
        raise Usage(f"sweep over {quantity!r}; expected one of {', '.join(QUANTITIES)}")
    least = QUANTITIES[quantity]
    for value in values:
        check_kind(Real, "a number", **{quantity: value})
        if least is None:
            DEFAULT_MACHINE.with_(**{quantity: value})
        elif not float(value).is_integer():
            raise Usage(f"{quantity} {value:g}; expected whole numbers, at least {least}")
        else:
            check_whole(least, **{quantity: int(value)})


def _named(chosen: Sequence[Algorithm]) -> list[tuple[str, Callable[..., Deployment]]]:
    """The names of curves, which differ, and the functions of their algorithms."""
    named = [(a if is_place(a) else name, function)
             for a in chosen for name, function in [deployment_function(a)]]
    names = [name for name, _ in named]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise Usage(f"algorithms: {twice} appears twice; expected another name for each curve")
    return named


def sweep(algorithms: Algorithm | Sequence[Algorithm], quantity: str, values: Sequence[float], *,
          metric: str = "images_per_second", **arguments: Any) -> Sweep:
    """Predict one metric of several algorithms over a range."""
    check_values(quantity, values)
    known = [name for name, each in METRICS.items() if each.predicted]
    if metric not in known:
        raise Usage(f"metric {metric!r} is unknown; expected one of {', '.join(known)}"
                    + suggestion(metric, known))
    machine = arguments.pop("machine", None) or DEFAULT_MACHINE
    stated, chosen = arguments.pop("stated", ()), listed(algorithms)
    named = _named(chosen)
    takes = [facts_of(function).served if quantity == "servers" else
             quantity != "staleness" or "staleness" in options_of(function) for _, function in named]
    if not any(takes):
        raise Usage(f"sweep over {quantity} changes nothing of {named[0][0]}, which has no {quantity}; "
                    "expected another quantity, or another algorithm")
    common = shared(arguments, [function for _, function in named])
    curves: dict[str, list[float | None]] = {}
    unit, refused, absent, useless, toothed = "", None, dict[str, str](), list[dict[str, str]](), False
    for algorithm, (name, _), each, it_takes in zip(chosen, named, common, takes):
        curves[name] = []
        for value in values:
            given = {**each, "machine": machine}
            if QUANTITIES[quantity] is None:
                given["machine"] = machine.with_(**{quantity: value})
            elif it_takes:
                given[quantity] = int(value)
            if quantity == "workers":
                given["machine"] = machine.for_workers(int(value))
            try:
                e = prepare(algorithm, **given)  # not kept: it has the parameters, and programs with replicas
                useless.append(unused.reasons(e, stated))
                toothed |= e.images < sum(e.batches) * e.steps
                figures = e.predictions()
                found, why = figures.get(metric), figures.missing.get(metric, "")
            except ValueError as error:  # outside the formula's domain, or more servers than it allows
                found, why, refused = None, str(error), refused or error
            if found is None:
                absent.setdefault(name, why)
            unit = found.unit if found is not None else unit
            curves[name].append(float(found.value) if found is not None else None)
    if all(point is None for points in curves.values() for point in points):
        if isinstance(refused, Usage):
            raise refused
        said = next(filter(None, absent.values()), "")
        raise Usage(f"no formula gives {metric!r} for {', '.join(curves)} here"
                    + (f": {said}" if said else "; expected another metric, such as images_per_second"))
    unused.check(useless)
    return Sweep(quantity, metric, unit, tuple(values), curves, crossings(values, curves),
                 toothed and metric == "images_per_second", absent)


def crossings(values: Sequence[float], curves: dict[str, list[float | None]]) -> list[tuple[str, str, float]]:
    """Where two curves cross strictly; curves that only coincide do not count."""
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
