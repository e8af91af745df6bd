"""Limits of this computer and of its control groups, which containers and batch systems set: can its cores
and memory sustain a run's processes, pace and length?"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from refsgd.cluster.units import counted
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
#: where the system shows control groups, and to which this process belongs
ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's control groups, version 1 or 2, for a controller, and around them."""
    # in a container the path may be the host's, which is not visible: the root is the container's group
    try:
        lines = OWN.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for root in [ROOT / controller] if controllers else [ROOT, ROOT / "unified"]:
            inner = root / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root))


def _numbers(folder: Path, file: str) -> list[float]:
    """The numbers in a file, "max" being infinite; none if there is no such file."""
    try:
        words = (folder / file).read_text(encoding="utf-8").split()
        return [math.inf if word == "max" else float(word) for word in words]
    except (OSError, ValueError):
        return []


def allowed_cores() -> float:
    """The cores that all processes of the tightest group may use together; infinite without a limit."""
    found = [math.inf]
    for folder in _groups("cpu"):
        quota = _numbers(folder, "cpu.max") or (
            _numbers(folder, "cpu.cfs_quota_us") + _numbers(folder, "cpu.cfs_period_us"))
        if len(quota) == 2 and quota[0] > 0 and quota[1] > 0:
            found.append(quota[0] / quota[1])
    return min(found)


def allowed_memory() -> float:
    """Bytes that the tightest group may still take, files that can be read again not counted."""
    found = [math.inf]
    for folder in _groups("memory"):
        for most, now, cached in (("memory.max", "memory.current", "inactive_file"),
                                  ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")):
            limit, used = _numbers(folder, most), _numbers(folder, now)
            if limit and used:
                found.append(limit[0] - used[0])
                with suppress(OSError):
                    lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
                    found[-1] += next((float(line.split()[1]) for line in lines
                                       if line.startswith(f"{cached} ")), 0.0)
    return max(min(found), 0.0)


def free_tasks() -> float:
    """Processes and threads that the tightest group may still start."""
    found = [math.inf]
    for folder in _groups("pids"):
        limit, now = _numbers(folder, "pids.max"), _numbers(folder, "pids.current")
        if limit and now:
            found.append(limit[0] - now[0])
    return max(min(found), 0.0)


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
    return min(count, allowed_cores())


def free_memory() -> float:
    """Bytes of memory that this process and its children may still take."""
    import psutil

    return min(float(psutil.virtual_memory().available), allowed_memory())


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
    """Refuse more processes than a launcher has started, or than this computer can start soon and hold."""
    needed = len(set(experiment.network.host.values()))
    if runtime in LAUNCHERS:
        from refsgd.runtimes.processes import mpi

        if needed > (size := mpi.world(runtime).size):
            raise Usage(f"{experiment.name} with {counted(experiment.workers, 'worker')} needs {needed} "
                        f"ranks and {mpi.too_few(runtime, size, needed)}, or another --workers")
    else:
        cores, free, tasks = usable_cores(), free_memory(), free_tasks()
        most = int(min(PROCESSES_PER_CORE * cores, free // PROCESS_BYTES[runtime], tasks // TASKS))
        if needed > most:
            room = f" and room for {tasks:.0f} processes and threads" if tasks < math.inf else ""
            raise Usage(f"{needed} processes on {cores:g} cores, {free / 1e9:.2g} GB of free memory{room}; "
                        f"expected at most {most} here: use fewer workers, or the simulator")


def check_pace(experiment: Experiment) -> None:
    """Refuse a pace that needs more cores than there are; warn if it nearly does, and of short times."""
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
