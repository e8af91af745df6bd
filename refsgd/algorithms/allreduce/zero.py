"""ZeRO: data-parallel peers that divide among themselves what each would otherwise hold whole.

Every peer computes a gradient, but owns one n-th of the vector, its shard: it alone sums and updates that
part.  Stage 1 divides the optimiser's state, 2 gradients too, 3 parameters too.  Peer i, step t::

    x = all-gather of the shards                  # stage 3: of one layer, before each pass through it
    g_i = gradient at x on its share of b_i images
    g = reduce-scatter of b_i g_i, / sum_i b_i    # stages 2, 3: of a layer, as soon as it is computed
    shard, v = update(shard, v, g)                # one n-th of the parameters, of the velocity, of the sum

A shard is a chunk of the ring of all-reduce SGD, whose sections in each layer are summed in the ring's order:
all stages take the steps of ``allreduce --collective ring``, bit for bit.

Quick facts
-----------
synchronous: yes | centralised: no | roles: n peers, each with a shard | messages: n-1 per layer and shard it
meets | bytes: 2 (n-1)/n M out of each peer, in stage 3 3 (n-1)/n M (M = 4 d) | memory: M + M + s M/n; M +
(1+s) M/n; (2+s) M/n and a layer, for s vectors of state | staleness: 0 | clock gap: 0 while computing |
momentum: in shards | aggregation: mean over images | deterministic: yes

What differs from the paper
---------------------------
By default SGD (s = 1 with momentum, else 0) instead of Adam (s = 2); single precision instead of half.
Layers go round the ring and are not fetched ahead.  Beyond 64 images gradients by layer may differ by
rounding.

References
----------
Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020, sections
5 and 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from refsgd.algorithms.exchange import passes
from refsgd.algorithms.facts import Facts, declare
from refsgd.algorithms.parts import Shard
from refsgd.algorithms.pipeline.stages import Held
from refsgd.algorithms.replica import peers
from refsgd.algorithms.sgd import SGD, weights
from refsgd.collectives import all_gather, reduce_scatter
from refsgd.collectives.parts import chunks
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program


class Peer:
    """One peer with its shard, which gathers and reduces with the others."""

    def __init__(self, rank: int, group: Sequence[str], problem: Any, sgd: SGD) -> None:
        self.rank, self.group, self.problem = rank, group, problem
        self.shards = chunks(problem.x0.size, len(group))
        self.shard = Shard(rank, problem.x0[self.shards[rank]], sgd)

    def cut(self, part: slice) -> tuple[list[slice], slice]:
        """Each shard's section of a part of the vector, by its place there; this peer's by its place here."""
        edges = [min(max(shard.start, part.start), part.stop) for shard in self.shards] + [part.stop]
        first = self.shards[self.rank].start
        return ([slice(a - part.start, b - part.start) for a, b in pairwise(edges)],
                slice(max(edges[self.rank] - first, 0), max(edges[self.rank + 1] - first, 0)))

    def gather(self, part: slice) -> Program[Array]:
        """The newest parameters of a part, of which each owner sends its section."""
        cut, own = self.cut(part)
        return (yield from all_gather(self.rank, self.group, self.shard.x[own], cut))

    def reduce(self, part: slice, g: Array, t: int, mean: Array) -> Program[None]:
        """Write this peer's section of the mean over images of a part's gradients into the shard's mean."""
        cut, own = self.cut(part)
        share, whole = weights([self.problem.images(i, t) for i in range(len(self.group))])
        if share[self.rank] != 1:
            g = g * np.float32(share[self.rank])
        g = yield from reduce_scatter(self.rank, self.group, g, cut)
        mean[own] = g / np.float32(whole)


def train(me: Peer, steps: int, stage: int) -> Program[Held]:
    """Sections 5 and 7; returns the shard."""
    problem, shard, whole = me.problem, me.shard, slice(0, me.problem.x0.size)
    x = problem.x0 if stage < 3 else None
    for t in range(steps):
        mean = np.empty_like(shard.x)  # of all peers' gradients
        if stage == 1:
            yield from me.reduce(whole, (yield Compute(problem.gradient, x, me.rank, t)), t, mean)
        else:
            yield from passes(problem, me.rank, t, x, partial(me.reduce, t=t, mean=mean),
                              me.gather if stage == 3 else None, again=stage == 3)
        shard.x, shard.state = yield Compute(shard.sgd.step, shard.x, shard.state, mean, t, kind="update")
        yield from shard.mark(tuple((peer, t) for peer in me.group),
                              sum(problem.images(i, t) for i in range(len(me.group))))
        if stage < 3:
            x = None  # nobody holds two models
            x = yield from me.gather(whole)
            shard.x = x[me.shards[me.rank]]
        yield Mark("clock", t=t)
    return Held(me.rank, shard.x)


@declare(Facts(
    because={"": "its stage says what is exchanged and when: whole layers, as soon as they are computed"},
    layered=True, collective=True, not_lars="its shards cut through layers, and no peer knows their norms",
    unshared="a worker has the only copy of its shard", timeless=True, holds="shards", formula="zero"))
def zero(problem: Any, workers: int, steps: int, sgd: SGD, *, stage: int = 3) -> Deployment:
    """Deploy ZeRO.

    Parameters
    ----------
    stage : int
        What is divided: 1, the optimiser's state; 2, gradients too; 3, parameters too.
    """
    if stage not in (1, 2, 3):
        raise ValueError(f"stage {stage}; expected 1, 2 or 3")
    names = peers(workers)
    return {name: Node(train(Peer(rank, names, problem, sgd), steps, stage), rank=rank)
            for rank, name in enumerate(names)}
