"""Asynchronous decentralised parallel SGD (AD-PSGD): average with one random neighbour while you compute.

Neighbours average in pairs, both sides at once, so only gradients move the mean of all replicas.  There is no
cycle of waits, because the graph is bipartite: active peers ask, passive peers answer at any time.

Quick facts
-----------
synchronous: no | centralised: no | roles: active and passive peers, the two sides of the graph | messages per
iteration of an active peer: 1 there, 1 back | bytes: M each (M = 4 d) | staleness: 0 (averages come between
read and application, but no updates) | clock gap: unbounded | momentum: local, never communicated |
aggregation: mean of two | graph: bipartite | deterministic: given the schedule and the choices

Unequal batches: a pair takes the plain mean, whatever their numbers of examples, so a gradient counts 1/n.

What differs from the paper
---------------------------
An active peer averages once per gradient, like every peer of algorithm 1, a passive one only when asked;
implementations let a communication thread run at its own pace.  Only active peers choose a neighbour, which
is the paper's remedy against deadlock.  A passive peer without a neighbour (one worker) still trains.  The
update is plain Python, since no other program may run between reading x and writing it; therefore the
machine's time for an update is not charged.

References
----------
Lian, Zhang, Zhang and Liu, "Asynchronous decentralized parallel stochastic gradient descent", ICML 2018
(arXiv:1710.06952), algorithm 1; section 3 on atomic averages, waiting and bipartite graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refsgd.algorithms.facts import IN_PAIRS, REPLICAS, declare
from refsgd.algorithms.gossip.graphs import graph_of, sides
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, peers
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Choose, Compute, Deployment, Died, Mark, Node, Program, Recv, Send

BIPARTITE = "bipartite", "star", "ring or bipartite-ring (even n)", "torus (even sides)"


class Ask(NamedTuple):
    """active -> passive: my replica, to be averaged with yours."""

    x: Array  # (d,)


class Answer(NamedTuple):
    """passive -> active: the average, my new replica and yours."""

    x: Array  # (d,)


def train(replica: Replica, passive: Sequence[str], problem: Objective, steps: int) -> Program[Replica]:
    """Main program; `passive` holds the neighbours of an active peer and is empty for a passive one.  Returns
    the replica, which others may still average until the run ends."""
    for t in range(steps):
        if passive:
            j = yield Choose(passive)  # line 2: with j, at random
            yield Send(j, Ask(replica.x))  # the average travels while we compute
        g: Array = yield Compute(problem.gradient, replica.x, replica.rank, t)  # lines 3 and 4
        if passive:
            _, answer = yield Recv(Answer, Died, src=j)
            if isinstance(answer, Died):  # nothing was averaged on either side
                passive = [i for i in passive if i != j]
            else:
                replica.x = answer.x  # line 5: (x_i + x_j) / 2
        # Line 6: applied to the x of now, not to the x that was read; no yield, so no average is lost.
        replica.x, replica.v = replica.sgd.step(replica.x, replica.v, g, t)
        yield from replica.mark(t, replica.x)
        yield Mark("clock", t=t)
    return replica


def respond(replica: Replica) -> Program[None]:
    """Handler of a passive peer: average with each asking peer, in one step."""
    while True:
        i, ask = yield Recv(Ask)
        replica.x = replica.x + (ask.x - replica.x) / 2  # the mean of equal replicas is the same bits
        yield Send(i, Answer(replica.x))


@declare(REPLICAS, lost="its replica; a peer that asked it skips that average", formula="adpsgd",
         recursion=IN_PAIRS)
def adpsgd(problem: Objective, workers: int, steps: int, sgd: SGD, *, graph: str = "bipartite") -> Deployment:
    """Deploy AD-PSGD.

    Parameters
    ----------
    graph : str
        A bipartite one of `refsgd.algorithms.gossip.graphs.GRAPHS`: "bipartite" (every even rank with every
        odd one, any n), "star" (any n), "ring" or "bipartite-ring" (even n), "torus" (even sides).  The side
        of rank 0 is passive, the other one active.
    """
    names, near, deployment = peers(workers), graph_of(graph, workers, BIPARTITE), {}
    side = sides(near)
    if side is None:
        raise ValueError(f"graph {graph!r} of {workers} peers has an odd cycle; expected a bipartite graph: "
                         f"{', '.join(BIPARTITE)}")
    for rank, me in enumerate(names):
        replica = Replica(rank, problem.x0, sgd)
        passive = [names[j] for j in near[rank]] if side[rank] else []
        deployment[me] = Node(train(replica, passive, problem, steps), [] if passive else [respond(replica)],
                              rank=rank, survives=True)
    return deployment
