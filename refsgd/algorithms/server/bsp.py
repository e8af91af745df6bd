"""Bulk-synchronous parallel SGD (BSP, sync-SGD): all workers step together, at the pace of the slowest.

It is sequential SGD with a batch of n*b examples, computed by n workers; only the order of floating-point
additions differs.

Quick facts
-----------
synchronous: yes | centralised: yes | roles: n workers, K servers with a part each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | staleness: 0 | clock gap: 0
while computing | momentum: at the server | aggregation: mean over examples (`sum` as an option) |
deterministic: yes, whatever the order of arrival

What differs from the papers
----------------------------
Valiant's model has no servers; the server here is that of Li et al., who sum the gradients of all examples.
With the mean, the rate need not depend on n.  A server answers a push when all have arrived and been applied,
as in MXNet, so the wait for the slowest worker is part of the push.

References
----------
Valiant, "A bridging model for parallel computation", CACM 33(8), 1990: supersteps.
Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from refsgd.algorithms.facts import SERVED, Facts, Options, declare
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy, rotate
from refsgd.algorithms.sgd import SGD, mean_gradient
from refsgd.effects import Array, Deployment, Program, Send

Aggregation = Literal["mean", "sum"]


def update(sgd: SGD, x: Array, v: Array, pushes: Sequence[Push], t: int,
           aggregation: Aggregation = "mean") -> tuple[Array, Array]:
    """One step with the gradients of several workers, in the order given."""
    if aggregation == "mean":
        g = mean_gradient([push.grad for push in pushes], [push.examples for push in pushes])
    else:
        g = sum((push.grad for push in pushes[1:]), start=pushes[0].grad)
    return sgd.step(x, v, g, t)


def server(shard: Shard, workers: Sequence[str], steps: int, aggregation: Aggregation = "mean",
           rotated: bool = False) -> Program[Array]:
    """Aggregate one gradient per worker and step, update the shard, answer all; returns its part."""
    for _ in range(steps):  # Li et al., algorithm 1, servers
        pushes = {}
        for _ in workers:
            w, push = yield from shard.recv(Push)
            pushes[w] = push
        # Lines 2 and 3, in worker order: floating-point addition must not depend on the network.
        ordered = [(w, pushes[w]) for w in workers]
        yield from shard.update(ordered, update, [push for _, push in ordered], shard.version, aggregation)
        for w in rotate(workers, shard.part) if rotated else workers:
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


def mean_of(workers: int, options: Options) -> int:
    """The mean over all workers; refuses the sum."""
    if options["aggregation"] == "sum":
        raise ValueError("the sum of n gradients is already n times their mean")
    return workers


@declare(SERVED, mean_of=mean_of, lost=Facts.lost, timeless=True, collects=True, formula="bsp",
         recursion=lambda options: "mean" if options["aggregation"] == "mean" else (
             "the sum of n gradients is their mean at n times the rate: aggregation mean"))
def bsp(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
        aggregation: Aggregation = "mean") -> Deployment:
    """Deploy BSP.

    Parameters
    ----------
    rotated : bool
        Worker i begins with server i, which answers it first.
    aggregation : {"mean", "sum"}
        Mean over examples, or the sum of the workers' means (then the effective rate is n times as large,
        and gradients are not weighted by their batches).
    """
    if aggregation not in ("mean", "sum"):
        raise ValueError(f"aggregation {aggregation!r}; expected mean or sum")
    return deploy(problem, workers, steps, sgd, servers, rotated,
                  lambda shard, workers: server(shard, workers, steps, aggregation, rotated), survives=False)
