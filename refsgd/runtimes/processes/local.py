"""The programs as OS processes of this computer, one for each host: the launcher forks them, lets them start
together, watches them, decides which failed first, and ends them."""

from __future__ import annotations

import logging
import multiprocessing as mp
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import threadpoolctl

from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine
from refsgd.effects import Deployment, Factory, roles
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.faults import KEEP, POLICIES, Fault, Halted, check, survives_workers, why_over
from refsgd.runtimes.fork import NO_FORK, can_fork, own_children
from refsgd.runtimes.processes import shared
from refsgd.runtimes.processes.child import live
from refsgd.runtimes.processes.driver import Beginning
from refsgd.runtimes.processes.logs import Records
from refsgd.runtimes.processes.reports import Failure, Outbox, Report, deadlock, join
from refsgd.runtimes.processes.status import ABORT, CLOSE, HALT, StatusTable
from refsgd.runtimes.processes.watch import Watch, state
from refsgd.runtimes.transports.shared_memory import Segment
from refsgd.runtimes.transports.tcp import Listeners
from refsgd.runtimes.transports.transport import WakeUp, wait_for
from refsgd.trace import Crashed, Event, Run

log = logging.getLogger("refsgd.processes")

LEAD = 0.03  # seconds from "all are ready" to the common start
GRACE = 0.1  # seconds to end by itself after a failure
LOOK = 0.05  # seconds between two checks by the launcher if nobody wakes it

#: called when all processes are ready, with their pids and their words of the status table, by node
OnStart = Callable[[dict[str, int], dict[str, Any]], None]
#: makes the part of a transport that exists before the fork: memory or listening sockets
MakeTransport = Callable[[Sequence[str], Mapping[str, frozenset[int]]], Segment | Listeners]
TRANSPORTS: dict[str, MakeTransport] = {"shm": Segment, "tcp": Listeners}


