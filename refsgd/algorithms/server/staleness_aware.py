"""Staleness-aware asynchronous SGD: a stale gradient gets a smaller learning rate.

A gradient that is tau updates late belongs to a point that the model has left.  The server knows tau from the
version that the push names, and divides each gradient by it before n-softsync's averaging of c gradients.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n workers, K servers with a part each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | staleness: as softsync,
mean (n - 1)/c updates | clock gap: unbounded | momentum: at the server, of the divided gradients |
aggregation: mean of c divided gradients | deterministic: given the order of arrival

tau <= 1 everywhere is softsync; a constant tau is softsync with lr / tau.  The divisor is tau, not tau +
1: a gradient that missed one update keeps the full rate.  The rule `mishchenko` divides by tau / n
instead, so that a gradient keeps the full rate until it has missed n updates, one more than the mean
in ASP.

What differs from the papers
----------------------------
Each part counts its own tau.  Odena's rule also divides by a moving average s of the gradients' deviation,
so it needs a far smaller learning rate; s begins at 1.  His gates that save bandwidth are left out.

References
----------
Zhang, Gupta, Lian and Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016,
arXiv:1511.05950: the learning rate of each gradient, on top of n-softsync.
Odena, "Faster asynchronous SGD", arXiv:1601.04033, 2016: the rule `odena`.
Mishchenko, Bach, Even and Woodworth, "Asynchronous SGD beats minibatch SGD under arbitrary delays", NeurIPS
2022, arXiv:2206.07638: the rule `mishchenko`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from refsgd.algorithms.facts import SERVED, declare, one_of
from refsgd.algorithms.parts import Objective, Push, Shard, deploy
from refsgd.algorithms.server import bsp, softsync
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Program

Rule = Literal["zhang", "odena", "mishchenko"]
Moments = tuple[Array, Array, Array]  # moving averages of g, of g^2, and of their deviation


def divided(push: Push, version: int, moments: Moments, rule: Rule, workers: int) -> tuple[Push, Moments]:
    """The push with its gradient divided for an update at `version`; the moving averages after it."""
    g, late = push.grad, version - push.version
    tau = np.float32(max(1, late / workers if rule == "mishchenko" else late))
    if rule != "odena":  # the learning rate of this gradient is lr / tau
        return push._replace(grad=g / tau), moments
    keep, new = np.float32(0.9), np.float32(0.1)
    m1, m2 = keep * moments[0] + new * g, keep * moments[1] + new * g * g
    s = keep * moments[2] + new * np.sqrt(np.maximum(m2 - m1 * m1, 0) + np.float32(1e-8))
    return push._replace(grad=g / (s * tau)), (m1, m2, s)


def update(sgd: SGD, x: Array, state: tuple[Array, Moments], pushes: Sequence[Push], version: int,
           rule: Rule, workers: int) -> tuple[Array, tuple[Array, Moments]]:
    """One step with the mean of divided gradients, in the order given."""
    v, moments = state
    scaled = []
    for push in pushes:
        push, moments = divided(push, version, moments, rule, workers)
        scaled.append(push)
    x, v = bsp.update(sgd, x, v, scaled, version)
    return x, (v, moments)


def server(shard: Shard, workers: Sequence[str], pushes: int, size: int, rule: Rule) -> Program[Array]:
    """The server of softsync with this update; returns the shard's part."""
    shard.state = shard.state, (np.zeros_like(shard.x), np.zeros_like(shard.x), np.ones_like(shard.x))
    return (yield from softsync.server(shard, workers, pushes, size, update, rule, len(workers)))


@declare(SERVED, updates=softsync.updates, mean_of=softsync.mean_of, collects=True, formula="staleness_aware",
         recursion="the rate of each gradient depends on its staleness, which no recursion here follows")
def staleness_aware(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1,
                    rotated: bool = False, *, splitting: int | None = None,
                    rule: Rule = "zhang") -> Deployment:
    """Deploy staleness-aware SGD.

    Parameters
    ----------
    splitting : int, optional
        As for `softsync`, from 1 to n; by default n: every gradient is one step.
    rule : {"zhang", "odena", "mishchenko"}
    """
    one_of("rule", rule, Rule)
    return deploy(problem, workers, steps, sgd, servers, rotated, lambda shard, workers: server(
        shard, workers, steps * len(workers), softsync.mean_of(len(workers), {"splitting": splitting}), rule))
