"""Links inside a host, between hosts and between groups of hosts, and the paths of messages over them.

A message of m bytes occupies the links of its path in turn, cut-through: each link passes the head on as soon
as it begins to serve the message.  Let h be the arrival of the head at a link, b the link's seconds per byte,
and `lag` the time from the arrival of the head to that of the tail (0 at the first link)::

    start = max(h, free);   free = start + m b
    lag   = max(m b, lag + h - start)
    next link: h = start + latency;   after the last link: arrival = start + lag + latency

So a link serves one message at a time, in the order in which heads arrive, and is busy for m b with each.
The tail of a message from a slow link is late even if the next link is fast.  Half duplex: both directions
are one link.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from refsgd.cluster import placement, units
from refsgd.cluster.checks import check_keys, plain_fields, prefixed, wrong_type
from refsgd.cluster.distributions import is_number
from refsgd.effects import Deployment, Node, Program, Role

if TYPE_CHECKING:
    from refsgd.cluster.machine import Machine


@dataclass(frozen=True)
class Link:
    """Latency, bandwidth and duplex of the links of one level.

    Parameters
    ----------
    latency : float or str
        Seconds until the first byte of a message has passed, >= 0; or text such as ``"25us"``.
    bandwidth : float or str
        Bytes per second in each direction; > 0, may be infinite; or text such as ``"10Gbps"``.
    duplex : {"full", "half"}
        Whether the two directions are two links, or one that serves both first come, first served.

    Examples
    --------
    >>> Link.of("25us,10Gbps") == Link("25us", 1.25e9)
    True
    >>> print(Link(1e-5, "32GB/s", "half"))
    10 us, 32 GB/s, half duplex
    """

    latency: float = 0.0
    bandwidth: float = math.inf
    duplex: str = "full"

    def __post_init__(self) -> None:
        for name, read, unit, expected in (
                ("latency", units.seconds, "s", "a finite number of seconds >= 0"),
                ("bandwidth", units.bytes_per_second, "bytes/s",
                 "a number of bytes/s > 0 (inf: unlimited)")):
            value = getattr(self, name)
            if isinstance(value, str):
                with prefixed(f"{name} "):
                    value = read(value)
                object.__setattr__(self, name, value)
            if not is_number(value):
                raise wrong_type(name, value, expected)
            if not (value > 0 if name == "bandwidth" else 0 <= value < math.inf):
                raise ValueError(f"{name} {value} {unit}; expected {expected}")
        if self.duplex not in ("full", "half"):
            raise ValueError(f"duplex {self.duplex!r}; expected full or half")

    @classmethod
    def of(cls, given: Any) -> Link:
        """A link from text or from its fields.

        Parameters
        ----------
        given : Link, str or mapping
            A link, text such as ``"25us,10Gbps"`` or ``"25us,10Gbps,half"``, or some of the three fields by
            name.

        Returns
        -------
        Link
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, str):
            parts = [part.strip() for part in given.split(",")]
            if 2 <= len(parts) <= 3:
                return cls(*parts)  # type: ignore[arg-type]
        elif isinstance(given, Mapping):
            check_keys(given, ["latency", "bandwidth", "duplex"], "a link")
            values = dict(given)
            if values.get("bandwidth", 0) is None:  # as JSON has it
                values["bandwidth"] = math.inf
            return cls(**values)
        raise ValueError(f"{given!r}; expected a latency and a bandwidth, such as 25us,10Gbps or "
                         "25us,10Gbps,half")

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values, which `of` reads back; an unlimited bandwidth is None."""
        return plain_fields(self)

    def __str__(self) -> str:
        return (f"{units.as_time(self.latency)}, {units.as_rate(self.bandwidth)}"
                + ", half duplex" * (self.duplex == "half"))


@dataclass(frozen=True)
class Overhead:
    """Seconds of processor time that a program spends at each end of a message.

    It is o of LogP and LogGP (Culler et al. 1993; Alexandrov et al. 1995), and a part that grows with the
    message, for its copies.

    >>> Overhead.of("20us,0.2ns/B").seconds(1_000_000)
    0.00022
    >>> print(Overhead.of("20us,0.2ns/B"))
    20 us and 0.2 ns/B
    """

    fixed: float = 0.0  #: seconds
    per_byte: float = 0.0  #: seconds

    def __post_init__(self) -> None:
        for name in ("fixed", "per_byte"):
            value = getattr(self, name)
            if not is_number(value) or not 0 <= value < math.inf:
                raise ValueError(f"{name} {value!r}; expected a finite number of seconds >= 0")

    @classmethod
    def of(cls, given: Any) -> Overhead | None:
        """An overhead from seconds, text such as ``"20us"`` or ``"20us,0.2ns/B"``, or its fields by name;
        None for none."""
        if given is None or isinstance(given, cls):
            found = given
        elif isinstance(given, Mapping):
            check_keys(given, ["fixed", "per_byte"], "an overhead")
            found = cls(**given)
        elif is_number(given):
            found = cls(given)
        elif isinstance(given, str):
            fixed, _, per_byte = given.partition(",")
            if per_byte and not per_byte.strip().lower().endswith("/b"):
                raise ValueError(f"{given!r}; expected seconds, and seconds per byte, such as 20us,0.2ns/B")
            found = cls(units.seconds(fixed), units.seconds(per_byte.strip()[:-2]) if per_byte else 0.0)
        else:
            raise wrong_type("overhead", given, "seconds, and seconds per byte, such as 20us,0.2ns/B")
        return found if found and (found.fixed or found.per_byte) else None

    def seconds(self, nbytes: int) -> float:
        """Seconds at one end of a message."""
        return self.fixed + nbytes * self.per_byte

    def scaled(self, factor: float) -> Overhead:
        """The overhead, slower by a factor."""
        return Overhead(self.fixed * factor, self.per_byte * factor)

    def to_json(self) -> dict[str, float]:
        """A dictionary of JSON values, which `of` reads back."""
        return plain_fields(self)

    def __str__(self) -> str:
        per_byte = f"{self.per_byte * 1e9:g} ns/B" if self.per_byte else ""
        return " and ".join(part for part in (units.as_time(self.fixed) * (self.fixed > 0), per_byte) if part)


class Hop(NamedTuple):
    """One link of a path: its index, its seconds per byte, and the seconds from it to the next link."""

    link: int
    byte_time: float
    latency_after: float


class _Ways(dict[tuple[str, str], tuple[Hop, ...]]):
    """Paths by sender and receiver, each found once."""

    def __init__(self, find: Callable[[str, str], tuple[Hop, ...]]) -> None:
        self._find = find

    def __missing__(self, pair: tuple[str, str]) -> tuple[Hop, ...]:
        found = self[pair] = self._find(*pair)
        return found


class Network:
    """The links that a deployment uses on a machine, and the path of each message."""

    def __init__(self, machine: Machine, deployment: Deployment) -> None:
        self._machine = machine
        with prefixed(machine.source):
            self.host = machine.place(deployment)  #: of each node
            #: all hosts by number, including those without a node
            self.hosts = placement.numbered(machine.hosts, self.host)
            self._group = placement.grouped(machine.groups, self.hosts, self.host)
        self.links: list[str] = []  #: names by index; a half-duplex link is listed once
        between, inside, uplink = machine.between, machine.inside, machine.uplink
        self._of_host = {host: self._pair(host, "out", "in", between.duplex) for host in self.hosts}
        before = len(self.links)
        self._of_group = {g: self._pair(f"group{g}", "up", "down", uplink.duplex)
                          for g in range(len(machine.groups))} if uplink else {}
        self.shared = frozenset(range(before, len(self.links)))  #: links of groups, which several hosts use
        self._inside = {node: self._pair(f"{node} inside", "out", "in", inside.duplex)
                        for node in self.host} if inside else {}
        self.ways = _Ways(self._find)

    @classmethod
    def of(cls, machine: Machine, workers: int, servers: int | Sequence[int] = 0) -> Network:
        """The links between some workers and servers, by their number or by each part's server."""
        return cls(machine, nodes_of(workers, servers))

    @property
    def flat(self) -> bool:
        """Whether each path is at most the outgoing link of one host and the incoming link of another."""
        return not self._inside and not self._group

    @property
    def described(self) -> bool:
        """Whether the machine places its nodes, or has links other than those of its hosts; a trace then
        records which link served which message."""
        return bool(self._machine.hosts) or not self.flat

    def shared_links(self) -> dict[int, str]:
        """Names of the links that several nodes or hosts share, by index; empty unless `described`."""
        nodes = Counter(self.host.values())
        of_hosts = {link for host, pair in self._of_host.items() if nodes[host] > 1 for link in pair}
        return {link: self.links[link] for link in sorted(of_hosts | self.shared) if self.described}

    def way(self, src: str, to: str) -> tuple[Hop, ...]:
        """The links that a message passes, in order; none between programs that share memory.

        A link of unlimited bandwidth is left out, because no message waits for it, unless it is the first,
        which carries the latency.
        """
        return self.ways[src, to]

    def wires(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[float, float]]:
        """Latency and lowest bandwidth of the paths between some nodes; empty for a flat machine."""
        found = {}
        for pair in [] if self.flat else list(pairs):
            way = self.way(*pair)
            slowest = max((hop.byte_time for hop in way), default=0.0)
            found[pair] = sum(hop.latency_after for hop in way), 1 / slowest if slowest else math.inf
        return found

    def group_of(self, host: str) -> int | None:
        """The group of a host; None on a machine without groups."""
        return self._group.get(host)

    def _pair(self, name: str, outgoing: str, incoming: str, duplex: str) -> tuple[int, int]:
        """Indices of the two directions of a link."""
        names = [name] if duplex == "half" else [f"{name} {outgoing}", f"{name} {incoming}"]
        first = len(self.links)
        self.links += names
        return first, first + len(names) - 1

    def _find(self, src: str, to: str) -> tuple[Hop, ...]:
        m, here, there = self._machine, self.host[src], self.host[to]
        if here == there:
            if src == to or m.inside is None:
                return ()
            return _without_unlimited(_over(m.inside, self._inside[src][0], self._inside[to][1]))
        way = _over(m.between, self._of_host[here][0], self._of_host[there][1])
        a, b = self._group.get(here), self._group.get(there)
        if a != b and a is not None and b is not None and m.uplink is not None:
            way[1:1] = _over(m.uplink, self._of_group[a][0], self._of_group[b][1])
        return _without_unlimited(way)


