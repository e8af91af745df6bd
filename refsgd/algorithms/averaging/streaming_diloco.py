"""Streaming DiLoCo: fragments of the model are synchronised one after the other while peers compute.

P fragments take turns.  The mean of one comes `delay` steps later and is mixed with what these have changed.

Quick facts
-----------
synchronous: yes, each fragment every H steps | centralised: no | roles: n peers, each with a program that
computes and one that exchanges | messages per peer and round: 2 (n - 1) P | bytes per peer and round: 2 (n -
1) / n M each way (M = 4 d), in P portions | staleness: gradients 0, a fragment's mean `delay` steps | clock
gap: at most H + delay - 1 while computing | momentum: inner one local and kept through rounds, outer one of
each fragment, the same at every peer | aggregation: mean of the replicas' moves, weighted by the images since
the fragment's last turn | graph: ring | deterministic: yes, whatever the schedule

With one fragment, no delay and mix 0 it is DiLoCo; with one, a delay of H, outer rate 1 and `form` heavy-ball
Overlap Local SGD, whose anchor is the start.  With mix 1 no mean reaches the replicas.

What differs from the paper
---------------------------
Fragments are equal slices of the vector, not groups of layers; the first turn of fragment p comes after H + H
p/P steps, the last after the last step.  A run returns the starts, which all peers share.  The inner rule is
the run's, not AdamW; moves are weighted by images and sent in full precision, not in 4 bits.

References
----------
Douillard et al., "Streaming DiLoCo with overlapping communication: Towards a distributed free lunch",
arXiv:2501.18512, algorithm 2; mix 0.5 and outer rate 0.4 as recalled.
Wang, Liang and Joshi, "Overlap Local-SGD: An algorithmic approach to hide communication delays in distributed
SGD", ICASSP 2020, arXiv:2002.09539: mix 0.4 and momentum 0.7 as recalled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from refsgd.algorithms.averaging.local_sgd import check_period, images_of
from refsgd.algorithms.averaging.outer import (
    Form,
    Fragment,
    Merged,
    check_fragments,
    check_outer,
    communicate,
    mixed,
    needs,
    outer_step,
)
from refsgd.algorithms.facts import REPLICAS, declare, one_of
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, deploy, peers
from refsgd.algorithms.sgd import SGD
from refsgd.collectives.parts import chunks
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, Send


def peer(replica: Replica, names: Sequence[str], problem: Objective, steps: int, period: int, fragments: int,
         delay: int, mix: float, outer_lr: float, outer_momentum: float, form: Form) -> Program[Array]:
    """Step alone; send each fragment at its turn, take its outer step later; returns the starts, (d,)."""
    me, cut = names[replica.rank], chunks(replica.x.size, fragments)
    start, u = ([x[part] for part in cut] for x in (replica.x, np.zeros_like(replica.x)))
    since, due = [0] * fragments, deque[int]()  # due: when to take the means under way

    def merge(now: int) -> Program[None]:
        while due and due[0] <= now:
            due.popleft()
            _, (p, move) = yield Recv(Merged, src=me)
            start[p], u[p] = yield Compute(outer_step, start[p], u[p], move, outer_lr, outer_momentum, form,
                                           kind="update")
            replica.x = mixed(replica.x, cut[p], start[p], mix)

    for t in range(steps):
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)  # InnerOpt
        last = t == steps - 1
        now = t + period * last  # after the last step nothing stays under way
        if last or delay == period:
            yield from merge(now)  # a move that is still under way is not sent again
        for p, part in enumerate(cut):
            turn = t + 1 - period * p // fragments
            if last or (turn > 0 and turn % period == 0):
                if delay == period and not since[p]:  # no mean has come: the start is x0
                    replica.x = mixed(replica.x, part, start[p], mix)
                images = images_of(problem, len(names), since[p], t + 1)
                yield Send(me, Fragment(p, replica.x[part] - start[p], tuple(images)))
                due.append(t + delay)
                since[p] = t + 1
        yield from merge(now)
        yield Mark("clock", t=t)
    return np.concatenate(start)


@declare(REPLICAS, collective=True, timeless=True, formula="streaming_diloco", compared=False, needs=needs,
         recursion="its outer steps have a momentum of their own, which no recursion here follows")
def streaming_diloco(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8,
                     fragments: int = 4, delay: int = 1, mix: float = 0.5, outer_lr: float = 0.4,
                     outer_momentum: float = 0.9, form: Form = "nesterov") -> Deployment:
    """Deploy streaming DiLoCo.

    Parameters
    ----------
    sgd : SGD
        The inner optimiser.
    period : int
        H, steps between two turns of a fragment, at least 1.
    delay : int
        tau, the steps that the mean of a fragment has to arrive, 0 to H.
    mix : float
        The weight of a peer's own fragment when the mean arrives, in [0, 1].
    """
    check_period(period, 1)
    check_outer(outer_lr, outer_momentum)
    one_of("form", form, Form)
    check_fragments(fragments, mix)
    if not 0 <= delay <= period:
        raise ValueError(f"delay {delay} of a period of {period}; expected 0 to {period} steps")
    return deploy(problem, workers, sgd, lambda replica, names: peer(
        replica, names, problem, steps, period, fragments, delay, mix, outer_lr, outer_momentum, form),
                  lambda replica: communicate(replica.rank, peers(workers)))
