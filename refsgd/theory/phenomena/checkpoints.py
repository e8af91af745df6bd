"""Checkpoints and restarts: how often to save, and what share of the time is left for training."""

from __future__ import annotations

from math import exp, expm1

from refsgd.theory.prediction import DomainError, Prediction


def checkpoints(cost: float, mtbf: float, nodes: int = 1, period: float = 0.0) -> Prediction:
    """The share of the time in which training continues, with a checkpoint after each `period` of it, by
    default the best.

    `cost` is the seconds of writing a checkpoint, and of reading it after a failure; `mtbf` the mean seconds
    between failures of one node, any of which ends the run of all, checkpoints and restarts included.

    >>> p = checkpoints(cost=60.0, mtbf=3.6e6, nodes=100)
    >>> round(p.value, 3), round(p.terms["period"])
    (0.942, 2039)
    """
    if not (cost > 0 and mtbf > 0 and nodes >= 1 and period >= 0):
        raise DomainError(f"cost {cost}, mtbf {mtbf} s, {nodes} nodes, period {period} s; the formula "
                          "assumes times > 0 and a node")
    from scipy.special import lambertw

    mean = mtbf / nodes
    best = period or mean * (1 + float(lambertw(-exp(-1 - cost / mean)).real))
    share = best / (mean * exp(cost / mean) * expm1((best + cost) / mean))
    return Prediction(
        share, "1", "exact", {"period": best, "Young's period": (2 * cost * mean) ** 0.5},
        "T / (M e^(C/M) (e^((T + C)/M) - 1)), best at T = M (1 + W(-e^(-1 - C/M)))", "Young 1974; Daly 2006",
        "failures at independent exponential times, which end all nodes; a restart takes as long as a "
        "checkpoint",
        {"period": "s", "Young's period": "s"})
