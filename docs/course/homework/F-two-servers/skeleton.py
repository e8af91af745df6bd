"""Homework F: two servers that agree.

Each of two servers holds one half of the model.  Both run the server of SSP, each with its own clocks, so the
two halves of a model that a worker reads may contain different gradients.

Change the servers: in every schedule the two halves that a worker computes on contain the same gradients,
the model of gradient t contains the first t - staleness gradients of every worker, and no worker waits without
need.
"""

from refsgd.algorithms.parts import Model, Push, Shard, names, worker
from refsgd.collectives.parts import chunks
from refsgd.effects import Node, Recv, Send


def server(shard, workers, steps, staleness):
    """SSP's rule: answer a worker once it is at most `staleness` clocks ahead; returns a half of the parameters."""
    clock, waiting = dict.fromkeys(workers, 0), set()
    while min(clock.values()) < steps:
        w, push = yield Recv(Push)
        yield from shard.apply(w, push)
        clock[w] += 1
        waiting.add(w)
        for u in [u for u in workers if u in waiting and clock[u] <= min(clock.values()) + staleness]:
            waiting.remove(u)
            yield Send(u, Model(shard.x, shard.version))
    return shard.x


def homework(problem, workers, steps, sgd, *, staleness=1):
    ws, ss = names(workers, 2)
    nodes = {w: Node(worker(i, ss, problem, steps), rank=i) for i, w in enumerate(ws)}
    for k, part in enumerate(chunks(problem.x0.size, 2)):  # TODO: they do not agree
        nodes[ss[k]] = Node(server(Shard(k, problem.x0[part], sgd), ws, steps, staleness), role="server", rank=k)
    return nodes
