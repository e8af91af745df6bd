"""n-softsync: asynchronous SGD whose server averages c gradients before it steps.

No worker waits for another, but the server collects c = floor(workers / splitting) gradients, of any workers,
and takes one step with their mean: between ASP and BSP.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n workers, K servers with a part each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | staleness: unbounded, mean
(n - 1)/c updates | clock gap: unbounded | momentum: at the server | aggregation: mean over the examples of c
gradients; a fast worker may give several of them | deterministic: given the order of arrival

splitting = n is ASP.  splitting = 1 is *not* BSP: there is no barrier; a push is answered before the update
to which it belongs, so staleness is not 0.

What differs from the paper
---------------------------
The paper's n, as in the name n-softsync, is our `splitting`; its lambda is our number of workers, n elsewhere
in this file.  Its rate, lr / splitting (about the mean staleness), is the caller's choice.  The gradients of
one update are added in worker order.  The last update takes the remaining gradients, perhaps fewer than c, so
every gradient is used once.

References
----------
Gupta, Zhang and Wang, "Model accuracy and runtime tradeoff in distributed deep learning: a systematic study",
ICDM 2016, arXiv:1509.04210: the protocols hardsync and n-softsync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from refsgd.algorithms.facts import SERVED, Options, declare
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy, some
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Program, RunEnded, Send


def server(shard: Shard, workers: Sequence[str], pushes: int, size: int,
           rule: Callable[..., Any] = bsp.update, *given: Any) -> Program[Array]:
    """Step with the mean of `size` gradients at a time, answer each push immediately; returns its part."""
    kept: list[tuple[str, Push]] = []
    for left in reversed(range(pushes)):
        w = None
        with suppress(RunEnded):  # after a death no worker sends any more: the last update takes the rest
            w, push = yield from shard.recv(Push)
            kept.append((w, push))
        last = w is None or not left
        if len(kept) == size or (last and kept):
            kept.sort(key=lambda pair: workers.index(pair[0]))
            yield from shard.update(kept, rule, [push for _, push in kept], shard.version, *given)
            kept = []
        if w is None:
            break
        yield Send(w, Model(shard.x, shard.version))
    return shard.x


def mean_of(workers: int, options: Options) -> int:
    """c = floor(workers / splitting), by default 1; raises ValueError if splitting is out of range."""
    return workers // some(workers, options["splitting"], "splitting")


def updates(workers: int, steps: int, options: Options) -> int:
    """Updates of c gradients, of which the last may have fewer."""
    return -(-workers * steps // mean_of(workers, options))


@declare(SERVED, updates=updates, mean_of=mean_of, collects=True, formula="softsync", recursion="pushes",
         lost="its gradient; at the end also those of a step that lacks gradients")
def softsync(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1,
             rotated: bool = False, *, splitting: int = 1) -> Deployment:
    """Deploy n-softsync.

    Parameters
    ----------
    splitting : int
        From 1 (a step for every `workers` gradients) to `workers` (a step for each gradient: ASP).
    """
    return deploy(problem, workers, steps, sgd, servers, rotated,
                  lambda shard, workers: server(shard, workers, steps * len(workers),
                                                mean_of(len(workers), {"splitting": splitting})))
