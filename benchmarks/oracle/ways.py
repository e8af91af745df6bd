"""Messages on links that several nodes share: free times of links, and an agenda of heads and arrivals.

This is the rule of `refsgd.cluster.links`, written a second time.  Links serve heads in order of arrival.  Where
messages meet, on a link that is reached from several nodes or links, the arrival of a head is therefore an
event; messages that all come from one place keep their order and need no event.

References
----------
Lindley, "The theory of queues with a single server", Proc. Camb. Phil. Soc. 48, 1952.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from refsgd.cluster.links import Hop, Network
from refsgd.cluster.machine import Machine

LAST = 1 << 60  # a rank after all nodes that act at the same time
RESUME, HEAD, ARRIVE = range(3)  #: order at one time: nodes, heads, arrivals
PUSH, REQUEST, ANSWER = range(3)  #: kinds of messages, whose queueing is counted separately


class Part(NamedTuple):
    """One link of a message's path."""

    link: int
    busy: float  #: seconds that the link is busy
    lag: float  #: seconds until the tail has passed
    latency: float  #: seconds to the next link
    meets: bool  #: whether messages from several nodes or links meet there


Way = tuple[Part, ...]


class Agenda:
    """Messages in transit, and the next actions of nodes, in the order of time.

    Ties are broken as in every runtime: nodes, heads, arrivals, each by rank of the node.
    """

    def __init__(self, links: int) -> None:
        self.free = [0.0] * links
        self._heap: list[tuple[float, int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, time: float, order: int, rank: int, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call, with the time as its first argument."""
        self._sequence += 1
        heappush(self._heap, (time, order, rank, self._sequence, call, args))

    def run(self) -> None:
        """Run until the agenda is empty."""
        heap = self._heap
        while heap:
            time, _, _, _, call, args = heappop(heap)
            call(time, *args)

    def send(self, way: Way, time: float, rank: int, kind: int, direct: bool, call: Callable[..., None],
             *args: Any) -> None:
        """Send a message and call on its arrival; if `direct`, as soon as the arrival time is known."""
        if way:
            self._head(time, way, 0, 0.0, rank, kind, direct, call, args)
        else:
            self.at(time, ARRIVE, rank, call, *args)

    def _head(self, head: float, way: Way, place: int, lag: float, rank: int, kind: int, direct: bool,
              call: Callable[..., None], args: tuple[Any, ...]) -> None:
        """A message's head reaches a link, and then all following links at which no messages meet."""
        free = self.free
        while True:
            link, busy, least, latency, _ = way[place]
            start = free[link]
            if start > head:
                lag += head - start
            else:
                start = head
            free[link] = start + busy
            if least > lag:
                lag = least
            place += 1
            if place == len(way):
                break
            head = start + latency
            if way[place][4]:
                self._sequence += 1
                heappush(self._heap, (head, HEAD, rank, self._sequence, self._head,
                                      (way, place, lag, rank, kind, direct, call, args)))
                return
        if direct:
            call(start + lag + latency, *args)
        else:
            self.at(start + lag + latency, ARRIVE, rank, call, *args)


class Urgent(Agenda):
    """The first link of each path serves the lowest part first, without interrupting a message."""

    def __init__(self, links: int) -> None:
        super().__init__(links)
        self._waiting = defaultdict[int, list[Any]](list)
        self._order = count()

    def send(self, way: Way, time: float, rank: int, kind: int, direct: bool, call: Callable[..., None],
             *args: Any) -> None:
        """Queue a message; its part is the first of `args`."""
        if not way:
            super().send(way, time, rank, kind, direct, call, *args)
            return
        link = way[0].link
        heappush(self._waiting[link], (args[0], next(self._order), time, way, rank, kind, direct, call, args))
        if len(self._waiting[link]) == 1:
            self.at(max(self.free[link], time), RESUME, LAST, self._serve, link)

    def _serve(self, now: float, link: int) -> None:
        """Send the next message on a link that is free."""
        waiting = self._waiting[link]
        _, _, _, way, rank, kind, direct, call, args = heappop(waiting)
        self._head(now, way, 0, 0.0, rank, kind, direct, call, args)
        if waiting:
            self.at(self.free[link], RESUME, LAST, self._serve, link)


@dataclass(frozen=True)
class Ways:
    """The paths between n workers and K servers, with ranks from 0 to n+K-1."""

    links: int
    pushes: Sequence[Sequence[tuple[int, Way]]]  #: by worker, in the order in which it sends to servers
    answers: Sequence[Sequence[Way]]  #: by server and worker
    early: Sequence[bool]  #: by server, whether messages arrive in the order of a last link that all share
    crowded: frozenset[int] = frozenset()  #: nodes that share the links on which they send

    @functools.cached_property
    def timed(self) -> Ways:
        """The same paths, for messages that include requests.

        Requests take no time on a link. If several have waited for it, they reach the next link at the same
        time and are ordered by rank there, so each head is an event.
        """
        asked = {part.link for mine in self.pushes for _, way in mine for part in way}

        def each(way: Way) -> Way:
            return tuple(part._replace(meets=place > 0 and (part.meets or part.link in asked))
                         for place, part in enumerate(way))

        return replace(self, pushes=[[(k, each(way)) for k, way in mine] for mine in self.pushes],
                       answers=[[each(way) for way in back] for back in self.answers],
                       early=[False] * len(self.answers))

    @functools.cached_property
    def requests(self) -> list[list[tuple[int, Way]]]:
        """The ways of pushes, for messages without content."""
        return [[(k, tuple(part._replace(busy=0.0, lag=0.0) for part in way)) for k, way in mine]
                for mine in self.pushes]


def of_machine(machine: Machine, workers: int, servers: int | Sequence[int],
               sizes: Sequence[tuple[float, float]], rotated: bool) -> Ways:
    """The ways of a machine.

    `servers`: their number, or the server of each part; `sizes`: bytes of each part's push and answer;
    `rotated`: worker i sends to part i first.
    """
    network = Network.of(machine, workers, servers)
    n, ends = [f"worker{i}" for i in range(workers)], list(network.host)[workers:]
    found = {(a, b): network.way(a, b) for w in n for s in ends for a, b in ((w, s), (s, w))}
    meets = meeting(found)
    crowded = {src for (src, _), way in found.items() if way and way[0].link in meets}

    def orderly(server: str) -> bool:
        mine = [found[w, server] for w in n]
        waits = [hop.latency_after for w in n for hop in found[server, w][:-1]]
        return workers > 1 and all(mine) and all(waits) and len({way[-1].link for way in mine}) == 1 and all(
            hop.byte_time <= way[-1].byte_time for way in mine for hop in way)

    first = [i % len(ends) if rotated else 0 for i in range(workers)]
    order = [[*range(k, len(ends)), *range(k)] for k in first]
    return Ways(len(network.links),
                [[(k, parts(found[w, ends[k]], sizes[k][0], meets)) for k in mine]
                 for w, mine in zip(n, order, strict=True)],
                [[parts(found[s, w], back, meets) for w in n]
                 for s, (_, back) in zip(ends, sizes, strict=True)],
                [orderly(s) and s not in crowded for s in ends],
                frozenset(number for number, node in enumerate([*n, *ends]) if node in crowded))


def parts(way: Sequence[Hop], nbytes: float, meets: Collection[int]) -> Way:
    """A way for messages of this size."""
    return tuple(Part(hop.link, nbytes * hop.byte_time, nbytes * hop.byte_time, hop.latency_after,
                      hop.link in meets) for hop in way)


def meeting(ways: Mapping[tuple[str, str], Sequence[Hop]]) -> set[int]:
    """Links at which messages from several nodes or links meet."""
    sources: dict[int, set[Any]] = defaultdict(set)
    for (before, _), way in ways.items():
        here: Any = before
        for hop in way:
            sources[hop.link].add(here)
            here = hop.link, hop.latency_after
    return {link for link, found in sources.items() if len(found) > 1}
