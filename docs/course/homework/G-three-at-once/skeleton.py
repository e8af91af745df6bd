"""Homework G: three at once.

An active peer averages its model with those of two passive peers: all three continue with the mean of the
three.  Every gradient must be in the models once, in every schedule, and every run must end.  A passive peer
computes its gradients in the meantime.
"""

from typing import NamedTuple

import numpy as np

from refsgd.effects import Compute, Mark, Node, Recv, RunEnded, Send


class Ask(NamedTuple):
    """active -> passive: your model, please; do not change it until I send you the mean."""

    t: int


class Model(NamedTuple):
    """passive -> active: its model."""

    x: np.ndarray


class Mean(NamedTuple):
    """active -> passive: the mean of three models."""

    x: np.ndarray


class Peer:
    """What the programs of one peer share."""

    def __init__(self, problem, sgd, rank, partners):
        self.x, self.problem, self.sgd, self.rank, self.partners = problem.x0, problem, sgd, rank, partners

    def apply(self, g, t):
        self.x, _ = self.sgd.step(self.x, self.sgd.start(self.x), g, t)


def together(me, t):
    """Replace three models by their mean."""
    replicas = [me.x]
    for partner in me.partners:
        yield Send(partner, Ask(t))
        _, (x,) = yield Recv(Model, src=partner)
        replicas.append(x)
    me.x = sum(replicas) / 3
    for partner in me.partners:
        yield Send(partner, Mean(me.x))


def answers(me):
    """The second program of a passive peer."""
    try:
        while True:
            src, _ = yield Recv(Ask)
            yield Send(src, Model(me.x))
            _, (me.x,) = yield Recv(Mean, src=src)
    except RunEnded:
        return


def active(me, steps):
    """Compute, take part in a mean of three, apply the gradient to it; returns the peer."""
    for t in range(steps):
        g = yield Compute(me.problem.gradient, me.x, me.rank, t)
        yield from together(me, t)
        me.apply(g, t)
        yield Mark("clock", t=t)
    return me


def passive(me, steps):
    """Compute and apply; returns the peer."""
    for t in range(steps):
        g = yield Compute(me.problem.gradient, me.x, me.rank, t)
        me.apply(g, t)
        yield Mark("clock", t=t)
    return me


def gossip(problem, workers, steps, sgd):
    """Peers 0 to n - 3 are active, the last two are passive."""
    names = [f"peer{i}" for i in range(workers)]
    pair = names[-2:]
    nodes = {}
    for i, name in enumerate(names):
        me = Peer(problem, sgd, i, pair if i % 2 == 0 else pair[::-1])
        nodes[name] = (Node(passive(me, steps), handlers=[answers(me)]) if name in pair else Node(active(me, steps)))
    return nodes
