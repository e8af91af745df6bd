"""Starts the processes of a run together, watches them, decides who failed first and when the run is over."""

from __future__ import annotations

import logging
import multiprocessing as mp
import os
import pickle
import signal
import struct
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import psutil

from refsgd.effects import Deployment
from refsgd.machine import Machine
from refsgd.runtimes.board import (
    ABORT,
    BEAT,
    CLOSE,
    COMMAND,
    DEAD,
    DEATHS,
    DONE,
    DUE,
    EFFECTS,
    GOT,
    IDLE,
    NOTICED,
    READY,
    SENT,
    START,
    Bell,
    Board,
    Standing,
    wait_for,
)
from refsgd.runtimes.node import Driver, Transport
from refsgd.runtimes.simulator import Deadlock, ForgottenYield
from refsgd.trace import Event, Run, Trace, merge, thin

log = logging.getLogger("refsgd.processes")

LEAD = 0.03  # seconds from "all are ready" to the common start
GRACE = 0.1  # seconds to end by itself after a failure
LOOK = 0.05  # seconds between two looks of the launcher where nobody rings
SILENCE = 1.0  # seconds without a beat after which a process is looked at
PATIENCE = 30.0  # smallest deadline
ROUNDS = 20.0  # deadline in slowest rounds
BUSY = 10.0  # deadlines that a process may compute for, if it really does
LENGTH = struct.Struct("<Q")  # before each message in a pipe from child to parent


class RunFailed(RuntimeError):
    """A run of processes failed; the message is one line that names the culprit.

    Attributes
    ----------
    node : str
        The culprit's host, "" if there is none.
    traceback : str
        The culprit's own traceback, "" if it left none.
    """

    def __init__(self, message: str, node: str = "", trace: str = "") -> None:
        super().__init__(message)
        self.node, self.traceback = node, trace

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.node, self.traceback)


