"""Synchronous SGD with backup workers: each step takes the first gradients and does not wait for the rest."""

import numpy as np

from refsgd.algorithms.parts import Model, Push
from refsgd.effects import Compute, Mark, Node, Recv, Send


def worker(rank, problem, steps):
    x, version = problem.x0, 0
    while version < steps:
        g = yield Compute(problem.gradient, x, rank, version)
        yield Send("server0", Push(g, 1, version))
        _, (x, version) = yield Recv(Model)


def server(x, workers, steps, sgd, needed):
    v, version, pushes, finished = sgd.start(x), 0, {}, 0 if steps else workers
    while finished < workers:
        w, push = yield Recv(Push)
        answer = []
        if version == steps:  # the training is over
            yield Mark("drop", worker=w, t=push.version, reason="late")
            answer = [w]
        else:
            pushes[w] = push
        if len(pushes) == needed:
            mean = sum(pushes[w].grad for w in sorted(pushes)) / np.float32(needed)
            x, v = yield Compute(sgd.step, x, v, mean, version, kind="update")
            reads = tuple((w, pushes[w].version) for w in sorted(pushes))
            yield Mark("update", part=0, version=version, reads=reads, x=x)
            version += 1
            answer, pushes = sorted(pushes), {}
        for w in answer:
            yield Send(w, Model(x, version))
        if version == steps:
            finished += len(answer)
    return x


def backup_workers(problem, workers, steps, sgd, *, backups: int = 1):
    nodes = {f"worker{i}": Node(worker(i, problem, steps)) for i in range(workers)}
    needed = max(1, workers - backups)
    main = server(problem.x0, workers, steps, sgd, needed)
    return nodes | {"server0": Node(main, role="server")}
