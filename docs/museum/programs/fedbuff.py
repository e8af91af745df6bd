"""FedBuff: the server steps once per K models of clients, which never wait for each other."""

import numpy as np

from refsgd.algorithms.federated import fedbuff as catalogue
from refsgd.algorithms.federated.clients import client
from refsgd.algorithms.parts import deploy


def aggregate(x, models, reads, rates, clients):
    """The next model; clients began with `reads`, and `rates` fall with staleness."""
    step = np.zeros_like(x)
    for i, model in enumerate(models):
        alpha = np.float32(rates[i] / clients)
        step = step + alpha * (model.x - x)
    return x + step


def fedbuff(problem, workers, steps, sgd, *, period: int = 8, buffer: int | None = None,
            weight: str = "polynomial", outer_lr: float = 1.0):
    size = catalogue.buffered(workers, buffer)

    def rule(x, state, models, reads, rates):
        return aggregate(x, models, reads, rates, workers), state

    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, names: catalogue.server(
                      shard, names, steps, period, size, workers, weight, outer_lr, rule),
                  lambda rank, servers: client(rank, servers[0], problem, sgd, steps))
