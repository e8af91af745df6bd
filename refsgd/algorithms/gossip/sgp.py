"""Stochastic gradient push (SGP): push half to one peer per step, with a weight that corrects the mean.

x is only a numerator, a weight w travels with it, and the model is z = x / w.  All parts of a split are kept
or sent, so the sums of all x and of all w are conserved.  On the one-peer exponential graph peer i sends to
i + 2^k, k = 0, 1, ... in turn, and with n = 2^k peers log2 n steps give the exact average of all.

Quick facts
-----------
synchronous: yes, with the in-neighbours | centralised: no | roles: n peers | messages per peer and
iteration: 1 each way on the one-peer graph | bytes per peer and iteration: M + 4 for each (M = 4 d) |
staleness: 0 | clock gap: at most one less than the steps until information from each peer has reached
all, on the one-peer graph ceil(log2 n) - 1 | momentum: local, never communicated | aggregation:
column-stochastic | graph: directed, may change with t | deterministic: yes, whatever the schedule

Unequal batches: the weights depend only on the graph, so a gradient counts 1/n whatever its batch.

What differs from the paper
---------------------------
Weight decay acts on the numerator, as in the authors' code.  If all peers have the same number of in- and
out-neighbours, all weights are 1 and that code leaves them out; here they are always sent.  The overlapped
variant is not implemented.

References
----------
Assran, Loizou, Ballas and Rabbat, "Stochastic gradient push for distributed deep learning", ICML 2019
(arXiv:1811.10792), algorithm 1; one-peer exponential graph in its appendix.
Kempe, Dobra and Gehrke, "Gossip-based computation of aggregate information", FOCS 2003: push-sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from refsgd.algorithms.facts import REPLICAS, declare
from refsgd.algorithms.gossip.graphs import GRAPHS, Graph, graph_of, one_peer_exponential
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, Send


class Part(NamedTuple):
    """peer -> out-neighbour: a part of the numerator, and the same part of the weight."""

    x: Array  # (d,)
    weight: np.floating  # 4 bytes in float32; in one message, since x without its w is another model


def peer(replica: Replica, names: Sequence[str], problem: Objective, steps: int,
         out: Callable[[int], Graph]) -> Program[Array]:
    """Compute at z, push parts of (x, w), add received parts; returns the model z = x / w, (d,).

    The replica holds the numerator.  `out` gives the graph of step t: i sends to the peers ``out(t)[i]``.
    """
    rank, number = replica.rank, replica.x.dtype.type
    weight = number(1)
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, replica.x / weight, rank, t)  # line 3: at the model z
        yield from replica.step(g, t)  # line 4: applied to the numerator x
        to = out(t)
        share = number(1 / (len(to[rank]) + 1))  # p_ji: evenly over itself and its out-neighbours
        part = Part(share * replica.x, share * weight)
        for j in to[rank]:
            yield Send(names[j], part)  # line 5
        parts = {rank: part}
        for j in range(len(names)):
            if rank in to[j]:
                _, parts[j] = yield Recv(Part, src=names[j])
        first, *others = sorted(parts)  # in rank order, not in the order of arrival
        replica.x = sum((parts[j].x for j in others), start=parts[first].x)  # line 6
        weight = number(sum(parts[j].weight for j in sorted(parts)))  # line 7
        yield from replica.mark(t, replica.x / weight)  # line 8
        yield Mark("clock", t=t)
    return replica.x / weight


@declare(REPLICAS, timeless=True, formula="sgp",
         recursion=lambda options: "the weights of peers differ, so that their mean is not that of gradients"
         if options["graph"] in ("star", "bipartite") else "replicas")
def sgp(problem: Objective, workers: int, steps: int, sgd: SGD, *,
        graph: str = "one-peer-exponential") -> Deployment:
    """Deploy SGP.

    Parameters
    ----------
    graph : str
        "one-peer-exponential", or a key of `refsgd.algorithms.gossip.graphs.GRAPHS`: then each peer sends to
        all neighbours in every step; weights differ from 1 if degrees differ ("star").
    """
    if graph != "one-peer-exponential":
        fixed = graph_of(graph, workers, ("one-peer-exponential", *GRAPHS))

    def out(t: int) -> Graph:
        return one_peer_exponential(workers, t) if graph == "one-peer-exponential" else fixed

    return deploy(problem, workers, sgd, lambda replica, names: peer(replica, names, problem, steps, out))
