"""Predictions for pipelines: GPipe and PipeDream."""

from __future__ import annotations

import math
from dataclasses import replace

from refsgd.cluster import prices
from refsgd.cluster.distributions import Distribution
from refsgd.theory.algorithms.peers import fresh
from refsgd.theory.estimate import Uncovered
from refsgd.theory.phenomena import pipeline
from refsgd.theory.phenomena.pipeline import Pipeline
from refsgd.theory.phenomena.scripts import Order
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import Setting, clocks, count, figures

LONG = 48  # steps that are evaluated for the pace of the long run


def _figures(c: Setting, p: Pipeline, order: Order, micro: int, told: str) -> Figures:
    """Times of the recursion, counts of the messages."""
    name = str(c.options.get("collective", "ring"))
    if p.replicas > 1 and name != "ring":
        raise Uncovered(f"no formula follows the messages of the collective {name} between the stages of "
                        "several replicas: it can only be simulated or measured")
    each = [prices.own(c.machine.with_(speeds=()), k) for k in range(c.workers)]
    c = replace(c, machine=c.machine.with_(compute=tuple(
        time.scaled(share) if share and time else Distribution("fixed", (0.0,))
        for i, time in enumerate(each) for share in [p.share(i // p.replicas)])))
    run = pipeline.rounds(c.machine, c.times, c.updates, p, order, c.steps, micro)
    long = pipeline.rounds(c.machine, c.times, c.updates, p, order, LONG, micro, more=c.workers)
    means = [time.mean for time in c.times]
    mean, u = math.fsum(means) / c.workers, math.fsum(c.own) / c.workers
    terms = {"compute E[T]": mean, "update": u, "partner": max(long.pace.value - mean - u, 0.0)}
    source = "Huang et al. 2019; Narayanan et al. 2019; Baccelli et al. 1992", ""
    step = long.pace.predicted("s", terms, told, *source, faithful=long.steady, lower=max(means))
    end = run.end.predicted("s", {"last stage": run.end.value}, told, *source, faithful=run.whole)
    crossing, summed = p.sent(c.steps, micro), 2 * (p.replicas - 1) * sum(p.held) * c.steps
    out = figures(c, step, end, c.steps, (crossing + summed) / c.steps)
    if p.replicas == 1:
        out["bytes_sent"] = count(crossing, "bytes", "2 x sum of what crosses the cuts")
    else:
        told = "2 x sum of what crosses the cuts + steps x 2 (n - 1) M"
        out["bytes_sent"] = count(crossing + summed, "bytes", told, activations=crossing, gradients=summed)
    return out.without("stages wait for their neighbours only: all of it is the bubble", "idle_by_cause")


def gpipe(c: Setting) -> Figures:
    """Stages that update together.

    With K nodes of v equal stages each, m micro-batches, t_f and t_b of a stage's passes of one micro-batch,
    and messages that take no time, a step takes (v m + K - 1) (t_f + t_b) + u.
    """
    p, micro = _known(c), int(c.options.get("micro", 4))
    at_once = c.options.get("passes", "fill-drain") == "fill-drain"
    out = _figures(c, p, pipeline.together(p, micro, c.machine.reduction, at_once), micro,
                   "(v m + K - 1)(t_f + t_b) + u for equal stages without transfer; else its recursion")
    out |= fresh("all stages update together")
    out |= clocks(c, 0, 1, "a stage begins a step after the one before it")
    return out


def pipedream(c: Setting) -> Figures:
    """Stages that each update after each backward pass: max_k (t_f + t_b + u) in the long run, if messages
    there and back fit into an update."""
    p, depth = _known(c), _known(c).depth
    out = _figures(c, p, pipeline.in_turn(p, c.machine.reduction), 1,
                   "max_k (t_f + t_b + u) of stage k if messages fit into u; else its recursion")
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
