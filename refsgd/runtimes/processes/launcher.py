"""The launcher: starts the processes of a run, watches them, decides which failed first, ends the run."""

from __future__ import annotations

import logging
import multiprocessing as mp
import os
import pickle
import signal
import struct
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import psutil

from refsgd.cluster.machine import Machine
from refsgd.effects import Deployment
from refsgd.runtimes.faults import KEEP, Fault, Halted, survives_workers
from refsgd.runtimes.processes.beginning import Beginning
from refsgd.runtimes.processes.reports import CrashLog, deadlock, failure, join, left
from refsgd.runtimes.processes.status import (
    ABORT,
    BEAT,
    CLOSE,
    COMMAND,
    DEAD,
    DEATHS,
    DONE,
    GOT,
    HALT,
    IDLE,
    NOTICED,
    READY,
    SENT,
    START,
    VAIN,
    WAKE,
    StatusTable,
)
from refsgd.runtimes.processes.watch import Watch, state
from refsgd.runtimes.simulator import RunFailed
from refsgd.runtimes.transports.transport import Transport
from refsgd.runtimes.transports.waking import WakeUp, wait_for
from refsgd.trace import Crashed, Event, Run

log = logging.getLogger("refsgd.processes")

LEAD = 0.03  # seconds from "all are ready" to the common start
GRACE = 0.1  # seconds to end by itself after a failure
LOOK = 0.05  # seconds between two looks of the launcher where nobody rings
LENGTH = struct.Struct("<Q")  # before each message in a pipe from child to parent


