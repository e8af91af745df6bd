"""A run that deaths have halted goes on in another life: without the dead (shrink), or with all again
(restart).

The survivors go on for as long as they can.  When they all wait for the dead, they are halted, and a fresh
deployment of the same algorithm starts from what is left: the servers' newest parameters, or the mean of the
living peers' replicas after the last iteration that all of them have completed.  Iterations, learning rates
and batches count on from there.  Velocities, residuals and messages under way are lost, and the dead worker's
share of the data is not seen again (shrink).  A server that dies takes its slice of the parameters with it,
and so ends the run.

So does elastic training in practice: TorchElastic and Elastic Horovod end all workers at a failure and start
those that are left from the last common state.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from refsgd.cluster.machine import Machine
from refsgd.effects import Array, Deployment, roles
from refsgd.experiment.prepare import Experiment
from refsgd.experiment.result import average
from refsgd.runtimes.faults import Fault, Halted
from refsgd.runtimes.simulator import RunFailed
from refsgd.trace import Computed, Event, Marked, Polled, Received, Run, Sent, Trace

log = logging.getLogger("refsgd.experiment.elastic")

ENDS, LASTING = ("kill", "drop"), ("slow", "delay")  # kinds of faults


class Life(NamedTuple):
    """What one life of a run begins with."""

    deploy: Callable[[], Deployment]
    machine: Machine
    seed: int
    faults: Sequence[Fault]
    names: Mapping[str, str]  # of its nodes, to those of the first life


@dataclass(frozen=True)
class Later:
    """A schedule of learning rates from update `first` on.

    Parameters
    ----------
    schedule : callable
        Learning rate of an update's number.
    first : int
        Updates done before.
    """

    schedule: Callable[[int], float]
    first: int

    def __call__(self, t: int) -> float:
        return self.schedule(self.first + t)


def go_on(experiment: Experiment, faults: Sequence[Fault], on_death: str, live: Callable[[Life], Run]) -> Run:
    """Live until an end that is no halt."""
    role = roles(experiment.deploy())
    nodes = list(role)
    life = Life(experiment.deploy, experiment.machine, experiment.seed, faults,
                {node: node for node in nodes})
    x, done, dead = experiment.problem.x0, 0, set[str]()
    run = Run(Trace([], nodes, 0.0, experiment.machine.latency, experiment.machine.bandwidth,
                    roles=role), {})
    while True:
        try:
            last = live(life)
        except Halted as halted:
            what, names = "; ".join(halted.dead.values()), [life.names[node] for node in halted.dead]
            more = iterations(halted)
            if any(role[name] == "server" for name in names):
                raise RunFailed(f"{what}; the parameters died with it, so nobody can go on",
                                names[0]) from None
            # nobody, or nobody with parameters
            if not living(halted) and (on_death == "shrink" or "server" not in role.values()):
                raise RunFailed(f"{what}; no worker is left to go on", names[0]) from None
            if on_death == "restart" and dead.intersection(names) and not more:
                raise RunFailed(f"{what}; it died again before all had completed an iteration",
                                names[0]) from None
            x, run, done = parameters(halted, x), joined(run, halted.run, life.names, done), done + more
            dead.update(names)
            life = next_life(experiment, x, done, run, dead if on_death == "shrink" else set(), life.seed + 1,
                             [fault for fault in faults if not (fault.kind in ENDS and fault.node in dead)])
            log.warning("%s; the run goes on from iteration %d with %s", what, done, ", ".join(
                new if new == old else f"{new} (was {old})" for new, old in life.names.items()))
        else:
            values = {life.names[node]: value for node, value in last.values.items()}
            return Run(joined(run, last, life.names, done).trace,
                       {node: values[node] for node in nodes if node in values})


def living(halted: Halted) -> list[str]:
    """Workers that a halt found alive."""
    return [node for node in halted.run.trace.workers if node not in halted.dead]


def iterations(halted: Halted) -> int:
    """How many iterations every living worker completed in the life that was halted; 0 if none lives, so
    that all do theirs again."""
    ends: dict[str, int] = {e.node: e.values["t"] + 1 for e in halted.run.trace.marks("clock")}
    return min((ends.get(node, 0) for node in living(halted)), default=0)


def parameters(halted: Halted, x0: Array) -> Array:
    """What a life that began at `x0` leaves: the servers' newest slices, or the mean of the living
    replicas; (d,)."""
    servers = [node for node in halted.run.trace.nodes if not halted.run.trace.is_worker(node)]
    if servers:
        edges = [x0.size * k // len(servers) for k in range(len(servers) + 1)]
        return np.concatenate([halted.kept[s][-1][1] if halted.kept[s] else x0[a:b]
                               for s, a, b in zip(servers, edges[:-1], edges[1:], strict=True)])
    done = iterations(halted)
    if not done:
        return x0
    # A replica that is far ahead no longer holds that iteration's parameters, but its oldest ones are near.
    return average([next((x for t, x in kept if t == done - 1), kept[0][1]) for kept in halted.kept.values()])


def next_life(experiment: Experiment, x: Array, done: int, run: Run, without: set[str], seed: int,
              faults: Sequence[Fault]) -> Life:
    """The deployment that goes on at `x` after `done` iterations of the run, without some nodes of the
    first life."""
    workers = run.trace.workers
    left = [node for node in workers if node not in without]
    ranks = [workers.index(node) for node in left]
    names = {node: node for node in run.trace.nodes
             if not run.trace.is_worker(node)} | dict(zip(workers, left, strict=False))
    problem, machine = experiment.problem, experiment.machine
    updates = max(run.trace.updates.values(), default=0)
    if machine.speeds:
        machine = machine.with_(speeds=tuple(machine.speed(rank) for rank in ranks))
    later = replace(problem, x0=x, gradient=lambda x, rank, t: problem.gradient(x, ranks[rank], done + t),
                    images=lambda rank, t: problem.images(ranks[rank], done + t))
    sgd = replace(experiment.sgd,
                  schedule=Later(experiment.sgd.schedule, done if len(names) == len(left) else updates))
    again = replace(experiment, problem=later, workers=len(left), steps=experiment.steps - done, sgd=sgd,
                    machine=machine)
    now = {old: new for new, old in names.items()}
    coming = [fault._replace(step=fault.step - (done if run.trace.is_worker(fault.node) else updates),
                             node=now[fault.node], to=now.get(fault.to, ""))
              for fault in faults if fault.node in now and (not fault.to or fault.to in now)]
    lasting = [fault._replace(step=max(0, fault.step)) for fault in coming if fault.step >= 0
               or fault.kind in LASTING]
    return Life(again.deploy, machine, seed, lasting, names)


def joined(run: Run, later: Run, names: Mapping[str, str], done: int) -> Run:
    """A run and its next life, as one: on one clock, with the first life's names, numbers and versions
    counted on."""
    before, after = run.trace, later.trace
    numbers: Counter[tuple[str, str]] = Counter()
    for e in before.of(Sent):
        numbers[e.node, e.to] += 1
    events = [_renamed(e, names, before.seconds, done, before.updates.get(names[e.node], 0), numbers)
              for e in after.events]
    lateness = before.lateness | {names[node]: late for node, late in after.lateness.items()}
    trace = Trace(before.events + events, before.nodes, before.seconds + after.seconds, before.latency,
                  before.bandwidth, lateness, before.roles)
    return Run(trace, later.values)


def _renamed(event: Event, names: Mapping[str, str], seconds: float, done: int, updates: int,
             numbers: Mapping[tuple[str, str], int]) -> Event:
    """An event of a later life as one of the whole run."""
    node = names[event.node]
    event = event._replace(time=event.time + seconds, node=node)
    match event:
        case Computed():
            return event._replace(start=event.start + seconds)
        case Sent():
            to = names.get(event.to, event.to)
            return event._replace(to=to, number=event.number + numbers.get((node, to), 0),
                                  start=event.start + seconds)
        case Received(src=str()) | Polled(src=str()):
            src = names.get(str(event.src), str(event.src))
            number = event.number + numbers.get((src, node), 0) if event.number >= 0 else event.number
            event = event._replace(src=src, number=number, arrival=event.arrival + seconds)
            return event._replace(since=event.since + seconds) if isinstance(event, Received) else event
        case Marked():
            values = dict(event.values)
            for key, first in (("version", updates), ("t", done)):
                if key in values:
                    values[key] += first
            if "worker" in values:
                values["worker"] = names.get(values["worker"], values["worker"])
            if "reads" in values:
                values["reads"] = tuple((names.get(w, w), read + updates) for w, read in values["reads"])
            return event._replace(values=values)
    return event
