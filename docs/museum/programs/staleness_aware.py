"""Staleness-aware SGD: a gradient that is tau updates old gets the learning rate lr / tau."""

import numpy as np

from refsgd.algorithms.parts import Model, Push
from refsgd.effects import Compute, Mark, Node, Poll, Recv, Send


def worker(rank, problem, steps):
    x, version = problem.x0, 0
    for t in range(steps):
        # the answer to the last push arrives during this computation
        g = yield Compute(problem.gradient, x, rank, t)
        while answer := (yield Poll(Model)):  # take the newest model
            _, (x, version) = answer
        yield Send("server0", Push(g, 1, version))


def server(x, pushes, sgd):
    v = sgd.start(x)
    for version in range(pushes):
        w, push = yield Recv(Push)
        tau = np.float32(max(1, version - push.version))
        x, v = yield Compute(sgd.step, x, v, push.grad / tau, version, kind="update")
        yield Mark("update", part=0, version=version, reads=((w, push.version),), x=x)
        yield Send(w, Model(x, version + 1))
    return x


def staleness_aware(problem, workers, steps, sgd):
    nodes = {f"worker{i}": Node(worker(i, problem, steps)) for i in range(workers)}
    main = server(problem.x0, workers * steps, sgd)
    return nodes | {"server0": Node(main, role="server")}
