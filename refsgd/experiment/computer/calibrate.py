"""Calibration: fit a device to the gradients of this computer; measure update time, latency, bandwidth."""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refsgd.algorithms.sgd import SGD
from refsgd.cluster.devices import Device
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.effects import Array, Deployment, Node, Program, Recv, Send
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.fork import NO_FORK, can_fork
from refsgd.trace.schema import json_text

if TYPE_CHECKING:
    from refsgd.problems.nn.net import Net

NETS, BATCHES = ("tiny", "shallow"), (1, 2, 8, 32, 128)
#: share of the cores, and mean over median of equal gradients less 1, above which a measurement is in doubt
OTHERS, EXCESS = 0.1, 0.3
OFF = 0.15  #: residual above which the summary says that the device does not fit a net
ROUNDS, SECONDS = 8, 0.05  #: rounds in which each point is timed, and the length of each


class Point(NamedTuple):
    """A measurement: the gradient of one net with one batch."""

    net: str
    batch: int
    work: float  #: floating-point operations
    nbytes: int  #: of the parameters
    seconds: float  #: of a core, in the fastest round
    spread: float  #: standard deviation over mean in that round


class Ball(NamedTuple):
    """The message that two processes throw to each other."""

    x: Array


@dataclass(frozen=True)
class Calibration:
    """The measurements, and the machine that follows from them."""

    machine: Machine  #: the device, updates, the link over shared memory
    points: tuple[Point, ...]  #: the measurements behind the device
    transports: dict[str, tuple[float, float]]  #: "processes" and "tcp": latency [s], bandwidth [bytes/s]
    update: float  #: seconds of an update of all parameters of the first net
    describe: dict[str, Any]  #: nets, processor, cores
    others: float = 0.0  #: mean number of cores used by other processes
    excess: float = 0.0  #: mean over median of equal gradients, less 1; the median over the points

    @property
    def doubt(self) -> str:
        """Why the times may be wrong (a busy machine), and what to do; empty if they look sound."""
        cores = self.describe["cores"]
        found = []
        if self.others > OTHERS * cores:
            found.append(f"other processes used {self.others:.1f} of {cores} cores")
        if self.excess > EXCESS:
            found.append(f"the mean time of equal gradients exceeded their median by {self.excess:.0%}")
        if not found:
            return ""
        return (f"the machine was busy during the measurement: {' and '.join(found)}; expected an idle one: "
                "end other work, then calibrate again")

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
            "transports": {name: {"latency": a, "bandwidth": b} for name, (a, b) in self.transports.items()}})

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
        lines += [f"  {name}: latency {a * 1e6:.0f} us, bandwidth {b / 1e6:.0f} MB/s"
                  for name, (a, b) in self.transports.items()]
        return "\n".join([*lines, f"machine: {self.machine}"])


def throw(x: Array, times: int) -> Program[Array]:
    """Throw an array and wait for its return, `times` times; returns the seconds of each round, (times,)."""
    rounds = []
    for _ in range(times):
        x = x.copy()  # a transport may keep an array and carry it again for free
        started = time.perf_counter()  # a measurement may read the clock, an algorithm may not
        yield Send("worker1", Ball(x))
        yield Recv(Ball, src="worker1")
        rounds.append(time.perf_counter() - started)
    return np.array(rounds)


def catch(times: int) -> Program[None]:
    """Throw back a copy of each array."""
    for _ in range(times):
        _, (x,) = yield Recv(Ball, src="worker0")
        yield Send("worker0", Ball(x.copy()))


