"""Devices, which price a gradient by its work, and loads, which slow a node down for a while."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from refsgd.cluster import units
from refsgd.cluster.checks import plain_fields, prefixed
from refsgd.cluster.distributions import Distribution, as_distribution, is_number

ALWAYS = Distribution("fixed", (1.0,))
DEVICE = "device(RATE,OVERHEAD[,MEMORY][,NOISE]), such as device(5TFLOPS,2ms,lognormal(1,0.1))"
LOAD = "a node and factors from seconds on, such as worker2: 1@0, 3@30, 1@60"


@dataclass(frozen=True)
class Device:
    """A processor: a gradient takes (overhead + M / memory + work / rate) x noise seconds for a model of M
    bytes.

    >>> device = Device.parse("device(5TFLOPS, 2ms, lognormal(1,0.1))")
    >>> print(device, device.time(work=5e10))
    device(5TFLOPS,0.002,lognormal(1,0.1)) lognormal(0.012,0.1)
    """

    rate: float  #: floating-point operations per second of forward and backward pass, > 0
    overhead: float = 0.0  #: seconds of a gradient that depend on neither net nor batch, >= 0
    #: bytes of the model per second, > 0: every gradient reads all parameters and writes as many numbers
    memory: float = math.inf
    noise: Distribution = ALWAYS  #: a factor of mean 1, drawn for each gradient

    def __post_init__(self) -> None:
        for name, least, most in (("rate", "> 0", "finite"), ("overhead", ">= 0", "finite"),
                                  ("memory", "> 0", "")):
            value = getattr(self, name)
            fits = is_number(value) and (value > 0 or (value == 0 and least == ">= 0"))
            if not fits or (most and value == math.inf):
                raise ValueError(f"{name} {value!r} of a device; expected a {most + ' ' * bool(most)}number "
                                 f"{least}")
        noise = as_time("noise", self.noise)
        if isinstance(noise, Device) or not math.isclose(noise.mean, 1, rel_tol=1e-6):
            raise ValueError(f"noise {noise} of a device; expected a factor of mean 1, such as "
                             "lognormal(1,0.1)")
        object.__setattr__(self, "noise", noise)

    @classmethod
    def parse(cls, text: str) -> Device:
        """Read ``device(5TFLOPS, 2ms, 4GB/s, lognormal(1,0.1))``; only the rate is required."""
        inside = re.fullmatch(r"\s*device\s*\((.*)\)\s*", text, re.IGNORECASE)
        parts = re.split(r",(?![^()]*\))", inside[1]) if inside else []
        given: dict[str, Any] = {}
        if parts and "(" in parts[-1]:
            given["noise"] = Distribution.parse(parts.pop())
        if not 1 <= len(parts) <= 3:
            raise ValueError(f"{text.strip()!r}; expected {DEVICE}")
        reads = (("rate", units.flops), ("overhead", units.seconds), ("memory", units.bytes_per_second))
        try:
            given |= {name: read(part) for (name, read), part in zip(reads, parts)}
        except ValueError as error:
            raise ValueError(f"{text.strip()!r}: {error}; expected {DEVICE}") from None
        return cls(**given)

    def __str__(self) -> str:
        parts = [f"{self.rate / 1e12:g}TFLOPS" if self.rate >= 1e12 else f"{self.rate / 1e9:g}GFLOPS",
                 f"{self.overhead:g}"]
        parts += [f"{self.memory / 1e9:g}GB/s"] if self.memory < math.inf else []
        parts += [str(self.noise)] if self.noise != ALWAYS else []
        return f"device({','.join(parts)})"

    @property
    def exact(self) -> str:
        """The text that `parse` reads as the same device, with every digit."""
        numbers = [self.rate, self.overhead, *([self.memory] if self.memory < math.inf else [])]
        noise = [self.noise.exact] if self.noise != ALWAYS else []
        return f"device({','.join([*map(units.exact, numbers), *noise])})"

    def seconds(self, work: float, nbytes: float = 0.0) -> float:
        """Mean seconds of a gradient of `work` floating-point operations for a model of `nbytes`."""
        return self.overhead + nbytes / self.memory + work / self.rate

    def time(self, work: float, nbytes: float = 0.0) -> Distribution:
        """The distribution of the seconds of a gradient; arguments as in `seconds`."""
        return self.noise.scaled(self.seconds(work, nbytes))

    def scaled(self, factor: float) -> Device:
        """The device that takes `factor` > 0 times as long."""
        return replace(self, rate=self.rate / factor, overhead=self.overhead * factor,
                       memory=self.memory / factor) if factor != 1 else self

    def to_json(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values, without an unlimited memory."""
        return {name: value for name, value in plain_fields(self).items() if value is not None}


