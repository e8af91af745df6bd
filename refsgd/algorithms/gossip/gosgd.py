"""Gossip SGD with sum weights (GoSGD): occasionally push half of your weight to a random peer.

Every peer has a replica x and a weight a; the weights sum to 1, and the peers agree on the weighted sum of
the replicas.  A push moves half of the sender's weight, with a copy of its replica; no peer waits for it.

Quick facts
-----------
synchronous: no | centralised: no | roles: n peers | messages per peer and iteration: p out, p in on average |
bytes per peer and iteration: p (M + 8) each way on average (M = 4 d, 8 for the weight) | staleness: 0, since
a peer merges between two gradients | clock gap: unbounded | momentum: local, never communicated |
aggregation: convex combinations that keep the sum of a and the sum of a x | graph: complete | deterministic:
given the schedule and the choices

Unequal batches: a depends on messages, not on the examples that a peer has seen; a gradient counts 1/n.

What differs from the paper
---------------------------
The paper draws a Bernoulli variable with p and then a uniform receiver; here both are one choice.  The paper
has plain SGD; momentum here is local.  The plain mean of the replicas is evaluated, as everywhere.  A peer
whose weight is below 2^-500 pushes no more: 500 pushes in a row without receiving anything.

References
----------
Blot, Picard, Cord and Thome, "Gossip training for deep learning", arXiv:1611.09726, 2016: the pseudo-code of
a worker with its procedures PushMessage and ProcessMessages; and "Distributed optimization for deep learning
with gossip exchange", arXiv:1804.01852, which derives it.  Sum weights: Kempe, Dobra and Gehrke,
"Gossip-based computation of aggregate information", FOCS 2003, push-sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from refsgd.algorithms.facts import IN_PAIRS, REPLICAS, declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, deploy, others_of
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Choose, Compute, Deployment, Mark, Program, Recv, RunEnded, Send

SMALLEST = 2.0**-500  #: a smaller weight is not halved: it would underflow to 0, and 0/0 is not an average


class Share(NamedTuple):
    """peer -> peer: half of the sender's weight, and its replica."""

    x: Array  # (d,)
    weight: np.float64  # 8 bytes; halving is exact


@dataclass
class Weighted(Replica):
    """A replica with its weight, and a queue of messages that wait until its gradient is finished."""

    weight: float  # a
    queue: list[Share] = field(default_factory=list)


def process_messages(replica: Weighted) -> None:
    """ProcessMessages: merge queued messages, oldest first; without a yield, so that no message comes in
    between."""
    for x, weight in replica.queue:
        total = replica.weight + float(weight)
        # (a x + a_s x_s) / (a + a_s) with the old a, written so that equal replicas stay equal bit for bit.
        replica.x = replica.x + (x - replica.x) * replica.x.dtype.type(float(weight) / total)
        replica.weight = total
    replica.queue = []


def train(replica: Weighted, others: Sequence[str], problem: Objective, steps: int,
          p: float) -> Program[Weighted]:
    """Main program: merge, compute, perhaps push; returns the replica, which is final when the run ends."""
    chances = (1 - p, *[p / len(others)] * len(others)) if others else (1.0,)
    for t in range(steps):
        process_messages(replica)
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)
        receiver = yield Choose((None, *others), chances)
        if receiver is not None and replica.weight > SMALLEST:  # PushMessage
            replica.weight /= 2
            yield Send(receiver, Share(replica.x, np.float64(replica.weight)))
        yield Mark("clock", t=t)
    return replica


def listen(replica: Weighted) -> Program[None]:
    """Handler: queue each message; when no more can arrive, merge those that are left, so that no weight is
    lost."""
    try:
        while True:
            _, share = yield Recv(Share)
            replica.queue.append(share)
    except RunEnded:
        process_messages(replica)


@declare(REPLICAS, lost="its replica and weight, and what is sent to it later", formula="gosgd",
         recursion=IN_PAIRS, compared=False)
def gosgd(problem: Objective, workers: int, steps: int, sgd: SGD, *, p: float = 0.1) -> Deployment:
    """Deploy GoSGD.

    Parameters
    ----------
    p : float
        Probability in [0, 1] that a peer pushes after an iteration; 0 is independent SGD.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p {p}; expected a probability in [0, 1]")
    return deploy(problem, workers, sgd,
                  lambda replica, names: train(replica, others_of(replica, names), problem, steps, p), listen,
                  survives=True, kind=partial(Weighted, weight=1 / max(1, workers)))
