"""What processes say of themselves at their end, and what the launcher makes of it: one run, or one error."""

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
from refsgd.runtimes.processes.driver import Driver
from refsgd.runtimes.processes.status import Standing
from refsgd.runtimes.processes.system import unnamed_file
from refsgd.runtimes.programs import ForgottenYield
from refsgd.runtimes.simulator import Deadlock, RunFailed
from refsgd.trace import Event, Marked, Run, Sent, Trace, Use, thin


class ChildTraceback(Exception):
    """Carries the traceback of another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Failure(NamedTuple):
    """An exception on its way to another process: when, in one line, with its traceback as text, and itself
    if it can be pickled."""

    time: float
    line: str
    text: str
    error: BaseException | None

    @classmethod
    def of(cls, time: float, error: BaseException) -> Failure:
        """What can travel of an exception."""
        notes = [n for n in getattr(error, "__notes__", ()) if isinstance(n, str)]
        line = ", ".join([" ".join(f"{type(error).__name__}: {error}".split()), *notes])
        try:
            carried: BaseException | None = pickle.loads(pickle.dumps(error))
        except Exception:
            carried = None  # a class of which only the text can travel
        return cls(time, line, "".join(traceback.format_exception(error)), carried)

    def raised(self, process: str, place: str) -> tuple[BaseException, BaseException]:
        """What to raise, and from what, where this happened in a process at a `place` (its pid, its rank)."""
        cause: BaseException = ChildTraceback(self.text)
        if isinstance(self.error, ForgottenYield):
            return self.error, cause
        if self.error is not None:
            self.error.__cause__, cause = cause, self.error
        return RunFailed(f"{process} ({place}): {self.line}", process, self.text), cause


class Outbox:
    """What one process says to the launcher: pickled messages in a file without a name, which outlives it."""

    def __init__(self) -> None:
        self._fd = unnamed_file("outbox")

    def put(self, message: Any) -> None:
        """Add a message: in one call, for the process may be killed after any."""
        view = memoryview(pickle.dumps(message, protocol=5))
        while view:  # nearly always once: the system takes at most 2 GB
            view = view[os.write(self._fd, view) :]

    def messages(self) -> list[Any]:
        """All messages but one that a death has cut short."""
        size, found = os.fstat(self._fd).st_size, []
        if size:
            # mapped, for the process may still move the position of the file
            with mmap.mmap(self._fd, size, access=mmap.ACCESS_READ) as data, \
                    suppress(EOFError, pickle.UnpicklingError):
                while True:
                    found.append(pickle.load(data))
        return found

    def close(self) -> None:
        """Give the memory back."""
        os.close(self._fd)


def in_crash_log(outbox: Outbox, journal: Callable[[Event], None] | None) -> Callable[[Event], None]:
    """What a process is to call with each of its events at once so that they outlive it, if it has called
    `journal` until now.

    Without the arrays of marks, which cost too much to be copied at every update.
    """
    def tell(event: Event) -> None:
        if journal is not None:
            journal(event)
        if isinstance(event, Marked):
            event = event._replace(values={key: value for key, value in event.values.items()
                                           if not isinstance(value, np.ndarray)})
        outbox.put(event)

    return tell


class Report(NamedTuple):
    """What one process gives back: values of its mains, events, end of the last main, lateness of its nodes,
    what its emulated links served, and the newest parameters of its nodes where the run is halted."""

    values: dict[str, Any]
    events: list[Event]
    seconds: float
    lateness: dict[str, dict[str, float]]
    links: list[Use]
    kept: dict[str, list[tuple[int, Array]]]

    @classmethod
    def of(cls, driver: Driver, halted: bool = False) -> Report:
        """The report of a process that has ended well."""
        return cls(driver.values, driver.events, driver.seconds,
                   {node: record.figures() for node, record in driver.lateness.items()},
                   driver.links.uses or [],
                   {node: list(x) for node, x in driver.kept.items()} if halted else {})


def join(reports: Sequence[Report], deployment: Deployment, machine: Machine, observe: int,
         deaths: Sequence[Event] = (), before: Sequence[Event] = ()) -> Run:
    """The run that the reports of all processes that lived to its end make together; `before` are the
    events of a resumed run before it was stopped."""
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
        warnings.warn(
            f"real computing overran its drawn times by {overrun / drawn:.0%}: this machine is too slow "
                      "for the described one; use longer compute times or fewer workers", RuntimeWarning,
                      stacklevel=4)
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
    """The error of a run in which nothing can happen any more, as the simulator words it."""
    stuck = [s for s in standings if s.program == 0 and s.doing.startswith("Recv")]
    lines = "; ".join(f"{s.node} at {s.place} waits for {s.doing}" for s in stuck)
    after = f" after the death of {', '.join(dead)}" if dead else ""
    return Deadlock(f"deadlock at {now:.6g} s{after}: {lines}")
