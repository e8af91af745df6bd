"""FedAsync: federated averaging without rounds; the server moves a part of the way towards each model.

The weight of a client's model falls with its staleness.  `fedbuff` adds the client's move instead; mixing
also undoes a part of what others have done since.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n clients, of which C work at a time, one server | messages per
job: 1 down, 1 up | bytes per job: M down, M up (M = 4 d) | staleness: unbounded, mean C - 1 updates | clock
gap: unbounded | momentum: local, kept between the client's jobs | aggregation: each model is mixed in alone |
deterministic: given the order of arrival and the draws

The server's model is at all times a weighted mean of the start and of clients' models.

What differs from the paper
---------------------------
Each client does the same number of steps, so that a run ends.  The defaults are the paper's as recalled.

References
----------
Xie, Koyejo and Gupta, "Asynchronous federated optimization", arXiv:1903.03934, 2019, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from refsgd.algorithms.facts import declare
from refsgd.algorithms.federated.any_time import ANY_TIME, Weight, check, needs, server
from refsgd.algorithms.federated.clients import Trained, client
from refsgd.algorithms.parts import Objective, deploy, some
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment


def mix(x: Array, state: Any, models: Sequence[Trained], reads: Sequence[Array],
        rates: Sequence[float]) -> tuple[Array, Any]:
    """x, moved towards a client's model, or that model; what the client had read does not matter."""
    (y, *_), (rate,) = models[0], rates
    return y if rate == 1 else x + np.float32(rate) * (y - x), state


@declare(ANY_TIME, mean_of="each client's model is mixed in alone", collects=False, formula="fedasync",
         needs=lambda options, workers: {
             **needs(options, workers), **({"mu": "period > 1"} if options["period"] == 1 else {})})
def fedasync(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8,
             concurrency: int | None = None, weight: Weight = "polynomial", mixing: float = 0.6,
             mu: float = 0.0) -> Deployment:
    """Deploy FedAsync.

    Parameters
    ----------
    mixing : float
        The weight of a model that is not stale, in (0, 1].
    mu : float
        How strongly a client is pulled back to the model of its job, >= 0, as in FedProx.
    """
    check(period, weight, mixing)
    if mixing > 1:
        raise ValueError(f"mixing {mixing}; expected at most 1")
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, clients: server(
                      shard, clients, steps, period, 1, some(len(clients), concurrency, "concurrency"),
                      weight, mixing, mix),
                  lambda rank, servers: client(rank, servers[0], problem, sgd, steps, mu))
