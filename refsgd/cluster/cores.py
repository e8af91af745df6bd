"""Processors that the programs of one host share: of k that compute on c cores each proceeds at rate
min(1, c / k)."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Hashable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple

from refsgd.cluster.devices import UNLOADED, Load

Left = dict[Hashable, tuple[float, float]]


class _Share(NamedTuple):
    """Who computes, and how much service each program here will have had when this one ends [s]."""

    until: float
    program: Hashable


class Processors:
    """Egalitarian processor sharing: what an operating system's time slices come to as they get short.

    All who compute are served alike.  So whoever begins with w seconds of work, after each has been served
    for `level` seconds, ends at level + w: nobody overtakes, and one who begins moves *when* the others end,
    not in which order.

    Parameters
    ----------
    cores : int
        c, at least 1.

    References
    ----------
    Kleinrock, "Time-shared systems: a theoretical treatment", JACM 14(2), 1967.

    Examples
    --------
    Half a second of work takes a whole one beside another program, which loses as much:

    >>> host = Processors(cores=1)
    >>> host.begin("worker0", now=0.0, work=3.0)
    3.0
    >>> host.begin("server0", now=1.0, work=0.5)
    2.0
    >>> host.due("worker0")
    3.5
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        # until when service is counted, and how much each who is here has had since the host was idle
        self._now = self._level = 0.0
        self._here: list[_Share] = []  # who ends first comes first; of equals who began first
        self._ended: dict[Hashable, float] = {}

    def begin(self, program: Hashable, now: float, work: float) -> float:
        """A program begins to compute; others who do are slower from now on."""
        for end, (until, other) in list(self._ends()):
            if end > now:
                break
            self._ended[other] = end
            self._now, self._level = end, until
            del self._here[0]
        self._level = self._level + (now - self._now) / self._slowness(len(self._here)) if self._here else 0.0
        self._now = now
        self._ended.pop(program, None)
        insort(self._here, _Share(self._level + work, program), key=itemgetter(0))
        return self.due(program)

    def due(self, program: Hashable) -> float:
        """When a program ends what it began last, or has ended it."""
        if program in self._ended:
            return self._ended[program]
        return next(end for end, share in self._ends() if share.program == program)

    def _slowness(self, programs: int) -> float:
        return max(1.0, programs / self.cores)

    def _ends(self) -> Iterator[tuple[float, _Share]]:
        """Who ends when, if nobody else begins."""
        now, level = self._now, self._level
        for k, share in enumerate(self._here):
            now += max(0.0, share.until - level) * self._slowness(len(self._here) - k)
            level = share.until
            yield now, share


class Loaded(Processors):
    """The same where nodes have loads: a program with the share s of a core does s / f of its work a second
    while its load is f.

    Parameters
    ----------
    cores : float
        Infinite where every program has one of its own.
    loads : mapping
        The load of each program here.
    """

    def __init__(self, cores: float, loads: Mapping[Hashable, Load]) -> None:
        super().__init__(1)
        self._most, self._loads = cores, loads
        # since when the share of each program has not changed, and what was left of its work then
        self._left: Left = {}

    def begin(self, program: Hashable, now: float, work: float) -> float:
        """A program begins to compute; others who do are slower from now on."""
        self._ended.update((who, end) for end, who in self._until(now, self._left))
        self._ended.pop(program, None)
        self._cut(now, self._left, len(self._left), len(self._left) + 1)
        self._left[program] = now, work
        return self.due(program)

    def due(self, program: Hashable) -> float:
        """When a program ends what it began last, or has ended it."""
        if program in self._ended:
            return self._ended[program]
        return next(end for end, who in self._until(math.inf, dict(self._left)) if who == program)

    def _share(self, programs: int) -> float:
        return min(1.0, self._most / programs)

    def _until(self, now: float, left: Left) -> Iterator[tuple[float, Hashable]]:
        """Who ends until then and when, if nobody else begins; takes them out of `left`."""
        while left:
            share = self._share(len(left))
            ends = {who: self._loads[who].end(since, work / share) for who, (since, work) in left.items()}
            first = min(ends, key=ends.__getitem__)  # of equals who began first
            if ends[first] > now:
                return
            del left[first]
            self._cut(ends[first], left, len(left) + 1, len(left))
            yield ends[first], first

    def _cut(self, now: float, left: Left, was: int, programs: int) -> None:
        """From now on another number of programs computes: what is left of each."""
        if left and (share := self._share(was)) != self._share(programs):
            for who, (since, work) in left.items():
                left[who] = now, max(0.0, work - share * self._loads[who].done(since, now))


def of_hosts(cores: int | None,
             programs: Iterable[tuple[str, Hashable, Load | None]]) -> dict[str, Processors]:
    """The processors of hosts whose programs share them or have a load: each program's host, itself, and the
    load of its node."""
    hosts: dict[str, dict[Hashable, Load | None]] = {}
    for host, program, load in programs:
        hosts.setdefault(host, {})[program] = load
    found: dict[str, Processors] = {}
    for host, loads in hosts.items():
        few = math.inf if cores is None or len(loads) <= cores else cores
        if any(loads.values()):
            found[host] = Loaded(few, {program: load or UNLOADED for program, load in loads.items()})
        elif cores is not None and few == cores:
            found[host] = Processors(cores)
    return found
