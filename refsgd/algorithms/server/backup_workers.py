"""Synchronous SGD with backup workers: n = N + k workers, and each step takes the first N gradients.

The slowest worker sets the pace of BSP.  Here the k slowest of each step are not waited for; their gradients are
thrown away when they come, so what is applied is never stale.

Worker::

    g = gradient at x on its share of step t
    push (g, t) to the server;  wait for the newest (x, t)

Server, on each push of a gradient labelled u::

    u < t:  drop it, answer its worker at once with (x, t)
    u = t:  keep it;  once N are kept:  x = update(x, their mean);  t = t + 1;  answer these N with (x, t);  keep none

Quick facts
-----------
synchronous: yes | centralised: yes | roles: n = N + k workers, one server | messages per worker and iteration:
1 up, 1 down | bytes per worker and iteration: M up, M down, for dropped gradients too | staleness: 0 for all that is
applied | clock gap: a slow worker skips steps | momentum: at the server | aggregation: mean over the images of the
N | deterministic: given which N come first; added in worker order

k = 0 is BSP.  Scale the learning rate with N, not with N + k.  The data of a worker that is always late is never
seen.

What differs from the paper
---------------------------
A late worker finishes its gradient, is told that it is stale and goes on with the newest model: a computation
cannot be cut short.  In the paper each of several servers counts its own first N, so their slices may be of
different workers, and TensorFlow's accumulators, one per variable, take several from a fast worker.  Here one
server without slices accepts one whole gradient of a worker in each step.  No moving average of x is kept.

References
----------
Chen, Pan, Monga, Bengio and Jozefowicz, "Revisiting distributed synchronous SGD", arXiv:1604.00981, 2016,
algorithms 3 (worker) and 4 (server).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from refsgd.algorithms.parts import Model, Objective, Push, names
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, RunEnded, Send


def worker(rank: int, server: str, problem: Objective, steps: int) -> Program[Array]:
    """Push a gradient for the newest step until there are no more steps; returns the last model, shape (d,)."""
    x, t = problem.x0, 0
    while t < steps:
        g: Array = yield Compute(problem.gradient, x, rank, t)
        yield Send(server, Push(g, problem.images(rank, t), t))
        _, (x, newest) = yield Recv(Model, src=server)
        yield Mark("clock", t=t)
        t = newest
    return x


def server(workers: Sequence[str], x: Array, steps: int, sgd: SGD, needed: int) -> Program[Array]:
    """Step with the first `needed` gradients of each step, drop the others; returns the parameters, shape (d,)."""
    v, t, pushes = sgd.start(x), 0, dict[str, Push]()
    outstanding = set(workers) if steps else set()  # they compute, or their push is under way
    with suppress(RunEnded):  # raised after a death, when nobody sends any more
        while outstanding:
            w, push = yield Recv(Push)
            if push.version < t:
                yield Mark("drop", worker=w, t=push.version, reason="late")
                if t == steps:
                    outstanding.remove(w)
                yield Send(w, Model(x, t))
                continue
            pushes[w] = push
            if len(pushes) < needed:
                continue
            first = [w for w in workers if w in pushes]
            # In worker order: floating-point addition must not depend on the network.
            x, v = yield Compute(bsp.update, sgd, x, v, [pushes[w] for w in first], t, "mean", kind="update")
            yield Mark("update", part=0, version=t, reads=tuple((w, t) for w in first), x=x)
            t, pushes = t + 1, {}
            if t == steps:
                outstanding -= set(first)
            for w in first:
                yield Send(w, Model(x, t))
    return x


def backup_workers(problem: Objective, workers: int, steps: int, sgd: SGD, *, backups: int = 1) -> Deployment:
    """Deploy synchronous SGD with backup workers.

    Parameters
    ----------
    problem : Objective
    workers : int
        n = N + k, at least 1: those that are waited for and the backups.
    steps : int
        Steps of the server, >= 0; a worker computes at most one gradient for each.
    sgd : SGD
    backups : int
        k >= 0, gradients of a step that are not waited for.  At least one gradient is, so more than n - 1
        count as n - 1.
    """
    if backups < 0:
        raise ValueError(f"backups {backups}; expected a number of workers >= 0")
    ws, (s,) = names(workers, 1)
    deployment = {w: Node(worker(i, s, problem, steps), rank=i) for i, w in enumerate(ws)}
    deployment[s] = Node(server(ws, problem.x0, steps, sgd, max(1, workers - backups)), role="server", rank=0, survives=True)
    return deployment
