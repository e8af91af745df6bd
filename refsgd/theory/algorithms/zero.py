"""Predictions for ZeRO: peers that reduce gradients to their owners and gather parameters from them."""

from __future__ import annotations

from dataclasses import replace

from refsgd.theory.algorithms.allreduce import in_step
from refsgd.theory.algorithms.peers import fresh, in_rounds, repeat
from refsgd.theory.phenomena import collectives
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import Setting, clocks, figures


def zero(c: Setting) -> Figures:
    """Peers that own a shard each; a layer's messages are those of its sections of the n shards.

    In stage 1, with equal shards of m bytes and peers in step, a step takes T + (n-1) (2 alpha + 2 m beta + m
    gamma) + u, as all-reduce SGD does.
    """
    n, stage = c.workers, int(c.options.get("stage", 3))
    if stage not in (1, 2, 3):
        raise DomainError(f"stage {stage}; expected 1, 2 or 3")
    c = replace(c, plan=None)
    step: Prediction | None = None
    if n == 1 or (stage == 1 and c.nbytes % (4 * n) == 0 and in_step(c) and not c.placed):
        step = in_rounds(c, collectives.ring(n, c.nbytes, c.link, c.nbytes / n).time)
    sent = (n - 1) * c.nbytes * (3 if stage == 3 else 2)
    return figures(c, step, step and repeat(c, step), c.steps, sent,
                   fresh("gradients of a step update the shards that it reads"),
                   clocks(c, 0, 1, "no peer has its shard of a sum before all have computed their gradients"))
