"""Predictions for bulk-synchronous SGD through parameter servers."""

from __future__ import annotations

from refsgd.theory.algorithms.peers import fresh
from refsgd.theory.phenomena import iteration
from refsgd.theory.prediction import Figures
from refsgd.theory.setting import Setting, clocks, figures


def bsp(c: Setting) -> Figures:
    """All workers push, the slowest decides, all get an answer."""
    half = c.one_link
    step = iteration.bsp(c.times, **c.network)
    if half:
        step = iteration.bsp_duplex(c.times, "half", transfer=c.transfer, latency=c.machine.latency,
                                    update=c.update,
                                    colocated=c.machine.colocated)
    run = iteration.bsp_run(c.times, c.steps, **c.network, duplex="half" if half else "full")
    return figures(c, step, run, c.steps, 2 * c.workers * c.nbytes,
                   fresh("a barrier before each update"),
                   clocks(c, 0, 1, "nobody starts before all have ended"))
