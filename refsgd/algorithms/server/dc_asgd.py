"""Delay-compensated asynchronous SGD (DC-ASGD): correct an old gradient for what has changed since its read.

To first order the gradient at the present x is g + H (x - backup), where `backup` is the model that the worker had
read and H the Hessian there.  The outer product of gradients estimates H for a log-likelihood; its diagonal, g * g,
costs nothing.

Worker i::

    g = gradient at x on its share
    push g to the server;  take the model that answers this push

Server, on each push of g from w::

    g = g + lambda g * g * (x - backup[w])           # entry by entry
    x = update(x, g);  version = version + 1
    backup[w] = x;  answer with (x, version)

adaptive:  mean_square = 0.95 mean_square + 0.05 g * g, and lambda / sqrt(mean_square + eps) in place of lambda.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n workers, K servers with a slice each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | staleness: as ASP, mean n - 1;
what it does to a gradient is compensated | clock gap: unbounded | memory: (n + 1) M at the servers | momentum: at
the server | aggregation: each push is applied alone | deterministic: given the order of arrival

lambda = 0 is ASP.  Without staleness the correction is exactly 0.

What differs from the paper
---------------------------
The paper's rule has no momentum; here the compensated gradient goes into the common rule.  A pull is a message of
its own there; here the answer to a push is the pull, and makes the backup.  A backup belongs to a worker, as there:
one shared backup, the model before the last update, sees only that update and not the whole drift.

References
----------
Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", ICML 2017, arXiv:1609.08326,
algorithms 1 (worker) and 2 (server): DC-ASGD-c with a constant lambda (0.04), DC-ASGD-a adaptive (2, decay 0.95).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from refsgd.algorithms.parts import Model, Objective, Push, deploy, worker
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, RunEnded, Send


def compensated(g: Array, drift: Array, mean_square: Array, compensation: float, adaptive: bool) -> tuple[Array, Array]:
    """The gradient corrected for `drift`, and the moving average of its square; all of shape (slice,)."""
    factor: Array | np.float32 = np.float32(compensation)
    if adaptive:
        mean_square = np.float32(0.95) * mean_square + np.float32(0.05) * g * g
        factor = factor / np.sqrt(mean_square + np.float32(1e-7))
    return g + factor * g * g * drift, mean_square


def update(sgd: SGD, x: Array, v: Array, mean_square: Array, g: Array, backup: Array, t: int, compensation: float,
           adaptive: bool) -> tuple[Array, Array, Array]:
    """One step with the compensated gradient: parameters, velocity, moving average."""
    g, mean_square = compensated(g, x - backup, mean_square, compensation, adaptive)
    return (*sgd.step(x, v, g, t), mean_square)


def server(k: int, workers: Sequence[str], x: Array, pushes: int, sgd: SGD, compensation: float,
           adaptive: bool) -> Program[Array]:
    """Compensate and apply each of `pushes` gradients to slice k as it comes; returns the slice."""
    v, mean_square = sgd.start(x), np.zeros_like(x)
    backup = dict.fromkeys(workers, x)  # what each worker has read
    with suppress(RunEnded):  # raised after a death, when nobody sends any more
        for version in range(pushes):
            w, push = yield Recv(Push)
            x, v, mean_square = yield Compute(update, sgd, x, v, mean_square, push.grad, backup[w], version, compensation,
                                              adaptive, kind="update")
            yield Mark("update", part=k, version=version, reads=((w, push.version),), x=x)
            backup[w] = x
            yield Send(w, Model(x, version + 1))
    return x


def dc_asgd(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
            compensation: float | None = None, adaptive: bool = False) -> Deployment:
    """Deploy DC-ASGD.

    Parameters
    ----------
    problem : Objective
    workers, servers : int
        n and K, at least 1.
    steps : int
        Iterations of each worker, >= 0.
    sgd : SGD
    rotated : bool
        Worker i begins with server i: where every worker's node has a server.
    compensation : float, optional
        lambda >= 0, by default the paper's: 0.04, adaptive 2; 0 is ASP.
    adaptive : bool
        Divide lambda by the root of a moving average of g * g.
    """
    compensation = (2.0 if adaptive else 0.04) if compensation is None else compensation
    if not 0 <= compensation < float("inf"):
        raise ValueError(f"compensation {compensation}; expected a finite number >= 0")
    return deploy(problem, workers, servers, sgd,
                  lambda rank, servers: worker(rank, servers, problem, steps, rotated),
                  lambda shard, workers: server(shard.part, workers, shard.x, steps * len(workers), sgd, compensation,
                                               adaptive))
