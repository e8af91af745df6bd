"""Planned faults, in virtual time and in real processes: what happens to which node, and at which step.

docs/faults.md says what each kind does, and what each policy `on_death` does after a death.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import isfinite
from numbers import Integral, Real
from typing import Any, NamedTuple

from refsgd.effects import Array, Deployment, ranks, roles
from refsgd.trace import Crashed, Run

POLICIES = ("stop", "continue", "shrink", "restart")
KEEP = 8  # number of newest parameters that every node holds if the run may be halted and continued
EXPECTED = (
    "expected kill|drop ROLE RANK at step STEP, pause ROLE RANK at step STEP for SECONDS, "
    "slow ROLE RANK at step STEP by FACTOR, delay ROLE RANK [to ROLE RANK] at step STEP by SECONDS, "
    "drop ROLE RANK to ROLE RANK at step STEP, or random COUNT seed SEED")
_NODE = r"(?!at |to )\S+( +\d+)?"
_PLANNED = re.compile(rf"(?P<kind>kill|drop|pause|slow|delay) +(?P<node>{_NODE})"
                      rf"( +to +(?P<to>{_NODE}))? +at +step +(?P<step>\d+)"
                      r"( +(?P<word>for|by) +(?P<amount>[0-9.]+(e-?\d+)?))?")
_RANDOM = re.compile(r"random +(?P<count>\d+) +seed +(?P<seed>\d+)")
#: what can happen to a node, and the word before its amount
_WORDS = {"kill": None, "pause": "for", "slow": "by", "delay": "by", "drop": None}
KINDS = tuple(_WORDS)


class Fault(NamedTuple):
    """One fault of a plan: `kind` happens to `node` when it begins gradient (a server: update) number `step`,
    from 0.

    Nodes are named, or written as role and rank, which `parse` resolves.  `amount` is in seconds (pause,
    delay) or a factor (slow); `to` is the receiver whose messages are late (delay), or the other end of the
    lost connection (drop); "" means all.

    >>> Fault.parse("kill worker 2 at step 10")
    Fault(kind='kill', node='worker2', step=10, amount=0.0, to='')
    >>> str(Fault.parse("delay worker1 to server0 at step 2 by 0.2"))
    'delay worker 1 to server 0 at step 2 by 0.2'
    """

    kind: str
    node: str
    step: int
    amount: float = 0.0
    to: str = ""

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read one line of a plan (not ``random``); raises ValueError."""
        match = _PLANNED.fullmatch(text.strip())
        if match is None or match["word"] != _WORDS[match["kind"]] or (
            match["to"] and match["kind"] not in ("delay", "drop")):
            raise ValueError(f"fault {text!r} not understood; {EXPECTED}")
        try:
            amount = float(match["amount"] or 0)
        except ValueError:
            raise ValueError(f"fault {text!r}: {match['amount']} is not a number; {EXPECTED}") from None
        fault = cls(match["kind"], "".join(match["node"].split()), int(match["step"]), amount,
                    "".join((match["to"] or "").split()))
        least = 1.0 if fault.kind == "slow" else 0.0
        if fault.amount < least or not isfinite(fault.amount):
            raise ValueError(f"fault {text!r}: {fault.amount:g}; expected a finite number >= {least:g}")
        return fault

    def __str__(self) -> str:
        node, to = (re.sub(r"(\d+)$", r" \1", name) for name in (self.node, self.to))
        amount = f" {_WORDS[self.kind]} {self.amount:g}" if _WORDS[self.kind] else ""
        return f"{self.kind} {node}{f' to {to}' if to else ''} at step {self.step}{amount}"


def listed(faults: Iterable[str | Fault] | str | Fault) -> list[str | Fault]:
    """The lines of a plan; a single one may be given without a list."""
    lone = isinstance(faults, (str, Fault)) or not isinstance(faults, Iterable)
    lines: list[Any] = [faults] if lone else list(faults)
    for line in lines:
        if not isinstance(line, (str, Fault)):
            raise ValueError(f"fault {line!r} of type {type(line).__name__}; {EXPECTED}")
    return lines


