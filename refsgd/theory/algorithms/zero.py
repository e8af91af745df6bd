"""Predictions for ZeRO: peers that reduce gradients to their owners and gather parameters from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from refsgd.theory.algorithms.peers import fresh, on_shared_links
from refsgd.theory.phenomena import scripts
from refsgd.theory.phenomena.scripts import MARK, WORK, Script, gathered, reduced
from refsgd.theory.phenomena.stragglers import mean_of_maximum
from refsgd.theory.prediction import DomainError, Figures
from refsgd.theory.setting import Setting, clocks, figures, slices


def zero(c: Setting) -> Figures:
    """Peers that own a shard each; a layer's messages are those of its sections of the n shards.

    The recursion of the ring's messages is exact for fixed times, equal shards or not.  In stage 1, with
    equal shards of m bytes, a step takes E[max T] + (n-1) (2 alpha + 2 m beta + m gamma) + u.
    """
    n, stage = c.workers, int(c.options.get("stage", 3))
    if stage not in (1, 2, 3):
        raise DomainError(f"stage {stage}; expected 1, 2 or 3")
    shards = slices(c.nbytes, n)
    layers = [(c.nbytes, 1 / 3, 2 / 3)] if stage == 1 or c.plan is None else [
        (int(part.down), f, b) for part, f, b in zip(c.plan.parts, c.plan.forward, c.plan.backward)]
    edges = list(accumulate(shards, initial=0))
    ends = accumulate((size for size, *_ in layers), initial=0)
    sections = [[max(min(b, end) - max(a, first), 0) for a, b in pairwise(edges)]
                for first, end in pairwise(ends)]
    c = replace(c, plan=None)

    def script(i: int, gradients: Sequence[int], times: Iterator[float], updates: Iterator[float]) -> Script:
        for _ in gradients:
            time = next(times)
            for sizes, (_, f, _) in zip(sections, layers):
                yield from gathered(i, n, sizes) if stage == 3 else ()
                yield WORK, i, time * f
            for sizes, (_, _, b) in reversed(list(zip(sections, layers))):
                yield from gathered(i, n, sizes) if stage == 3 else ()
                yield WORK, i, time * b
                yield from reduced(i, n, sizes, c.machine.reduction)
            yield WORK, i, next(updates)
            yield from gathered(i, n, shards) if stage < 3 else ()
            yield MARK, i, 0

    messages = (n - 1) * sum((3 if stage == 3 else 1) * sum(map(bool, sizes)) for sizes in sections)
    messages += (n - 1) * n if stage < 3 else 0

    each, end = on_shared_links(
        c, script, [1] * c.steps, scripts.around(n), messages, math.fsum(c.own) / n,
        lower=mean_of_maximum(c.times),
        told="(n-1) messages for each layer's section of each shard, by their recursion")
    if c.one_link and stage > 1:  # messages of two layers meet, and which comes first is a matter of rounding
        each, end = replace(each, kind="approximation"), replace(end, kind="approximation")
    sent = (n - 1) * c.nbytes * (3 if stage == 3 else 2)
    return figures(c, each, end, c.steps, sent, fresh("gradients of a step update the shards that it reads"),
                   clocks(c, 0, 1, "no peer has its shard of a sum before all have computed their gradients"))
