"""Planned deaths, the same in virtual time and among real processes: who dies, and before which of its steps.

The others go on.  A program that lists `refsgd.effects.Died` in a `Recv` is told of each death by an ordinary
message; what was sent to the dead is lost.  A host dies whole: with a worker also the server beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from refsgd.effects import Compute, Deployment, Died, Factory
from refsgd.machine import Machine
from refsgd.runtimes.programs import counts_steps
from refsgd.runtimes.simulator import ARRIVE, Simulator, _Process
from refsgd.trace import Event, Run


class Kill(NamedTuple):
    """The process of `node` is killed when it begins gradient (a server: update) number `step`, counted from 0.

    Examples
    --------
    >>> Kill.parse("kill worker 2 at step 10")
    Kill(node='worker2', step=10)
    """

    node: str
    step: int

    @classmethod
    def parse(cls, text: str) -> Kill:
        """Read ``kill ROLE RANK at step STEP``; raises ValueError saying what was expected."""
        match = re.fullmatch(r"\s*kill\s+([a-z]+)\s*(\d+)\s+at\s+step\s+(\d+)\s*", text)
        if match is None:
            raise ValueError(f"fault {text!r} not understood; expected e.g. kill worker 2 at step 10")
        return cls(match[1] + match[2], int(match[3]))


def plan(kills: Iterable[Kill], nodes: Iterable[str]) -> dict[str, int]:
    """Steps by node; raises ValueError if a node is unknown or killed twice."""
    known, steps = list(nodes), dict[str, int]()
    for node, step in kills:
        if node not in known:
            raise ValueError(f"a fault kills {node!r}; expected one of {', '.join(known)}")
        if node in steps or step < 0:
            raise ValueError(f"a fault kills {node} at step {step}; expected one step >= 0 for each node")
        steps[node] = step
    return steps


class Mortal(Simulator):
    """A simulator in which nodes die as planned, and are known to be dead at once.

    Parameters
    ----------
    deployment, machine, seed, observe
        As of `Simulator`.
    kills : sequence of Kill
    """

    def __init__(self, deployment: Deployment | Factory, machine: Machine | None = None, seed: int = 0,
                 observe: int = 64, kills: Sequence[Kill] = ()) -> None:
        super().__init__(deployment, machine, seed, observe)
        self._plan: Mapping[str, int] = plan(kills, self.nodes)
        self._steps: Counter[str] = Counter()

    def _die(self, host: str) -> None:
        gone = [node for node in self.nodes if self.host[node] == host]
        self.dead += gone
        for process in (p for node in gone for p in self._of_node[node]):
            process.waiting = None
            process.program.close()
        self.events += [Event(self.now, node, 0, "died", {"reason": "as planned"}) for node in gone]
        for node in gone:
            for to in self.nodes:
                self._at(self.now, ARRIVE, self.rank[node], self._arrive, node, Died(node), -1, to, 0)

    def _compute(self, process: _Process, effect: Compute) -> None:
        if counts_steps(process.node, effect.kind):
            if self._steps[process.node] == self._plan.get(process.node):
                self._die(self.host[process.node])
                return
            self._steps[process.node] += 1
        super()._compute(process, effect)

    def _perform(self, process: _Process, value: Any) -> None:
        if process.node not in self.dead:
            super()._perform(process, value)

    def _finish_compute(self, process: _Process, *result: Any) -> None:
        if process.node not in self.dead:
            super()._finish_compute(process, *result)

    def _finish_add(self, process: _Process, *result: Any) -> None:
        if process.node not in self.dead:
            super()._finish_add(process, *result)

    def _arrive(self, src: str, body: Any, number: int, to: str, nbytes: int) -> None:
        if to not in self.dead:
            super()._arrive(src, body, number, to, nbytes)


def simulate(factory: Deployment | Factory, machine: Machine | None = None, seed: int = 0, *, observe: int = 64,
             kills: Sequence[Kill] = ()) -> Run:
    """Run a deployment to its end in virtual time, with planned deaths.

    Returns
    -------
    Run
        Without the values of the dead.

    Examples
    --------
    >>> from refsgd.effects import Node
    >>> def work():
    ...     for t in range(3):
    ...         yield Compute(abs, -t)
    ...     return "done"
    >>> run = simulate({"peer0": Node(work()), "peer1": Node(work())}, Machine("fixed(1)"), kills=[Kill("peer0", 2)])
    >>> run.values, [(e.time, e.node) for e in run.trace.of("died")]
    ({'peer1': 'done'}, [(2.0, 'peer0')])
    """
    return Mortal(factory, machine, seed, observe, kills).run()
