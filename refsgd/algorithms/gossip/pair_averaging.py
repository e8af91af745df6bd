"""Pair averaging: pull the replica of a random peer and continue from the mean of both; one side only.

It looks like AD-PSGD and is often published under that name, but the peer that is asked does not change its
replica: nothing needs a lock, any graph will do, and the mean of the replicas is not conserved.

Quick facts
-----------
synchronous: no | centralised: no | roles: n peers with two programs each | messages per peer and iteration: a
request out, a replica in | bytes per peer and iteration: M in (M = 4 d) | staleness: 0 (an average comes
between read and application, but no update) | clock gap: unbounded | momentum: local, never communicated |
aggregation: mean of two, on one side (row-stochastic, not column-stochastic) | graph: complete |
deterministic: given the schedule and the choices

Unequal batches: the average is the plain mean, whatever the peers' numbers of examples.

What differs from the papers
----------------------------
Jin et al. pull every few steps; here a peer pulls before every gradient, like KungFu's PairAveraging
optimiser. That one saves its replica once per step and answers with the saved one; here the answer is the
current replica.

References
----------
Jin, Yuan, Iandola and Keutzer, "How to scale distributed deep learning?", arXiv:1611.04581, 2016:
pull-gossip.
Mai et al., "KungFu: Making training in distributed machine learning adaptive", OSDI 2020: pair averaging.
Not: Lian et al., "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018; see adpsgd.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refsgd.algorithms.facts import IN_PAIRS, REPLICAS, declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Model, Replica, deploy, others_of
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Choose, Compute, Deployment, Died, Mark, Program, Recv, Send


class Pull(NamedTuple):
    """peer -> peer: send me your replica."""


def train(replica: Replica, others: Sequence[str], problem: Objective, steps: int) -> Program[Array]:
    """Main program: ask, compute, average, update; returns the parameters, (d,)."""
    for t in range(steps):
        if others:
            j = yield Choose(others)
            yield Send(j, Pull())  # its replica travels while we compute
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)
        if others:
            _, theirs = yield Recv(Model, Died, src=j)
            if isinstance(theirs, Died):
                others = [i for i in others if i != j]
            else:
                # (x + x_j) / 2, written so that the mean of equal replicas is the same bits.
                replica.x = replica.x + (theirs.x - replica.x) / 2
        yield from replica.apply(g, t)
        yield Mark("clock", t=t)
    return replica.x


def respond(replica: Replica) -> Program[None]:
    """Handler: send the current replica to each asking peer."""
    while True:
        i, _ = yield Recv(Pull)
        yield Send(i, Model(replica.x))


@declare(REPLICAS, lost="its replica; a peer that asked it skips that average", formula="pair_averaging",
         recursion=IN_PAIRS, compared=False)
def pair_averaging(problem: Objective, workers: int, steps: int, sgd: SGD) -> Deployment:
    """Deploy pair averaging."""
    return deploy(problem, workers, sgd,
                  lambda replica, names: train(replica, others_of(replica, names), problem, steps), respond,
                  survives=True)
