"""The machine: durations of computations and messages, for formulas, simulator and paced processes alike.

A `Machine` has a `Distribution` of the time of a gradient and of an update, and links with a latency and a
bandwidth, which meet in a switch that never blocks (rule: `refsgd.cluster.links`).  It knows no algorithm.
Each program that computes has a processor of its own, unless `cores` limits those of a host: then each of k
programs that compute proceeds at rate min(1, cores / k), and less if they are crowded (rule:
`refsgd.cluster.cores`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from typing import Any

from refsgd.cluster import devices, nccl, placement, units
from refsgd.cluster.checks import check_keys, plain_fields, prefixed, wrong_type
from refsgd.cluster.devices import Load, Times
from refsgd.cluster.distributions import Distribution, as_distribution, is_number
from refsgd.cluster.links import Link, Overhead
from refsgd.cluster.placement import Groups, Hosts
from refsgd.effects import Deployment

#: fields that a file may leave out
LEVELS = ("hosts", "inside", "groups", "uplink", "server_speeds", "loads", "codec", "overhead", "updating",
          "crowding")


@dataclass(frozen=True)
class Machine:
    """A cluster in numbers.

    Parameters
    ----------
    compute : Distribution, Device, str, tuple or None
        Seconds of one gradient: a distribution, ``158ms`` or ``exponential(20ms)``; a device, which prices it
        by its work, ``device(5TFLOPS,2ms,lognormal(1,0.1))``; or one for each worker, as a tuple or as
        ``3x 20ms; exponential(40ms)``.  None: nothing is paced, real processes run as fast as they can.
    latency : float or str
        Seconds until the first byte of a message arrives, >= 0; or text such as ``25us``.
    bandwidth : float or str
        Bytes per second of each node's link, each direction; > 0, may be infinite; or text such as ``10Gbps``
        or ``1.25GB/s``, or ``@FILE``, the output of nccl-tests' all_reduce_perf, also for the latency.
    update : float or Distribution or str
        Seconds of one update at a server, or at a worker that updates its own replica, >= 0; or ``2ms``.
    reduction : float
        Seconds per byte reduced in a collective (gamma), >= 0.
    codec : float
        Seconds per byte of a gradient that is encoded or decoded, >= 0.
    updating : float
        Seconds per byte of the arrays that an update reads, >= 0, beside `update`: a mean of more gradients,
        or of a larger net, takes longer.
    overhead : Overhead or float or str
        Processor time of a program at each end of a message to another node, such as ``"20us"`` or
        ``"20us,0.2ns/B"``.
    crowding : tuple of float or str
        Factors by which everything takes longer while one, two, three ... programs of a host compute, since
        they share caches and memory; the last holds for more programs.  Empty: 1.
    speeds : tuple of float or str
        Speed of each worker relative to `compute`, e.g. ``1,1,4`` or ``15x1,0.5``; empty: all are 1.
    colocated : bool
        Servers are assigned in turn to the hosts of workers: server k is on the host of worker k mod n if
        each worker has its own.  Messages between them do not use the network.
    cores : int or None
        Number of programs on one host that can compute at full speed at the same time: each of k programs
        runs at rate min(1, cores / k).  None: processors do not limit anything.  A gradient whose threads use
        all processors of its host counts as one program on one core.
    duplex : {"full", "half"}
        Whether a host's outgoing and incoming link are two links, or one that serves both directions first
        come, first served.
    hosts : str or tuple of tuple of str
        The placement of nodes on hosts, which are numbered from 0: ``"4x2"``, four hosts of two workers each,
        and one more host for each server unless they are `colocated`; ``"cyclic:4"``, workers and servers
        each assigned in turn to four hosts; or the nodes of each host, such as ``(("worker0", "worker1",
        "server0"), ("worker2", "worker3"))``.  Empty: a host for each node.  Latency, bandwidth and duplex
        describe the links between hosts, which the nodes of a host share.
    inside : Link or str or None
        Link of each node to the others on its host, such as ``"10us,32GB/s"``; None: messages within a host
        are free.
    groups : tuple of tuple of int or str
        Hosts of each rack or site by number; ``"2x8"``: two groups of eight hosts.
    uplink : Link or str or None
        Link of each group, in each direction, to the others, shared by its hosts.
    server_speeds : tuple of float or str
        Speed of each server relative to `update`; empty: all are 1.
    loads : tuple of Load or str
        Factors by which everything that a node computes takes longer, each from a given second on:
        ``"worker2: 1@0, 3@30, 1@60; server0: 2@10"``.
    source : str
        The file that describes `hosts` and `groups`, for errors that only a run can find.

    Examples
    --------
    >>> Machine(compute="exponential(20ms)", latency="1ms").compute.mean
    0.02
    >>> racks = Machine(bandwidth="10Gbps", hosts="4x2", groups="2x2", uplink="50us,10Gbps")
    >>> racks.groups
    ((0, 1), (2, 3))
    """

    compute: Times = None
    latency: float = 0.0
    bandwidth: float = math.inf
    update: Distribution | None = None
    reduction: float = 0.0
    speeds: tuple[float, ...] = ()
    colocated: bool = False
    cores: int | None = None
    duplex: str = "full"
    hosts: Hosts = ""
    inside: Link | None = None
    groups: Groups = ()
    uplink: Link | None = None
    server_speeds: tuple[float, ...] = ()
    loads: tuple[Load, ...] = ()
    codec: float = 0.0
    updating: float = 0.0
    overhead: Overhead | None = None
    crowding: tuple[float, ...] = ()
    source: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compute", devices.as_times("compute", self.compute))
        update: Any = self.update
        object.__setattr__(self, "update", None if is_number(update) and update == 0
                           else as_distribution("update", update))
        with prefixed("loads: "):
            object.__setattr__(self, "loads", devices.as_loads(self.loads))
        bandwidth: Any = self.bandwidth
        if nccl.is_table(bandwidth):
            with prefixed("bandwidth @"):
                latency, bandwidth = nccl.link_of(bandwidth.strip()[1:])
            object.__setattr__(self, "bandwidth", bandwidth)
            object.__setattr__(self, "latency", self.latency or latency)
        link = self.between
        object.__setattr__(self, "latency", link.latency)
        object.__setattr__(self, "bandwidth", link.bandwidth)
        self._check_levels()
        with prefixed("overhead "):
            object.__setattr__(self, "overhead", Overhead.of(self.overhead))
        for name in ("speeds", "server_speeds", "crowding"):
            with prefixed(f"{name} "):
                object.__setattr__(self, name, _speeds(getattr(self, name)))
        for name in ("reduction", "codec", "updating"):
            price = getattr(self, name)
            if not is_number(price):
                raise wrong_type(name, price, "a finite number of s/byte >= 0")
            if not 0 <= price < math.inf:
                raise ValueError(f"{name} {price} s/byte; expected a finite number of s/byte >= 0")
        if not isinstance(self.colocated, bool):
            raise wrong_type("colocated", self.colocated, "True or False")
        if self.cores is not None and (isinstance(self.cores, bool) or not isinstance(self.cores, Integral)):
            raise wrong_type("cores", self.cores, "a whole number, at least 1, or None")
        if self.cores is not None and self.cores < 1:
            raise ValueError(f"cores {self.cores}; expected at least 1, or None")

    def _check_levels(self) -> None:
        """Read and check hosts, groups and their links."""
        object.__setattr__(self, "hosts", placement.read_hosts(self.hosts))
        object.__setattr__(self, "groups", placement.read_groups(self.groups))
        for name in ("inside", "uplink"):
            if getattr(self, name) is not None:
                with prefixed(f"{name}: "):
                    object.__setattr__(self, name, Link.of(getattr(self, name)))
        if self.groups and self.uplink is None:
            raise ValueError(f"groups {placement.written_groups(self.groups)} without an uplink; expected "
                             "latency and bandwidth of each group's link, such as uplink 1ms,1Gbps")
        if self.uplink is not None and not self.groups:
            raise ValueError(f"uplink {self.uplink} without groups; expected {placement.GROUPS}")

    @classmethod
    def this(cls) -> Machine:
        """This computer as it is: no pacing, no emulated links."""
        return cls()

    @property
    def paced(self) -> bool:
        """Whether compute times are drawn, so that real processes sleep until the drawn time is over."""
        return self.compute is not None

    @property
    def between(self) -> Link:
        """The link of a host to the others."""
        return Link(self.latency, self.bandwidth, self.duplex)

    @property
    def linked(self) -> bool:
        """Whether messages take time."""
        links = [self.between, self.inside, self.uplink]
        return self.overhead is not None or any(
            link and (link.latency > 0 or not math.isinf(link.bandwidth)) for link in links)

    def speed(self, worker: int) -> float:
        """Speed factor of a worker.

        Parameters
        ----------
        worker : int
            Its rank.

        Returns
        -------
        float
            > 0.
        """
        return self.speeds[worker] if worker < len(self.speeds) else 1.0

    def place(self, deployment: Deployment) -> dict[str, str]:
        """The host of each node, by name: "host0" and so on where `hosts` places it, else its own name.

        A node is on the host that its `Node` names, else where `hosts` places it, else on its own host;
        co-located servers that neither of them places are assigned in turn to the hosts of workers.

        Parameters
        ----------
        deployment : Deployment

        Returns
        -------
        dict of str to str

        Raises
        ------
        ValueError
            If `hosts` names nodes that do not exist, or has no host for some node.
        """
        return placement.place(self.hosts, self.colocated, deployment)

    def with_(self, **changes: Any) -> Machine:
        """A copy with some fields changed.

        Parameters
        ----------
        **changes
            New values of fields.

        Returns
        -------
        Machine
        """
        if {"hosts", "groups"} & set(changes):
            changes["source"] = ""
        if nccl.is_table(changes.get("bandwidth")):
            changes.setdefault("latency", 0.0)  # else that of the table would not count
        return replace(self, **changes)

    def slow_motion(self, factor: float) -> Machine:
        """The machine with everything slower by the same factor: shares of time, staleness and the order of
        events do not change.

        Parameters
        ----------
        factor : float
            > 0.

        Returns
        -------
        Machine

        Examples
        --------
        >>> print(Machine(compute="1ms", latency="20us", bandwidth="1GB/s").slow_motion(10))
        compute fixed(0.01) s, latency 0.2 ms, bandwidth 100 MB/s
        """
        if not is_number(factor) or not 0 < factor < math.inf:
            raise ValueError(
                f"slow motion {factor!r}; expected a finite number > 0, such as 10 for ten times as slow")
        compute = self.compute
        return replace(self, compute=tuple(each.scaled(factor) for each in compute)
                       if isinstance(compute, tuple) else compute and compute.scaled(factor),
                       update=self.update and self.update.scaled(factor),
                       loads=tuple(load.scaled(factor) for load in self.loads),
                       latency=self.latency * factor, bandwidth=self.bandwidth / factor,
                       reduction=self.reduction * factor, codec=self.codec * factor,
                       updating=self.updating * factor,
                       overhead=self.overhead and self.overhead.scaled(factor),
                       inside=_slower(self.inside, factor), uplink=_slower(self.uplink, factor))

    def for_workers(self, workers: int) -> Machine:
        """The machine for another number of workers: entries for missing workers are removed, and if workers
        have speeds, new ones get 1.

        Parameters
        ----------
        workers : int

        Returns
        -------
        Machine
        """
        compute = self.compute[:workers] if isinstance(self.compute, tuple) else self.compute
        return replace(self, speeds=(*self.speeds, *[1.0] * workers)[:workers] if self.speeds else (),
                       hosts=placement.of_workers(self.hosts, workers), compute=compute,
                       loads=tuple(load for load in self.loads
                                   if load.role != "worker" or load.rank < workers))

    @classmethod
    def keys(cls) -> list[str]:
        """The keys of a machine file: all fields but `source`."""
        return sorted(f.name for f in fields(cls) if f.name != "source")

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values; `from_json` reads it back."""
        out = plain_fields(self) | {"loads": {load.node: load.steps for load in self.loads}}
        del out["source"]
        return {name: value for name, value in out.items() if value or name not in LEVELS}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Machine:
        """A machine from the dictionary of `to_json`; raises ValueError for an unknown key or a value of the
        wrong type.

        Parameters
        ----------
        data : mapping
            The result of `to_json`.

        Returns
        -------
        Machine
        """
        if not isinstance(data, Mapping):
            raise wrong_type("machine", data, f"an object with some of {cls.keys()}")
        values = dict(data)
        check_keys(values, cls.keys(), "a machine")
        if isinstance(values.get("update"), Mapping):
            values["update"] = devices.as_time("update", values["update"])
        if values.get("bandwidth", 0) is None:
            values["bandwidth"] = math.inf
        return cls(**values)

    def __str__(self) -> str:
        parts = [f"compute {devices.written(self.compute)} s" if self.compute else "unpaced",
                 f"latency {self.latency * 1e3:g} ms", "bandwidth unlimited" if math.isinf(self.bandwidth)
                 else f"bandwidth {self.bandwidth / 1e6:g} MB/s"]
        hosts = self.hosts if isinstance(self.hosts, str) else len(self.hosts)
        said = ((self.update, f"update {self.update} s"),
                (self.reduction, f"reduction {self.reduction:g} s/byte"),
                (self.codec, f"codec {self.codec:g} s/byte"),
                (self.updating, f"updating {self.updating:g} s/byte"),
                (self.overhead, f"overhead {self.overhead}"),
                (self.crowding, f"crowding {units.written(self.crowding)}"),
                (self.speeds, f"speeds {units.written(self.speeds)}"),
                (self.server_speeds, f"server speeds {units.written(self.server_speeds)}"),
                *((load, f"load of {load}") for load in self.loads),
                (self.colocated, "servers co-located"), (self.cores, f"cores {self.cores}"),
                (self.duplex != "full", f"links {self.duplex} duplex"), (self.hosts, f"hosts {hosts}"),
                (self.inside, f"inside a host {self.inside}"),
                (self.groups, f"groups {placement.written_groups(self.groups)}, uplinks {self.uplink}"))
        return ", ".join([*parts, *(text for given, text in said if given)])


def _slower(link: Link | None, factor: float) -> Link | None:
    """The link, slower by a factor."""
    return link and Link(link.latency * factor, link.bandwidth / factor, link.duplex)


def _speeds(given: Any) -> tuple[float, ...]:
    """Speeds of nodes from a sequence or text."""
    speeds = units.speeds(given) if isinstance(given, str) else given
    speeds = tuple(speeds) if isinstance(speeds, Iterable) else (None,)
    if not all(is_number(s) and 0 < s < math.inf for s in speeds):
        raise ValueError(f"{given!r}; expected finite numbers > 0, such as (1, 1, 4)")
    return tuple(map(float, speeds))
