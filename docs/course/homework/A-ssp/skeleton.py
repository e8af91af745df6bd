"""Homework A: the server of SSP.

Write `server`.  It receives `Push(grad, examples, version)` from its workers, applies each gradient as it
arrives, and answers each push with one `Model(x, version)`, where `version` counts the updates so far.

A worker's clock is the number of its gradients that the server has applied.  Answer a worker as soon as its
clock is at most `staleness` ahead of the slowest worker's clock, and not before.

Try it: refsgd check homework.py:homework --as ssp
"""

from refsgd.algorithms.parts import names, worker
from refsgd.effects import Mark, Node


def server(workers, x, steps, sgd, staleness):
    """Returns the parameters when every worker has sent `steps` gradients."""
    # TODO.  The velocity:  v = sgd.start(x)
    # An update is:        x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
    # Report it:            yield Mark("update", part=0, version=version, reads=((w, push.version),), x=x)
    # Holding w back may be marked, too, for `u block` of `refsgd step`:  yield Mark("block", worker=w)
    yield Mark("todo")
    return x


def homework(problem, workers, steps, sgd, *, staleness=1):
    ws, ss = names(workers, 1)
    nodes = {w: Node(worker(i, ss, problem, steps), rank=i) for i, w in enumerate(ws)}
    return nodes | {ss[0]: Node(server(ws, problem.x0, steps, sgd, staleness), role="server")}
