"""Ako: in each iteration send every peer another partition of the gradients, summed since it last went.

A peer's gradients move its own replica at once.  They are also summed in partitions: iteration t sends
partition t mod p to all other peers, which add it to their next gradient.

Quick facts
-----------
synchronous: no | centralised: no | roles: n peers | messages per peer and iteration: n-1 out, n-1 in | bytes
per peer and iteration: (n-1) M/p each way, (n-1) M in the last one | staleness: 0 of a peer's own gradients;
those of others are up to p - 1 iterations and their way late | clock gap: unbounded | momentum: local, of the
sum of all gradients | aggregation: the sum of all workers' gradients, as in ASP | graph: complete |
deterministic: given the schedule

Unequal batches: each peer's gradient counts the same.

What differs from the paper
---------------------------
The paper's optional bound of staleness is left out.  The last iteration sends all partitions, so that nobody
ends without a gradient of others; the paper trains until the user stops.  What arrives after a peer's last
update is one more step.  Partitions are ranges of equal size, not groups of layers.

References
----------
Watcharapichat, Lopez Morales, Castro Fernandez and Pietzuch, "Ako: Decentralised deep learning with partial
gradient exchange", SoCC 2016, section 3: as described on the project's page and in the public implementation
TF.AKO, whose sum of the last p gradients is the sum since the partition was last sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from refsgd.algorithms.facts import ONE_WORKER, REPLICAS, declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, deploy, others_of
from refsgd.algorithms.sgd import SGD, zeros
from refsgd.collectives.parts import chunks
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, RunEnded, Send


class Partition(NamedTuple):
    """peer -> peer: a partition of the sender's gradients, summed since it was last sent."""

    g: Array  # (part,)
    number: int


@dataclass
class Accumulating(Replica):
    """A replica with gradients that others do not have yet, and those of others that it has not applied."""

    parts: Sequence[slice] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.unsent = [zeros(self.x[part]) for part in self.parts]
        self.received = zeros(self.x)
        self.late = False  #: whether anything has come since it was last taken

    def take(self) -> Array:
        """The sum of what has been received since it was last taken; without a yield."""
        total, self.received, self.late = self.received, np.zeros_like(self.x), False
        return total


def train(replica: Accumulating, others: Sequence[str], problem: Objective,
          steps: int) -> Program[Accumulating]:
    """Main program: compute, send a partition, update; returns the replica, final when the run ends."""
    count = len(replica.parts)
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)
        replica.unsent = [sums + g[part] for sums, part in zip(replica.unsent, replica.parts, strict=True)]
        for k in range(count) if t == steps - 1 else (t % count,):
            for other in others:
                yield Send(other, Partition(replica.unsent[k], k))
            replica.unsent[k] = np.zeros_like(replica.unsent[k])
        yield from replica.apply(g + replica.take(), t)
        yield Mark("clock", t=t)
    return replica


def listen(replica: Accumulating, steps: int) -> Program[None]:
    """Handler: keep what arrives for the next update; what is left at the end is a step of its own."""
    try:
        while True:
            _, theirs = yield Recv(Partition)
            replica.received[replica.parts[theirs.number]] += theirs.g
            replica.late = True
    except RunEnded:
        if replica.late:
            replica.x, replica.v = replica.sgd.step(replica.x, replica.v, replica.take(), steps - 1)


@declare(REPLICAS, because={"": "it sends gradients in partitions of its own"}, mean_of=ONE_WORKER,
         lost="its replica, gradients that it has not sent, and what is sent to it later", holds="partitions",
         formula="ako", recursion="its replicas have each other's gradients in parts, at different times",
         compared=False)
def ako(problem: Objective, workers: int, steps: int, sgd: SGD, *, partitions: int = 2) -> Deployment:
    """Deploy Ako.

    Parameters
    ----------
    partitions : int
        p, at least 1: how many iterations pass until a gradient has gone to the other peers, in messages of
        a p-th of its size.
    """
    if partitions < 1:
        raise ValueError(f"partitions {partitions}; expected at least 1")
    return deploy(problem, workers, sgd,
                  lambda replica, names: train(replica, others_of(replica, names), problem, steps),
                  lambda replica: listen(replica, steps), survives=True,
                  kind=partial(Accumulating, parts=chunks(problem.x0.size, partitions)))
