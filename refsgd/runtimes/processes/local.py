"""The same programs as OS processes of this machine: fork, start together, watch, end together.

A process drives the nodes of one host.  The launcher alone decides who failed first and when the run is over;
a process that loses a connection waits for its verdict.
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import threadpoolctl

from refsgd.cluster.machine import Machine
from refsgd.effects import Deployment, Factory, roles
from refsgd.runtimes.faults import POLICIES, Fault, check
from refsgd.runtimes.fork import NO_FORK, can_fork
from refsgd.runtimes.processes import cells, logs
from refsgd.runtimes.processes.beginning import Beginning
from refsgd.runtimes.processes.driver import Aborted, Driver
from refsgd.runtimes.processes.launcher import LENGTH, Launch, MakeNetwork
from refsgd.runtimes.processes.reports import ChildTraceback, in_words, report
from refsgd.runtimes.processes.status import BEAT, COMMAND, HALT, READY, START, Standing
from refsgd.runtimes.processes.system import keep_memory, prctl, settle
from refsgd.runtimes.simulator import Deadlock, RunFailed
from refsgd.runtimes.transports.shared_memory import Segment
from refsgd.runtimes.transports.tcp import Listeners
from refsgd.runtimes.transports.transport import Transport
from refsgd.trace import Event, Run

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
SHORT = 0.002  # mean durations below this cannot be paced well
NETWORKS: dict[str, MakeNetwork] = {"shm": Segment, "tcp": Listeners}


def run(factory: Factory | Deployment, machine: Machine | None = None, seed: int = 0, *,
        transport: str = "shm",
        deadline: float | None = None, on_start: Callable[[dict[str, int]], None] | None = None,
        observe: int = 64, records: str = "auto", on_death: str = "stop", faults: Iterable[Fault] = (),
        journal: Callable[[Event], None] | None = None, beginning: Beginning | None = None,
        largest: int | None = None) -> Run:
    """Run a deployment as OS processes of this machine, paced to `machine`."""
    if not can_fork():
        raise RunFailed(f"{NO_FORK}: use WSL, or --runtime simulator")
    if transport not in NETWORKS:
        raise ValueError(f"transport {transport!r}; expected one of {', '.join(NETWORKS)}")
    if records not in ("auto", "queue", "pipe"):
        raise ValueError(f"records {records!r}; expected auto, queue or pipe")
    if on_death not in POLICIES:
        raise ValueError(f"on_death {on_death!r}; expected one of {', '.join(POLICIES)}")
    machine = machine or Machine()
    deployment = beginning.deployment if beginning is not None else factory() if callable(
        factory) else factory
    faults = list(faults)
    check(faults, roles(deployment))
    if records == "auto":
        usual = mp.get_start_method(allow_none=True) or mp.get_all_start_methods()[0]
        records = "queue" if usual == "fork" and not faults else "pipe"
    _check(deployment, machine)
    cells.share(deployment, beginning.tickets if beginning is not None else 0)
    with logs.shared_handlers() if records == "queue" else nullcontext():
        make = NETWORKS[transport]
        if transport == "tcp" and largest is not None:
            make = partial(Listeners, largest=largest)
        launch = Launch(child, deployment, machine, seed, make, deadline, observe, records, on_death, faults,
                        beginning)
        launch.journal = journal
        try:
            with threadpoolctl.threadpool_limits(1):  # inherited: looking for the libraries takes a while
                launch.start()
            if on_start is not None:
                on_start({node: launch.pids[process] for node, process in launch.process_of.items()
                          if process in launch.pids})
            launch.watch()
        finally:
            launch.end()
    return launch.result()


def _check(deployment: Deployment, machine: Machine) -> None:
    """Refuse what cannot be forked; warn of what cannot be paced."""
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    if parallel is not None and getattr(parallel, "_is_initialized", False):
        raise RunFailed(
            "a numba parallel region has run in this process, and its threads do not survive a fork; "
                        "use nogil=True kernels instead of parallel=True")
    if machine.compute is not None and 0 < machine.compute.mean < SHORT:
        warnings.warn(
            f"mean compute time {machine.compute.mean * 1e3:g} ms; processes are paced well from 2 ms on",
                      RuntimeWarning, stacklevel=3)
    if len(deployment) > 0xFFFF:
        raise ValueError(f"{len(deployment)} nodes; expected at most 65535")


# -- in the child ------------------------------------------------------------------------------------------


def child(launch: Launch, process: str, out: int, parent: int) -> None:
    """The life of one process; what it gives back goes through the pipe `out` to its parent only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher decides
    # also where the parent ignores them: it runs in the background
    for end in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, signal.SIG_DFL)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before prctl
        os._exit(1)
    prctl(PR_SET_TIMERSLACK, 1000)  # ns; the default of 50 us is that much lateness at every timer
    os.close(launch.death[1])  # or our own copy would keep the pipe open
    for fd in launch.readers:
        os.close(fd)
    keep_memory()
    if not launch.machine.paced:
        settle(launch.processes.index(process), len(launch.processes))
    gc.freeze()  # else the first collection touches, and so copies, every page of the parent
    if launch.records == "pipe":
        logs.to_parent(lambda record: _tell(out, pickle.dumps(("record", record))))
    transport: Transport | None = None
    code = 0
    try:
        transport = launch.network.connect(process)
        driver = Driver(process, launch.deployment, launch.machine, launch.seed, transport, launch.status,
                        launch.wake_up.wake, [launch.death[0]], launch.observe, launch.faults, launch.keep)
        driver.journal = launch.journal
        if launch.beginning is not None:
            driver.continue_from(launch.beginning)
        logs.stamp_records(driver.standing)
        driver.run(_wait_for_start(launch, process, transport) - driver.now)
        kept = {node: list(x) for node, x in driver.kept.items()} if launch.status.words[
            COMMAND] == HALT else {}
        data = _pickled(("ok", report(driver), kept))
    except Aborted:
        data, code = b"", 1
    except BaseException as error:
        data, code = pickle.dumps(("failed", time.monotonic(), *in_words(error))), 1
    try:
        _tell(out, data)
    except BrokenPipeError:
        code = 1
    os.close(out)
    if transport is not None:
        transport.close()
    if code:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        logs.flush()
        os._exit(code)  # do not wait for helper threads that may compute for long


def _tell(pipe: int, data: bytes) -> None:
    """Write one message to the parent: its length, then itself."""
    view = memoryview(LENGTH.pack(len(data)) + data if data else b"")
    while view:
        view = view[os.write(pipe, view) :]


def _wait_for_start(launch: Launch, process: str, transport: Transport) -> float:
    """Say that this process is ready; when all start, in seconds of the monotonic clock."""
    board, words = launch.status.words, launch.status.of(process)
    words[BEAT] = time.monotonic_ns()
    words[READY] = 1
    launch.wake_up.wake()
    while not board[START]:
        if board[COMMAND] or transport.wait(0.25, [launch.death[0]]):
            raise Aborted
        words[BEAT] = time.monotonic_ns()
    began = board[START] / 1e9
    time.sleep(max(0.0, began - time.monotonic()))
    return began


def _pickled(message: Any) -> bytes:
    try:
        return pickle.dumps(message, protocol=5)
    except Exception as error:
        for node, value in message[1][0].items():
            try:
                pickle.dumps(value)
            except Exception:
                raise TypeError(f"the value that {node} returned cannot be pickled ({error})") from None
        raise


__all__ = ["ChildTraceback", "Deadlock", "RunFailed", "Standing", "run"]
