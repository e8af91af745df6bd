"""SCAFFOLD: clients correct each gradient, so that they do not drift apart."""

import numpy as np

from refsgd.algorithms.federated.clients import Work, apply, ask, combine, draw, stop
from refsgd.algorithms.federated.scaffold import client
from refsgd.algorithms.parts import deploy, some


def server(shard, clients, steps, period, sampled):
    living, c = list(clients), np.zeros_like(shard.x)
    for t in range(0, steps, period):
        drawn = yield from draw(living, sampled)
        job = Work(shard.x, shard.version, t, min(period, steps - t), c)
        answers = yield from ask(drawn, job, living)
        yield from apply(shard, answers, combine, [1] * len(answers))
        m, n = len(answers), len(clients)
        c = c + np.float32(m / n) * sum(trained.control for _, trained in answers)
    yield from stop(living if steps else [])
    return shard.x


def scaffold(problem, workers, steps, sgd, *, period: int = 8, sampled: int | None = None):
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, names: server(shard, names, steps, period,
                                              some(workers, sampled, "sampled")),
                  lambda rank, servers: client(rank, servers[0], problem, sgd, steps))
