"""The same programs as OS processes of this machine: fork, start together, watch, end together.

One process per host (a node, or a worker with the servers that live beside it).  The launcher alone decides
who failed first and when the run is over; a child that loses a connection waits for its verdict.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing as mp
import os
import pickle
import signal
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import threadpoolctl

from refsgd.effects import Deployment, Factory
from refsgd.machine import Machine
from refsgd.runtimes import logs
from refsgd.runtimes.board import (
    ABORT,
    BEAT,
    CLOSE,
    COMMAND,
    DONE,
    DUE,
    EFFECTS,
    GOT,
    IDLE,
    READY,
    SENT,
    START,
    Bell,
    Board,
    Standing,
    prctl,
    wait_for,
)
from refsgd.runtimes.node import Aborted, Driver, Transport
from refsgd.runtimes.rings import Segment
from refsgd.runtimes.simulator import Deadlock, ForgottenYield
from refsgd.runtimes.tcp import Listeners
from refsgd.trace import Event, Run, Trace, merge, thin

log = logging.getLogger("refsgd.processes")

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
LEAD = 0.03  # seconds from "all are ready" to the common start
GRACE = 0.1  # seconds to end by itself after a failure
LOOK = 0.05  # seconds between two looks of the launcher where nobody rings
SILENCE = 1.0  # seconds without a beat after which a process is looked at
PATIENCE = 30.0  # smallest deadline
ROUNDS = 20.0  # deadline in slowest rounds
LENGTH = struct.Struct("<Q")  # before each message in a pipe from child to parent
SHORT = 0.002  # mean durations below this cannot be paced well


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


NETWORKS: dict[str, Callable[[Sequence[str], Mapping[str, Sequence[int]]], Network]] = {"shm": Segment, "tcp": Listeners}


def run(factory: Factory | Deployment, machine: Machine | None = None, seed: int = 0, *, transport: str = "shm",
        deadline: float | None = None, on_start: Callable[[dict[str, int]], None] | None = None,
        observe: int = 64, records: str = "queue") -> Run:
    """Run a deployment as OS processes of this machine, paced to `machine`.

    Parameters
    ----------
    factory : Factory or Deployment
        Builds the programs; they are built once and inherited by the processes.
    machine : Machine, optional
        What compute times and links are paced to; by default nothing is.
    seed : int
        Seed of the drawn durations and choices: the same draws as in the simulator.
    transport : {"shm", "tcp"}
        Shared memory, or sockets on loopback.
    deadline : float, optional
        Seconds without any progress after which the run fails.  Default: the larger of 30 s and 20 times the
        slowest round so far, and more for a process that is busy computing.
    on_start : callable, optional
        Gets the process number of each node when all have been started.
    observe : int
        Most `x` kept of the marks of each node (`refsgd.trace.Thinner`).
    records : {"queue", "pipe"}
        How log records of the processes reach the handlers of this one: through `multiprocessing-logging`, or
        one pipe per process, which also stands the killing of a process that is logging.

    Returns
    -------
    Run
        The trace, with nominal seconds if paced and real ones otherwise, and the values of the main programs.
        ``trace.lateness[node]``: ``late_mean`` and ``late_worst`` of events behind their due times [s], their
        number ``events``; ``computes``, really ``computing`` [s], ``drawn`` [s]; ``overrun`` [s] by which
        Computes ended after their due time, ``overrun_ratio`` = overrun / drawn; ``slips`` and ``slipped`` [s].

    Raises
    ------
    RunFailed
        If a process dies, a program raises (it is the ``__cause__``), or nothing goes on until the deadline.
    Deadlock
        If no program can go on and some main program has not returned.
    ForgottenYield
        If a program built an effect that it did not yield.
    """
    if "fork" not in mp.get_all_start_methods():
        raise RunFailed("processes need fork, which this system has not; use Linux, macOS or WSL, or the simulator")
    if transport not in NETWORKS:
        raise ValueError(f"transport {transport!r}; expected one of {', '.join(NETWORKS)}")
    machine = machine or Machine()
    deployment = factory() if callable(factory) else factory
    _check(deployment, machine)
    if records not in ("queue", "pipe"):
        raise ValueError(f"records {records!r}; expected queue or pipe")
    with logs.shared_handlers() if records == "queue" else nullcontext():
        launch = _Launch(deployment, machine, seed, transport, deadline, observe, records)
        try:
            launch.start()
            if on_start is not None:
                on_start({node: launch.pids[host] for node, host in launch.host.items()})
            launch.watch()
        finally:
            launch.end()
    return launch.result()


def _check(deployment: Deployment, machine: Machine) -> None:
    """Refuse what cannot be forked; warn of what cannot be paced."""
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    if parallel is not None and getattr(parallel, "_is_initialized", False):
        raise RunFailed("a numba parallel region has run in this process, and its threads do not survive a fork; "
                        "use nogil=True kernels instead of parallel=True")
    if machine.compute is not None and 0 < machine.compute.mean < SHORT:
        warnings.warn(f"mean compute time {machine.compute.mean * 1e3:g} ms; processes are paced well from 2 ms on",
                      RuntimeWarning, stacklevel=3)
    if len(deployment) > 0xFFFF:
        raise ValueError(f"{len(deployment)} nodes; expected at most 65535")


# -- in the child ------------------------------------------------------------------------------------------


def _child(launch: _Launch, host: str, out: int, parent: int) -> None:
    """The life of one process; what it gives back goes through the pipe `out` to its parent only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before prctl
        os._exit(1)
    prctl(PR_SET_TIMERSLACK, 1000)  # ns; the default of 50 us is that much lateness at every timer
    os.close(launch.death[1])  # or our own copy would keep the pipe open
    for fd in launch.readers:
        os.close(fd)
    gc.freeze()  # else the first collection touches, and so copies, every page of the parent
    if launch.records == "pipe":
        logs.to_parent(lambda record: _tell(out, pickle.dumps(("record", record))))
    transport: Transport | None = None
    code = 0
    try:
        with threadpoolctl.threadpool_limits(1):
            transport = launch.network.connect(host)
            driver = Driver(host, launch.deployment, launch.machine, launch.seed, transport, launch.board,
                            launch.bell.ring, [launch.death[0]], launch.observe)
            logs.stamp_records(driver.standing)
            driver.run(_wait_for_start(launch, host, transport))
        data = _pickled(("ok", driver.values, driver.events, driver.seconds,
                         {node: record.figures() for node, record in driver.lateness.items()}))
    except Aborted:
        data, code = b"", 1
    except BaseException as error:
        data, code = _pickled_error(error), 1
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


