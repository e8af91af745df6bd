"""Predictions for servers that take the fastest workers' gradients: the K-family, Rennala, Ringmaster,
Ringleader."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from refsgd.theory.algorithms.asp import PUSHES, asp
from refsgd.theory.algorithms.bsp import bsp
from refsgd.theory.algorithms.peers import fresh
from refsgd.theory.phenomena.fastest import accepted, gradients_of_rennala, of_step, round_of_ringleader
from refsgd.theory.phenomena.staleness import asp_run
from refsgd.theory.phenomena.stragglers import mean_of_order
from refsgd.theory.prediction import Figures, Prediction
from refsgd.theory.setting import TIMES, Setting, count, figures, unbounded

SIMULATED = "no closed form: who is among the first depends on the order of arrival"
SELDOM = "no closed form: only every B-th gradient takes an update"
ALIKE = "equal exponential times; no network; long run"
DUTTA = "Dutta et al. 2018"
RINGLEADER = "Maranjyan and Richtarik 2026"


def steady(c: Setting) -> bool:
    """Whether all updates have the same number of gradients; AdaSync's depends on the loss."""
    return math.isinf(c.options.get("interval", math.inf))


def approximation(value: float, unit: str, formula: str, source: str,
                  terms: Mapping[str, float] | None = None) -> Prediction:
    """A figure of a long run."""
    return Prediction(value, unit, "approximation", terms or {"mean": value}, formula, source, ALIKE)


def _first(c: Setting) -> int:
    """K, the number of gradients of an update."""
    return c.whole("gradients", (c.workers + 1) // 2)


def _waiting(c: Setting, update: tuple[float, float] | None) -> Figures:
    """Figures of workers of which some wait; of an `update`, its seconds and the gradients that are computed
    for it, if they are known."""
    step = None
    if update:
        mean, value = c.times[0].mean, c.workers * update[0] / update[1]
        step = approximation(value, "s", "time of an update x n / gradients computed for it", DUTTA,
                             {"compute E[T]": mean, "straggling": value - mean})
    out = figures(c, step, None, 0, c.workers * (c.pushed + c.nbytes), unbounded(c))
    if not update:
        return out.leave(SIMULATED, "updates")
    out["updates"] = approximation(c.workers * c.steps / update[1], "updates",
                                   "n steps / gradients computed for an update", DUTTA)
    return out


def k_async(c: Setting) -> Figures:
    """The first K gradients of K workers; of n equal ones the n - K others go on at an older model."""
    c, n, size = replace(c, servers=1), c.workers, _first(c)
    if size == n or (size == 1 and steady(c)):
        return bsp(c) if size == n else asp(c)
    if not (c.memoryless and steady(c)):
        return _waiting(c, None).without(PUSHES, "staleness_max").leave(SIMULATED, "staleness_mean")
    out = _waiting(c, (mean_of_order(c.times, size), size)).without(PUSHES, "staleness_max")
    left = asp_run(c.times, c.steps).value / (n - 1)  # of ages, at the end
    out["staleness_mean"] = approximation(
        left * (n - size) / size, "updates", "(n - K)/K: an update makes n - K reads older; less the end",
        DUTTA)
    return out


def k_sync(c: Setting) -> Figures:
    """The first K gradients at the newest model; late ones are dropped when they arrive."""
    c, size = replace(c, servers=1), _first(c)
    if size == c.workers:
        return bsp(c)
    seconds, late = of_step(size, c.workers - size)
    out = _waiting(c, (seconds * c.times[0].mean, size + late) if c.memoryless and steady(c) else None)
    return _dropped(out)


def rennala(c: Setting) -> Figures:
    """The first B gradients at the newest model, of any workers, none of which waits: the times are ASP's."""
    c, n = replace(c, servers=1), c.workers
    size, out = c.whole("gradients", n), asp(c)
    if n == 1 and steady(c):
        out["updates"] = count(-(-c.steps // size), "updates", "ceil(steps / B)")
        return out.leave(SELDOM, *TIMES) if c.update and size > 1 else out
    _ignoring(c, out)
    if c.memoryless and steady(c):
        needed = gradients_of_rennala(n, size)
        out["updates"] = approximation(n * c.steps / needed, "updates", "n steps / h(n-1, B)",
                                       "Tyurin and Richtarik 2023", {"gradients for an update": needed})
    return _dropped(out)


def _ignoring(c: Setting, out: Figures) -> None:
    """Leave to a simulation what depends on how many gradients are ignored, which take no update."""
    out.leave(SIMULATED, "images_per_second", "updates", "staleness_mean")
    if c.update:
        out.leave(SIMULATED, *TIMES)


def _dropped(out: Figures) -> Figures:
    """Add that no applied gradient is stale."""
    out |= fresh("a gradient of an older model is dropped")
    return out


def ringmaster(c: Setting) -> Figures:
    """ASP that ignores gradients of a delay of R or more: the times are ASP's, since nobody waits."""
    limit = float(c.option("threshold", c.workers))
    out, n = asp(c), c.workers
    if math.isinf(limit) or n == 1:
        return out
    _ignoring(c, out)
    out["staleness_max"] = Prediction(limit - 1, "updates", "bound", {}, "R - 1", "the threshold",
                                      bound="upper")
    if c.memoryless:
        share, mean = accepted(n, limit)
        source = "Maranjyan et al. 2025"
        out["updates"] = approximation(share * n * c.steps, "updates", "n steps (1 - q^R)", source,
                                       {"accepted": share})
        left = asp_run(c.times, c.steps).value / (n - 1)  # of ages, at the end
        out["staleness_mean"] = approximation(left * mean, "updates",
                                              "q/(1-q) - R q^R/(1 - q^R) less the end of the run", source)
    return out


def ringleader(c: Setting) -> Figures:
    """Workers share n steps gradients and never wait, so that all end together."""
    c, n = replace(c, servers=1), c.workers
    if n == 1:
        return asp(c)
    step, run = asp(c).get("seconds_per_iteration"), None
    if step and c.together and not c.queues:
        run = replace(step, value=c.steps * step.value, terms={}, formula="steps x (E[T] + exchange)")
    elif step and c.memoryless:
        mean, last = c.times[0].mean, mean_of_order(c.times, n)
        run = Prediction((c.steps - 1) * mean + last, "s", "exact",
                         {"while all compute": (c.steps - 1) * mean, "last gradients": last},
                         "(steps - 1) E[T] + E[largest of n]", RINGLEADER, "no network")
    most = n * (c.steps - 1) + 1  # gradients of a worker, if the others give one each
    out = figures(c, step, run, 0, n * (c.pushed + c.nbytes), unbounded(replace(c, steps=most)))
    out.leave(SIMULATED, "images_per_second", "staleness_mean", "updates")
    out["staleness_max"] = Prediction(
        2.0 * n - 2, "updates", "bound", {}, "2 n - 2: one update in each round", RINGLEADER, bound="upper")
    if c.memoryless:
        rounds = c.steps / round_of_ringleader(n)
        out["updates"] = approximation(n * rounds, "updates", "n x steps / mean times in a round", RINGLEADER,
                                       {"rounds": rounds})
    return out
