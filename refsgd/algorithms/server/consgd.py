"""CONSGD: stale synchronous SGD whose server adds each update times 1/n, so that stragglers harm less.

SSP adds the updates of all workers in full: n of them move the model n times as far as one, and a fast worker's
run ahead moves it alone.  A constant global rate of 1/n makes the n updates of a clock weigh as much as their mean.

Worker i, clock c::

    g = gradient at x on its share
    push u = -lr g to the server;  wait for the new x

Server, on push of u from w::

    x = x + u / n;  clock[w] = clock[w] + 1
    answer every waiting w with clock[w] <= min(clock) + staleness

Quick facts
-----------
synchronous: bounded | centralised: yes | roles: n workers, K servers with a slice each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | clock gap: at most s started,
s + 1 completed | staleness: at most (2 s + 1)(n - 1) updates | momentum: at the server | aggregation: each push is
applied alone, times 1/n | deterministic: given the order of arrival

It is SSP with the learning rate lr / n, and written so.  At staleness 0 the updates of a clock sum to BSP's mean; with
momentum they do so in the long run only, since the velocity decays at every push.

What differs from the paper
---------------------------
A clock is one mini-batch, where the paper's worker takes several local steps before it pushes their sum.  Workers
send g and the server applies the rule, so that momentum can live there.

References
----------
Jiang, Cui, Zhang and Yu, "Heterogeneity-aware distributed parameter servers", SIGMOD 2017,
doi:10.1145/3035918.3035933: the constant learning rate on updates.
"""

from __future__ import annotations

from dataclasses import replace

from refsgd.algorithms.parts import Objective
from refsgd.algorithms.server import ssp
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Deployment


def consgd(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
           staleness: float = 3) -> Deployment:
    """Deploy CONSGD.

    Parameters
    ----------
    problem : Objective
    workers, servers : int
        n and K, at least 1.
    steps : int
        Iterations (clocks) of each worker, >= 0.
    sgd : SGD
        Its learning rate is the workers'; the servers' constant rate is 1/n.
    rotated : bool
        Worker i begins with server i: where every worker's node has a server.
    staleness : int or inf
        Slack s >= 0 in clocks; inf never blocks.
    """
    together = replace(sgd, lr=sgd.lr / max(1, workers))
    return ssp.ssp(problem, workers, steps, together, servers, rotated, staleness=staleness)
