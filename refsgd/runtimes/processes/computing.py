"""Real computing in a process, on the driver's thread or on a helper thread, and its lateness when paced."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from refsgd.effects import Compute
from refsgd.runtimes.engine import Task
from refsgd.runtimes.programs import no_exit

LONG = 0.005  # a Compute that really takes longer moves to a helper thread
# seconds between thread switches if there are helpers; Python's default makes handlers wait 5 ms
SWITCH = 5e-4


class Job(NamedTuple):
    """A Compute: when it starts and is due [s since the common start], and whether the machine has a
    price for it."""

    task: Task
    effect: Compute
    start: float
    due: float
    priced: bool


class Done(NamedTuple):
    """A finished job."""

    job: Job
    value: Any
    ended: float  # on the monotonic clock
    took: float  # seconds
    error: BaseException | None = None


class Lateness:
    """Lateness relative to the described machine's nominal time on one node, and its moves to real time."""

    def __init__(self) -> None:
        self.events = self.slips = self.computes = 0
        self.total = self.worst = self.slipped = self.overrun = self.drawn = self.computing = 0.0

    def seen(self, late: float) -> None:
        """Count one event that was performed `late` seconds after its due time."""
        self.events += 1
        self.total += late
        self.worst = max(self.worst, late)

    def figures(self) -> dict[str, float]:
        """Seconds and counts."""
        return {
            "late_mean": self.total / max(1, self.events), "late_worst": self.worst, "events": self.events,
            "computes": self.computes, "computing": self.computing, "drawn": self.drawn,
            "overrun": self.overrun,
            "overrun_ratio": self.overrun / self.drawn if self.drawn else 0.0,
            "slips": self.slips, "slipped": self.slipped,
        }


class Computing:
    """Does jobs and remembers which kinds took long the last time.

    `knock` wakes the driver when a helper thread has finished a job; `threaded`: several programs share the
    process, so every priced job goes to a helper thread.
    """

    def __init__(self, knock: Callable[[], None], threaded: bool) -> None:
        self.finished: deque[Done] = deque()  # what helper threads have done
        self.running = 0  # jobs in helper threads
        self._knock, self._threaded = knock, threaded
        self._long: set[tuple[str, str]] = set()  # (node, kind) of Computes that take long
        self._helpers: dict[Task, queue.SimpleQueue[Any]] = {}
        self._local = threading.local()

    @property
    def task(self) -> Task | None:
        """The program for which this thread works."""
        return getattr(self._local, "task", None)

    def works_for(self, task: Task) -> None:
        """Note that this thread works for a program from now on."""
        self._local.task = task

    def do(self, job: Job) -> Done | None:
        """Do a job now, or hand it to a helper thread, which adds it to `finished`, and return None."""
        task = job.task
        if job.priced and (self._threaded or (task.node, job.effect.kind) in self._long):
            if task not in self._helpers:
                self._helpers[task] = self._start_helper(task)
            self.running += 1
            self._helpers[task].put(job)
            return None
        done = _done(job)
        if job.priced and done.took > LONG:
            self._long.add((task.node, job.effect.kind))
        return done

    def _start_helper(self, task: Task) -> queue.SimpleQueue[Any]:
        """Start a thread for a program's computing; the sleep until the due time is a timer of the driver."""
        sys.setswitchinterval(SWITCH)
        work: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def loop() -> None:
            self.works_for(task)
            while True:
                done = _done(work.get())
                # the first one was long because it compiled, or touched fresh memory
                if done.took < LONG / 2:
                    self._long.discard((task.node, done.job.effect.kind))
                self.finished.append(done)
                self._knock()
                del done  # otherwise the gradient and the parameters live until the next one is computed

        threading.Thread(target=loop, name=f"{task.node} computes", daemon=True).start()
        return work


def _done(job: Job) -> Done:
    began = time.monotonic()
    value, error = None, None
    try:
        value = job.effect.fn(*job.effect.args)
    except BaseException as raised:  # on its way to the driver, which raises it
        error = no_exit(raised)
    ended = time.monotonic()
    return Done(job, value, ended, ended - began, error)
