"""Prices of computing on each node of a machine: its distribution or device, its speed, its load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from refsgd.cluster.devices import Device, Load, Time, written
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.effects import Deployment, ranks


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
    times = each(machine)
    if len({type(time) for time in times}) > 1:
        raise ValueError(f"compute {written(machine.compute)} mixes devices and times; expected one kind")
    known = [time.rate if isinstance(time, Device) else 1 / time.mean for time in times]
    return [machine.speed(i) * (known[i] if len(times) > 1 else 1.0) for i in range(workers)]


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
