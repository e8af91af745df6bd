"""Gradients that are sent in parts while workers compute: layers, overlap, priorities, codecs.

The passes through a layer take fixed shares of a gradient's time.  The backward pass goes from the last layer
to the first, so a part is sent when the backward pass through its first layer has ended; the next forward
pass through a layer waits for the parts that hold it.  Without overlap, all parts wait for all layers.  Each
part has its own server program, and parts of one server share its links: this is the recursion of
`refsgd.theory.phenomena.gate` with more servers and another worker.  For one worker, no latency, and parts
that are layers and take c_l seconds on a link each way, it is a flow shop::

    up_l   = max(up_{l+1}, end of backward l) + c_l
    here_l = max(here_{l+1}, up_l) + c_l,     forward l begins at max(end of forward l-1, here_l)

References
----------
Zhang et al., "Poseidon: an efficient communication architecture for distributed deep learning on GPU
clusters", USENIX ATC 2017: wait-free backpropagation.
Jayarajan et al., "Priority-based parameter propagation for distributed DNN training", MLSys 2019: P3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

from refsgd.theory.estimate import Uncovered
from refsgd.theory.phenomena.gate import Fresh, Network
from refsgd.theory.phenomena.ways import PUSH, Ways

ALONE = 8  # iterations of a lone worker; the middle ones give its pace


def first_come(forward: float, backward: Sequence[float], exchange: Sequence[float]) -> float:
    """Seconds until all layers have exchanged gradients one by one, the last layer first.

    forward + max_l (sum_{j>=l} b_j + sum_{j<=l} c_j): the exchange of the first layer, here 2 s, is not
    hidden.

    >>> first_come(3, [2, 2, 2], [2, 2, 2])
    11
    """
    now, end = forward, 0.0
    for b, c in zip(reversed(backward), reversed(exchange), strict=True):
        now += b
        end = max(end, now) + c
    return end


class Part(NamedTuple):
    """A part of the parameters."""

    server: int
    layers: tuple[int, ...]
    up: float  #: bytes of a push, and of its answer
    down: float
    sums: tuple[float, ...] = ()  #: bytes of each sum, if peers sum messages


@dataclass(frozen=True)
class Plan:
    """How a gradient is exchanged."""

    parts: tuple[Part, ...]
    forward: tuple[float, ...] = ()  #: share of a gradient's time of each layer's passes
    backward: tuple[float, ...] = ()
    overlap: str = "none"  #: or backward, or both
    priority: bool = False  #: whether links serve low parts first
    codec: float = 0.0  #: seconds per byte
    even: bool = True  #: one part for each server
    unknown: str = ""  #: why no formula covers it

    @property
    def simple(self) -> bool:
        """Whether workers send only whole gradients, without a codec."""
        return self.overlap == "none" and not self.codec

    @property
    def stages(self) -> list[tuple[float, list[int]]]:
        """The stages of the forward pass: share of a gradient's time, and the parts that it waits for."""
        numbers = range(len(self.parts))
        if self.overlap == "both":
            return [(share, [j for j in numbers if k in self.parts[j].layers])
                    for k, share in enumerate(self.forward)]
        return [(math.fsum(self.forward) if self.overlap == "backward" else 0.0, list(numbers))]

    def moves(self, order: Sequence[int]) -> list[tuple[float, float, list[int]]]:
        """The stages of the backward pass: share of a gradient's time, extra seconds, parts that then leave.

        Without overlap, parts leave in this `order`.
        """
        found = [(1.0, list(order))]
        if self.overlap != "none":
            found = [(share, [j for j in reversed(range(len(self.parts))) if self.parts[j].layers[0] == k])
                     for k, share in reversed(list(enumerate(self.backward)))]
        out = list[tuple[float, float, list[int]]]()
        for share, ready in found:
            if not self.codec:
                out.append((share, 0.0, ready))
                continue
            out.append((share, 0.0, []))
            out += [(0.0, self.codec * self.parts[j].down, [j]) for j in ready]
        return out


class ByLayer(Fresh):
    """Workers that send parts while they compute; a mixin for the servers' rule."""

    def __init__(self, network: Network, *args: Any) -> None:
        assert network.plan is not None and network.ways is not None
        self.plan, self.stages = network.plan, network.plan.stages
        self.stages_of = [[k for k, (_, parts) in enumerate(self.stages) if j in parts]
                          for j in range(len(self.plan.parts))]
        super().__init__(network, *args)

    def start(self) -> None:
        """Give all workers all parts."""
        self.way = [dict(mine) for mine in self.ways.pushes]
        self.moves = [self.plan.moves([k for k, _ in mine]) for mine in self.ways.pushes]
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


def of(rule: type[Fresh], network: Network) -> type[Any]:
    """A servers' rule, combined with `ByLayer` if the network has a plan."""
    if network.plan is None or (rule.asking and network.plan.simple):
        return rule
    if rule.asking:
        raise Uncovered("no formula covers workers that overlap, or pay for a codec, and do not wait for "
                        "the answer to a push: they can only be simulated or measured")
    return type(f"ByLayer{rule.__name__}", (ByLayer, rule), {})


def exposed(network: Network, worker: int, seconds: float, update: float) -> float:
    """Seconds by which a lone worker's iteration exceeds its gradient."""
    ways = network.ways
    assert ways is not None
    alone = Network(network.servers, plan=network.plan, ways=Ways(
        ways.links, [ways.pushes[worker]], [[back[worker]] for back in ways.answers],
        [False] * len(ways.answers), frozenset(range(1 + len(ways.answers)))))
    run = ByLayer(alone, [[seconds] * ALONE], repeat(update))
    run.run()
    return max(run.pace(ALONE // 4, ALONE - ALONE // 4) - seconds, 0.0)
