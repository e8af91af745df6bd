"""Delay-compensated asynchronous SGD (DC-ASGD): correct a stale gradient for the change of x since its read.

To first order the gradient at the current x is g + H (x - backup), where `backup` is the model that the
worker had read and H the Hessian there.  The outer product of gradients estimates H for a log-likelihood; its
diagonal, g * g, costs nothing.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n workers, K servers with a part each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | staleness: as ASP, mean n -
1; its effect on a gradient is compensated | clock gap: unbounded | memory: (n + 1) M at the servers |
momentum: at the server | aggregation: each push is applied alone | deterministic: given the order of arrival

lambda = 0 is ASP.  Without staleness the correction is exactly 0.  Unequal batches: every push has the same
weight, whatever its number of examples, as in the paper.

What differs from the paper
---------------------------
The paper's rule has no momentum; here the compensated gradient goes into the common rule.  In the paper a
pull is a separate message; here the answer to a push is the pull, and makes the backup.  As in the paper,
each worker has its own backup: with a shared one, the model before the last update, the drift would contain
only that update.

References
----------
Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", ICML 2017, arXiv:1609.08326,
algorithms 1 (worker) and 2 (server): DC-ASGD-c with a constant lambda (0.04), DC-ASGD-a adaptive (2, decay
0.95).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from refsgd.algorithms.facts import ONE_WORKER, SERVED, declare, each_push
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Program, RunEnded, Send


def server(shard: Shard, workers: Sequence[str], pushes: int, compensation: float,
           adaptive: bool) -> Program[Array]:
    """Algorithm 2: compensate and apply each of `pushes` gradients on arrival; returns the shard's part."""
    shard.state = shard.state, np.zeros_like(shard.x)  # the velocity, and the moving average of g * g
    backup = dict.fromkeys(workers, shard.x)  # w_bak(m): what each worker has read
    with suppress(RunEnded):  # raised after a death, when no worker sends any more
        for _ in range(pushes):
            w, push = yield from shard.recv(Push)
            yield from shard.update([(w, push)], update, push.grad, backup[w], shard.version, compensation,
                                    adaptive)
            backup[w] = shard.x
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


def update(sgd: SGD, x: Array, state: tuple[Array, Array], g: Array, backup: Array, t: int,
           compensation: float, adaptive: bool) -> tuple[Array, tuple[Array, Array]]:
    """One step with the compensated gradient: parameters; velocity and moving average."""
    v, mean_square = state
    g, mean_square = compensated(g, x - backup, mean_square, compensation, adaptive)
    x, v = sgd.step(x, v, g, t)
    return x, (v, mean_square)


def compensated(g: Array, drift: Array, mean_square: Array, compensation: float,
                adaptive: bool) -> tuple[Array, Array]:
    """The gradient corrected for `drift`, and the moving average of its square; all of shape (part,)."""
    factor: Array | np.float32 = np.float32(compensation)
    if adaptive:
        mean_square = np.float32(0.95) * mean_square + np.float32(0.05) * g * g
        factor = factor / np.sqrt(mean_square + np.float32(1e-7))
    return g + factor * g * g * drift, mean_square


@declare(SERVED, updates=each_push, mean_of=ONE_WORKER, formula="asp",
         lost="the gradient that it was computing, and its backup",
         recursion="its compensation multiplies gradients, which is not linear",
         needs=lambda options, workers: (
             {"adaptive": "compensation > 0"} if options["compensation"] == 0 else {}))
def dc_asgd(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1,
            rotated: bool = False, *, compensation: float | None = None,
            adaptive: bool = False) -> Deployment:
    """Deploy DC-ASGD.

    Parameters
    ----------
    compensation : float, optional
        lambda >= 0, by default the paper's: 0.04, adaptive 2; 0 is ASP.
    adaptive : bool
        Divide lambda by the root of a moving average of g * g.
    """
    compensation = (2.0 if adaptive else 0.04) if compensation is None else compensation
    if not 0 <= compensation < float("inf"):
        raise ValueError(f"compensation {compensation}; expected a finite number >= 0")
    return deploy(problem, workers, steps, sgd, servers, rotated,
                  lambda shard, workers: server(shard, workers, steps * len(workers), compensation, adaptive))
