"""Sequential mini-batch SGD: one worker, no messages.  The baseline of all other algorithms.

Quick facts
-----------
synchronous: trivially | roles: one worker | messages, bytes: none | staleness: 0 | momentum: at the worker |
deterministic: yes

With a batch of n*b it takes the same steps as BSP with n workers and b images each, to float32 rounding.

What differs from the paper
---------------------------
Robbins and Monro lower the rate so that its sum diverges and the sum of its squares converges; here it is
constant unless a schedule is given.  They have no momentum and one observation per step; here a step uses the
mean of a batch.

References
----------
Robbins and Monro, "A stochastic approximation method", Annals of Mathematical Statistics 22, 1951: the
iteration (5) is this loop.
"""

from __future__ import annotations

from refsgd.algorithms.facts import Facts, declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program


def learner(problem: Objective, steps: int, sgd: SGD) -> Program[Array]:
    """Gradient, update, and again; returns the parameters, shape (d,)."""
    x, v = problem.x0, sgd.start(problem.x0)
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, x, 0, t)
        x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
        yield Mark("update", part=0, version=t, reads=(("worker0", t),), x=x)
        yield Mark("clock", t=t)
    return x


@declare(Facts(
    share="all", single=True, because={"": "it exchanges nothing"}, lost="there are no others", timeless=True,
    holds="alone", silent=True, formula="sequential", compared=False, recursion="mean"))
def sequential(problem: Objective, workers: int, steps: int, sgd: SGD) -> Deployment:
    """Deploy the single worker; `workers` must be 1."""
    if workers != 1:
        raise ValueError(f"workers {workers}; expected 1 for sequential SGD")
    return {"worker0": Node(learner(problem, steps, sgd), rank=0, survives=True)}
