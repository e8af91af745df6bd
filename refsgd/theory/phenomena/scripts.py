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
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from refsgd.cluster.distributions import Distribution
from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine
from refsgd.theory.estimate import Estimate, Uncovered, Values
from refsgd.theory.phenomena.ring import Rounds
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


def rounds(machine: Machine, times: Sequence[Distribution], own: Sequence[Distribution | None],
           gradients: Sequence[int], pairs: Iterable[tuple[int, int]], messages: int,
           exchange: Exchange | None = None, *, first: Exchange | None = None, before: int = 0,
           after: int = 0, step: Callable[[int, float, float], Iterable[Step]] | None = None) -> Rounds:
    """Rounds of gradients, each followed by `before` own updates, then an exchange and `after` own updates.

    `pairs` exchange `messages` in a round; `first` comes before a round's gradients.  A `step` is a whole
    round of one gradient and one update, by peer and their seconds.
    """
    n = len(times)
    links, way, hops = wired(machine, n, pairs)
    random = any(time.family != "fixed" for time in (*times, *own) if time is not None)
    events, least = messages * hops + n, 4 if random else 1
    if events * least * 2 > EVENTS:
        raise Uncovered(f"the recursion of waiting times has no closed form, and {messages} messages of {n} "
                        "peers at a time on shared links are too many to evaluate it")
    seen = gradients[:max(2, int(EVENTS / (events * (12 if random else 1))))]
    replicas = max(least, min(REPLICAS, int(EVENTS / (events * len(seen))))) if random else 1
    rng, ends = np.random.default_rng(1992), np.zeros((replicas, len(seen), n))

    def script(i: int, computing: list[float], updating: list[float]) -> Script:
        left, updates = iter(computing), iter(updating)
        for k, h in enumerate(seen):
            yield from step(i, next(left), next(updates)) if step else ()
            yield from first(i, k) if first else ()
            for _ in range(0 if step else h):
                yield WORK, i, next(left)
                for _ in range(before):
                    yield WORK, i, next(updates)
            yield from exchange(i, k) if exchange else ()
            for _ in range(0 if step else after):
                yield WORK, i, next(updates)
            yield MARK, i, 0

    total, small = sum(seen), sum(seen) * before + len(seen) * after
    for r in range(replicas):
        drawn = [time.sample(rng, total).tolist() for time in times]
        paid = [[0.0] * small if u is None else u.sample(rng, small).tolist() for u in own]
        peers = Peers(links, way, [script(i, drawn[i], paid[i]) for i in range(n)])
        ends[r] = np.array(peers.ends).T
    return summary(ends, seen, gradients, random)


def summary(ends: Values, seen: Sequence[int], gradients: Sequence[int], random: bool) -> Rounds:
    """Pace and end, from the times at which rounds ended (replicas, rounds, peers)."""
    mean, low = ends.mean(axis=2), len(seen) // 3
    middle = (low + len(seen)) // 2

    def pace(a: int, b: int) -> Values:
        return np.asarray((mean[:, b - 1] - (mean[:, a - 1] if a else 0.0)) / (b - a))

    each = Estimate.of(pace(low, len(seen)), random)
    steady = random or (low > 0 and math.isclose(float(pace(low, middle)[0]), each.value, rel_tol=1e-9))
    unseen = math.fsum(gradients[len(seen):]) / max(seen[-1], 1)
    return Rounds(each, Estimate.of(ends[:, -1].max(axis=1), random).continued(unseen, each), steady,
                  random or len(seen) == len(gradients))
