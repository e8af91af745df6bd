"""SGD with an allreduce by recursive doubling: log2(n) exchanges, tested with 2, 4 and 8."""

from typing import NamedTuple

import numpy as np

from refsgd.effects import Compute, Mark, Node, Recv, Send


class Part(NamedTuple):
    x: np.ndarray


def allreduce(me, peers, x):
    """The sum of x over all ranks."""
    bit = 1
    while bit < len(peers):
        partner = me ^ bit
        if partner < len(peers):
            yield Send(peers[partner], Part(x))
            _, (other,) = yield Recv(Part, src=peers[partner])
            x = x + other
        bit *= 2
    return x


def peer(rank, peers, problem, steps, sgd):
    x, v = problem.x0, sgd.start(problem.x0)
    for t in range(steps):
        g = yield Compute(problem.gradient, x, rank, t)
        mean = (yield from allreduce(rank, peers, g)) / np.float32(len(peers))
        x, v = yield Compute(sgd.step, x, v, mean, t, kind="update")
        yield Mark("update", part=0, version=t, t=t, reads=((peers[rank], t),), x=x)
    return x


def allreduce_sgd(problem, workers, steps, sgd):
    peers = [f"peer{i}" for i in range(workers)]
    return {p: Node(peer(i, peers, problem, steps, sgd)) for i, p in enumerate(peers)}
