"""Independent SGD: n workers that never talk to each other.  The floor under everything that communicates.

Peer i::

    for t = 0, 1, ...:
        g = gradient at x on its share
        x = update(x, g)

Each peer learns from its own share alone.  What is evaluated is the mean of the replicas, as for every
algorithm without servers: on an easy problem it can be good although nothing was ever exchanged, and on a net
that has room for different solutions it need not be better than any of the replicas.

Quick facts
-----------
synchronous: no | centralised: no | roles: n peers | messages, bytes: none | staleness: 0 | clock gap:
unbounded | momentum: local | aggregation: none | graph: none | deterministic: yes, whatever the schedule

It is the limit of everything that averages: GoSGD with p = 0, local SGD before its first average, D-PSGD with
the identity as mixing matrix, EASGD with an elastic force of 0.

What differs from the papers
----------------------------
Mann et al. average the replicas once at the end ("mixture weights"); that is local-sgd with period 0.  Here
they stay apart, and their spread is reported beside the mean.

References
----------
Mann, McDonald, Mohri, Silberman and Walker, "Efficient large-scale distributed training of conditional
maximum entropy models", NIPS 2009, the mixture weight method: learning without communication, and what the
mean is worth.
"""

from __future__ import annotations

from collections.abc import Sequence

from refsgd.algorithms.gossip.graphs import GRAPHS, Graph
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program


def peers(workers: int) -> list[str]:
    """Names of the nodes, by rank; raises ValueError where there is none.

    >>> peers(2)
    ['peer0', 'peer1']
    """
    if workers < 1:
        raise ValueError(f"workers {workers}; expected at least 1")
    return [f"peer{i}" for i in range(workers)]


def graph_of(name: str, workers: int, known: Sequence[str] = tuple(GRAPHS)) -> Graph:
    """The neighbours of every rank in a graph of `refsgd.algorithms.gossip.graphs`; one peer has none in
    any graph.  `known` names what may be asked for."""
    if name not in GRAPHS:
        raise ValueError(f"graph {name!r}; expected one of {', '.join(known)}")
    return [[]] if workers == 1 else GRAPHS[name](workers)


def peer(rank: int, me: str, problem: Objective, steps: int, sgd: SGD) -> Program[Array]:
    """Gradient, update, and again; returns the replica, shape (d,)."""
    x, v = problem.x0, sgd.start(problem.x0)
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, x, rank, t)
        x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
        yield Mark("update", part=0, version=t, reads=((me, t),), t=t, x=x)
        yield Mark("clock", t=t)
    return x


def independent(problem: Objective, workers: int, steps: int, sgd: SGD) -> Deployment:
    """Deploy n learners that do not communicate.

    Parameters
    ----------
    problem : Objective
    workers : int
        n, at least 1.
    steps : int
        Iterations of each peer, >= 0.
    sgd : SGD
    """
    return {me: Node(peer(rank, me, problem, steps, sgd), rank=rank, survives=True)
            for rank, me in enumerate(peers(workers))}
