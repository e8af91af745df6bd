"""Predictions for algorithms without waiting: sequential SGD, independent runs, Hogwild!."""

from __future__ import annotations

from refsgd.theory.algorithms.asp import PUSHES
from refsgd.theory.algorithms.peers import alone, free, fresh
from refsgd.theory.phenomena import staleness
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import Setting, clocks, figures, unbounded


def sequential(c: Setting) -> Figures:
    """One worker: E[T] plus its own update."""
    if c.workers != 1:
        raise DomainError(f"workers {c.workers}; sequential SGD assumes 1")
    u, mean = c.own[0], c.times[0].mean
    step = Prediction(mean + u, "s", "exact", {"compute E[T]": mean, "update": u}, "E[T] + E[u]",
                      "definition")
    run = Prediction(c.steps * (mean + u), "s", "exact", {"iterations": c.steps * (mean + u)},
                     "steps x iteration", "definition")
    return figures(c, step, run, c.steps, 0, fresh("one worker"), clocks(c, 0, 0, "one worker"))


def independent(c: Setting) -> Figures:
    """n runs of sequential SGD without communication."""
    step = alone(c)
    return figures(c, step, free(c, step, own=1), c.steps, 0.0, fresh(), unbounded(c))


def hogwild(c: Setting) -> Figures:
    """Shared cells without waiting: each read follows the worker's own update, so ASP's identity holds."""
    step = alone(c)  # an addition takes its part's share of an update
    out = figures(c, step, free(c, step, own=1), c.steps, 0.0, unbounded(c))
    if c.machine.update is None:
        out["staleness_mean"] = staleness.asp_run(c.times, c.steps)
    else:
        out.without("no formula if additions to the cells take time, because reads then fall between them",
                    "staleness_mean")
    return out.without(PUSHES, "staleness_max")
