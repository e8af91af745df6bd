"""Transport over MPI or torch.distributed, and the counting by which all ranks agree that the run is over.

Both preserve the boundaries of messages, so a message is one frame, and neither offers anything to sleep on,
so waiting polls.  The run ends by the same counting as among local processes, as rounds of a non-blocking sum
over all ranks.  Every wait has a deadline: a rank that is late (stopped, or in a long Compute) is named if
possible, and the job is ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.processes.status import ABORT, CLOSE, StatusTable
from refsgd.runtimes.transports.transport import Transport
from refsgd.runtimes.transports.wire import (
    HEAD,
    LONGEST_DESCRIPTION,
    Frame,
    Incoming,
    WireError,
    decoder,
    encode,
)

if TYPE_CHECKING:
    from mpi4py import MPI

    from refsgd.runtimes.transports.gloo import Communicator

    Comm: TypeAlias = MPI.Comm | Communicator

MESSAGE, FAILED, CALL, HERE = range(7, 11)  # tags
SHORTEST, LONGEST = 20e-6, 1e-3  # naps [s]
QUIET = 0.1  # seconds of idleness after which a rank takes part in the counting before its mains return
# seconds without a message after which a rank that needs one gives up: long, because a Compute may be long
PATIENCE = 300.0
GRACE = 5.0  # seconds to hear of a failure before MPI_Abort
PULSE = 1.0  # seconds between two rounds of counting in which a busy rank takes part
ANSWER = 0.5  # seconds to answer a roll call


class Arrival(NamedTuple):
    """A message that has come; `read` gives its bytes."""

    source: int
    tag: int
    nbytes: int
    read: Callable[[], bytearray]


@singledispatch
def first(comm: Any, tag: int | None = None) -> Arrival | None:
    """The first message, or the first one with a tag, if it has come; over MPI, unless another kind of
    communicator is registered."""
    from mpi4py import MPI

    status = MPI.Status()
    message = comm.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG if tag is None else tag, status)

    def read() -> bytearray:
        data = bytearray(status.Get_count())
        message.Recv(data)
        return data

    return message and Arrival(status.Get_source(), status.Get_tag(), status.Get_count(), read)


def abort(comm: Comm, why: str) -> None:
    """End all ranks, with one line."""
    sys.stderr.write(f"refsgd: {why}; all ranks end\n")
    sys.stderr.flush()
    comm.Abort(1)


class Ranks(Transport):
    """The transport of one rank, and its part in the counting; if a rank or a connection is lost, MPI ends
    all.

    `comm` has a rank for each of `processes`, `rounds` is a duplicate for counting and roll calls; `nodes`
    are the indices of each rank's nodes, `table` is that of this rank.  After `deadline` seconds a rank gives
    up waiting for a message or a sign of life; a message has at most `largest` payload bytes, so that no rank
    can make another allocate more.
    """

    def __init__(self, comm: Comm, rounds: Comm, processes: Sequence[str],
                 nodes: Sequence[frozenset[int]], table: StatusTable, deadline: float, largest: int) -> None:
        self._processes, self._nodes, self._largest = processes, nodes, largest
        self._longest = HEAD.size + LONGEST_DESCRIPTION + largest
        now = time.monotonic()
        self._deadline, self._heard, self._looked, self._entered, self._pulse = (
            deadline, now, now, now, now + PULSE)
        self._comm, self._rounds = comm, rounds
        self._rank = {process: k for k, process in enumerate(processes)}
        self._words, self._run = table.process[processes[comm.rank]], table.run
        self._pending: list[tuple[Any, bytes | bytearray]] = []
        self._frames = []
        self._nap, self._knocked = SHORTEST, False
        self._mine, self._total = np.zeros(4, np.int64), np.zeros(4, np.int64)
        self._request: Any = None
        self._before: tuple[int, ...] | None = None
        self._idle_since: float | None = None
        self.started = 0  #: rounds of counting
        self.stuck = False
        self.terminated = False  #: whether SIGTERM has come: the next `take` fails

    def post(self, process: str, body: Any, src: int, to: int, number: int, stamp: float) -> None:
        frame = bytearray().join(encode(body, src, to, number, stamp, limit=self._largest))
        request = self._comm.Isend(frame, self._rank[process], MESSAGE)
        self._pending.append((request, frame))

    def take(self) -> list[Frame]:
        if self.terminated:
            raise RunFailed("terminated by SIGTERM")
        if self._pending:
            self._pending = [one for one in self._pending if not one[0].Test()]
        if time.monotonic() > self._pulse:
            self._count()
        while (arrival := first(self._comm)) is not None:
            data, src = self._receive(arrival), arrival.source
            if arrival.tag == FAILED:
                self._run.command = ABORT
                break
            try:
                self._decode(memoryview(data), src)
            except WireError as error:
                raise WireError(f"{self._processes[src]} (rank {src}) sent {error}") from None
        if self._frames:
            self._nap, self._heard = SHORTEST, time.monotonic()
        return self._completed()

    def _receive(self, arrival: Arrival) -> bytearray:
        """The bytes of a message; one that is longer than any frame ends the job, over MPI before memory is
        allocated for it."""
        src, _, count, read = arrival
        # MPI cannot refuse it: its sender would never return, and Open MPI does not survive truncating it
        if count > self._longest:
            abort(self._comm, f"{self._processes[src]} (rank {src}) sent a message of {count} bytes; "
                              f"expected at most {self._longest}")
        return read()

    def _decode(self, data: memoryview, src: int) -> None:
        """Check that these bytes are one frame of this run, and keep it."""
        length, *_, total = HEAD.unpack_from(data) if len(data) >= HEAD.size else (0, 0)
        if len(data) != HEAD.size + length + total:
            raise WireError(f"a message of {len(data)} bytes; expected one frame, of "
                            f"{HEAD.size + length + total} bytes according to its head")
        at = 0

        def read_into(view: memoryview) -> int:
            nonlocal at
            n = min(len(view), len(data) - at)
            view[:n] = data[at : at + n]
            at += n
            return n

        parts = decoder(self._frames.append, self._nodes[src], self._nodes[self._comm.rank], self._largest)
        Incoming(read_into, parts).pump()

    def soon(self, timeout: float) -> bool:
        return bool(self._comm.Iprobe())

    def wait(self, timeout: float, others: Sequence[int]) -> list[int]:
        """Nap until something may have happened, at most `timeout` seconds; take part in the counting."""
        self._count()
        end = time.monotonic() + timeout
        while not (self._knocked or self._run.command or self._comm.Iprobe()):
            left = end - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, self._nap))
            self._nap = min(LONGEST, 2 * self._nap)
            self._count()
        self._knocked = False
        return []

    def knock(self) -> None:
        self._knocked = True

    @property
    def unsent(self) -> int:
        return len(self._pending)

    def _count(self) -> None:
        """Rounds of a sum over (done, idle, sent, got): two equal rounds in which all are idle end the run.

        A rank takes part once its main programs have returned, when it has been idle for a while, and from
        time to time even if it is busy, so that an open round reveals a stopped rank.
        """
        words = self._words
        now = time.monotonic()
        if now - self._looked > PULSE:  # this rank itself was stopped or computed: accuse nobody
            self._heard = self._entered = now
        self._looked = now
        self._answer_calls()
        if not words.idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        if (self._idle_since is not None and not words.done
                and now - max(self._heard, self._idle_since) > self._deadline):
            raise RunFailed(
                f"no message for {now - self._heard:.3g} s (longer than the deadline of {self._deadline:g} "
                f"s){self._absent()}")
        if self._request is None:
            if now > self._pulse or (self._idle_since is not None
                                     and (words.done or now - self._idle_since > QUIET)):
                self._mine[:] = words.done, words.idle, words.sent, words.got
                self._entered, self._pulse = now, now + PULSE
                self.begin_round()
        elif self._request.Test():
            self._request = None
            done, idle, sent, got = sums = tuple(self._total.tolist())
            size = self._comm.size
            if idle == size and sent == got and sums == self._before:
                self.stuck = done < size
                self._run.command = ABORT if self.stuck else CLOSE
            self._before = sums
        elif now - self._entered > self._deadline:
            raise RunFailed(
                f"no sign of life from some rank for {now - self._entered:.3g} s (longer than the deadline "
                f"of {self._deadline:g} s){self._absent()}")

    def _answer_calls(self) -> None:
        """Answer roll calls."""
        while (call := first(self._rounds, CALL)) is not None:
            call.read()
            self._pending.append((self._rounds.Isend(b"", call.source, HERE), b""))

    def _absent(self) -> str:
        """Call the roll: the ranks that do not answer, in words, for the end of an error."""
        absent, end = set(range(self._comm.size)) - {self._comm.rank}, time.monotonic() + ANSWER
        for rank in absent:
            self._pending.append((self._rounds.Isend(b"", rank, CALL), b""))
        while absent and time.monotonic() < end:
            self._answer_calls()
            while (here := first(self._rounds, HERE)) is not None:
                here.read()
                absent.discard(here.source)
            time.sleep(LONGEST)
        names = [f"{self._processes[rank]} (rank {rank})" for rank in sorted(absent)]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f"; stopped, or in a long Compute: {', '.join(names[:4])}{more}" if names else ""

    def begin_round(self) -> None:
        """Contribute this rank's numbers to the next sum."""
        self.started += 1
        self._request = self._rounds.Iallreduce(self._mine, self._total)

    def finish_rounds(self, count: int) -> None:
        """Take part in all rounds that any rank has begun, because an open collective never completes."""
        while True:
            if self._request is not None:
                self._request.Wait()
                self._request = None
            if self.started >= count:
                return
            self.begin_round()

    def fail(self) -> None:
        """Tell all others that a program here has raised an exception."""
        for rank in range(self._comm.size):
            if rank != self._comm.rank:
                self._pending.append((self._comm.Isend(b"", rank, FAILED), b""))

    def meet(self, line: str) -> None:
        """Wait until all ranks have finished; if that takes too long, end the job with a line."""
        request, patience = self._comm.Ibarrier(), GRACE if line else self._deadline
        end = time.monotonic() + patience
        while not request.Test():
            self._answer_calls()
            if time.monotonic() > end:
                why = (f"{line}; not all ranks heard of it" if line
                       else f"{self._processes[self._comm.rank]} (rank {self._comm.rank}): "
                            "not all ranks ended")
                abort(self._comm, f"{why} within {patience:g} s{self._absent()}")
            time.sleep(LONGEST)

    def drain(self) -> None:
        """Receive messages still in transit, so that none of them reaches the next run."""
        barrier: Any = None
        while barrier is None or not barrier.Test():
            while (arrival := first(self._comm)) is not None:
                self._receive(arrival)
            if barrier is None and all(request.Test() for request, _ in self._pending):
                barrier = self._comm.Ibarrier()
            time.sleep(SHORTEST)
