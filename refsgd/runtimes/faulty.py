"""Planned faults in virtual time: dead nodes stop, paused nodes act later, slow nodes take longer; see
`refsgd.runtimes.faults`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Deployment, Died, Factory
from refsgd.runtimes.engine import RESUME, Task
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.faults import KEEP, Fault, Halted, Plan, check, survives_workers, why_over
from refsgd.runtimes.simulator import Simulator
from refsgd.trace import Crashed, Run


class Faulty(Simulator):
    """A simulator in which faults happen as planned, and deaths are noticed immediately.

    A death ends the run with `RunFailed` (`on_death` "stop"), is survived ("continue"), or ends the attempt
    with `Halted` ("shrink", "restart").
    """

    def __init__(self, deployment: Deployment | Factory, machine: Machine | None = None, seed: int = 0,
                 observe: int = 64, faults: Iterable[Fault] = (), on_death: str = "stop") -> None:
        deployment = deployment() if callable(deployment) else deployment
        super().__init__(deployment, machine, seed, observe,
                         KEEP if on_death in ("shrink", "restart") else 0)
        faults = list(faults)
        check(faults, self.roles, self.host)
        self._faults, self._on_death = Plan(faults, self.roles), on_death
        self._until: dict[str, float] = {}  # ends of the pauses of hosts
        self._endable = {node for node in self.nodes if deployment[node].survives}
        self._halts = on_death == "restart" and survives_workers(deployment)  # otherwise once all wait

    # -- deaths --------------------------------------------------------------------------------------------

    def _die(self, fault: Fault) -> None:
        host = self.host[fault.node]
        gone = [node for node in self.nodes if self.host[node] == host]
        lost = f"its connection to {fault.to}" if fault.to else "its connections"
        how = "was killed" if fault.kind == "kill" else f"lost {lost}"
        reason = f"{fault.node} {how} as planned at step {fault.step}"
        for node in gone:
            self.record(Crashed(self.now, node, 0, reason))
        self.dead += gone
        over = why_over(self.dead, self.roles)
        if over or self._on_death == "stop":
            raise RunFailed(f"{reason}, at {self.now:.6g} s{over * (self._on_death != 'stop')}", host)
        for node in gone:
            self.values.pop(node, None)  # its return value is lost too
        for task in (task for node in gone for task in self.tasks[node]):
            task.effect = task.waiting = None
            task.program.close()
        for node in gone:
            for to in self.nodes:
                if to not in self.dead:
                    self._tell(node, to)
        if self._halts:
            self._halt()

    def _halt(self) -> None:
        self.seconds = self.now
        raise Halted(Run(self.trace(), self.values),
                     {n: list(x) for n, x in self.kept.items() if n not in self.dead})

    def _tell(self, dead: str, to: str) -> None:
        """Send a notice of death behind all earlier messages of the dead node."""
        task = self.tasks[dead][0]
        self.post(task, to, Died(dead), -1, 0, self.departs(task, to, 0))

    def _survives(self, stuck: list[Task]) -> bool:
        if not self.dead:
            return False
        if not all(task.node in self._endable for task in stuck):
            if self._on_death in ("shrink", "restart"):
                self._halt()
            return False
        self.end(stuck[0])
        return True

    # -- what faults change --------------------------------------------------------------------------------

    def compute(self, task: Task, effect: Compute) -> None:
        """As in the simulator, unless a fault happens to the node now or its host is paused."""
        host = self.host[task.node]
        for fault in self._faults.begins(task.node, effect.kind, effect.piece):
            if fault.kind != "pause":
                self._die(fault)
                return
            self._until[host] = max(self.now, self._until.get(host, 0.0)) + fault.amount
        if self._until.get(host, 0.0) > self.now:
            self._at(self._until[host], RESUME, -1, self._compute_now, task, effect)
        else:
            super().compute(task, effect)

    def _compute_now(self, task: Task, effect: Compute) -> None:
        if task.node not in self.dead:
            super().compute(task, effect)

    # -- the dead do nothing, and the paused do it later ---------------------------------------------------

    def _acts(self, node: str, call: Any, *args: Any) -> bool:
        """Whether a node acts now; a paused node will act later, in the same order."""
        until = self._until.get(self.host[node], 0.0)
        if node not in self.dead and until > self.now:
            self._at(until, RESUME, -1, call, *args)
            return False
        return node not in self.dead

    def resume(self, task: Task, value: Any) -> None:
        """Answer a program of a living node."""
        if task.node not in self.dead:
            super().resume(task, value)

    def computed(self, task: Task, *result: Any) -> None:
        """End a Compute on a living node."""
        if self._acts(task.node, self.computed, task, *result):
            super().computed(task, *result)

    def added(self, task: Task, *result: Any) -> None:
        """End an Add on a living node."""
        if self._acts(task.node, self.added, task, *result):
            super().added(task, *result)

    def deliver(self, to: str, *message: Any) -> None:
        """Deliver a message to a living node."""
        if self._acts(to, self.deliver, to, *message):
            super().deliver(to, *message)


def simulate(factory: Deployment | Factory, machine: Machine | None = None, seed: int = 0, *,
             observe: int = 64,
             faults: Iterable[Fault] = (), on_death: str = "continue") -> Run:
    """Run a deployment to its end in virtual time, with planned faults.

    >>> from refsgd.effects import Node
    >>> def work():
    ...     for t in range(3):
    ...         yield Compute(abs, -t)
    ...     return "done"
    >>> nodes = {"peer0": Node(work()), "peer1": Node(work())}
    >>> run = simulate(nodes, Machine("fixed(1)"), faults=[Fault("kill", "peer0", 2)])
    >>> run.values, [(e.time, e.node) for e in run.trace.of(Crashed)]
    ({'peer1': 'done'}, [(2.0, 'peer0')])
    """
    return Faulty(factory, machine, seed, observe, faults, on_death).run()
