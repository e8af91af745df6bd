"""Reports of processes at their end, and how the launcher joins them to one run or one error."""

from __future__ import annotations

import mmap
import os
import pickle
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine
from refsgd.effects import Array, Deployment, roles
from refsgd.runtimes import programs
from refsgd.runtimes.errors import Deadlock, RunFailed
from refsgd.runtimes.processes.driver import Driver
from refsgd.runtimes.processes.status import Standing
from refsgd.runtimes.processes.system import unnamed_file
from refsgd.runtimes.programs import ForgottenYield
from refsgd.trace import Event, Marked, Run, Sent, Trace, Use, thin

_BUFFER = 1 << 16  # bytes of a message that are written at once


class ChildTraceback(Exception):
    """Carries the traceback of another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Failure(NamedTuple):
    """An exception sent to another process: its time, one line, the traceback as text, and the exception
    itself if it can be pickled."""

    time: float
    line: str
    text: str
    error: BaseException | None

    @classmethod
    def of(cls, time: float, error: BaseException) -> Failure:
        """The parts of an exception that can be sent."""
        notes = [n for n in getattr(error, "__notes__", ()) if isinstance(n, str)]
        line = ", ".join(" ".join(each.split()) for each in (f"{type(error).__name__}: {error}", *notes))
        try:
            carried: BaseException | None = pickle.loads(pickle.dumps(error))
        except Exception:
            carried = None  # only its text can be sent
        return cls(time, line, "".join(traceback.format_exception(error)), carried)

    def raised(self, process: str, place: str) -> tuple[BaseException, BaseException]:
        """The error to raise and its cause, for a process at a `place` (its pid or rank)."""
        cause: BaseException = ChildTraceback(self.text)
        if isinstance(self.error, ForgottenYield | Deadlock):  # of the run, not of one process
            return self.error, cause
        if self.error is not None:
            self.error.__cause__, cause = cause, self.error
        return RunFailed(f"{process} ({place}): {self.line}", process, self.text), cause


class Outbox:
    """Messages of one process to the launcher: pickled, in an unnamed file that outlives the process."""

    def __init__(self) -> None:
        self._fd = unnamed_file("outbox")

    def put(self, message: Any) -> None:
        """Add a message: a small one in one system call, because the process may be killed after any, a large
        one array by array, because a copy of all of them may not fit into memory."""
        begin = os.lseek(self._fd, 0, os.SEEK_CUR)
        try:
            with open(self._fd, "wb", buffering=_BUFFER, closefd=False) as file:
                pickle.dump(message, file, protocol=5)
        except OSError as error:
            with suppress(OSError):  # the beginning of a message would hide a later one
                os.ftruncate(self._fd, os.lseek(self._fd, begin, os.SEEK_SET))
            raise OSError(error.errno, f"{error.strerror}: no room for its result; expected more memory, or "
                                       "files without a limit: ulimit -f unlimited") from None

    def fail(self, failure: Failure) -> None:
        """Add an exception, without its traceback if there is no room for that."""
        try:
            self.put(failure)
        except OSError:
            self.put(failure._replace(text="", error=None))

    def messages(self) -> list[Any]:
        """All complete messages; a death may have cut the last one short."""
        size, found = os.fstat(self._fd).st_size, []
        if size:
            # mapped, because the process may still move the file's position
            with mmap.mmap(self._fd, size, access=mmap.ACCESS_READ) as data, \
                    suppress(EOFError, pickle.UnpicklingError):
                while True:
                    found.append(pickle.load(data))
        return found

    def close(self) -> None:
        """Release the memory."""
        os.close(self._fd)


def in_crash_log(outbox: Outbox, journal: Callable[[Event], None] | None) -> Callable[[Event], None]:
    """A listener that also writes each event to the outbox, so that it outlives the process, but without the
    arrays of marks, which are too expensive to copy at every update."""
    def tell(event: Event) -> None:
        if journal is not None:
            journal(event)
        if isinstance(event, Marked):
            event = event._replace(values={key: value for key, value in event.values.items()
                                           if not isinstance(value, np.ndarray)})
        outbox.put(event)

    return tell


class Report(NamedTuple):
    """The results of one process: values of its main programs, events, end of the last main program, lateness
    of its nodes, uses of emulated links, and the newest parameters of its nodes if the run is halted."""

    values: dict[str, Any]
    events: list[Event]
    seconds: float
    lateness: dict[str, dict[str, float]]
    links: list[Use]
    kept: dict[str, list[tuple[int, Array]]]

    @classmethod
    def of(cls, driver: Driver, halted: bool = False) -> Report:
        """The report of a process that has ended normally."""
        return cls(driver.values, driver.events, driver.seconds,
                   {node: record.figures() for node, record in driver.lateness.items()},
                   driver.uses or [],
                   {node: list(x) for node, x in driver.kept.items()} if halted else {})


def join(reports: Sequence[Report], deployment: Deployment, machine: Machine, observe: int,
         deaths: Sequence[Event] = (), before: Sequence[Event] = ()) -> Run:
    """The run described by the reports of all surviving processes; `before` are the events of a resumed run
    before it was stopped."""
    values: dict[str, Any] = {}
    lateness: dict[str, dict[str, float]] = {}
    for report in reports:
        values |= report.values
        lateness |= report.lateness
    found = [*(event for report in reports for event in report.events), *deaths]
    events = [*before, *sorted(found, key=lambda event: event.time)]
    thin(events, observe)
    drawn = sum(f["drawn"] for f in lateness.values())
    overrun = sum(f["overrun"] for f in lateness.values())
    if drawn > 0.1 and overrun > 0.05 * drawn:  # shorter runs measure their own start
        warnings.warn(f"real computing overran its drawn times by {overrun / drawn:.0%}: this computer is "
                      "too slow for the described machine; use longer compute times or fewer workers",
                      RuntimeWarning, stacklevel=4)
    order = list(deployment)
    seconds = max((report.seconds for report in reports), default=0.0)
    network = Network(machine, deployment)
    trace = Trace(events, order, seconds, machine.latency, machine.bandwidth,
                  {n: lateness[n] for n in order if n in lateness}, roles(deployment),
                  sorted((use for report in reports for use in report.links), key=lambda use: use.start),
                  network.wires({(e.node, e.to) for e in events if isinstance(e, Sent)}),
                  network.host if network.described else {}, network.shared_links())
    return Run(trace, {n: values[n] for n in order if n in values})


def deadlock(standings: Sequence[Standing], now: float, dead: Sequence[str] = ()) -> Deadlock:
    """The error of a run in which nothing can happen any more, worded as in the simulator."""
    stuck = [s for s in standings if s.program == 0 and s.doing.startswith("Recv")]
    said = programs.stuck([(s.node, s.place, s.doing) for s in stuck], dead)
    return Deadlock(f"deadlock at {now:.6g} s{said}")
