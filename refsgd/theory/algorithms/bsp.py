"""Predictions for bulk-synchronous SGD through parameter servers, without and with backup workers."""

from __future__ import annotations

from dataclasses import replace

from refsgd.theory.algorithms.asp import DRAWN, drawn, shares_of
from refsgd.theory.algorithms.peers import fresh
from refsgd.theory.estimate import Estimate, certain
from refsgd.theory.phenomena import iteration, queues
from refsgd.theory.phenomena.backup import backup_workers, evaluated
from refsgd.theory.prediction import Figures, Prediction
from refsgd.theory.setting import Setting, clocks, figures, throughput

MANY = 256  # pushes of an iteration, beyond which workers are taken to stay in step even with random times


def bsp(c: Setting) -> Figures:
    """BSP: all workers push, the slowest sets the pace, all receive an answer."""
    half, rotated = c.one_link, c.machine.colocated and c.servers == c.workers
    if c.placed and not (half and c.alone) and not (rotated and not c.shared and _in_step(c)):
        path = queues.path(queues.Bulk, c.times, c.links, c.steps, rotated)
        step, run, _ = drawn(c, path, shares_of(c, path), *DRAWN, faithful=True)
        return _figures(c, step, run)
    duplex = "half" if half else "full"
    step = iteration.bsp(c.times, **c.network, duplex=duplex)
    run = iteration.bsp_run(c.times, c.steps, **c.network, duplex=duplex)
    return _figures(c, step, run)


def _in_step(c: Setting) -> bool:
    """Whether workers that share hosts with servers stay in step, or are too many to evaluate."""
    return (c.together and certain(c.machine.update)) or c.workers * c.servers > MANY


def _figures(c: Setting, step: Prediction, run: Prediction) -> Figures:
    """The metrics of iterations in which all wait for all."""
    return figures(c, step, run, c.steps, c.workers * (c.pushed + c.nbytes),
                   fresh("a barrier before each update"),
                   clocks(c, 0, 1, "no worker starts before all have ended"))


def backup(c: Setting) -> Figures:
    """BSP in which the first n - backups gradients of each step count, with one server.

    The process itself is evaluated: late pushes and answers queue with the others, and late workers compute
    at the same time.
    """
    c, k = replace(c, servers=1), min(int(c.options.get("backups", 1)), c.workers - 1)
    if not k:
        return bsp(c)
    pace, end, computing, pushes = evaluated(c.times, c.links, k, c.steps)
    mean = iteration.mean_time(c.times)
    lone = min(2 * (c.machine.latency + c.transfer), max(pace.value - c.update, 0.0))

    def figure(estimate: Estimate, unit: str, **terms: float) -> Prediction:
        return estimate.predicted(unit, terms or {"mean": estimate.value},
                                  "pushes in the order of their heads, by Monte Carlo", "Chen et al. 2016",
                                  "late workers finish; one server", faithful=not c.tied)

    step = figure(pace, "s", **{"compute E[T]": mean, "transfer": lone, "update": c.update,
                                  "straggling": pace.value - mean - lone - c.update})
    exponential = len(set(c.times)) == 1 and c.times[0].family == "exponential"
    if exponential and not c.queues and not c.machine.latency:
        step = backup_workers(c.times, k)
    out = figures(c, step, run := figure(end, "s"), c.steps, 0.0, fresh())
    rate = throughput(c, run, 1 - k / c.workers)
    short = c.images != sum(c.batches) * c.steps
    out["images_per_second"] = replace(rate, kind="approximation") if short else rate
    if len(set(c.batches)) > 1:
        out.without("which of the workers' different batches come first is a matter of chance",
                    "images_per_second")
    out["idle_ratio"] = figure(Estimate(1 - computing.value, computing.error), "1")
    out["bytes_per_iteration"] = figure(pushes.scaled(2 * c.nbytes / c.steps), "bytes")
    out["bytes_sent"] = figure(pushes.scaled(2 * c.nbytes), "bytes")
    out.without("late workers compute gradients that are discarded, so their time has no split by cause",
                "idle_by_cause")
    return out.without("a late worker skips iterations, so gradients do not count its clock",
                       "clock_gap_max", "lead_max")
