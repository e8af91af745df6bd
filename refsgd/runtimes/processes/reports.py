"""What processes say of themselves at their end, and what the launcher makes of it: one run, or one error."""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refsgd.cluster.machine import Machine
from refsgd.effects import Deployment, roles
from refsgd.runtimes.processes.driver import Driver
from refsgd.runtimes.processes.status import Standing
from refsgd.runtimes.programs import ForgottenYield
from refsgd.runtimes.simulator import Deadlock, RunFailed
from refsgd.trace import Event, Marked, Run, Trace, merge, thin


class ChildTraceback(Exception):
    """Carries the traceback of another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def in_words(error: BaseException) -> tuple[str, str, BaseException | None]:
    """An exception as one line, its traceback as text, and itself if it can be pickled."""
    notes = [n for n in getattr(error, "__notes__", ()) if isinstance(n, str)]
    line = ", ".join([" ".join(f"{type(error).__name__}: {error}".split()), *notes])
    try:
        carried: BaseException | None = pickle.loads(pickle.dumps(error))
    except Exception:
        carried = None  # a class of which only the text can travel
    return line, "".join(traceback.format_exception(error)), carried


def failure(message: str, text: str, error: BaseException | None,
            node: str) -> tuple[BaseException, BaseException]:
    """What to raise, and from what, for a program of another process: `error`, if it could travel, is the
    cause."""
    cause: BaseException = ChildTraceback(text)
    if isinstance(error, ForgottenYield):
        return error, cause
    if error is not None:
        error.__cause__, cause = cause, error
    return RunFailed(message, node, text), cause


class CrashLog:
    """Crash log: the events of one process, in memory that outlives it, for runs that continue without it.

    Without the arrays of its marks, which cost too much to be copied at every update.
    """

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create("events")
        else:
            with tempfile.TemporaryFile() as file:
                self._fd = os.dup(file.fileno())

    def after(self, journal: Callable[[Event], None] | None) -> Callable[[Event], None]:
        """What the process is to call with each of its events at once, if it has called `journal` until
        now."""
        def tell(event: Event) -> None:
            if journal is not None:
                journal(event)
            self.write(event)

        return tell

    def write(self, event: Event) -> None:
        """Add an event: in one call, for the process may be killed after any."""
        if isinstance(event, Marked):
            event = event._replace(values={key: value for key, value in event.values.items()
                                           if not isinstance(value, np.ndarray)})
        os.write(self._fd, pickle.dumps(event, protocol=5))

    def read(self) -> bytes:
        """What has been written until now, for `left`."""
        return os.pread(self._fd, os.fstat(self._fd).st_size, 0)  # the process may still move the position

    def close(self) -> None:
        """Give the memory back."""
        os.close(self._fd)


def left(crash_log: bytes) -> list[Event]:
    """The complete events of a crash log."""
    data, events = io.BytesIO(crash_log), list[Event]()
    while True:
        try:
            events.append(pickle.load(data))
        except (EOFError, pickle.UnpicklingError):
            return events


Report = tuple[dict[str, Any], list[Event], float, dict[str, dict[str, float]]]


def report(driver: Driver) -> Report:
    """What one process gives back: values of its mains, events, end of the last main, lateness of its
    nodes."""
    late = {node: record.figures() for node, record in driver.lateness.items()}
    return driver.values, driver.events, driver.seconds, late


def join(reports: Sequence[Report], deployment: Deployment, machine: Machine, observe: int,
         deaths: Sequence[Event] = (), before: Sequence[Event] = ()) -> Run:
    """The run that the reports of all processes that lived to its end make together; `before` are the
    events of a resumed run before it was stopped."""
    values: dict[str, Any] = {}
    lateness: dict[str, dict[str, float]] = {}
    for one, _, _, late in reports:
        values |= one
        lateness |= late
    events = [*before, *merge([*(events for _, events, _, _ in reports), list(deaths)])]
    thin(events, observe)
    drawn = sum(f["drawn"] for f in lateness.values())
    overrun = sum(f["overrun"] for f in lateness.values())
    if drawn > 0.1 and overrun > 0.05 * drawn:  # shorter runs measure their own start
        warnings.warn(
            f"real computing overran its drawn times by {overrun / drawn:.0%}: this machine is too slow "
                      "for the described one; use longer compute times or fewer workers", RuntimeWarning,
                      stacklevel=4)
    order = list(deployment)
    seconds = max((seconds for _, _, seconds, _ in reports), default=0.0)
    trace = Trace(events, order, seconds, machine.latency, machine.bandwidth,
                  {n: lateness[n] for n in order if n in lateness}, roles(deployment))
    return Run(trace, {n: values[n] for n in order if n in values})


def deadlock(standings: Sequence[Standing], now: float, dead: Sequence[str] = ()) -> Deadlock:
    """The error of a run in which nothing can happen any more, as the simulator words it."""
    stuck = [s for s in standings if s.program == 0 and s.doing.startswith("Recv")]
    lines = "; ".join(f"{s.node} at {s.place} waits for {s.doing}" for s in stuck)
    after = f" after the death of {', '.join(dead)}" if dead else ""
    return Deadlock(f"deadlock at {now:.6g} s{after}: {lines}")
