"""Workers of unequal speed: what a synchronous step costs, and how to share a batch.

References
----------
Chen, Weng, Li, Xu, "Semi-dynamic load balancing: efficient distributed learning in non-dedicated
environments", SoCC 2020: batches by speed.
Pani, Hand, Yalamanchili, "Performance analysis of distributed deep learning", CSE 812 report, Michigan State University, 2020: the
1/21 example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from refsgd.theory.prediction import DomainError, Prediction


def _speeds(speeds: Sequence[float]) -> list[float]:
    if not speeds or any(not s > 0 or math.isinf(s) for s in speeds):
        raise DomainError(f"speeds {list(speeds)}; the formula assumes at least one worker and finite speeds > 0")
    return [float(s) for s in speeds]


def step(batches: Sequence[float], speeds: Sequence[float]) -> Prediction:
    """Seconds of a synchronous step: max_i b_i / s_i.

    Parameters
    ----------
    batches : sequence of float
        Images of each worker, >= 0.
    speeds : sequence of float
        Images per second of each worker.

    Returns
    -------
    Prediction
    """
    s = _speeds(speeds)
    if len(batches) != len(s) or any(not b >= 0 for b in batches):
        raise DomainError(f"batches {list(batches)} for {len(s)} workers; the formula assumes one number >= 0 for each")
    times = [b / v for b, v in zip(batches, s, strict=True)]
    mean = math.fsum(times) / len(times)
    return Prediction(max(times), "s", "exact", {"compute, mean": mean, "straggling": max(times) - mean},
                      "max_i b_i / s_i", "definition", "time proportional to the batch; no network")


def shares(speeds: Sequence[float], batch: float = 1.0) -> list[float]:
    """Batches proportional to speed: all end together, after batch / sum s.

    Parameters
    ----------
    speeds : sequence of float
        Speed of each worker, > 0.
    batch : float
        Of all workers together.

    Returns
    -------
    list of float

    Examples
    --------
    >>> [round(b, 4) for b in shares([20, 1], 1)]
    [0.9524, 0.0476]
    """
    s = _speeds(speeds)
    total = math.fsum(s)
    return [batch * v / total for v in s]


def whole_shares(speeds: Sequence[float], batch: int) -> list[int]:
    """Whole images, by largest remainders of `shares`; ties to the lower rank.

    Parameters
    ----------
    speeds : sequence of float
        Speed of each worker, > 0.
    batch : int
        Of all workers together.

    Returns
    -------
    list of int
        They sum to `batch`.
    """
    exact = shares(speeds, batch)
    out = [math.floor(b + 1e-12) for b in exact]
    order = sorted(range(len(exact)), key=lambda i: (-(exact[i] - out[i]), i))
    for i in order[: batch - sum(out)]:
        out[i] += 1
    return out


def gain(speeds: Sequence[float]) -> Prediction:
    """Largest speed-up over the fastest worker alone: sum s / max s, reached by proportional batches.

    A machine 20 times slower than the other takes 1/21 of each batch and adds 5 %: no gain if its share is
    smaller than a batch can usefully be, or if exchanging costs more than 1/21 of the time.

    Parameters
    ----------
    speeds : sequence of float
        Speed of each worker, > 0.

    Returns
    -------
    Prediction
    """
    s = _speeds(speeds)
    value = math.fsum(s) / max(s)
    return Prediction(value, "1", "bound", {"smallest share": min(s) / math.fsum(s)}, "sum s / max s", "definition",
                      "no network; batches proportional to speed", bound="upper")


def equal_batches(speeds: Sequence[float]) -> Prediction:
    """Speed-up over the fastest alone with equal batches: n min s / max s, less than 1 if one is n times slower.

    Parameters
    ----------
    speeds : sequence of float
        Speed of each worker, > 0.

    Returns
    -------
    Prediction
    """
    s = _speeds(speeds)
    return Prediction(len(s) * min(s) / max(s), "1", "exact", {"slowest": min(s), "fastest": max(s)},
                      "n min s / max s", "definition", "no network; equal batches", {"slowest": "images/s", "fastest": "images/s"})
