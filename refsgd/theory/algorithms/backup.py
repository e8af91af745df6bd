"""Predictions for synchronous SGD with backup workers."""

from __future__ import annotations

from dataclasses import replace

from refsgd.theory.algorithms.bsp import bsp
from refsgd.theory.algorithms.peers import fresh
from refsgd.theory.estimate import Estimate
from refsgd.theory.phenomena import iteration
from refsgd.theory.phenomena.backup import backup_workers, evaluated
from refsgd.theory.prediction import Figures, Prediction
from refsgd.theory.setting import Setting, figures


def backup(c: Setting) -> Figures:
    """BSP in which the first n - backups gradients of each step count, with one server.

    The process itself is evaluated: late pushes and answers queue with the others, and late workers compute
    at the same time.
    """
    c, k = replace(c, servers=1), min(int(c.options.get("backups", 1)), c.workers - 1)
    if not k:
        return bsp(c)
    p = evaluated(c.times, c.links, k, c.steps)
    mean = iteration.mean_time(c.times)
    lone = min(2 * (c.machine.latency + c.transfer), max(p.pace.value - c.update, 0.0))

    def figure(estimate: Estimate, unit: str, **terms: float) -> Prediction:
        return estimate.predicted(unit, terms or {"mean": estimate.value},
                                  "pushes in the order of their heads, by Monte Carlo", "Chen et al. 2016",
                                  "late workers finish; one server", faithful=not c.tied)

    step = figure(p.pace, "s", **{"compute E[T]": mean, "transfer": lone, "update": c.update,
                                  "straggling": p.pace.value - mean - lone - c.update})
    exponential = len(set(c.times)) == 1 and c.times[0].family == "exponential"
    if exponential and not c.queues and not c.machine.latency:
        step = backup_workers(c.times, k)
    out = figures(c, step, figure(p.end, "s"), c.steps, 0.0, fresh())
    out["idle_ratio"] = figure(Estimate(1 - p.computing.value, p.computing.error), "1")
    out["bytes_per_iteration"] = figure(p.pushes.scaled(2 * c.nbytes / c.steps), "bytes")
    out["bytes_sent"] = figure(p.pushes.scaled(2 * c.nbytes), "bytes")
    out.without("late workers compute gradients that are discarded, so their time has no split by cause",
                "idle_by_cause")
    return out.without("a late worker skips iterations, so gradients do not count its clock",
                       "clock_gap_max", "lead_max")
