"""Rennala SGD: each update is the mean of the first B gradients at the current model, of whichever workers.

A worker is answered at once, with the model on which it is already, so a fast one may give several gradients
of an update and a slow one none.  It is the K-batch-sync of Dutta et al.

Quick facts
-----------
synchronous: yes, without a barrier | centralised: yes | roles: n workers, one server | messages per worker
and iteration: 1 up, 1 down | bytes per worker and iteration: M up, M down (M = 4 d), for dropped gradients
too | staleness: 0 for all applied gradients | clock gap: unbounded | momentum: at the server |
aggregation: mean over the examples of B gradients; a fast worker may give several of them | deterministic:
given the order of arrival

B = n is *not* BSP: a fast worker counts twice where a slow one is late.

What differs from the paper
---------------------------
The paper stops the gradients of an older model when an update is made; here they are computed to their end
and dropped, for n - 1 gradients of every n - 1 + B at most.  A worker that is answered gets the model that
it has, so bytes are those of ASP.

References
----------
Tyurin and Richtarik, "Optimal time complexities of parallel stochastic optimization methods under a fixed
computation model", NeurIPS 2023, arXiv:2305.12387, method 4.
"""

from __future__ import annotations

import math

from refsgd.algorithms.adapted import unless_adapted
from refsgd.algorithms.facts import Options, declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.server.k_async import of_one_server
from refsgd.algorithms.server.one_server import ONE_SERVER
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Deployment


def batch(workers: int, options: Options) -> int:
    """B, by default the number of workers; raises ValueError if it is not at least 1."""
    size = workers if options["gradients"] is None else options["gradients"]
    if size < 1 <= workers:
        raise ValueError(f"gradients {size}; expected at least 1")
    return int(size)


@declare(ONE_SERVER, mean_of=batch, formula="rennala", recursion=unless_adapted("mean"))
def rennala(problem: Objective, workers: int, steps: int, sgd: SGD, *,
            gradients: int | None = None, interval: float = math.inf) -> Deployment:
    """Deploy Rennala SGD.

    Parameters
    ----------
    gradients : int, optional
        B >= 1, the gradients of an update, by default the number of workers.
    interval : int or inf
        AdaSync, as in K-async, also beyond the number of workers.
    """
    return of_one_server(problem, workers, steps, sgd, batch(workers, {"gradients": gradients}), interval,
                         fresh=True, repeat=True)
