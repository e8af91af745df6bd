"""Predictions for pipelines: GPipe and PipeDream."""

from __future__ import annotations

import math
from dataclasses import replace

from refsgd.cluster import prices
from refsgd.cluster.distributions import Distribution
from refsgd.theory.algorithms.peers import fresh, repeat
from refsgd.theory.estimate import certain
from refsgd.theory.phenomena import collectives
from refsgd.theory.phenomena.collectives import Link
from refsgd.theory.phenomena.pipeline import Pipeline
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import Setting, clocks, count, figures


def _figures(c: Setting, p: Pipeline, micro: int, step: Prediction | None = None,
             run: Prediction | None = None) -> Figures:
    """Times of equal stages, counts of the messages; `c` has the times of the stages."""
    name = str(c.options.get("collective", "ring"))  # a hierarchical one sends as much as the ring
    each = collectives.allreduce(name if name != "hierarchical" else "ring", p.replicas, 1, Link()).total
    crossing, summed = p.sent(c.steps, micro), each * sum(p.held) * c.steps
    out = figures(c, step, run, c.steps, (crossing + summed) / c.steps)
    if p.replicas == 1:
        out["bytes_sent"] = count(crossing, "bytes", "2 x sum of what crosses the cuts")
    else:
        told = "2 x sum of what crosses the cuts + steps x what an all-reduce sends"
        out["bytes_sent"] = count(crossing + summed, "bytes", told, activations=crossing, gradients=summed)
    return out.without("stages wait for their neighbours only: all of it is the bubble", "idle_by_cause")


def _stages(c: Setting, p: Pipeline) -> Setting:
    """The setting whose times are those of the stages, at their shares of a gradient's."""
    each = [prices.own(c.machine.with_(speeds=()), k) for k in range(c.workers)]
    return replace(c, machine=c.machine.with_(compute=tuple(
        time.scaled(share) if share and time else Distribution("fixed", (0.0,))
        for i, time in enumerate(each) for share in [p.share(i // p.replicas)])))


def gpipe(c: Setting) -> Figures:
    """Stages that update together, so that each computes all of a step but the bubble."""
    p, micro = _known(c), c.whole("micro", 4)
    c, m, k = _stages(c, p), max(1, min(micro, min(p.examples[0]))), p.depth
    step: Prediction | None = None
    even = all(count % m == 0 for count in p.examples[0]) and len({round(s, 12) for s in p.shares}) == 1
    if even and _instant(c, p) and p.replicas == 1 and (p.chunks == 1 or m % k == 0):
        busy, u = c.times[0].mean, c.own[0]
        idle = busy * (k - 1) / (p.chunks * m)
        step = Prediction(busy + idle + u, "s", "exact", {"compute E[T]": busy, "update": u, "partner": idle},
                          "(v m + K - 1)(t_f + t_b) + u for equal stages without transfer",
                          "Huang et al. 2019; Narayanan et al. 2021")
    out = _figures(c, p, micro, step, step and repeat(c, step))
    out |= fresh("all stages update together")
    out |= clocks(c, 0, 1, "a stage begins a step after the one before it")
    return out


def _instant(c: Setting, p: Pipeline) -> bool:
    """Whether all stages take one fixed time and messages none."""
    wide = math.isinf(c.machine.bandwidth) or not any(p.crossing)
    free = not p.crossing or (wide and not c.machine.latency)
    return free and not c.machine.hosts and c.together and certain(c.machine.update) and len(set(c.own)) == 1


def pipedream(c: Setting) -> Figures:
    """Stages that each update after each backward pass: t_f + t_b + u in the long run, if they are equal and
    messages take no time."""
    p, depth = _known(c), _known(c).depth
    c = _stages(c, p)
    step: Prediction | None = None
    if _instant(c, p) and p.replicas == 1:
        busy, u = c.times[0].mean, c.own[0]
        step = Prediction(busy + u, "s", "exact", {"compute E[T]": busy, "update": u}, "t_f + t_b + u",
                          "Narayanan et al. 2019")
    out = _figures(c, p, 1, step, repeat(c, step) if step and depth == 1 else None)
    delays = [depth - 1 if c.options.get("vertical") else depth - 1 - k for k in range(depth)]
    mean = sum(min(delay, b) for delay in delays for b in range(c.steps)) / (depth * c.steps)
    told = "K - 1 - k at stage k, with vertical sync K - 1; less at first", "Narayanan et al. 2019"
    out["staleness_mean"] = Prediction(mean, "updates", "exact", {}, *told)
    out["staleness_max"] = Prediction(min(depth, c.steps) - 1.0, "updates", "exact", {}, *told)
    out |= clocks(c, depth - 1, depth, "K - k batches in flight at stage k")
    return out


def _known(c: Setting) -> Pipeline:
    if c.pipeline is None:
        raise DomainError("no stages; the formula assumes shares of the time and bytes of each cut")
    return c.pipeline
