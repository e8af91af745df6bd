"""Calibration: the machine that describes this computer as it is, from short runs of the real runtime."""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms import ALONE
from refsgd.algorithms.sgd import SGD
from refsgd.cluster import units
from refsgd.cluster.devices import Device
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.links import Overhead
from refsgd.cluster.machine import Machine
from refsgd.effects import Array, payload_bytes
from refsgd.experiment.computer import inside
from refsgd.experiment.computer.limits import usable_cores
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.fork import NO_FORK, can_fork
from refsgd.trace import Trace
from refsgd.trace.schema import json_text

NETS, BATCHES = ("tiny", "shallow"), (1, 2, 8, 32, 128)
#: share of the cores, and mean over median of equal gradients less 1, above which a measurement is in doubt
BUSY, EXCESS = 0.1, 0.3
OFF = 0.15  #: residual above which the summary says that the device does not fit a net
SECONDS, STEPS = 0.6, 2000  #: length of each run, in seconds and at most in steps
MOST = 4  #: workers of the runs that exchange messages
CROWD = (1, 2, 4, 8, 16)  #: numbers of processes for which crowding is measured, as far as there are cores


class Point(NamedTuple):
    """A measurement: the gradient of one net with one batch."""

    net: str
    batch: int
    work: float  #: floating-point operations
    nbytes: int  #: of the parameters
    seconds: float  #: from its start to the next one, without the update
    spread: float  #: standard deviation over mean


class Channel(NamedTuple):
    """What a transport does to a message."""

    latency: float  #: seconds from hand to hand
    overhead: Overhead | None  #: processor time at each end


@dataclass(frozen=True)
class Calibration:
    """The measurements, and the machine that follows from them."""

    machine: Machine  #: the device, updates, messages over shared memory
    points: tuple[Point, ...]  #: the measurements behind the device
    transports: dict[str, Channel]  #: by runtime: "processes", "tcp"
    describe: dict[str, Any]  #: nets, processor, cores
    others: float = 0.0  #: mean number of cores used by other processes
    excess: float = 0.0  #: mean over median of equal gradients, less 1; the median over the points
    runs: tuple[inside.Pace, ...] = ()  #: runs, and what the machine says of them

    @property
    def doubt(self) -> str:
        """Why the times may be wrong (a busy machine), and what to do; empty if they look sound."""
        cores = self.describe["cores"]
        found = []
        if self.others > BUSY * cores:
            found.append(f"other processes used {self.others:.1f} of {cores} cores")
        if self.excess > EXCESS:
            found.append(f"the mean time of equal gradients exceeded their median by {self.excess:.0%}")
        if not found:
            return ""
        return (f"the machine was busy during the measurement: {' and '.join(found)}; expected an idle one: "
                "end other work, then calibrate again")

    @property
    def update(self) -> float:
        """Seconds of an update of all parameters of the first net: it reads x, the state and a gradient."""
        fixed = self.machine.update.mean if self.machine.update else 0.0
        return fixed + 3 * self.points[0].nbytes * self.machine.updating

    @property
    def device(self) -> Device:
        """The fitted device."""
        assert isinstance(self.machine.compute, Device)
        return self.machine.compute

    def residual(self, point: Point) -> float:
        """The relative error of the device's time for a point."""
        return self.device.seconds(point.work, point.nbytes) / point.seconds - 1

    def to_json(self) -> str:
        """A machine file: ``refsgd ... --machine FILE`` reads it."""
        return json_text({
            "machine": self.machine.to_json(), "measured": self.describe, "update": self.update,
            "gradients": [{"net": p.net, "batch": p.batch, "seconds": p.seconds, "spread": p.spread,
                           "residual": self.residual(p)} for p in self.points],
            "transports": {name: {"latency": a, "overhead": b and b.to_json()}
                           for name, (a, b) in self.transports.items()},
            "runs": [{**r._asdict(), "error": r.error} for r in self.runs]})

    def summary(self) -> str:
        """A few lines for people."""
        nets = " and ".join(self.describe["nets"])
        lines = [f"{nets} on {self.describe['processor']}, one thread a process"]
        wide = max(len(p.net) for p in self.points)
        lines += [f"  gradient of {p.net:{wide}}, batch {p.batch:4}: {p.seconds * 1e3:8.3f} ms, spread "
                  f"{p.spread:5.1%}, {p.work / p.seconds / 1e9:5.1f} GFLOPS; the device's time is "
                  f"{self.residual(p):+.1%} off" for p in self.points]
        worst = max(self.points, key=lambda p: abs(self.residual(p)))
        if abs(self.residual(worst)) > OFF:
            lines.append(f"  one rate does not fit these nets: {worst.net} at batch {worst.batch} is "
                         f"{self.residual(worst):+.0%} off; calibrate with your own net alone (--net A)")
        lines.append(f"  update of all parameters of {self.points[0].net}: {self.update * 1e3:.3f} ms")
        lines += [f"  {name}: latency {units.as_time(float(f'{a:.2g}'))}, overhead at each end {b or 'none'}"
                  for name, (a, b) in self.transports.items()]
        lines += [f"  {r.algorithm:9} of {r.net}, batch {r.batch}, {r.workers} workers: "
                  f"{r.seconds * 1e3:.3f} ms an iteration; simulated {r.predicted * 1e3:.3f} ms, "
                  f"{r.error:+.1%}" + ", fitted" * r.fitted for r in self.runs]
        return "\n".join([*lines, f"machine: {self.machine}"])


