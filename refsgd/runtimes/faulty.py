"""Planned faults in virtual time: the dead do nothing, the paused do it later, the slow take longer; see `refsgd.runtimes.faults`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from refsgd.effects import Array, Compute, Deployment, Died, Factory, Mark, RunEnded
from refsgd.machine import Machine
from refsgd.runtimes.faults import KEEP, Fault, Halted, Plan, can_be_ended, check, survives_workers
from refsgd.runtimes.simulator import ARRIVE, HEAD, RESUME, RunFailed, Simulator, _Process
from refsgd.trace import Event, Run


class Faulty(Simulator):
    """A simulator in which faults happen as planned, and the dead are known to be dead at once.

    Parameters
    ----------
    deployment, machine, seed, observe
        As of `Simulator`.
    faults : iterable of Fault
    on_death : {"stop", "continue", "shrink", "restart"}
        Whether a death ends the run with `RunFailed`, is survived, or halts the run with `Halted`.
    """

    def __init__(self, deployment: Deployment | Factory, machine: Machine | None = None, seed: int = 0,
                 observe: int = 64, faults: Iterable[Fault] = (), on_death: str = "stop") -> None:
        deployment = deployment() if callable(deployment) else deployment
        super().__init__(deployment, machine, seed, observe)
        faults = list(faults)
        check(faults, self.nodes)
        self._faults, self._on_death = Plan(faults), on_death
        self._until: dict[str, float] = {}  # hosts that stand still
        self._endable = {node for node in self.nodes if can_be_ended(deployment[node].main)}
        self._halts = on_death == "restart" and survives_workers(deployment)  # else: once nothing goes on
        self.kept = {name: deque[tuple[int, Array]](maxlen=KEEP if on_death in ("shrink", "restart") else 0) for name in self.nodes}

    # -- deaths --------------------------------------------------------------------------------------------

    def _die(self, fault: Fault) -> None:
        host = self.host[fault.node]
        gone = [node for node in self.nodes if self.host[node] == host]
        lost = f"its connection to {fault.to}" if fault.to else "its connections"
        how = "was killed" if fault.kind == "kill" else f"lost {lost}"
        reason = f"{fault.node} {how} as planned at step {fault.step}"
        if self._on_death == "stop" or len(self.dead) + len(gone) == len(self.nodes):
            raise RunFailed(f"{reason}, at {self.now:.6g} s", host)
        self.dead += gone
        for process in (p for node in gone for p in self._of_node[node]):
            process.waiting = None
            process.program.close()
        self.events += [Event(self.now, node, 0, "died", {"reason": reason}) for node in gone]
        for node in gone:
            for to in self.nodes:
                if to not in self.dead:
                    self._tell(node, to)
        if self._halts:
            self._halt()

    def _halt(self) -> None:
        self.seconds = self.now
        raise Halted(Run(self.trace(), self.values), {n: list(x) for n, x in self.kept.items() if n not in self.dead})

    def _tell(self, dead: str, to: str) -> None:
        """The news comes behind everything that the dead has sent."""
        order, call = (HEAD, self._head) if self._byte_time else (ARRIVE, self._arrive)
        head = max(self.now, self._out_free[self.host[dead]]) + self._latency(dead, to)
        self._at(head, order, self.rank[dead], call, dead, Died(dead), -1, to, 0)

    def _survives(self, stuck: list[_Process]) -> bool:
        if not self.dead:
            return False
        if not all(p.node in self._endable for p in stuck):
            if self._on_death in ("shrink", "restart"):
                self._halt()
            return False
        stuck[0].waiting = None
        self._current = (stuck[0], RunEnded())
        return True

    # -- what faults change --------------------------------------------------------------------------------

    def _compute(self, process: _Process, effect: Compute) -> None:
        host = self.host[process.node]
        for fault in self._faults.begins(process.node, effect.kind):
            if fault.kind != "pause":
                self._die(fault)
                return
            self._until[host] = max(self.now, self._until.get(host, 0.0)) + fault.amount
        if self._until.get(host, 0.0) > self.now:
            self._at(self._until[host], RESUME, -1, self._compute_now, process, effect)
        else:
            super()._compute(process, effect)

    def _compute_now(self, process: _Process, effect: Compute) -> None:
        if process.node not in self.dead:
            super()._compute(process, effect)

    def _duration(self, process: _Process, kind: str, nbytes: int = 0) -> float:
        return super()._duration(process, kind, nbytes) * self._faults.slower(process.node)

    def _latency(self, src: str, to: str) -> float:
        return super()._latency(src, to) + self._faults.later(src, to)

    # -- the dead do nothing, and the paused do it later ---------------------------------------------------

    def _acts(self, node: str, call: Any, *args: Any) -> bool:
        """Whether a node does this now; a paused one will, in the order in which it would have."""
        until = self._until.get(self.host[node], 0.0)
        if node not in self.dead and until > self.now:
            self._at(until, RESUME, -1, call, *args)
            return False
        return node not in self.dead

    def _perform(self, process: _Process, value: Any) -> None:
        if process.node not in self.dead:
            super()._perform(process, value)
            mark = process.waiting
            if self.kept[process.node].maxlen and type(mark) is Mark and mark.name == "update" and "x" in mark.values:
                self.kept[process.node].append((mark.values.get("t", mark.values["version"]), mark.values["x"]))

    def _finish_compute(self, process: _Process, *result: Any) -> None:
        if self._acts(process.node, self._finish_compute, process, *result):
            super()._finish_compute(process, *result)

    def _finish_add(self, process: _Process, *result: Any) -> None:
        if self._acts(process.node, self._finish_add, process, *result):
            super()._finish_add(process, *result)

    def _arrive(self, src: str, body: Any, number: int, to: str, nbytes: int) -> None:
        if self._acts(to, self._arrive, src, body, number, to, nbytes):
            super()._arrive(src, body, number, to, nbytes)


def simulate(factory: Deployment | Factory, machine: Machine | None = None, seed: int = 0, *, observe: int = 64,
             faults: Iterable[Fault] = (), on_death: str = "continue") -> Run:
    """Run a deployment to its end in virtual time, with planned faults.

    Examples
    --------
    >>> from refsgd.effects import Node
    >>> def work():
    ...     for t in range(3):
    ...         yield Compute(abs, -t)
    ...     return "done"
    >>> run = simulate({"peer0": Node(work()), "peer1": Node(work())}, Machine("fixed(1)"), faults=[Fault("kill", "peer0", 2)])
    >>> run.values, [(e.time, e.node) for e in run.trace.of("died")]
    ({'peer1': 'done'}, [(2.0, 'peer0')])
    """
    return Faulty(factory, machine, seed, observe, faults, on_death).run()
