"""Eager DiLoCo: the moves of a round are averaged during the next one, but a peer's own counts at once.

The mean of a round comes one round late.  `delayed` applies all of it then; `eager` applies a peer's own
share, 1/n of its move, at once; `whole` its whole move, and later the difference to the mean: CoCoD-SGD, with
outer rate 1 and without momentum.

Quick facts
-----------
synchronous: yes, one round late | centralised: no | roles: n peers, each with a program that computes and one
that exchanges | messages per peer and round: 2 (n - 1) | bytes per peer and round: 2 (n - 1) / n M each way
(M = 4 d) | staleness: gradients 0; moves of others one round, a peer's own none (eager) or one round
(delayed) | clock gap: at most 2 H - 1 while computing | momentum: inner one local and kept through rounds,
outer one local | aggregation: mean of the replicas' moves, weighted by the images of the round | graph: ring
| deterministic: yes, whatever the schedule

Without outer momentum, eager replicas differ by 1/n of their own last moves, whole ones by all of them;
delayed ones begin each round at the same point.  If an outer step takes away b of the distance to the minimum
of a quadratic, DiLoCo is stable for b < 2, eager for b < n / (n - 1), delayed for b < 1.  With `whole` the
mean is stable for b < 2, but the replicas come together for b < 1 only.

What differs from the paper
---------------------------
The last round waits for its own mean as well, so that every move is applied exactly once; as recalled, the
paper does not say how a run ends.  The inner optimiser is the run's rule, SGD by default, not AdamW, and
moves are weighted by images.  CoCoD-SGD averages starts, not moves: the same in exact arithmetic.

References
----------
Kale, Douillard and Donchev, "Eager updates for overlapped communication and computation in DiLoCo",
arXiv:2502.12996; the outer rate 0.4 as recalled.
Shen, Xu, Liu, Liang and Cheng, "Faster distributed deep net training: Computation and communication decoupled
stochastic gradient descent", IJCAI 2019, arXiv:1906.12043: CoCoD-SGD.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import numpy as np

from refsgd.algorithms.averaging.local_sgd import check_period, images_of
from refsgd.algorithms.averaging.outer import Fragment, Merged, check_outer, communicate, outer_step
from refsgd.algorithms.facts import REPLICAS, declare, one_of
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, deploy, peers
from refsgd.algorithms.sgd import SGD, weights
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, Send

Mode = Literal["eager", "delayed", "whole"]


def peer(replica: Replica, names: Sequence[str], problem: Objective, steps: int, period: int, outer_lr: float,
         outer_momentum: float, mode: Mode) -> Program[Array]:
    """Step alone; after every `period` steps, and the last, take the outer step; returns the parameters."""
    me, number, start, since = names[replica.rank], replica.x.dtype.type, replica.x, 0
    u, applied = np.zeros_like(start), deque[Array]()  # what is applied already of the means under way
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)  # InnerOpt
        last = t == steps - 1
        if (t + 1) % period == 0 or last:
            images = images_of(problem, len(names), since, t + 1)
            share, whole = weights(images)
            move = replica.x - start
            yield Send(me, Fragment(t // period, move, tuple(images)))
            own = number(share[replica.rank]) * move / number(whole)
            direction = {"eager": own, "delayed": np.zeros_like(move), "whole": move}[mode]
            applied.append(direction)
            while len(applied) > (0 if last else 1):  # the last mean has no next round
                _, (_, mean) = yield Recv(Merged, src=me)
                direction = direction + (mean - applied.popleft())
            start, u = yield Compute(outer_step, start, u, direction, outer_lr, outer_momentum, "nesterov",
                                     kind="update")
            replica.x, since = start, t + 1
        yield Mark("clock", t=t)
    return replica.x


@declare(REPLICAS, collective=True, timeless=True, formula="eager_diloco", compared=False,
         recursion="its outer steps have a momentum of their own, which no recursion here follows")
def eager_diloco(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8,
                 outer_lr: float = 0.4, outer_momentum: float = 0.9, mode: Mode = "eager") -> Deployment:
    """Deploy eager or delayed DiLoCo.

    Parameters
    ----------
    sgd : SGD
        The inner optimiser.
    mode : {"eager", "delayed", "whole"}
        What is applied at once: a peer's share of the mean, nothing, or its whole move.
    """
    check_period(period, 1)
    check_outer(outer_lr, outer_momentum)
    one_of("mode", mode, Mode)
    return deploy(problem, workers, sgd, lambda replica, names: peer(
        replica, names, problem, steps, period, outer_lr, outer_momentum, mode),
                  lambda replica: communicate(replica.rank, peers(workers)))
