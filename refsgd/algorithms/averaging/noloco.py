"""NoLoCo: DiLoCo in which each round ends with an exchange between two peers, not among all of them.

DiLoCo's all-reduce takes longer the more peers there are, and all wait for the slowest.  Here a peer waits
for one partner, another one in each round.  A pair takes the outer step along the mean of its two moves, with
a term that pulls the two starts together::

    velocity <- a velocity + b mean of the moves - g (start - mean of the starts)
    start <- start + velocity

Quick facts
-----------
synchronous: yes, with one partner every H steps | centralised: no | roles: n peers | messages per peer and
round: 1 each way | bytes per peer and round: M each way (M = 4 d) | staleness: 0 | clock gap: grows with the
number of peers | momentum: inner one local and kept through rounds, outer one local | aggregation: mean of
two moves, weighted by the images of the round | graph: other pairs in each round | deterministic: yes,
whatever the schedule

The pulls of a pair cancel, so the mean of all starts takes the steps of DiLoCo with a heavy ball, along the
same moves, whatever the pairs.  In a large crowd with random pairs starts stay together for 0 < g <
2 (1 - a^2).  In a circle, a tournament in which all meet in n - 1 rounds, the limit is lower: with 8 peers or
more, or an odd number, the default g is above it.

What differs from the paper
---------------------------
The draws are the same in every run, so that all peers know them.  With an odd n one peer sits out each round.
The paper's inner optimiser is AdamW, and its routing of activations through random stages is left out.  A
last round shorter than H ends with an exchange too.

References
----------
Kolehmainen, Blagoev, Donaghy, Ersoy and Nies, "NoLoCo: No-all-reduce low communication training method for
large models", arXiv:2506.10911; the rule and its constants as recalled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from refsgd.algorithms.averaging.local_sgd import check_period, images_of
from refsgd.algorithms.averaging.outer import check_outer, outer_step
from refsgd.algorithms.facts import REPLICAS, declare, one_of
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, deploy
from refsgd.algorithms.sgd import SGD, weights
from refsgd.effects import Array, Compute, Deployment, Died, Mark, Program, Recv, Send

Pairs = Literal["random", "circle"]


class Offer(NamedTuple):
    """peer -> partner: the sender's move times b, plus its start times g."""

    x: Array  # (d,)


def partner(rank: int, n: int, number: int, pairs: Pairs) -> int:
    """Who exchanges with `rank` in this round; itself, if it sits out."""
    if pairs == "random":
        order = np.random.default_rng(number).permutation(n).tolist()  # the same at all peers
        place = order.index(rank) ^ 1
        return int(order[place]) if place < n else rank
    seats = n - 1 + n % 2  # of the circle; with an even n the last peer stays beside it
    other = (number - rank) % seats if rank < seats else number * (seats + 1) // 2 % seats
    return seats if other == rank and seats < n else other


def peer(replica: Replica, names: Sequence[str], problem: Objective, steps: int, period: int, outer_lr: float,
         outer_momentum: float, pull: float, pairs: Pairs) -> Program[Array]:
    """Step alone; after every `period` steps, and the last, take the outer step of a pair; returns x."""
    n, start, since, dead = len(names), replica.x, 0, set[str]()
    u, number = np.zeros_like(start), start.dtype.type
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)  # the inner optimiser
        if (t + 1) % period == 0 or t == steps - 1:
            share, whole = weights(images_of(problem, n, since, t + 1))
            move = number(outer_lr * n * share[replica.rank] / whole) * (replica.x - start)
            j = names[partner(replica.rank, n, t // period, pairs)]
            if j != names[replica.rank] and j not in dead:
                yield Send(j, Offer(move + number(pull) * start))
                _, theirs = yield Recv(Offer, Died, src=j)
                if isinstance(theirs, Died):
                    dead.add(j)
                else:
                    move = (theirs.x - (number(pull) * start - move)) / 2
            start, u = yield Compute(outer_step, start, u, move, 1.0, outer_momentum, "heavy-ball",
                                     kind="update")
            replica.x, since = start, t + 1
        yield Mark("clock", t=t)
    return replica.x


@declare(REPLICAS, timeless=True, lost="its replica; its partners sit out their rounds", formula="noloco",
         recursion="its outer steps have a momentum of their own, which no recursion here follows")
def noloco(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8, outer_lr: float = 0.7,
           outer_momentum: float = 0.5, pull: float = 1.0, pairs: Pairs = "random") -> Deployment:
    """Deploy NoLoCo.

    Parameters
    ----------
    sgd : SGD
        The inner optimiser.
    outer_lr, outer_momentum : float
        b, > 0, and a, in [0, 1).
    pull : float
        g, >= 0; 0: starts are never pulled together.
    pairs : {"random", "circle"}
        Drawn in each round, or a tournament.
    """
    check_period(period, 1)
    check_outer(outer_lr, outer_momentum)
    if not 0 <= pull < float("inf"):
        raise ValueError(f"pull {pull}; expected a finite number >= 0")
    one_of("pairs", pairs, Pairs)
    return deploy(problem, workers, sgd, lambda replica, names: peer(
        replica, names, problem, steps, period, outer_lr, outer_momentum, pull, pairs), survives=True)