class ChildTraceback(Exception):
    """Carries the traceback of another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Network(Protocol):
    """What is made before the fork: shared memory or listening sockets."""

    bells: dict[str, Bell]

    def connect(self, host: str) -> Transport: ...
    def forked(self) -> None: ...
    def close(self) -> None: ...


MakeNetwork = Callable[[Sequence[str], Mapping[str, frozenset[int]]], Network]


class Launch:
    """The processes of one run and what the launcher knows of them.

    Parameters
    ----------
    child : callable
        What a process does: ``child(launch, host, pipe, parent)``.
    deployment, machine, seed, deadline, observe, records, on_death, kills
        As of `refsgd.runtimes.processes.run`.
    network : callable
        Makes shared memory or listening sockets for hosts and their nodes.
    """

    def __init__(self, child: Callable[[Launch, str, int, int], None], deployment: Deployment, machine: Machine,
                 seed: int, network: MakeNetwork, deadline: float | None, observe: int, records: str,
                 on_death: str, kills: Mapping[str, int]) -> None:
        self._child = child
        self.deployment, self.machine, self.seed, self.observe = deployment, machine, seed, observe
        self.records = records
        _check_descriptors(len(set(machine.hosts(deployment).values())))
        self.host = machine.hosts(deployment)
        self.hosts = list(dict.fromkeys(self.host.values()))
        order = list(deployment)
        places = {h: frozenset(i for i, n in enumerate(order) if self.host[n] == h) for h in self.hosts}
        programs = {h: [(n, k) for n in order if self.host[n] == h for k in range(1 + len(deployment[n].responders))]
                    for h in self.hosts}
        self.board, self.bell, self.death = Board(programs), Bell(), os.pipe()
        try:
            self.network = network(self.hosts, places)
        except OSError as error:  # too many descriptors, no memory
            self._give_back()
            raise RunFailed(f"could not connect {len(self.hosts)} processes: {error}") from None
        self.children: dict[str, BaseProcess] = {}
        self.pids: dict[str, int] = {}
        self.readers: dict[int, str] = {}  # read ends of result pipes
        self._data = {host: bytearray() for host in self.hosts}
        self._results: dict[str, Any] = {}
        self._watch = Watch(self, deadline)
        self._before: tuple[int, int] | None = None
        self._closing = False
        self.on_death, self.kills = on_death, dict(kills)
        self.dead: list[str] = []
        self._epitaphs: list[Event] = []

    def start(self) -> None:
        """Fork all processes."""
        context = mp.get_context("fork")
        for host in self.hosts:
            read, write = os.pipe()
            self.readers[read] = host
            self.board.of(host)[BEAT] = time.monotonic_ns()  # from now on it is this process's own word
            child = context.Process(target=self._child, name=host, args=(self, host, write, os.getpid()))
            try:
                with warnings.catch_warnings():
                    # From 3.12 on forking beside threads warns.  Children use no lock of the parent's threads:
                    # they drive programs, compute with one BLAS thread, and inherit compiled kernels.
                    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
                    child.start()
            except OSError as error:
                raise RunFailed(f"could not start process {len(self.children) + 1} of {len(self.hosts)}, {host}: "
                                f"{error}", host) from None
            finally:
                os.close(write)
            self.children[host] = child
            self.pids[host] = child.pid or 0
        self.network.forked()

    def watch(self) -> None:
        """Until every process has given its result."""
        sentinels = {child.sentinel: host for host, child in self.children.items()}
        while self.readers or sentinels:
            quick = self._before is not None
            ready = wait_for([*self.readers, *sentinels, self.bell.fileno()], 0.001 if quick else LOOK)
            if self.bell.fileno() in ready:
                self.bell.drain()
            for fd in ready:
                if fd in self.readers:
                    self._read(fd)
            gone = [sentinels.pop(fd) for fd in ready if fd in sentinels]
            for host in gone:
                self._drain(host)
            self._judge(gone)
            if not self._closing:
                self._begin()
                self._count()
                self._watch.look()
            else:
                self._watch.closing()

    def _read(self, fd: int) -> None:
        more = os.read(fd, 1 << 20)
        if more:
            self._hear(self.readers[fd], more)
            return
        del self.readers[fd]
        os.close(fd)

    def _hear(self, host: str, more: bytes) -> None:
        """Collect what a child says; a message that its death cut short is never complete."""
        data = self._data[host]
        data += more
        while len(data) >= LENGTH.size and len(data) >= LENGTH.size + LENGTH.unpack_from(data)[0]:
            end = LENGTH.size + LENGTH.unpack_from(data)[0]
            message = pickle.loads(memoryview(data)[LENGTH.size : end])
            del data[:end]
            if message[0] == "record":
                logging.getLogger(message[1].name).handle(message[1])
            else:
                self._results[host] = message

    def _drain(self, host: str) -> None:
        """Read what a process that has ended left in its pipe."""
        for fd in [fd for fd, h in self.readers.items() if h == host]:
            while fd in self.readers:
                self._read(fd)

    def _judge(self, gone: Sequence[str]) -> None:
        """Deal with processes that died and programs that failed: deaths first, then exceptions in order of time."""
        for host in gone:
            self.children[host].join()
            if host not in self._results and host not in self.dead:
                self._lost(host, self._died(host), None)
        failed = sorted((r[1], h) for h, r in self._results.items() if r[0] == "failed" and h not in self.dead)
        for _, host in failed:
            _, _, line, text, error = self._results[host]
            self._lost(host, *failure(f"{host} (pid {self.pids[host]}): {line}", text, error, host))

    def _lost(self, host: str, error: BaseException, cause: BaseException | None) -> None:
        """Raise the error, or, if the run is to survive a death, tell all others of it."""
        survives = self.on_death == "continue" and isinstance(error, RunFailed) and self.board.words[START]
        if not survives or self._closing or len(self.dead) + 1 == len(self.hosts):
            raise error from cause
        log.warning("the run goes on without %s", error)
        self.dead.append(host)
        now = time.monotonic() - self.board.words[START] / 1e9
        self._epitaphs += [Event(now, node, 0, "died", {"reason": str(error)})
                           for node, where in self.host.items() if where == host]
        self.board.of(host)[DEAD] = 1
        self.board.words[DEATHS] = len(self.dead)
        self._ring()

    def _died(self, host: str) -> RunFailed:
        code = self.children[host].exitcode or 0
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += " (by hand, or by the kernel for want of memory)"
        else:
            how = f"ended with exit code {code} and no result"
        doing = "; ".join(str(s) for s in self.board.standing([host]))
        return RunFailed(f"{host} (pid {self.pids[host]}) {how}: {doing}{self._waiters(host)}", host)

    @property
    def living(self) -> list[str]:
        """Hosts that have not died."""
        return [host for host in self.hosts if host not in self.dead]

    def _waiters(self, host: str) -> str:
        """Who waited, in words, for an error about `host`."""
        now = time.monotonic()
        others = [s for s in self.board.standing() if self.host[s.node] != host and s.doing.startswith("Recv")]
        others.sort(key=lambda s: f" {host})" not in s.doing)  # those that name it come first
        words = [f"{s.node} for {now - s.since:.2g} s in {s.doing}" for s in others[:4]]
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        return f"; waiting: {', '.join(words)}{more}" if words else ""

    def words(self, host: str, which: int) -> int:
        """One word of a host's on the board."""
        return int(self.board.of(host)[which])

    def _begin(self) -> None:
        """Let all start together once all are ready."""
        if not self.board.words[START] and all(self.words(h, READY) for h in self.hosts):
            self.board.words[START] = int((time.monotonic() + LEAD) * 1e9)
            self._ring()

    def _count(self) -> None:
        """Close the run, or call it a deadlock, when counting shows that nothing can happen any more.

        All hosts idle and as many messages handled as sent, the same at two looks (Mattern 1987): whatever
        was in between would have been counted at the second.
        """
        rows = [self.board.of(h).tolist() for h in self.living] if self.board.words[START] else []
        sums = sum(r[SENT] for r in rows), sum(r[GOT] for r in rows)
        settled = all(r[IDLE] and r[NOTICED] == len(self.dead) for r in rows)
        if not rows or not settled or sums[0] != sums[1]:
            self._before = None
        elif sums != self._before:
            self._before = sums
        elif all(r[DONE] for r in rows):
            self._closing, self._before = True, None
            self.board.words[COMMAND] = CLOSE
            self._ring()
        else:
            now = time.monotonic() - self.board.words[START] / 1e9
            raise deadlock(self.board.standing(self.living), now, self.dead)

    def _ring(self) -> None:
        for bell in self.network.bells.values():
            bell.ring()

    def end(self) -> None:
        """End whatever still runs and give everything back; safe at any time."""
        if any(child.is_alive() for child in self.children.values()):
            self.board.words[COMMAND] = ABORT
            self._ring()
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
        self.bell.close()
        self.board.close()

    def result(self) -> Run:
        """What the processes gave back, on one clock."""
        reports = [self._results[host][1:] for host in self.living]
        return join(reports, self.deployment, self.machine, self.observe, self._epitaphs)


