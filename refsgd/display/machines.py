"""A machine as text: its links with their speeds, and the host of each node."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

from refsgd.cluster.links import Link, Network
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import as_time, counted
from refsgd.effects import Deployment

MESSAGE = 10**6  #: size of the example message [bytes]


def machine_lines(machine: Machine, deployment: Deployment) -> Iterator[str]:
    """A machine as lines of text, with the host of each node of a deployment."""
    network = Network(machine, deployment)
    yield f"machine  {machine}"
    yield "links"
    for level, link, says in levels(machine):
        yield f"  {level:15} {link or 'free'!s:28} {says}"
    grouped = members(network)
    yield f"hosts    {_summary(machine, network)}"
    for group, hosts in grouped.items():
        if group is not None:
            yield f"  group {group}"
        for line in _homes(network, hosts):
            yield f"  {'  ' * (group is not None)}{line}"
    yield from _times(network)


def levels(machine: Machine) -> list[tuple[str, Link | None, str]]:
    """The levels of a machine: name, link, and the users of the link."""
    found = [("inside a host", machine.inside, "each node's, out and in"),
             ("between hosts", machine.between, "each host's, out and in, shared by its nodes")]
    if machine.uplink is not None:
        found.append(("between groups", machine.uplink, "each group's, up and down, shared by its hosts"))
    return [(level, link, says if link else "nodes of one host share memory") for level, link, says in found]


def members(network: Network) -> dict[int | None, dict[str, list[str]]]:
    """The nodes of each host, by group; the group of a flat machine is None."""
    found: dict[int | None, dict[str, list[str]]] = {}
    for host in network.hosts:
        nodes = [node for node, home in network.host.items() if home == host]
        found.setdefault(network.group_of(host), {})[host] = nodes
    return dict(sorted(found.items(), key=lambda item: -1 if item[0] is None else item[0]))


def _homes(network: Network, hosts: dict[str, list[str]]) -> Iterator[str]:
    """The nodes of each host; consecutive hosts that have one of consecutive nodes each share a line."""
    number = {host: at for at, host in enumerate(network.hosts)}

    def run_of(item: tuple[int, str]) -> tuple[int, str, int]:
        at, host = item
        name = "".join(hosts[host][:1]) if len(hosts[host]) == 1 else ""
        role = name.rstrip("0123456789")
        return number[host] - at, role, int(name.removeprefix(role) or 0) - at if name else at

    for (_, role, _), run in groupby(enumerate(hosts), key=run_of):
        some = [host for _, host in run]
        if role and len(some) > 4:
            yield (f"hosts {number[some[0]]} to {number[some[-1]]}: {hosts[some[0]][0]} to "
                   f"{hosts[some[-1]][0]}, one on each")
        else:
            yield from (f"host {number[host]}: {', '.join(hosts[host]) or 'no node'}" for host in some)


def _summary(machine: Machine, network: Network) -> str:
    cores = f", {counted(machine.cores, 'core')} each" if machine.cores else ""
    groups = f" in {counted(len(machine.groups), 'group')}" if machine.groups else ""
    hosts, nodes = counted(len(network.hosts), "host"), counted(len(network.host), "node")
    return f"{hosts}{groups}{cores}; {nodes} on them"


def _times(network: Network) -> Iterator[str]:
    """Time of a message on idle links, once for each level of the machine."""
    first, found = dict[Any, tuple[str, Any]](), dict[str, tuple[str, str]]()
    for node, host in network.host.items():
        group = network.group_of(host)
        for level, within, part in (("inside a host", host, node), ("between hosts", group, host),
                                    ("between groups", None, group)):
            other, its = first.setdefault((level, within), (node, part))
            if its != part:
                found.setdefault(level, (other, node))
    if found:
        yield f"a message of {MESSAGE / 1e6:g} MB on idle links"
    for level, pair in found.items():
        way = network.way(*pair)
        slowest = max((hop.byte_time for hop in way), default=0.0)
        seconds = sum(hop.latency_after for hop in way) + MESSAGE * slowest
        yield (f"  {level:15} {as_time(float(f'{seconds:.3g}')):28} {pair[0]} to {pair[1]}"
               + (f": {', '.join(network.links[hop.link] for hop in way)}" if way else ""))
