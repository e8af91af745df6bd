"""DYNSGD: stale synchronous SGD in which the updates of one clock count as their mean so far.

For every clock the model contains the mean of the gradients that have arrived: the first counts in full, the
d-th takes a share 1/d and reduces the others to the same share.  Synchronisation is that of SSP.

Quick facts
-----------
synchronous: bounded | centralised: yes | roles: n workers, K servers with a part each | messages per worker
and iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | clock gap: at most s
started, s + 1 completed | staleness: at most (2 s + 1)(n - 1) updates | memory: a mean per unfinished clock,
at most s + 1 | momentum: at the server | aggregation: x = x0 - lr sum over clocks of the mean so far
(without momentum) | deterministic: given the order of arrival

Without momentum and weight decay, a clock that all n workers have pushed counts as in BSP, in any order of
arrival.  With momentum the velocity decays at every push, n times per clock, so the order matters.  CONSGD
gives each gradient 1/n from the start.

What differs from the paper
---------------------------
A clock is one mini-batch, where the paper's worker takes several local steps before it pushes their sum.
Gradients are weighted by examples, so 1/d for equal shares.  The schedule counts clocks.  Scaling each push
by r / (tau + 1), elsewhere also called DynSGD, is another algorithm.

References
----------
Jiang, Cui, Zhang and Yu, "Heterogeneity-aware distributed parameter servers", SIGMOD 2017,
doi:10.1145/3035918.3035933: the dynamic learning rate from the delay of each update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from refsgd.algorithms.facts import SERVED, declare
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy
from refsgd.algorithms.server import ssp_gate
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Died, Mark, Program, Send

Means = dict[int, Array]  # the mean gradient of each clock


def revise(sgd: SGD, x: Array, state: tuple[Array, Means], g: Array, share: float,
           c: int) -> tuple[Array, tuple[Array, Means]]:
    """Move the mean gradient of clock c towards g by `share`, and the parameters by that change."""
    v, means = state
    mean = means.get(c, np.zeros_like(x))
    change = x.dtype.type(share) * (g + np.float32(sgd.weight_decay) * x - mean)
    x, v = replace(sgd, weight_decay=0.0).step(x, v, change, c)
    return x, (v, {**means, c: mean + change})


def server(shard: Shard, workers: Sequence[str], steps: int, staleness: float) -> Program[Array]:
    """Keep x at the sum of the clocks' means; answer a worker within the bound, as SSP; returns its part."""
    clock, waiting = dict.fromkeys(workers, 0), set()  # gradients received from each living worker
    shard.state = shard.state, {}  # velocity; mean of each clock that some workers have pushed
    images: dict[int, int] = {}  # of each of these clocks
    while min(clock.values(), default=steps) < steps:
        w, message = yield from shard.recv(Push, Died)
        if isinstance(message, Died):
            clock.pop(w, None)  # the others no longer wait for it
        else:
            c = clock[w]
            images[c] = images.get(c, 0) + message.examples
            # 1/d for the d-th of equal shares
            share = message.examples / max(1, images[c])
            yield from shard.update([(w, message)], revise, message.grad, share, c)
            clock[w] += 1
            waiting.add(w)
        slowest = min(clock.values(), default=steps)
        v, means = shard.state
        shard.state = v, {c: m for c, m in means.items() if c >= slowest}
        images = {c: b for c, b in images.items() if c >= slowest}
        if clock.get(w, 0) > slowest + staleness:
            yield Mark("block", worker=w)
        ready = [w for w in clock if w in waiting and clock[w] <= slowest + staleness]
        for w in ready:
            waiting.remove(w)
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


@declare(SERVED, formula="ssp",
         only_sgd="it revises earlier updates, which is possible only if they are sums of gradients",
         lost="the gradient that it was computing; clocks still open average fewer gradients",
         recursion="it revises earlier updates, which no recursion here follows")
def dynsgd(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1,
           rotated: bool = False, *, staleness: float = 3) -> Deployment:
    """Deploy DYNSGD.

    Parameters
    ----------
    staleness : int or inf
        Slack s >= 0 in clocks; inf never blocks.
    """
    ssp_gate.check(staleness)
    return deploy(problem, workers, steps, sgd, servers, rotated,
                  lambda shard, workers: server(shard, workers, steps, staleness))
