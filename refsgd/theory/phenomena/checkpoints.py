"""Checkpoints and restarts: how often to save, and what share of the time is left for training.

References
----------
Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974: sqrt(2 C M).
Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006: the
expected time with failures at random times, which also interrupt checkpoints and restarts.
"""

from __future__ import annotations

from math import exp, expm1

from refsgd.theory.prediction import DomainError, Prediction


def checkpoints(cost: float, mtbf: float, nodes: int = 1, period: float = 0.0) -> Prediction:
    """The share of the time in which training continues, with a checkpoint after each `period` of it, by
    default the best.

    Parameters
    ----------
    cost : float
        Seconds of writing a checkpoint, and of reading it after a failure.
    mtbf : float
        Mean seconds between failures of one node; any failure ends the run of all.
    nodes : int
    period : float
        Seconds of training between checkpoints; 0: those that leave most.

    Examples
    --------
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
