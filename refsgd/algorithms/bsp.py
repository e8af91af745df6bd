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

from refsgd.algorithms.parameter_server import Model, Objective, Push, names, rotate, slices, worker
from refsgd.algorithms.sgd import SGD, mean_gradient
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, Send

Aggregation = Literal["mean", "sum"]


def update(sgd: SGD, x: Array, v: Array, pushes: Sequence[Push], t: int, aggregation: Aggregation) -> tuple[Array, Array]:
    """One step with the gradients of all workers, in worker order."""
    if aggregation == "mean":
        g = mean_gradient([push.grad for push in pushes], [push.images for push in pushes])
    else:
        g = sum((push.grad for push in pushes[1:]), start=pushes[0].grad)
    return sgd.step(x, v, g, t)


def server(k: int, workers: Sequence[str], x: Array, steps: int, sgd: SGD, aggregation: Aggregation) -> Program[Array]:
    """Aggregate one gradient per worker and step, update slice k, answer all; returns the slice."""
    v = sgd.start(x)
    for t in range(steps):
        pushes = {}
        for _ in workers:
            w, push = yield Recv(Push)
            pushes[w] = push
        # In worker order: floating-point addition must not depend on the network.
        ordered = [pushes[f"worker{i}"] for i in range(len(workers))]
        x, v = yield Compute(update, sgd, x, v, ordered, t, aggregation, kind="update")
        yield Mark("update", slice=k, version=t, reads=tuple((w, pushes[w].version) for w in sorted(pushes)), x=x)
        for w in workers:
            yield Send(w, Model(x, t + 1))
    return x


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
        Mean over images, or the sum of the workers' means (then the effective rate is n times as large).
    """
    if aggregation not in ("mean", "sum"):
        raise ValueError(f"aggregation {aggregation!r}; expected mean or sum")
    ws, ss = names(workers, servers)
    deployment = {w: Node(worker(i, ss, problem, steps, rotated)) for i, w in enumerate(ws)}
    for k, (s, cut) in enumerate(zip(ss, slices(problem.x0.size, servers), strict=True)):
        answers = rotate(ws, k) if rotated else ws
        deployment[s] = Node(server(k, answers, problem.x0[cut], steps, sgd, aggregation))
    return deployment
