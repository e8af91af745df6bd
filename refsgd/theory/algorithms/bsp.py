"""Predictions for bulk-synchronous SGD through parameter servers."""

from __future__ import annotations

from refsgd.theory.algorithms.asp import DRAWN, drawn, shares_of
from refsgd.theory.algorithms.peers import fresh
from refsgd.theory.phenomena import iteration, queues
from refsgd.theory.prediction import Figures, Prediction
from refsgd.theory.setting import Setting, clocks, figures


def bsp(c: Setting) -> Figures:
    """All workers push, the slowest decides, all get an answer."""
    half = c.one_link
    if c.placed and not (half and c.alone):
        rotated = c.machine.colocated and c.servers == c.workers
        path = queues.bulk(c.times, c.links, c.steps, rotated)
        step, run, _ = drawn(c, path, shares_of(c, path), *DRAWN, faithful=True)
        return _figures(c, step, run)
    step = iteration.bsp(c.times, **c.network)
    if half:
        step = iteration.bsp_duplex(c.times, "half", transfer=c.transfer, latency=c.machine.latency,
                                    update=c.update,
                                    colocated=c.machine.colocated)
    run = iteration.bsp_run(c.times, c.steps, **c.network, duplex="half" if half else "full")
    return _figures(c, step, run)


def _figures(c: Setting, step: Prediction, run: Prediction) -> Figures:
    """Figures of iterations in which all wait for all."""
    return figures(c, step, run, c.steps, 2 * c.workers * c.nbytes,
                   fresh("a barrier before each update"),
                   clocks(c, 0, 1, "nobody starts before all have ended"))
