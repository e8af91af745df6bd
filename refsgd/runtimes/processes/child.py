"""One OS process of a run: connects, starts with the others, drives its programs, reports its end."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from refsgd.runtimes.processes.driver import Aborted, Driver
from refsgd.runtimes.processes.logs import Stamp
from refsgd.runtimes.processes.reports import Failure, Outbox, Report, in_crash_log
from refsgd.runtimes.processes.status import HALT
from refsgd.runtimes.processes.system import keep_memory, prctl, settle
from refsgd.runtimes.transports.transport import Transport

if TYPE_CHECKING:
    from refsgd.runtimes.processes.local import Launch

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29


def live(launch: Launch, process: str, parent: int) -> None:
    """The life of one process, which ends with a `Report` or a `Failure` in its outbox."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher decides
    # even if the parent ignores or blocks them, as in the background
    for other in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(other, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a lost connection is another's death
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before prctl
        os._exit(1)
    prctl(PR_SET_TIMERSLACK, 1000)  # ns; by default every timer is 50 us late
    os.close(launch.death[1])  # otherwise this copy would keep the pipe open
    keep_memory()
    if not launch.machine.paced:
        settle(launch.processes.index(process), len(launch.processes))
    gc.freeze()  # otherwise the first collection touches, and so copies, every page of the parent
    stamp = Stamp()
    stamp.standing = lambda: (process, 0)
    launch.records.send(stamp)
    transport: Transport | None = None
    try:
        transport = launch.ends.connect(process)
        driver = _driver(launch, process, transport)
        stamp.standing = driver.standing
        driver.run(_wait_for_start(launch, process, transport) - driver.now)
        _give(launch.outboxes[process], Report.of(driver, launch.status.run.command == HALT))
    except BaseException as error:
        if not isinstance(error, Aborted):
            launch.outboxes[process].fail(Failure.of(time.monotonic(), error))
        if stamp.used:
            launch.records.send_rest()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(1)  # do not wait for helper threads that may compute for long
    if stamp.used:
        launch.records.send_rest()
    transport.close()


def _driver(launch: Launch, process: str, transport: Transport) -> Driver:
    driver = Driver(process, launch.deployment, launch.machine, launch.seed, transport, launch.status,
                    launch.wake_up.wake, [launch.death[0]], launch.observe, launch.faults, launch.keep,
                    launch.groups)
    driver.journal = launch.journal
    if process in launch.crash_logs:
        driver.journal = in_crash_log(launch.crash_logs[process], launch.journal)
    if launch.beginning is not None:
        driver.continue_from(launch.beginning)
    return driver


def _wait_for_start(launch: Launch, process: str, transport: Transport) -> float:
    """Announce that this process is ready; returns the common start in seconds of the monotonic clock."""
    run, own = launch.status.run, launch.status.process[process]
    own.beat = time.monotonic_ns()
    own.ready = 1
    launch.wake_up.wake()
    while not run.start:
        if run.command or transport.wait(0.25, [launch.death[0]]):
            raise Aborted
        own.beat = time.monotonic_ns()
    began = run.start / 1e9
    time.sleep(max(0.0, began - time.monotonic()))
    return float(began)


def _give(outbox: Outbox, report: Report) -> None:
    """Put a report into the outbox; an error names the node whose value cannot be pickled."""
    try:
        outbox.put(report)
    except Exception as error:
        for node, value in report.values.items():
            try:
                pickle.dumps(value)
            except Exception:
                raise TypeError(f"the value that {node} returned cannot be pickled ({error})") from None
        raise
