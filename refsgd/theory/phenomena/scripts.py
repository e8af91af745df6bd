"""Peers that compute, send and wait for each other in a fixed order, on links that several of them share.

A step of a script is work, a message to another peer, or a wait for another peer's next message.  Times
decide only how long peers wait, not for which peer, so the times follow a recursion of max and plus.  Links
serve messages in order of arrival (`refsgd.theory.phenomena.ways`).

References
----------
Baccelli, Cohen, Olsder, Quadrat, "Synchronization and linearity", 1992: recursions of max and plus.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from refsgd.cluster.distributions import Distribution
from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine
from refsgd.theory.estimate import Uncovered, certain
from refsgd.theory.phenomena.ring import Rounds, summary
from refsgd.theory.phenomena.ways import PUSH, RESUME, Agenda, Way, meeting, parts

Step = tuple[int, int, float]  # kind, other peer, seconds or bytes
WORK, SEND, RECEIVE, MARK, BACK, TAKE = range(6)  # the last two: messages of another kind
Script = Iterator[Step]

EVENTS = 200_000  # at most, in one evaluation
REPLICAS = 64


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


def around(n: int) -> list[tuple[int, int]]:
    """Senders and receivers of a ring."""
    return [(i, (i + 1) % n) for i in range(n)]


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


def wired(machine: Machine, n: int, pairs: Iterable[tuple[int, int]]) -> tuple[
        int, Callable[[int, int, float], Way], float]:
    """The number of links, the path of a message between `pairs` of n peers, and the events that it takes."""
    network = Network.of(machine, n)
    found = {(f"worker{i}", f"worker{j}"): network.way(f"worker{i}", f"worker{j}") for i, j in pairs}
    meets = meeting(found)
    hops = sum(1 + sum(hop.link in meets for hop in way) for way in found.values()) / max(len(found), 1)

    @functools.cache
    def way(i: int, j: int, nbytes: float) -> Way:
        return parts(found[f"worker{i}", f"worker{j}"], nbytes, meets)

    return len(network.links), way, hops


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


def rounds(machine: Machine, times: Sequence[Distribution], own: Sequence[Distribution | None],
           gradients: Sequence[int], pairs: Iterable[tuple[int, int]], messages: int, script: Order, *,
           before: int = 0, after: int = 1, works: int | None = None, more: int = 0, drawn: int = EVENTS,
           many: str = "", seed: int = 1992) -> Rounds:
    """Rounds of gradients, each with `before` own updates, and of `after` own updates.

    `pairs` exchange `messages` in a round, in which there are `works` pieces of work, by default one for each
    peer.  `drawn`: events of all replicas; `many`: what is too much to evaluate.  With `more` rounds behind
    them, the rounds have the pace of the long run.
    """
    n = len(times)
    links, way, hops = wired(machine, n, pairs)
    random = not certain(*times, *own)
    events, least = messages * hops + (n if works is None else works), 4 if random else 1
    if events * least * 2 > (drawn if random else EVENTS):
        raise Uncovered(many or f"the recursion of waiting times has no closed form, and {messages} messages "
                        f"of {n} peers at a time on shared links are too many to evaluate it")
    seen = gradients[:max(2, int(EVENTS / (events * (12 if random else 1))))]
    replicas = max(least, min(REPLICAS, int(drawn / (events * len(seen))))) if random else 1
    every = [*seen, *[1] * more]
    rng, ends = np.random.default_rng(seed), np.zeros((replicas, len(every), n))
    total, small = sum(every), sum(every) * before + len(every) * after
    for r in range(replicas):
        computing = [iter(time.sample(rng, total).tolist()) for time in times]
        updating = [iter([0.0] * small if u is None else u.sample(rng, small).tolist()) for u in own]
        peers = Peers(links, way, [script(i, every, computing[i], updating[i]) for i in range(n)])
        ends[r] = np.array(peers.ends).T
    return summary(ends[:, :len(seen)], seen, gradients, random)
