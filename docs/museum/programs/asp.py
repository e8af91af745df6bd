"""ASP over a network that loses messages: a gradient without an answer is sent again."""

from typing import NamedTuple

import numpy as np

from refsgd.effects import Compute, Mark, Node, Poll, Recv, Send


class Push(NamedTuple):
    grad: np.ndarray
    version: int
    t: int


class Model(NamedTuple):
    x: np.ndarray
    version: int


class Done(NamedTuple):
    pass


def worker(rank, problem, steps):
    x, version, last = problem.x0, 0, None
    for t in range(steps):
        # the last push and its answer travel during this computation
        g = yield Compute(problem.gradient, x, rank, t)
        push = Push(g, version, t)
        if last is not None:
            answer = yield Poll(Model)
            if answer is not None:
                _, (x, version) = answer
            else:
                yield Send("server0", last)  # it was lost: send it again
        yield Send("server0", push)
        last = push
    yield Send("server0", Done())


def server(x, workers, sgd):
    v, version, done = sgd.start(x), 0, 0
    while done < workers:
        w, message = yield Recv(Push, Done)
        if isinstance(message, Done):
            done += 1
            continue
        x, v = yield Compute(sgd.step, x, v, message.grad, version, kind="update")
        yield Mark("update", part=0, version=version, reads=((w, message.version),), x=x)
        version += 1
        yield Send(w, Model(x, version))
    return x


def asp(problem, workers, steps, sgd):
    nodes = {f"worker{i}": Node(worker(i, problem, steps)) for i in range(workers)}
    return nodes | {"server0": Node(server(problem.x0, workers, sgd), role="server")}
