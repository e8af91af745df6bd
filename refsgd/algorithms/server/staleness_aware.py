"""Staleness-aware asynchronous SGD: an old gradient gets a smaller learning rate.

A gradient that is tau updates late points along a slope that has been left.  The server knows tau, from the version
that the push names, and divides each gradient by it, on top of n-softsync's averaging of c gradients.

Server, on each push of g, computed at version u::

    keep g;  once c are kept:
        for each of them:
            tau = version - u
            zhang:  g = g / max(1, tau)
            odena:  m1 = 0.9 m1 + 0.1 g;  m2 = 0.9 m2 + 0.1 g^2           # entry by entry
                    s = 0.9 s + 0.1 sqrt(m2 - m1^2 + eps);  g = g / (s max(1, tau))
        x = update(x, mean of the kept);  version = version + 1;  keep none
    answer with (x, version)

Quick facts
-----------
synchronous: no | centralised: yes | roles: n workers, K servers with a slice each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | staleness: as softsync, mean
(n - 1)/c updates | clock gap: unbounded | momentum: at the server, of the divided gradients | aggregation: mean of c
divided gradients | deterministic: given the order of arrival

tau <= 1 everywhere is softsync; a constant tau is softsync with lr / tau.  The divisor is tau, not tau + 1: a gradient
that missed one update keeps the full rate.

What differs from the papers
----------------------------
Each slice counts its own tau.  Odena's rule also divides by a moving average s of the gradients' deviation, so it
wants a far smaller learning rate; s begins at 1.  His gates that save bandwidth are left out.

References
----------
Zhang, Gupta, Lian and Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016,
arXiv:1511.05950: the learning rate of each gradient, on top of n-softsync.
Odena, "Faster asynchronous SGD", arXiv:1601.04033, 2016: the rule `odena`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import numpy as np

from refsgd.algorithms.parts import Model, Objective, Push, deploy, worker
from refsgd.algorithms.server import bsp
from refsgd.algorithms.server.softsync import gradients_per_update
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, RunEnded, Send

Rule = Literal["zhang", "odena"]
Moments = tuple[Array, Array, Array]  # moving averages of g, of g^2, and of their deviation


def divided(push: Push, version: int, moments: Moments, rule: Rule) -> tuple[Push, Moments]:
    """The push with its gradient divided for an update at `version`; the moving averages after it."""
    g, tau = push.grad, np.float32(max(1, version - push.version))
    if rule == "zhang":
        return push._replace(grad=g / tau), moments
    keep, new = np.float32(0.9), np.float32(0.1)
    m1, m2 = keep * moments[0] + new * g, keep * moments[1] + new * g * g
    s = keep * moments[2] + new * np.sqrt(np.maximum(m2 - m1 * m1, 0) + np.float32(1e-8))
    return push._replace(grad=g / (s * tau)), (m1, m2, s)


def update(sgd: SGD, x: Array, v: Array, moments: Moments, pushes: Sequence[Push], version: int,
           rule: Rule) -> tuple[Array, Array, Moments]:
    """One step with the mean of divided gradients, in the order given."""
    scaled = []
    for push in pushes:
        push, moments = divided(push, version, moments, rule)
        scaled.append(push)
    return (*bsp.update(sgd, x, v, scaled, version, "mean"), moments)


def server(k: int, workers: Sequence[str], x: Array, pushes: int, sgd: SGD, size: int, rule: Rule) -> Program[Array]:
    """Step slice k with the mean of `size` divided gradients at a time; returns the slice."""
    v, version, kept = sgd.start(x), 0, list[tuple[str, Push]]()
    moments = np.zeros_like(x), np.zeros_like(x), np.ones_like(x)
    for left in reversed(range(pushes)):
        w = None
        with suppress(RunEnded):  # raised after a death, when nobody sends any more: the last update takes what is left
            w, push = yield Recv(Push)
            kept.append((w, push))
        last = w is None or not left
        if len(kept) == size or (last and kept):
            kept.sort(key=lambda pair: workers.index(pair[0]))
            x, v, moments = yield Compute(update, sgd, x, v, moments, [push for _, push in kept], version, rule, kind="update")
            yield Mark("update", part=k, version=version, reads=tuple((w, push.version) for w, push in kept), x=x)
            version, kept = version + 1, []
        if w is None:
            break
        yield Send(w, Model(x, version))
    return x


def staleness_aware(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
                    splitting: int | None = None, rule: Rule = "zhang") -> Deployment:
    """Deploy staleness-aware SGD.

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
    splitting : int, optional
        As of `softsync`, from 1 to n; by default n: every gradient is a step of its own.
    rule : {"zhang", "odena"}
    """
    if rule not in ("zhang", "odena"):
        raise ValueError(f"rule {rule!r}; expected zhang or odena")
    return deploy(problem, workers, servers, sgd,
                  lambda rank, servers: worker(rank, servers, problem, steps, rotated),
                  lambda shard, workers: server(shard.part, workers, shard.x, steps * len(workers), sgd,
                                                gradients_per_update(len(workers), splitting), rule))
