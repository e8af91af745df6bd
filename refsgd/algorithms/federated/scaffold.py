"""SCAFFOLD: FedAvg whose clients correct each gradient, so that they do not drift.

Each client remembers its own mean gradient c_i, the server the mean c of all c_i.  A client steps along
g - c_i + c, so that the fixed point is the optimum for every H.

Quick facts
-----------
synchronous: yes, every H steps, for the m of a round | centralised: yes | roles: n clients, one server |
messages per client and round that it takes part in: 1 down, 1 up | bytes per such round: 2 M down, 2 M up (M
= 4 d), twice FedAvg's | staleness: 0, but c_i is from the client's last round | clock gap: at most H - 1
while computing if m = n, otherwise unbounded | momentum: local, kept between the client's rounds |
aggregation: plain mean of the clients' moves, whatever their examples | deterministic: yes, given the draws

With m = n, H = 1 and equal shares it is BSP, up to rounding.

What differs from the paper
---------------------------
Option II computes c_i from the move, c_i - c + (x - y)/(H lr), which for plain SGD at a constant rate is the
mean of the gradients that the client has taken on its way.  Here it is that mean, with any rate and with
momentum, where the formula is no mean gradient.  The server's rate is 1.

References
----------
Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic controlled averaging for federated
learning", ICML 2020, arXiv:1910.06378, algorithm 1, option II.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refsgd.algorithms.averaging.local_sgd import check_period
from refsgd.algorithms.facts import declare
from refsgd.algorithms.federated.clients import Stop, Trained, Work, apply, ask, combine, draw, stop
from refsgd.algorithms.federated.fedavg import ROUNDS
from refsgd.algorithms.parts import Objective, Shard, deploy, some
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, Send


def client(rank: int, server: str, problem: Objective, sgd: SGD, steps: int) -> Program[Array]:
    """Train with corrected gradients until there is no more work; returns the last model, (d,)."""
    x, v, own = problem.x0, sgd.start(problem.x0), np.zeros_like(problem.x0)
    while steps:  # else there is no message at all
        _, job = yield Recv(Work, Stop, src=server)
        if isinstance(job, Stop):
            break
        x, shift, total, examples = job.x, job.control - own, np.zeros_like(own), 0
        for t in range(job.t, job.t + job.steps):
            g: Array = yield Compute(problem.gradient, x, rank, t)
            x, v = yield Compute(sgd.step, x, v, g + shift, t, kind="update")
            total, examples = total + g, examples + problem.images(rank, t)
            yield Mark("clock", t=t)
        mean = total / np.float32(job.steps)
        yield Send(server, Trained(x, examples, job.version, mean - own))
        own = mean
    return x


def server(shard: Shard, clients: Sequence[str], steps: int, period: int, sampled: int) -> Program[Array]:
    """As FedAvg's, and keep the mean of all clients' mean gradients; returns the parameters, (d,)."""
    living, control = list(clients), np.zeros_like(shard.x)
    for t in range(0, steps, period):
        drawn = yield from draw(living, sampled)
        job = Work(shard.x, shard.version, t, min(period, steps - t), control)
        answers = yield from ask(drawn, job, living)
        yield from apply(shard, answers, combine, [1] * len(answers))
        for _, trained in answers:
            control = control + trained.control / np.float32(len(clients))
    yield from stop(living if steps else [])
    return shard.x


@declare(ROUNDS, formula="scaffold", only_sgd="its corrections are sums of gradients",
         recursion="corrections are gradients of the round before: only by running it")
def scaffold(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8,
             sampled: int | None = None) -> Deployment:
    """Deploy SCAFFOLD."""
    check_period(period, 1)
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, clients: server(shard, clients, steps, period,
                                                some(len(clients), sampled, "sampled")),
                  lambda rank, servers: client(rank, servers[0], problem, sgd, steps))
