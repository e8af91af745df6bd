"""Placement: the host of each node, and the group of each host.

Hosts and groups are numbered from 0 and described in text or as lists.  Hosts: ``4x2`` (four hosts of two
workers each), ``cyclic:4`` (workers and servers each assigned in turn to four hosts), or the names of each
host's nodes.  Groups: ``2x8`` (two groups of eight hosts), or the numbers of each group's hosts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from refsgd.effects import Deployment, ranks

Hosts = str | tuple[tuple[str, ...], ...]
Groups = tuple[tuple[int, ...], ...]

HOSTS = ("4x2 (four hosts of two workers each), cyclic:4 (workers and servers assigned in turn to four "
         "hosts) or the nodes of each host, such as 'worker0,worker1,server0; worker2,worker3'")
GROUPS = "2x8 (two groups of eight hosts) or the hosts of each group, such as '0-7,16; 8-15'"
_MOST = 100_000  #: hosts in one text


def read_hosts(given: Any) -> Hosts:
    """The hosts of a machine from text or lists of nodes, checked; a shorthand stays text."""
    wrong = ValueError(f"hosts {given!r}; expected {HOSTS}")
    if isinstance(given, str):
        text = given.strip()
        if not text or re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}|cyclic:[1-9]\d{0,4}", text):
            return text
        if not re.fullmatch(r"[A-Za-z][\w.-]*(\s*[,;]\s*[A-Za-z][\w.-]*)*", text):
            raise wrong
        given = [[name.strip() for name in host.split(",")] for host in text.split(";")]
    if not _lists_of(given, str):  # a host may be empty
        raise wrong
    _each_once("node", given, "hosts")
    return tuple(tuple(host) for host in given) or ""


def read_groups(given: Any) -> Groups:
    """The groups of a machine from text or lists of hosts, checked."""
    wrong = ValueError(f"groups {given!r}; expected {GROUPS}")
    if isinstance(given, str):
        try:
            given = _written_groups(given)
        except ValueError:
            raise wrong from None
    if (not _lists_of(given, Integral) or not all(given)
            or any(host < 0 for group in given for host in group)):
        raise wrong
    _each_once("host", given, "groups")
    return tuple(tuple(map(int, group)) for group in given)


def _written_groups(text: str) -> list[list[int]]:
    """Lists of hosts from ``2x8`` or ``0-7,16; 8-15``."""
    if not text.strip():
        return []
    if found := re.fullmatch(r"\s*([1-9]\d{0,4})x([1-9]\d{0,4})\s*", text):
        count, size = int(found[1]), int(found[2])
        if count * size > _MOST:
            raise ValueError
        return [list(range(g * size, (g + 1) * size)) for g in range(count)]
    groups = []
    for part in text.split(";"):
        edges = [[int(edge) for edge in span.split("-")] for span in part.split(",")]
        if any(len(edge) > 2 or edge[-1] - edge[0] > _MOST for edge in edges):
            raise ValueError
        groups.append([host for edge in edges for host in range(edge[0], edge[-1] + 1)])
    return groups


def _lists_of(given: Any, kind: type) -> bool:
    """Whether a value is a list of lists of one kind."""
    return (isinstance(given, list | tuple) and all(isinstance(part, list | tuple) for part in given)
            and all(isinstance(item, kind) and not isinstance(item, bool) for part in given for item in part))


def _each_once(what: str, given: Sequence[Sequence[Any]], key: str) -> None:
    """Refuse duplicates, in one list or in two."""
    one, before = key[:-1], dict[Any, int]()
    for number, part in enumerate(given):
        for item in part:
            if item in before:
                where = (f"{one}s {before[item]} and {number}" if before[item] != number
                         else f"{one} {number} twice")
                raise ValueError(f"{key}: {what} {item} appears in {where}; expected each {what} once")
            before[item] = number


def written_groups(groups: Groups) -> str:
    """The text that `read_groups` reads."""
    sizes = {len(group) for group in groups}
    if len(sizes) == 1 and [h for group in groups for h in group] == list(range(len(groups) * min(sizes))):
        return f"{len(groups)}x{min(sizes)}"
    return "; ".join(",".join(_spans(group)) for group in groups)


def _spans(numbers: Sequence[int]) -> Iterable[str]:
    """Numbers as text, runs of consecutive ones as ``0-7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def place(hosts: Hosts, colocated: bool, deployment: Deployment) -> dict[str, str]:
    """The host of each node: the one that its `Node` names, else that of the placement, else its own;
    co-located servers without a placement are assigned in turn to the hosts of workers, and nodes of one role
    and rank share a host."""
    rank = ranks(deployment)
    found = {name: node.host for name, node in deployment.items() if node.host}
    found |= {name: f"host{number}" for name, number in _numbers(hosts, deployment, rank).items()
              if name not in found}
    workers = sorted((n for n, node in deployment.items() if node.role == "worker"), key=rank.__getitem__)
    first: dict[tuple[str, int], str] = {}
    for name, node in deployment.items():
        if name not in found and not (colocated and workers and node.role == "server"):
            if not isinstance(hosts, str):
                raise ValueError(f"hosts: {name} is on no host; expected every node of the run, as "
                                 f"{node.role}{rank[name]} or by its own name")
            found[name] = first.setdefault((node.role, rank[name]), name)
    homes = list(dict.fromkeys(found[name] for name in workers))
    return {name: found.get(name) or homes[rank[name] % len(homes)] for name in deployment}


