"""Asynchronous parallel SGD (ASP, async-SGD): no worker waits for another, gradients are stale on arrival.

A gradient was computed at an older version; the difference is its *staleness*, n - 1 on average, whatever the
workers' speeds.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n workers, K servers with a part each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | staleness: unbounded, mean
n - 1 | clock gap: unbounded | momentum: at the server, shared by all | aggregation: each push is applied
alone, n updates where BSP has one | deterministic: given the order of arrival

Unequal batches: every push has the same weight, whatever its number of examples, as in the papers.

What differs from the papers
----------------------------
Dean et al. push and fetch in separate steps (see downpour); here the answer to a push is the fetch, so every
worker reads right after its own update.  The server of Lian et al. sums M gradients before it steps; here M
is 1; see softsync for larger M.  Each part has its own version: a model from several servers can be torn.
The learning rate is not divided by n; this is the caller's choice.

References
----------
Dean et al., "Large scale distributed deep networks", NIPS 2012, section 4.1.
Lian et al., "Asynchronous parallel stochastic gradient for nonconvex optimization", NIPS 2015,
algorithm 1 (AsySG-con).
"""

from __future__ import annotations

from contextlib import suppress

from refsgd.algorithms.facts import ONE_WORKER, SERVED, declare, each_push, never
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Program, RunEnded, Send


def server(shard: Shard, pushes: int) -> Program[Array]:
    """Apply each of `pushes` gradients on arrival and answer its sender; returns the shard's part."""
    with suppress(RunEnded):  # raised after a death, when no worker sends any more
        for _ in range(pushes):
            w, push = yield from shard.recv(Push)
            yield from shard.apply(w, push)
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


@declare(SERVED, updates=each_push, mean_of=ONE_WORKER, formula="asp", gate=never, recursion="pushes")
def asp(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1,
        rotated: bool = False) -> Deployment:
    """Deploy ASP."""
    return deploy(problem, workers, steps, sgd, servers, rotated,
                  lambda shard, workers: server(shard, len(workers) * steps))
