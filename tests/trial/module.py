"""ASP whose server ignores a gradient that is older than the model's age allows.

A gradient counts if it has missed fewer than R updates, as in Ringmaster ASGD, but R grows with the updates that the
model has had: at first only young gradients count, later almost all.  So nobody has to know how noisy gradients are.

Quick facts
-----------
synchronous: no | centralised: yes | roles: n workers, K servers with a part each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d), for an ignored gradient too |
staleness: less than version^power + 1 | clock gap: unbounded | momentum: at the server, shared by all |
aggregation: each accepted push is applied alone | deterministic: given the order of arrival

Unequal batches: every push has the same weight, whatever its number of examples, as in the paper.

What differs from the paper
---------------------------
The paper has a constant R; the growth is an example of ours.  Each of K servers decides by its own version, so that
one part may accept what another ignores.

References
----------
Maranjyan, Tyurin and Richtarik, "Ringmaster ASGD: the first asynchronous SGD with optimal time complexity",
ICML 2025, PMLR 267, arXiv:2501.16168, algorithm 4.
"""

from __future__ import annotations

from contextlib import suppress

from refsgd.algorithms.facts import ONE_WORKER, SERVED, declare, depends
from refsgd.algorithms.parts import Model, Objective, Push, Shard, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Mark, Program, RunEnded, Send


def server(shard: Shard, pushes: int, power: float) -> Program[Array]:
    """Apply each gradient that is young for its model, and answer every sender; returns the shard's part."""
    with suppress(RunEnded):  # raised after a death, when no worker sends any more
        for _ in range(pushes):
            w, push = yield from shard.recv(Push)
            if shard.version - push.version < shard.version**power + 1:
                yield from shard.apply(w, push)
            else:
                yield Mark("drop", worker=w, t=push.version, reason="stale")
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


@declare(SERVED, updates=depends, mean_of=ONE_WORKER,
         no_formula="how many gradients are ignored depends on the order of arrival")
def growing(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
            power: float = 0.5) -> Deployment:
    """Deploy ASP with a growing threshold.

    Parameters
    ----------
    power : float
        >= 0: the threshold at version v is v^power + 1; with 1 nothing is ignored.
    """
    if power < 0:
        raise ValueError(f"power {power}; expected at least 0")
    return deploy(problem, workers, steps, sgd, servers, rotated,
                  lambda shard, workers: server(shard, len(workers) * steps, power))
