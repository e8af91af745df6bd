"""Ringleader ASGD: asynchronous, and yet no worker's data count more because it is fast.

ASP goes to a point where fast workers weigh more, which is wrong if workers have different data.  Here the
server steps with the mean of n means, one of each worker's gradients: fast workers add to their own mean.  In
each round every worker causes one update and gets one new model; until then it continues at the one it has.

Quick facts
-----------
synchronous: in rounds, without waiting | centralised: yes | roles: n workers, one server | messages per
worker and iteration: 1 up, 1 down | bytes per worker and iteration: M up, M down (M = 4 d), though the model
may be one that the worker has | staleness: at most 2 n - 2 | clock gap: unbounded | momentum: at the server |
aggregation: mean over the examples of each worker, then over workers, each with weight 1/n | deterministic:
given the order of arrival

The n updates of a round apply about the same mean, so the rate is 1/n of BSP's.  A gradient counts in every
update until its round ends; marks name it at the first.

What differs from the paper
---------------------------
The paper's server tells a worker to continue; ours sends it the model that it has.  A run has n steps
gradients in all, and drops those that come to no update.  Those of a worker that dies count until their round
ends; later rounds have fewer updates.  The gradients of one worker are averaged by their examples.

References
----------
Maranjyan and Richtarik, "Ringleader ASGD: the first asynchronous SGD with optimal time complexity under data
heterogeneity", ICLR 2026, arXiv:2509.22860.
"""

from __future__ import annotations

from collections.abc import Sequence

from refsgd.algorithms.facts import declare
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy
from refsgd.algorithms.server import bsp
from refsgd.algorithms.server.one_server import LAST, ONE_SERVER, worker
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Died, Mark, Program, Recv, Send


def keep(kept: dict[str, Push], w: str, push: Push) -> None:
    """Add to the gradients that a worker has computed at one model, as their mean."""
    if old := kept.get(w):
        push = Push(bsp.mean(old, push), old.examples + push.examples, push.version, (*(old.of or (w,)), w))
    kept[w] = push


def server(shard: Shard, workers: Sequence[str], gradients: int) -> Program[Array]:
    """Take `gradients` in all, in rounds of an update for each worker; returns the parameters, (d,)."""
    living, left = set(workers), gradients - len(workers)
    computing = set(workers) if gradients else set[str]()
    given = dict.fromkeys(workers, Model(shard.x, shard.version))
    table, early = dict[str, Push](), dict[str, Push]()  # of each worker, for this round and for the next
    done = set[str]()  # workers that have caused their update of this round
    while computing:
        w, message = yield Recv(Push, Died)
        if isinstance(message, Died):
            living.discard(w)
            computing.discard(w)
        else:
            keep(early if w in done else table, w, message)
            if w not in done and living <= table.keys():
                equal = [table[v]._replace(examples=1) for v in workers if v in table]
                yield from shard.update([(w, message)] if done else table.items(), bsp.update, equal,
                                        shard.version)
                given[w] = Model(shard.x, shard.version)
                done.add(w)
            if left > 0:
                left -= 1
                yield Send(w, given[w])
            else:
                computing.discard(w)
        if living <= done:
            table, early, done = early, {}, set()
    for v, push in (early if done else table).items():  # of a round that has not come to an update
        for _ in push.of or (v,):
            yield Mark("drop", worker=v, t=push.version, reason="end")
    for w in [w for w in workers if w in living and gradients]:
        yield Send(w, Model(shard.x, LAST))
    return shard.x


@declare(ONE_SERVER, compared=False, formula="ringleader",
         mean_of="a round has an update for each worker, which already multiplies the rate",
         recursion="its updates apply gradients again that earlier ones have applied")
def ringleader(problem: Objective, workers: int, steps: int, sgd: SGD) -> Deployment:
    """Deploy Ringleader ASGD.

    Parameters
    ----------
    steps : int
        Gradients of a worker on average; fast workers compute more of them.
    """
    return deploy(problem, workers, steps, sgd, 1, False,
                  lambda shard, workers: server(shard, workers, len(workers) * steps),
                  lambda rank, servers: worker(rank, servers[0], problem, workers * steps))
