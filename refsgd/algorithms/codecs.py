"""Rules that encode a vector in few bytes: sparse or quantised.

Each rule is a pure function of its state, the vector and a key (seed, rank, step).  `Codec` of `compression`
adds error feedback; deep gradient compression (`DGC`) keeps its residual itself, next to the velocity.

References
----------
Lin, Han, Mao, Wang and Dally, "Deep gradient compression", ICLR 2018 (arXiv:1712.01887), sections 3.1 to 3.4
and algorithm 4; Sutskever et al., ICML 2013: Nesterov momentum in the form used there.
Seide, Fu, Droppo, Li and Yu, "1-bit stochastic gradient descent", Interspeech 2014: two values a column.
Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD", NIPS 2017 (arXiv:1610.02132), section 3.1, lemma 3.1.
Chen et al., "MXNet", arXiv:1512.01274, 2015: the system with the 2-bit compression, which has no paper.
Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", NeurIPS 2018: random k, contractions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from refsgd.algorithms.sgd import SGD
from refsgd.collectives.parts import half, single
from refsgd.effects import Array

Message = tuple[Any, ...]
Key = tuple[int, ...]  #: seed, rank, step, and whatever else distinguishes two vectors
Tensors = tuple[tuple[int, int], ...]  #: entries and columns of each array in a vector; 1 column: no matrix
SHIFTS = np.array([0, 2, 4, 6], np.uint8)  #: of the four 2-bit codes in a byte
HALF = 65504.0  #: the largest number of half precision


class Rule:
    """A way to encode a vector s of d entries: without memory and not linear, unless it says otherwise."""

    linear: ClassVar[bool] = False  #: the last fields of messages that agree in the others may be summed
    projects: ClassVar[bool] = False  #: linear once ranks have agreed on the sum of a projection: PowerSGD
    keeps: ClassVar[bool] = False  #: error feedback is a part of the rule: DGC
    tensors: Tensors = ()  #: the arrays in the vector, where the rule distinguishes them

    def start(self, d: int) -> Any:
        """The state before the first vector."""

    def part(self, at: slice) -> Rule:
        """The rule of a part of the vector, with the pieces of arrays that are in it."""
        if not self.tensors:
            return self
        return replace(self, tensors=cut(self.tensors, at))  # type: ignore[type-var]

    def held(self, d: int) -> int:
        """Bytes of the state between two vectors of d entries."""
        return 0

    def ready(self, g: Array, x: Array) -> Array:
        """A gradient at x as it is to be encoded."""
        return g

    def receiver(self, sgd: SGD) -> SGD:
        """The update rule for decoded gradients."""
        return sgd

    def project(self, state: Any, s: Array) -> Array:
        """What is summed over ranks before they encode, and is then `p` in the state."""
        raise NotImplementedError

    def encode(self, state: Any, s: Array, key: Key) -> tuple[Message, Any]:
        """The message for a vector, and the next state."""
        raise NotImplementedError

    def decode(self, message: Message, d: int) -> Array:
        """The decoded vector, (d,)."""
        raise NotImplementedError

    def phases(self, d: int, t: int | None) -> tuple[int, ...]:
        """Payload bytes of a message of step t (None: late), in float32; of a linear rule, of each sum."""
        raise NotImplementedError


def kept(d: int, ratio: float) -> int:
    """Number of entries sent out of d: ceil(ratio d), at least one if there are any, robust to rounding.

    >>> kept(100, 0.07), kept(10, 0.001), kept(0, 0.5)
    (7, 1, 0)
    """
    return math.ceil(ratio * d * (1 - 1e-12))


def largest(v: Array, k: int) -> npt.NDArray[np.int32]:
    """Indices of the k largest |v_j|, ascending; of equal ones the lowest index first; NaN is infinite.

    >>> largest(np.float32([1, -3, 3, 3]), 2)
    array([1, 2], dtype=int32)
    """
    if k == 0:
        return np.zeros(0, np.int32)
    size = np.abs(v)
    size[np.isnan(size)] = np.inf  # it is neither above nor below the least that is sent
    least = np.partition(size, v.size - k)[v.size - k]
    above = np.flatnonzero(size > least)
    ties = np.flatnonzero(size == least)[: k - above.size]
    return np.sort(np.concatenate([above, ties])).astype(np.int32)


def spread(values: Array, at: npt.NDArray[Any], d: int) -> Array:
    """A vector with these entries, and zeros."""
    found = np.zeros(d, values.dtype)
    found[at] = values
    return found


def places(tensors: Tensors, d: int, columns: int) -> list[tuple[slice, int]]:
    """Place and columns of each array in a vector of d entries, which must be theirs; without arrays the
    vector is one, with `columns` columns."""
    if not tensors:
        return [(slice(0, d), columns)]
    ends = np.cumsum([0, *(size for size, _ in tensors)]).tolist()
    if ends[-1] != d:
        raise ValueError(f"arrays of {ends[-1]} entries in a vector of {d}; expected the same number")
    return [(slice(a, b), columns) for a, b, (_, columns) in zip(ends, ends[1:], tensors, strict=False)]


def cut(tensors: Tensors, part: slice) -> Tensors:
    """What a part of the vector holds of each array.

    >>> cut(((6, 2), (4, 1)), slice(2, 8))
    ((4, 2), (2, 1))
    """
    found, end = [], 0
    for size, columns in tensors:
        start, end = end, end + size
        found.append((min(end, part.stop) - max(start, part.start), columns))
    return tuple((size, columns) for size, columns in found if size > 0)


# -- sparse --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sparse(Rule):
    """Some of the entries."""

    ratio: float

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio {self.ratio}; expected a share of the entries in (0, 1]")


@dataclass(frozen=True)
class TopK(Sparse):
    """The largest entries with their indices: 8 bytes each."""

    def encode(self, state: Any, s: Array, key: Key) -> tuple[Message, Any]:
        """Values and indices, ascending."""
        return (s[chosen := largest(s, kept(s.size, self.ratio))], chosen), state

    def decode(self, message: Message, d: int) -> Array:
        values, indices = message
        return spread(values, indices, d)

    def phases(self, d: int, t: int | None) -> tuple[int, ...]:
        return (8 * kept(d, self.ratio),)


@dataclass(frozen=True)
class RandK(Sparse):
    """Entries at random places, a function of the seed and the step: they need no indices and can be summed.

    Unbiased, they are scaled by d/k; with error feedback they are not: what is not sent is kept.
    """

    unbiased: bool = False
    linear: ClassVar[bool] = True

    def chosen(self, d: int, key: Key) -> npt.NDArray[np.intp]:
        """Places of this key without its rank."""
        return np.random.default_rng(key).choice(d, kept(d, self.ratio), replace=False, shuffle=False)

    def encode(self, state: Any, s: Array, key: Key) -> tuple[Message, Any]:
        """The key without the rank, as Python numbers, and the values."""
        common = (key[0], *key[2:])
        return (*common, s[self.chosen(s.size, common)]), state

    def decode(self, message: Message, d: int) -> Array:
        *key, values = message
        scale = values.dtype.type(d / max(values.size, 1) if self.unbiased else 1)
        return spread(values * scale, self.chosen(d, tuple(key)), d)

    def phases(self, d: int, t: int | None) -> tuple[int, ...]:
        return (4 * kept(d, self.ratio),)


class Residual(NamedTuple):
    """The state of deep gradient compression at a worker; vectors from the first gradient on."""

    u: Array | np.float32 = np.float32(0)  # (d,) velocity, filtered before entries are chosen
    r: Array | np.float32 = np.float32(0)  # (d,) accumulated and not yet sent


@dataclass(frozen=True)
class DGC(Sparse):
    """Deep gradient compression: momentum before the choice of entries, array by array.

    With its defaults, which are those of the authors' program, it neither clips nor warms up, and its
    momentum is not Nesterov's.  Arrays of one column (biases) are sent whole.
    """

    masking: bool = True  #: clear the velocity of entries that are sent
    nesterov: bool = False
    clip: float = math.inf  #: of the norm of the mean of n workers' gradients; each clips at clip sqrt(n)
    warmup: int = 0  #: epochs in which 1/4, 1/16, 1/64, ... of the entries are sent
    momentum: float = 0.0
    weight_decay: float = 0.0
    ranks: int = 1
    epoch: int = 100  #: steps of an epoch
    tensors: Tensors = ()
    keeps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.clip > 0 and self.warmup >= 0):
            raise ValueError(f"clip={self.clip}, warmup={self.warmup}; expected a norm and epochs")

    def start(self, d: int) -> Residual:
        return Residual()

    def held(self, d: int) -> int:
        return 2 * 4 * d

    def receiver(self, sgd: SGD) -> SGD:
        """Plain SGD: momentum and weight decay have been applied before."""
        if type(sgd) is not SGD:
            raise ValueError(f"codec dgc with {type(sgd).__name__.lower()}: it applies momentum before it "
                             "chooses entries; expected compress topk, or optimiser sgd")
        return replace(sgd, momentum=0.0, weight_decay=0.0)

    def ready(self, g: Array, x: Array) -> Array:
        """The gradient at x, clipped, with weight decay."""
        # in float64, which squares of float32 do not overflow: at an infinite norm g would become 0
        if self.clip < math.inf and (norm := math.sqrt(np.sum(np.square(g, dtype=float)))) > 0:
            g = g * g.dtype.type(min(1, self.clip * math.sqrt(self.ranks) / norm))
        return g + np.float32(self.weight_decay) * x

    def parts(self, d: int, t: int | None) -> tuple[list[tuple[slice, int]], list[slice]]:
        """Where entries are chosen, and how many, at step t; and the places of arrays that are sent whole."""
        arrays = places(self.tensors, d, 2)
        epoch = self.warmup if t is None else t // self.epoch
        ratio = max(self.ratio, 0.25 ** (epoch + 1)) if epoch < self.warmup else self.ratio
        return ([(at, kept(at.stop - at.start, ratio)) for at, columns in arrays if columns > 1],
                [at for at, columns in arrays if columns == 1])

    def encode(self, state: Residual, s: Array, key: Key) -> tuple[Message, Residual]:
        """Algorithm 4: momentum correction, accumulation, the largest entries, factor masking."""
        (u, r), momentum = state, s.dtype.type(self.momentum)
        if self.nesterov:
            u = momentum * (u + s)
            r = r + (u + s)
        else:
            u = momentum * u + s  # momentum before the choice of entries, not after the sum
            r = r + u
        some, whole = self.parts(s.size, key[2])
        chosen = np.concatenate([np.zeros(0, np.int32), *(at.start + largest(r[at], k) for at, k in some)])
        message = r[chosen], chosen.astype(np.int32), np.concatenate([r[:0], *(r[at] for at in whole)])
        r[chosen] = 0
        if self.masking:
            u[chosen] = 0
        for at in whole:
            r[at] = 0
        return message, Residual(u, r)

    def decode(self, message: Message, d: int) -> Array:
        values, indices, rest = message
        found = spread(values, indices, d)
        for at in self.parts(d, None)[1]:
            found[at], rest = np.split(rest, [at.stop - at.start])
        return found

    def phases(self, d: int, t: int | None) -> tuple[int, ...]:
        some, whole = self.parts(d, t)
        return (8 * sum(k for _, k in some) + 4 * sum(at.stop - at.start for at in whole),)


# -- quantised -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def columns_of(tensors: Tensors, d: int) -> tuple[npt.NDArray[np.intp], int]:
    """Number of the column of each entry, and how many columns there are; a vector is one."""
    found, before = np.zeros(d, np.intp), 0
    for at, columns in places(tensors, d, 1):
        found[at] = before + np.arange(at.stop - at.start) % columns
        before += min(columns, at.stop - at.start) if tensors else 1
    return found, before


@dataclass(frozen=True)
class OneBit(Rule):
    """A bit for each entry, and two values for each column: the means of its two sides."""

    tensors: Tensors = ()

    def encode(self, state: Any, s: Array, key: Key) -> tuple[Message, Any]:
        """Packed bits, then the values for entries <= 0 and for entries > 0, of each column."""
        column, count = columns_of(self.tensors, s.size)
        positive = s > 0
        low, high = (np.bincount(column[side], s[side], count) / np.maximum(1, np.bincount(column[side],
                                                                                            minlength=count))
                     for side in (~positive, positive))
        return (np.packbits(positive), low.astype(s.dtype), high.astype(s.dtype)), state

    def decode(self, message: Message, d: int) -> Array:
        bits, low, high = message
        column, _ = columns_of(self.tensors, d)
        return np.asarray(np.where(np.unpackbits(bits, count=d), high[column], low[column]))

    def phases(self, d: int, t: int | None) -> tuple[int, ...]:
        return (-(-d // 8) + 8 * columns_of(self.tensors, d)[1],)


@dataclass(frozen=True)
class TwoBit(Rule):
    """0, NaN or plus or minus the threshold for each entry, four to a byte; both sides know the threshold."""

    threshold: float

    def __post_init__(self) -> None:
        if not 0 < self.threshold < math.inf:
            raise ValueError(f"threshold {self.threshold}; expected a positive number")

    def encode(self, state: Any, s: Array, key: Key) -> tuple[Message, Any]:
        """Codes 0, 1, 2 and 3 for zero, plus and minus the threshold, and NaN."""
        code = np.select([s >= self.threshold, s <= -self.threshold, np.isnan(s)], [1, 2, 3]).astype(np.uint8)
        four = np.pad(code, (0, -s.size % 4)).reshape(-1, 4)
        return (np.bitwise_or.reduce(four << SHIFTS, axis=1),), state

    def decode(self, message: Message, d: int) -> Array:
        values = np.array([0, self.threshold, -self.threshold, math.nan], np.float32)
        return np.asarray(values[(message[0][:, None] >> SHIFTS & 3).ravel()[:d]])

    def phases(self, d: int, t: int | None) -> tuple[int, ...]:
        return (-(-d // 4),)


@dataclass(frozen=True)
class QSGD(Rule):
    """Random rounding to levels of the norm, by bucket: each |v_j| s / |v| goes up or down, without bias.

    With error feedback it is shrunk by 1 + w, w = min(b / s^2, sqrt(b) / s) being the bound of its relative
    variance: unbiased rounding to few levels makes an error larger than the vector, and its residual would
    grow.
    """

    levels: int
    bucket: int = 512
    unbiased: bool = False

    def __post_init__(self) -> None:
        if self.levels < 1 or self.bucket < 1:
            raise ValueError(f"{self.levels} levels, buckets of {self.bucket}; expected at least 1 of each")

    def encode(self, state: Any, s: Array, key: Key) -> tuple[Message, Any]:
        """Signed levels in units of norm / s, and the norm of each bucket."""
        padded = np.pad(np.asarray(s, float), (0, -s.size % self.bucket)).reshape(-1, self.bucket)
        norms = np.linalg.norm(padded, axis=1).astype(s.dtype)
        units = self.levels * np.abs(padded) / np.where(norms > 0, norms, 1).astype(float)[:, None]
        exact = np.minimum(self.levels, units)
        rounded = np.floor(exact) + (np.random.default_rng(key).random(exact.shape) < exact % 1)
        return ((np.sign(padded) * rounded).ravel()[: s.size].astype(self.dtype), norms), state

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest integers that hold the levels."""
        return np.min_scalar_type(-self.levels - 1)

    def decode(self, message: Message, d: int) -> Array:
        levels, norms = message
        b = min(self.bucket, max(d, 1))
        shrink = 1 if self.unbiased else 1 + min(b / self.levels**2, math.sqrt(b) / self.levels)
        each: Array = np.repeat(norms, self.bucket)[:d]
        return np.asarray(each * (levels.astype(norms.dtype) / norms.dtype.type(self.levels * shrink)))

    def phases(self, d: int, t: int | None) -> tuple[int, ...]:
        return (d * self.dtype.itemsize + 4 * -(-d // self.bucket),)


@dataclass(frozen=True)
class FP16(Rule):
    """Half precision; numbers too large for a sum over all ranks become the largest that are not."""

    ranks: int = 1
    linear: ClassVar[bool] = True

    def encode(self, state: Any, s: Array, key: Key) -> tuple[Message, Any]:
        """Half of the bytes; n numbers and n - 1 sums may each be rounded up by a factor 1 + 2^-11."""
        limit = HALF / (self.ranks * math.exp((self.ranks - 1) / 1024))
        return (half(np.clip(s.astype(np.float32, copy=False), -limit, limit)),), state

    def decode(self, message: Message, d: int) -> Array:
        return single(message[0])

    def phases(self, d: int, t: int | None) -> tuple[int, ...]:
        return (2 * d,)