def parse(texts: Iterable[str | Fault] | str | Fault, deployment: Deployment, steps: int,
          host: Mapping[str, str] | None = None) -> list[Fault]:
    """The plan described by some lines, for a deployment and a number of steps; `host` is the host of each
    node, by default its own.  Warns of a fault at a step that a worker does not reach.

    >>> from refsgd.effects import Mark, Node
    >>> def idle():
    ...     yield Mark("idle")
    >>> deployment = {"alice": Node(idle()), "bob": Node(idle())}
    >>> [str(fault) for fault in parse(["slow worker 1 at step 3 by 4", "random 1 seed 7"], deployment, 20)]
    ['slow bob at step 3 by 4', 'slow alice at step 3 by 2.29']
    """
    role, host = roles(deployment), host or {node: node for node in deployment}
    by_rank = {f"{word}{rank}": name for name, rank in ranks(deployment).items()
               for word in (("worker", "peer") if role[name] == "worker" else ("server",))}
    faults: list[Fault] = []
    for text in listed(texts):
        some = _RANDOM.fullmatch(text.strip()) if not isinstance(text, Fault) else None
        if isinstance(text, Fault):
            faults.append(text)
        elif some is not None:
            if len(some["count"]) > 5:
                raise ValueError(f"fault {text!r}: {some['count']} of them; expected at most 99999")
            faults += draw(int(some["count"]), int(some["seed"]), list(deployment), steps, host)
        else:
            faults.append(Fault.parse(text))
    faults = [f if f.node in role and (not f.to or f.to in role)
              else f._replace(node=by_rank.get(f.node, f.node), to=by_rank.get(f.to, f.to)) for f in faults]
    check(faults, role, host)
    for fault in faults:
        if fault.step >= steps > 0 and role[fault.node] == "worker":
            warnings.warn(
                f"fault {str(fault)!r} will not happen where each step is one gradient: {fault.node} has "
                f"{steps} steps; expected step 0 to {steps - 1}", stacklevel=8)  # of `refsgd.run`
    return faults


def draw(count: int, seed: int, nodes: Sequence[str], steps: int,
         host: Mapping[str, str] | None = None) -> list[Fault]:
    """Random faults at random nodes and steps; at least one host is neither killed nor disconnected."""
    host = host or {node: node for node in nodes}
    rng, mortal = random.Random(seed), list(nodes)
    faults = []
    for _ in range(count):
        several = any(host[node] != host[mortal[0]] for node in mortal)
        kind, node = rng.choice(KINDS if several else KINDS[1:4]), rng.choice(nodes)
        if kind in ("kill", "drop"):
            node = rng.choice(mortal)
            mortal = [other for other in mortal if host[other] != host[node]]
        amount = {"pause": rng.uniform(0.05, 0.5), "slow": rng.uniform(2, 8),
                  "delay": rng.uniform(0.01, 0.2)}.get(kind, 0.0)
        faults.append(Fault(kind, node, rng.randrange(max(1, steps)), round(amount, 3)))
    return faults


def check(faults: Iterable[Fault], role: Mapping[str, str], host: Mapping[str, str]) -> None:
    """Raise ValueError if a node is unknown or ends twice, or if a lost connection does not exist."""
    known, ends, of_host = list(role), Counter[str](), roles_of_hosts(role, host)
    for fault in faults:
        names = isinstance(fault.node, str) and isinstance(fault.to, str)
        numbers = isinstance(fault.step, Integral) and isinstance(fault.amount, Real)
        if fault.kind not in KINDS or not names or not numbers or not isfinite(fault.amount):
            raise ValueError(f"{fault!r}; expected one of {', '.join(KINDS)}, names of nodes, a whole step, "
                             "a finite number as amount")
        for node in filter(None, (fault.node, fault.to)):
            if node not in known:
                raise ValueError(
                    f"fault {str(fault)!r}: there is no {node}; expected one of {', '.join(known)}")
        ends[fault.node] += fault.kind in ("kill", "drop")
        if fault.kind == "drop" and fault.to:
            here, there = host[fault.node], host[fault.to]
            if here == there and fault.node != fault.to:
                raise ValueError(f"fault {str(fault)!r}: both are on {here}; expected two nodes with a "
                                 "connection between their hosts")
            if here == there or gives_up(here, there, of_host) != here:
                raise ValueError(f"fault {str(fault)!r}: if two nodes lose their connection, the worker "
                                 "ends, and of two workers the one on the later host; expected that one "
                                 "first")
        if fault.step < 0 or ends[fault.node] > 1:
            raise ValueError(f"fault {str(fault)!r}; expected a step >= 0, and one end for each node")


