"""Starts the processes of a run together, watches them, decides who failed first and when the run is over."""

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
    GOT,
    HALT,
    IDLE,
    NOTICED,
    READY,
    SENT,
    START,
    VAIN,
    WAKE,
    Bell,
    Board,
    wait_for,
)
from refsgd.runtimes.faults import KEEP, Fault, Halted, can_be_ended, survives_workers
from refsgd.runtimes.node import Beginning
from refsgd.runtimes.pause import Pause
from refsgd.runtimes.reports import Legacy, deadlock, failure, join, left
from refsgd.runtimes.simulator import RunFailed
from refsgd.runtimes.transport import Transport
from refsgd.runtimes.watch import Watch, state
from refsgd.trace import Event, Run

log = logging.getLogger("refsgd.processes")

LEAD = 0.03  # seconds from "all are ready" to the common start
GRACE = 0.1  # seconds to end by itself after a failure
LOOK = 0.05  # seconds between two looks of the launcher where nobody rings
LENGTH = struct.Struct("<Q")  # before each message in a pipe from child to parent


class Network(Protocol):
    """What is made before the fork: shared memory or listening sockets."""

    bells: dict[str, Bell]

    def connect(self, host: str) -> Transport:
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
        What a process does: ``child(launch, host, pipe, parent)``.
    deployment, machine, seed, deadline, observe, records, on_death, faults
        As of `refsgd.runtimes.processes.run`.
    network : callable
        Makes shared memory or listening sockets for hosts and their nodes.
    """

    def __init__(self, child: Callable[[Launch, str, int, int], None], deployment: Deployment, machine: Machine,
                 seed: int, network: MakeNetwork, deadline: float | None, observe: int, records: str,
                 on_death: str, faults: Sequence[Fault]) -> None:
        self._child = child
        self.deployment, self.machine, self.seed, self.observe = deployment, machine, seed, observe
        self.records = records
        _check_descriptors(len(set(machine.hosts(deployment).values())), 6 if on_death == "stop" else 7)
        self.host = machine.hosts(deployment)
        self.hosts = list(dict.fromkeys(self.host.values()))
        order = list(deployment)
        places = {h: frozenset(i for i, n in enumerate(order) if self.host[n] == h) for h in self.hosts}
        programs = {h: [(n, k) for n in order if self.host[n] == h for k in range(1 + len(deployment[n].responders))]
                    for h in self.hosts}
        self.board, self.bell, self.death = Board(programs), Bell(), os.pipe()
        self._legacies: dict[str, Legacy] = {}
        try:
            if on_death != "stop":
                self._legacies.update((host, Legacy()) for host in self.hosts)
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
        self.on_death, self.faults = on_death, list(faults)
        self.endable = {node for node in order if can_be_ended(deployment[node].main)}
        self.halts = on_death == "restart" and survives_workers(deployment)  # else: once nothing goes on
        self.halted = 0.0  # when, since the start
        self.keep = KEEP if on_death in ("shrink", "restart") else 0
        self.dead: list[str] = []
        self._epitaphs: list[Event] = []
        self._left: list[bytes] = []  # what the dead had written of their events
        self.journal: Callable[[Event], None] | None = None  #: what every process tells each of its events at once
        self.pause: Pause | None = None
        self.beginning: Beginning | None = None

    def start(self) -> None:
        """Fork all processes."""
        context = mp.get_context("fork")
        for host in self.hosts:
            read, write = os.pipe()
            self.readers[read] = host
            self.board.of(host)[BEAT] = time.monotonic_ns()  # from now on it is this process's own word
            child = context.Process(target=self._live, name=host, args=(host, write, os.getpid()))
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

    def _live(self, host: str, out: int, parent: int) -> None:
        """In a process: what it does, and its events also go to where they outlive it."""
        if host in self._legacies:
            self.journal = self._legacies[host].after(self.journal)
        self._child(self, host, out, parent)

    def watch(self) -> None:
        """Until every process has given its result."""
        sentinels = {child.sentinel: host for host, child in self.children.items()}
        while self.readers or sentinels:
            quick = self._before is not None
            ready = wait_for([*self.readers, *sentinels, self.bell.fileno()], 0.001 if quick else self._wake())
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

    def _wake(self) -> float:
        """Continue processes whose planned pause is over; seconds until the next look."""
        look = LOOK
        for host in self.living:
            wake = self.words(host, WAKE) / 1e9 - time.monotonic()
            # It says when it is to be continued and then stops itself: not before it has done so.
            if self.words(host, WAKE) and wake <= 0 and state(self.pids[host]) == "stopped":
                os.kill(self.pids[host], signal.SIGCONT)
            elif self.words(host, WAKE):
                look = min(look, max(0.001, wake))
        return look

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
        silent = (time.monotonic_ns() - self.words(host, BEAT)) / 1e9  # at least what it took to notice
        if isinstance(error, RunFailed):
            error.silent = silent
        survives = self.on_death != "stop" and isinstance(error, RunFailed) and self.board.words[START]
        if not survives or self._closing or len(self.dead) + 1 == len(self.hosts):
            raise error from cause
        log.warning("%s; the run goes on without it", error)
        self.dead.append(host)
        now = time.monotonic() - self.board.words[START] / 1e9
        self._left.append(self._legacies[host].read())
        self._epitaphs += [Event(now, node, 0, "died", {"reason": str(error), "silent": silent})
                           for node, where in self.host.items() if where == host]
        self.board.of(host)[DEAD] = 1
        self.board.words[DEATHS] = len(self.dead)
        if self.halts:
            self._halt()
        self._ring()

    def give_up(self, host: str, error: RunFailed) -> None:
        """End a process that does not go on."""
        self._lost(host, error, None)
        self.children[host].kill()

    def _died(self, host: str) -> RunFailed:
        code = self.children[host].exitcode or 0
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            planned = [f for f in self.faults if f.kind == "kill" and self.host.get(f.node) == host]
            if planned:
                how += f" (as planned: kill {planned[0].node} at step {planned[0].step})"
            elif code == -signal.SIGKILL:
                how += " (by hand, or by the kernel, out of memory)"
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
        settled = all(r[IDLE] and r[NOTICED] == len(self.dead) + self.board.words[VAIN] for r in rows)
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
        self.board.words[COMMAND] = command
        self._ring()

    def _halt(self) -> None:
        """End this life of the run: all give what they have, and others go on from there."""
        self.halted = time.monotonic() - self.board.words[START] / 1e9
        self._end_with(HALT)

    def _standstill(self) -> None:
        """Nothing can come any more, and some main programs wait."""
        standings = self.board.standing(self.living)
        stuck = [s.node for s in standings if s.program == 0 and s.doing.startswith("Recv")]
        if self.dead and stuck and all(node in self.endable for node in stuck):
            self.board.words[VAIN] += 1
            self._before = None
            self._ring()
        elif self.dead and self.on_death in ("shrink", "restart"):
            self._halt()
        else:
            raise deadlock(standings, time.monotonic() - self.board.words[START] / 1e9, self.dead)

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
        for legacy in self._legacies.values():
            legacy.close()
        self._legacies.clear()
        self.bell.close()
        self.board.close()

    def result(self) -> Run:
        """What the processes gave back, on one clock; raises `Halted` where the run can go on in another life."""
        reports = [self._results[host][1] for host in self.living]
        epitaphs = [*(event for legacy in self._left for event in left(legacy)), *self._epitaphs]
        run = join(reports, self.deployment, self.machine, self.observe, epitaphs)
        if self.halted:
            run.trace.seconds = self.halted
            raise Halted(run, {node: x for host in self.living for node, x in self._results[host][2].items()})
        return run


def _check_descriptors(processes: int, each: int) -> None:
    """Refuse what would fail half-way: pipes, bells, listeners and sentinels of each process, and its events where they are to outlive it."""
    import resource  # where there is fork there is this

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed, free = each * processes + 16, limit - psutil.Process().num_fds()
    if limit != resource.RLIM_INFINITY and needed > free:
        raise RunFailed(f"{processes} processes need {needed} file descriptors and {free} are free; "
                        "raise the limit (ulimit -n) or use fewer nodes")
