"""Independent SGD: n workers that never communicate, the baseline of algorithms that do.

Each peer learns only from its own share.  As for every algorithm without servers, the mean of the replicas is
evaluated: on an easy problem it can be good although nothing was exchanged; on a net that has many different
solutions it need not be better than any of the replicas.

Quick facts
-----------
synchronous: no | centralised: no | roles: n peers | messages, bytes: none | staleness: 0 | clock gap:
unbounded | momentum: local | aggregation: none | graph: none | deterministic: yes, whatever the schedule

It is a limit of every averaging algorithm: GoSGD with p = 0, local SGD before its first average, D-PSGD with
the identity as mixing matrix, EASGD with an elastic force of 0.  Unequal batches: the plain mean of the
replicas is evaluated, whatever their numbers of examples.

What differs from the papers
----------------------------
Mann et al. average the replicas once at the end ("mixture weights"); this is local-sgd with period 0.  Here
they stay apart, and their spread is reported with the mean.

References
----------
Mann, McDonald, Mohri, Silberman and Walker, "Efficient large-scale distributed training of conditional
maximum entropy models", NIPS 2009, the mixture weight method: learning without communication, and the
quality of the mean.
"""

from __future__ import annotations

from refsgd.algorithms.facts import ONE_WORKER, Facts, declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Program


def peer(replica: Replica, problem: Objective, steps: int) -> Program[Array]:
    """Gradient, update, and again; returns the parameters, (d,)."""
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)
        yield Mark("clock", t=t)
    return replica.x


@declare(Facts(
    because={"": "it exchanges nothing"}, mean_of=ONE_WORKER, lost="its replica", timeless=True,
    holds="alone", silent=True, formula="independent", recursion="replicas"))
def independent(problem: Objective, workers: int, steps: int, sgd: SGD) -> Deployment:
    """Deploy n workers that do not communicate."""
    return deploy(problem, workers, sgd, lambda replica, names: peer(replica, problem, steps), survives=True)