def in_words(error: BaseException) -> tuple[str, str, BaseException | None]:
    """An exception as one line, its traceback as text, and itself if it can be pickled."""
    notes = [n for n in getattr(error, "__notes__", ()) if isinstance(n, str)]
    line = ", ".join([" ".join(f"{type(error).__name__}: {error}".split()), *notes])
    try:
        carried: BaseException | None = pickle.loads(pickle.dumps(error))
    except Exception:
        carried = None  # a class of which only the text can travel
    return line, "".join(traceback.format_exception(error)), carried


def failure(message: str, text: str, error: BaseException | None, node: str) -> tuple[BaseException, BaseException]:
    """What to raise, and from what, for a program of another process: `error`, if it could travel, is the cause."""
    cause: BaseException = ChildTraceback(text)
    if isinstance(error, ForgottenYield):
        return error, cause
    if error is not None:
        error.__cause__, cause = cause, error
    return RunFailed(message, node, text), cause


Report = tuple[dict[str, Any], list[Event], float, dict[str, dict[str, float]]]


def report(driver: Driver) -> Report:
    """What one process gives back: values of its mains, events, end of the last main, lateness of its nodes."""
    late = {node: record.figures() for node, record in driver.lateness.items()}
    return driver.values, driver.events, driver.seconds, late


def join(reports: Sequence[Report], deployment: Deployment, machine: Machine, observe: int,
         epitaphs: Sequence[Event] = ()) -> Run:
    """The run that the reports of all processes that lived to its end make together."""
    values: dict[str, Any] = {}
    lateness: dict[str, dict[str, float]] = {}
    for one, _, _, late in reports:
        values |= one
        lateness |= late
    events = merge([*(events for _, events, _, _ in reports), list(epitaphs)])
    thin(events, observe)
    drawn = sum(f["drawn"] for f in lateness.values())
    overrun = sum(f["overrun"] for f in lateness.values())
    if drawn > 0.1 and overrun > 0.05 * drawn:  # shorter runs measure their own start
        warnings.warn(f"real computing overran its drawn times by {overrun / drawn:.0%}: this machine is too slow "
                      "for the described one; use longer compute times or fewer workers", RuntimeWarning, stacklevel=4)
    order = list(deployment)
    seconds = max((seconds for _, _, seconds, _ in reports), default=0.0)
    trace = Trace(events, order, seconds, machine.latency, machine.bandwidth, {n: lateness[n] for n in order if n in lateness})
    return Run(trace, {n: values[n] for n in order if n in values})


