"""Workers of unequal speed: what a synchronous step costs, and how to share a batch.

References
----------
Chen, Weng, Li, Xu, "Semi-dynamic load balancing: efficient distributed learning in non-dedicated
environments", SoCC 2020: batches by speed.
Pani, Hand, Yalamanchili, "Performance analysis of distributed deep learning", CSE 812 report, Michigan State
University, 2020: the 1/21 example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from refsgd.theory.prediction import DomainError, Prediction


def _speeds(speeds: Sequence[float]) -> list[float]:
    if not speeds or any(not s > 0 or math.isinf(s) for s in speeds):
        raise DomainError(
            f"speeds {list(speeds)}; the formula assumes at least one worker and finite speeds > 0")
    return [float(s) for s in speeds]


def step(batches: Sequence[float], speeds: Sequence[float]) -> Prediction:
    """Seconds of a synchronous step: max_i b_i / s_i."""
    s = _speeds(speeds)
    if len(batches) != len(s) or any(not b >= 0 for b in batches):
        raise DomainError(
            f"batches {list(batches)} for {len(s)} workers; the formula assumes one number >= 0 for each")
    times = [b / v for b, v in zip(batches, s, strict=True)]
    mean = math.fsum(times) / len(times)
    return Prediction(max(times), "s", "exact", {"compute, mean": mean, "straggling": max(times) - mean},
                      "max_i b_i / s_i", "definition", "time proportional to the batch; no network")


def shares(speeds: Sequence[float], batch: float = 1.0) -> list[float]:
    """Batches proportional to speed: all end together, after batch / sum s.

    >>> [round(b, 4) for b in shares([20, 1], 1)]
    [0.9524, 0.0476]
    """
    s = _speeds(speeds)
    total = math.fsum(s)
    return [batch * v / total for v in s]
