"""Limits of this computer: can its cores and memory sustain a run's processes, pace and length?"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress

from refsgd.cluster.units import counted
from refsgd.experiment.computer import container
from refsgd.experiment.evaluation import evaluations_of
from refsgd.experiment.prepare import Experiment, Say, Usage
from refsgd.problems import Problem
from refsgd.runtimes.fork import LAUNCHERS

#: starting a process takes about 0.1 s of a core
PROCESSES_PER_CORE, PROCESS_BYTES = 128, {"processes": 8 << 20, "tcp": 16 << 20}
TASKS = 4  #: a process and its threads
#: bytes that the libraries need on two cores, by the name of the limit
MEMORY = {"AS": ("address space", 800_000_000, "v"), "DATA": ("data", 300_000_000, "d")}
#: seconds of the effects of one simulated iteration; seconds from which a run's length is announced
STEP, LONG = 2e-4, 30.0
#: share of a core's time that real computing may take; shortest compute time that can be paced well [s]
BUSY, SHORT = 0.8, 0.002


def check_address_space() -> None:
    """Refuse a limit of memory under which OpenBLAS may ask forever for what it does not get."""
    with suppress(ImportError):
        import resource

        for kind, (what, least, option) in MEMORY.items():
            limit = resource.getrlimit(getattr(resource, f"RLIMIT_{kind}"))[0]
            if limit != resource.RLIM_INFINITY and limit < least:
                raise Usage(f"the {what} of this process is limited to {limit / 1e9:.2g} GB; expected at "
                            f"least {least / 1e9:.2g} GB, which numpy, scipy and numba need: ulimit "
                            f"-{option} unlimited")


def usable_cores() -> float:
    """The number of cores that this process may use; a container may have a part of one."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(count, container.cores())


def free_memory() -> float:
    """Bytes of memory that this process and its children may still take."""
    import psutil

    return min(float(psutil.virtual_memory().available), container.free_memory())


def gradient_seconds(problem: Problem) -> tuple[float, float]:
    """Mean and least seconds of a gradient of a mean batch on one core of this computer."""
    problem.gradient(problem.x0, 0, 0)  # may compile
    found: list[float] = []
    while len(found) < 5 and sum(found) < 0.5:
        started = time.perf_counter()
        problem.gradient(problem.x0, 0, len(found))
        found.append(time.perf_counter() - started)
    said = problem.describe  # these gradients were worker 0's
    mean = said["batch"] / max(said["batches"][0], 1) if "batches" in said else 1.0
    return sum(found) / len(found) * mean, min(found) * mean


def check_processes(experiment: Experiment, runtime: str) -> None:
    """Refuse more processes than a launcher has started, or this computer can start in half a minute."""
    needed = len(set(experiment.network.host.values()))
    if runtime in LAUNCHERS:
        from refsgd.runtimes.processes import mpi

        if needed > (size := mpi.world(runtime).size):
            raise Usage(f"{experiment.name} with {counted(experiment.workers, 'worker')} needs {needed} "
                        f"ranks and {mpi.too_few(runtime, size, needed)}, or another --workers")
    else:
        cores, free, tasks = usable_cores(), free_memory(), container.free_tasks()
        most = int(min(PROCESSES_PER_CORE * cores, free // PROCESS_BYTES[runtime], tasks // TASKS))
        if needed > most:
            room = f" and room for {tasks:.0f} processes and threads" if tasks < math.inf else ""
            raise Usage(f"{needed} processes on {cores:g} cores, {free / 1e9:.2g} GB of free memory{room}; "
                        f"expected at most {most} here: use fewer workers, or the simulator")


def check_pace(experiment: Experiment) -> None:
    """Refuse a pace for which gradients need more cores than there are; warn of one that comes close."""
    mean = experiment.seconds
    if not experiment.steps or not mean:
        return
    usual, least = gradient_seconds(experiment.problem)
    cores = usable_cores()
    room = cores * mean / experiment.workers  # seconds available for each real gradient
    slower = math.ceil(max(least / (BUSY * room), SHORT / mean))
    found = (f"a gradient takes {usual * 1e3:.3g} ms here with {counted(experiment.workers, 'worker')} on "
             f"{cores:g} core{'s' * (cores != 1)}; the machine asks for {mean * 1e3:.3g} ms, which leaves "
             f"room for {BUSY * room * 1e3:.3g} ms of real work")
    if least > room:
        raise Usage(f"{found}: use --slow-motion {slower} (everything {slower} times slower), the simulator, "
                    "or no pacing (--compute none)")
    if usual > BUSY * room:
        warnings.warn(f"{found}: use a longer --compute, fewer workers or the simulator", stacklevel=4)
    if mean < SHORT:
        warnings.warn(f"mean compute time {mean * 1e3:.3g} ms: below 2 ms, real processes are late by "
                      f"a few percent; use --slow-motion {slower} or the simulator", stacklevel=4)


def announce(experiments: Sequence[Experiment], runtimes: Sequence[str], say: Say) -> None:
    """Announce how long runs of one problem will take (gradients, pace, evaluation), if that is long."""
    problem = experiments[0].problem
    real, _ = gradient_seconds(problem)
    evaluating = 0.0
    if images := problem.describe.get("evaluated"):  # forward passes, a third of a gradient
        evaluating = (2 + evaluations_of(problem)) * images * real / (3 * problem.describe["batch"])
    total = 0.0
    for e in experiments:
        machine, gradients = e.machine, e.workers * real
        iteration = gradients / min(usable_cores(), e.workers)
        if machine.compute:
            transfers = 2 * (machine.latency + 4 * problem.x0.size / machine.bandwidth)
            iteration = max(iteration, e.seconds / min(machine.speeds, default=1.0) + transfers)
        for runtime in runtimes:
            virtual = gradients + e.workers * STEP
            total += evaluating + e.gradients * (virtual if runtime == "simulator" else iteration)
    if total > LONG:
        about = f"{total:.0f} s" if total < 120 else f"{total / 60:.0f} min"
        what = f"{len(experiments)} runs" if len(experiments) > 1 else "the run"
        say(f"{what} will take about {about}: a gradient takes {real * 1e3:.3g} ms here")