def others() -> tuple[float, float]:
    """Now [s], and the processor seconds of all processes except this one and its ended children."""
    import psutil

    every, own = psutil.cpu_times(), psutil.Process().cpu_times()
    busy = ("user", "nice", "system", "irq", "softirq", "steal")
    return time.perf_counter(), sum(getattr(every, name, 0.0) for name in busy) - sum(own[:4])


def timed(act: Callable[[], Any], seconds: float) -> Array:
    """Core seconds of each call within about `seconds`, without waits for a core if the system tells them."""
    clock = time.thread_time if time.get_clock_info("thread_time").resolution < 1e-5 else time.perf_counter
    act()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 3 or (time.perf_counter() < end and len(found) < 2000):
        started = clock()
        act()
        found.append(clock() - started)
    return np.array(found)


@cache
def steps_of(net: str, batch: int) -> int:
    """How many steps a run has that takes about `SECONDS`."""
    problem = inside.problem_of(net, batch, 1)
    once = float(np.median(timed(lambda: problem.gradient(problem.x0, 0, 0), 0.05)))
    return int(min(max(SECONDS / once, 30), STEPS))


def run(algorithm: str, net: str, batch: int, workers: int, runtime: str = "processes",
        most: int = STEPS) -> Trace:
    """The trace of a run that takes about `SECONDS`."""
    return inside.run(algorithm, inside.problem_of(net, batch, workers), workers,
                      min(steps_of(net, batch), most), runtime)


def measure(nets: Sequence[str], batches: Sequence[int]) -> tuple[list[Point], Distribution, float]:
    """The points, the variation of a gradient's time, and the mean over the median of equal ones, less 1."""
    points, samples, excess = [], [], []
    for net in nets:
        for b in sorted(batches):
            problem = inside.problem_of(net, b, 1)
            times = inside.between_gradients(run(ALONE, net, b, 1))
            assert problem.work is not None
            mean = float(times.mean())
            points.append(Point(net, b, problem.work(0, 0), problem.x0.nbytes, mean,
                                float(times.std()) / mean))
            samples.append(times)
            excess.append(mean / float(np.median(times)) - 1)
    return points, inside.noise(samples), statistics.median(excess)


