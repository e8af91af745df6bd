"""FedAvg: local SGD in which a server draws some of the clients for each round; with mu > 0, FedProx.

In each round the server sends its model to m of n clients, drawn at random; they take H steps each, and the
server adds the mean of their moves.  Where clients have different data, H steps drift towards each client's
own optimum, and the fixed point is not the optimum of all.  FedProx holds them back: it adds mu times the
distance from the round's model to each gradient.

Quick facts
-----------
synchronous: yes, every H steps, for the m of a round | centralised: yes | roles: n clients, one server |
messages per client and round that it takes part in: 1 down, 1 up | bytes per such round: M down, M up (M = 4
d) | staleness: 0 | clock gap: at most H - 1 while computing if m = n, otherwise unbounded | momentum: local,
kept between the client's rounds | aggregation: mean of the clients' moves, weighted by the examples of the
round | deterministic: yes, given the draws

With m = n it is local SGD through a server, and with H = 1 too, BSP.

What differs from the papers
----------------------------
The papers' E epochs are H steps here, and their share C of the clients is their number m.  The batches of a
round are those of its steps, also for clients that missed earlier rounds.  The last round may be shorter than
H.  Clients of FedProx may also do unequal amounts of work; here all do the same.

References
----------
McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017, arXiv:1602.05629, algorithm 1.
Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated optimization in heterogeneous networks", MLSys
2020, arXiv:1812.06127, algorithm 2: FedProx.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from refsgd.algorithms.averaging.local_sgd import check_period
from refsgd.algorithms.facts import Facts, Options, declare
from refsgd.algorithms.federated.clients import CLIENTS, Work, apply, ask, client, combine, draw, some, stop
from refsgd.algorithms.parts import Objective, Shard, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Program


def server(shard: Shard, clients: Sequence[str], steps: int, period: int, sampled: int) -> Program[Array]:
    """Move in each round by the mean move of the clients that are drawn; returns the parameters, (d,)."""
    living = list(clients)
    for t in range(0, steps, period):
        drawn = yield from draw(living, sampled)
        answers = yield from ask(drawn, Work(shard.x, shard.version, t, min(period, steps - t)), living)
        yield from apply(shard, answers, combine, [trained.examples for _, trained in answers])
    yield from stop(living if steps else [])
    return shard.x


#: of rounds
ROUNDS = replace(CLIENTS, timeless=True, lost="its part in the round",
                 mean_of=lambda workers, options: some(workers, options["sampled"], "sampled"))


def facts(options: Options) -> Facts:
    """The facts of rounds, which with one step of each client are BSP."""
    return replace(ROUNDS, formula="fedavg", recursion="mean" if options["period"] == 1 else
                   "an update is a round of several steps, in which clients drift")


@declare(facts)
def fedavg(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8,
           sampled: int | None = None, mu: float = 0.0) -> Deployment:
    """Deploy FedAvg, or FedProx.

    Parameters
    ----------
    steps : int
        Of a client that takes part in every round.
    period : int
        H, steps of a round, at least 1.
    sampled : int, optional
        m, the clients of a round, by default all.
    mu : float
        FedProx: how strongly a client is pulled back to the model of the round, >= 0.
    """
    check_period(period, 1)
    if not 0 <= mu < float("inf"):
        raise ValueError(f"mu {mu}; expected a finite number >= 0")
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, clients: server(shard, clients, steps, period,
                                                some(len(clients), sampled, "sampled")),
                  lambda rank, servers: client(rank, servers[0], problem, sgd, steps, mu))
