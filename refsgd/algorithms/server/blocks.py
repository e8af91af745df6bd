"""The choice of blocks of coordinates that `strads` updates together.

A block that still moves is drawn more often.  A block that is correlated with another one is left out,
because both would correct the same error in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from refsgd.algorithms.facts import one_of
from refsgd.effects import Array, Choose, Program

Policy = Literal["fixed", "dependency-aware", "prioritised"]
Matrix = npt.NDArray[np.float64]


def schedule(t: int, change: Matrix, conflicts: Matrix, policy: Policy, width: int, rho: float,
             eps: float) -> Program[list[int]]:
    """The blocks of step t: the next ones, or drawn ones without those that conflict."""
    count, drawn = len(conflicts), list[int]()
    if policy == "fixed":
        return round_robin(t, count, width)
    p = np.array(chances(change if policy == "prioritised" else 0 * change, eps))
    while len(drawn) < width:
        left = [k for k in range(count) if k not in drawn]
        drawn.append((yield Choose(left, [float(c) for c in p[left] / p[left].sum()])))
    return independent(drawn, conflicts, rho)


def round_robin(t: int, count: int, width: int) -> list[int]:
    """Blocks from number width (t mod B) on, of B = ceil(count / width) turns: each block once in B steps."""
    first = width * (t % -(-count // width))
    return list(range(first, min(first + width, count)))


def chances(change: Matrix, eps: float) -> list[float]:
    """Probability of each block, proportional to its largest |last change| + eps."""
    weight = np.abs(change) + eps
    return [float(p) for p in weight / weight.sum()]


def independent(candidates: Sequence[int], conflicts: Matrix, rho: float) -> list[int]:
    """Those candidates, in order, that conflict with none kept before: correlations below rho."""
    kept: list[int] = []
    for j in candidates:
        if all(abs(conflicts[j, k]) < rho for k in kept):
            kept.append(j)
    return kept


def between(correlation: Matrix, cut: Sequence[slice]) -> Matrix:
    """The largest absolute correlation between the coordinates of each two blocks, (B, B)."""
    starts = [part.start for part in cut]
    return np.asarray(np.maximum.reduceat(np.maximum.reduceat(np.abs(correlation), starts, 0), starts, 1))


def take(x: Array, parts: Sequence[slice]) -> Array:
    """The entries of these parts, one after another."""
    return np.concatenate([x[part] for part in parts])


def put(x: Array, parts: Sequence[slice], values: Array) -> Array:
    """A copy of x with these entries in these parts."""
    x, at = x.copy(), 0
    for part in parts:
        x[part] = values[at:at + part.stop - part.start]
        at += part.stop - part.start
    return x


def check(policy: Policy, count: int, width: int, rho: float, eps: float, d: int) -> None:
    """Raise ValueError if an option is invalid for d coordinates."""
    one_of("policy", policy, Policy)
    if not 1 <= count <= d:
        raise ValueError(f"blocks {count}; expected 1 to {d}, the number of parameters")
    if not (1 <= width <= count and rho >= 0 and eps > 0):
        raise ValueError(f"width {width}, rho {rho}, eps {eps}; expected width in 1..{count}, rho >= 0, "
                         "eps > 0")