Time = Distribution | Device  #: how long a gradient takes
Times = Time | tuple[Time, ...] | None  #: for all workers, for each, or none: unpaced


def as_times(name: str, value: Any) -> Times:
    """The time of a gradient: a distribution, a device, or one of them for each worker.

    In text, workers are separated by semicolons and may be repeated: ``"3x 20ms; exponential(40ms)"``, and
    ``"@FILE"`` names a file with a line for each worker.
    """
    if value is None:
        return None
    if isinstance(value, str) and value.strip().startswith("@"):
        value = _column(name, value.strip()[1:])
    if isinstance(value, str) and (";" in value or re.match(r"\s*\d+\s*x", value)):
        form = r"\s*(?:([1-9]\d{0,4})\s*x)?(.*)"
        parts = [re.fullmatch(form, part, re.DOTALL) for part in value.split(";")]
        value = [part[2] for part in parts if part for _ in range(int(part[1] or 1))]
    if isinstance(value, (list, tuple)):
        return tuple(as_time(f"{name} of worker {i}", each) for i, each in enumerate(value)) or None
    return as_time(name, value)


def _column(name: str, path: str) -> list[str]:
    """The last column of a file, by worker: a time in each line, after its rank or not; a heading and lines
    that begin with # are left out."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"{name} @{path}: {why}; expected a text file with a time for each worker") from None
    cells = [re.split(r"[\t;,](?![^()]*\))|\s{2,}", line.strip())[-1].strip() for line in lines
             if line.strip() and not line.lstrip().startswith("#")]
    if cells and not re.search(r"\d", cells[0]):
        del cells[0]
    if not cells:
        raise ValueError(f"{name} @{path}: no times; expected one in each line, such as 20ms")
    return cells


def as_time(name: str, value: Any) -> Time:
    """A distribution or a device from text, a number of seconds, or the JSON values of `plain`."""
    with prefixed(f"{name}: "):
        if isinstance(value, Mapping) and "rate" in value:
            known = [field.name for field in fields(Device)]
            if unknown := sorted(set(value) - set(known)):
                raise ValueError(f"keys {unknown} of a device; expected some of {', '.join(known)}")
            return Device(**value)
        if isinstance(value, str) and value.strip().lower().startswith("device"):
            return Device.parse(value)
    if isinstance(value, Mapping):
        if set(value) != {"family", "parameters"} or not isinstance(value["parameters"], (list, tuple)):
            raise ValueError(f"{name} {dict(value)}; expected a family and a list of its parameters, "
                             "such as {'family': 'fixed', 'parameters': [0.02]}")
        with prefixed(f"{name}: "):
            return Distribution(value["family"], tuple(value["parameters"]))
    found = value if isinstance(value, Device) else as_distribution(name, value)
    if found is None:
        raise ValueError(f"{name} is not stated; expected a distribution, such as 20ms")
    return found


def written(times: Times, text: Callable[[Any], str] = str) -> str:
    """Times in the form that `as_times` reads; `text` writes each: as `Distribution.exact`, or shorter."""
    each = times if isinstance(times, tuple) else (times,)
    runs = [(time, len(list(equal))) for time, equal in itertools.groupby(each)]
    return "; ".join(f"{count}x {text(time)}" if count > 1 else text(time) for time, count in runs)


@dataclass(frozen=True)
class Load:
    """Factors by which everything that a node computes takes longer, each from a given time on; 1 before the
    first.

    >>> busy = Load.parse("worker2: 3@30, 1@60")
    >>> busy.end(20, 15), busy.done(20, 45)
    (45.0, 15.0)
    """

    role: str  #: "worker" or "server"
    rank: int  #: the node's number within its role
    factors: tuple[tuple[float, float], ...]  #: (seconds, factor), by time

    def __post_init__(self) -> None:
        if self.role not in ("worker", "server") or isinstance(self.rank, bool) or self.rank < 0:
            raise ValueError(f"load of {self.role}{self.rank}; expected {LOAD}")
        before = -1.0
        for second, factor in self.factors:
            if not (is_number(second) and is_number(factor) and before < second < math.inf
                    and second >= 0 and 0 < factor < math.inf):
                raise ValueError(f"load {self}: factor {factor} from {second} s; expected finite factors > 0 "
                                 "and rising seconds >= 0")
            before = second

    @classmethod
    def parse(cls, text: str) -> Load:
        """Read ``worker2: 1@0, 3@30, 1@60``; peers are workers."""
        found = re.fullmatch(r"\s*(worker|peer|server)?(\d{1,6})\s*:(.*)", text)
        try:
            if not found:
                raise ValueError
            pairs = [part.split("@") for part in found[3].split(",")]
            factors = tuple((units.seconds(second), float(factor)) for factor, second in pairs)
        except ValueError:
            raise ValueError(f"load {text.strip()!r}; expected {LOAD}") from None
        return cls("server" if found[1] == "server" else "worker", int(found[2]), factors)

    @property
    def node(self) -> str:
        """Role and rank in one word."""
        return f"{self.role}{self.rank}"

    @property
    def steps(self) -> str:
        """The factors as `parse` reads them."""
        return ", ".join(f"{factor!r}@{second!r}" for second, factor in self.factors)

    def __str__(self) -> str:
        return f"{self.node}: " + ", ".join(f"{factor:g}@{second:g}" for second, factor in self.factors)

    def pieces(self, start: float) -> Iterator[tuple[float, float]]:
        """The factors from `start` on, each with its end: (end, factor)."""
        ends = [*(second for second, _ in self.factors), math.inf]
        for until, factor in zip(ends, [1.0, *(factor for _, factor in self.factors)]):
            if until > start:
                yield until, factor

    def end(self, start: float, seconds: float) -> float:
        """When a computation that begins at `start` and takes `seconds` without load ends."""
        for until, factor in self.pieces(start):
            room = (until - start) / factor
            if seconds <= room:
                break
            seconds, start = seconds - room, until
        return start + seconds * factor

    def done(self, start: float, end: float) -> float:
        """Seconds of unloaded computing done from `start` to `end`."""
        total = 0.0
        for until, factor in self.pieces(start):
            total += (min(until, end) - start) / factor
            if until >= end:
                break
            start = until
        return total

    def later(self, seconds: float) -> Load:
        """The load as seen by a run that begins `seconds` later."""
        now = [factor for second, factor in self.factors if second <= seconds][-1:]
        return replace(self, factors=(*((0.0, factor) for factor in now), *(
            (second - seconds, factor) for second, factor in self.factors if second > seconds)))

    def scaled(self, factor: float) -> Load:
        """The load with all times multiplied by a factor."""
        return replace(self, factors=tuple((second * factor, each) for second, each in self.factors))


UNLOADED = Load("worker", 0, ())


def as_loads(value: Any) -> tuple[Load, ...]:
    """Loads from text (``"worker2: 3@30; server0: 2@5"``), a mapping of nodes to factors, or a list."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        value = [f"{node}: {factors}" for node, factors in value.items()]
    if not isinstance(value, Iterable):
        raise ValueError(f"{value!r}; expected {LOAD}")
    parts = [part for each in value for part in (each.split(";") if isinstance(each, str) else [each])]
    found = tuple(Load.parse(each) if isinstance(each, str) else each for each in parts if each != "")
    if wrong := [each for each in found if not isinstance(each, Load)]:
        raise ValueError(f"{wrong[0]!r}; expected {LOAD}")
    nodes = [load.node for load in found]
    if twice := next((node for node in nodes if nodes.count(node) > 1), None):
        raise ValueError(f"{twice} is named twice; expected each node once, as in {LOAD}")
    return tuple(sorted(found, key=lambda load: (load.role != "worker", load.rank)))
