"""DiLoCo: local SGD whose averages are the gradients of a second, outer optimiser with Nesterov momentum.

With outer momentum 0 and outer rate 1 it is local SGD; with `form` heavy-ball, SlowMo.

Quick facts
-----------
synchronous: yes, every H steps | centralised: no | roles: n peers | messages per peer and round: 2 (n - 1) |
bytes per peer and round: 2 (n - 1) / n M each way (M = 4 d) | staleness: 0 | clock gap: at most H - 1 while
computing | momentum: inner one local and kept through rounds, outer one the same at every peer | aggregation:
mean of the replicas' moves, weighted by the images of the round | graph: ring | deterministic: yes, whatever
the schedule

What differs from the paper
---------------------------
Their inner optimiser is AdamW with H of about 500; here it is the run's rule, SGD by default, and H is
small because our runs are short.  Moves are weighted by images; algorithm 1 takes the plain mean.  Every
peer computes the outer step itself, with the same bits.  A last round shorter than H is averaged as well.
SlowMo counts its momentum in gradients, moves over the inner rate; here it counts moves, the same at a
constant rate.

References
----------
Douillard et al., "DiLoCo: Distributed low-communication training of language models", arXiv:2311.08105,
algorithm 1; outer rate 0.7 and Nesterov momentum 0.9 as there.
Wang, Tantia, Ballas and Rabbat, "SlowMo: improving communication-efficient distributed SGD with slow
momentum", ICLR 2020, arXiv:1910.00643: the form heavy-ball, whose outer rate is 1.
Reddi et al., "Adaptive federated optimization", ICLR 2021, algorithm 1: the outer gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refsgd.algorithms.averaging.local_sgd import check_period, images_of, mean_move
from refsgd.algorithms.averaging.outer import Form, check_outer, needs, outer_step
from refsgd.algorithms.facts import REPLICAS, declare, one_of
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Program


def peer(replica: Replica, names: Sequence[str], problem: Objective, steps: int, period: int, outer_lr: float,
         outer_momentum: float, form: Form) -> Program[Array]:
    """Step alone; after every `period` steps, and the last, take the outer step; returns the parameters."""
    start, since = replica.x, 0
    u = np.zeros_like(start)
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)  # InnerOpt
        if (t + 1) % period == 0 or t == steps - 1:
            images = images_of(problem, len(names), since, t + 1)
            # The mean of all x_j - start, whose negative is the outer gradient.
            move = yield from mean_move(replica.rank, names, replica.x - start, images)
            start, u = yield Compute(outer_step, start, u, move, outer_lr, outer_momentum, form,
                                     kind="update")
            replica.x, since = start, t + 1
        yield Mark("clock", t=t)
    return replica.x


@declare(REPLICAS, collective=True, timeless=True, formula="diloco", needs=needs,
         recursion="its outer steps have a momentum of their own, which no recursion here follows")
def diloco(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8, outer_lr: float = 0.7,
           outer_momentum: float = 0.9, form: Form = "nesterov") -> Deployment:
    """Deploy DiLoCo.

    Parameters
    ----------
    sgd : SGD
        The inner optimiser.
    outer_lr : float
        > 0; 1 without momentum takes the mean of the replicas.
    outer_momentum : float
        In [0, 1).
    form : {"nesterov", "heavy-ball"}
        Of the outer step: DiLoCo's or SlowMo's.
    """
    check_period(period, 1)
    check_outer(outer_lr, outer_momentum)
    one_of("form", form, Form)
    return deploy(problem, workers, sgd, lambda replica, names: peer(
        replica, names, problem, steps, period, outer_lr, outer_momentum, form))