class Launch:
    """The processes of one run and the launcher's knowledge of them; arguments as in `run`."""

    def __init__(self, deployment: Deployment, machine: Machine, seed: int, transport: MakeTransport,
                 deadline: float | None, observe: int, on_death: str, faults: Sequence[Fault],
                 beginning: Beginning | None, journal: Callable[[Event], None] | None) -> None:
        self.deployment, self.machine, self.seed, self.observe = deployment, machine, seed, observe
        self.roles = roles(deployment)
        self.on_death, self.faults, self.beginning, self.journal = on_death, faults, beginning, journal
        links = Network(machine, deployment)
        self.process_of = links.host
        self.processes = list(dict.fromkeys(self.process_of.values()))
        self.dead = list(dict.fromkeys(self.process_of[n] for n in (beginning.dead if beginning else ())))
        self.endable = {node for node in deployment if deployment[node].survives}
        self.halts = on_death == "restart" and survives_workers(deployment)  # otherwise once all wait
        self.halted = 0.0  # when, in seconds since the start
        self.keep = KEEP if on_death in ("shrink", "restart") else 0
        _check_descriptors(len(self.processes), 6 if on_death == "stop" else 7)
        self._resources = ExitStack()
        try:
            self._make(transport, links)
        except OSError as error:  # too many descriptors, no memory
            self._resources.close()
            raise RunFailed(f"could not connect {len(self.processes)} processes: {error}") from None
        self.children: dict[str, BaseProcess] = {}
        self.pids: dict[str, int] = {}
        self._running: dict[int, str] = {}  # by the descriptor that becomes readable when it has ended
        self._reports: dict[str, Report] = {}
        self._watch = Watch(self, deadline)
        self._before: tuple[int, int] | None = None
        self._closing = False
        self._deaths: list[Event] = []  # and the events in crash logs

    def _make(self, transport: MakeTransport, links: Network) -> None:
        """Create what the processes share with each other and with the launcher."""
        order, later = list(self.deployment), self._resources.callback
        self.status = StatusTable({p: [(n, k) for n in order if self.process_of[n] == p
                                       for k in range(1 + len(self.deployment[n].handlers))]
                                   for p in self.processes})
        later(self.status.close)
        for process in self.dead:
            self.status.process[process].dead = 1
        self.status.run.deaths = len(self.dead)
        self.wake_up = WakeUp()
        later(self.wake_up.close)
        self.groups = shared.GroupLinks(links.shared) if links.shared else None
        if self.groups is not None:
            later(self.groups.close)
        self.death = os.pipe()  # closed when the launcher is gone
        for end in self.death:
            later(os.close, end)
        self.outboxes, self.crash_logs = dict[str, Outbox](), dict[str, Outbox]()
        for process in self.processes:
            self.outboxes[process] = Outbox()
            later(self.outboxes[process].close)
            if self.on_death != "stop":
                self.crash_logs[process] = Outbox()
                later(self.crash_logs[process].close)
        self.ends = transport(self.living, {p: frozenset(i for i, n in enumerate(order)
                                                         if self.process_of[n] == p) for p in self.living})
        later(self.ends.close)
        self.records = Records()

    def start(self) -> None:
        """Fork all processes."""
        context = mp.get_context("fork")
        for process in self.living:
            self.status.process[process].beat = time.monotonic_ns()  # from now on written by this process
            child = context.Process(target=live, name=process, args=(self, process, os.getpid()))
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
            self.children[process], self._running[child.sentinel] = child, process
            self.pids[process] = child.pid or 0
        self.ends.forked()

    def watch(self, on_start: OnStart | None = None) -> None:
        """Watch the processes until all have ended; `on_start` gets their pids and words of the status table
        by node when all are ready."""
        while self._running:
            ready = wait_for([*self._running, self.wake_up.fileno()],
                             0.001 if self._before is not None else self._continue_paused())
            if self.wake_up.fileno() in ready:
                self.wake_up.drain()
            self._judge([self._running.pop(fd) for fd in ready if fd in self._running])
            if self._closing:
                self._watch.closing()
            else:
                self._begin(on_start)
                self._count()
                self._watch.look()

    def _continue_paused(self) -> float:
        """Continue processes whose planned pause is over; returns the seconds until the next check."""
        look = LOOK
        for process in self.living:
            when = self.status.process[process].wake
            wait = when / 1e9 - time.monotonic()
            # it announces when to continue it and then stops itself; wait until it has
            if when and wait <= 0 and state(self.pids[process]) == "stopped":
                os.kill(self.pids[process], signal.SIGCONT)
            elif when:
                look = min(look, max(0.001, wait))
        return look

    def _judge(self, gone: Sequence[str]) -> None:
        """Handle processes that have ended: deaths first, then exceptions by time."""
        failed: list[tuple[Failure, str]] = []
        for process in gone:
            self.children[process].join()
            if process in self.dead:
                continue
            said = next(iter(self.outboxes[process].messages()), None)
            if isinstance(said, Report):
                self._reports[process] = said
            elif isinstance(said, Failure):
                failed.append((said, process))
            else:
                self._lost(process, self._died(process), None)
        for failure, process in sorted(failed, key=lambda one: one[0].time):
            self._lost(process, *failure.raised(process, f"pid {self.pids[process]}"))

    def _lost(self, process: str, error: BaseException, cause: BaseException | None) -> None:
        """Raise the error, or, if the run survives a death, tell all other processes."""
        began = bool(self.status.run.start)
        # a lower bound on the time to notice
        silent = (time.monotonic_ns() - self.status.process[process].beat) / 1e9
        if isinstance(error, RunFailed):
            error.silent = silent
        notices = [Crashed(self._now(), node, 0, str(error), silent)
                   for node, where in self.process_of.items() if where == process]
        survives = self.on_death != "stop" and isinstance(error, RunFailed) and began
        over = why_over([n for n, p in self.process_of.items() if p in (*self.dead, process)], self.roles)
        # more may die while the living are halted
        if not survives or over or (self._closing and not self.halted):
            with suppress(RuntimeError):  # a record that cannot be written: report the first failure
                self._write(notices if began and isinstance(error, RunFailed) else [])
            if survives and over:
                error.args = (f"{error}{over}",)
            raise error from cause
        self._write(notices)
        log.warning("%s; the run continues without it", error)
        self.dead.append(process)
        self._deaths += [*self.crash_logs[process].messages(), *notices]
        self.status.process[process].dead = 1
        self.status.run.deaths = len(self.dead)
        if self.halts:
            self._halt()
        self._wake_all()

    def _now(self) -> float:
        """Seconds of the run."""
        before = self.beginning.seconds if self.beginning is not None else 0.0
        return float(before + time.monotonic() - self.status.run.start / 1e9)

    def _write(self, notices: Sequence[Event]) -> None:
        """Write deaths to the record on behalf of the dead."""
        for event in notices if self.journal is not None else ():
            self.journal(event)  # type: ignore[misc]

    def give_up(self, process: str, error: RunFailed) -> None:
        """End a process that makes no progress."""
        self._lost(process, error, None)
        self.children[process].kill()

    def _died(self, process: str) -> RunFailed:
        code = self.children[process].exitcode
        if code is None:  # see `refsgd.runtimes.fork.own_children`
            how = "died; this program ignores SIGCHLD or takes all exit codes, so the cause is unknown"
        elif code < 0:
            named = -code in {*signal.Signals}  # those of real time are not
            how = f"was killed by {signal.Signals(-code).name if named else f'signal {-code}'}"
            planned = [f for f in self.faults if f.kind == "kill" and self.process_of.get(f.node) == process]
            if planned:
                how += f" (as planned: kill {planned[0].node} at step {planned[0].step})"
            elif code == -signal.SIGKILL:
                how += " (by a user, or by the kernel when out of memory)"
        else:
            how = f"ended with exit code {code} and no result"
        doing = "; ".join(str(s) for s in self.status.standing([process]))
        message = f"{process} (pid {self.pids[process]}) {how}: {doing}{self._waiters(process)}"
        return RunFailed(message, process)

    @property
    def living(self) -> list[str]:
        """Processes that have not died."""
        return [process for process in self.processes if process not in self.dead]

    def _waiters(self, process: str) -> str:
        """Which nodes waited, in words, for an error about `process`."""
        now = time.monotonic()
        others = [s for s in self.status.standing() if self.process_of[s.node] != process
                  and s.doing.startswith("Recv")]
        others.sort(key=lambda s: f" {process})" not in s.doing)  # first those that wait for it by name
        words = [f"{s.node} for {now - s.since:.2g} s in {s.doing}" for s in others[:4]]
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        return f"; waiting: {', '.join(words)}{more}" if words else ""

    def _begin(self, on_start: OnStart | None) -> None:
        """Start all processes together once all are ready."""
        if not self.status.run.start and all(self.status.process[p].ready for p in self.living):
            if on_start is not None:
                places = {n: p for n, p in self.process_of.items() if p in self.pids}
                on_start({n: self.pids[p] for n, p in places.items()},
                         {n: self.status.process[p] for n, p in places.items()})
            self.status.run.start = int((time.monotonic() + LEAD) * 1e9)
            self._wake_all()

    def _count(self) -> None:
        """End the run, or report a deadlock, when counting shows that nothing can happen any more.

        This is so if all processes are idle and as many messages were handled as sent, with equal counts at
        two checks (Mattern 1987): anything in between would have changed the second.
        """
        run, processes = self.status.run, [self.status.process[p] for p in self.living]
        settled = run.start and all(p.idle and p.noticed == len(self.dead) + run.hopeless for p in processes)
        sums = sum(p.sent for p in processes), sum(p.got for p in processes)
        if not settled or sums[0] != sums[1]:
            self._before = None
        elif sums != self._before:
            self._before = sums
        elif all(p.done for p in processes):
            self._end_with(CLOSE)
        else:
            self._standstill()

    def _end_with(self, command: int) -> None:
        self._closing, self._before = True, None
        self.status.run.command = command
        self._wake_all()

    def _halt(self) -> None:
        """End this attempt: all processes report their state, from which the next attempt continues."""
        self.halted = self._now()
        self._end_with(HALT)

    def _standstill(self) -> None:
        """Resolve a standstill: no message can arrive, but some main programs wait."""
        standings = self.status.standing(self.living)
        stuck = [s.node for s in standings if s.program == 0 and s.doing.startswith("Recv")]
        if self.dead and stuck and all(node in self.endable for node in stuck):
            self.status.run.hopeless += 1
            self._before = None
            self._wake_all()
        elif self.dead and self.on_death in ("shrink", "restart"):
            self._halt()
        else:
            raise deadlock(standings, self._now(), self.dead)

    def _wake_all(self) -> None:
        for wake_up in self.ends.wake_ups.values():
            wake_up.wake()

    def end(self) -> None:
        """End all processes and release everything; safe at any time."""
        if self._running:
            self.status.run.command = ABORT
            self._wake_all()
        end = time.monotonic() + GRACE
        while self._running and (left := end - time.monotonic()) > 0:
            for fd in wait_for([*self._running], left):
                del self._running[fd]
        for process in self._running.values():
            self.children[process].kill()
        clean = True  # no process was killed
        for child in self.children.values():
            child.join()
            clean &= child.exitcode == 0
            with suppress(ValueError):  # somebody else has taken its exit code
                child.close()
        self.records.end(clean)
        self._resources.close()

    def result(self) -> Run:
        """The reports of the processes as one run; raises `Halted` if another attempt can continue it."""
        self.records.closed.wait()
        reports = [self._reports[process] for process in self.living]
        run = join(reports, self.deployment, self.machine, self.observe, self._deaths,
                   self.beginning.events if self.beginning is not None else ())
        if self.halted:
            run.trace.seconds = self.halted
            raise Halted(run, {node: x for report in reports for node, x in report.kept.items()})
        return run


