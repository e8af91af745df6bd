"""Shared by all collectives: two kinds of message, sums of vectors, and their division.

Half precision is computed by arithmetic on bits, which gives numpy's results faster: numpy converts one
number at a time, and is slowest for subnormal numbers, which are common in gradients.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from refsgd.effects import Array

BLOCK = 1 << 16  # elements that stay in a core's cache while all vectors are added to them
#: what each of the 65,536 halves is in single precision
SINGLE = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
HALVES = 1 << 14  #: numbers that stay in a core's nearest caches
OVERFLOW = np.uint32(0x477FF000)  #: 65,520, the least number that rounds to infinity


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


def single(h: Array) -> Array:
    """The same numbers in single precision."""
    return SINGLE.take(h.view(np.uint16))


def half(x: Array) -> Array:
    """Single precision rounded to half, ties to even, as ``x.astype(np.float16)``."""
    h, room, powers = np.empty(x.size, np.uint16), np.empty(HALVES, np.uint32), np.empty(HALVES, np.uint32)
    for start in range(0, x.size, HALVES):
        bits = x[start: start + HALVES].view(np.uint32)
        size, power = room[: bits.size], powers[: bits.size]
        np.bitwise_and(bits, np.uint32(0x7FFFFFFF), out=size)
        if size.max() >= OVERFLOW:  # or no number
            with np.errstate(over="ignore"):
                h[start: start + HALVES] = x[start: start + HALVES].astype(np.float16).view(np.uint16)
            continue
        # beside 2**13 times its power of two (of halves at least 2**-14) a number loses 13 bits
        np.bitwise_and(size, np.uint32(0xFF << 23), out=power)
        np.maximum(power, np.uint32(113 << 23), out=power)
        power += np.uint32(13 << 23)
        rounded = size.view(np.float32)
        rounded += power.view(np.float32)
        size -= power
        power >>= np.uint32(13)
        size += power
        size -= np.uint32(126 << 10)
        np.right_shift(bits, np.uint32(16), out=power)
        power &= np.uint32(0x8000)
        size |= power
        h[start: start + HALVES] = size
    return h.view(np.float16)


def plus(x: Array, y: Array) -> Array:
    """x + y, which for halves is computed in single precision and rounded."""
    return half(single(x) + single(y)) if x.dtype == np.float16 else np.add(x, y)


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
