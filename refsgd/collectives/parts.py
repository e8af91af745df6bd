"""Shared by all collectives: two kinds of message, and the division of a vector."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from refsgd.effects import Array

BLOCK = 1 << 16  # elements that stay in a core's cache while all vectors are added to them


class Part(NamedTuple):
    """rank -> rank: a partial sum, which the receiver adds to its own."""

    chunk: Array


class Total(NamedTuple):
    """rank -> rank: a finished sum, which is only copied, so that all ranks hold the same bits."""

    chunk: Array


def add(first: Array, *others: Array) -> Array:
    """first + others[0] + others[1] + ..., every element in this order, in one pass over memory."""
    if not isinstance(first, np.ndarray):  # of a vector without contents
        return sum(others, start=first)
    total = np.empty_like(first)
    for start in range(0, first.size, BLOCK):
        block = slice(start, start + BLOCK)
        np.add(first[block], others[0][block], out=total[block])
        for other in others[1:]:
            np.add(total[block], other[block], out=total[block])
    return total


def chunks(d: int, count: int) -> list[slice]:
    """Divide range(d) into `count` contiguous chunks of equal length to within one; some are empty if d <
    count.

    >>> chunks(7, 3)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
    """
    if count < 1:
        raise ValueError(f"a vector cut into {count} parts; expected at least 1")
    edges = [d * k // count for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def factors(n: int) -> tuple[int, int]:
    """X >= Y with X Y = n >= 1, as nearly square as possible.

    >>> factors(12), factors(7)
    ((4, 3), (7, 1))
    """
    y = max(k for k in range(1, math.isqrt(n) + 1) if n % k == 0)
    return n // y, y
