"""Peers that compute, send and wait for each other in a fixed order, on links that several of them share.

A step of a script is work, a message to another peer, or a wait for another peer's next message.  Times
decide only how long peers wait, not for which peer, so the times follow a recursion of max and plus.  Links
serve messages in order of arrival (`benchmarks.oracle.ways`).

References
----------
Baccelli, Cohen, Olsder, Quadrat, "Synchronization and linearity", 1992: recursions of max and plus.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks.oracle.ways import PUSH, RESUME, Agenda, Way, meeting, parts
from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine

Step = tuple[int, int, float]  # kind, other peer, seconds or bytes
WORK, SEND, RECEIVE, MARK, BACK, TAKE = range(6)  # the last two: messages of another kind
Script = Iterator[Step]

class Peers:
    """Peers that follow their scripts; `ends`: when each reached its marks."""

    def __init__(self, links: int, way: Callable[[int, int, float], Way], scripts: Sequence[Script]) -> None:
        self.agenda, self.way, self.scripts = Agenda(links), way, scripts
        self.ends: list[list[float]] = [[] for _ in scripts]
        self.there = Counter[tuple[int, int, int]]()  # messages that arrived before the wait for them
        self.awaited = dict[int, tuple[int, int]]()  # for each waiting peer, the sender and the kind
        for i in range(len(scripts)):
            self.proceed(0.0, i)
        self.agenda.run()

    def proceed(self, now: float, i: int) -> None:
        """Follow a peer's script until it must wait."""
        for what, other, much in self.scripts[i]:
            if what == WORK and much:
                self.agenda.at(now + much, RESUME, i, self.proceed, i)
                return
            if what in (SEND, BACK):
                self.agenda.send(self.way(i, other, much), now, i, PUSH, False, self.arrived, i, other, what)
            elif what in (RECEIVE, TAKE):
                kind = SEND if what == RECEIVE else BACK
                if not self.there[other, i, kind]:
                    self.awaited[i] = other, kind
                    return
                self.there[other, i, kind] -= 1
            elif what == MARK:
                self.ends[i].append(now)

    def arrived(self, now: float, src: int, to: int, kind: int) -> None:
        """A message has arrived."""
        if self.awaited.get(to) == (src, kind):
            del self.awaited[to]
            self.proceed(now, to)
        else:
            self.there[src, to, kind] += 1


def ring(i: int, n: int, sizes: Sequence[int], reduction: float) -> Iterable[Step]:
    """Rank i's part of an allreduce: chunks of these sizes travel round the ring twice."""
    yield from reduced(i, n, sizes, reduction, empty=True)
    yield from gathered(i, n, sizes, empty=True)


def reduced(i: int, n: int, sizes: Sequence[int], reduction: float, empty: bool = False) -> Iterable[Step]:
    """Rank i's part of a reduce-scatter, in which `empty` chunks travel or do not."""
    for step in range(n - 1):
        yield from _passed(i, n, sizes, (i - 1 - step) % n, empty)
        yield WORK, i, reduction * sizes[(i - 2 - step) % n]


def gathered(i: int, n: int, sizes: Sequence[int], empty: bool = False) -> Iterable[Step]:
    """Rank i's part of an all-gather."""
    for step in range(n - 1):
        yield from _passed(i, n, sizes, (i - step) % n, empty)


def _passed(i: int, n: int, sizes: Sequence[int], k: int, empty: bool) -> Iterable[Step]:
    """Rank i passes chunk k on, and receives the one before it."""
    if empty or sizes[k]:
        yield SEND, (i + 1) % n, sizes[k]
    if empty or sizes[k - 1]:
        yield RECEIVE, (i - 1) % n, 0


Exchange = Callable[[int, int], Iterable[Step]]  # by peer and round
#: by peer, gradients of each round, and the seconds of its gradients and of its updates
Order = Callable[[int, Sequence[int], Iterator[float], Iterator[float]], Script]


def wired(machine: Machine, n: int) -> tuple[int, Callable[[int, int, float], Way]]:
    """The number of links, and the path of a message between two of n peers."""
    network, names = Network.of(machine, n), [f"worker{i}" for i in range(n)]
    found = {(a, b): network.way(a, b) for a in names for b in names if a != b}
    meets = meeting(found)

    @functools.cache
    def way(i: int, j: int, nbytes: float) -> Way:
        return parts(found[names[i], names[j]], nbytes, meets)

    return len(network.links), way


def periodic(exchange: Exchange, *, first: Exchange | None = None, before: int = 0, after: int = 0) -> Order:
    """Rounds of gradients, each followed by `before` own updates, then an exchange and `after` own updates.

    `first` comes before a round's gradients.
    """

    def script(i: int, gradients: Sequence[int], times: Iterator[float], updates: Iterator[float]) -> Script:
        for k, h in enumerate(gradients):
            yield from first(i, k) if first else ()
            for _ in range(h):
                yield WORK, i, next(times)
                for _ in range(before):
                    yield WORK, i, next(updates)
            yield from exchange(i, k)
            for _ in range(after):
                yield WORK, i, next(updates)
            yield MARK, i, 0

    return script
