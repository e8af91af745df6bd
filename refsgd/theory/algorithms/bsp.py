"""Predictions for bulk-synchronous SGD through parameter servers."""

from __future__ import annotations

from refsgd.theory.algorithms.asp import DRAWN, drawn, shares_of
from refsgd.theory.algorithms.peers import fresh
from refsgd.theory.estimate import certain
from refsgd.theory.phenomena import iteration, queues
from refsgd.theory.prediction import Figures, Prediction
from refsgd.theory.setting import Setting, clocks, figures

MANY = 256  # pushes of an iteration, beyond which workers are taken to stay in step even with random times


def bsp(c: Setting) -> Figures:
    """BSP: all workers push, the slowest sets the pace, all receive an answer."""
    half, rotated = c.one_link, c.machine.colocated and c.servers == c.workers
    if c.placed and not (half and c.alone) and not (rotated and not c.shared and _in_step(c)):
        path = queues.path(queues.Bulk, c.times, c.links, c.steps, rotated)
        step, run, _ = drawn(c, path, shares_of(c, path), *DRAWN, faithful=True)
        return _figures(c, step, run)
    duplex = "half" if half else "full"
    step = iteration.bsp(c.times, **c.network, duplex=duplex)
    run = iteration.bsp_run(c.times, c.steps, **c.network, duplex=duplex)
    return _figures(c, step, run)


def _in_step(c: Setting) -> bool:
    """Whether workers that share hosts with servers stay in step, or are too many to evaluate."""
    return (c.together and certain(c.machine.update)) or c.workers * c.servers > MANY


def _figures(c: Setting, step: Prediction, run: Prediction) -> Figures:
    """The metrics of iterations in which all wait for all."""
    return figures(c, step, run, c.steps, c.workers * (c.pushed + c.nbytes),
                   fresh("a barrier before each update"),
                   clocks(c, 0, 1, "no worker starts before all have ended"))
