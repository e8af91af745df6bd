"""K-sync SGD: each update is the mean of the first K gradients at the current model; later ones are dropped.

Quick facts
-----------
synchronous: yes, with the K fastest | centralised: yes | roles: n workers, one server | messages per
worker and iteration: 1 up, 1 down | bytes per worker and iteration: M up, M down (M = 4 d), for dropped
gradients too | staleness: 0 for all applied gradients | clock gap: unbounded | momentum: at the server |
aggregation: mean over the examples of K gradients, at most one of each worker | deterministic: given which
K come first

These are synchronous SGD's backup workers, n - K of them.  There a worker that was late skips to the newest
step, and the run ends after a number of updates; here each worker computes a number of gradients, as in the
other methods of the family.

What differs from the paper
---------------------------
The paper cancels gradients that are no longer needed; here they are computed to their end and dropped.

References
----------
Dutta, Joshi, Ghosh, Dube and Nagpurkar, "Slow and stale gradients can win the race: error-runtime
trade-offs in distributed SGD", AISTATS 2018, arXiv:1803.01113.
"""

from __future__ import annotations

import math

from refsgd.algorithms.adapted import unless_adapted
from refsgd.algorithms.facts import declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.server.k_async import of_one_server
from refsgd.algorithms.server.one_server import ONE_SERVER, first_half
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Deployment


@declare(ONE_SERVER, formula="k_sync", recursion=unless_adapted("mean"))
def k_sync(problem: Objective, workers: int, steps: int, sgd: SGD, *,
           gradients: int | None = None, interval: float = math.inf) -> Deployment:
    """Deploy K-sync SGD.

    Parameters
    ----------
    gradients : int, optional
        K, the gradients of an update: from 1 to `workers` (BSP), by default half of them.
    interval : int or inf
        AdaSync, as in K-async.
    """
    return of_one_server(problem, workers, steps, sgd, first_half(workers, gradients), interval, fresh=True)
