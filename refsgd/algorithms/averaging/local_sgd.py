"""Local SGD: take H steps alone, then average the replicas.  BSP with fewer, larger messages.

H = 1 is BSP, and with H beyond the last step the replicas are averaged once, at the end (one-shot averaging).

Quick facts
-----------
synchronous: yes, every H steps | centralised: no (SparkNet: a driver) | roles: n peers | messages per peer
and round of H steps: 2 (n - 1) | bytes per peer and round: 2 (n - 1) / n M each way (M = 4 d), so 1/H of what
all-reducing gradients sends | staleness: 0 | clock gap: at most H - 1 while computing | momentum: local, kept
through averages | aggregation: mean of the replicas' moves, weighted by the images of the round | graph: ring
| deterministic: yes, whatever the schedule

What differs from the papers
----------------------------
All-reduce instead of a driver (SparkNet, FedAvg); all peers take part in every round (FedAvg draws some).
The differences to the last common point are averaged, as in the code of Lin et al.: the same in exact
arithmetic, and replicas that did not move keep their bits.  A last round that is shorter than H is
averaged as well.  The papers' plain SGD has no velocity; here each peer keeps its own.

References
----------
Stich, "Local SGD converges fast and communicates little", ICLR 2019 (arXiv:1805.09767), algorithm 1.
Moritz, Nishihara, Stoica and Jordan, "SparkNet: Training deep networks in Spark", ICLR 2016, section 2.
McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017:
weights. Zinkevich, Weimer, Smola and Li, "Parallelized stochastic gradient descent", NIPS 2010: one-shot
averaging.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from refsgd.algorithms.facts import REPLICAS, declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, deploy
from refsgd.algorithms.sgd import SGD, weights
from refsgd.collectives import ring_allreduce
from refsgd.effects import Array, Compute, Deployment, Mark, Program


def images_of(problem: Objective, workers: int, begin: int, end: int) -> list[int]:
    """The examples of each worker in the steps from `begin` to before `end`."""
    return [sum(problem.images(i, t) for t in range(begin, end)) for i in range(workers)]


def mean_move(rank: int, names: Sequence[str], move: Array, images: Sequence[int]) -> Program[Array]:
    """All-reduce the moves d_j of the replicas over b_j examples each: ``sum_j b_j d_j / sum_j b_j``, with
    the same bits at every peer."""
    share, whole = weights(images)
    number = move.dtype.type
    total: Array = yield from ring_allreduce(rank, names, number(share[rank]) * move)
    return total / number(whole)


def peer(replica: Replica, names: Sequence[str], problem: Objective, steps: int,
         averages: Callable[[int], bool],
         averaged: Callable[[int, Array], Program[None]] | None = None) -> Program[Array]:
    """Step alone; after the steps t with `averages(t)`, and after the last, become the mean; returns it.

    `averaged` hears of each average but the last, with the number of steps so far and the common point.
    """
    n, start, since = len(names), replica.x, 0
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)  # the local update
        if n > 1 and (averages(t) or t == steps - 1):  # t + 1 is in Stich's I_T: synchronise
            images = images_of(problem, n, since, t + 1)
            move = yield from mean_move(replica.rank, names, replica.x - start, images)
            replica.x = start = start + move
            since = t + 1
            if averaged and since < steps:
                yield from averaged(since, start)
        yield Mark("clock", t=t)
    return replica.x


def check_period(period: int, least: int) -> None:
    """Raise ValueError if a period is not an integer of at least `least` steps."""
    if not (period >= least and period == period // 1):
        raise ValueError(f"period {period}; expected a whole number of steps >= {least}")


@declare(REPLICAS, collective=True, timeless=True, formula="local_sgd", recursion="replicas")
def local_sgd(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8) -> Deployment:
    """Deploy local SGD.

    Parameters
    ----------
    period : int
        H, steps between two averages, at least 1; 0: average only once, at the end.
    """
    check_period(period, 0)

    def averages(t: int) -> bool:
        return period > 0 and (t + 1) % period == 0

    return deploy(problem, workers, sgd,
                  lambda replica, names: peer(replica, names, problem, steps, averages))
