"""The emulated links of one process, which messages occupy as in the simulator (see `refsgd.cluster.links`).

The process that sends a message serves the first link of its way; the message carries the start of its
transmission.  The process that receives it serves all others, each at the time when the head is due there, so
that heads are served in order.  The links of a group of hosts are served by several processes, whose common
memory holds the times when they are free.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from refsgd.cluster.links import Hop, Network
from refsgd.runtimes.engine import ARRIVE, HEAD
from refsgd.runtimes.processes.system import unnamed_file
from refsgd.trace import Use


class GroupLinks:
    """When each link of a group of hosts is free, for the processes that serve it.

    A process may be killed at any moment.  So the lock is one that the kernel frees with its holder, and a
    single store of eight bytes changes a time: a message whose receiver dies has occupied the link, or has
    not.

    Parameters
    ----------
    links : iterable of int
        Their indices in the network.
    file : int, optional
        A descriptor of the file that holds the times; by default a new one without a name, made before the
        fork.
    """

    def __init__(self, links: Iterable[int], file: int | None = None) -> None:
        import fcntl  # where there is fork there is this

        self._lockf, self._take, self._free = fcntl.lockf, fcntl.LOCK_EX, fcntl.LOCK_UN
        self._at = {link: k for k, link in enumerate(sorted(links))}
        self._file = unnamed_file("links") if file is None else file
        os.ftruncate(self._file, 8 * len(self._at))
        self._times: Any = None  # mapped by each process for itself

    def __contains__(self, link: int) -> bool:
        return link in self._at

    def times(self) -> Any:
        """When each link is free, in the order of their indices."""
        if self._times is None:
            memory = mmap.mmap(self._file, 8 * len(self._at))
            self._times = (ctypes.c_double * len(self._at)).from_buffer(memory)
        return self._times

    def serve(self, link: int, head: float, seconds: float) -> float:
        """Occupy a link for some seconds as soon as the head of a message is there and the link is free; when
        that is."""
        times, at = self.times(), self._at[link]
        self._lockf(self._file, self._take)
        try:
            start: float = max(head, times[at])
            times[at] = start + seconds
        finally:
            self._lockf(self._file, self._free)
        return start

    def close(self) -> None:
        """Give the file back, in the launcher."""
        os.close(self._file)


class Links:
    """The links of the ways that begin or end at the nodes of one process; `put` and `deliver` are its
    driver's: the one puts a call on the agenda, the other is called when a message arrives."""

    def __init__(self, network: Network, rank: Mapping[str, int], groups: GroupLinks | None,
                 put: Callable[..., None], deliver: Callable[..., None]) -> None:
        self.ways, self._rank, self._put, self._deliver = network.ways, rank, put, deliver
        self.free, self._groups = [0.0] * len(network.links), groups
        self.uses: list[Use] | None = [] if network.described else None
        #: when the last message of each node had left it
        self.left: dict[str, float] = {}

    def departs(self, src: str, to: str, now: float, nbytes: int) -> float:
        """When the first link of its way is free for a message; a message through memory needs none."""
        way = self.ways[src, to]
        return self._serve(way[0], now, src, to, nbytes) if way else now

    def enters(self, start: float, to: str, src: str, body: Any, number: int, nbytes: int,
               tag: int = 0) -> None:
        """A message that began to leave at `start`: put its head at the next link, or where there is none its
        arrival, on the agenda."""
        way, lag = self.ways[src, to], 0.0
        if way:
            _, byte_time, latency = way[0]
            lag = nbytes * byte_time
            self.left[src] = start + lag
            if len(way) > 1:
                self._put(start + latency, HEAD, self._rank[src], self._head, to, src, body, number, nbytes,
                          tag, way, 1, lag)
                return
            start += lag + latency
        self._put(start, ARRIVE, self._rank[src], self._deliver, to, src, body, number, nbytes, tag)

    def _head(self, head: float, to: str, src: str, body: Any, number: int, nbytes: int, tag: int,
              way: tuple[Hop, ...], at: int, lag: float) -> None:
        """The head of a message reaches a link of its way, which serves in this order; its tail is `lag`
        behind."""
        hop = way[at]
        start = self._serve(hop, head, src, to, nbytes)
        lag = max(nbytes * hop.byte_time, lag + (head - start))
        message = to, src, body, number, nbytes, tag
        if at + 1 < len(way):
            self._put(start + hop.latency_after, HEAD, self._rank[src], self._head, *message, way, at + 1,
                      lag)
        else:
            self._put(start + lag + hop.latency_after, ARRIVE, self._rank[src], self._deliver, *message)

    def _serve(self, hop: Hop, head: float, src: str, to: str, nbytes: int) -> float:
        link, seconds = hop.link, nbytes * hop.byte_time
        if self._groups is not None and link in self._groups:
            start = self._groups.serve(link, head, seconds)
        else:
            start = max(head, self.free[link])
            self.free[link] = start + seconds
        if self.uses is not None:
            self.uses.append(Use(link, start, start + seconds, src, to))
        return start
