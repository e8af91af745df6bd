"""How long things take: one description, read by formulas, by the simulator and by paced processes.

A `Machine` prices what programs do: a `Law` for the time of one gradient, seconds of an update, and links
with a latency and a bandwidth.  It knows no algorithm.

Links hang on a switch that never blocks.  A node's outgoing and its incoming link each serve one message
at a time, first come first served, cut-through.  A message of m bytes::

    start   = max(now, out_free);   out_free = start + m / bandwidth
    arrival = max(start + latency, in_free) + m / bandwidth;   in_free = arrival

and an incoming link serves in the order in which heads (start + latency) arrive.  Half duplex: one link both ways,
``out_free`` and ``in_free`` are the same time.

Whoever computes has processors of its own, unless `cores` says that the programs of a host share them: then each of k
that compute proceeds at rate min(1, cores / k) (see `refsgd.runtimes.processors`).
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from refsgd import units
from refsgd.laws import Law, Samples, as_law, is_number


@dataclass(frozen=True)
class Machine:
    """A cluster in numbers.

    Parameters
    ----------
    compute : Law, str or None
        Seconds of one gradient; None: nothing is paced, real processes run as fast as they can.
    latency : float or str
        Seconds until the first byte of a message arrives, >= 0; or text such as ``"25us"``.
    bandwidth : float or str
        Bytes per second of each node's link, each direction; > 0, may be infinite; or text such as ``"10Gbps"`` or ``"1.25GB/s"``.
    update : float or Law or str
        Seconds of one update at a server (or of a worker's own), >= 0.
    reduction : float
        Seconds per byte that is reduced in a collective (gamma), >= 0.
    speeds : tuple of float or str
        Speed of each worker relative to the law, e.g. ``(1, 1, 4)`` or ``"15x1,0.5"``; empty: all are 1.
    collocated : bool
        Server k lives on the node of worker k mod n; what they say to each other never enters the network.
    cores : int or None
        Programs of one host that can compute at full speed at the same time: of k that compute each proceeds at rate min(1, cores / k).
        None: processors are no limit.  A gradient whose threads take all processors of its host counts as one program on one core.
    duplex : {"full", "half"}
        Whether a node's outgoing and incoming link are two, or one that serves both ways first come first served.

    Examples
    --------
    >>> Machine(compute="exponential(20ms)", latency="1ms").compute.mean
    0.02
    """

    compute: Law | None = None
    latency: float = 0.0
    bandwidth: float = math.inf
    update: Law | None = None
    reduction: float = 0.0
    speeds: tuple[float, ...] = ()
    collocated: bool = False
    cores: int | None = None
    duplex: str = "full"

    def __post_init__(self) -> None:
        for name in ("compute", "update"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if name == "update" and is_number(value) and value == 0 else as_law(name, value))
        for name, read in (("latency", units.seconds), ("bandwidth", units.bytes_per_second), ("speeds", units.speeds)):
            if isinstance(value := getattr(self, name), str):
                try:
                    object.__setattr__(self, name, read(value))
                except ValueError as error:
                    raise ValueError(f"{name} {error}") from None
        for name, expected in (("latency", "a finite number of seconds >= 0"), ("bandwidth", "a number of bytes/s > 0 (inf: unlimited)"),
                               ("reduction", "a number of s/byte >= 0")):
            if not is_number(value := getattr(self, name)):
                raise ValueError(f"{name} {value!r} of type {type(value).__name__}; expected {expected}")
        if not self.latency >= 0 or math.isinf(self.latency):
            raise ValueError(f"latency {self.latency} s; expected a finite number of seconds >= 0")
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth {self.bandwidth} bytes/s; expected a number > 0 (inf: unlimited)")
        if not self.reduction >= 0:
            raise ValueError(f"reduction {self.reduction} s/byte; expected a number >= 0")
        speeds = tuple(self.speeds) if isinstance(self.speeds, Iterable) else None
        if speeds is None or not all(map(is_number, speeds)) or any(not s > 0 or math.isinf(s) for s in speeds):
            raise ValueError(f"speeds {self.speeds!r}; expected finite numbers > 0, such as (1, 1, 4)")
        object.__setattr__(self, "speeds", tuple(map(float, speeds)))
        if not isinstance(self.collocated, bool):
            raise ValueError(f"collocated {self.collocated!r} of type {type(self.collocated).__name__}; expected True or False")
        if self.cores is not None and (isinstance(self.cores, bool) or not isinstance(self.cores, Integral)):
            raise ValueError(f"cores {self.cores!r} of type {type(self.cores).__name__}; expected a whole number, at least 1, or None")
        if self.cores is not None and self.cores < 1:
            raise ValueError(f"cores {self.cores}; expected at least 1, or None")
        if self.duplex not in ("full", "half"):
            raise ValueError(f"duplex {self.duplex!r}; expected full or half")

    @classmethod
    def this(cls) -> Machine:
        """The machine as it is: no pacing, no emulated link."""
        return cls()

    @property
    def paced(self) -> bool:
        """Whether compute times are drawn (and real processes sleep until a drawn time is over)."""
        return self.compute is not None

    @property
    def linked(self) -> bool:
        """Whether messages take time."""
        return self.latency > 0 or not math.isinf(self.bandwidth)

    def speed(self, node: str) -> float:
        """Speed factor of a node, by the number at the end of its name; servers have 1.

        Parameters
        ----------
        node : str
            Its name, e.g. "worker3".

        Returns
        -------
        float
            > 0.
        """
        rank = rank_of(node)
        return self.speeds[rank] if not node.startswith("server") and rank < len(self.speeds) else 1.0

    def law(self, node: str, kind: str) -> Law | None:
        """The law of a `Compute` of this kind on this node; None if it costs nothing.

        Parameters
        ----------
        node : str
            Its name, e.g. "worker3".
        kind : str
            Of the `Compute`.

        Returns
        -------
        Law or None
        """
        law = {"gradient": self.compute, "update": self.update}.get(kind)
        return law.scaled(1 / self.speed(node)) if law is not None else None

    def hosts(self, nodes: Iterable[str]) -> dict[str, str]:
        """On which host each node lives: its own, or a worker's for a server when collocated.

        Parameters
        ----------
        nodes : iterable of str
            All nodes of a deployment.

        Returns
        -------
        dict of str to str
            Host by node.
        """
        names = list(nodes)
        workers = [name for name in names if not name.startswith("server")]
        place = {name: name for name in names}
        if self.collocated and workers:
            for name in names:
                if name.startswith("server"):
                    place[name] = workers[rank_of(name) % len(workers)]
        return place

    def with_(self, **changes: Any) -> Machine:
        """A copy with some fields changed.

        Parameters
        ----------
        **changes
            New values of fields.

        Returns
        -------
        Machine
        """
        return replace(self, **changes)

    def slow_motion(self, factor: float) -> Machine:
        """The same machine so many times as slow in everything: shares of time, ages and orders of events stay what they are.

        Parameters
        ----------
        factor : float
            > 0.

        Returns
        -------
        Machine

        Examples
        --------
        >>> print(Machine(compute="1ms", latency="20us", bandwidth="1GB/s").slow_motion(10))
        compute fixed(0.01) s, latency 0.2 ms, bandwidth 100 MB/s
        """
        if not is_number(factor) or not 0 < factor < math.inf:
            raise ValueError(f"slow motion {factor!r}; expected a finite number > 0, such as 10 for ten times as slow")
        return replace(self, compute=self.compute and self.compute.scaled(factor), update=self.update and self.update.scaled(factor),
                       latency=self.latency * factor, bandwidth=self.bandwidth / factor, reduction=self.reduction * factor)

    def for_workers(self, workers: int) -> Machine:
        """The same machine with a speed for each of so many workers, if it has any: further ones are 1.

        Parameters
        ----------
        workers : int

        Returns
        -------
        Machine
        """
        return replace(self, speeds=(*self.speeds, *[1.0] * workers)[:workers]) if self.speeds else self

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values; `from_json` reads it back."""
        out = asdict(self)
        for name in ("compute", "update"):
            law: Law | None = getattr(self, name)
            if law is not None:
                out[name] = {"family": law.family, "parameters": list(law.parameters)}
        out["bandwidth"] = None if math.isinf(self.bandwidth) else self.bandwidth
        out["speeds"] = list(self.speeds)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Machine:
        """Build a machine from `to_json`'s dictionary; raises ValueError on an unknown key or a value of another kind.

        Parameters
        ----------
        data : mapping
            What `to_json` gave.

        Returns
        -------
        Machine
        """
        known = {f.name for f in fields(cls)}
        if not isinstance(data, Mapping):
            raise ValueError(f"a machine is {data!r} of type {type(data).__name__}; expected an object with some of {sorted(known)}")
        unknown = set(data) - known
        if unknown:
            raise ValueError(f"unknown keys {sorted(unknown)} of a machine; expected some of {sorted(known)}")
        values = dict(data)
        for name in ("compute", "update"):
            if isinstance(law := values.get(name), Mapping):
                if set(law) != {"family", "parameters"} or not isinstance(law["parameters"], (list, tuple)):
                    raise ValueError(f"{name} {dict(law)}; expected a family and a list of its parameters, "
                                     "such as {'family': 'fixed', 'parameters': [0.02]}")
                try:
                    values[name] = Law(law["family"], tuple(law["parameters"]))
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        if values.get("bandwidth", 0) is None:
            values["bandwidth"] = math.inf
        return cls(**values)

    def __str__(self) -> str:
        parts = [f"compute {self.compute} s" if self.compute else "unpaced"]
        parts.append(f"latency {self.latency * 1e3:g} ms")
        parts.append("bandwidth unlimited" if math.isinf(self.bandwidth) else f"bandwidth {self.bandwidth / 1e6:g} MB/s")
        if self.update is not None:
            parts.append(f"update {self.update} s")
        if self.reduction:
            parts.append(f"reduction {self.reduction:g} s/byte")
        if self.speeds:
            parts.append(f"speeds {units.written(self.speeds)}")
        if self.collocated:
            parts.append("servers collocated")
        if self.cores is not None:
            parts.append(f"cores {self.cores}")
        if self.duplex != "full":
            parts.append(f"links {self.duplex} duplex")
        return ", ".join(parts)


@dataclass(frozen=True)
class Preset:
    """A named machine, where its numbers come from, and what its source does not say.

    Parameters
    ----------
    machine : Machine
    says : str
        The source, and what is assumed.
    timed : tuple of (str, int), optional
        The net and the batch whose gradient `machine.compute` is.
    """

    machine: Machine
    says: str
    timed: tuple[str, int] | None = None


#: the clusters of the studies that this library redoes; `--machine NAME`
PRESETS: dict[str, Preset] = {
    "das5-ethernet": Preset(
        Machine(compute=Law("fixed", (8.8,)), latency=1e-4, bandwidth=125e6),
        "Graur 2019: DAS-5, 1 Gbps Ethernet; ResNet-50, batch 32, 8.8 s a step on one node; latency assumed 0.1 ms",
        ("resnet50", 32)),
    "das5-infiniband": Preset(
        Machine(compute=Law("fixed", (8.8,)), latency=5e-6, bandwidth=7e9),
        "Graur 2019: DAS-5, FDR InfiniBand 56 Gbps; compute as das5-ethernet; latency assumed 5 us",
        ("resnet50", 32)),
    "ipdps21-10g": Preset(
        Machine(latency=5e-5, bandwidth=1.25e9),
        "Ko et al. 2021: 24 Titan V, 10 Gbps Ethernet; latency assumed 50 us; no compute time is given: add --compute"),
    "ipdps21-56g": Preset(
        Machine(latency=5e-6, bandwidth=7e9),
        "Ko et al. 2021: 24 Titan V, 56 Gbps InfiniBand; latency assumed 5 us; no compute time is given: add --compute"),
    "ipccc20-vm": Preset(
        Machine(latency=0.01, bandwidth=1.25e9, collocated=True, cores=1),
        "Jia et al. 2020: virtual machines of one host, servers beside workers whose gradients use all their processors; 10 ms is the first "
        "point of their latency sweep, the bandwidth is assumed; no compute time is given: add --compute"),
    "laptop": Preset(
        Machine(compute=Law("lognormal", (0.02, 0.3)), latency=5e-5, bandwidth=1e9),
        "processes of one computer: some jitter, 50 us and 1 GB/s between them"),
}


def load_machine(name: str) -> Machine:
    """A preset, or the machine of a JSON file (a machine, or what ``refsgd calibrate`` wrote).

    Parameters
    ----------
    name : str
        A key of `PRESETS`, or the path of a JSON file.

    Returns
    -------
    Machine

    Raises
    ------
    ValueError
        Neither: what was found, what was expected.
    """
    return load_timed(name)[0]


def load_timed(name: str) -> tuple[Machine, tuple[str, int] | None]:
    """A machine, with the net and the batch whose gradient its compute times are.

    Parameters
    ----------
    name : str
        As `load_machine` takes it.

    Returns
    -------
    Machine
    tuple of (str, int) or None
        Net and batch; None where preset or file do not say.

    Raises
    ------
    ValueError
        As `load_machine` does.
    """
    if name in PRESETS:
        return PRESETS[name].machine, PRESETS[name].timed
    try:
        data = json.loads(Path(name).read_text())
    except FileNotFoundError:
        raise ValueError(f"machine {name!r} is neither a file nor a preset; expected a file or one of {', '.join(PRESETS)}") from None
    except (OSError, ValueError, RecursionError) as error:  # also of what is no text
        raise ValueError(f"machine file {name}: {error}; expected JSON as `refsgd calibrate` writes it") from None
    if not isinstance(data, dict):
        raise ValueError(f"machine file {name} holds a {type(data).__name__}; expected an object")
    try:
        machine = Machine.from_json(data.get("machine", data))
    except ValueError as error:
        raise ValueError(f"machine file {name}: {error}") from None
    measured = data.get("net")
    return machine, (measured["net"], measured["batch"]) if isinstance(measured, dict) and {"net", "batch"} <= set(measured) else None


def rank_of(node: str) -> int:
    """The number at the end of a node's name, 0 if there is none.

    Parameters
    ----------
    node : str
        Its name, e.g. "worker3".

    Returns
    -------
    int
    """
    match = re.search(r"(\d+)$", node)
    return int(match[1]) if match else 0


class Draws:
    """The random streams of one program: the same seed gives the same draws in every runtime.

    A drawn duration is a pure function of (seed, node, program, kind, index); choices have a stream of their own.

    Parameters
    ----------
    machine : Machine
    seed : int
        The run's seed, >= 0.
    node : str
        Name of the node.
    program : int
        0 for the main program, 1, 2, ... for its responders.
    """

    BLOCK = 256  # durations are drawn in blocks of fixed length: the index alone decides which one is next

    def __init__(self, machine: Machine, seed: int, node: str, program: int = 0) -> None:
        self._machine, self._node = machine, node
        self._key = [seed, zlib.crc32(node.encode()), program]
        self._pending: dict[str, list[float]] = {}
        self._constant: dict[str, float] = {}  # kinds whose durations are not drawn
        self._streams: dict[str, np.random.Generator] = {}
        self._last: tuple[Any, Samples] | None = None  # probabilities of the last choice, and their cumulated sums

    def _stream(self, purpose: str) -> np.random.Generator:
        if purpose not in self._streams:
            key = [*self._key, zlib.crc32(purpose.encode())]
            self._streams[purpose] = np.random.default_rng(np.random.SeedSequence(key))
        return self._streams[purpose]

    def duration(self, kind: str, nbytes: int = 0) -> float:
        """Seconds of the next `Compute` of this kind (`nbytes`: of what is added, for a reduction).

        Parameters
        ----------
        kind : str
            Of the `Compute`.
        nbytes : int
            Bytes of all its arguments but the first, which price a reduction.

        Returns
        -------
        float
            Seconds.
        """
        pending = self._pending.get(kind)
        if pending:
            return pending.pop()
        if kind == "reduction":
            return self._machine.reduction * nbytes
        if kind not in self._constant:
            law = self._machine.law(self._node, kind)
            if law is not None and law.family != "fixed":
                drawn: list[float] = law.sample(self._stream(kind), self.BLOCK)[::-1].tolist()
                self._pending[kind] = drawn
                return drawn.pop()
            self._constant[kind] = law.parameters[0] if law is not None else 0.0
        return self._constant[kind]

    def durations(self, kind: str, count: int) -> Samples:
        """The first durations of a kind, as `duration` gives them to a fresh program.

        Parameters
        ----------
        kind : str
            Of the `Compute`; no reduction.
        count : int
            How many, >= 0.

        Returns
        -------
        ndarray, (count,) float64
            Seconds.
        """
        law = self._machine.law(self._node, kind)
        if law is None or law.family == "fixed":
            return np.full(count, law.parameters[0] if law is not None else 0.0)
        blocks = [law.sample(self._stream(kind), self.BLOCK) for _ in range(0, count, self.BLOCK)]
        return np.concatenate([np.empty(0), *blocks])[:count]

    def choose(self, options: Sequence[Any], p: Sequence[float] | None = None) -> Any:
        """One of the options, with probabilities `p` or uniformly.

        Parameters
        ----------
        options : sequence
        p : sequence of float, optional
            Their probabilities.

        Returns
        -------
        object
            One of `options`.
        """
        stream = self._stream("choose")
        if p is None:
            return options[int(stream.integers(len(options)))]
        if self._last is not None and self._last[0] is p and len(p) == len(options):
            return options[int(self._last[1].searchsorted(stream.random(), side="right"))]  # what Generator.choice does, in O(log n)
        chances = np.asarray(p, float)
        drawn = int(stream.choice(len(options), p=chances))
        if type(p) is tuple:  # which nobody can change
            cumulated = chances.cumsum()
            self._last = p, cumulated / cumulated[-1]
        return options[drawn]
