"""Synchronous SGD that sends the largest entries of each gradient and keeps the rest for later."""

import numpy as np

from refsgd.algorithms.parts import Model, Push, deploy
from refsgd.algorithms.server import bsp
from refsgd.effects import Compute, Recv, Send


def largest(g, share):
    """g with all entries but the largest ones set to 0."""
    kept = np.argsort(np.abs(g))[-max(1, int(share * g.size)):]
    sent = np.zeros_like(g)
    sent[kept] = g[kept]
    return sent


def worker(rank, problem, steps, share):
    x, version, residual = problem.x0, 0, np.zeros_like(problem.x0)
    for t in range(steps):
        g = yield Compute(problem.gradient, x, rank, t)
        sent = largest(g + residual, share)
        residual = g - sent  # what has not been sent
        yield Send("server0", Push(sent, 1, version))
        _, (x, version) = yield Recv(Model)
    return residual


def sparse_sgd(problem, workers, steps, sgd, *, share: float = 0.1):
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, names: bsp.server(shard, names, steps),
                  lambda rank, servers: worker(rank, problem, steps, share))
