"""Figures of synchronous SGD with backup workers."""

from __future__ import annotations

from dataclasses import replace

from refsgd.theory.algorithms.peers import fresh
from refsgd.theory.phenomena import iteration
from refsgd.theory.phenomena.backup import backup_workers as backup_step
from refsgd.theory.phenomena.backup import computing, evaluated
from refsgd.theory.phenomena.stragglers import mean_of_maximum
from refsgd.theory.prediction import Prediction, kind_of, sampling
from refsgd.theory.setting import Figures, Setting, figures


def backup(c: Setting) -> Figures:
    """The first n - backups gradients of each step count; one server."""
    k = min(int(c.options.get("backups", 1)), c.workers - 1)
    one = replace(c, servers=1)
    if k and c.steps and not c.machine.colocated and (c.transfer or not c.tied):
        return {**_drawn_backup(one, k), **fresh()}
    counted = c.workers - k  # late pushes and answers find the links idle
    if c.machine.colocated:  # worker 0 has no link, and is not always the one that counts
        counted = max(counted, min(c.workers, 2))
    whole = iteration.bsp(c.times[:counted], **one.network)
    step = backup_step(c.times, k, exchange=max(whole.value - mean_of_maximum(c.times[:counted]), 0.0))
    run = Prediction(step.value * c.steps, "s", "approximation", {"iterations": step.value * c.steps},
                     "steps x iteration, late workers' end left out", step.source, step.assumptions)
    out = figures(one, step, run, c.steps, 2 * c.workers * c.nbytes)
    # late gradients are sent too, at most one per worker and step
    for name in ("bytes_per_iteration", "bytes_sent"):
        out[name] = Prediction(out[name].value, "bytes", "exact" if not k else "bound", {},
                               "at most 2 n M per step",
                               "the message protocol", bound="upper" if k else "")
    for name in ("idle_ratio", "idle_by_cause"):  # late workers compute what is discarded
        out.pop(name, None)
    busy = computing(c.times[0], c.workers, k,
                     step.value) if len(set(c.times)) == 1 and step.value and c.steps else None
    if busy is not None:
        out["idle_ratio"] = Prediction(1 - busy.value, "1", "approximation" if k or step.kind != "exact"
                                       else "exact", busy.terms,
                                       "1 - (N + late) E[T]/(n step)", busy.source, "long run", {})
    return {**out, **fresh()}


def _drawn_backup(c: Setting, k: int) -> Figures:
    """The process itself, drawn: late pushes and answers meet the others on the links, and late workers
    compute meanwhile.
    """
    w, alpha, update = c.transfer, c.machine.latency, c.machine.update
    p = evaluated(c.times, c.links, k, c.steps)
    formula, u, mean = "pushes in the order of their heads, by Monte Carlo", iteration.update_mean(
        update), iteration.mean_time(c.times)

    def figure(value: float, unit: str, error: float, **terms: float) -> Prediction:
        return Prediction(value, unit, kind_of(not c.tied, error),
                          {**(terms or {"mean": value}), **sampling(error)}, formula, "Chen et al. 2016",
                          "late workers finish; one server")

    lone = min(2 * (alpha + w), max(p.seconds - u, 0.0))
    step = figure(p.seconds, "s", p.error,
                  **{"compute E[T]": mean, "transfer": lone, "update": u,
                     "straggling": p.seconds - mean - lone - u})
    exponential = len(set(c.times)) == 1 and c.times[0].family == "exponential"
    if not w and not alpha and update is None and exponential:
        step = backup_step(c.times, k)
    out = figures(c, step, figure(p.end, "s", p.end_error), c.steps, 2 * c.nbytes * p.pushes / c.steps)
    out.pop("idle_by_cause", None)
    out["idle_ratio"] = figure(1 - p.computing, "1", p.computing_error)
    for name, steps in (("bytes_per_iteration", c.steps), ("bytes_sent", 1)):
        sent = 2 * c.nbytes / steps
        out[name] = figure(sent * p.pushes, "bytes", sent * p.pushes_error)
    return out
