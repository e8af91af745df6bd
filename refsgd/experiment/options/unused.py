"""Flags of a machine that would change nothing of a run: each is refused, with the reason.

A machine in a file, a preset or Python describes a cluster, of which a run may use some; a flag asks for
something.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

from refsgd.algorithms.exchange import of
from refsgd.algorithms.facts import Facts, declared
from refsgd.effects import roles
from refsgd.experiment.arguments import Usage

if TYPE_CHECKING:
    from refsgd.experiment.prepare import Experiment

_NO_SERVERS = "it has no servers"


def _pairs(e: Experiment) -> Iterator[tuple[str, str]]:
    """Pairs of nodes that may exchange messages."""
    # where there are servers, workers talk only to them, unless they are stages or sum gradients before
    role, facts = roles(e.nodes), e.facts
    apart = _served(e) and not (facts.staged or facts.collective) and declared(e.function)
    if not facts.silent:
        yield from ((a, b) for a, b in permutations(e.nodes, 2)
                    if not (apart and role[a] == role[b] == "worker"))


def _served(e: Experiment) -> bool:
    """Whether there are servers."""
    return "server" in roles(e.nodes).values()


def _silent(between: bool, e: Experiment) -> str:
    """Why no message passes the links between hosts, or between the nodes of one."""
    if not any(_pairs(e)):
        return e.facts.because[""] if e.facts.silent else "it has one node"
    host = e.network.host
    if any((host[a] != host[b]) == between for a, b in _pairs(e)):
        return ""
    return ("all nodes that exchange messages are on one host" if between else
            "no two nodes that exchange messages share a host")


def _colocated(e: Experiment) -> str:
    if not _served(e):
        return _NO_SERVERS
    rotates = e.servers == e.workers
    try:
        same = e.machine.with_(colocated=False).place(e.nodes) == e.network.host and not rotates
    except ValueError:  # the hosts leave out servers, which it places
        same = False
    return "the hosts of the machine already say where its servers are" if same else ""


def _cores(e: Experiment) -> str:
    count = Counter[str]()
    for name, node in e.nodes.items():
        count[e.network.host[name]] += 1 + len(node.handlers)
    most = max(count.values())
    return f"a host has at most {most} program{'s' * (most > 1)}" if most <= (e.machine.cores or 0) else ""


def _server_speeds(e: Experiment) -> str:
    if not _served(e):
        return _NO_SERVERS
    return "" if e.machine.update else "updates take no time (--update gives them one)"


def _loads(e: Experiment) -> str:
    of_servers = all(load.role == "server" for load in e.machine.loads)
    return _NO_SERVERS if of_servers and not _served(e) else ""


def _groups(e: Experiment) -> str:
    home = {name: e.network.group_of(host) for name, host in e.network.host.items()}
    if any(home[a] != home[b] for a, b in _pairs(e)):
        return ""
    return _silent(True, e) or "all its nodes are in one group"


def _reduction(e: Experiment) -> str:
    if not declared(e.function):
        return ""
    if not e.facts.collective:
        return "it has no collective" + ": --update is the time of a server's update" * _served(e)
    return "one replica has nothing to add" if e.replicas == 1 else ""


#: why a field of the machine changes nothing of a run; empty if it does
UNUSED: Mapping[str, Callable[[Experiment], str]] = {
    "colocated": _colocated, "cores": _cores, "server_speeds": _server_speeds, "loads": _loads,
    "groups": _groups, "reduction": _reduction, "latency": partial(_silent, True),
    "bandwidth": partial(_silent, True), "inside": partial(_silent, False),
    "duplex": lambda e: _silent(True, e) or "the bandwidth is unlimited" * math.isinf(e.machine.bandwidth),
    "codec": lambda e: "it encodes nothing: --compress does" * (
        declared(e.function) and not (of(e.problem).compress or e.facts.codec)),
    "overhead": lambda e: "it sends no messages" * (not any(_pairs(e)))}


def reasons(e: Experiment, stated: Sequence[str]) -> dict[str, str]:
    """Why fields of the machine that flags have set change nothing of the experiment, by flag."""
    found = {name: UNUSED[name](e) for name in stated if name in UNUSED}
    return {"load" if name == "loads" else name.replace("_", "-"): f"{e.name}: {why}"
            for name, why in found.items() if why}


def check(found: Sequence[Mapping[str, str]]) -> None:
    """Refuse fields of the machine for which each experiment has one of the `reasons`."""
    for flag, why in found[0].items() if found else ():
        if all(flag in each for each in found):
            raise Usage(f"--{flag} changes nothing of {why}; expected no --{flag}")


def check_own(name: str, facts: Facts, options: Mapping[str, Any], usual: Mapping[str, Any],
              workers: int) -> None:
    """Refuse an algorithm's own options, other than the `usual` ones, that change nothing beside the rest."""
    needs = facts.needs(options, workers) if facts.needs else {}
    for option, what in needs.items():
        if options[option] != usual[option]:
            raise Usage(f"{option} {options[option]} changes nothing of {name} here; expected {what}")
