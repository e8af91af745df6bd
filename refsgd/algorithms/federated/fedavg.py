"""FedAvg: local SGD in which a server draws some of the clients for each round; with mu > 0, FedProx.

The server sends its model to m of n clients, drawn at random; they take H steps each, and it adds the mean of
their moves.  FedProx adds mu times the distance from the round's model to each gradient.  With a `rule`, the
mean of the moves is the direction of an optimiser of the server: FedAvgM, FedAdagrad, FedAdam and FedYogi,
together FedOpt.

Quick facts
-----------
synchronous: yes, every H steps, for the m of a round | centralised: yes | roles: n clients, one server |
messages per client and round that it takes part in: 1 down, 1 up | bytes per such round: M down, M up (M = 4
d) | staleness: 0 | clock gap: at most H - 1 while computing if m = n and all take H steps, otherwise
unbounded | momentum: local, kept between the client's rounds, and the server's if it has a rule |
aggregation: mean of the moves, weighted by the examples of the round | deterministic: yes, given the draws

Without a rule, mu and `partial`, and with m = n, it is local SGD through a server, and with H = 1 too, BSP.

What differs from the papers
----------------------------
The papers' E epochs are H steps here, and their share C of the clients is their number m.  The batches of a
round are those of its steps, also for clients that missed earlier rounds.  The last round may be shorter than
H.  FedProx's clients do what they can until a deadline; those of `partial` do as many steps as chance says.
FedOpt's defaults are as recalled.  Flower's FedAdam corrects averages for their start, and v starts at 0.

References
----------
McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017, arXiv:1602.05629, algorithm 1.
Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated optimization in heterogeneous networks", MLSys
2020, arXiv:1812.06127, algorithm 2: FedProx.  FedOpt: see `refsgd.algorithms.federated.fedopt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from refsgd.algorithms.averaging.local_sgd import check_period
from refsgd.algorithms.facts import Facts, Options, declare
from refsgd.algorithms.federated.clients import CLIENTS, Work, apply, ask, client, combine, draw, stop
from refsgd.algorithms.federated.fedopt import Name, Outer
from refsgd.algorithms.parts import Objective, Shard, deploy, some
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Program


def server(shard: Shard, clients: Sequence[str], steps: int, period: int, sampled: int,
           outer: Outer | None) -> Program[Array]:
    """Step in each round along the mean move of the clients that are drawn; returns the parameters, (d,)."""
    living, step = list(clients), outer.step if outer else combine
    if outer:
        shard.state = outer.start(shard.x)
    for t in range(0, steps, period):
        drawn = yield from draw(living, sampled)
        answers = yield from ask(drawn, Work(shard.x, shard.version, t, min(period, steps - t)), living)
        yield from apply(shard, answers, step, [trained.examples for _, trained in answers])
    yield from stop(living if steps else [])
    return shard.x


#: of rounds
ROUNDS = replace(CLIENTS, timeless=True, lost="its part in the round",
                 mean_of=lambda workers, options: some(workers, options["sampled"], "sampled"))


#: the rules that use an option of the server's
USED_BY = {"outer_lr": ("momentum", "adagrad", "adam", "yogi"), "beta2": ("adam", "yogi"),
           "outer_momentum": ("momentum", "adagrad", "adam", "yogi"), "tau": ("adagrad", "adam", "yogi")}


def needs(options: Options, workers: int) -> dict[str, str]:
    """What the server's rule does not use; and a client's first step is at the model of the round."""
    found = {option: f"rule {', '.join(rules[:-1])} or {rules[-1]}" for option, rules in USED_BY.items()
             if options["rule"] not in rules}
    return found | ({"mu": "period > 1", "partial": "period > 1"} if options["period"] == 1 else {})


def facts(options: Options) -> Facts:
    """The facts of rounds, which with one step of each client are BSP."""
    plain = options["rule"] == "sgd"
    return replace(ROUNDS, formula="fedavg", needs=needs, recursion=(
        "mean" if options["period"] == 1 and plain else
        "an update is a round of several steps, in which clients drift" if plain else
        "the server's optimiser has a state, which no recursion here follows"))


@declare(facts)
def fedavg(problem: Objective, workers: int, steps: int, sgd: SGD, *, period: int = 8,
           sampled: int | None = None, mu: float = 0.0, partial: bool = False, rule: Name = "sgd",
           outer_lr: float = 0.1, outer_momentum: float = 0.9, beta2: float = 0.99,
           tau: float = 1e-3) -> Deployment:
    """Deploy FedAvg, FedProx, or with a `rule` FedOpt.

    Parameters
    ----------
    mu : float
        FedProx: how strongly a client is pulled back to the model of the round, >= 0.
    partial : bool
        FedProx: whether each client takes 1 to H steps in a round, at random, all of which count.
    rule : {"sgd", "momentum", "adagrad", "adam", "yogi"}
        The server's: plain averaging, or the mean move as the direction of one of these.
    outer_lr : float
        Of the rule, > 0.
    outer_momentum : float
        In [0, 1): beta_1.
    beta2 : float
        In [0, 1): of v, the mean of the squares of moves.
    tau : float
        Added to the root of v, > 0; v starts at tau^2.
    """
    check_period(period, 1)
    if not 0 <= mu < float("inf"):
        raise ValueError(f"mu {mu}; expected a finite number >= 0")
    outer = Outer(rule, outer_lr, outer_momentum, beta2, tau)
    return deploy(problem, workers, steps, sgd, 1, False, lambda shard, clients: server(
        shard, clients, steps, period, some(len(clients), sampled, "sampled"),
        None if rule == "sgd" else outer),
                  lambda rank, servers: client(rank, servers[0], problem, sgd, steps, mu, partial))
