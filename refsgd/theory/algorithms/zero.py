"""Predictions for ZeRO: peers that reduce gradients to their owners and gather parameters from them."""

from __future__ import annotations

from dataclasses import replace

from refsgd.theory.algorithms.allreduce import in_step
from refsgd.theory.algorithms.peers import fresh, in_rounds, repeat
from refsgd.theory.phenomena import collectives
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import Setting, clocks, figures


def zero(c: Setting) -> Figures:
    """Peers that own a part of each layer, or in stage 1 and with `flat` shards of the vector.

    In stage 1, with equal shards of m bytes and peers in step, a step takes T + (n-1) (2 alpha + 2 m beta + m
    gamma) + u, as all-reduce SGD does.  In stages 2 and 3 each layer goes round a ring of its own, two or
    three times, one after another.  Where times are random, peers wait only as far as the ring goes.
    """
    n, stage = c.workers, int(c.options.get("stage", 3))
    if stage not in (1, 2, 3):
        raise DomainError(f"stage {stage}; expected 1, 2 or 3")
    layers = [part.down for part in c.plan.parts] if c.plan and stage > 1 else [float(c.nbytes)]
    c = replace(c, plan=None)
    step: Prediction | None = None
    even = all(m % (4 * n) == 0 for m in layers)  # else the largest chunk is not always under way
    ringed = even if stage == 1 else not c.options.get("flat")
    if n == 1 or (ringed and in_step(c) and not c.placed):
        step = in_rounds(c, collectives.sharded(n, layers, c.link, 2 if stage == 3 else 1).time)
        step = step if even or n == 1 else replace(step, kind="approximation")
    sent = (n - 1) * c.nbytes * (3 if stage == 3 else 2)
    return figures(c, step, step and repeat(c, step), c.steps, sent,
                   fresh("gradients of a step update the shards that it reads"),
                   clocks(c, 0, 1, "no peer has its shard of a sum before all have computed their gradients"))