def _wait_for_start(launch: _Launch, host: str, transport: Transport) -> float:
    """Say that this process is ready; when all start, in seconds of the monotonic clock."""
    board, words = launch.board.words, launch.board.of(host)
    words[BEAT] = time.monotonic_ns()
    words[READY] = 1
    launch.bell.ring()
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
        for node, value in message[1].items():
            try:
                pickle.dumps(value)
            except Exception:
                raise TypeError(f"the value that {node} returned cannot be pickled ({error})") from None
        raise


def _pickled_error(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    summary = f"{type(error).__name__}: {error}".splitlines() or [type(error).__name__]
    notes = [n for n in getattr(error, "__notes__", ()) if isinstance(n, str)]
    line = ", ".join([" ".join(s.strip() for s in summary), *notes])
    try:
        carried: BaseException | None = pickle.loads(pickle.dumps(error))
    except Exception:
        carried = None  # a class of which only the text can travel
    return pickle.dumps(("failed", time.monotonic(), line, text, carried))


# -- in the parent -----------------------------------------------------------------------------------------


class _Launch:
    """The processes of one run and what the launcher knows of them."""

    def __init__(self, deployment: Deployment, machine: Machine, seed: int, transport: str,
                 deadline: float | None, observe: int, records: str) -> None:
        self.deployment, self.machine, self.seed, self.observe = deployment, machine, seed, observe
        self.records = records
        self.host = machine.hosts(deployment)
        self.hosts = list(dict.fromkeys(self.host.values()))
        order = list(deployment)
        places = {h: frozenset(i for i, n in enumerate(order) if self.host[n] == h) for h in self.hosts}
        programs = {h: [(n, k) for n in order if self.host[n] == h for k in range(1 + len(deployment[n].responders))]
                    for h in self.hosts}
        self.board, self.bell, self.death = Board(programs), Bell(), os.pipe()
        self.network = NETWORKS[transport](self.hosts, places)  # type: ignore[arg-type]
        self.children: dict[str, BaseProcess] = {}
        self.pids: dict[str, int] = {}
        self.readers: dict[int, str] = {}  # read ends of result pipes
        self._data = {host: bytearray() for host in self.hosts}
        self._results: dict[str, Any] = {}
        self._watch = _Watch(self, deadline)
        self._before: tuple[int, int] | None = None
        self._closing = False

    def start(self) -> None:
        """Fork all processes."""
        context = mp.get_context("fork")
        for host in self.hosts:
            read, write = os.pipe()
            self.readers[read] = host
            child = context.Process(target=_child, name=host, args=(self, host, write, os.getpid()))
            with warnings.catch_warnings():
                # From 3.12 on forking beside threads warns.  Children use no lock of the parent's threads: they
                # drive programs, compute with one BLAS thread, and inherit compiled kernels.
                warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
                child.start()
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
        """Raise if a process died or a program failed: deaths first, then exceptions in order of time."""
        for host in gone:
            self.children[host].join()
            if host not in self._results:
                self._died(host)
        failed = sorted((r[1], h) for h, r in self._results.items() if r[0] == "failed")
        if failed:
            self._raised(failed[0][1])

    def _died(self, host: str) -> None:
        code = self.children[host].exitcode or 0
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += " (by hand, or by the kernel for want of memory)"
        else:
            how = f"ended with exit code {code} and no result"
        doing = "; ".join(str(s) for s in self.board.standing([host]))
        raise RunFailed(f"{host} (pid {self.pids[host]}) {how}: {doing}{self._waiters(host)}", host)

    def _raised(self, host: str) -> None:
        _, _, line, text, error = self._results[host]
        if isinstance(error, ForgottenYield):
            raise error
        cause = error if error is not None else ChildTraceback(text)
        if error is not None:
            cause.__cause__ = ChildTraceback(text)
        raise RunFailed(f"{host} (pid {self.pids[host]}): {line}", host, text) from cause

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
        rows = [self.board.of(h).tolist() for h in self.hosts] if self.board.words[START] else []
        sums = sum(r[SENT] for r in rows), sum(r[GOT] for r in rows)
        if not rows or not all(r[IDLE] for r in rows) or sums[0] != sums[1]:
            self._before = None
        elif sums != self._before:
            self._before = sums
        elif all(r[DONE] for r in rows):
            self._closing, self._before = True, None
            self.board.words[COMMAND] = CLOSE
            self._ring()
        else:
            self._deadlock()

    def _deadlock(self) -> None:
        now = time.monotonic() - self.board.words[START] / 1e9
        stuck = [s for s in self.board.standing() if s.program == 0 and s.doing.startswith("Recv")]
        lines = "; ".join(f"{s.node} at {s.place} waits for {s.doing}" for s in stuck)
        raise Deadlock(f"deadlock at {now:.6g} s: {lines}")

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
        for fd in [*self.readers, *self.death]:
            os.close(fd)
        self.readers.clear()
        self.network.close()
        self.bell.close()
        self.board.close()

    def result(self) -> Run:
        """What the processes gave back, on one clock."""
        values: dict[str, Any] = {}
        streams: list[list[Event]] = []
        lateness: dict[str, dict[str, float]] = {}
        seconds = 0.0
        for host in self.hosts:
            _, one, events, last, late = self._results[host]
            values |= one
            streams.append(events)
            lateness |= late
            seconds = max(seconds, last)
        events = merge(streams)
        thin(events, self.observe)
        drawn = sum(f["drawn"] for f in lateness.values())
        overrun = sum(f["overrun"] for f in lateness.values())
        if drawn > 0.1 and overrun > 0.05 * drawn:  # shorter runs measure their own start
            warnings.warn(f"real computing overran its drawn times by {overrun / drawn:.0%}: this machine is too slow "
                          "for the described one; use longer compute times or fewer workers", RuntimeWarning, stacklevel=3)
        order = list(self.deployment)
        return Run(Trace(events, order, seconds, self.machine.latency, self.machine.bandwidth,
                         {n: lateness[n] for n in order}), {n: values[n] for n in order})


class _Watch:
    """Deadlines: a run in which nothing goes on, a process that is stopped, a launcher that was stopped itself."""

    def __init__(self, launch: _Launch, deadline: float | None) -> None:
        self._launch, self._strict = launch, deadline
        self._effects: list[int] = []
        self._changed = self._looked = time.monotonic()
        self._slowest = 0.0
        self._reported: set[str] = set()

    @property
    def deadline(self) -> float:
        """Seconds without progress after which the run fails."""
        return self._strict if self._strict is not None else max(PATIENCE, ROUNDS * self._slowest)

    def look(self) -> None:
        """Called at each look of the launcher."""
        now = time.monotonic()
        launch = self._launch
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
        places = "; ".join(f"{s} for {now - s.since:.2g} s" for s in self._launch.board.standing()[:8])
        raise RunFailed(f"nothing went on for {now - self._changed:.2g} s (the deadline is {self.deadline:.2g} s): {places}")

    def _stopped(self, now: float) -> None:
        """Report a process that has been stopped; end the run at the deadline."""
        launch = self._launch
        for host in launch.hosts:
            beat = launch.words(host, BEAT) / 1e9
            if not beat or now - beat < SILENCE:
                self._reported.discard(host)
            elif _state(launch.pids[host]) == "stopped":
                what = f"{host} (pid {launch.pids[host]}) has been stopped for {now - beat:.1f} s"
                if host not in self._reported:
                    self._reported.add(host)
                    log.warning("%s; the run waits for it until %.0f s are over", what, self.deadline)
                if now - beat > self.deadline:
                    doing = "; ".join(str(s) for s in launch.board.standing([host]))
                    raise RunFailed(f"{what}: {doing}", host)


def _state(pid: int) -> str:
    """The state of a process as psutil names it, "gone" if there is none."""
    import psutil

    try:
        return str(psutil.Process(pid).status())
    except psutil.Error:
        return "gone"


__all__ = ["ChildTraceback", "Deadlock", "RunFailed", "Standing", "run"]
