"""ZeRO: data-parallel peers that divide among themselves what each would otherwise hold whole.

Peer i, step t; stage 1 divides the optimiser's state, 2 gradients too, 3 parameters too::

    x = all-gather of the shards                  # stage 3: of one layer, before each pass through it
    g_i = gradient at x on its share of b_i images
    g = reduce-scatter of b_i g_i, / sum_i b_i    # stages 2, 3: of a layer, as soon as it is computed
    shard, v = update(shard, v, g)                # one n-th of the parameters, of the velocity, of the sum

The steps are those of ``allreduce --overlap backward``, whose ring sums each layer, bit for bit; in stage 1,
or with `flat` shards, those of ``allreduce`` as it is.

Quick facts
-----------
synchronous: yes | centralised: no | roles: n peers, each with a shard | messages: n-1 out of each peer for
each sum and each gathering of a layer, in stage 1 of the vector | bytes: 2 (n-1)/n M out of each peer, in
stage 3 3 (n-1)/n M (M = 4 d) | memory: M + M + s M/n; M + (1+s) M/n + 2L; (2+s) M/n + 2L, for s vectors of
state and a largest layer of L bytes | staleness: 0 | clock gap: 0 while computing | momentum: in shards |
aggregation: mean over images | deterministic: yes

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
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from refsgd.algorithms.exchange import passes
from refsgd.algorithms.facts import Facts, declare
from refsgd.algorithms.pipeline.stages import Held
from refsgd.algorithms.replica import peers
from refsgd.algorithms.sgd import SGD, weights
from refsgd.collectives import all_gather, reduce_scatter
from refsgd.collectives.parts import chunks
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program


class Peer:
    """One peer, which owns a part of each unit of the vector, and gathers and reduces with the others."""

    def __init__(self, rank: int, group: Sequence[str], problem: Any, sgd: SGD,
                 units: Sequence[slice]) -> None:
        self.rank, self.group, self.problem, self.sgd, self.units = rank, group, problem, sgd, units
        self.own = [self.owned(unit, unit)[rank] for unit in units]  # one after another they are the shard
        ends = list(accumulate((each.stop - each.start for each in self.own), initial=0))
        self.places, self.size = [slice(a, b) for a, b in pairwise(ends)], ends[-1]

    def owned(self, unit: slice, part: slice) -> list[slice]:
        """What each peer owns of a part of a unit."""
        shards = chunks(unit.stop - unit.start, len(self.group))
        edges = [min(max(unit.start + each.start, part.start), part.stop) for each in shards] + [part.stop]
        return [slice(a, b) for a, b in pairwise(edges)]

    def cut(self, part: slice) -> tuple[list[slice], slice]:
        """Each peer's section of a part of the vector, by its place there; this peer's by its place here."""
        unit, own, place = next(each for each in zip(self.units, self.own, self.places, strict=True)
                                if each[0].start <= part.start and part.stop <= each[0].stop)
        sections, shift = self.owned(unit, part), place.start - own.start
        mine = sections[self.rank]
        return ([slice(each.start - part.start, each.stop - part.start) for each in sections],
                slice(max(mine.start + shift, 0), max(mine.stop + shift, 0)))

    def shard(self, x: Array) -> Array:
        """This peer's part of a model."""
        return x[self.own[0]] if len(self.own) == 1 else np.concatenate([x[own] for own in self.own])

    def held(self, shard: Array) -> Held:
        """The parameters of a shard, by the unit that they are of."""
        return Held(self.rank, tuple(shard[place] for place in self.places))

    def gather(self, part: slice, shard: Array) -> Program[Array]:
        """The newest parameters of a part, of which each owner sends its section."""
        cut, own = self.cut(part)
        return (yield from all_gather(self.rank, self.group, shard[own], cut))

    def model(self, shard: Array) -> Program[Array]:
        """The newest parameters of all units."""
        if len(self.units) == 1:
            return (yield from self.gather(self.units[0], shard))
        x: Array = np.empty_like(self.problem.x0)
        for unit in self.units:
            x[unit] = yield from self.gather(unit, shard)
        return x

    def reduce(self, part: slice, g: Array, t: int, mean: Array) -> Program[None]:
        """Write this peer's section of the mean over images of a part's gradients into the shard's mean."""
        cut, own = self.cut(part)
        share, whole = weights([self.problem.images(i, t) for i in range(len(self.group))])
        if share[self.rank] != 1:
            g = g * np.float32(share[self.rank])
        g = yield from reduce_scatter(self.rank, self.group, g, cut)
        mean[own] = g / np.float32(whole)

    def mark(self, shard: Array, t: int) -> Program[None]:
        """Report update t of the shard, by the gradients of all peers, to observers."""
        images = sum(self.problem.images(i, t) for i in range(len(self.group)))
        yield Mark("update", part=self.rank, version=t, reads=tuple((peer, t) for peer in self.group), t=t,
                   images=images, x=self.held(shard).x)


def train(me: Peer, steps: int, stage: int) -> Program[Held]:
    """Sections 5 and 7; returns the shard."""
    problem, x = me.problem, me.problem.x0
    shard: Any = me.shard(x)
    state = me.sgd.start(shard)
    for t in range(steps):
        mean = np.empty_like(problem.x0[:me.size])  # of all peers' gradients, on the shard
        reduce = partial(me.reduce, t=t, mean=mean)
        if stage == 1:
            yield from reduce(slice(0, x.size), (yield Compute(problem.gradient, x, me.rank, t)))
        elif stage == 2:
            yield from passes(problem, me.rank, t, x, reduce)
        else:
            yield from passes(problem, me.rank, t, None, reduce, partial(me.gather, shard=shard), again=True)
        shard = shard if stage == 3 else me.shard(x)
        shard, state = yield Compute(me.sgd.step, shard, state, mean, t, kind="update")
        yield from me.mark(shard, t)
        if stage < 3:
            x = None  # nobody holds two models
            x = yield from me.model(shard)
            shard = None  # which is a part of it
        yield Mark("clock", t=t)
    return me.held(shard if stage == 3 else me.shard(x))


@declare(Facts(
    because={"": "its stage says what is exchanged and when: whole layers, as soon as they are computed"},
    layered=True, collective=True, not_lars="its shards cut through layers, and no peer knows their norms",
    unshared="a worker has the only copy of its shard", timeless=True, holds="shards", formula="zero",
    needs=lambda options, workers: {"flat": "stage 2 or 3"} if options["stage"] == 1 else {},
    recursion="mean"))
def zero(problem: Any, workers: int, steps: int, sgd: SGD, *, stage: int = 3,
         flat: bool = False) -> Deployment:
    """Deploy ZeRO.

    Parameters
    ----------
    stage : int
        What is divided: 1, the optimiser's state; 2, gradients too; 3, parameters too.
    flat : bool
        Whether stages 2 and 3 divide the vector as a whole, as the paper does, and not each layer.
    """
    if stage not in (1, 2, 3):
        raise ValueError(f"stage {stage}; expected 1, 2 or 3")
    names = peers(workers)
    units = [slice(0, problem.x0.size)] if flat or stage == 1 else problem.in_layers.parts
    return {name: Node(train(Peer(rank, names, problem, sgd, units), steps, stage), rank=rank)
            for rank, name in enumerate(names)}
