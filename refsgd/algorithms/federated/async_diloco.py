"""Asynchronous DiLoCo: no rounds, a momentum that changes once in N moves, and fewer steps for slow clients.

A client hands its move to a server, which gives it the newest model at once.  With `vanilla` each move is an
outer step with Nesterov's momentum.  *Delayed Nesterov* applies each at once, but changes the velocity only
after N, by their mean.  *Dynamic local updates* (`dylu`) give a client steps in proportion to its speed.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n clients, one server | messages per job: 1 down, 1 up | bytes per
job: M down, M up (M = 4 d) | staleness: unbounded, mean n - 1 moves; with DyLU and fixed speeds n - 1 in the
end, if all numbers of steps are whole | clock gap: unbounded | momentum: inner one local and kept between
jobs, outer one at the server | aggregation: each move alone, at 1/N of the outer rate | deterministic: given
the order of arrival

Without outer momentum and `dylu` it is FedBuff with K = 1, constant weights and the rate outer_lr/N.  One
client with N = 1 is DiLoCo.  Clients in lockstep with N = n are *not* DiLoCo: each reads the model after its
own move, not after the last.

What differs from the paper
---------------------------
A program reads no clock: a client's speed is its number of steps of which the server has heard.  Each client
does the same number of steps, so that a run ends.  The paper's c is spread/N.  The inner rule is the run's,
not AdamW.  `vanilla` weights moves by 1/N; the authors' notebook has 1/sqrt(n), which is a larger outer rate.

References
----------
Liu et al., "Asynchronous local-SGD training for language modeling", arXiv:2401.09135; defaults as recalled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from refsgd.algorithms.averaging.local_sgd import check_period
from refsgd.algorithms.averaging.outer import check_outer
from refsgd.algorithms.facts import Options, declare, one_of
from refsgd.algorithms.federated import any_time
from refsgd.algorithms.federated.clients import Trained, client
from refsgd.algorithms.parts import Objective, Shard, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Program

Rule = Literal["delayed", "vanilla"]


def nesterov(x: Array, state: Any, models: Sequence[Trained], reads: Sequence[Array], _: Sequence[float],
             size: int, rate: float, momentum: float, spread: float) -> tuple[Array, Any]:
    """Apply one move; the velocity changes with every `size`-th, by the mean of the last."""
    (u, total, count), number = state, x.dtype.type
    move = models[0].x - reads[0]
    total, count, share = total + move, count + 1, spread
    if count == size:
        u = number(momentum) * u + total / number(size)
        total, count, share = np.zeros_like(x), 0, size - (size - 1) * spread  # all shares sum to `size`
    return x + number(rate) * (move + number(share * momentum) * u), (u, total, count)


def server(shard: Shard, clients: Sequence[str], steps: int, period: int, buffer: int | None, lr: float,
           momentum: float, spread: float, rule: Rule, dylu: bool) -> Program[Array]:
    """FedBuff's, with a step for each move of a client; returns the parameters, (d,)."""
    n = buffer or len(clients)
    step = partial(nesterov, size=n if rule == "delayed" else 1, rate=lr / n, momentum=momentum,
                   spread=spread)
    shard.state = np.zeros_like(shard.x), np.zeros_like(shard.x), 0  # velocity; moves that it lacks
    return (yield from any_time.server(shard, clients, steps, period, 1, len(clients), "constant", 1.0,
                                      step, any_time.paced if dylu else any_time.alike))


def needs(options: Options, workers: int) -> dict[str, str]:
    """Where all moves take the same step, or all jobs have one."""
    same = ("buffer > 1" if (options["buffer"] or workers) == 1 else
            "outer_momentum > 0" if not options["outer_momentum"] else "")
    spread = same or ("rule delayed" if options["rule"] == "vanilla" else "")
    found = {"rule": same, "spread": spread, "dylu": "period > 1" if options["period"] == 1 else ""}
    return {option: asked for option, asked in found.items() if asked}


@declare(any_time.ANY_TIME, mean_of="each client's move is applied alone", collects=False, needs=needs,
         lost="its job", formula="async_diloco")
def async_diloco(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8,
                 buffer: int | None = None, outer_lr: float = 0.7, outer_momentum: float = 0.9,
                 spread: float = 0.0, rule: Rule = "delayed", dylu: bool = False) -> Deployment:
    """Deploy asynchronous DiLoCo.

    Parameters
    ----------
    buffer : int, optional
        N, the moves after which the velocity changes, at least 1; by default as many as clients.
    outer_lr : float
        > 0, for N moves together.
    outer_momentum : float
        In [0, 1), Nesterov's.
    spread : float
        In [0, 1]: how evenly the N moves share a step along the velocity; 0: the last takes all of it.
    rule : {"delayed", "vanilla"}
        Whether the velocity changes with every N-th move, or with each.
    dylu : bool
        Whether a slow client's jobs have fewer than H steps.
    """
    check_period(period, 1)
    check_outer(outer_lr, outer_momentum)
    if buffer is not None and buffer < 1:
        raise ValueError(f"buffer {buffer}; expected at least 1")
    if not 0 <= spread <= 1:
        raise ValueError(f"spread {spread}; expected a number in [0, 1]")
    one_of("rule", rule, Rule)
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, clients: server(shard, clients, steps, period, buffer, outer_lr,
                                                outer_momentum, spread, rule, dylu),
                  lambda rank, servers: client(rank, servers[0], problem, sgd, steps))
