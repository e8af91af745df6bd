"""Ringmaster ASGD: asynchronous SGD that rejects gradients which are too stale."""

from refsgd.algorithms.parts import Model, Push, deploy
from refsgd.effects import Mark, Send


def server(shard, pushes, max_staleness):
    for _ in range(pushes):
        w, push = yield from shard.recv(Push)
        staleness = shard.version - push.version
        if staleness <= max_staleness:
            yield from shard.apply(w, push)
        else:
            yield Mark("drop", worker=w, t=push.version, reason="stale")
        yield Send(w, Model(shard.x, shard.version))
    return shard.x


def ringmaster(problem, workers, steps, sgd, *, threshold: int | None = None):
    bound = workers if threshold is None else threshold
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, names: server(shard, workers * steps, bound))
