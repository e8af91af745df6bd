"""Predictions for asynchronous SGD through a parameter server, softsync and staleness-aware SGD."""

from __future__ import annotations

import math
from dataclasses import replace

from refsgd.theory.estimate import check_count, sampling
from refsgd.theory.phenomena import iteration, queues, server, staleness
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import RUN, Setting, clocks, count, figures, last_of_sums, unbounded, weaker

PUSHES = RUN + ": others may make any number of updates"
DRAWN = ("closed network of links with a gate, by Monte Carlo",
         "Ho et al. 2013: the gate; Lindley 1952: the queues")


def asp_seconds(c: Setting, step: Prediction) -> Prediction:
    """Seconds of an asynchronous run, which ends with the last worker.

    Without queues it takes E[max of sums] + steps x exchange.  If pushes queue, the slowest worker's
    iterations are longer by its wait, and late workers meet shorter queues.  With equal fixed times, workers
    take turns from the first round on, and the last one is (n-1) services behind.
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


def shares_of(c: Setting, path: queues.Path, paid: float = 1.0) -> dict[str, float]:
    """Terms of an evaluated iteration: `paid` lone exchanges, the queueing, and slack as the rest."""
    mean = iteration.mean_time(c.times)
    room = max(path.pace.value - mean, 0.0)
    lone = min(paid * (math.fsum(c.exchanges) / c.workers - c.update), room)
    update = min(paid * c.update, room - lone)
    queue = min(path.queued * (paid > 0), room - lone - update)
    return {"compute E[T]": mean, "slack": room - lone - update - queue, "transfer": lone, "update": update,
            "queueing": queue}


def drawn(c: Setting, path: queues.Path, terms: dict[str, float], formula: str, source: str, *,
          faithful: bool, lower: float | None = None) -> tuple[Prediction, Prediction, Prediction]:
    """Iteration, run and mean staleness from an evaluated recursion."""
    order = "first come first served" if c.clear else "pushes reach all servers in one order"
    whole = path.pace.value * c.steps
    ends = {"iterations": whole, "excess of the last worker": path.end.value - whole}
    if c.plan:
        formula = "parts on their links, sent as they are ready; up = max(up, ready) + c, back likewise"
        source += "; Zhang et al. 2017; Jayarajan et al. 2019"
        # on a link that serves both directions, rounding decides which of two messages is first
        faithful = faithful and not (c.one_link and c.tied)
    return (path.pace.predicted("s", terms, formula, source, order, faithful=faithful and path.steady,
                                lower=lower),
            path.end.predicted("s", ends, formula, source, order, faithful=faithful and path.whole),
            path.staleness.predicted("updates", {"mean": path.staleness.value}, formula, source, order,
                                     faithful=faithful and path.whole, lower=0.0))


def asp(c: Setting) -> Figures:
    """ASP: each push is applied and answered alone."""
    if c.placed or (c.machine.colocated and c.queues):
        path = queues.path(queues.Fresh, c.times, c.links, c.steps)
        step, run, age = drawn(c, path, shares_of(c, path), *DRAWN, faithful=c.clear)
    else:
        step = server.asp(c.times, **c.network)
        run, age = asp_seconds(c, step), staleness.asp_run(c.times, c.steps, c.exchanges)
    out = figures(c, step, run, c.workers * c.steps, c.workers * (c.pushed + c.nbytes),
                  {"staleness_mean": age})
    in_turn = c.alike and c.tied
    if c.workers == 1 or in_turn:
        out["staleness_max"] = Prediction(c.workers - 1.0, "updates", "exact", {},
                                          "n - 1: the workers take turns", staleness.SOURCE)
    elif c.alike and c.times[0].family == "exponential" and not any(c.exchanges):
        out["staleness_max"] = staleness.geometric_maximum(c.workers, c.workers * c.steps)
    else:
        out.without(PUSHES, "staleness_max")
    out |= clocks(c, 1, 1, "the workers take turns") if in_turn else unbounded(c)
    return out


def softsync(c: Setting, default: int | None = 1) -> Figures:
    """ASP whose server applies c = floor(n/splitting) gradients in one update, at the last of them."""
    given = c.options.get("splitting", default)
    splitting = check_count("splitting", int(c.workers if given is None else given))
    if splitting > c.workers:
        raise DomainError(f"splitting {splitting} of {c.workers} workers; softsync assumes at most n")
    size, update = c.workers // splitting, c.machine.update
    if c.placed:
        path = queues.path(queues.Batched, c.times, c.links, c.steps, size)
        step, run, age = drawn(c, path, shares_of(c, path), *DRAWN, faithful=True)
        out = figures(c, step, run, -(-c.workers * c.steps // size), c.workers * (c.pushed + c.nbytes),
                      {"staleness_mean": age}, unbounded(c))
        return out.without(PUSHES, "staleness_max")
    shared = update is not None and size > 1
    if update is not None and shared:
        c = replace(c, machine=c.machine.with_(update=update.scaled(1 / size)))
    out = asp(c)
    for name in ("seconds_per_iteration", "seconds", "images_per_second", "idle_ratio"):
        if shared and name in out and out[name].kind == "exact":
            out[name] = replace(out[name], kind="approximation")
    out["updates"] = count(-(-c.workers * c.steps // size), "updates", "ceil(n steps / c)")
    p = out["staleness_mean"]
    out["staleness_mean"] = Prediction(
        p.value / size, "updates", weaker(p.kind, "exact" if size == 1 else "approximation"),
        {"in pushes": p.value, **(sampling(p.error) if size == 1 else {})},
        "(n-1)/c less the end of the run", staleness.SOURCE, p.assumptions, {"in pushes": "pushes"})
    return out.without(PUSHES, "staleness_max")


def staleness_aware(c: Setting) -> Figures:
    """Softsync in which, by default, every gradient is an update."""
    return softsync(c, None)
