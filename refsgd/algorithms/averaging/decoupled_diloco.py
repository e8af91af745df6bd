"""Decoupled DiLoCo: learners never wait; a syncer merges a fragment of the model once a quorum has sent it.

A round is over when K learners have answered.  What comes later is dropped, and a learner that dies is not
waited for.  Learners compute on, and take between two steps what the syncer has sent.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n learners, one syncer | messages per learner and round: 2 down,
at most 1 up | bytes per round: M/P up for each answer, n M/P down (M = 4 d) | staleness: moves 0 merges of
their fragment, except the last | clock gap: unbounded | momentum: inner one local, outer one of each fragment
| aggregation: mean of K moves or more with weights tokens^2/steps, or their mean direction with their mean
length (rda) | deterministic: given the order of arrival

Rounds end when fewer than K learners still run, or than all that live if those are fewer.  Every schedule
comes to that: a round needs an answer, and a learner has at most steps // H for a fragment, as it counts from
its last answer or merge.

What differs from the paper
---------------------------
The grace window, in which the syncer waits for more than a quorum, is 0: it takes what has arrived.  Learners
answer when they have H steps of a fragment, an equal slice of the vector that is merged as one tensor.  After
the last step they send the moves that are left; the last merges take those of K learners, and slower ones run
on without effect.

References
----------
Douillard et al., "Decoupled DiLoCo for resilient distributed pre-training", arXiv:2604.21428, 2026; weights,
merges and defaults as recalled.
"""

from __future__ import annotations

from refsgd.algorithms.averaging.local_sgd import check_period
from refsgd.algorithms.averaging.outer import check_fragments, check_outer, mixed
from refsgd.algorithms.averaging.syncer import Done, Global, Pull, Push, Rule, syncer
from refsgd.algorithms.facts import REPLICAS, declare, one_of
from refsgd.algorithms.parts import Objective, deploy, some
from refsgd.algorithms.sgd import SGD
from refsgd.collectives.parts import chunks
from refsgd.effects import Array, Compute, Deployment, Mark, Poll, Program, Send


def learner(rank: int, syncer: str, problem: Objective, sgd: SGD, steps: int, fragments: int, period: int,
            mix: float) -> Program[Array]:
    """Step without waiting; between two steps take what has been merged and answer; returns the replica."""
    x, v, cut = problem.x0, sgd.start(problem.x0), chunks(problem.x0.size, fragments)
    base, since, version = [x[part] for part in cut], [0] * fragments, [0] * fragments
    asked: Pull | None = None

    def push(p: int, number: int, now: int) -> Program[None]:
        tokens = sum(problem.images(rank, t) for t in range(since[p], now))
        yield Send(syncer, Push(p, number, x[cut[p]] - base[p], now - since[p], tokens, version[p]))
        base[p], since[p] = x[cut[p]], now  # no step is sent twice

    for t in range(steps):
        g: Array = yield Compute(problem.gradient, x, rank, t)
        x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
        while found := (yield Poll(Global, Pull, src=syncer)):
            if isinstance(found[1], Pull):
                asked = found[1]
            else:  # the round of the last question is over
                asked, (p, merged, version[p]) = None, found[1]
                base[p], since[p], x = merged, t + 1, mixed(x, cut[p], merged, mix)
        if asked and t + 1 - since[asked.fragment] >= period:
            yield from push(*asked, t + 1)
            asked = None
        yield Mark("clock", t=t)
    for p in range(fragments):
        if steps > since[p]:
            yield from push(p, -1, steps)
    yield Send(syncer, Done())
    return x


@declare(REPLICAS, collects=True, lost="what it has done since its last answer",
         mean_of="a merge has as many learners as are in time",
         no_formula="how many rounds there are, and who is in time, depends on the schedule",
         recursion="moves of several steps, of which those that come late are dropped")
def decoupled_diloco(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8,
                     fragments: int = 4, quorum: int | None = None, mix: float = 0.5, merge: Rule = "average",
                     outer_lr: float = 0.7, outer_momentum: float = 0.9) -> Deployment:
    """Deploy decoupled DiLoCo.

    Parameters
    ----------
    period : int
        H, the steps of a fragment after which a learner answers, at least 1.
    quorum : int, optional
        K, the learners for which a round waits, by default all that live.
    mix : float
        The weight of a learner's own fragment when it takes a merged one, in [0, 1].
    merge : {"average", "rda"}
        Whether a merge is the mean of the moves, or their mean direction with their mean length.
    """
    check_period(period, 1)
    check_outer(outer_lr, outer_momentum)
    check_fragments(fragments, mix)
    one_of("merge", merge, Rule)
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, learners: syncer(shard.x, learners, fragments,
                                                 some(len(learners), quorum, "quorum"), merge, outer_lr,
                                                 outer_momentum),
                  lambda rank, servers: learner(rank, servers[0], problem, sgd, steps, fragments, period,
                                                mix))
