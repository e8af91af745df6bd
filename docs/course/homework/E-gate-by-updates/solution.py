"""Homework E: a gate by updates instead of clocks, a solution.

SSP bounds how many clocks a worker is ahead.  This server bounds the staleness of every gradient instead:
between the update after which a worker reads the model and the update that applies the worker's gradient, at
most `bound` other updates are made, in every schedule.  (`bound` is at least n - 1.)

Write `server`.  Answer a worker as early as this promise allows.  All workers begin with the model of version
0 without asking.
"""

from refsgd.algorithms.parts import Model, Push, names, worker
from refsgd.effects import Compute, Mark, Node, Recv, Send


def server(workers, x, steps, sgd, bound):
    """Returns the parameters when every worker has sent `steps` gradients."""
    v, version, left = sgd.start(x), 0, dict.fromkeys(workers, steps)
    computing, waiting = dict.fromkeys(workers, 0), []  # version read by each worker that computes
    while any(left.values()):
        w, push = yield Recv(Push)
        x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
        yield Mark("update", part=0, version=version, reads=((w, push.version),), x=x)
        version += 1
        left[w] -= 1
        del computing[w]
        waiting.append(w)
        for u in list(waiting):
            oldest = min(computing.values(), default=version)
            # all others that compute may push before the oldest does
            if not left[u] or version - oldest + len(computing) <= bound:
                waiting.remove(u)
                if left[u]:
                    computing[u] = version
                yield Send(u, Model(x, version))
    return x


def homework(problem, workers, steps, sgd, *, bound=2):
    ws, ss = names(workers, 1)
    nodes = {w: Node(worker(i, ss, problem, steps), rank=i) for i, w in enumerate(ws)}
    return nodes | {ss[0]: Node(server(ws, problem.x0, steps, sgd, bound), role="server")}
