"""Decentralised parallel SGD (D-PSGD): no server and no all-reduce, only averages with one's neighbours.

The peers sit on a graph with a mixing matrix W: symmetric, W_ij >= 0 and 0 where i and j are not neighbours,
rows and columns sum to 1.  So averaging keeps the mean of all replicas, and it brings them together by the
second largest absolute eigenvalue of W per round; one minus it, the *spectral gap*, says how well a graph
agrees.

Peer i, loosely combine then adapt (`order="cta"`, the paper's)::

    send x to the neighbours
    g = gradient at x on its share                            # at the own x, while the replicas travel
    x = update(sum_j W_ij x_j, g)

Peer i, adapt then combine (`order="atc"`)::

    x = update(x, gradient at x on its share)
    send x to the neighbours
    x = sum_j W_ij x_j

The second waits for messages after computing.  In return its replicas are closer together: with W = 1/n
everywhere it is BSP, while the replicas of the first still differ by their own last gradients.

Quick facts
-----------
synchronous: yes, with one's neighbours | centralised: no | roles: n peers | messages per peer and iteration:
deg each way | bytes per peer and iteration: deg M each way (M = 4 d); on a ring 2 M whatever n is |
staleness: 0 | clock gap: at most the distance in the graph (`cta`), one less (`atc`) | momentum: local, never
communicated | aggregation: W | graph: any connected one | deterministic: yes, whatever the schedule

What differs from the paper
---------------------------
`atc` is not in it (it is what the code of Assran et al. runs under this name).  `cta` is so called loosely:
Cattivelli and Sayed's combine-then-adapt takes the gradient at the combined point, algorithm 1 at the own
replica, which Tu and Sayed call the consensus strategy and BlueFog adapt-with-combine.  Weight decay, which
is not in algorithm 1, acts where g is applied, in `cta` on the average.  Sums are taken as differences to the
first replica in rank order, so that equal replicas stay equal bit for bit, and outside a Compute: they take
no virtual time.

References
----------
Lian et al., "Can decentralized algorithms outperform centralized algorithms?", NIPS 2017 (arXiv:1705.09056),
algorithm 1.
Cattivelli and Sayed, "Diffusion LMS strategies for distributed estimation", IEEE Trans. Signal Processing 58,
2010: adapt-then-combine against combine-then-adapt.
Tu and Sayed, "Diffusion strategies outperform consensus strategies for distributed estimation over adaptive
networks", IEEE Trans. Signal Processing 60, 2012 (arXiv:1205.3993): both against the consensus strategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from refsgd.algorithms.baselines.independent import graph_of, peers
from refsgd.algorithms.gossip.graphs import metropolis
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, Send

Order = Literal["cta", "atc"]


class Model(NamedTuple):
    """peer -> neighbour: a replica; one per neighbour and iteration, so that channels keep the rounds
    apart."""

    x: Array  # (d,)


def mix(weights: Mapping[int, float], replicas: Mapping[int, Array]) -> Array:
    """``sum_j W_ij x_j`` for one row of W, in rank order, the weights summing to 1."""
    ranks = sorted(weights)
    first = replicas[ranks[0]]
    total = first
    for j in ranks[1:]:
        total = total + first.dtype.type(weights[j]) * (replicas[j] - first)
    return total


def gather(names: Sequence[str], neighbours: Sequence[int], rank: int, x: Array) -> Program[dict[int, Array]]:
    """Receive one replica from each neighbour; returns them with the own one, by rank."""
    replicas = {rank: x}
    for j in neighbours:
        _, model = yield Recv(Model, src=names[j])
        replicas[j] = model.x
    return replicas


def combine_then_adapt(rank: int, names: Sequence[str], weights: Mapping[int, float], problem: Objective,
                       steps: int,
                       sgd: SGD) -> Program[Array]:
    """Apply the gradient of the own replica to the average of the neighbourhood; `weights` is row i of W."""
    x, v, me = problem.x0, sgd.start(problem.x0), names[rank]
    neighbours = [j for j in weights if j != rank]
    for t in range(steps):
        for j in neighbours:
            yield Send(names[j], Model(x))
        g: Array = yield Compute(problem.gradient, x, rank, t)
        replicas = yield from gather(names, neighbours, rank, x)
        x, v = yield Compute(sgd.step, mix(weights, replicas), v, g, t, kind="update")
        yield Mark("update", part=0, version=t, reads=((me, t),), t=t, x=x)
        yield Mark("clock", t=t)
    return x


def adapt_then_combine(rank: int, names: Sequence[str], weights: Mapping[int, float], problem: Objective,
                       steps: int,
                       sgd: SGD) -> Program[Array]:
    """Average the neighbourhood's replicas after their own steps; `weights` is row i of W."""
    x, v, me = problem.x0, sgd.start(problem.x0), names[rank]
    neighbours = [j for j in weights if j != rank]
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, x, rank, t)
        x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
        for j in neighbours:
            yield Send(names[j], Model(x))
        replicas = yield from gather(names, neighbours, rank, x)
        x = mix(weights, replicas)
        yield Mark("update", part=0, version=t, reads=((me, t),), t=t, x=x)
        yield Mark("clock", t=t)
    return x


def dpsgd(problem: Objective, workers: int, steps: int, sgd: SGD, *, graph: str = "ring",
          order: Order = "cta") -> Deployment:
    """Deploy D-PSGD with Metropolis weights, which on a regular graph are 1/(deg + 1) for oneself and each
    neighbour.

    Parameters
    ----------
    problem : Objective
    workers : int
        n, at least 1.
    steps : int
        Iterations of each peer, >= 0.
    sgd : SGD
    graph : str
        A key of `refsgd.algorithms.gossip.graphs.GRAPHS`.
    order : {"cta", "atc"}
        The paper's order, loosely called combine then adapt, or adapt then combine.
    """
    if order not in ("cta", "atc"):
        raise ValueError(f"order {order!r}; expected cta or atc")
    names, near = peers(workers), graph_of(graph, workers)
    program = combine_then_adapt if order == "cta" else adapt_then_combine
    W, deployment = metropolis(near), {}
    for rank, me in enumerate(names):
        weights = {j: float(W[rank, j]) for j in [rank, *near[rank]]}
        deployment[me] = Node(program(rank, names, weights, problem, steps, sgd), rank=rank)
    return deployment
