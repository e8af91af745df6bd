"""Figures of algorithms in which nobody waits for anybody: independent runs, Hogwild!."""

from __future__ import annotations

import math

from refsgd.theory import staleness
from refsgd.theory.peers import alone, free, fresh
from refsgd.theory.setting import Figures, Setting, clocks, figures


def independent(c: Setting) -> Figures:
    """n runs of sequential SGD that never speak.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    step = alone(c)
    return {**figures(c, step, free(c, step, own=1), c.steps, 0.0), **fresh(),
            **clocks(c, math.inf, math.inf, "no bound but the length of the run")}


def hogwild(c: Setting) -> Figures:
    """Shared cells: nobody waits, each read follows the own update, so the identity of ASP holds.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.

    Returns
    -------
    dict of str to Prediction
    """
    adds = 2  # updates' times: an addition takes its part's share of one, and the counter is a cell of one part
    step = alone(c, adds)
    out = figures(c, step, free(c, step, own=adds), c.steps, 0.0)
    out |= clocks(c, math.inf, math.inf, "no bound but the length of the run")
    if c.steps and c.machine.update is None:
        out["staleness_mean"] = staleness.asp_run(c.laws, c.steps)
    return out