def _check_descriptors(processes: int, each: int) -> None:
    """Refuse a run that would exhaust file descriptors: pipes, wake-ups, listeners and sentinels of each
    process, and its crash log."""
    import resource  # exists wherever fork does

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed, free = each * processes + 16, limit - psutil.Process().num_fds()
    if limit != resource.RLIM_INFINITY and needed > free:
        raise RunFailed(f"{processes} processes need {needed} file descriptors and {free} are free; "
                        "raise the limit (ulimit -n) or use fewer nodes")


def run(factory: Factory | Deployment, machine: Machine | None = None, seed: int = 0, *,
        transport: str = "shm",
        deadline: float | None = None, on_start: OnStart | None = None,
        observe: int = 64, on_death: str = "stop", faults: Iterable[Fault] = (),
        journal: Callable[[Event], None] | None = None, beginning: Beginning | None = None,
        largest: int | None = None) -> Run:
    """Run a deployment as OS processes of this machine, paced to `machine`."""
    if not can_fork():
        raise RunFailed(f"{NO_FORK}: use WSL, or --runtime simulator")
    if mp.current_process().daemon:
        raise RunFailed("a daemon of multiprocessing, as the processes of a Pool are, may start no processes;"
                        " expected concurrent.futures.ProcessPoolExecutor, or the simulator")
    if transport not in TRANSPORTS:
        raise ValueError(f"transport {transport!r}; expected one of {', '.join(TRANSPORTS)}")
    if on_death not in POLICIES:
        raise ValueError(f"on_death {on_death!r}; expected one of {', '.join(POLICIES)}")
    machine = machine or Machine()
    deployment = beginning.deployment if beginning is not None else factory() if callable(
        factory) else factory
    faults = list(faults)
    check(faults, roles(deployment), machine.place(deployment))
    _check(deployment)
    shared.share_cells(deployment, beginning.tickets if beginning is not None else 0)
    make = TRANSPORTS[transport]
    if transport == "tcp" and largest is not None:
        make = partial(Listeners, largest=largest)
    launch = Launch(deployment, machine, seed, make, deadline, observe, on_death, faults, beginning,
                    journal)
    with own_children():
        try:
            with threadpoolctl.threadpool_limits(1):  # inherited, because finding the libraries takes a while
                launch.start()
            launch.watch(on_start)
        finally:
            launch.end()
    return launch.result()


def _check(deployment: Deployment) -> None:
    """Refuse a deployment that cannot be forked."""
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    if parallel is not None and getattr(parallel, "_is_initialized", False):
        raise RunFailed("a numba parallel region has run in this process, and its threads do not survive a "
                        "fork; use nogil=True kernels instead of parallel=True")
    if len(deployment) > 0xFFFF:
        raise ValueError(f"{len(deployment)} nodes; expected at most 65535")
