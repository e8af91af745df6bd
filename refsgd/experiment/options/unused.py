"""Flags of a machine that would change nothing of a run: each is refused, with the reason.

A machine in a file, a preset or Python describes a cluster, of which a run may use some; a flag asks for
something.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from refsgd.algorithms.exchange import of
from refsgd.algorithms.facts import Facts, declared
from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine
from refsgd.effects import Deployment, roles
from refsgd.experiment.arguments import Usage

if TYPE_CHECKING:
    from refsgd.experiment.prepare import Experiment

_NO_SERVERS = "it has no servers"


class Placed(NamedTuple):
    """An experiment with its nodes and their hosts."""

    experiment: Experiment
    deployment: Deployment
    network: Network

    @classmethod
    def of(cls, experiment: Experiment) -> Placed:
        """The nodes of an experiment."""
        deployment = experiment.deploy()
        return cls(experiment, deployment, Network(experiment.machine, deployment))

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Pairs that may exchange messages; where there are servers, workers talk only to them, unless they
        are stages."""
        role, facts = roles(self.deployment), self.experiment.facts
        apart = self.served and not facts.staged and declared(self.experiment.function)
        if not facts.silent:
            yield from ((a, b) for a, b in permutations(self.deployment, 2)
                        if not (apart and role[a] == role[b] == "worker"))

    @property
    def machine(self) -> Machine:
        """The machine of the run."""
        return self.experiment.machine

    @property
    def served(self) -> bool:
        """Whether there are servers."""
        return "server" in roles(self.deployment).values()

    def silent(self, what: str) -> str:
        """Why no message passes the links between hosts, or between the nodes of one."""
        if not any(self.pairs()):
            return self.experiment.facts.because[""] if self.experiment.facts.silent else "it has one node"
        host = self.network.host
        if any((host[a] != host[b]) == (what == "between") for a, b in self.pairs()):
            return ""
        return ("all nodes that exchange messages are on one host" if what == "between" else
                "no two nodes that exchange messages share a host")


def _colocated(p: Placed) -> str:
    if not p.served:
        return _NO_SERVERS
    rotates = p.experiment.servers == p.experiment.workers
    try:
        same = p.machine.with_(colocated=False).place(p.deployment) == p.network.host and not rotates
    except ValueError:  # the hosts leave out servers, which it places
        same = False
    return "the hosts of the machine already say where its servers are" if same else ""


def _cores(p: Placed) -> str:
    count = dict[str, int]()
    for name, node in p.deployment.items():
        host = p.network.host[name]
        count[host] = count.get(host, 0) + 1 + len(node.handlers)
    most = max(count.values())
    return f"a host has at most {most} program{'s' * (most > 1)}" if most <= (p.machine.cores or 0) else ""


def _server_speeds(p: Placed) -> str:
    if not p.served:
        return _NO_SERVERS
    return "" if p.machine.update else "updates take no time (--update gives them one)"


def _loads(p: Placed) -> str:
    of_servers = all(load.role == "server" for load in p.machine.loads)
    return _NO_SERVERS if of_servers and not p.served else ""


def _duplex(p: Placed) -> str:
    return p.silent("between") or "the bandwidth is unlimited" * math.isinf(p.machine.bandwidth)


def _groups(p: Placed) -> str:
    home = {name: p.network.group_of(host) for name, host in p.network.host.items()}
    if any(home[a] != home[b] for a, b in p.pairs()):
        return ""
    return p.silent("between") or "all its nodes are in one group"


def _reduction(p: Placed) -> str:
    if not declared(p.experiment.function):
        return ""
    if not p.experiment.facts.collective:
        return "it has no collective" + ": --update is the time of a server's update" * p.served
    return "one replica has nothing to add" if p.experiment.replicas == 1 else ""


def _codec(p: Placed) -> str:
    e = p.experiment
    encodes = of(e.problem).compress or e.facts.codec or not declared(e.function)
    return "" if encodes else "it encodes nothing: --compress does"


#: why a field of the machine changes nothing of a run; empty if it does
UNUSED: Mapping[str, Callable[[Placed], str]] = {
    "colocated": _colocated, "cores": _cores, "server_speeds": _server_speeds, "loads": _loads,
    "duplex": _duplex, "latency": lambda p: p.silent("between"), "bandwidth": lambda p: p.silent("between"),
    "inside": lambda p: p.silent("inside"), "groups": _groups, "reduction": _reduction, "codec": _codec}


def check(experiments: Sequence[Experiment], stated: Sequence[str]) -> None:
    """Refuse fields of the machine that flags have set, and that change none of these experiments."""
    asked = [name for name in stated if name in UNUSED]
    placed = [Placed.of(e) for e in experiments] if asked else []
    for name in asked:
        whys = [UNUSED[name](p) for p in placed]
        if placed and all(whys):
            flag = "load" if name == "loads" else name.replace("_", "-")
            raise Usage(f"--{flag} changes nothing of {experiments[0].name}: {whys[0]}; expected no --{flag}")


def check_own(name: str, facts: Facts, options: Mapping[str, Any], usual: Mapping[str, Any],
              workers: int) -> None:
    """Refuse an algorithm's own options that change nothing beside the others, where they are not the `usual`
    ones."""
    needs = facts.needs(options, workers) if facts.needs else {}
    for option, what in needs.items():
        if options[option] != usual[option]:
            raise Usage(f"{option} {options[option]} changes nothing of {name} here; expected {what}")
