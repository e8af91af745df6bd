"""Transport over shared memory: one byte ring for each ordered pair of processes, mapped before the fork.

Waking needs no flags and no fences: a process that publishes bytes, or frees half a ring, wakes the other
side, whose wake-up remembers it; before sleeping, a process clears its wake-up and then checks the rings.  A
ring's two counters are aligned 8-byte words with one writer each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from refsgd.runtimes.transports.blocks import Pools
from refsgd.runtimes.transports.transport import Transport, Waiter, WakeUp, anonymous
from refsgd.runtimes.transports.wire import Frame, Incoming, Outgoing, decoder, encode

# measured best at 4 kB to 45 MB a message: smaller ones stall, larger ones leave the cache
RING_BYTES = 1 << 20


class Segment:
    """The memory and wake-ups of all processes; n * n rings are cheap because untouched pages cost nothing.

    `nodes` are the indices of each process's nodes in the deployment, `ring` the bytes of a ring; with `pool`
    receivers read large arrays in place (`refsgd.runtimes.transports.blocks`).
    """

    def __init__(self, processes: Sequence[str], nodes: Mapping[str, frozenset[int]], ring: int = RING_BYTES,
                 pool: bool = True) -> None:
        self.processes, self.nodes, self.ring = list(processes), nodes, ring
        self.pools: Pools | None = None
        if pool:
            with suppress(OSError):  # a system that counts reserved pages may refuse; then arrays stream
                self.pools = Pools(processes)
        self.wake_ups = {process: WakeUp() for process in processes}
        n = self._n = len(self.processes)
        control = -(-16 * n * n // 4096) * 4096
        self._map = anonymous(control + n * n * ring)
        self._view = memoryview(self._map)
        self.words = self._view[: 16 * n * n].cast("Q")
        self._data = self._view[control:]

    def tail(self, src: int, to: int) -> int:
        """Index of the count of bytes written, by `src`; those of all rings into a process are neighbours."""
        return to * self._n + src

    def head(self, src: int, to: int) -> int:
        """Index of the count of bytes read, by `to`."""
        return self._n * self._n + src * self._n + to

    def bytes_of(self, src: int, to: int) -> memoryview:
        """The ring from `src` to `to`."""
        at = (src * self._n + to) * self.ring
        return self._data[at : at + self.ring]

    def connect(self, process: str) -> Rings:
        """The transport of one process; called in its process."""
        return Rings(self, process)

    def forked(self) -> None:
        """All processes have been started: there is nothing to release yet."""

    def close(self) -> None:
        """Release memory and wake-ups; in the launcher, once no process uses them any more."""
        for wake_up in self.wake_ups.values():
            wake_up.close()
        if self.pools is not None:
            self.pools.close()
        self._data.release()
        self.words.release()
        self._view.release()
        self._map.close()


class Rings(Transport):
    """One process's end of the rings to and from all others; memory is never disconnected."""

    def __init__(self, segment: Segment, process: str) -> None:
        me, processes = segment.processes.index(process), segment.processes
        self._wake_up = segment.wake_ups[process]
        self._wake_ups = segment.wake_ups
        self._out: dict[str, Outgoing] = {}
        self._in: list[Incoming | None] = []
        self._frames = []
        self._processes, self._pool = processes, segment.pools.of(me) if segment.pools else None
        self._lend = {other: partial(self._pool.lend, k)
                      for k, other in enumerate(processes)} if self._pool else {}
        for k, other in enumerate(processes):
            if k == me:
                self._in.append(None)
                continue
            self._out[other] = Outgoing(_writer(segment, me, k))
            borrow = partial(segment.pools.of(k).borrow, me) if segment.pools else None
            parts = decoder(self._frames.append, segment.nodes[other], segment.nodes[process], borrow=borrow)
            self._in.append(Incoming(_reader(segment, k, me, segment.wake_ups[other]), parts))
        row = segment.tail(0, me)
        self._tails = segment.words[row : row + len(processes)]
        self._seen = [0] * len(processes)
        self._stalled: set[str] = set()
        self._waiter = Waiter(self._arrived)

    def _arrived(self) -> bool:
        return bool(self._tails.tolist() != self._seen)

    def post(self, process: str, body: Any, src: int, to: int, number: int, stamp: float) -> None:
        out = self._out[process]
        if out.post(encode(body, src, to, number, stamp, self._lend.get(process))):
            self._wake_ups[process].wake()
        if out.nbytes:
            self._stalled.add(process)

    def take(self) -> list[Frame]:
        if self._stalled:
            for process in sorted(self._stalled):
                out = self._out[process]
                if out.flush():
                    self._wake_ups[process].wake()
                if not out.nbytes:
                    self._stalled.discard(process)
        tails = self._tails.tolist()
        if tails == self._seen:
            return []
        for incoming, new, old in zip(self._in, tails, self._seen):
            if new != old and incoming is not None:
                incoming.pump()
        self._seen = tails  # bytes published since are noticed next time, because the tail differs again
        return self._completed()

    def wait(self, timeout: float, others: Sequence[int]) -> list[int]:
        ready = self._waiter.wait([self._wake_up.fileno(), *others], timeout)
        if self._wake_up.fileno() in ready:
            self._wake_up.drain()
            ready.remove(self._wake_up.fileno())
        return ready

    @property
    def unsent(self) -> int:
        return sum(self._out[process].nbytes for process in self._stalled)

    def forget(self, process: str) -> None:
        """A process has died: drop what waits for it, and take back what it was lent."""
        self._out[process].clear()
        self._stalled.discard(process)
        if self._pool is not None:
            self._pool.forget(self._processes.index(process))


def _writer(segment: Segment, src: int, to: int) -> Callable[[memoryview], int]:
    words, data, size = segment.words, segment.bytes_of(src, to), segment.ring
    own, other = segment.tail(src, to), segment.head(src, to)
    tail = 0

    def write(view: memoryview) -> int:
        nonlocal tail
        n, at = len(view), tail % size
        if n <= size - (tail - words[other]) and n <= size - at:  # nearly always
            data[at : at + n] = view
        else:
            n = min(n, size - (tail - words[other]))
            first = min(n, size - at)
            data[at : at + first] = view[:first]
            data[: n - first] = view[first:n]
        if n:
            tail += n
            # published after the bytes; the wake-up's system call orders them on any processor
            words[own] = tail
        return n

    return write


def _reader(segment: Segment, src: int, to: int, wake_up: WakeUp) -> Callable[[memoryview], int]:
    words, data, size = segment.words, segment.bytes_of(src, to), segment.ring
    own, other = segment.head(src, to), segment.tail(src, to)
    head = told = 0

    def read_into(view: memoryview) -> int:
        nonlocal head, told
        length, there, at = len(view), words[other] - head, head % size
        n = length if length < there else there
        if n:
            if n == length and n <= size - at:  # nearly always
                view[:] = data[at : at + n]
            else:
                first = min(n, size - at)
                view[:first] = data[at : at + first]
                view[first:n] = data[: n - first]
            head += n
            words[own] = head
            if head - told >= size // 2:  # a stalled sender has a full ring ahead, so we always get here
                told = head
                wake_up.wake()
        return n

    return read_into