def _shorthand(hosts: str) -> tuple[int, int]:
    """The numbers of hosts and of workers on each; 0 workers: all nodes are dealt in turn."""
    count, _, size = hosts.removeprefix("cyclic:").partition("x")
    return int(count or 0), int(size or 0)


def _numbers(hosts: Hosts, deployment: Deployment, rank: Mapping[str, int]) -> dict[str, int]:
    """The number of the host of each node that a placement covers."""
    if not isinstance(hosts, str):
        return _listed(hosts, deployment, rank)
    count, size = _shorthand(hosts)
    if not size:
        return {name: rank[name] % count for name in deployment} if count else {}
    workers = [name for name, node in deployment.items() if node.role == "worker"]
    if beyond := [name for name in workers if rank[name] >= count * size]:
        raise ValueError(f"hosts {hosts} have room for {count * size} workers, but {beyond[0]} is number "
                         f"{rank[beyond[0]] + 1}; expected hosts for all, such as "
                         f"{-(-len(workers) // size)}x{size}")
    return {name: rank[name] // size for name in workers}


def _listed(hosts: Sequence[Sequence[str]], deployment: Deployment,
            rank: Mapping[str, int]) -> dict[str, int]:
    """The number of the host of each listed node.

    A node is listed by its own name, or by role and rank, since an algorithm may call its workers peers.
    Listed servers are ignored if the algorithm has none.
    """
    known = {f"{node.role}{rank[name]}": name for name, node in deployment.items()}
    known |= {name: name for name in deployment}
    roles = {node.role for node in deployment.values()}
    found: dict[str, int] = {}
    for number, names in enumerate(hosts):
        for listed in names:
            if (name := known.get(listed)) is None:
                if listed.rstrip("0123456789") in {"worker", "server"} - roles:
                    continue
                some = ", ".join([*list(known)[:8], *["..."] * (len(known) > 8)])
                raise ValueError(f"hosts: {listed} on host {number} is not a node of this run; expected some "
                                 f"of {some}")
            if found.setdefault(name, number) != number:
                raise ValueError(f"hosts: node {name} is on hosts {found[name]} and {number}; expected each "
                                 "node once")
    return found


def of_workers(hosts: Hosts, workers: int) -> Hosts:
    """The hosts without listed workers whose rank is too high."""
    if isinstance(hosts, str):
        return hosts
    gone = {name for host in hosts for name in host if (found := re.fullmatch(r"worker(\d+)", name))
            and int(found[1]) >= workers}
    return tuple(tuple(name for name in host if name not in gone) for host in hosts)


def usual(hosts: Hosts, groups: Groups) -> tuple[int, int] | None:
    """The numbers of workers and servers that fill the hosts; None if the machine does not say."""
    if not isinstance(hosts, str):
        servers = sum(name.startswith("server") for names in hosts for name in names)
        return sum(map(len, hosts)) - servers, servers
    count, size = _shorthand(hosts)
    if count:
        return count * (size or 1), 1
    return (sum(map(len, groups)), 0) if groups else None


def devices(hosts: Hosts, workers: int) -> list[int]:
    """The number of workers on each host that has any.

    >>> devices("4x2", 7), devices("cyclic:3", 6), devices("", 2)
    ([2, 2, 2, 1], [2, 2, 2], [1, 1])
    """
    if not isinstance(hosts, str):
        counts = [sum(not name.startswith("server") for name in host) for host in hosts]
        return [count for count in counts if count]
    count, size = _shorthand(hosts)
    dealt = workers if size or not count else count
    return list(Counter(i // (size or 1) % dealt for i in range(workers)).values())


def numbered(hosts: Hosts, placed: Mapping[str, str]) -> list[str]:
    """All hosts by number: first those of the placement, then those of other nodes."""
    count = _shorthand(hosts)[0] if isinstance(hosts, str) else len(hosts)
    return list(dict.fromkeys([*(f"host{number}" for number in range(count)), *placed.values()]))


def grouped(groups: Groups, hosts: Sequence[str], placed: Mapping[str, str]) -> dict[str, int]:
    """The group of each host that has a node; empty for a machine without groups."""
    if not groups:
        return {}
    group = {hosts[number]: g for g, members in enumerate(groups) for number in members
             if number < len(hosts)}
    for node, host in placed.items():
        if host not in group:
            raise ValueError(f"groups {written_groups(groups)}: host {hosts.index(host)}, where {node} "
                             "runs, is in no group; expected a group for each host (a server has its own "
                             "host, unless colocated or hosts such as cyclic:4 place it with workers)")
    return group
