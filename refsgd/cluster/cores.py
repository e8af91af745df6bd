"""Processors shared by the programs of one host: each of k programs on c cores runs at rate min(1, c / k),
divided by the crowding of k programs."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from refsgd.cluster.devices import UNLOADED, Load

Left = dict[Hashable, tuple[float, float]]


class _Share(NamedTuple):
    """A program that computes, and the service that each program will have had when this one ends [s]."""

    until: float
    program: Hashable


class Processors:
    """Egalitarian processor sharing, the limit of short time slices (Kleinrock, JACM 14(2), 1967).

    All programs receive service at the same rate.  A program that begins with w seconds of work when each
    has received `level` seconds ends at level + w.  So a new program changes *when* the others end, but not
    their order.  Half a second of work takes a second next to another program, which is delayed by the same
    time:

    >>> host = Processors(cores=1)
    >>> host.begin("worker0", now=0.0, work=3.0)
    3.0
    >>> host.begin("server0", now=1.0, work=0.5)
    2.0
    >>> host.due("worker0")
    3.5
    """

    def __init__(self, cores: float, crowding: Sequence[float] = ()) -> None:
        self.cores, self._crowding = cores, crowding or (1.0,)
        # service has been counted up to `_now`; each program here has had `_level` since the host was idle
        self._now = self._level = 0.0
        self._here: list[_Share] = []  # by end, then by start
        self._ended: dict[Hashable, float] = {}

    def begin(self, program: Hashable, now: float, work: float) -> float:
        """Begin to compute, which slows the others down; returns when the program ends."""
        for end, other in list(self._ends()):
            if end > now:
                break
            self._ended[other] = end
            self._now, self._level = end, self._here.pop(0).until
        self._level = self._level + (now - self._now) / self._slowness(len(self._here)) if self._here else 0.0
        self._now = now
        self._ended.pop(program, None)
        insort(self._here, _Share(self._level + work, program), key=itemgetter(0))
        return self.due(program)

    def due(self, program: Hashable) -> float:
        """When the program's latest work ends or has ended, unless others begin."""
        if program in self._ended:
            return self._ended[program]
        return next(end for end, who in self._ends() if who == program)

    def _slowness(self, programs: int) -> float:
        """The factor by which each of some programs is slower than one alone."""
        return max(1.0, programs / self.cores) * self._crowding[min(programs, len(self._crowding)) - 1]

    def _ends(self) -> Iterator[tuple[float, Hashable]]:
        """The end of each program, in order, unless others begin."""
        now, level = self._now, self._level
        for k, share in enumerate(self._here):
            now += max(0.0, share.until - level) * self._slowness(len(self._here) - k)
            level = share.until
            yield now, share.program


class Loaded(Processors):
    """Processors of nodes with loads: with the share s of a core and the load f, a program does s / f seconds
    of work per second; `cores` is infinite if every program has its own."""

    def __init__(self, cores: float, loads: Mapping[Hashable, Load], crowding: Sequence[float] = ()) -> None:
        super().__init__(cores, crowding)
        self._loads = loads
        # when the share of each program last changed, and the work that was left then
        self._left: Left = {}

    def begin(self, program: Hashable, now: float, work: float) -> float:
        """Begin to compute, which slows the others down; returns when the program ends."""
        self._ended.update((who, end) for end, who in self._until(now, self._left))
        self._ended.pop(program, None)
        self._cut(now, self._left, len(self._left), len(self._left) + 1)
        self._left[program] = now, work
        return self.due(program)

    def _ends(self) -> Iterator[tuple[float, Hashable]]:
        return self._until(math.inf, dict(self._left))

    def _until(self, now: float, left: Left) -> Iterator[tuple[float, Hashable]]:
        """The programs that end by then, and when, unless others begin; removes them from `left`."""
        while left:
            share = 1 / self._slowness(len(left))
            ends = {who: self._loads[who].end(since, work / share) for who, (since, work) in left.items()}
            first = min(ends, key=ends.__getitem__)  # of equal ends, the one that began first
            if ends[first] > now:
                return
            del left[first]
            self._cut(ends[first], left, len(left) + 1, len(left))
            yield ends[first], first

    def _cut(self, now: float, left: Left, was: int, programs: int) -> None:
        """Update what is left of each program's work, now that the number of programs changes."""
        if left and programs and (share := 1 / self._slowness(was)) != 1 / self._slowness(programs):
            for who, (since, work) in left.items():
                left[who] = now, max(0.0, work - share * self._loads[who].done(since, now))


def of_hosts(cores: int | None, crowding: Sequence[float],
             programs: Iterable[tuple[str, Hashable, Load | None]]) -> dict[str, Processors]:
    """The processors of hosts whose programs share cores, crowd each other or have loads; `programs` are
    (host, program, load of its node)."""
    hosts: dict[str, dict[Hashable, Load | None]] = {}
    for host, program, load in programs:
        hosts.setdefault(host, {})[program] = load
    found: dict[str, Processors] = {}
    for host, loads in hosts.items():
        few = math.inf if cores is None or len(loads) <= cores else cores
        if any(loads.values()):
            found[host] = Loaded(few, {who: load or UNLOADED for who, load in loads.items()}, crowding)
        elif few < math.inf or crowding:
            found[host] = Processors(few, crowding)
    return found
