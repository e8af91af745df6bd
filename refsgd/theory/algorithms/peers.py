"""Iteration and run times of peers, by synchronisation: none (`apart`), global (all begin an iteration
together, and `repeat` is the run), neighbours (`heard_from`); sequential SGD, independent runs and Hogwild!.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from refsgd.theory.algorithms.asp import PUSHES
from refsgd.theory.estimate import certain, kind_of
from refsgd.theory.phenomena import gossip, iteration, staleness
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import Setting, clocks, figures, last_of_sums, unbounded, weaker, zero


def alone(c: Setting) -> Prediction:
    """The iteration of workers that never wait: n over the sum of their rates, 1/(E[T_i] + E[u_i])."""
    rounds = [time.mean + u for time, u in zip(c.times, c.own, strict=True)]
    value = c.workers / math.fsum(1 / r if r else math.inf for r in rounds)
    u = math.fsum(c.own) / c.workers
    return Prediction(value, "s", "exact", {"compute E[T]": value - u, "update": u, "own update": u},
                      "n / sum 1/(E[T_i] + E[u_i])", "definition", "no worker waits")


def free(c: Setting, step: Prediction, *, own: float = 0.0, tail: float = 0.0,
         more: float = 0.0) -> Prediction:
    """A run without global waits, which ends with the worker whose times have the largest sum; exchanges, if
    any, are assumed to take the same time for all workers."""
    mine = [own * u for u in c.own]
    waits = math.fsum(step.terms.get(name, 0.0)
                      for name in ("transfer", "update", "queueing", "straggling", "partner"))
    exchange = max(waits - step.terms.get("own update", 0.0), 0.0)
    last, exact = last_of_sums(c, mine)
    other = (c.steps + more) * exchange
    fixed = c.tied and (not own or certain(c.machine.update))
    known = exact and step.kind == "exact" and (fixed or not (exchange or any(mine)))
    return Prediction(last + other + tail, "s", kind_of(known),
                      {"last of the sums": last, "exchanges": other, "until the servers end": tail},
                      "E[max_i of the sum of steps times] + exchanges", step.source, step.assumptions)


def apart(c: Setting) -> tuple[Prediction, Prediction]:
    """Iteration and run of workers that never wait."""
    step = alone(c)
    return step, free(c, step, own=1)


def repeat(c: Setting, step: Prediction) -> Prediction:
    """A run of equal iterations, in which all wait for all."""
    return Prediction(step.value * c.steps, "s", weaker(step.kind), {"iterations": step.value * c.steps},
                      "steps x iteration", step.source, step.assumptions)


def in_rounds(c: Setting, exchange: Prediction, period: int = 1) -> Prediction:
    """The iteration of peers that exchange every `period` iterations, all at the slowest one's update."""
    update = c.machine.update
    slowest = update and update.scaled(1 / min(c.machine.speed(i) for i in range(c.workers)))
    p = iteration.allreduce(c.times, exchange, slowest, period)
    return replace(p, kind="approximation") if p.kind == "exact" and len(set(c.own)) > 1 else p


def heard_from(c: Setting, rounds: Sequence[Sequence[Sequence[int]]], nbytes: float, *, before: bool = False,
               rotated: bool = False) -> tuple[Prediction | None, Prediction | None]:
    """Iteration and run of peers that wait for messages of others, if each has its own links."""
    if c.placed:
        return None, None
    transfer = nbytes / c.machine.bandwidth
    mean, u, most = iteration.mean_time(c.times), max(c.own), max(len(heard) for heard in rounds[0])
    drawn = gossip.neighbours(c.times, rounds, c.machine.latency, transfer, update=u, before=before,
                              rotated=rotated, steps=c.steps)
    waits = drawn.pace.value - mean - u
    paid = min(0.0 if before else c.machine.latency + most * transfer, max(waits, 0.0))
    terms = {"compute E[T]": mean, "partner": max(waits - paid, 0.0), "transfer": paid, "update": u}
    steady = certain(c.machine.update) and len(set(c.own)) == 1
    clear = (not transfer or (c.together and most == 1)) and steady
    told = "the peers' recursion, by Monte Carlo", "Lian et al. 2017; Assran et al. 2019"
    return (drawn.pace.predicted("s", terms, *told, faithful=clear),
            drawn.end.predicted("s", {"last peer": drawn.end.value}, *told, faithful=clear))


def fresh(why: str = "only its own gradients update a replica") -> dict[str, Prediction]:
    """Zero staleness: gradients are applied to the model for which they were computed."""
    none = zero("updates", why)
    return {"staleness_mean": none, "staleness_max": none}


def sequential(c: Setting) -> Figures:
    """One worker: E[T] plus its own update."""
    if c.workers != 1:
        raise DomainError(f"workers {c.workers}; sequential SGD assumes 1")
    u, mean = c.own[0], c.times[0].mean
    step = Prediction(mean + u, "s", "exact", {"compute E[T]": mean, "update": u}, "E[T] + E[u]",
                      "definition")
    return figures(c, step, repeat(c, step), c.steps, 0, fresh("one worker"), clocks(c, 0, 0, "one worker"))


def independent(c: Setting) -> Figures:
    """n runs of sequential SGD without communication."""
    return figures(c, *apart(c), c.steps, 0.0, fresh(), unbounded(c))


def hogwild(c: Setting) -> Figures:
    """Shared cells without waiting: each read follows the worker's own update, so ASP's identity holds."""
    out = figures(c, *apart(c), c.steps, 0.0, unbounded(c))  # an addition takes its share of an update
    mean = staleness.asp_run(c.times, c.steps, c.own)
    out["staleness_mean"] = mean if certain(c.machine.update) else replace(mean, kind="approximation")
    return out.without(PUSHES, "staleness_max")
