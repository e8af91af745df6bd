"""SCAFFOLD: clients correct each gradient, so that they do not drift apart."""

import numpy as np

from refsgd.algorithms.federated.clients import Stop, Trained, Work, apply, ask, combine, draw, stop
from refsgd.algorithms.parts import deploy, some
from refsgd.effects import Compute, Mark, Recv, Send


def client(rank, problem, sgd, steps):
    x, v, own = problem.x0, sgd.start(problem.x0), None
    while steps:
        _, job = yield Recv(Work, Stop)
        if isinstance(job, Stop):
            break
        if own is None:  # the client's first round
            own = job.x
        x, v, total, examples = job.x, sgd.start(job.x), 0, 0
        for t in range(job.t, job.t + job.steps):
            g = yield Compute(problem.gradient, x, rank, t)
            x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
            x = x - sgd.rate(t) * (job.control - own)
            total, examples = total + g, examples + problem.images(rank, t)
            yield Mark("clock", t=t)
        moved = (job.x - x) / (job.steps * sgd.rate(job.t))
        new = own - job.control + moved  # option II
        yield Send("server0", Trained(x, examples, job.version, new - own))
        own = new
    return x


def server(shard, clients, steps, period, sampled):
    living, control = list(clients), shard.x
    for t in range(0, steps, period):
        drawn = yield from draw(living, sampled)
        job = Work(shard.x, shard.version, t, min(period, steps - t), control)
        answers = yield from ask(drawn, job, living)
        yield from apply(shard, answers, combine, [1] * len(answers))
        for _, trained in answers:
            control = control + trained.control / np.float32(len(clients))
    yield from stop(living if steps else [])
    return shard.x


def scaffold(problem, workers, steps, sgd, *, period: int = 8, sampled: int | None = None):
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, names: server(shard, names, steps, period,
                                              some(workers, sampled, "sampled")),
                  lambda rank, servers: client(rank, problem, sgd, steps))
