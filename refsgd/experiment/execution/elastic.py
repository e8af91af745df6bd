"""Elastic restart: after a worker dies, continue with the survivors (`shrink`) or all workers (`restart`).

When all survivors wait for the dead node, they are halted, and the next attempt is a fresh deployment of the
same algorithm, which continues from their newest parameters (docs/faults.md).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms.exchange import of
from refsgd.cluster import prices
from refsgd.effects import Array, ranks, roles
from refsgd.experiment.prepare import Experiment
from refsgd.experiment.result import average
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.faults import Fault, Halted
from refsgd.trace import Computed, Event, Marked, Run, Sent, Trace, Use

log = logging.getLogger("refsgd.experiment.execution.elastic")

ENDS, LASTING = ("kill", "drop"), ("slow", "delay")  # faults that end a node, faults that last


class Attempt(NamedTuple):
    """The starting point of one attempt of a run."""

    number: int
    experiment: Experiment
    faults: Sequence[Fault]
    names: Mapping[str, str]  # of its nodes, to those of the first attempt


class Attempts:
    """The attempts of a run: the next one, and the results of those before it."""

    def __init__(self, experiment: Experiment, faults: Sequence[Fault], on_death: str) -> None:
        self.experiment, self.on_death = experiment, on_death
        self.role, self.rank = roles(experiment.nodes), ranks(experiment.nodes)
        self.next = Attempt(0, experiment, faults, {node: node for node in experiment.nodes})
        self.x, self.done, self.dead = experiment.problem.x0, 0, set[str]()
        self.run: Run | None = None  # all attempts so far, as one

    def halted(self, halted: Halted) -> None:
        """Prepare the attempt after a halted one, or fail if no node can continue."""
        names = [self.next.names[node] for node in halted.dead]
        more = iterations(halted)
        self._check(halted, names, more)
        self.run = self.joined(halted.run)
        self.x, self.done = parameters(halted, self.x, self.experiment), self.done + more
        self.dead.update(names)
        self.next = self._attempt(self.run.trace, halted, more)
        log.warning("%s; the run continues from iteration %d with %s", halted.reasons,
                    self.done, ", ".join(new if new == old else f"{new} (was {old})"
                                         for new, old in self.next.names.items()))

    def _check(self, halted: Halted, names: Sequence[str], more: int) -> None:
        """Fail if no worker is left, or one dies again and again."""
        if not living(halted) and (self.on_death == "shrink" or "server" not in self.role.values()):
            why = "no worker is left to continue"
        elif self.on_death == "restart" and self.dead.intersection(names) and not more:
            why = "it died again before every worker had completed an iteration"
        else:
            return
        raise RunFailed(f"{halted.reasons}; {why}", names[0]) from None

    def _attempt(self, before: Trace, halted: Halted, more: int) -> Attempt:
        """A deployment that continues from `x` after `done` iterations, without the dead under shrink."""
        experiment, done = self.experiment, self.done
        workers = sorted(before.workers, key=self.rank.__getitem__)
        left = [w for w in workers if self.on_death != "shrink" or w not in self.dead]
        was = [self.rank[node] for node in left]
        servers = [node for node in before.nodes if not before.is_worker(node)]
        updates = max(before.updates.values(), default=0)
        experiment = experiment.continued(len(left), done, updates if servers else done)
        problem, machine = experiment.problem, experiment.machine
        names = {node: node for node in servers} | dict(zip(workers, left, strict=False))
        if machine.hosts or machine.groups:  # nodes keep their hosts, and hosts of the dead are empty
            placed = self.experiment.network
            machine = machine.with_(hosts=[[new for new, old in names.items() if placed.host[old] == one]
                                           for one in placed.hosts])
        machine, work = prices.left(machine, was, before.seconds), problem.work
        layers, axes = problem.layers, problem.coordinates
        problem = replace(problem, x0=self.x, work=work and (lambda rank, t: work(was[rank], done + t)),
                          layers=layers and replace(
                              layers, begin=lambda rank, t: layers.begin(was[rank], done + t)),
                          coordinates=axes and replace(
                              axes, rows=lambda rank: axes.rows(was[rank]),
                              slope=lambda x, rank, where: axes.slope(x, was[rank], where)),
                          gradient=lambda x, rank, t: experiment.problem.gradient(x, was[rank], done + t),
                          images=lambda rank, t: experiment.problem.images(was[rank], done + t))
        later = replace(experiment, problem=problem, machine=machine, seed=self.next.experiment.seed + 1)
        first_names = {old: new for new, old in names.items()}
        now = {name: first_names.get(old, "") for name, old in self.next.names.items()} | {"": ""}
        begun = max(halted.run.trace.updates.values(), default=0)  # of the servers, in this attempt
        faults = []
        for fault in self.next.faults:
            ended = fault.kind in ENDS and fault.node in halted.dead
            if not ended and now[fault.node] and bool(now[fault.to]) == bool(fault.to):
                step = fault.step - (more if halted.run.trace.is_worker(fault.node) else begun)
                if step >= 0 or fault.kind in LASTING:
                    faults.append(fault._replace(step=max(0, step), node=now[fault.node],
                                                 to=now[fault.to]))
        return Attempt(self.next.number + 1, later, faults, names)

    def joined(self, last: Run) -> Run:
        """All attempts so far and the last one as one run, with one clock and the names of the first."""
        if self.run is None:
            return last
        names, before, after = self.next.names, self.run.trace, last.trace
        sent = Counter((e.node, e.to) for e in before.of(Sent))
        events = [_renamed(e, names, before, sent, self.done) for e in after.events]
        links = before.links + [self._used(use, before.seconds) for use in after.links]
        wires = {**before.wires,
                 **{(names[src], names[to]): wire for (src, to), wire in after.wires.items()}}
        lateness = before.lateness | {names[node]: late for node, late in after.lateness.items()}
        trace = Trace(before.events + events, before.nodes, before.seconds + after.seconds, before.latency,
                      before.bandwidth, lateness, before.roles, links, wires, before.hosts,
                      before.shared_links)
        values = {names[node]: value for node, value in last.values.items()}
        return Run(trace, {node: values[node] for node in before.nodes if node in values})

    def _used(self, use: Use, before: float) -> Use:
        """The use of a link in this attempt, which began after `before` seconds, in the whole run."""
        src, to = self.next.names[use.src], self.next.names[use.to]
        at = [hop.link for hop in self.next.experiment.network.way(use.src, use.to)].index(use.link)
        first = self.experiment.network.way(src, to)
        return Use(first[at].link, use.start + before, use.end + before, src, to)


def living(halted: Halted) -> list[str]:
    """Workers that were alive when the attempt was halted."""
    return [node for node in halted.run.trace.workers if node not in halted.dead]


def iterations(halted: Halted) -> int:
    """Iterations of the halted attempt that every living worker completed; 0 if none is alive."""
    ends: dict[str, int] = {e.node: e.values["t"] + 1 for e in halted.run.trace.marks("clock")}
    return min((ends.get(node, 0) for node in living(halted)), default=0)


def parameters(halted: Halted, x0: Array, experiment: Experiment) -> Array:
    """The parameters, (d,), after an attempt that began at `x0`, of the servers or of the living replicas."""
    trace, kept = halted.run.trace, halted.kept
    if any(not trace.is_worker(node) for node in trace.nodes):
        # a server without a part, such as a coordinator, marks no updates
        part = {e.node: e.values.get("part", 0) for e in trace.marks("update")
                if kept.get(e.node) and not trace.is_worker(e.node)}
        newest = [kept[node][-1][1] for node in sorted(part, key=part.__getitem__)]
        if sum(x.size for x in newest) == x0.size:
            return np.concatenate(newest)
        servers = max(experiment.servers, 1 + max(part.values(), default=0))
        x, cut = x0.copy(), of(experiment.problem).cut(experiment.problem, servers)
        for k, found in zip(sorted(part.values()), newest, strict=True):
            x[cut[k]] = found
        return x
    done = iterations(halted)
    if not done:
        return x0
    # A replica that is far ahead no longer holds that iteration's parameters, but its oldest ones are near.
    return average([next((x for t, x in replica if t == done - 1), replica[0][1])
                    for replica in kept.values()])


def _renamed(event: Event, names: Mapping[str, str], before: Trace, sent: Mapping[tuple[str, str], int],
             done: int) -> Event:
    """An event of a later attempt as one of the whole run, after `done` iterations of earlier attempts."""
    def name(node: str) -> str:
        return names.get(node, node)

    node, seconds = names[event.node], before.seconds
    new: dict[str, Any] = {"node": node, "time": event.time + seconds}
    channel = None
    if (to := getattr(event, "to", None)) is not None:
        new["to"], channel = name(to), (node, name(to))
    if (src := getattr(event, "src", None)) is not None:
        new["src"], channel = name(src), (name(src), node)
    if channel and (number := event.number) >= 0:  # type: ignore[union-attr]
        new["number"] = number + sent.get(channel, 0)
    if channel or isinstance(event, Computed):
        new |= {field: getattr(event, field) + seconds for field in ("start", "since", "arrival")
                if hasattr(event, field)}
    if isinstance(event, Marked):
        values, updates = dict(event.values), before.updates.get(node, 0)
        for key, first in (("version", updates), ("t", done)):
            if key in values:
                values[key] += first
        if "worker" in values:
            values["worker"] = name(values["worker"])
        if "reads" in values:
            values["reads"] = tuple((name(w), read + updates) for w, read in values["reads"])
        new["values"] = values
    return event._replace(**new)
