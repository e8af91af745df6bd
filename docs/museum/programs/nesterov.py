"""DiLoCo: what a round has changed is the gradient of an outer optimiser, Nesterov's."""

import numpy as np

from refsgd.algorithms.averaging.local_sgd import mean_move
from refsgd.algorithms.replica import deploy
from refsgd.effects import Compute, Mark


def nesterov(x, velocity, gradient, lr, momentum):
    """A step of SGD with Nesterov momentum."""
    velocity = np.float32(momentum) * velocity - np.float32(lr) * gradient
    return x + velocity, velocity


def peer(replica, names, problem, steps, period, lr, momentum):
    start, velocity, since = replica.x, np.zeros_like(replica.x), 0
    for t in range(steps):
        g = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)
        if (t + 1) % period == 0 or t == steps - 1:
            images = [sum(problem.images(i, s) for s in range(since, t + 1))
                      for i in range(len(names))]
            mean = yield from mean_move(replica.rank, names, start - replica.x, images)
            start, velocity = yield Compute(nesterov, start, velocity, mean, lr, momentum,
                                            kind="update")
            replica.x, since = start, t + 1
        yield Mark("clock", t=t)
    return replica.x


def diloco(problem, workers, steps, sgd, *, period: int = 8, outer_lr: float = 0.7,
           outer_momentum: float = 0.9):
    return deploy(problem, workers, sgd, lambda replica, names: peer(
        replica, names, problem, steps, period, outer_lr, outer_momentum))
