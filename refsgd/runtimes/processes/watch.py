"""Watchdog: detects a run without progress, a suspended process, a suspended launcher."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import psutil

from refsgd.runtimes.errors import RunFailed

if TYPE_CHECKING:
    from refsgd.runtimes.processes.local import Launch

log = logging.getLogger("refsgd.processes")

SILENCE = 1.0  # seconds without a beat after which a process is looked at
PATIENCE = 30.0  # smallest deadline
ROUNDS = 20.0  # deadline in slowest rounds
BUSY = 10.0  # deadlines that a process may compute for, if it really does


class Watch:
    """Ends a run after `deadline` seconds without progress; None: the larger of `PATIENCE` and `ROUNDS` times
    the slowest round so far, and more while a process is busy computing."""

    def __init__(self, launch: Launch, deadline: float | None) -> None:
        self._launch, self._strict = launch, deadline
        self._effects: list[int] = []
        self._changed = self._looked = 0.0
        self._slowest = self._used = self._sampled = 0.0
        self._reported: set[str] = set()

    @property
    def deadline(self) -> float:
        """Seconds without progress after which the run fails."""
        return self._strict if self._strict is not None else max(PATIENCE, ROUNDS * self._slowest)

    def look(self) -> None:
        """Check everything; called at each check of the launcher."""
        now = time.monotonic()
        launch = self._launch
        if not self._looked:
            self._changed = self._looked = now
        if now - self._looked > SILENCE:  # the launcher itself was stopped (Ctrl-Z): accuse nobody
            log.warning("the launcher was stopped for %.1f s; the pacing of this run is broken",
                        now - self._looked)
            self._changed = now
        self._looked = now
        self._stopped(now)
        living = [launch.status.process[process] for process in launch.living]
        effects = [words.effects for words in living]
        began = launch.status.run.start / 1e9
        pending = max(words.due for words in living) / 1e9
        if effects != self._effects or (began and now - began < pending):
            if began:
                self._slowest = max(self._slowest, now - self._changed)
            self._effects, self._changed = effects, now
        elif now - self._changed > self.deadline:
            self._stuck(now)

    def closing(self) -> None:
        """Check the deadline for the results, once the run is over."""
        if time.monotonic() - self._looked > 4 * max(PATIENCE, self.deadline):
            raise RunFailed("the processes did not end: "
                            + "; ".join(map(str, self._launch.status.standing())))

    def _stuck(self, now: float) -> None:
        """Fail, unless some process is busy: up to a limit, a long Compute counts as progress."""
        if any(state(self._launch.pids[process]) == "stopped" for process in self._launch.living):
            return  # the stopped process is the cause, and is reported at its own deadline
        if self._strict is None and now - self._changed < BUSY * self.deadline:
            if now - self._sampled < SILENCE:
                return
            busy, before = sum(used(self._launch.pids[p]) for p in self._launch.living), self._used
            fresh = self._sampled < self._changed  # nothing to compare with yet
            share = (busy - before) / (now - self._sampled)
            self._sampled, self._used = now, busy
            hungry = any(state(self._launch.pids[p]) == "running" for p in self._launch.living)  # for a core
            if fresh or share > 0.1 or hungry:
                return
        places = "; ".join(f"{s} for {now - s.since:.2g} s" if s.since else str(s)
                           for s in self._launch.status.standing()[:8])
        raise RunFailed(f"no progress for {now - self._changed:.2g} s (longer than the deadline of "
                        f"{self.deadline:.2g} s): {places}")

    def _stopped(self, now: float) -> None:
        """Report a process that has been stopped; end the run at the deadline."""
        launch = self._launch
        for process in launch.living:
            beat = launch.status.process[process].beat / 1e9
            if now - beat < SILENCE:
                self._reported.discard(process)
            elif state(launch.pids[process]) == "stopped":
                what = f"{process} (pid {launch.pids[process]}) has been stopped for {now - beat:.1f} s"
                if process not in self._reported:
                    self._reported.add(process)
                    log.warning("%s; the run waits for it until %.0f s are over", what, self.deadline)
                if now - beat > self.deadline:
                    doing = "; ".join(str(s) for s in launch.status.standing([process]))
                    launch.give_up(process, RunFailed(f"{what}: {doing}", process))


def state(pid: int) -> str:
    """The state of a process as psutil names it, "gone" if there is none."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone"


def used(pid: int) -> float:
    """Processor time that a process has used."""
    try:
        return float(sum(psutil.Process(pid).cpu_times()[:2]))
    except psutil.Error:
        return 0.0
