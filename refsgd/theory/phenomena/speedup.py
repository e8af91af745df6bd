"""Times to a target to which a race compares: what sequential SGD would take on n workers without a network.

They are reference lines, not bounds: an algorithm that averages iterates can be faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def linear(gradients: float, times: Sequence[float]) -> float:
    """Seconds of sequential SGD's gradients, if all workers computed them together and waited for nothing.

    >>> linear(64, [0.5] * 8)
    4.0
    """
    return gradients / math.fsum(1 / time for time in times)


def noise_scale(batch: float, updates: float, large: float, fewer: float) -> tuple[float, float]:
    """S_min and B_c of S = S_min (1 + B_c / B) (McCandlish et al. 2018), from the updates of two batches.

    >>> noise_scale(10, 50, 100, 14)
    (10.0, 40.0)
    """
    least = (large * fewer - batch * updates) / (large - batch)
    return least, batch * updates / least - batch if least > 0 else math.inf


def optimal_order(least: float, critical: float, batch: float, times: Sequence[float]) -> float:
    """Seconds to the target of minibatch SGD, each batch shared by the m fastest workers in proportion to
    their speeds, for the best m: min_m S_min (m + B_c / b) / (1/tau_1 + ... + 1/tau_m) (Tyurin and
    Richtarik 2023).

    >>> optimal_order(10, 16, 16, [1, 1, 100])
    15.0
    """
    quick = sorted(times)
    return min(least * (m + critical / batch) / math.fsum(1 / time for time in quick[:m])
               for m in range(1, len(quick) + 1))
