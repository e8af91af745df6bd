"""Post-local SGD: synchronous mini-batch SGD first, local SGD later.

Replicas are averaged after every step before the switch t', and after every H steps from then on.

Quick facts
-----------
synchronous: yes | centralised: no | roles: n peers | messages per peer and iteration: 2 (n - 1) before the
switch, 1/H of it afterwards | bytes per peer and iteration: 2 (n - 1) / n M each way before the switch (M = 4
d), 1/H of it afterwards | staleness: 0 | clock gap: 0 before the switch, at most H - 1 after it, while
computing | momentum: local, kept through averages and through the switch | aggregation: mean of the replicas'
moves, weighted by the images of the round | graph: ring | deterministic: yes, whatever the schedule

With t' beyond the last step it is BSP; with t' = 0 it is local SGD.

What differs from the paper
---------------------------
The paper switches when it first lowers the learning rate; here the switch is an option in steps, by default
46: two passes over the 1,437 training digits with 4 workers of 16 images, 23 steps each.  The first phase
averages replicas after each step, as the authors' code does, not gradients: the same for plain SGD and for
the mean of the replicas with momentum, but after the switch every peer has its own velocity.
The hierarchical variant (an inner and an outer period) is not implemented.

References
----------
Lin, Stich, Patel and Jaggi, "Don't use large mini-batches, use local SGD", ICLR 2020 (arXiv:1808.07217),
section 3: post-local SGD and its H_(t).
"""

from __future__ import annotations

from refsgd.algorithms.averaging.local_sgd import check_period, peer
from refsgd.algorithms.facts import REPLICAS, declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Deployment


@declare(REPLICAS, collective=True, timeless=True, formula="post_local", recursion="replicas",
         needs=lambda options, workers: {"switch": "period > 1"} if options["period"] == 1 else {})
def post_local(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8,
               switch: int = 46) -> Deployment:
    """Deploy post-local SGD.

    Parameters
    ----------
    period : int
        H, steps between two averages after the switch, at least 1.
    switch : int
        t', the first step without an average after it, >= 0.
    """
    check_period(period, 1)
    if not switch >= 0:
        raise ValueError(f"switch {switch}; expected a number of steps >= 0")

    def averages(t: int) -> bool:
        return t < switch or (t + 1 - switch) % period == 0

    return deploy(problem, workers, sgd,
                  lambda replica, names: peer(replica, names, problem, steps, averages))
