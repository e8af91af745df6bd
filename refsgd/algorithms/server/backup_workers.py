"""Synchronous SGD with backup workers: n = N + k workers, and each step takes the first N gradients.

The slowest worker sets the pace of BSP.  Here the server does not wait for the k slowest of each step; their
gradients are dropped on arrival, so no applied gradient is stale.

Quick facts
-----------
synchronous: yes | centralised: yes | roles: n = N + k workers, one server | messages per worker and
iteration: 1 up, 1 down | bytes per worker and iteration: M up, M down, for dropped gradients too | staleness:
0 for all applied gradients | clock gap: a slow worker skips steps | momentum: at the server | aggregation:
mean over the examples of the N | deterministic: given which N come first; added in worker order

k = 0 is BSP.  Scale the learning rate with N, not with N + k.  The data of a worker that is always late never
count.

What differs from the paper
---------------------------
A late worker finishes its gradient, which the server drops, and continues with the newest model: a
computation is not interrupted.  In the paper each of several servers counts its own first N, so their parts
may come from different workers, and TensorFlow's accumulators, one per variable, accept several gradients
from a fast worker. Here one server with the whole model accepts one whole gradient of a worker in each step.
No moving average of x is kept.

References
----------
Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting distributed synchronous SGD", arXiv:1604.00981, 2016,
algorithms 3 (worker) and 4 (server).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from refsgd.algorithms.facts import Facts, declare
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, RunEnded, Send


def worker(rank: int, server: str, problem: Objective, steps: int) -> Program[Array]:
    """Algorithm 3: push a gradient for the newest step until none is left; returns the last model, (d,)."""
    x, t = problem.x0, 0
    while t < steps:
        g: Array = yield Compute(problem.gradient, x, rank, t)  # lines 3 to 7
        yield Send(server, Push(g, problem.images(rank, t), t))  # line 8
        _, (x, newest) = yield Recv(Model, src=server)  # line 2, of the next step
        yield Mark("clock", t=t)
        t = newest
    return x


def server(shard: Shard, workers: Sequence[str], steps: int, needed: int) -> Program[Array]:
    """Algorithm 4: step with the first `needed` gradients of each step, drop the others; returns x, (d,)."""
    pushes: dict[str, Push] = {}
    outstanding = set(workers) if steps else set()  # they compute, or their push is in transit
    with suppress(RunEnded):  # raised after a death, when no worker sends any more
        while outstanding:
            w, push = yield Recv(Push)  # line 4
            if push.version < shard.version:  # line 6: drop it
                yield Mark("drop", worker=w, t=push.version, reason="late")
                if shard.version == steps:
                    outstanding.remove(w)
                yield Send(w, Model(shard.x, shard.version))
                continue
            pushes[w] = push  # line 5
            if len(pushes) < needed:  # line 3
                continue
            # Line 8, in worker order: floating-point addition must not depend on the network.
            first = [(w, pushes[w]) for w in workers if w in pushes]
            yield from shard.update(first, bsp.update, [push for _, push in first], shard.version)
            pushes = {}
            for w, _ in first:
                if shard.version == steps:
                    outstanding.remove(w)
                yield Send(w, Model(shard.x, shard.version))
    return shard.x


@declare(Facts(
    because={"": "its server drops whole gradients; with several parts each would drop others"},
    mean_of=lambda workers, options: max(1, workers - options["backups"]), holds="pushed",
    collects=True, formula="backup_workers", recursion="mean",
    lost="nothing, up to `backups` deaths; one more blocks the server, and the run ends"))
def backup_workers(problem: Objective, workers: int, steps: int, sgd: SGD, *, backups: int = 1) -> Deployment:
    """Deploy synchronous SGD with backup workers.

    Parameters
    ----------
    workers : int
        n = N + k, backups included.
    steps : int
        Of the server, for each of which a worker computes at most one gradient.
    backups : int
        k >= 0, gradients of a step for which the server does not wait.  It waits for at least one, so more
        than n - 1 count as n - 1.
    """
    if backups < 0:
        raise ValueError(f"backups {backups}; expected a number of workers >= 0")
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, workers: server(shard, workers, steps, max(1, len(workers) - backups)),
                  lambda rank, servers: worker(rank, servers[0], problem, steps))
