"""Seconds of an iteration and of a run, by whom one waits for: nobody, everybody, the peers that one hears
from.

Nobody: `alone` is the iteration, `free` the run, which ends with the slowest.  Everybody: all begin an
iteration together, and the run is so many of them, `repeat`.  Some: `heard_from` gives both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from refsgd.theory.phenomena import gossip, iteration
from refsgd.theory.prediction import Kind, Prediction, kind_of, sampling
from refsgd.theory.setting import Figures, Setting, last_of_sums, zero


def alone(c: Setting, updates: int = 1) -> Prediction:
    """Workers that wait for nobody: n over the sum of their rates, each E[T] and its own updates an
    iteration.
    """
    rounds = [time.mean + updates * u for time, u in zip(c.times, c.own, strict=True)]
    value, u = c.workers / math.fsum(1 / r if r else math.inf
                                     for r in rounds), updates * math.fsum(c.own) / c.workers
    return Prediction(value, "s", "exact", {"compute E[T]": value - u, "update": u, "own update": u},
                      "n / sum 1/(E[T_i] + E[u_i])",
                      "definition", "nobody waits")


def free(c: Setting, step: Prediction, *, own: float = 0.0, tail: float = 0.0,
         more: float = 0.0) -> Prediction:
    """A run in which nobody waits for everybody: it ends with the worker whose times sum up to most.

    An exchange, where there are some, is taken to be as long for that worker as for the others.
    """
    mine = [own * u for u in c.own]
    waits = math.fsum(step.terms.get(name, 0.0)
                      for name in ("transfer", "update", "queueing", "straggling", "partner"))
    exchange = max(waits - step.terms.get("own update", 0.0), 0.0)
    last, exact = last_of_sums(c, mine)
    other = (c.steps + more) * exchange
    fixed = all(time.family == "fixed" for time in c.times) and (not own or c.machine.update is None
                                                              or c.machine.update.family == "fixed")
    known = fixed or not (exchange or any(mine))
    end = last + other + (tail if c.steps else 0.0)
    return Prediction(end, "s", "exact" if exact and known and step.kind == "exact" else "approximation",
                      {"last of the sums": last, "exchanges": other, "until the servers have ended": tail},
                      "E[max_i of the sum of steps times] + exchanges", step.source, step.assumptions)


def repeat(c: Setting, step: Prediction) -> Prediction:
    """A run in which everybody waits for everybody: iterations that all are alike."""
    kind: Kind = "exact" if step.kind == "exact" else "approximation"
    return Prediction(step.value * c.steps, "s", kind, {"iterations": step.value * c.steps},
                      "steps x iteration",
                      step.source, step.assumptions)


def at_slowest_update(c: Setting, p: Prediction) -> Prediction:
    """The same, no longer exact where own updates are of unequal length: a formula takes the slowest worker's
    for all.
    """
    return replace(p, kind="approximation") if p.kind == "exact" and len(set(c.own)) > 1 else p


def heard_from(c: Setting, rounds: Sequence[Sequence[Sequence[int]]], transfer: float, *,
               before: bool = False,
               rotated: bool = False) -> tuple[Prediction, Prediction]:
    """Iteration and run of peers that wait for messages of others, by the recursion of their links."""
    mean, u, most = iteration.mean_time(c.times), max(c.own), max(len(heard) for heard in rounds[0])
    drawn = gossip.neighbours(c.times, rounds, c.machine.latency, transfer, update=u, before=before,
                              rotated=rotated, steps=max(c.steps, 1))
    waits = drawn.seconds - mean - u
    paid = min(0.0 if before else c.machine.latency + most * transfer, max(waits, 0.0))
    terms = {"compute E[T]": mean, "partner": max(waits - paid, 0.0), "transfer": paid, "update": u}
    together = len(set(c.times)) == 1 and c.tied
    steady = (c.machine.update is None or c.machine.update.family == "fixed") and len(set(c.own)) == 1
    clear = (not transfer or (together and most == 1)) and steady
    formula, source = "the peers' recursion, by Monte Carlo", "Lian et al. 2017; Assran et al. 2019"
    end, end_error = (drawn.end, drawn.end_error) if c.steps else (0.0, 0.0)
    return (Prediction(drawn.seconds, "s", kind_of(clear, drawn.error), terms | sampling(drawn.error),
                       formula, source),
            Prediction(end, "s", kind_of(clear, end_error), {"last peer": end, **sampling(end_error)},
                       formula, source))


def fresh() -> Figures:
    """The staleness of gradients that are applied to the replica that they were computed on: none."""
    none = zero("updates", "only its own gradients update a replica")
    return {"staleness_mean": none, "staleness_max": none}
