"""Workers that send the parts of a gradient while they compute.

The passes through a layer take fixed shares of a gradient's time.  For one worker, no latency, and parts that
are layers and take c_l seconds on a link each way, it is a flow shop::

    up_l   = max(up_{l+1}, end of backward l) + c_l
    here_l = max(here_{l+1}, up_l) + c_l,     forward l begins at max(end of forward l-1, here_l)

References
----------
Zhang et al., "Poseidon: an efficient communication architecture for distributed deep learning on GPU
clusters", USENIX ATC 2017: wait-free backpropagation.
Jayarajan et al., "Priority-based parameter propagation for distributed DNN training", MLSys 2019: P3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.oracle.gate import Fresh
from benchmarks.oracle.ways import PUSH, Ways
from refsgd.theory.phenomena.layerwise import Plan


def encoded(plan: Plan, order: Sequence[int]) -> list[tuple[float, float, list[int]]]:
    """The moves of a plan: share of a gradient's time, the codec's seconds, parts that then leave."""
    out = list[tuple[float, float, list[int]]]()
    for share, ready in plan.moves(order):
        if not plan.codec:
            out.append((share, 0.0, ready))
            continue
        out.append((share, 0.0, []))
        out += [(0.0, plan.codec * plan.parts[j].down, [j]) for j in ready]
    return out


class ByLayer(Fresh):
    """Workers that send parts while they compute; a mixin for the servers' rule."""

    def __init__(self, ways: Ways, plan: Plan, *args: Any) -> None:
        self.plan, self.stages = plan, plan.stages
        self.stages_of = [[k for k, (_, parts) in enumerate(self.stages) if j in parts]
                          for j in range(len(self.plan.parts))]
        super().__init__(ways, plan, *args)

    def start(self) -> None:
        """Give all workers all parts."""
        self.way = [dict(mine) for mine in self.ways.pushes]
        self.moves = [encoded(self.plan, [k for k, _ in mine]) for mine in self.ways.pushes]
        self.stage, self.blocked = [0] * self.n, [False] * self.n
        self.due = [[0] * len(self.stages) for _ in range(self.n)]  # parts for which each stage waits
        self.here = [[0.0] * len(self.stages) for _ in range(self.n)]  # when its last part came
        self.since = [0.0] * self.n  # end of the worker's last computation
        for server, part in zip(self.servers, self.plan.parts, strict=True):
            server.decoding = self.plan.codec * part.down
            server.known = [[0] for _ in range(self.n)]
        super().start()

    def begin(self, start: float, i: int) -> None:
        """Begin the next gradient, if there is one."""
        if self.made[i] < self.clocks:
            self.since[i], self.stage[i] = start, 0
            self.forward(i)

    def forward(self, i: int) -> None:
        """Compute forward as far as the parts allow, then backward."""
        time = self.times[i][self.made[i]]
        for k in range(self.stage[i], len(self.stages)):
            self.stage[i], self.blocked[i] = k, bool(self.due[i][k])
            if self.blocked[i]:
                return
            self.since[i] = max(self.since[i], self.here[i][k]) + time * self.stages[k][0]
        self.backward(i)

    def backward(self, i: int) -> None:
        """Compute backward, sending parts, and begin the next gradient."""
        now, time = self.since[i], self.times[i][self.made[i]]
        self.made[i] += 1
        self.due[i] = [len(parts) for _, parts in self.stages]
        for share, seconds, ready in self.moves[i]:
            now += time * share + seconds
            if ready:
                self.then(now, i, self.give, ready)
        self.ends[i].append(now)
        self.begin(now, i)

    def give(self, now: float, i: int, ready: Sequence[int]) -> None:
        """A worker sends the gradients of some parts."""
        for k in ready:
            self.agenda.send(self.way[i][k], now, i, PUSH, self.ways.early[k], self.pushed, k, i)

    def answered(self, at: float, k: int, i: int, row: int, others: int) -> None:
        """A worker receives a part."""
        self.final = max(self.final, at)
        known = self.servers[k].known[i]
        known.append(others + len(known))
        for stage in self.stages_of[k]:
            self.due[i][stage] -= 1
            self.here[i][stage] = max(self.here[i][stage], at)
        if self.blocked[i] and not self.due[i][self.stage[i]]:
            self.forward(i)


def of(rule: type[Any], plan: Plan | None) -> type[Any]:
    """A servers' rule, combined with `ByLayer` if gradients travel in parts."""
    if plan is None or (rule.asking and plan.overlap == "none" and not plan.codec):
        return rule
    assert not rule.asking, "workers that overlap and do not wait for the answer to a push"
    return type(f"ByLayer{rule.__name__}", (ByLayer, rule), {})
