"""Prices of computing on each node of a machine, and the random streams of durations and choices of a program
there, which are reproducible in every runtime."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from refsgd.cluster.devices import Device, Load, Time, written
from refsgd.cluster.distributions import Distribution, Samples
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Deployment, Piece, payload_bytes, ranks


class Prices(NamedTuple):
    """The times of a gradient and of an update (None: free), and the seconds per byte of a reduction, of
    encoding or decoding, and of the arrays that an update reads."""

    gradient: Time | None
    update: Distribution | None
    reduction: float
    codec: float = 0.0
    updating: float = 0.0

    def of(self, kind: str) -> Time | None:
        """The time of a `Compute` of a kind that is not priced by its bytes."""
        return self.gradient if kind == "gradient" else self.update if kind == "update" else None


def each(machine: Machine) -> tuple[Time, ...]:
    """Times of gradients at speed 1: one for each worker, or one for all; empty if unpaced."""
    return machine.compute if isinstance(machine.compute, tuple) else (
        machine.compute,) if machine.compute is not None else ()


def own(machine: Machine, worker: int) -> Time | None:
    """The time of a worker's gradients at its speed."""
    mine = machine.compute[worker] if isinstance(machine.compute, tuple) else machine.compute
    return mine and mine.scaled(1 / machine.speed(worker))


def at(machine: Machine, role: str, rank: int) -> Prices:
    """The prices of one node."""
    if role == "worker":
        compute, speed = own(machine, rank), machine.speed(rank)
    else:
        compute = None if isinstance(machine.compute, tuple) else machine.compute
        speed = machine.server_speeds[rank] if rank < len(machine.server_speeds) else 1.0
    return Prices(compute, machine.update and machine.update.scaled(1 / speed), machine.reduction,
                  machine.codec, machine.updating / speed)


def of_nodes(machine: Machine, deployment: Deployment) -> dict[str, Prices]:
    """The prices of each node, by name."""
    rank = ranks(deployment)
    return {name: at(machine, node.role, rank[name]) for name, node in deployment.items()}


def loads(machine: Machine, deployment: Deployment) -> dict[str, Load | None]:
    """The load of each node, or None."""
    rank, found = ranks(deployment), {(load.role, load.rank): load for load in machine.loads}
    return {name: found.get((node.role, rank[name])) for name, node in deployment.items()}


def on_devices(machine: Machine) -> bool:
    """Whether gradients are priced by their work."""
    return any(isinstance(time, Device) for time in each(machine))


def paces(machine: Machine, workers: int) -> list[float]:
    """Relative speeds of the workers, from `speeds` and from rates or mean times."""
    times, speeds = each(machine), [machine.speed(i) for i in range(workers)]
    if len(times) < 2:
        return speeds
    if len({type(time) for time in times}) > 1:
        raise ValueError(f"compute {written(machine.compute)} mixes devices and times; expected one kind")
    known = [time.rate if isinstance(time, Device) else time.mean and 1 / time.mean for time in times]
    if 0 in known:
        raise ValueError(f"compute {written(machine.compute)} gives worker {known.index(0)} no finite speed; "
                         "expected a mean time > 0 for each worker")
    return [speed * pace for speed, pace in zip(speeds, known)]


def priced(machine: Machine, work: Sequence[float], nbytes: float) -> Machine:
    """The machine with distributions in place of devices, for the work of each worker's gradients and
    `nbytes` of parameters."""
    times = each(machine)
    if not on_devices(machine):
        return machine
    found = tuple(time.time(w, nbytes) if isinstance(time, Device) else time
                  for time, w in zip(times if isinstance(machine.compute, tuple) else times * len(work), work,
                                     strict=True))
    return replace(machine, compute=found[0] if len(set(found)) == 1 else found)


def mean_gradient(machine: Machine) -> float:
    """Mean seconds of a gradient at speed 1, over workers; 0 if unpaced or on devices."""
    known = [time.mean for time in each(machine) if isinstance(time, Distribution)]
    return 0.0 if on_devices(machine) or not known else sum(known) / len(known)


def left(machine: Machine, workers: Sequence[int], seconds: float) -> Machine:
    """The machine of the remaining workers, `seconds` later; their ranks are new."""
    now = {old: new for new, old in enumerate(workers)}
    loads = tuple(replace(load.later(seconds), rank=load.rank if load.role == "server" else now[load.rank])
                  for load in machine.loads if load.role == "server" or load.rank in now)
    compute = machine.compute
    if isinstance(compute, tuple):
        compute = tuple(compute[rank] for rank in workers)
    speeds = tuple(machine.speed(rank) for rank in workers) if machine.speeds else ()
    return replace(machine, speeds=speeds, compute=compute, loads=loads)