def fitted(points: Sequence[Point]) -> Device:
    """The device with the least sum of squared relative residuals and no negative part."""
    from scipy.optimize import nnls

    # it is linear in (overhead, 1 / memory, 1 / rate); relative residuals give every batch equal weight; one
    # net cannot tell the time of its parameters from the overhead, which then has both
    several = len({p.nbytes for p in points}) > 1
    terms = np.array([[1.0, p.nbytes * several, p.work] for p in points])
    terms /= np.array([[p.seconds] for p in points])
    scale = np.maximum(terms.max(axis=0), np.finfo(float).tiny)
    overhead, per_byte, per_flop = nnls(terms / scale, np.ones(len(points)))[0] / scale
    if not per_flop:
        raise RunFailed("larger batches did not take longer, so no rate fits; expected batches further "
                        "apart, or an idle machine")
    return Device(1 / float(per_flop), float(overhead), 1 / float(per_byte) if per_byte else math.inf)


def crowded(net: str, batch: int, cores: int) -> tuple[float, ...]:
    """The factors by which gradients take longer while one, two, ... processes compute."""
    return inside.crowding([
        (k, float(inside.between_gradients(run(inside.SILENT, net, batch, k)).mean()))
        for k in CROWD if k <= max(cores, 1)])


def updates(nets: Sequence[tuple[str, int]]) -> tuple[float, float]:
    """The seconds of an update, and those for each byte that it reads: x, state, one or two gradients."""
    found = []
    for net, batch in nets:
        for algorithm, workers in ((ALONE, 1), (inside.SERVED, 2)):
            trace = run(algorithm, net, batch, workers, most=300)
            x = inside.problem_of(net, batch, workers).x0
            found.append((trace, payload_bytes((x, SGD(0.01).start(x), *[x] * workers))))
    return inside.update_price(found)


def calibrate(nets: Sequence[str] = NETS, batches: Sequence[int] = BATCHES,
              runtime: str = "processes") -> Calibration:
    """Measure this machine in about half a minute for the small nets; its messages are those of a runtime."""
    import threadpoolctl

    if not can_fork():
        raise RunFailed(f"{NO_FORK}, and links are measured between processes: use WSL, or describe the "
                        "machine by --compute, --latency and --bandwidth")
    began, before = others()
    cores, batch = max(1, int(usable_cores())), sorted(batches)[len(batches) // 2]
    few = min(max(cores, 2), MOST)
    used = [*((net, batch) for net in nets), *[inside.SHORT] * (inside.SHORT[0] not in nets)]
    transports, runs = dict[str, Channel](), list[inside.Pace]()
    with threadpoolctl.threadpool_limits(1):
        points, varies, excess = measure(nets, batches)
        fixed, per_byte = updates(used)
        times, crowd = inside.between_gradients(run(ALONE, *inside.SHORT, 1)), crowded(nets[-1], batch, cores)
        short = Distribution("empirical", tuple(  # the time of the short net's gradient
            (np.array(inside.noise([times]).parameters) * times.mean()).tolist()))
        codec = inside.codec_price(run(inside.CODED, nets[-1], batch, few),
                                   inside.problem_of(nets[-1], batch, few).x0.size, crowd)
        found = machine = Machine(compute=replace(fitted(points), noise=varies), hosts="cyclic:1",
                                  cores=cores, crowding=crowd, updating=per_byte, codec=codec,
                                  update=Distribution("fixed", (fixed,)))
        for name in ("processes", "tcp"):
            traces = {(algorithm, *each): run(algorithm, *each, few, name)
                      for each in dict.fromkeys((used[0], used[-1]))
                      for algorithm in (*inside.FITTED, *(inside.CHECKED if name == runtime else ()))}
            measured = [inside.Pace(*each, few, inside.pace(trace), fitted=each[0] in inside.FITTED)
                        for each, trace in traces.items()]
            here = inside.with_messages(machine, list(traces.values()),
                                        [p for p in measured if p.fitted], short)
            transports[name] = Channel(here.inside.latency if here.inside else 0.0, here.overhead)
            if name == runtime:
                found = here
                runs = [p._replace(predicted=inside.predicted(here, *p[:4]))
                        for p in measured if p.net in nets]
    now, after = others()
    describe = {"nets": list(nets), "processor": platform.processor() or platform.machine(),
                "cores": os.cpu_count()}
    return Calibration(found, tuple(points), transports, describe,
                       max(0.0, (after - before) / (now - began)), excess, tuple(runs))

