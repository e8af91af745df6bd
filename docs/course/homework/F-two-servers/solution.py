"""Homework F: two servers that agree, a solution.

Each of two servers holds one half of the model.  Both run the server of SSP, each with its own clocks, so the
two halves of a model that a worker reads may contain different gradients.

Change the servers: in every schedule the two halves that a worker computes on contain the same gradients,
every model contains all gradients up to clock t - staleness when gradient t is computed, and no worker waits
without need.
"""

from typing import NamedTuple

from refsgd.algorithms.parts import Model, Push, Shard, names, worker
from refsgd.collectives.parts import chunks
from refsgd.effects import Node, Recv, Send


class Applied(NamedTuple):
    """leader -> follower: apply this worker's next gradient."""

    worker: str


class Answered(NamedTuple):
    """leader -> follower: answer this worker."""

    worker: str


def leader(shard, workers, steps, staleness, other):
    """SSP's rule; tells the other server each of its decisions; returns the first half of the parameters."""
    clock, waiting = dict.fromkeys(workers, 0), set()
    while min(clock.values()) < steps:
        w, push = yield Recv(Push)
        yield from shard.apply(w, push)
        yield Send(other, Applied(w))
        clock[w] += 1
        waiting.add(w)
        for u in [u for u in workers if u in waiting and clock[u] <= min(clock.values()) + staleness]:
            waiting.remove(u)
            yield Send(u, Model(shard.x, shard.version))
            yield Send(other, Answered(u))
    return shard.x


def follower(shard, workers, steps, other):
    """Do as the leader did, in its order; returns the second half of the parameters."""
    for _ in range(2 * steps * len(workers)):
        _, decision = yield Recv(Applied, Answered, src=other)
        w = decision.worker
        if isinstance(decision, Applied):
            _, push = yield Recv(Push, src=w)
            yield from shard.apply(w, push)
        else:
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


def homework(problem, workers, steps, sgd, *, staleness=1):
    ws, ss = names(workers, 2)
    nodes = {w: Node(worker(i, ss, problem, steps), rank=i) for i, w in enumerate(ws)}
    first, second = (Shard(k, problem.x0[part], sgd) for k, part in enumerate(chunks(problem.x0.size, 2)))
    nodes[ss[0]] = Node(leader(first, ws, steps, staleness, ss[1]), role="server", rank=0)
    nodes[ss[1]] = Node(follower(second, ws, steps, ss[0]), role="server", rank=1)
    return nodes