class Draws:
    """The random streams of one program: the same seed gives the same draws in every runtime.

    A duration is a pure function of (seed, node, program, kind, index), and on a device also of the work;
    choices have their own stream.  `prices` are those of the node.
    """

    BLOCK = 256  # durations are drawn in blocks of fixed length, so each depends on its index alone

    def __init__(self, prices: Prices, seed: int, node: str, program: int = 0) -> None:
        self.prices = prices
        self._key = [seed, zlib.crc32(node.encode()), program]
        self._pending: dict[str, list[float]] = {}
        self._constant: dict[str, float] = {}  # kinds whose durations are not drawn
        self._streams: dict[str, np.random.Generator] = {}
        self._last: tuple[Any, Samples] | None = None  # probabilities of the last choice, and their sums
        # the draw for a gradient that is computed in pieces, and whether its last piece had its time
        self._gradient, self._ended = 0.0, True

    def _stream(self, purpose: str) -> np.random.Generator:
        if purpose not in self._streams:
            key = [*self._key, zlib.crc32(purpose.encode())]
            self._streams[purpose] = np.random.default_rng(np.random.SeedSequence(key))
        return self._streams[purpose]

    def duration(self, kind: str, effect: Compute | None = None) -> float:
        """Seconds of the next `Compute` of this kind; a piece, a reduction, a device and an update that is
        priced by its bytes also need the effect."""
        if effect is not None and kind == "update" and self.prices.updating:
            return self._whole(kind) + self.prices.updating * payload_bytes(effect.args)
        if effect is not None and effect.piece is not None:
            device = self.prices.of(kind)
            mean = device.seconds(*work_of(effect)) if isinstance(device, Device) else 1.0
            return mean * effect.piece.share * self.draw(kind, effect.piece)
        return self._whole(kind, effect)

    def draw(self, kind: str, piece: Piece | None = None) -> float:
        """The next draw of a kind: seconds, or on a device the noise; one draw for all pieces of a
        gradient."""
        if piece is None:
            return self._whole(kind)
        if self._ended:
            self._gradient = self._whole(kind)
        self._ended = piece.last
        return self._gradient

    def _whole(self, kind: str, effect: Compute | None = None) -> float:
        if pending := self._pending.get(kind):
            return pending.pop()
        if (seconds := self._constant.get(kind)) is not None:
            return seconds
        if kind == "reduction":
            return self.prices.reduction * payload_bytes(effect.args[1:]) if effect is not None else 0.0
        if kind == "codec":  # of a gradient, or to decode of its length
            g = effect.args[1] if effect is not None and self.prices.codec else 0
            return self.prices.codec * (4.0 * g if isinstance(g, int) else float(g.nbytes))
        found = self.prices.of(kind)
        if isinstance(found, Device):
            mean = found.seconds(*work_of(effect)) if effect is not None else 1.0
            return mean * self._next("noise", kind, found.noise)
        if found is None or found.family == "fixed":
            self._constant[kind] = found.parameters[0] if found is not None else 0.0
            return self._constant[kind]
        return self._next(kind, kind, found)

    def _next(self, name: str, purpose: str, drawn: Distribution) -> float:
        """The next draw stored under `name`, from the stream of a purpose."""
        if drawn.family == "fixed":
            return drawn.parameters[0]
        if not self._pending.get(name):
            count = len(drawn.parameters) if drawn.family == "replayed" else self.BLOCK
            self._pending[name] = drawn.sample(self._stream(purpose), count)[::-1].tolist()
        return self._pending[name].pop()

    def choose(self, options: Sequence[Any], p: Sequence[float] | None = None) -> Any:
        """One of the options, with probabilities `p` or uniformly."""
        stream = self._stream("choose")
        if p is None:
            return options[int(stream.integers(len(options)))]
        if self._last is not None and self._last[0] is p and len(p) == len(options):
            # what Generator.choice does, in O(log n)
            return options[int(self._last[1].searchsorted(stream.random(), side="right"))]
        chances = np.asarray(p, float)
        drawn = int(stream.choice(len(options), p=chances))
        if type(p) is tuple:  # which nobody can change
            cumulated = chances.cumsum()
            self._last = p, cumulated / cumulated[-1]
        return options[drawn]


def work_of(effect: Compute) -> tuple[float, float]:
    """Floating-point operations and bytes of parameters of a gradient, which its function knows, or the
    object of which it is a method."""
    fn = effect.fn
    owner = fn if hasattr(fn, "work") else getattr(fn, "__self__", None)
    known: Callable[..., tuple[float, float]] | None = getattr(owner, "work", None)
    if known is None:
        name = getattr(effect.fn, "__qualname__", type(effect.fn).__name__)
        raise ValueError(f"a device prices a gradient by its work, which {name} does not state; expected the "
                         "gradient of a Problem with work=..., or a distribution of seconds in place of the "
                         "device")
    return known(*effect.args)
