"""Ringmaster ASGD: ASP that ignores a gradient whose delay has reached a threshold: optimal in seconds.

A gradient of delay R or more would move the model by an old direction; without it the rate may be as large
as that of a bounded delay, and the fastest workers decide the pace.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n workers, K servers with a part each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d), for an ignored gradient
too | staleness: at most R - 1 | clock gap: unbounded | momentum: at the server, shared by all |
aggregation: each accepted push is applied alone | deterministic: given the order of arrival

Unequal batches: every push has the same weight, whatever its number of examples, as in the paper.

What differs from the paper
---------------------------
This is its variant without calculation stops: an ignored gradient was computed to its end.  Each of K
servers decides by its own version, so that one part may accept what another ignores.

References
----------
Maranjyan, Tyurin and Richtarik, "Ringmaster ASGD: the first asynchronous SGD with optimal time complexity",
ICML 2025, PMLR 267, arXiv:2501.16168, algorithm 4.
"""

from __future__ import annotations

import math
from contextlib import suppress

from refsgd.algorithms.adapted import check_interval
from refsgd.algorithms.facts import ONE_WORKER, SERVED, declare, depends
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Mark, Program, RunEnded, Send


def server(shard: Shard, pushes: int, threshold: float) -> Program[Array]:
    """Apply each gradient of a delay below the threshold, answer every sender; returns the shard's part."""
    with suppress(RunEnded):  # raised after a death, when no worker sends any more
        for _ in range(pushes):
            w, push = yield from shard.recv(Push)
            if shard.version - push.version < threshold:
                yield from shard.apply(w, push)
            else:
                yield Mark("drop", worker=w, t=push.version, reason="stale")
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


@declare(SERVED, updates=depends, mean_of=ONE_WORKER, formula="ringmaster",
         recursion=lambda options: "pushes" if options["threshold"] == math.inf else "waits")
def ringmaster(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1,
               rotated: bool = False, *, threshold: float | None = None) -> Deployment:
    """Deploy Ringmaster ASGD.

    Parameters
    ----------
    threshold : int or inf, optional
        R >= 1: the delay at which a gradient is ignored, by default the number of workers.
    """
    if threshold is not None:
        check_interval(threshold, "threshold")
    return deploy(problem, workers, steps, sgd, servers, rotated, lambda shard, workers: server(
        shard, len(workers) * steps, len(workers) if threshold is None else threshold))
