"""Homework H: an elastic average that loses a worker, a solution.

In each round every living worker sends its replica, and the server answers with the centre and alpha.  Worker
and centre then move towards each other::

    x_i    = x_i    - alpha (x_i - centre)
    centre = centre + alpha sum_i (x_i - centre)  # replicas of this round, in worker order

where alpha = beta / (number of replicas in this round).  A worker may die at any moment: `Died` names it, and
no message from it follows.  A replica that has arrived counts.  When all workers are dead, the server returns
the centre as it is.
"""

from typing import NamedTuple

import numpy as np

from refsgd.effects import Compute, Died, Mark, Node, Recv, Send

BETA = 0.9


class Replica(NamedTuple):
    """worker -> server: its parameters after a step of its own."""

    x: np.ndarray


class Centre(NamedTuple):
    """server -> worker: the centre before this round, and the share of the distance to move."""

    x: np.ndarray
    alpha: float


def move(centre, alpha, replicas):
    """The centre after a round with these replicas."""
    return centre + np.float32(alpha) * sum(x - centre for x in replicas)


def worker(problem, rank, steps, sgd):
    """A step of its own, then an exchange, and again; returns the replica."""
    x, v = problem.x0, sgd.start(problem.x0)
    for t in range(steps):
        g = yield Compute(problem.gradient, x, rank, t)
        x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
        yield Send("server0", Replica(x))
        _, (centre, alpha) = yield Recv(Centre)
        x = x - np.float32(alpha) * (x - centre)
        yield Mark("clock", t=t)
    return x


def server(workers, centre, rounds):
    """Exchange with all living workers in each round; returns the centre."""
    living = set(workers)
    for _ in range(rounds):
        replicas = {}
        while living - replicas.keys():
            w, message = yield Recv(Replica, Died)
            if isinstance(message, Died):
                living.discard(message.node)
            else:
                replicas[w] = message.x
        if not replicas:
            break
        arrived = [w for w in workers if w in replicas]
        alpha = BETA / len(arrived)
        for w in arrived:
            yield Send(w, Centre(centre, alpha))
        centre = yield Compute(move, centre, alpha, [replicas[w] for w in arrived], kind="update")
    return centre


def elastic(problem, workers, steps, sgd):
    names = [f"worker{i}" for i in range(workers)]
    nodes = {name: Node(worker(problem, i, steps, sgd), rank=i) for i, name in enumerate(names)}
    return nodes | {"server0": Node(server(names, problem.x0, steps), role="server", survives=True)}