class Network(Protocol):
    """What is made before the fork: shared memory or listening sockets."""

    wake_ups: dict[str, WakeUp]

    def connect(self, process: str) -> Transport:
        """The transport of one process; called in it, after the fork."""
        ...

    def forked(self) -> None:
        """All processes exist: the launcher lets go of what only they need."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


MakeNetwork = Callable[[Sequence[str], Mapping[str, frozenset[int]]], Network]


class Launch:
    """The processes of one run and what the launcher knows of them.

    Parameters
    ----------
    child : callable
        What a process does: ``child(launch, process, pipe, parent)``.
    deployment, machine, seed, deadline, observe, records, on_death, faults
        As of `refsgd.runtimes.processes.local.run`.
    network : callable
        Makes shared memory or listening sockets for processes and their nodes.
    beginning : Beginning, optional
        Where a resumed run continues.
    """

    def __init__(self, child: Callable[[Launch, str, int, int], None], deployment: Deployment,
                 machine: Machine,
                 seed: int, network: MakeNetwork, deadline: float | None, observe: int, records: str,
                 on_death: str, faults: Sequence[Fault], beginning: Beginning | None = None) -> None:
        self._child, self.beginning = child, beginning
        self.deployment, self.machine, self.seed, self.observe = deployment, machine, seed, observe
        self.records = records
        _check_descriptors(len(set(machine.hosts(deployment).values())), 6 if on_death == "stop" else 7)
        self.process_of = machine.hosts(deployment)
        self.processes = list(dict.fromkeys(self.process_of.values()))
        order = list(deployment)
        self.dead = list(dict.fromkeys(self.process_of[n] for n in (beginning.dead if beginning else ())))
        places = {p: frozenset(i for i, n in enumerate(order) if self.process_of[n] == p)
                  for p in self.living}
        programs = {p: [(n, k) for n in order if self.process_of[n] == p
                        for k in range(1 + len(deployment[n].handlers))] for p in self.processes}
        self.status, self.wake_up, self.death = StatusTable(programs), WakeUp(), os.pipe()
        for process in self.dead:
            self.status.of(process)[DEAD] = 1
        self.status.words[DEATHS] = len(self.dead)
        self._crash_logs: dict[str, CrashLog] = {}
        try:
            if on_death != "stop":
                self._crash_logs.update((process, CrashLog()) for process in self.processes)
            self.network = network(self.living, places)
        except OSError as error:  # too many descriptors, no memory
            self._give_back()
            raise RunFailed(f"could not connect {len(self.processes)} processes: {error}") from None
        self.children: dict[str, BaseProcess] = {}
        self.pids: dict[str, int] = {}
        self.readers: dict[int, str] = {}  # read ends of result pipes
        self._data = {process: bytearray() for process in self.processes}
        self._results: dict[str, Any] = {}
        self._watch = Watch(self, deadline)
        self._before: tuple[int, int] | None = None
        self._closing = False
        self.on_death, self.faults = on_death, list(faults)
        self.endable = {node for node in order if deployment[node].survives}
        self.halts = on_death == "restart" and survives_workers(deployment)  # else: once nothing goes on
        self.halted = 0.0  # when, since the start
        self.keep = KEEP if on_death in ("shrink", "restart") else 0
        self._deaths: list[Event] = []
        self._left: list[bytes] = []  # what the dead had written of their events
        #: what every process tells each of its events at once
        self.journal: Callable[[Event], None] | None = None

    def start(self) -> None:
        """Fork all processes."""
        context = mp.get_context("fork")
        for process in self.living:
            read, write = os.pipe()
            self.readers[read] = process
            self.status.of(process)[BEAT] = time.monotonic_ns()  # from now on it is this process's own word
            child = context.Process(target=self._live, name=process, args=(process, write, os.getpid()))
            try:
                with warnings.catch_warnings():
                    # From 3.12 on forking beside threads warns.  Children use no lock of the parent's
                    # threads: they drive programs, compute with one BLAS thread, and inherit compiled
                    # kernels.
                    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
                    child.start()
            except OSError as error:
                raise RunFailed(
                    f"could not start process {len(self.children) + 1} of {len(self.processes)}, {process}: "
                                f"{error}", process) from None
            finally:
                os.close(write)
            self.children[process] = child
            self.pids[process] = child.pid or 0
        self.network.forked()

    def _live(self, process: str, out: int, parent: int) -> None:
        """In a process: what it does, and its events also go to where they outlive it."""
        if process in self._crash_logs:
            self.journal = self._crash_logs[process].after(self.journal)
        self._child(self, process, out, parent)

    def watch(self) -> None:
        """Until every process has given its result."""
        sentinels = {child.sentinel: process for process, child in self.children.items()}
        while self.readers or sentinels:
            quick = self._before is not None
            ready = wait_for([*self.readers, *sentinels, self.wake_up.fileno()],
                             0.001 if quick else self._wake())
            if self.wake_up.fileno() in ready:
                self.wake_up.drain()
            for fd in ready:
                if fd in self.readers:
                    self._read(fd)
            gone = [sentinels.pop(fd) for fd in ready if fd in sentinels]
            for process in gone:
                self._drain(process)
            self._judge(gone)
            if not self._closing:
                self._begin()
                self._count()
                self._watch.look()
            else:
                self._watch.closing()

    def _wake(self) -> float:
        """Continue processes whose planned pause is over; seconds until the next look."""
        look = LOOK
        for process in self.living:
            wake = self.words(process, WAKE) / 1e9 - time.monotonic()
            # It says when it is to be continued and then stops itself: not before it has done so.
            if self.words(process, WAKE) and wake <= 0 and state(self.pids[process]) == "stopped":
                os.kill(self.pids[process], signal.SIGCONT)
            elif self.words(process, WAKE):
                look = min(look, max(0.001, wake))
        return look

    def _read(self, fd: int) -> None:
        more = os.read(fd, 1 << 20)
        if more:
            self._hear(self.readers[fd], more)
            return
        del self.readers[fd]
        os.close(fd)

    def _hear(self, process: str, more: bytes) -> None:
        """Collect what a child says; a message that its death cut short is never complete."""
        data = self._data[process]
        data += more
        while len(data) >= LENGTH.size and len(data) >= LENGTH.size + LENGTH.unpack_from(data)[0]:
            end = LENGTH.size + LENGTH.unpack_from(data)[0]
            message = pickle.loads(memoryview(data)[LENGTH.size : end])
            del data[:end]
            if message[0] == "record":
                logging.getLogger(message[1].name).handle(message[1])
            else:
                self._results[process] = message

    def _drain(self, process: str) -> None:
        """Read what a process that has ended left in its pipe."""
        for fd in [fd for fd, h in self.readers.items() if h == process]:
            while fd in self.readers:
                self._read(fd)

    def _judge(self, gone: Sequence[str]) -> None:
        """Deal with processes that died and programs that failed: deaths first, then exceptions in order
        of time."""
        for process in gone:
            self.children[process].join()
            if process not in self._results and process not in self.dead:
                self._lost(process, self._died(process), None)
        failed = sorted((r[1], h) for h, r in self._results.items() if r[0] == "failed"
                        and h not in self.dead)
        for _, process in failed:
            _, _, line, text, error = self._results[process]
            message = f"{process} (pid {self.pids[process]}): {line}"
            self._lost(process, *failure(message, text, error, process))

    def _lost(self, process: str, error: BaseException, cause: BaseException | None) -> None:
        """Raise the error, or, if the run is to survive a death, tell all others of it."""
        silent = (time.monotonic_ns() - self.words(process, BEAT)) / 1e9  # at least what it took to notice
        if isinstance(error, RunFailed):
            error.silent = silent
        notices = [Crashed(self._now(), node, 0, str(error), silent)
                   for node, where in self.process_of.items() if where == process]
        survives = self.on_death != "stop" and isinstance(error, RunFailed) and self.status.words[START]
        if not survives or self._closing or len(self.dead) + 1 == len(self.processes):
            with suppress(RuntimeError):  # of a record that cannot be written: what has failed is said
                self._write(notices if self.status.words[START] and isinstance(error, RunFailed) else [])
            raise error from cause
        self._write(notices)
        log.warning("%s; the run goes on without it", error)
        self.dead.append(process)
        self._left.append(self._crash_logs[process].read())
        self._deaths += notices
        self.status.of(process)[DEAD] = 1
        self.status.words[DEATHS] = len(self.dead)
        if self.halts:
            self._halt()
        self._wake_all()

    def _now(self) -> float:
        """Seconds of the run."""
        before = self.beginning.seconds if self.beginning is not None else 0.0
        return before + time.monotonic() - self.status.words[START] / 1e9

    def _write(self, notices: Sequence[Event]) -> None:
        """Write deaths to the record, for the dead cannot."""
        for event in notices if self.journal is not None else ():
            self.journal(event)  # type: ignore[misc]

    def give_up(self, process: str, error: RunFailed) -> None:
        """End a process that does not go on."""
        self._lost(process, error, None)
        self.children[process].kill()

    def _died(self, process: str) -> RunFailed:
        code = self.children[process].exitcode or 0
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            planned = [f for f in self.faults if f.kind == "kill" and self.process_of.get(f.node) == process]
            if planned:
                how += f" (as planned: kill {planned[0].node} at step {planned[0].step})"
            elif code == -signal.SIGKILL:
                how += " (by hand, or by the kernel, out of memory)"
        else:
            how = f"ended with exit code {code} and no result"
        doing = "; ".join(str(s) for s in self.status.standing([process]))
        message = f"{process} (pid {self.pids[process]}) {how}: {doing}{self._waiters(process)}"
        return RunFailed(message, process)

    @property
    def living(self) -> list[str]:
        """Hosts that have not died."""
        return [process for process in self.processes if process not in self.dead]

    def _waiters(self, process: str) -> str:
        """Who waited, in words, for an error about `process`."""
        now = time.monotonic()
        others = [s for s in self.status.standing() if self.process_of[s.node] != process
                  and s.doing.startswith("Recv")]
        others.sort(key=lambda s: f" {process})" not in s.doing)  # those that name it come first
        words = [f"{s.node} for {now - s.since:.2g} s in {s.doing}" for s in others[:4]]
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        return f"; waiting: {', '.join(words)}{more}" if words else ""

    def words(self, process: str, which: int) -> int:
        """One word of a process's in the status table."""
        return int(self.status.of(process)[which])

    def _begin(self) -> None:
        """Let all start together once all are ready."""
        if not self.status.words[START] and all(self.words(h, READY) for h in self.living):
            self.status.words[START] = int((time.monotonic() + LEAD) * 1e9)
            self._wake_all()

    def _count(self) -> None:
        """Close the run, or call it a deadlock, when counting shows that nothing can happen any more.

        All processes idle and as many messages handled as sent, the same at two looks (Mattern 1987):
        whatever was in between would have been counted at the second.
        """
        rows = [self.status.of(h).tolist() for h in self.living] if self.status.words[START] else []
        sums = sum(r[SENT] for r in rows), sum(r[GOT] for r in rows)
        settled = all(r[IDLE] and r[NOTICED] == len(self.dead) + self.status.words[VAIN] for r in rows)
        if not rows or not settled or sums[0] != sums[1]:
            self._before = None
        elif sums != self._before:
            self._before = sums
        elif all(r[DONE] for r in rows):
            self._end_with(CLOSE)
        else:
            self._standstill()

    def _end_with(self, command: int) -> None:
        self._closing, self._before = True, None
        self.status.words[COMMAND] = command
        self._wake_all()

    def _halt(self) -> None:
        """End this life of the run: all give what they have, and others go on from there."""
        self.halted = self._now()
        self._end_with(HALT)

    def _standstill(self) -> None:
        """Nothing can come any more, and some main programs wait."""
        standings = self.status.standing(self.living)
        stuck = [s.node for s in standings if s.program == 0 and s.doing.startswith("Recv")]
        if self.dead and stuck and all(node in self.endable for node in stuck):
            self.status.words[VAIN] += 1
            self._before = None
            self._wake_all()
        elif self.dead and self.on_death in ("shrink", "restart"):
            self._halt()
        else:
            raise deadlock(standings, self._now(), self.dead)

    def _wake_all(self) -> None:
        for wake_up in self.network.wake_ups.values():
            wake_up.wake()

    def end(self) -> None:
        """End whatever still runs and give everything back; safe at any time."""
        if any(child.is_alive() for child in self.children.values()):
            self.status.words[COMMAND] = ABORT
            self._wake_all()
            end = time.monotonic() + GRACE
            for child in self.children.values():
                child.join(max(0.0, end - time.monotonic()))
        for child in self.children.values():
            if child.is_alive():
                child.kill()
            child.join()
            child.close()
        for fd in self.readers:
            os.close(fd)
        self.readers.clear()
        self.network.close()
        self._give_back()

    def _give_back(self) -> None:
        for fd in self.death:
            os.close(fd)
        for crash_log in self._crash_logs.values():
            crash_log.close()
        self._crash_logs.clear()
        self.wake_up.close()
        self.status.close()

    def result(self) -> Run:
        """What the processes gave back, on one clock; raises `Halted` where the run can go on in another
        life."""
        reports = [self._results[process][1] for process in self.living]
        deaths = [*(event for crash_log in self._left for event in left(crash_log)), *self._deaths]
        run = join(reports, self.deployment, self.machine, self.observe, deaths,
                   self.beginning.events if self.beginning is not None else ())
        if self.halted:
            run.trace.seconds = self.halted
            kept = [self._results[process][2] for process in self.living]
            raise Halted(run, {node: x for one in kept for node, x in one.items()})
        return run


def _check_descriptors(processes: int, each: int) -> None:
    """Refuse what would fail half-way: pipes, wake-ups, listeners and sentinels of each process, and its
    events where they are to outlive it."""
    import resource  # where there is fork there is this

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed, free = each * processes + 16, limit - psutil.Process().num_fds()
    if limit != resource.RLIM_INFINITY and needed > free:
        raise RunFailed(f"{processes} processes need {needed} file descriptors and {free} are free; "
                        "raise the limit (ulimit -n) or use fewer nodes")
