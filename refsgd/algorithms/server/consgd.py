"""CONSGD: stale synchronous SGD whose server adds each update times 1/n, so that stragglers harm less.

With a constant global rate of 1/n the n updates of a clock move the model by their mean, where SSP adds each
in full.

Quick facts
-----------
synchronous: bounded | centralised: yes | roles: n workers, K servers with a part each | messages per worker
and iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | clock gap: at most s
started, s + 1 completed | staleness: at most (2 s + 1)(n - 1) updates | momentum: at the server |
aggregation: each push is applied alone, times 1/n | deterministic: given the order of arrival

It is SSP with the learning rate lr / n, where n counts the workers that are alive.  At staleness 0 the
updates of a clock sum to BSP's mean; with momentum they do so only in the long run, since the velocity decays
at every push.  Unequal batches: the rate is 1/n for all, as in the paper; DYNSGD weights by examples.

What differs from the paper
---------------------------
A clock is one mini-batch, where the paper's worker takes several local steps before it pushes their sum.
Workers send g and the server applies the rule, so that momentum can live there.

References
----------
Jiang, Cui, Zhang and Yu, "Heterogeneity-aware distributed parameter servers", SIGMOD 2017,
doi:10.1145/3035918.3035933: the constant learning rate on updates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from refsgd.algorithms.facts import SERVED, declare, each_push
from refsgd.algorithms.parts import Objective, Shard, deploy
from refsgd.algorithms.server import ssp_gate
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Deployment, Died, Program


@dataclass
class Averaging(Shard):
    """A part of the model whose rate is that of a worker divided by the number of workers that are left."""

    left: int = 1

    def recv(self, *kinds: type, src: str | None = None) -> Program[tuple[str, Any]]:
        """As `Shard.recv`; after a death the rate is divided by the number of the others."""
        w, message = yield from super().recv(*kinds, src=src)
        if isinstance(message, Died) and self.left > 1:
            self.left -= 1
            self.sgd = replace(self.sgd, lr=self.sgd.lr * (self.left + 1) / self.left)
        return w, message


@declare(SERVED, updates=each_push, formula="ssp",
         recursion="it is SSP at a worker's rate divided by their number")
def consgd(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1,
           rotated: bool = False, *, staleness: float = 3) -> Deployment:
    """Deploy CONSGD.

    Parameters
    ----------
    sgd : SGD
        Its learning rate is that of the workers; the servers' constant rate is 1/n.
    staleness : int or inf
        Slack s >= 0 in clocks; inf never blocks.
    """
    ssp_gate.check(staleness)
    together = replace(sgd, lr=sgd.lr / max(1, workers))
    return deploy(problem, workers, steps, together, servers, rotated,
                  lambda shard, workers: ssp_gate.server(
                      Averaging(shard.part, shard.x, shard.sgd, codec=shard.codec, left=len(workers)),
                      workers, steps, staleness))
