"""Cutting a net into stages: bubbles of a pipeline, and where to cut.

References
----------
Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019.
Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019: partition by
dynamic programming.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from refsgd.theory.prediction import DomainError, Prediction, check_count, check_time


def bubble(micro_batches: int, stages: int) -> Prediction:
    """Idle share of k equal stages with m micro-batches: (k-1)/(m+k-1), exact.

    A stage works m of the m + k - 1 slots in which the pipeline fills and drains.

    Parameters
    ----------
    micro_batches : int
        m, at least 1.
    stages : int
        k, at least 1.

    Returns
    -------
    Prediction

    Examples
    --------
    >>> bubble(4, 4).value
    0.42857142857142855
    """
    m, k = check_count("micro-batches", micro_batches), check_count("stages", stages)
    return Prediction((k - 1) / (m + k - 1), "1", "exact", {"filling and draining": (k - 1) / (m + k - 1)},
                      "(k-1)/(m+k-1)", "Huang et al. 2019, section 2.3", "equal stages; no time to hand over")


def flush(stage_times: Sequence[float], micro_batches: int) -> Prediction:
    """Seconds of one batch through stages of these times per micro-batch, forward then backward, then a flush.

    Fixed times: sum t + (m-1) max t, exact for one direction, since the slowest stage paces the rest; with both
    directions pass forward times and backward times in turn and add.

    Parameters
    ----------
    stage_times : sequence of float
        t, seconds of each stage for one micro-batch.
    micro_batches : int
        m, at least 1.

    Returns
    -------
    Prediction
    """
    m = check_count("micro-batches", micro_batches)
    if not stage_times:
        raise DomainError("0 stages; the formula assumes at least one")
    times = [check_time("stage", t) for t in stage_times]
    value = math.fsum(times) + (m - 1) * max(times)
    return Prediction(value, "s", "exact", {"one pass": math.fsum(times), "slowest stage": (m - 1) * max(times)},
                      "sum t + (m-1) max t", "Huang et al. 2019", "fixed times; no time to hand over")


def _best(n: int, parts: int, cost: Callable[[int, int], float], join: Callable[[float, float], float]) -> tuple[float, list[int]]:
    """Cut 0..n into `parts` non-empty pieces that minimise the joined cost; piece sizes of the first optimum."""
    best = [[math.inf] * (n + 1) for _ in range(parts + 1)]
    cut = [[0] * (n + 1) for _ in range(parts + 1)]
    best[0][0] = 0.0
    for k in range(1, parts + 1):
        for end in range(k, n + 1):
            for start in range(k - 1, end):
                value = join(best[k - 1][start], cost(start, end)) if best[k - 1][start] < math.inf else math.inf
                if value < best[k][end]:
                    best[k][end], cut[k][end] = value, start
    sizes, end = [], n
    if math.isfinite(best[parts][n]):
        for k in range(parts, 0, -1):
            sizes.append(end - cut[k][end])
            end = cut[k][end]
    return best[parts][n], sizes[::-1]


def balance(times: Sequence[float], stages: int) -> tuple[Prediction, list[int]]:
    """Contiguous stages whose slowest is fastest: dynamic programming over layers, O(L^2 k).

    Parameters
    ----------
    times : sequence of float
        Seconds of layers 1..L.
    stages : int
        k, at most L.

    Returns
    -------
    tuple
        Seconds of the slowest stage (exact optimum), and the number of layers in each stage.
    """
    k = check_count("stages", stages)
    if k > len(times):
        raise DomainError(f"{k} stages of {len(times)} layers; the partition assumes a layer for each stage")
    for t in times:
        check_time("layer", t)
    sums = [0.0]
    for t in times:
        sums.append(sums[-1] + t)
    value, sizes = _best(len(times), k, lambda a, b: sums[b] - sums[a], max)
    return Prediction(value, "s", "exact", {"slowest stage": value, "even share": sums[-1] / k},
                      "min over cuts of max over stages of sum t", "Narayanan et al. 2019, section 3.1"), sizes


def cheapest_cut(activations: Sequence[float], memory: Sequence[float], parts: int, cap: float = math.inf) -> tuple[Prediction, list[int]]:
    """Contiguous parts with the fewest bytes across cuts, each within `cap` bytes of memory.

    Parameters
    ----------
    activations : sequence of float
        Bytes that layer l hands to layer l+1, l = 1..L-1.
    memory : sequence of float
        Bytes that layer l needs, l = 1..L.
    parts : int
        How many, at most L.
    cap : float
        Most bytes of memory of a part.

    Returns
    -------
    tuple
        Bytes per batch, forward and the gradients of the same size back: 2 sum of cuts; layers in each part.
    """
    k, n = check_count("parts", parts), len(memory)
    if len(activations) != n - 1 or k > n:
        raise DomainError(f"{len(activations)} activations, {n} layers, {k} parts; the partition assumes L-1, L, at most L")
    value, sizes = _best(n, k, lambda a, b: (activations[a - 1] if a else 0.0)
                         if math.fsum(memory[a:b]) <= cap else math.inf, lambda x, y: x + y)
    if not sizes:
        raise DomainError(f"no {k} parts within {cap:g} bytes each; the partition assumes that the layers fit")
    return Prediction(2 * value, "bytes", "exact", {"forward": value, "backward": value}, "2 x sum of cuts",
                      "dynamic programming over layers"), sizes
