"""FedBuff: federated averaging without rounds; the server steps once per K moves of any clients.

A client's move, by which its model has left the one that it was given, is added to what the model is by then;
`fedasync` moves towards the client's model instead.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n clients, of which C work at a time, one server | messages per
job: 1 down, 1 up | bytes per job: M down, M up (M = 4 d) | staleness: unbounded, mean (C - 1)/K updates |
clock gap: unbounded | momentum: local, kept between the client's jobs | aggregation: mean of K moves, each
with a weight that falls with its staleness, whatever its examples | deterministic: given the order of arrival
and the draws

With H = 1 and constant weights it is softsync with c = K, and with K = 1 too, ASP.  K = 1 is *not* FedAsync,
except at staleness 0.

What differs from the paper
---------------------------
Each client does the same number of steps, so that a run ends; at its end the last update takes the moves that
are left.  A client that is free is drawn among those with steps left.

References
----------
Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, "Federated learning with buffered asynchronous
aggregation", AISTATS 2022, arXiv:2106.06639.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from refsgd.algorithms.facts import declare
from refsgd.algorithms.federated.any_time import ANY_TIME, Weight, check, server
from refsgd.algorithms.federated.clients import Trained, client
from refsgd.algorithms.parts import Objective, deploy, some
from refsgd.algorithms.sgd import SGD, mean_gradient
from refsgd.effects import Array, Deployment


def add_moves(x: Array, state: Any, models: Sequence[Trained], reads: Sequence[Array],
              rates: Sequence[float]) -> tuple[Array, Any]:
    """x plus the mean of the moves from what was read, each at its rate."""
    moves = [np.float32(rate) * (y.x - read) for y, read, rate in zip(models, reads, rates, strict=True)]
    return x + mean_gradient(moves, [1] * len(moves)), state


def buffered(workers: int, buffer: int | None) -> int:
    """K, by default half of the clients."""
    return (workers + 1) // 2 if buffer is None else buffer


@declare(ANY_TIME, mean_of=lambda workers, options: buffered(workers, options["buffer"]), formula="fedbuff")
def fedbuff(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8,
            buffer: int | None = None, concurrency: int | None = None, weight: Weight = "polynomial",
            outer_lr: float = 1.0) -> Deployment:
    """Deploy FedBuff.

    Parameters
    ----------
    buffer : int, optional
        K, the moves of an update, at least 1; by default half of `workers`.
    outer_lr : float
        The server's rate, > 0.
    """
    check(period, weight, outer_lr)
    if buffer is not None and buffer < 1:
        raise ValueError(f"buffer {buffer}; expected at least 1")
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, clients: server(
                      shard, clients, steps, period, buffered(len(clients), buffer),
                      some(len(clients), concurrency, "concurrency"), weight, outer_lr, add_moves),
                  lambda rank, servers: client(rank, servers[0], problem, sgd, steps))
