"""Figures of asynchronous SGD through a parameter server, and of its relatives: softsync,
staleness-aware, approximate."""

from __future__ import annotations

import math
from dataclasses import replace

from refsgd.theory.phenomena import iteration, server, staleness
from refsgd.theory.prediction import DomainError, Prediction, check_count
from refsgd.theory.setting import Figures, Setting, clocks, count, figures, last_of_sums, weaker


def asp_seconds(c: Setting, step: Prediction) -> Prediction:
    """A whole asynchronous run: the worker that ends last.

    Without queues it takes E[max of sums] + steps x exchange.  Where pushes queue, the slowest worker's
    iterations are longer by the wait, and a worker that is late meets a shorter queue.  Equal fixed times
    come in turn from the first round on: the last worker is (n-1) services behind.
    """
    if not c.steps:
        return Prediction(0.0, "s", "exact", {}, "no iteration")
    free, queue = step.value * c.steps, step.terms["queueing"]
    fixed = c.alike and c.times[0].family == "fixed" and step.kind == "exact"
    rounds = [time.mean + e for time, e in zip(c.times, c.exchanges, strict=True)]
    slowest = max(rounds)
    service = max(c.transfer / c.servers, iteration.update_mean(c.machine.update)) if c.workers > 1 else 0.0
    exact = fixed or not service
    if fixed:
        total = slowest + (c.workers - 1) * service + (c.steps - 1) * step.value
    elif all(math.isfinite(time.variance) for time in c.times):
        last, closed = last_of_sums(c, c.exchanges)
        exact = exact and closed and len(set(c.exchanges)) == 1
        calm = slowest / (slowest + queue) if slowest else 1.0
        total = c.steps * (slowest + queue) + (last - c.steps * slowest) * calm
    else:
        total, exact = c.steps * (slowest + queue), False
    return Prediction(total, "s", weaker(step.kind, "exact" if exact else "approximation"),
                      {"iterations": free, "the last one's excess": total - free},
                      "E[max_i of the sum of steps times] + steps x (exchange + queueing)", step.source,
                      step.assumptions)


def asp(c: Setting) -> Figures:
    """Each push is applied and answered alone."""
    step = server.asp(c.times, **c.network)
    out = figures(c, step, asp_seconds(c, step), c.workers * c.steps, 2 * c.workers * c.nbytes)
    time = c.times[0]
    if c.steps:
        out["staleness_mean"] = staleness.asp_run(c.times, c.steps, c.exchanges)
    if c.workers == 1 or (c.alike and time.family == "fixed" and c.steps):
        out["staleness_max"] = Prediction(c.workers - 1.0, "updates", "exact", {},
                                          "n - 1: the workers come in turn",
                                          staleness.SOURCE)
    elif c.alike and time.family == "exponential" and not any(c.exchanges):
        out["staleness_max"] = staleness.geometric_maximum(c.workers, c.workers * c.steps)
    if c.alike and time.family == "fixed":
        return {**out, **clocks(c, 1, 1, "the workers come in turn")}
    return {**out, **clocks(c, math.inf, math.inf, "no bound but the length of the run")}


def softsync(c: Setting, default: int | None = 1) -> Figures:
    """ASP whose server applies c = floor(n/splitting) gradients at a time; the update counts for the last of
    them.
    """
    given = c.options.get("splitting", default)
    splitting = check_count("splitting", int(c.workers if given is None else given))
    if splitting > c.workers:
        raise DomainError(f"splitting {splitting} of {c.workers} workers; softsync assumes at most n")
    size = c.workers // splitting
    update = c.machine.update
    machine = c.machine.with_(
        update=update.scaled(1 / size)) if update is not None and size > 1 else c.machine
    out = asp(replace(c, machine=machine))
    if machine is not c.machine:
        for name in ("seconds_per_iteration", "seconds", "images_per_second", "idle_ratio"):
            if name in out and out[name].kind == "exact":
                out[name] = replace(out[name], kind="approximation")
    out["updates"] = count(-(-c.workers * c.steps // size), "updates", "ceil(n steps / c)")
    p = out.pop("staleness_mean", None)
    out.pop("staleness_max", None)
    if p is not None:
        out["staleness_mean"] = Prediction(p.value / size, "updates",
                                           weaker(p.kind, "exact" if size == 1 else "approximation"),
                                           {"in pushes": p.value}, "(n-1)/c less the end of the run",
                                           staleness.SOURCE,
                                           p.assumptions, {"in pushes": "pushes"})
    return out


def staleness_aware(c: Setting) -> Figures:
    """Softsync in time; every gradient an update of its own unless told otherwise."""
    return softsync(c, None)


def approximate(c: Setting) -> Figures:
    """Two data centres, half of the workers in each: ASP within each.

    What is significant depends on the data, so times are lower bounds where bytes take time, and bytes are.
    """
    centers = min(2, c.workers)
    half = replace(c, workers=-(-c.workers // centers), servers=1,
                   machine=c.machine if c.workers == 1 else c.machine.with_(colocated=False))
    step = replace(asp(half)["seconds_per_iteration"], kind="approximation")
    # the last of both halves
    run = replace(asp_seconds(replace(half, workers=c.workers), step), kind="approximation")
    out = figures(c, step, run, c.workers * c.steps, 2 * c.workers * c.nbytes)
    for name in ("bytes_per_iteration", "bytes_sent"):
        out[name] = Prediction(out[name].value, "bytes", "bound", {},
                               "2 n M within the centres, and what is significant",
                               "the message protocol", bound="lower")
    if c.transfer and c.workers > 1:  # what crosses between the centres takes the servers' links too
        for name, side in (("seconds_per_iteration", "lower"), ("seconds", "lower"),
                           ("images_per_second", "upper")):
            out[name] = replace(out[name], kind="bound", bound="lower" if side == "lower" else "upper",
                                lower=None)
        for name in ("idle_ratio", "idle_by_cause"):
            out.pop(name, None)
    return out
