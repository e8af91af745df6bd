"""AD-PSGD: average with a random neighbour while the gradient is being computed."""

from typing import NamedTuple

import numpy as np

from refsgd.effects import Choose, Compute, Mark, Node, Recv, Send


class Ask(NamedTuple):
    x: np.ndarray


class Average(NamedTuple):
    x: np.ndarray


class Peer:
    def __init__(self, rank, x, sgd):
        self.rank, self.x, self.sgd, self.v = rank, x, sgd, sgd.start(x)


def train(me, neighbours, problem, steps):
    for t in range(steps):
        x = me.x
        if neighbours:  # an active peer asks, a passive one only answers
            j = yield Choose(neighbours)
            yield Send(j, Ask(x))
        g = yield Compute(problem.gradient, x, me.rank, t)
        if neighbours:
            _, (x,) = yield Recv(Average, src=j)
        me.x, me.v = me.sgd.step(x, me.v, g, t)
        reads = ((f"peer{me.rank}", t),)
        yield Mark("update", part=0, version=t, t=t, reads=reads, x=me.x)
    return me


def answer(me):
    while True:
        j, ask = yield Recv(Ask)
        me.x = (me.x + ask.x) / 2
        yield Send(j, Average(me.x))


def adpsgd(problem, workers, steps, sgd):
    peers = [Peer(i, problem.x0, sgd) for i in range(workers)]
    passive = [f"peer{i}" for i in range(0, workers, 2)]
    return {f"peer{i}": Node(train(me, passive if i % 2 else [], problem, steps),
                             [] if i % 2 else [answer(me)])
            for i, me in enumerate(peers)}
