"""Decentralised parallel SGD (D-PSGD): no server and no all-reduce, each peer averages with its neighbours.

The peers are the nodes of a graph with a mixing matrix W: symmetric, W_ij >= 0 and 0 where i and j are not
neighbours, rows and columns sum to 1, so that averaging conserves the mean of all replicas.

The paper's order (`order="cta"`, loosely combine then adapt) averages while it computes.  Adapt then combine
(`order="atc"`) averages after the local steps, when it has to wait for messages; with W = 1/n everywhere and
equal shares it is BSP, while in `cta` replicas still differ by their last gradients.

Quick facts
-----------
synchronous: yes, with the neighbours | centralised: no | roles: n peers | messages per peer and iteration:
deg each way | bytes per peer and iteration: deg M each way (M = 4 d); on a ring 2 M for any n |
staleness: 0 | clock gap: at most the distance in the graph (`cta`), one less (`atc`) | momentum: local, never
communicated | aggregation: W | graph: any connected one | deterministic: yes, whatever the schedule

Unequal batches: W depends only on the graph, so the mean of the replicas moves by the plain mean of
gradients.

What differs from the paper
---------------------------
The paper does not have `atc`; the code of Assran et al. runs it under the paper's name.  Cattivelli and
Sayed's combine-then-adapt takes the gradient at the combined point, algorithm 1 at the peer's own replica:
this is the consensus strategy of Tu and Sayed, and BlueFog's adapt-with-combine.  Weight decay, which is not
in algorithm 1, acts on the model to which g is applied, in `cta` the average.  An average takes no virtual
time.

References
----------
Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NIPS 2017 (arXiv:1705.09056),
algorithm 1.
Cattivelli and Sayed, "Diffusion LMS strategies for distributed estimation", IEEE TSP 58, 2010: both orders.
Tu and Sayed, "Diffusion strategies outperform consensus strategies for distributed estimation over adaptive
networks", IEEE TSP 60, 2012 (arXiv:1205.3993): compares both with the consensus strategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from refsgd.algorithms.facts import REPLICAS, Options, declare, one_of
from refsgd.algorithms.gossip.graphs import graph_of, metropolis
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Model, Replica, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, Send

Order = Literal["cta", "atc"]


def average(replica: Replica, names: Sequence[str], weights: Mapping[int, float]) -> Program[Array]:
    """Receive a replica of each neighbour, the next of its channel; ``sum_j W_ij x_j`` in rank order, where
    `weights` is row i of W."""
    replicas = {replica.rank: replica.x}
    for j in weights:
        if j != replica.rank:
            _, (replicas[j],) = yield Recv(Model, src=names[j])
    first, *others = sorted(weights)
    total = replicas[first]
    for j in others:  # as differences to the first, so that equal replicas stay equal bit for bit
        total = total + total.dtype.type(weights[j]) * (replicas[j] - replicas[first])
    return total


def combine_then_adapt(replica: Replica, names: Sequence[str], weights: Mapping[int, float],
                       problem: Objective, steps: int) -> Program[Array]:
    """Algorithm 1: apply the gradient of the peer's own replica to the average of its neighbourhood."""
    for t in range(steps):
        for j in weights:
            if j != replica.rank:
                yield Send(names[j], Model(replica.x))
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)  # line 3, meanwhile
        replica.x = yield from average(replica, names, weights)  # line 4
        yield from replica.apply(g, t)  # line 5
        yield Mark("clock", t=t)
    return replica.x


def adapt_then_combine(replica: Replica, names: Sequence[str], weights: Mapping[int, float],
                       problem: Objective, steps: int) -> Program[Array]:
    """Average the replicas of the neighbourhood after their own steps."""
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.step(g, t)
        for j in weights:
            if j != replica.rank:
                yield Send(names[j], Model(replica.x))
        replica.x = yield from average(replica, names, weights)
        yield from replica.mark(t, replica.x)
        yield Mark("clock", t=t)
    return replica.x


def mixing(workers: int, options: Options) -> float:
    """The least eigenvalue of W, to which `combine_then_adapt` adds the gradient's: W - rate a."""
    W = metropolis(graph_of(options["graph"], workers))
    return float(np.linalg.eigvalsh(W)[0]) if options["order"] == "cta" else 1.0


@declare(REPLICAS, timeless=True, formula="dpsgd", recursion="replicas", mixing=mixing)
def dpsgd(problem: Objective, workers: int, steps: int, sgd: SGD, *, graph: str = "ring",
          order: Order = "cta") -> Deployment:
    """Deploy D-PSGD with Metropolis weights, 1/(deg + 1) for each of the neighbourhood on a regular graph.

    Parameters
    ----------
    graph : str
        A key of `refsgd.algorithms.gossip.graphs.GRAPHS`.
    order : {"cta", "atc"}
        When replicas are averaged: before the gradient is applied, or after.
    """
    one_of("order", order, Order)
    near = graph_of(graph, workers)
    W, program = metropolis(near), combine_then_adapt if order == "cta" else adapt_then_combine

    def main(replica: Replica, names: Sequence[str]) -> Program[Array]:
        weights = {j: float(W[replica.rank, j]) for j in [replica.rank, *near[replica.rank]]}
        return program(replica, names, weights, problem, steps)

    return deploy(problem, workers, sgd, main)
