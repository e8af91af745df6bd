"""Homework C: find the schedule that loses a gradient.

Two peers average their models.  Peer 0 asks, computes a gradient while its question travels, and then takes
the average.  A colleague made it faster with a `Poll`.  Replace SCHEDULE by a list of at most 10 picks after
which exactly one of the four gradients is in neither model; the run continues with first actions:

    s = refsgd.Stepper(gossip, workers=2, steps=2, grain="decision")
    s.actions(), s.choose(0), s.back(), s.schedule
"""

from typing import NamedTuple

import numpy as np

from refsgd.effects import Compute, Mark, Node, Poll, Recv, RunEnded, Send

SCHEDULE = []  # TODO


class Ask(NamedTuple):
    x: np.ndarray


class Average(NamedTuple):
    x: np.ndarray


class Peer:
    def __init__(self, problem, sgd):
        self.x, self.problem, self.sgd = problem.x0, problem, sgd

    def apply(self, g, t):
        self.x, _ = self.sgd.step(self.x, self.sgd.start(self.x), g, t)


def active(me, steps):
    for t in range(steps):
        yield Send("peer1", Ask(me.x))
        g = yield Compute(me.problem.gradient, me.x, 0, t)
        hit = yield Poll(Average)
        if hit:
            me.x = hit[1].x
            me.apply(g, t)
        else:
            me.apply(g, t)
            _, (me.x,) = yield Recv(Average)
        yield Mark("clock", t=t)
    return me


def passive(me, steps):
    for t in range(steps):
        g = yield Compute(me.problem.gradient, me.x, 1, t)
        me.apply(g, t)
        yield Mark("clock", t=t)
    return me


def answers(me):
    try:
        while True:
            src, (x,) = yield Recv(Ask)
            me.x = (x + me.x) / 2
            yield Send(src, Average(me.x))
    except RunEnded:
        return


def gossip(problem, workers, steps, sgd):
    a, b = Peer(problem, sgd), Peer(problem, sgd)
    return {"peer0": Node(active(a, steps)), "peer1": Node(passive(b, steps), handlers=[answers(b)])}
