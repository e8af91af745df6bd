"""K-async SGD: each update is the mean of the first K gradients, of K different workers, however old.

K-async is the bridge between ASP, where each gradient is an update (K = 1), and BSP, where all are in one
(K = n).  A worker that has given its gradient waits until the update is made; the n - K others go on with
the model that they have.

One server does for the four methods of Dutta et al.: does a gradient count only at the current model
(`fresh`), and may a worker give several gradients of one update (`repeat`)?

================ ======= ======== ========================================================================
method           `fresh` `repeat`
================ ======= ======== ========================================================================
K-sync           yes     no       as backup workers, n - K of them
K-batch-sync     yes     yes      Rennala SGD
K-async          no      no       here
K-batch-async    no      yes      n-softsync with K = floor(n / splitting)
================ ======= ======== ========================================================================

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
server has the whole model: parts would have to agree on whom they keep waiting, see the page on own
algorithms.

References
----------
Dutta, Joshi, Ghosh, Dube and Nagpurkar, "Slow and stale gradients can win the race: error-runtime
trade-offs in distributed SGD", AISTATS 2018, arXiv:1803.01113.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from refsgd.algorithms.facts import SERVED, Options, declare, depends
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Died, Mark, Program, Send


def server(shard: Shard, workers: Sequence[str], steps: int, size: int, fresh: bool = False,
           repeat: bool = False) -> Program[Array]:
    """Step with the mean of `size` gradients at a time; returns the parameters, (d,)."""
    left = dict.fromkeys(workers, steps)  # gradients that each has still to give
    kept: list[tuple[str, Push]] = []  # gradients of the next update
    waiting: set[str] = set()  # workers without an answer
    while any(left.values()):
        w, message = yield from shard.recv(Push, Died)
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
            kept = []
        if repeat or not kept:
            for w in [w for w in workers if w in waiting]:
                yield Send(w, Model(shard.x, shard.version))
            waiting.clear()
    return shard.x


def first_half(workers: int, gradients: int | None) -> int:
    """K, by default half of the workers; raises ValueError if there are not as many."""
    size = (workers + 1) // 2 if gradients is None else gradients
    if not 1 <= size <= workers:
        raise ValueError(f"gradients {size} with {workers} workers; expected 1 to {workers}")
    return size


def mean_of(workers: int, options: Options) -> int:
    """K gradients in an update."""
    return first_half(workers, options["gradients"])


#: one server, which keeps gradients; how many updates there are depends on the end of the run
ONE_SERVER = replace(
    SERVED, given=(), takes=("compress", "feedback"), updates=depends, collects=True,
    because={"": "its server has the whole model: several parts would each keep gradients of other workers"})


@declare(ONE_SERVER, mean_of=mean_of, formula="k_async", recursion="waits",
         lost="the gradient that it was computing")
def k_async(problem: Objective, workers: int, steps: int, sgd: SGD, *,
            gradients: int | None = None) -> Deployment:
    """Deploy K-async SGD.

    Parameters
    ----------
    gradients : int, optional
        K, the gradients of an update: from 1 (ASP) to `workers` (BSP), by default half of them.
    """
    return deploy(problem, workers, steps, sgd, 1, False, lambda shard, workers: server(
        shard, workers, steps, first_half(len(workers), gradients)))
