"""Figures of asynchronous SGD through a parameter server, and of its relatives."""

from __future__ import annotations

import math

from refsgd.theory import iteration, server, staleness
from refsgd.theory.prediction import Prediction
from refsgd.theory.setting import Figures, Setting, clocks, figures, last_of_sums, weaker


def asp_seconds(c: Setting, step: Prediction) -> Prediction:
    """A whole asynchronous run: the worker that ends last.

    Without queues it takes E[max of sums] + steps x exchange.  Where pushes queue, the slowest worker's
    iterations are longer by the wait, and a worker that is late meets a shorter queue.  Equal fixed times come
    in turn from the first round on: the last worker is (n-1) services behind.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    step : Prediction
        Seconds of an iteration, with its terms.

    Returns
    -------
    Prediction
    """
    if not c.steps:
        return Prediction(0.0, "s", "exact", {}, "no iteration")
    free, queue = step.value * c.steps, step.terms["queueing"]
    fixed = c.alike and c.laws[0].family == "fixed" and step.kind == "exact"
    rounds = [law.mean + e for law, e in zip(c.laws, c.exchanges, strict=True)]
    slowest = max(rounds)
    service = max(c.transfer / c.servers, iteration.update_mean(c.machine.update)) if c.workers > 1 else 0.0
    exact = fixed or not service
    if fixed:
        total = slowest + (c.workers - 1) * service + (c.steps - 1) * step.value
    elif all(math.isfinite(law.variance) for law in c.laws):
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
    """Each push is applied and answered alone.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    step = server.asp(c.laws, **c.network)
    out = figures(c, step, asp_seconds(c, step), c.workers * c.steps, 2 * c.workers * c.nbytes)
    law = c.laws[0]
    if c.steps:
        out["staleness_mean"] = staleness.asp_run(c.laws, c.steps, c.exchanges)
    if c.workers == 1 or (c.alike and law.family == "fixed" and c.steps):
        out["staleness_max"] = Prediction(c.workers - 1.0, "updates", "exact", {}, "n - 1: the workers come in turn",
                                          staleness.SOURCE)
    elif c.alike and law.family == "exponential" and not any(c.exchanges):
        out["staleness_max"] = staleness.geometric_maximum(c.workers, c.workers * c.steps)
    if c.alike and law.family == "fixed":
        return {**out, **clocks(c, 1, 1, "the workers come in turn")}
    return {**out, **clocks(c, math.inf, math.inf, "no bound but the length of the run")}