def _rounds(size: int, times: int, transport: str) -> float:
    """Median seconds of a round trip of `size` float32 numbers each way."""
    from refsgd.runtimes.processes import local as processes

    x = np.zeros(size, np.float32)

    def deploy() -> Deployment:
        return {"worker0": Node(throw(x, times), rank=0), "worker1": Node(catch(times), rank=1)}

    rounds = processes.run(deploy, Machine(), transport=transport).values["worker0"]
    return float(np.median(rounds[times // 4:]))


def link(small: float, large: float, nbytes: int) -> tuple[float, float]:
    """Latency [s] and bandwidth [bytes/s] from the round trips of an empty message and one of `nbytes`, which
    may take the same time on a busy machine."""
    return small / 2, 2 * nbytes / (large - min(small, large / 2))


def others() -> tuple[float, float]:
    """Now [s], and the processor seconds of all processes except this one and its ended children."""
    import psutil

    every, own = psutil.cpu_times(), psutil.Process().cpu_times()
    busy = ("user", "nice", "system", "irq", "softirq", "steal")
    return time.perf_counter(), sum(getattr(every, name, 0.0) for name in busy) - sum(own[:4])


def timed(act: Callable[[], Any], seconds: float) -> Array:
    """Core seconds of each of the calls made within about `seconds`, without waits for a busy core if the
    system tells."""
    clock = time.thread_time if time.get_clock_info("thread_time").resolution < 1e-5 else time.perf_counter
    act()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 3 or (time.perf_counter() < end and len(found) < 2000):
        started = clock()
        act()
        found.append(clock() - started)
    return np.array(found)


def gradient_of(net: str, batch: int) -> tuple[Net, Callable[[], Any]]:
    """A net, and a function that computes its gradient on a batch of random images."""
    from refsgd.problems.nn import nets

    built, rng = nets.build(net), np.random.default_rng(0)
    built.compile()
    x, images = built.init(0), rng.random((batch, *built.input_shape), np.float32)
    labels = rng.integers(0, built.classes, batch)
    return built, lambda: built.gradient(x, images, labels)


def measure(nets: Sequence[str], batches: Sequence[int], rounds: int = ROUNDS) -> tuple[list[Point], float]:
    """The points of some nets and batches, and the mean over the median of equal gradients, less 1.

    All are timed in turn for several rounds, and the fastest round of each counts: other work on the machine
    only adds time, and how much it adds varies from second to second.
    """
    acts = {(net, b): gradient_of(net, b) for net in nets for b in sorted(batches)}
    found: dict[tuple[str, int], list[Array]] = {key: [] for key in acts}
    for _ in range(rounds):
        for key, (_, act) in acts.items():
            found[key].append(timed(act, SECONDS))
    points, excess = [], []
    for (net, b), times in found.items():
        built, _ = acts[net, b]
        best = min(times, key=np.mean)
        mean = float(best.mean())
        points.append(Point(net, b, built.work(b), 4 * built.parameters, mean, float(best.std()) / mean))
        every = np.concatenate(times)
        excess.append(float(every.mean() / np.median(every)) - 1)
    return points, statistics.median(excess)


def fitted(points: Sequence[Point]) -> Device:
    """The device with the least sum of squared relative residuals and no negative part.

    It is linear in (overhead, 1 / memory, 1 / rate); relative residuals give every batch equal weight.  A
    single net cannot tell the time of its parameters from the overhead, which then has both.
    """
    from scipy.optimize import nnls

    several = len({p.nbytes for p in points}) > 1
    terms = np.array([[1.0, p.nbytes * several, p.work] for p in points])
    terms /= np.array([[p.seconds] for p in points])
    scale = np.maximum(terms.max(axis=0), np.finfo(float).tiny)
    overhead, per_byte, per_flop = nnls(terms / scale, np.ones(len(points)))[0] / scale
    if not per_flop:
        raise RunFailed("larger batches did not take longer, so no rate fits; expected batches further "
                        "apart, or an idle machine")
    noise = max(statistics.median(p.spread for p in points), 0.01)
    return Device(1 / float(per_flop), float(overhead), 1 / float(per_byte) if per_byte else math.inf,
                  Distribution("lognormal", (1.0, noise)))


def calibrate(nets: Sequence[str] = NETS, batches: Sequence[int] = BATCHES) -> Calibration:
    """Measure this machine in well under 30 s for the small nets."""
    import threadpoolctl

    if not can_fork():
        raise RunFailed(f"{NO_FORK}, and links are measured between processes: use WSL, or describe the "
                        "machine by --compute, --latency and --bandwidth")
    began, before = others()
    with threadpoolctl.threadpool_limits(1):
        points, excess = measure(nets, batches)
        x, sgd = np.zeros(points[0].nbytes // 4, np.float32), SGD(0.1, 0.9)
        v, g = sgd.start(x), np.ones_like(x)
        update = float(np.median(timed(lambda: sgd.step(x, v, g, 0), 0.5)))
    transports = {}
    for name, transport in (("processes", "shm"), ("tcp", "tcp")):
        small, large = _rounds(1, 400, transport), _rounds(1 << 20, 40, transport)
        transports[name] = link(small, large, 4 << 20)
    latency, bandwidth = transports["processes"]
    machine = Machine(compute=fitted(points), latency=latency, bandwidth=bandwidth,
                      update=Distribution("fixed", (update,)))
    now, after = others()
    describe = {"nets": list(nets), "processor": platform.processor() or platform.machine(),
                "cores": os.cpu_count()}
    return Calibration(machine, tuple(points), transports, update, describe,
                       max(0.0, (after - before) / (now - began)), excess)
