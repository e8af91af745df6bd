"""Transport over shared memory: one byte ring per ordered pair of hosts, in an anonymous mapping made before the fork.

Waking needs no flags and no fences: whoever publishes bytes, or frees half a ring, rings the other side's
bell, which remembers; whoever sleeps silences its bell first and looks at the rings afterwards.  A ring's two
counters are aligned 8-byte words with one writer each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from refsgd.runtimes.board import Bell, Waiter, anonymous
from refsgd.runtimes.wire import Frame, Incoming, Outgoing, decoder, encode

if TYPE_CHECKING:
    from refsgd.runtimes.arena import Arenas

RING_BYTES = 1 << 20  # measured best at 4 kB to 45 MB a message: smaller ones stall, larger ones leave the cache


class Segment:
    """The memory and the bells of all hosts; n * n rings are affordable because untouched pages cost nothing.

    Parameters
    ----------
    hosts : sequence of str
    nodes : mapping of str to set of int
        For each host the places, in the deployment's order, of the nodes that live there.
    ring : int
        Bytes of one ring.
    arena : bool
        Whether large arrays lie in shared memory and are lent (`refsgd.runtimes.arena`).
    """

    def __init__(self, hosts: Sequence[str], nodes: Mapping[str, frozenset[int]], ring: int = RING_BYTES,
                 arena: bool = True) -> None:
        self.hosts, self.nodes, self.ring = list(hosts), nodes, ring
        self.arenas: Arenas | None = None
        if arena:
            from refsgd.runtimes.arena import Arenas  # not before it is needed: its compiled functions take a while to load

            with suppress(OSError):  # a system that counts every promised page may refuse; then arrays stream
                self.arenas = Arenas(hosts)
        self.bells = {host: Bell() for host in hosts}
        n = self._n = len(self.hosts)
        control = -(-16 * n * n // 4096) * 4096
        self._map = anonymous(control + n * n * ring)
        self._view = memoryview(self._map)
        self.words = self._view[: 16 * n * n].cast("Q")
        self._data = self._view[control:]

    def tail(self, src: int, to: int) -> int:
        """Index of the count of bytes written, by `src`; those of all rings into one host are neighbours."""
        return to * self._n + src

    def head(self, src: int, to: int) -> int:
        """Index of the count of bytes read, by `to`."""
        return self._n * self._n + src * self._n + to

    def bytes_of(self, src: int, to: int) -> memoryview:
        """The ring from `src` to `to`."""
        at = (src * self._n + to) * self.ring
        return self._data[at : at + self.ring]

    def connect(self, host: str) -> Rings:
        """The transport of one host; called in its process, whose large arrays lie in its arena from now on."""
        if self.arenas is not None:
            self.arenas.of(self.hosts.index(host)).adopt()
        return Rings(self, host)

    def forked(self) -> None:
        """All processes have been started: nothing to give back yet."""

    def close(self) -> None:
        """Give memory and bells back; in the launcher, when no process uses them any more."""
        for bell in self.bells.values():
            bell.close()
        if self.arenas is not None:
            self.arenas.close()
        self._data.release()
        self.words.release()
        self._view.release()
        self._map.close()


class Rings:
    """One host's end of the rings to and from all others.

    Its methods are those of every `refsgd.runtimes.node.Transport`.

    Parameters
    ----------
    segment : Segment
    host : str
        Which process this is.
    """

    def __init__(self, segment: Segment, host: str) -> None:
        me, hosts = segment.hosts.index(host), segment.hosts
        self._bell = segment.bells[host]
        self._bells = segment.bells
        self._out: dict[str, Outgoing] = {}
        self._in: list[Incoming | None] = []
        self._frames: list[Frame] = []
        self._hosts, self._arena = hosts, segment.arenas.of(me) if segment.arenas else None
        self._place = {other: partial(self._arena.place, k) for k, other in enumerate(hosts)} if self._arena else {}
        for k, other in enumerate(hosts):
            if k == me:
                self._in.append(None)
                continue
            self._out[other] = Outgoing(_writer(segment, me, k))
            fetch = partial(segment.arenas.of(k).fetch, me) if segment.arenas else None
            parts = decoder(self._frames.append, segment.nodes[other], segment.nodes[host], fetch=fetch)
            self._in.append(Incoming(_reader(segment, k, me, segment.bells[other]), parts))
        row = segment.tail(0, me)
        self._tails = segment.words[row : row + len(hosts)]
        self._seen = [0] * len(hosts)
        self._stalled: set[str] = set()
        self._waiter = Waiter(self._arrived)

    def _arrived(self) -> bool:
        return bool(self._tails.tolist() != self._seen)

    def post(self, host: str, body: Any, src: int, to: int, number: int, stamp: float) -> None:
        """Write a message, or queue what does not fit; never waits."""
        out = self._out[host]
        if out.post(encode(body, src, to, number, stamp, self._place.get(host))):
            self._bells[host].ring()
        if out.nbytes:
            self._stalled.add(host)

    def take(self) -> list[Frame]:
        """Move bytes both ways; the messages that are now complete, each channel's in order."""
        if self._stalled:
            for host in sorted(self._stalled):
                out = self._out[host]
                if out.flush():
                    self._bells[host].ring()
                if not out.nbytes:
                    self._stalled.discard(host)
        tails = self._tails.tolist()
        if tails == self._seen:
            return []
        for incoming, new, old in zip(self._in, tails, self._seen):
            if new != old and incoming is not None:
                incoming.pump()
        self._seen = tails  # what was published since is seen next time: the tail differs again
        frames = self._frames[:]
        self._frames.clear()
        return frames

    def soon(self, timeout: float) -> bool:
        """Whether a message comes in the next moment."""
        return self._waiter.soon(timeout)

    def wait(self, timeout: float, others: Sequence[int]) -> list[int]:
        """Sleep until something may have happened, at most `timeout` seconds; the readable ones of `others`."""
        ready = self._waiter.wait([self._bell.fileno(), *others], timeout)
        if self._bell.fileno() in ready:
            self._bell.drain()
            ready.remove(self._bell.fileno())
        return ready

    def knock(self) -> None:
        """End a `wait`, from another thread."""
        self._bell.ring()

    @property
    def unsent(self) -> int:
        """Bytes in the overflow queues."""
        return sum(self._out[host].nbytes for host in self._stalled)

    lost = ()  #: memory is never disconnected

    def sever(self, host: str = "") -> bool:
        """Nothing to do, so False: memory is never disconnected."""
        return False

    def forget(self, host: str) -> None:
        """A host has died: drop what waits for it, and take back what it was lent."""
        self._out[host].clear()
        self._stalled.discard(host)
        if self._arena is not None:
            self._arena.forget(self._hosts.index(host))

    def close(self) -> None:
        """Nothing to do: the memory goes with the process."""


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
            words[own] = tail  # published after the bytes; the bell's system call orders them on any processor
        return n

    return write


def _reader(segment: Segment, src: int, to: int, bell: Bell) -> Callable[[memoryview], int]:
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
            if head - told >= size // 2:  # a stalled sender has a full ring ahead of us: we shall pass here
                told = head
                bell.ring()
        return n

    return read_into
