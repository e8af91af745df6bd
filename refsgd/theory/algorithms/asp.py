"""Predictions for asynchronous SGD through a parameter server, softsync and staleness-aware SGD."""

from __future__ import annotations

import math
from dataclasses import replace

from refsgd.theory.estimate import check_count, sampling
from refsgd.theory.phenomena import iteration, staleness
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import (
    QUEUES,
    RUN,
    Setting,
    clocks,
    count,
    figures,
    last_of_sums,
    unbounded,
    weaker,
)

PUSHES = RUN + ": others may make any number of updates"


def asp_seconds(c: Setting, step: Prediction) -> Prediction:
    """Seconds of an asynchronous run, which ends with the last worker.

    If pushes queue, the slowest worker's iterations are longer by its wait, and late workers meet shorter
    queues.  With equal fixed times, workers take turns, and the last one is (n-1) services behind.
    """
    free, queue = step.value * c.steps, step.terms["queueing"]
    fixed = c.alike and c.tied and step.kind == "exact"
    slowest = max(time.mean + e for time, e in zip(c.times, c.exchanges, strict=True))
    service = max(c.transfer / c.servers, c.update) if c.workers > 1 else 0.0
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
                      {"iterations": free, "excess of the last worker": total - free},
                      "E[max_i of the sum of steps times] + steps x (exchange + queueing)", step.source,
                      step.assumptions)


def asp(c: Setting) -> Figures:
    """ASP: each push is applied and answered alone; workers of unequal speeds that queue have no formula."""
    step: Prediction | None = None
    run, age = step, step
    if not c.met and (c.alike or not c.queues):
        step = iteration.asp(c.times, **c.network)
        run, age = asp_seconds(c, step), staleness.asp_run(c.times, c.steps, c.exchanges)
    out = answered(c, step, run)
    read(out, age)
    in_turn = c.alike and c.tied
    if c.workers == 1 or in_turn:
        out["staleness_max"] = Prediction(c.workers - 1.0, "updates", "exact", {},
                                          "n - 1: the workers take turns", staleness.SOURCE)
    elif c.memoryless:
        out["staleness_max"] = staleness.geometric_maximum(c.workers, c.workers * c.steps)
    else:
        out.without(PUSHES, "staleness_max")
    out |= clocks(c, 1, 1, "the workers take turns") if in_turn else unbounded(c)
    return out


def answered(c: Setting, step: Prediction | None = None, run: Prediction | None = None) -> Figures:
    """The metrics of pushes that are each applied and answered."""
    return figures(c, step, run, c.workers * c.steps, c.workers * (c.pushed + c.nbytes))


def read(out: Figures, age: Prediction | None) -> None:
    """Add the mean staleness, or leave it to a simulation."""
    if age:
        out["staleness_mean"] = age
    else:
        out.leave(QUEUES, "staleness_mean")


def softsync(c: Setting, default: int | None = 1) -> Figures:
    """ASP whose server applies c = floor(n/splitting) gradients in one update, at the last of them."""
    splitting = check_count("splitting", c.whole("splitting", default or c.workers))
    if splitting > c.workers:
        raise DomainError(f"splitting {splitting} of {c.workers} workers; softsync assumes at most n")
    size, update = c.workers // splitting, c.machine.update
    shared = update is not None and size > 1
    if update is not None and shared:
        c = replace(c, machine=c.machine.with_(update=update.scaled(1 / size)))
    out = asp(c)
    for name in ("seconds_per_iteration", "seconds", "images_per_second", "idle_ratio"):
        if shared and name in out and out[name].kind == "exact":
            out[name] = replace(out[name], kind="approximation")
    out["updates"] = count(-(-c.workers * c.steps // size), "updates", "ceil(n steps / c)")
    out.without(PUSHES, "staleness_max")
    if (p := out.get("staleness_mean")) is None:
        return out
    out["staleness_mean"] = Prediction(
        p.value / size, "updates", weaker(p.kind, "exact" if size == 1 else "approximation"),
        {"in pushes": p.value, **(sampling(p.error) if size == 1 else {})},
        "(n-1)/c less the end of the run", staleness.SOURCE, p.assumptions, {"in pushes": "pushes"})
    return out


def staleness_aware(c: Setting) -> Figures:
    """Softsync in which, by default, every gradient is an update."""
    return softsync(c, None)
