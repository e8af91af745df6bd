"""The programs as OS processes of this computer: fork, start together, watch, end together.

A process drives the nodes of one host.  Only the launcher decides which process failed first and when the run
is over; a process that loses a connection waits for that decision.
"""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial

import threadpoolctl

from refsgd.cluster.machine import Machine
from refsgd.cluster.prices import mean_gradient
from refsgd.effects import Deployment, Factory, roles
from refsgd.runtimes.errors import Deadlock, RunFailed
from refsgd.runtimes.faults import POLICIES, Fault, check
from refsgd.runtimes.fork import NO_FORK, can_fork, own_children
from refsgd.runtimes.processes import cells
from refsgd.runtimes.processes.driver import Beginning
from refsgd.runtimes.processes.launcher import Launch, MakeTransport, OnStart
from refsgd.runtimes.processes.reports import ChildTraceback
from refsgd.runtimes.processes.status import Standing
from refsgd.runtimes.transports.shared_memory import Segment
from refsgd.runtimes.transports.tcp import Listeners
from refsgd.trace import Event, Run

SHORT = 0.002  # mean durations below this cannot be paced well
TRANSPORTS: dict[str, MakeTransport] = {"shm": Segment, "tcp": Listeners}


def run(factory: Factory | Deployment, machine: Machine | None = None, seed: int = 0, *,
        transport: str = "shm",
        deadline: float | None = None, on_start: OnStart | None = None,
        observe: int = 64, on_death: str = "stop", faults: Iterable[Fault] = (),
        journal: Callable[[Event], None] | None = None, beginning: Beginning | None = None,
        largest: int | None = None) -> Run:
    """Run a deployment as OS processes of this machine, paced to `machine`."""
    if not can_fork():
        raise RunFailed(f"{NO_FORK}: use WSL, or --runtime simulator")
    if multiprocessing.current_process().daemon:
        raise RunFailed("a daemon of multiprocessing, as the processes of a Pool are, may start no processes;"
                        " expected concurrent.futures.ProcessPoolExecutor, or the simulator")
    if transport not in TRANSPORTS:
        raise ValueError(f"transport {transport!r}; expected one of {', '.join(TRANSPORTS)}")
    if on_death not in POLICIES:
        raise ValueError(f"on_death {on_death!r}; expected one of {', '.join(POLICIES)}")
    machine = machine or Machine()
    deployment = beginning.deployment if beginning is not None else factory() if callable(
        factory) else factory
    faults = list(faults)
    check(faults, roles(deployment), machine.place(deployment))
    _check(deployment, machine)
    cells.share(deployment, beginning.tickets if beginning is not None else 0)
    make = TRANSPORTS[transport]
    if transport == "tcp" and largest is not None:
        make = partial(Listeners, largest=largest)
    launch = Launch(deployment, machine, seed, make, deadline, observe, on_death, faults, beginning,
                    journal)
    with own_children():
        try:
            with threadpoolctl.threadpool_limits(1):  # inherited, because finding the libraries takes a while
                launch.start()
            launch.watch(on_start)
        finally:
            launch.end()
    return launch.result()


def _check(deployment: Deployment, machine: Machine) -> None:
    """Refuse a deployment that cannot be forked; warn of one that cannot be paced."""
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    if parallel is not None and getattr(parallel, "_is_initialized", False):
        raise RunFailed("a numba parallel region has run in this process, and its threads do not survive a "
                        "fork; use nogil=True kernels instead of parallel=True")
    mean = mean_gradient(machine)
    if 0 < mean < SHORT:
        warnings.warn(f"mean compute time {mean * 1e3:g} ms; pacing is accurate from 2 ms", RuntimeWarning,
                      stacklevel=3)
    if len(deployment) > 0xFFFF:
        raise ValueError(f"{len(deployment)} nodes; expected at most 65535")


__all__ = ["ChildTraceback", "Deadlock", "RunFailed", "Standing", "run"]
