"""Bulk-synchronous parallel SGD (BSP, sync-SGD): all workers step together, at the pace of the slowest.

Worker i, step t::

    g_i = gradient at x on its share of b_i images
    push g_i to the server;  wait for the new x

Server, step t::

    collect the n gradients of step t
    x = update(x, sum_i b_i g_i / sum_i b_i)        # or the sum: aggregation="sum"
    send x to every worker

It is sequential SGD with a batch of n*b images, computed by n workers; what differs is the order of
floating-point additions.

Quick facts
-----------
synchronous: yes | centralised: yes | roles: n workers, K servers with a slice each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | staleness: 0 | clock gap: 0
while computing | momentum: at the server | aggregation: mean over images (`sum` as an option) |
deterministic: yes, whatever the order of arrival

What differs from the papers
----------------------------
Valiant's model has no servers; here it has that of Li et al., who sum the gradients of all examples:
the mean leaves the rate the same for any n.  A server answers a push when all have arrived and been applied, as
MXNet's does, so the wait for the slowest worker is part of the push.

References
----------
Valiant, "A bridging model for parallel computation", CACM 33(8), 1990: supersteps.
Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy, rotate, worker
from refsgd.algorithms.sgd import SGD, mean_gradient
from refsgd.effects import Array, Deployment, Program, Recv, Send

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
    for _ in range(steps):
        pushes = {}
        for _ in workers:
            w, push = yield Recv(Push)
            pushes[w] = push
        # In worker order: floating-point addition must not depend on the network.
        ordered = [(w, pushes[w]) for w in workers]
        yield from shard.update(ordered, update, [push for _, push in ordered], aggregation)
        for w in rotate(workers, shard.part) if rotated else workers:
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


def bsp(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
        aggregation: Aggregation = "mean") -> Deployment:
    """Deploy BSP.

    Parameters
    ----------
    problem : Objective
    workers, servers : int
        n and K, at least 1.
    steps : int
        Iterations of each worker, >= 0.
    sgd : SGD
    rotated : bool
        Worker i begins with server i, server k with worker k: where every worker's node has a server.
    aggregation : {"mean", "sum"}
        Mean over examples, or the sum of the workers' means (then the effective rate is n times as large).
    """
    if aggregation not in ("mean", "sum"):
        raise ValueError(f"aggregation {aggregation!r}; expected mean or sum")
    return deploy(problem, workers, servers, sgd,
                  lambda rank, servers: worker(rank, servers, problem, steps, rotated),
                  lambda shard, workers: server(shard, workers, steps, aggregation, rotated), survives=False)
