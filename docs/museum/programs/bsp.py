"""BSP: every step waits for all workers and applies the mean of their gradients."""

import numpy as np

from refsgd.algorithms.parts import Model, Push, worker
from refsgd.effects import Compute, Mark, Node, Recv, Send


def server(x, workers, steps, sgd):
    v = sgd.start(x)
    for version in range(steps):
        pushes = {}
        for _ in workers:
            w, push = yield Recv(Push)
            pushes[w] = push
        mean = sum(push.grad for push in pushes.values()) / np.float32(len(workers))
        x, v = yield Compute(sgd.step, x, v, mean, version, kind="update")
        reads = tuple((w, pushes[w].version) for w in workers)
        yield Mark("update", part=0, version=version, reads=reads, x=x)
        for w in workers:
            yield Send(w, Model(x, version + 1))
    return x


def bsp(problem, workers, steps, sgd):
    names = [f"worker{i}" for i in range(workers)]
    nodes = {w: Node(worker(i, ["server0"], problem, steps))
             for i, w in enumerate(names)}
    main = server(problem.x0, names, steps, sgd)
    return nodes | {"server0": Node(main, role="server")}