def roles_of_hosts(role: Mapping[str, str], host: Mapping[str, str]) -> dict[str, str]:
    """The role of each host: worker if it has a worker."""
    return {host[node]: r for r in ("server", "worker") for node in role if role[node] == r}


def gives_up(one: str, other: str, role: Mapping[str, str]) -> str:
    """The one of two disconnected hosts that ends: one with a worker rather than one with servers only, then
    the later one."""
    hosts = list(role)
    return max(one, other, key=lambda host: (role[host] == "worker", hosts.index(host)))


class Halted(Exception):
    """A death has ended one attempt of a run, and another can continue from it.

    `run` is the run so far, without the values of killed processes; `kept` are the newest parameters of each
    living node, with the iteration or version of their update; `dead` gives the cause of each death.
    """

    def __init__(self, run: Run, kept: dict[str, list[tuple[int, Array]]]) -> None:
        self.run, self.kept = run, kept
        self.dead: dict[str, str] = {event.node: event.reason for event in run.trace.of(Crashed)}
        #: the causes of death, once for each host
        self.reasons = "; ".join(dict.fromkeys(self.dead.values()))
        super().__init__(f"halted after the death of {', '.join(self.dead)}")


class Plan:
    """Counts the steps of nodes and says which faults are due, in virtual time and in processes."""

    def __init__(self, faults: Iterable[Fault], role: Mapping[str, str]) -> None:
        self._role, self._faults = role, list(faults)
        self._steps: Counter[str] = Counter()
        self._slower: dict[str, float] = {}
        self._later = self.delays = dict[tuple[str, str], float]()  # so far
        self._left: dict[tuple[str, str], float] = {}  # when the last late message of each channel had left

    def begins(self, node: str, kind: str,
               piece: tuple[str, int, float, bool, bool] | None = None) -> list[Fault]:
        """The faults that happen to a node as it begins a Compute of this kind."""
        if not self._faults or kind != ("update" if self._role[node] == "server" else "gradient"):
            return []
        if piece is not None and not piece[3]:
            return []
        now = [fault for fault in self._faults if (fault.node, fault.step) == (node, self._steps[node])]
        self._steps[node] += 1
        for fault in now:
            if fault.kind == "slow":
                self._slower[node] = fault.amount
            elif fault.kind == "delay":
                self._later[node, fault.to] = fault.amount
        return [fault for fault in now if fault.kind in ("pause", "kill", "drop")]

    def slower(self, node: str) -> float:
        """The factor by which a node's computing takes longer."""
        return self._slower.get(node, 1.0) if self._slower else 1.0

    def late(self, node: str, to: str, start: float, seconds: float) -> float:
        """When a message leaves that would at `start`, for `seconds`: the order of a channel stays."""
        if self._later:
            start += self._later.get((node, ""), 0.0) + self._later.get((node, to), 0.0)
            start = max(start, self._left.get((node, to), 0.0))
            self._left[node, to] = start + seconds
        return start


def why_over(dead: Collection[str], role: Mapping[str, str]) -> str:
    """Why no policy can continue a run after these deaths, "" if one can: a server has the only copy of its
    part of the parameters, or coordinates the others."""
    if any(role[node] == "server" for node in dead):
        return "; the parameters died with it, so no node can continue"
    return "" if len(dead) < len(role) else "; no node is left to continue"


def survives_workers(deployment: Deployment) -> bool:
    """Whether a run can continue without a worker: all servers (or without servers, all workers) survive a
    death."""
    servers = [node for node in deployment.values() if node.role == "server"]
    return all(node.survives for node in servers or deployment.values())
