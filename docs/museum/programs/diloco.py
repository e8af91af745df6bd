"""DiLoCo: what a round has changed is the gradient of an outer optimiser, Nesterov's."""

import numpy as np

from refsgd.algorithms.averaging.local_sgd import mean_move
from refsgd.algorithms.replica import deploy
from refsgd.effects import Compute, Mark


def outer_step(x, u, pseudogradient, lr, momentum):
    """A step of SGD with Nesterov momentum, in PyTorch's form."""
    u = np.float32(momentum) * u + pseudogradient
    return x - np.float32(lr) * (pseudogradient + np.float32(momentum) * u), u


def peer(replica, names, problem, steps, period, lr, momentum):
    original, u, since = replica.x, np.zeros_like(replica.x), 0
    for t in range(steps):
        g = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)
        if (t + 1) % period == 0 or t == steps - 1:
            images = [sum(problem.images(i, s) for s in range(since, t + 1))
                      for i in range(len(names))]
            pseudogradient = replica.x - original
            mean = yield from mean_move(replica.rank, names, pseudogradient, images)
            original, u = yield Compute(outer_step, original, u, mean, lr, momentum,
                                        kind="update")
            replica.x, since = original, t + 1
        yield Mark("clock", t=t)
    return replica.x


def diloco(problem, workers, steps, sgd, *, period: int = 8, outer_lr: float = 0.7,
           outer_momentum: float = 0.9):
    return deploy(problem, workers, sgd, lambda replica, names: peer(
        replica, names, problem, steps, period, outer_lr, outer_momentum))
