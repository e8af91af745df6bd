"""Gossip SGD with sum weights (GoSGD): now and then push half of what you are worth to a random peer.

Every peer has a replica x and a weight a; the weights sum to 1, and what the peers agree on is the weighted
sum of the replicas.  A push moves half of the sender's weight, with a copy of its replica; nobody waits for
it.

Peer i::

    a = 1/n
    for t = 0, 1, ...:
        for each queued message (x_s, a_s), oldest first:
            x = (a x + a_s x_s) / (a + a_s);   a = a + a_s           # with the old a in the first line
        x = update(x, gradient at x on its share)
        with probability p:
            choose another peer r;   a = a / 2;   send (x, a) to r

Queued messages that are left when everybody has finished are merged in the end, so that no weight is lost.

Quick facts
-----------
synchronous: no | centralised: no | roles: n peers | messages per peer and iteration: p out, p in on average |
bytes per peer and iteration: p (M + 8) each way on average (M = 4 d, 8 for the weight) | staleness: 0, since
a peer merges between two gradients | clock gap: unbounded | momentum: local, never communicated |
aggregation: convex combinations that keep the sum of a and the sum of a x | graph: complete | deterministic:
given the schedule and the choices

What differs from the paper
---------------------------
The paper's p is a Bernoulli draw and then a uniform receiver; here both are one choice.  Plain SGD there;
momentum here is local.  Evaluated is the plain mean of the replicas, as everywhere; each replica knows its
`weight`.  A weight below 2^-500 is halved no further (its owner keeps quiet), since floating-point numbers
end where the paper's do not; it takes 500 pushes in a row without receiving anything.

References
----------
Blot, Picard, Cord and Thome, "Gossip training for deep learning", arXiv:1611.09726, 2016: the pseudo-code of
a worker with its procedures PushMessage and ProcessMessages; and "Distributed optimization for deep learning
with gossip exchange", arXiv:1804.01852, which derives it.  Sum weights: Kempe, Dobra and Gehrke,
"Gossip-based computation of aggregate information", FOCS 2003, push-sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from refsgd.algorithms.baselines.independent import peers
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Choose, Compute, Deployment, Mark, Node, Program, Recv, RunEnded, Send

SMALLEST = 2.0**-500  #: a weight below it is not halved: it would underflow to 0, and 0/0 is no average


class Share(NamedTuple):
    """peer -> peer: half of the sender's weight, and its replica."""

    x: Array  # (d,)
    weight: np.float64  # 8 bytes; halving is exact


@dataclass
class Replica:
    """What the two programs of a peer share."""

    x: Array  # (d,)
    weight: float
    queue: list[Share] = field(default_factory=list)  # received, not yet merged


def process_messages(replica: Replica) -> None:
    """Merge what is queued; between two yields, so that no message comes in between."""
    for x, weight in replica.queue:
        total = replica.weight + float(weight)
        # (a x + a_s x_s) / (a + a_s), written so that equal replicas stay equal bit for bit.
        replica.x = replica.x + (x - replica.x) * replica.x.dtype.type(float(weight) / total)
        replica.weight = total
    replica.queue = []


def train(rank: int, names: list[str], replica: Replica, problem: Objective, steps: int, sgd: SGD,
          p: float) -> Program[Replica]:
    """Main program: merge, learn, perhaps push; returns the replica, whose `x` is final when the run has
    ended."""
    others = [name for name in names if name != names[rank]]
    receivers = (None, *others)
    chances = (1 - p, *[p / len(others)] * len(others)) if others else (1.0,)
    v = sgd.start(replica.x)
    for t in range(steps):
        process_messages(replica)
        g: Array = yield Compute(problem.gradient, replica.x, rank, t)
        replica.x, v = yield Compute(sgd.step, replica.x, v, g, t, kind="update")
        yield Mark("update", part=0, version=t, reads=((names[rank], t),), t=t, x=replica.x)
        receiver = yield Choose(receivers, chances)
        if receiver is not None and replica.weight > SMALLEST:
            replica.weight /= 2
            yield Send(receiver, Share(replica.x, np.float64(replica.weight)))
        yield Mark("clock", t=t)
    return replica


def listen(replica: Replica) -> Program[None]:
    """Responder: queue what comes; when nothing can come any more, merge the rest."""
    try:
        while True:
            _, share = yield Recv(Share)
            replica.queue.append(share)
    except RunEnded:
        process_messages(replica)


def gosgd(problem: Objective, workers: int, steps: int, sgd: SGD, *, p: float = 0.1) -> Deployment:
    """Deploy GoSGD.

    Parameters
    ----------
    problem : Objective
    workers : int
        n, at least 1.
    steps : int
        Iterations of each peer, >= 0.
    sgd : SGD
    p : float
        Probability in [0, 1] that a peer pushes after an iteration; 0 is independent SGD.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p {p}; expected a probability in [0, 1]")
    names = peers(workers)
    deployment = {}
    for rank, me in enumerate(names):
        replica = Replica(problem.x0, 1 / workers)
        deployment[me] = Node(train(rank, names, replica, problem, steps, sgd, p), [listen(replica)],
                              rank=rank, survives=True)
    return deployment
