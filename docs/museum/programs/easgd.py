"""Elastic averaging SGD: a replica and the centre pull each other together."""

from typing import NamedTuple

import numpy as np

from refsgd.effects import Compute, Mark, Node, Recv, Send


class Ask(NamedTuple):
    """worker -> server: where is the centre?"""


class Centre(NamedTuple):
    x: np.ndarray


class Elastic(NamedTuple):
    """worker -> server: pull the centre towards this."""

    x: np.ndarray


def step(x, v, g, sgd, t):
    v = sgd.momentum * v - sgd.rate(t) * g
    return x + v, v


def worker(rank, problem, steps, sgd, period, alpha):
    x, v = problem.x0, sgd.start(problem.x0)
    for t in range(steps):
        g = yield Compute(problem.gradient, x + sgd.momentum * v, rank, t)
        if t % period == 0:
            yield Send("server0", Ask())
            _, (centre,) = yield Recv(Centre)
            yield Send("server0", Elastic(x))
            x = x - alpha * (x - centre)
        x, v = yield Compute(step, x, v, g, sgd, t, kind="update")
    return x


def server(centre, exchanges, alpha):
    version = 0
    while version < exchanges:
        w, message = yield Recv(Ask, Elastic)
        if isinstance(message, Ask):
            yield Send(w, Centre(centre))
        else:
            centre = centre + alpha * (message.x - centre)
            yield Mark("update", part=0, version=version, reads=(), x=centre)
            version += 1
    return centre


def easgd(problem, workers, steps, sgd, *, period: int = 4):
    alpha = np.float32(0.9 / workers)
    nodes = {f"worker{i}": Node(worker(i, problem, steps, sgd, period, alpha))
             for i in range(workers)}
    main = server(problem.x0, workers * -(-steps // period), alpha)
    return nodes | {"server0": Node(main, role="server")}
