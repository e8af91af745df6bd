"""AdaComm: local SGD whose period falls with the loss: rare averages first, frequent ones later.

After every `interval` rounds, with F the loss at the common point and F_0 at the start::

    H <- ceil(sqrt(F / F_0) H_0),  or floor(H / 2), at least 1, if that is not shorter

Quick facts
-----------
synchronous: yes, every H steps | centralised: no | roles: n peers | messages per peer and round of H steps:
2 (n - 1) | bytes per peer and round: 2 (n - 1) / n M each way (M = 4 d) | staleness: 0 | clock gap: at most
H_0 - 1 while computing | momentum: local, kept through averages | aggregation: mean of the replicas' moves,
weighted by the images of the round | graph: ring | deterministic: yes, whatever the schedule

All peers must have the same period, or they average different rounds and at the end wait forever.  They
have it without a message: each computes the loss at the mean, which has the same bits everywhere, provided
that their machines add in the same order.

What differs from the paper
---------------------------
The paper adapts every 60 seconds, as recalled; a program reads no clock, and rounds replace seconds.  Its F
is the loss of local batches; here it is that of the training set, which takes time only on real processes.
The paper's factor for a rate that falls is left out, so that H never rises.  PaddlePaddle has H_0 inside the
root, sqrt(F / F_0 H_0), at most 16: after the first round it has about sqrt(H_0), and may rise again.

References
----------
Wang and Joshi, "Adaptive communication strategies to achieve the best error-runtime trade-off in local-update
SGD", MLSys 2019, arXiv:1810.08313.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from refsgd.algorithms.adapted import Adapted, check_interval
from refsgd.algorithms.averaging.local_sgd import check_period, peer
from refsgd.algorithms.facts import REPLICAS, declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Program


def shorter(period: int, first: int, left: float) -> int:
    """The next period, where this share of the loss is left."""
    found = math.ceil(math.sqrt(left) * first)
    return found if found < period else max(1, period // 2)


@declare(REPLICAS, collective=True, timeless=True, formula="adacomm", recursion="replicas")
def adacomm(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 16,
            interval: float = 1) -> Deployment:
    """Deploy AdaComm.

    Parameters
    ----------
    period : int
        H_0, steps of the first rounds, at least 1.
    interval : int or inf
        Rounds after which the period is adapted, at least 1; inf: never, as in local SGD.
    """
    check_period(period, 1)
    check_interval(interval)

    def program(replica: Replica, names: Sequence[str]) -> Program[Array]:
        end, adapted = period, Adapted(period, interval, shorter, problem)

        def averaged(t: int, x: Array) -> Program[None]:
            nonlocal end
            end = t + (yield from adapted.at(x))

        return peer(replica, names, problem, steps, lambda t: t + 1 == end, averaged)

    return deploy(problem, workers, sgd, program)