def _over(link: Link, outgoing: int, incoming: int) -> list[Hop]:
    """The path over the two directions of a link."""
    time = 1 / link.bandwidth
    return [Hop(outgoing, time, link.latency), Hop(incoming, time, 0.0)]


def nodes_of(workers: int, servers: int | Sequence[int] = 0) -> Deployment:
    """Nodes to be placed on a machine without a run: servers by their number or by each part's server."""
    found: list[tuple[str, Role, int]] = [(f"worker{i}", "worker", i) for i in range(workers)]
    if isinstance(servers, int):
        found += [(f"server{k}", "server", k) for k in range(servers)]
    else:
        found += [(f"server{k}.part{j}", "server", k) for j, k in enumerate(servers)]
    return {name: Node(placed_only(), role=role, rank=rank) for name, role, rank in found}


def placed_only() -> Program[None]:
    """The program of a node that is only placed."""
    yield from ()


def _without_unlimited(way: list[Hop]) -> tuple[Hop, ...]:
    """A path in which each unlimited link adds its latency to that of the link before it."""
    found = way[:1]
    for hop in way[1:]:
        if hop.byte_time:
            found.append(hop)
        else:
            found[-1] = found[-1]._replace(latency_after=found[-1].latency_after + hop.latency_after)
    return tuple(found)
