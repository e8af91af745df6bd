"""Compressed gradients: pure functions that encode a gradient in few bytes and keep the rest in a residual.

Each is ``(message, new state) = compress(state, gradient, ...)`` with a decoder.  The state is the residual:
the part that was not sent is added to the next gradient, so it is not lost, only late.

QSGD has no residual: it rounds each |v_j| s / |v| up or down at random, without bias.

Quick facts
-----------
bytes for d entries: top-k 8 k (value and index) | 1 bit d/8 + 8 per column | 2 bits d/4 | QSGD 1 per entry up
to 127 levels, and 4 per norm | exact: sum of what is sent + residual = sum of what came in | unbiased: QSGD |
deterministic: yes; QSGD's randomness is a function of its key (seed, rank, t)

If all entries are sent, masking clears u in every step: SGD *without* momentum; without masking it is
momentum SGD.  A lost message takes its mass with it: the residual has already been cleared.

What differs from the papers
----------------------------
Lin et al. estimate the threshold of the top k from a sample, clip gradients before they accumulate and raise
the sparsity in four epochs; here k is exact, ties go to the lowest index, and clipping and warm-up are left
to the caller.  Alistarh et al. count bits of an entropy code; here a level takes whole bytes.  MXNet packs
its codes into float32 words.

References
----------
Lin, Han, Mao, Wang and Dally, "Deep gradient compression", ICLR 2018 (arXiv:1712.01887), sections 3.1 to 3.3
and algorithm 4: momentum correction and momentum factor masking.
Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent", Interspeech 2014: error feedback, two
values a column.
Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD", NIPS 2017 (arXiv:1610.02132), section 3.1, lemma 3.1.
Chen et al., "MXNet", arXiv:1512.01274, 2015: the system with the 2-bit compression, which has no paper.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refsgd.effects import Array

SHIFTS = np.array([0, 2, 4, 6], np.uint8)  #: of the four 2-bit codes in a byte


class Sparse(NamedTuple):
    """The entries that are sent: 8 bytes each in float32."""

    values: Array  # (k,)
    indices: npt.NDArray[np.int32]  # (k,) ascending


class Residual(NamedTuple):
    """The state of deep gradient compression at a worker."""

    u: Array  # (d,) velocity, filtered before entries are chosen
    r: Array  # (d,) accumulated and not yet sent


class Signs(NamedTuple):
    """1-bit message: which entries are positive, and the two values of each column."""

    bits: npt.NDArray[np.uint8]  # (rows * columns / 8,) packed
    low: Array  # (columns,) stands for entries <= 0
    high: Array  # (columns,) stands for entries > 0
    rows: int


class Codes(NamedTuple):
    """2-bit message: four codes a byte, 0, 1 and 2 for zero, plus and minus the threshold."""

    codes: npt.NDArray[np.uint8]  # (d / 4,)
    threshold: float  # known to both sides, so that it costs nothing
    d: int


class Levels(NamedTuple):
    """QSGD message: signed levels in units of norm / s, and the norm of each bucket."""

    levels: npt.NDArray[np.signedinteger]  # (d,)
    norms: Array  # (d / bucket,)
    s: int
    bucket: int


def kept(d: int, ratio: float) -> int:
    """Number of entries sent out of d: ceil(ratio d), at least one if there are any, robust to rounding.

    >>> kept(100, 0.07), kept(10, 0.001), kept(0, 0.5)
    (7, 1, 0)
    """
    return math.ceil(ratio * d * (1 - 1e-12))


def largest(v: Array, k: int) -> npt.NDArray[np.int32]:
    """Indices of the k largest |v_j|, ascending; of equal ones the lowest index first.

    >>> largest(np.float32([1, -3, 3, 3]), 2)
    array([1, 2], dtype=int32)
    """
    return np.sort(np.argsort(-np.abs(v), kind="stable")[:k]).astype(np.int32)


def deep_gradient(state: Residual, g: Array, momentum: float, ratio: float,
                  masking: bool = True) -> tuple[Sparse, Residual]:
    """Algorithm 4 of Lin et al.: momentum correction, accumulation, the top k, factor masking; g is (d,)."""
    u = g.dtype.type(momentum) * state.u + g  # momentum before the choice of entries, not after the sum
    r = state.r + u
    sent = Sparse(r[chosen := largest(r, kept(r.size, ratio))], chosen)
    r[chosen] = 0
    if masking:
        u[chosen] = 0
    return sent, Residual(u, r)


def sum_of_sparse(messages: list[Sparse], x: Array) -> Array:
    """The sum of these messages as a vector like x, (d,), added in the order given."""
    total = np.zeros_like(x)
    for values, indices in messages:
        total[indices] += values
    return total


def one_bit(e: Array, g: Array) -> tuple[Signs, Array]:
    """Signs of g + e with two values per column, and the new error; arrays are (rows, columns)."""
    s = g + e
    positive = s > 0
    high, low = (np.sum(s * side, axis=0) / np.maximum(1, np.sum(side, axis=0))
                 for side in (positive, ~positive))
    message = Signs(np.packbits(positive), low.astype(s.dtype), high.astype(s.dtype), len(s))
    return message, s - one_bit_decode(message)


def one_bit_decode(message: Signs) -> Array:
    """The quantised gradient, (rows, columns)."""
    shape = message.rows, message.low.size
    positive = np.unpackbits(message.bits, count=math.prod(shape)).reshape(shape)
    return np.where(positive, message.high, message.low)


def two_bit(e: Array, g: Array, threshold: float) -> tuple[Codes, Array]:
    """0 or plus or minus the threshold for each entry of g + e, and the new error; arrays are (d,)."""
    s = g + e
    code = np.where(s >= threshold, 1, np.where(s <= -threshold, 2, 0)).astype(np.uint8)
    four = np.pad(code, (0, -s.size % 4)).reshape(-1, 4)
    message = Codes(np.bitwise_or.reduce(four << SHIFTS, axis=1), threshold, s.size)
    return message, s - two_bit_decode(message).astype(s.dtype)


def two_bit_decode(message: Codes) -> Array:
    """The quantised gradient, (d,)."""
    values = np.array([0, message.threshold, -message.threshold], np.float32)
    return np.asarray(values[(message.codes[:, None] >> SHIFTS & 3).ravel()[: message.d]])


def qsgd(v: Array, s: int, key: tuple[int, ...], bucket: int = 512) -> Levels:
    """Random rounding of v, (d,), to s >= 1 levels of its norm, by bucket; `key` is (seed, rank, t)."""
    padded = np.pad(np.asarray(v, float), (0, -v.size % bucket)).reshape(-1, bucket)
    norms = np.linalg.norm(padded, axis=1).astype(v.dtype)
    exact = np.minimum(s, s * np.abs(padded) / np.where(norms > 0, norms, 1).astype(float)[:, None])
    rounded = np.floor(exact) + (np.random.default_rng(key).random(exact.shape) < exact % 1)
    return Levels((np.sign(padded) * rounded).ravel()[: v.size].astype(np.min_scalar_type(-s - 1)), norms, s,
                  bucket)


def qsgd_decode(message: Levels) -> Array:
    """The rounded vector, (d,): norm sign l / s for each level."""
    norms: Array = np.repeat(message.norms, message.bucket)[: message.levels.size]
    return np.asarray(norms * (message.levels.astype(norms.dtype) / norms.dtype.type(message.s)))