def deadlock(standings: Sequence[Standing], now: float, dead: Sequence[str] = ()) -> Deadlock:
    """The error of a run in which nothing can happen any more, as the simulator words it."""
    stuck = [s for s in standings if s.program == 0 and s.doing.startswith("Recv")]
    lines = "; ".join(f"{s.node} at {s.place} waits for {s.doing}" for s in stuck)
    after = f" after the death of {', '.join(dead)}" if dead else ""
    return Deadlock(f"deadlock at {now:.6g} s{after}: {lines}")


class Watch:
    """Deadlines: a run in which nothing goes on, a process that is stopped, a launcher that was stopped itself."""

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
        """Called at each look of the launcher."""
        now = time.monotonic()
        launch = self._launch
        if not self._looked:
            self._changed = self._looked = now
        if now - self._looked > SILENCE:  # then we were stopped ourselves (Ctrl-Z): accuse nobody
            log.warning("the launcher was stopped for %.1f s; the pacing of this run is broken", now - self._looked)
            self._changed = now
        self._looked = now
        self._stopped(now)
        effects = [launch.words(h, EFFECTS) for h in launch.hosts]
        began = launch.board.words[START] / 1e9
        pending = max(launch.words(h, DUE) for h in launch.hosts) / 1e9
        if effects != self._effects or (began and now - began < pending):
            if began:
                self._slowest = max(self._slowest, now - self._changed)
            self._effects, self._changed = effects, now
        elif now - self._changed > self.deadline:
            self._stuck(now)

    def closing(self) -> None:
        """The run is over: results are on their way."""
        if time.monotonic() - self._looked > 4 * max(PATIENCE, self.deadline):
            raise RunFailed("the processes did not end: " + "; ".join(map(str, self._launch.board.standing())))

    def _stuck(self, now: float) -> None:
        """Fail, unless some process is busy: a long Compute is no standstill, but not for ever either."""
        if self._strict is None and now - self._changed < BUSY * self.deadline:
            if now - self._sampled < SILENCE:
                return
            used, before = sum(_cpu(pid) for pid in self._launch.pids.values()), self._used
            fresh = self._sampled < self._changed  # nothing to compare with yet
            share = (used - before) / (now - self._sampled)
            self._sampled, self._used = now, used
            if fresh or share > 0.1:
                return
        places = "; ".join(f"{s} for {now - s.since:.2g} s" if s.since else str(s)
                           for s in self._launch.board.standing()[:8])
        raise RunFailed(f"nothing went on for {now - self._changed:.2g} s (longer than the deadline of "
                        f"{self.deadline:.2g} s): {places}")

    def _stopped(self, now: float) -> None:
        """Report a process that has been stopped; end the run at the deadline."""
        launch = self._launch
        for host in launch.hosts:
            beat = launch.words(host, BEAT) / 1e9
            if now - beat < SILENCE:
                self._reported.discard(host)
            elif _state(launch.pids[host]) == "stopped":
                what = f"{host} (pid {launch.pids[host]}) has been stopped for {now - beat:.1f} s"
                if host not in self._reported:
                    self._reported.add(host)
                    log.warning("%s; the run waits for it until %.0f s are over", what, self.deadline)
                if now - beat > self.deadline:
                    doing = "; ".join(str(s) for s in launch.board.standing([host]))
                    raise RunFailed(f"{what}: {doing}", host)


def _check_descriptors(processes: int) -> None:
    """Refuse what would fail half-way: pipes, bells, listeners and sentinels of each process."""
    import resource  # where there is fork there is this

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed, free = 6 * processes + 16, limit - psutil.Process().num_fds()
    if limit != resource.RLIM_INFINITY and needed > free:
        raise RunFailed(f"{processes} processes need {needed} file descriptors and {free} are free; "
                        "raise the limit (ulimit -n) or use fewer nodes")


def _state(pid: int) -> str:
    """The state of a process as psutil names it, "gone" if there is none."""
    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone"


def _cpu(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    try:
        return float(sum(psutil.Process(pid).cpu_times()[:2]))
    except psutil.Error:
        return 0.0
