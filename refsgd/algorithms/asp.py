"""Asynchronous parallel SGD (ASP, async-SGD): nobody waits for anybody, gradients are old when they arrive.

Worker i::

    g = gradient at x on its share
    push g to the server;  take the model that answers this push

Server, on each push::

    x = update(x, g);  version = version + 1
    answer with (x, version)

The gradient was computed at an older version; the difference is its *staleness*, n - 1 in the mean at any
speeds of the workers.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n workers, K servers with a slice each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | staleness: unbounded, mean
n - 1 | clock gap: unbounded | momentum: at the server, shared by all | aggregation: each push is applied
alone, n updates where BSP has one | deterministic: given the order of arrival

What differs from the papers
----------------------------
Dean et al. push and fetch in separate steps (see downpour); here the answer to a push is the fetch, so every worker
reads right after its own update.  The server of Lian et al. sums M gradients before it steps; here M is 1, see
softsync for more.  Slices have versions of their own: a model of several servers can be torn.  The learning rate is
not divided by n; that is the caller's choice.

References
----------
Dean et al., "Large scale distributed deep networks", NIPS 2012, section 4.1.
Lian et al., "Asynchronous parallel stochastic gradient for nonconvex optimization", NIPS 2015,
algorithm 1 (AsySG-con).
"""

from __future__ import annotations

from contextlib import suppress

from refsgd.algorithms.parameter_server import Model, Objective, Push, names, slices, worker
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, RunEnded, Send


def server(k: int, x: Array, pushes: int, sgd: SGD) -> Program[Array]:
    """Apply each of `pushes` gradients to slice k as it comes and answer its sender; returns the slice."""
    v = sgd.start(x)
    with suppress(RunEnded):  # raised after a death, when nobody sends any more
        for version in range(pushes):
            w, push = yield Recv(Push)
            x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
            yield Mark("update", slice=k, version=version, reads=((w, push.version),), x=x)
            yield Send(w, Model(x, version + 1))
    return x


def asp(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False) -> Deployment:
    """Deploy ASP.

    Parameters
    ----------
    problem : Objective
    workers, servers : int
        n and K, at least 1.
    steps : int
        Iterations of each worker, >= 0.
    sgd : SGD
    rotated : bool
        Worker i begins with server i: where every worker's node has a server.
    """
    ws, ss = names(workers, servers)
    deployment = {w: Node(worker(i, ss, problem, steps, rotated)) for i, w in enumerate(ws)}
    for k, (s, cut) in enumerate(zip(ss, slices(problem.x0.size, servers), strict=True)):
        deployment[s] = Node(server(k, problem.x0[cut], steps * workers, sgd))
    return deployment
