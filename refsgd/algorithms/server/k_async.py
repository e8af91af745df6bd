"""K-async SGD: each update is the mean of the first K gradients, of K different workers, however old.

It is the bridge between ASP, where each gradient is an update (K = 1), and BSP, where all are in one (K = n).
One server has the four methods of Dutta et al.  Does a gradient count only at the current model (`fresh`),
and may a worker give several gradients of one update (`repeat`)?  K-sync is fresh; K-batch-sync, which is
Rennala SGD, is both; K-async neither; K-batch-async, n-softsync with K = floor(n / splitting), repeats.

AdaSync raises K as the loss F falls, every `interval` updates: K <- ceil(K_0 sqrt(F_0 / F)).

Quick facts
-----------
synchronous: partly: K workers wait for each other | centralised: yes | roles: n workers, one server |
messages per worker and iteration: 1 up, 1 down | bytes per worker and iteration: M up, M down (M = 4 d) |
staleness: unbounded, mean (n - K)/K updates | clock gap: unbounded | momentum: at the server |
aggregation: mean over the examples of K gradients, at most one of each worker | deterministic: given the
order of arrival

What differs from the papers
----------------------------
The papers count time and cancel what an update no longer needs; here each computation is finished.  At the
end of a run, when fewer than K workers have a gradient left to give, an update takes what there is.  The
server has the whole model: parts would have to agree on whom they keep waiting.  AdaSync's rule is as
recalled; its F is of the workers' batches, ours of the training set, at no cost in simulated time.

References
----------
Dutta, Joshi, Ghosh, Dube and Nagpurkar, "Slow and stale gradients can win the race: error-runtime
trade-offs in distributed SGD", AISTATS 2018, arXiv:1803.01113.  AdaSync is in its sequel, "Slow and stale
gradients can win the race", JSAIT 2021, arXiv:2003.10579.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from refsgd.algorithms.adapted import Adapted, check_interval, unless_adapted
from refsgd.algorithms.facts import declare
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy
from refsgd.algorithms.server import bsp
from refsgd.algorithms.server.one_server import ONE_SERVER, first_half, worker
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Died, Mark, Program, Recv, Send


def server(shard: Shard, workers: Sequence[str], steps: int, adapted: Adapted, fresh: bool = False,
           repeat: bool = False) -> Program[Array]:
    """Step with the mean of an adapted number of gradients at a time; returns the parameters, (d,)."""
    size = adapted.number
    left = dict.fromkeys(workers, steps)  # gradients that each has still to give
    kept: list[tuple[str, Push]] = []  # gradients of the next update
    waiting: set[str] = set()  # workers without an answer
    while any(left.values()):
        w, message = yield Recv(Push, Died)
        if isinstance(message, Died):
            left[w] = 0
            waiting.discard(w)
        else:
            left[w] -= 1
            if fresh and message.version < shard.version:
                yield Mark("drop", worker=w, t=message.version, reason="stale")
                yield Send(w, Model(shard.x, shard.version))
            else:
                kept.append((w, message))
                waiting.add(w)
        more = any(left[v] and (repeat or v not in waiting) for v in workers)
        if len(kept) == size or (kept and not more):
            kept.sort(key=lambda pair: workers.index(pair[0]))  # not by arrival: sums are the same bits
            yield from shard.update(kept, bsp.update, [push for _, push in kept], shard.version)
            kept, size = [], (yield from adapted.at(shard.x))
        if repeat or not kept:
            for w in [w for w in workers if w in waiting]:
                yield Send(w, Model(shard.x, shard.version))
            waiting.clear()
    return shard.x


def larger(number: int, first: int, left: float) -> int:
    """K, where this share of the loss is left; above n all workers, unless one may give several."""
    return max(number, math.ceil(first / math.sqrt(left)))


def of_one_server(problem: Objective, workers: int, steps: int, sgd: SGD, size: int, interval: float,
                  fresh: bool = False, repeat: bool = False) -> Deployment:
    """The deployment of one of the four."""
    check_interval(interval)
    return deploy(problem, workers, steps, sgd, 1, False, lambda shard, names: server(
        shard, names, steps, Adapted(size, interval, larger, problem), fresh, repeat),
                  lambda rank, servers: worker(rank, servers[0], problem, steps))


@declare(ONE_SERVER, formula="k_async", recursion=unless_adapted("waits"))
def k_async(problem: Objective, workers: int, steps: int, sgd: SGD, *,
            gradients: int | None = None, interval: float = math.inf) -> Deployment:
    """Deploy K-async SGD.

    Parameters
    ----------
    gradients : int, optional
        K, the gradients of an update: from 1 (ASP) to `workers` (BSP), by default half of them.
    interval : int or inf
        AdaSync: updates after which K is raised if the loss has fallen, at least 1; inf: never.
    """
    return of_one_server(problem, workers, steps, sgd, first_half(workers, gradients), interval)
