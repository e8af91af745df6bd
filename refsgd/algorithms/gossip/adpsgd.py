"""Asynchronous decentralised parallel SGD (AD-PSGD): average with one random neighbour while you compute.

Every peer has a replica x, and two programs that share it.  Neighbours average in pairs, both sides at once,
so that the mean of all replicas moves only by gradients.  Waiting cannot go in circles, because the graph is
bipartite: the active peers ask, the passive ones answer at any time.

Peer i, training program::

    for t = 0, 1, ...:
        active:  choose a neighbour j;  send it x              # the average travels while we compute
        g = gradient at x on its share                         # a passive peer's x may change meanwhile
        active:  x = the average that j answers
        x = update(x, g)                                       # applied to the x of now, not to the x that
        was read

Passive peer j, responding program, for as long as the run lasts::

    on x_i from i:  x = (x + x_i) / 2;  send x to i            # one atomic step

Quick facts
-----------
synchronous: no | centralised: no | roles: active and passive peers, the two sides of the graph | messages per
iteration of an active peer: 1 there, 1 back | bytes: M each (M = 4 d) | staleness: 0 (averages come
between read and application, but no updates) | clock
gap: unbounded | momentum: local, never communicated | aggregation: mean of two | graph: bipartite |
deterministic: given the schedule and the choices

What differs from the paper
---------------------------
An active peer averages once per gradient, as every peer of algorithm 1, a passive one only when asked;
implementations let a communication thread go at its own pace.  Only active peers choose a neighbour, which is
the paper's remedy against deadlock.  A passive peer without a neighbour (one worker) still trains.  The
update is plain Python, since nothing may come between reading x and writing it; the machine's time for an
update is therefore not charged.

References
----------
Lian, Zhang, Zhang and Liu, "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018
(arXiv:1710.06952), algorithm 1; section 3 on atomic averages, waiting and bipartite graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from refsgd.algorithms.baselines.independent import graph_of, peers
from refsgd.algorithms.gossip.graphs import Graph
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Choose, Compute, Deployment, Died, Mark, Node, Program, Recv, Send

BIPARTITE = "bipartite", "star", "ring or bipartite-ring (even n)", "torus (even sides)"


class Ask(NamedTuple):
    """active -> passive: my replica; average it with yours."""

    x: Array  # (d,)


class Answer(NamedTuple):
    """passive -> active: the average, which is my replica now and shall be yours."""

    x: Array  # (d,)


@dataclass
class Replica:
    """What the two programs of a peer share."""

    x: Array  # (d,)


def train(rank: int, me: str, passive: Sequence[str], replica: Replica, problem: Objective, steps: int,
          sgd: SGD) -> Program[Replica]:
    """Main program; `passive` are an active peer's neighbours, none for a passive one.

    Returns
    -------
    Replica
        Its `x` goes on changing until the run ends, where others still ask.
    """
    v = sgd.start(replica.x)
    for t in range(steps):
        if passive:
            j = yield Choose(passive)
            yield Send(j, Ask(replica.x))
        g: Array = yield Compute(problem.gradient, replica.x, rank, t)
        if passive:
            _, answer = yield Recv(Answer, Died, src=j)
            if isinstance(answer, Died):  # nothing was averaged on either side
                passive = [i for i in passive if i != j]
            else:
                replica.x = answer.x
        replica.x, v = sgd.step(replica.x, v, g, t)
        yield Mark("update", part=0, version=t, reads=((me, t),), t=t, x=replica.x)
        yield Mark("clock", t=t)
    return replica


def respond(replica: Replica) -> Program[None]:
    """Responder of a passive peer: average with whoever asks, in one step."""
    while True:
        i, ask = yield Recv(Ask)
        replica.x = replica.x + (ask.x - replica.x) / 2  # the mean of equal replicas is the same bits
        yield Send(i, Answer(replica.x))


def sides(graph: Graph) -> list[int] | None:
    """Colour a graph with 0 (rank 0: passive) and 1 (active) so that neighbours differ; None if it has an odd
    cycle.

    >>> sides([[1, 3], [0, 2], [1, 3], [0, 2]]), sides([[1, 2], [0, 2], [0, 1]])
    ([0, 1, 0, 1], None)
    """
    side: dict[int, int] = {}
    for root in range(len(graph)):
        todo = [] if root in side else [root]
        side.setdefault(root, 0)
        while todo:
            i = todo.pop()
            todo += [j for j in graph[i] if j not in side]
            if any(side.setdefault(j, 1 - side[i]) == side[i] for j in graph[i]):
                return None
    return [side[i] for i in range(len(graph))]


def adpsgd(problem: Objective, workers: int, steps: int, sgd: SGD, *, graph: str = "bipartite") -> Deployment:
    """Deploy AD-PSGD.

    Parameters
    ----------
    problem : Objective
    workers : int
        n, at least 1.
    steps : int
        Iterations of each peer, >= 0.
    sgd : SGD
    graph : str
        A bipartite one of `refsgd.algorithms.gossip.graphs.GRAPHS`: "bipartite" (every even rank with every
        odd one, any n), "star" (any n), "ring" or "bipartite-ring" (even n), "torus" (even sides).  The side
        of rank 0 is passive, the other one active.
    """
    names, near, deployment = peers(workers), graph_of(graph, workers, BIPARTITE), {}
    side = sides(near)
    if side is None:
        raise ValueError(
            f"graph {graph!r} of {workers} peers has an odd cycle; expected a bipartite graph: "
            f"{', '.join(BIPARTITE)}")
    for rank, me in enumerate(names):
        replica, passive = Replica(problem.x0), [names[j] for j in near[rank]] if side[rank] else []
        program = train(rank, me, passive, replica, problem, steps, sgd)
        deployment[me] = Node(program, [] if passive else [respond(replica)], rank=rank, survives=True)
    return deployment
