"""Predictions for bulk-synchronous SGD through parameter servers, without and with backup workers."""

from __future__ import annotations

from dataclasses import replace

from refsgd.theory.algorithms.peers import fresh
from refsgd.theory.estimate import Estimate, certain
from refsgd.theory.phenomena import fastest, iteration
from refsgd.theory.prediction import Figures, Prediction
from refsgd.theory.setting import QUEUES, Setting, clocks, figures, throughput

MANY = 256  # pushes of an iteration, beyond which workers are taken to stay in step even with random times


def bsp(c: Setting) -> Figures:
    """BSP: all workers push, the slowest sets the pace, all receive an answer."""
    if (group := int(c.options.get("group", 1))) > 1:  # others send a model up to their leader, and get one
        leaders = -(-c.workers // group)
        return _figures(c, None, None, leaders * (c.pushed + c.nbytes) + 2 * (c.workers - leaders) * c.nbytes)
    if not known(c):
        return _figures(c, None, None)
    step, run = iteration.bsp_run(c.times, c.steps, **c.network, duplex="half" if c.one_link else "full")
    return _figures(c, step, run)


def known(c: Setting) -> bool:
    """Whether the barrier has a closed form."""
    if c.machine.colocated and c.servers > 1 and c.workers > 1:
        even = c.servers == c.workers and not c.shared
        return even and (_in_step(c) or not c.transfer)
    return not c.placed or (c.one_link and c.alone)


def _in_step(c: Setting) -> bool:
    """Whether workers that share hosts with servers stay in step, or are too many to evaluate."""
    return (c.together and certain(c.machine.update)) or c.workers * c.servers > MANY


def _figures(c: Setting, step: Prediction | None, run: Prediction | None,
             sent: float | None = None) -> Figures:
    """The metrics of iterations in which all wait for all, with the bytes of each iteration."""
    return figures(c, step, run, c.steps, c.workers * (c.pushed + c.nbytes) if sent is None else sent,
                   fresh("a barrier before each update"),
                   clocks(c, 0, 1, "no worker starts before all have ended"))


def backup_workers(c: Setting) -> Figures:
    """BSP in which the first n - backups gradients of each step count, with one server; late workers finish,
    so a step is a recursion unless pushes queue."""
    c, k = replace(c, servers=1), min(c.whole("backups", 1), c.workers - 1)
    if not k:
        return bsp(c)
    if c.queues or (c.machine.colocated and c.machine.latency):
        out = figures(c, None, None, c.steps, 0.0, fresh())
        return _dropped(out.leave(QUEUES, "bytes_per_iteration", "bytes_sent"))
    found, mean = fastest.evaluated(c.times, k, c.steps, 2 * c.machine.latency), iteration.mean_time(c.times)

    def figure(estimate: Estimate, unit: str, **terms: float) -> Prediction:
        return estimate.predicted(unit, terms or {"mean": estimate.value},
                                  "N-th end of max(t, f_i) + T_i, by Monte Carlo", "Chen et al. 2016",
                                  "late workers finish; one server", faithful=not c.tied)

    step = figure(found.pace, "s", **{"compute E[T]": mean, "transfer": 2 * c.machine.latency,
                                      "straggling": found.pace.value - mean - 2 * c.machine.latency})
    if len(set(c.times)) == 1 and c.times[0].family == "exponential" and not c.machine.latency:
        step = fastest.backup_workers(c.times, k)
    out = figures(c, step, run := figure(found.end, "s"), c.steps, 0.0, fresh())
    rate = throughput(c, run, 1 - k / c.workers)
    short = c.images != sum(c.batches) * c.steps
    out["images_per_second"] = replace(rate, kind="approximation") if short else rate
    if len(set(c.batches)) > 1:
        out.without("which of the workers' different batches come first is a matter of chance",
                    "images_per_second")
    out["idle_ratio"] = figure(Estimate(1 - found.computing.value, found.computing.error), "1")
    out["bytes_per_iteration"] = figure(found.pushes.scaled(2 * c.nbytes / c.steps), "bytes")
    out["bytes_sent"] = figure(found.pushes.scaled(2 * c.nbytes), "bytes")
    return _dropped(out)


def _dropped(out: Figures) -> Figures:
    """Leave out what late workers' gradients have no part in."""
    out.without("late workers compute gradients that are discarded, so their time has no split by cause",
                "idle_by_cause")
    return out.without("a late worker skips iterations, so gradients do not count its clock",
                       "clock_gap_max", "lead_max")
