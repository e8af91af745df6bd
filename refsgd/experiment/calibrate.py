"""Calibration: gradient times by batch, update time, latency and bandwidth of this computer."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms.sgd import SGD
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.effects import Array, Deployment, Node, Program, Recv, Send
from refsgd.runtimes.fork import NO_FORK, can_fork
from refsgd.runtimes.simulator import RunFailed

BATCHES = (1, 4, 16, 64, 128)
#: share of the cores, and mean over median of equal gradients less 1, above which a measurement is in doubt
OTHERS, EXCESS = 0.1, 0.3


class Ball(NamedTuple):
    """What is thrown between two processes."""

    x: Array


@dataclass(frozen=True)
class Calibration:
    """The measurements, and the machine that follows from them."""

    machine: Machine  #: gradients at the batch asked for, updates, the link over shared memory
    gradients: dict[int, tuple[float, float]]  #: by batch: mean and standard deviation of a gradient [s]
    transports: dict[str, tuple[float, float]]  #: "processes" and "tcp": latency [s], bandwidth [bytes/s]
    update: float  #: of all parameters [s]
    describe: dict[str, Any]  #: net, batch, processor
    others: float = 0.0  #: mean number of cores that other processes kept busy meanwhile
    excess: float = 0.0  #: mean over median of equal gradients, less 1; the median over the batches

    @property
    def doubt(self) -> str:
        """Why the times may not be those of a quiet machine, and what to do; empty where nothing
        speaks against them."""
        cores = self.describe["cores"]
        found = []
        if self.others > OTHERS * cores:
            found.append(f"other processes used {self.others:.1f} of {cores} cores")
        if self.excess > EXCESS:
            found.append(f"equal gradients took {self.excess:.0%} longer in the mean than in the median")
        if not found:
            return ""
        return (f"the machine was busy while it was measured: {' and '.join(found)}; expected a quiet one: "
                "end other work, then calibrate again")

    def to_json(self) -> str:
        """A machine file: ``refsgd ... --machine FILE`` reads it."""
        return json.dumps({
            "machine": self.machine.to_json(), "net": self.describe, "update": self.update,
            "gradients": {str(b): {"mean": m, "sd": s} for b, (m, s) in self.gradients.items()},
            "transports": {name: {"latency": a, "bandwidth": b} for name, (a, b) in self.transports.items()}},
            indent=1)

    def summary(self) -> str:
        """A few lines for people."""
        lines = [f"{self.describe['net']} on {self.describe['processor']}, one thread a process"]
        lines += [f"  gradient, batch {b:4}: {m * 1e3:8.3f} ms, spread {s / m:5.1%}  ({b / m:.0f} images/s)"
                  for b, (m, s) in self.gradients.items()]
        lines.append(f"  update of all parameters: {self.update * 1e3:.3f} ms")
        lines += [f"  {name}: latency {a * 1e6:.0f} us, bandwidth {b / 1e6:.0f} MB/s"
                  for name, (a, b) in self.transports.items()]
        return "\n".join([*lines, f"machine: {self.machine}"])


def throw(x: Array, times: int) -> Program[Array]:
    """Throw an array and wait for it to come back, `times` times; returns the seconds of each round,
    shape (times,)."""
    rounds = []
    for _ in range(times):
        x = x.copy()  # a transport may keep an array that it has carried, and carry it again for nothing
        started = time.perf_counter()  # a measuring program may read the clock: it is no algorithm
        yield Send("worker1", Ball(x))
        yield Recv(Ball, src="worker1")
        rounds.append(time.perf_counter() - started)
    return np.array(rounds)


def catch(times: int) -> Program[None]:
    """Throw back a copy of what comes."""
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
    """Latency [s] and bandwidth [bytes/s] from the round trips of an empty message and of `nbytes`; on a
    busy machine the two may come out alike."""
    return small / 2, 2 * nbytes / (large - min(small, large / 2))


class Others:
    """Cores that other processes keep busy from now on."""

    def __init__(self) -> None:
        self._began = self._clocks()

    @staticmethod
    def _clocks() -> tuple[float, float]:
        """Now [s], and the seconds of computing of all processes but this one and its children that have
        ended."""
        import psutil

        every, own = psutil.cpu_times(), psutil.Process().cpu_times()
        busy = ("user", "nice", "system", "irq", "softirq", "steal")
        return time.perf_counter(), sum(getattr(every, name, 0.0) for name in busy) - sum(own[:4])

    def cores(self) -> float:
        """Their mean number since this object was made, >= 0."""
        (began, before), (now, after) = self._began, self._clocks()
        return max(0.0, (after - before) / (now - began))


def _timed(act: Callable[[], Any], seconds: float) -> Array:
    """Seconds of a core that repeated calls took, for about so many seconds: without waits for a core
    that others use, where the system tells."""
    clock = time.thread_time if time.get_clock_info("thread_time").resolution < 1e-5 else time.perf_counter
    act()
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 8 or (time.perf_counter() < end and len(found) < 2000):
        started = clock()
        act()
        found.append(clock() - started)
    return np.array(found)


def calibrate(net: str = "tiny", batch: int = 16, batches: Sequence[int] = BATCHES) -> Calibration:
    """Measure this machine in well under 30 s for the small nets."""
    import threadpoolctl

    from refsgd.problems.nn import nets

    if not can_fork():
        raise RunFailed(f"{NO_FORK}, and links are measured between processes: use WSL, or give the machine "
                        "as --compute, --latency and --bandwidth")
    built = nets.build(net)
    built.compile()
    others = Others()
    rng, x = np.random.default_rng(0), built.init(0)
    gradients, excess = {}, []
    with threadpoolctl.threadpool_limits(1):
        for b in sorted({*batches, batch}):
            images = rng.random((b, *built.input_shape), np.float32)
            labels = rng.integers(0, built.classes, b)
            found = _timed(lambda images=images, labels=labels: built.gradient(x, images, labels), 1.0)  # type: ignore[misc]
            gradients[b] = float(found.mean()), float(found.std())
            excess.append(float(found.mean() / np.median(found)) - 1)
        g, sgd = np.ones_like(x), SGD(0.1, 0.9)
        v = sgd.start(x)
        update = float(np.median(_timed(lambda: sgd.step(x, v, g, 0), 0.5)))
    transports = {}
    for name, transport in (("processes", "shm"), ("tcp", "tcp")):
        small, large = _rounds(1, 400, transport), _rounds(1 << 20, 40, transport)
        transports[name] = link(small, large, 4 << 20)
    mean, sd = gradients[batch]
    latency, bandwidth = transports["processes"]
    machine = Machine(compute=Distribution("lognormal", (mean, max(sd / mean, 0.01))), latency=latency,
                      bandwidth=bandwidth, update=Distribution("fixed", (update,)))
    describe = {"net": net, "batch": batch, "parameters": built.parameters,
                "processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    return Calibration(machine, gradients, transports, update, describe, others.cores(),
                       statistics.median(excess))
