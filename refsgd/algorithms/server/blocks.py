"""The choice of a block of coordinates that `schedules` updates together.

A coordinate that still moves is drawn more often.  A coordinate that is correlated with another one in the
block is left out, because both would correct the same error in full.

References
----------
Lee, Kim, Zheng, Ho, Gibson and Xing, "On model parallelization and scheduling strategies for distributed
machine learning", NIPS 2014, section 3.3: priorities and dependencies of the Lasso.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from refsgd.effects import Choose, Program

Policy = Literal["round-robin", "random", "priority"]
Matrix = npt.NDArray[np.float64]


def schedule(t: int, change: Matrix, gram: Matrix, policy: Policy, width: int, rho: float,
             eps: float) -> Program[list[int]]:
    """The block of step t: the next coordinates, or drawn ones without those that conflict."""
    d, drawn = len(gram), list[int]()
    if policy == "round-robin":
        return round_robin(t, d, width)
    p = np.array(chances(change if policy == "priority" else 0 * change, eps))
    while len(drawn) < width:
        left = [j for j in range(d) if j not in drawn]
        drawn.append((yield Choose(left, [float(c) for c in p[left] / p[left].sum()])))
    return independent(drawn, gram, rho)


def round_robin(t: int, d: int, width: int) -> list[int]:
    """Block t mod B of the B = ceil(d / width) blocks: each coordinate once in a sweep of B steps."""
    first = width * (t % -(-d // width))
    return list(range(first, min(first + width, d)))


def chances(change: Matrix, eps: float) -> list[float]:
    """Probability of each coordinate, proportional to |last change| + eps; (d,)."""
    weight = np.abs(change) + eps
    return [float(p) for p in weight / weight.sum()]


def independent(candidates: Sequence[int], gram: Matrix, rho: float) -> list[int]:
    """Those candidates, in order, that conflict with none kept before: |a_j . a_k| < rho."""
    kept: list[int] = []
    for j in candidates:
        if all(abs(gram[j, k]) < rho for k in kept):
            kept.append(j)
    return kept


def check(policy: Policy, width: int, rho: float, eps: float, d: int) -> None:
    """Raise ValueError if an option is invalid for d coordinates."""
    if policy not in ("round-robin", "random", "priority"):
        raise ValueError(f"policy {policy!r}; expected round-robin, random or priority")
    if not (1 <= width <= d and rho >= 0 and eps > 0):
        raise ValueError(f"width {width}, rho {rho}, eps {eps}; expected width in 1..{d}, rho >= 0, eps > 0")
