"""PowerSGD: each matrix of the gradient as a product of two thin ones.

A matrix M is approximated by P Q^T of some rank r with one power iteration from the last Q::

    P = M Q, orthonormal;  Q = M^T P                       # r (rows + columns) numbers, not rows x columns

Both steps are linear in M.  Ranks that have the same Q and sum first their P and then their Q get the
factors of the sum of all M.

What differs from the paper
---------------------------
A server does not sum factors: a worker's own P and Q are its message. A column of P that depends on the
others becomes 0; the column of Q, which would then stay 0, starts again.  An array that a division into parts
has cut is filled up with zeros to a matrix; a vector whose arrays are not known is taken as a square.

References
----------
Vogels, Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
optimization", NeurIPS 2019 (arXiv:1905.13727), algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import ClassVar, NamedTuple

import numpy as np

from refsgd.algorithms.codecs import Key, Message, Rule, Tensors, places
from refsgd.effects import Array


class Factors(NamedTuple):
    """The state of PowerSGD."""

    q: Array  # the last Q of each matrix, and whatever follows
    p: Array | None = None  # the sum of all ranks' P = M Q, once they have agreed on it


def orthonormal(p: Array) -> Array:
    """The columns, orthonormal in order (Gram-Schmidt, twice); one that depends on those before becomes 0."""
    p = p.copy()
    for k in range(p.shape[1]):
        size = math.sqrt(np.sum(np.square(p[:, k], dtype=float)))
        for _ in range(2):
            for j in range(k):
                p[:, k] -= p[:, j] * np.sum(p[:, j] * p[:, k])
        left = math.sqrt(np.sum(np.square(p[:, k], dtype=float)))
        p[:, k] = 0 if left <= 1e-5 * size < math.inf else p[:, k] / p.dtype.type(left)
    return p


@dataclass(frozen=True)
class PowerSGD(Rule):
    """Each matrix as a product of two of some rank; vectors, and matrices that are no larger than their
    factors, are sent whole."""

    rank: int
    tensors: Tensors = ()
    linear: ClassVar[bool] = True
    projects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank {self.rank}; expected at least 1")

    def parts(self, d: int) -> tuple[list[tuple[slice, int, int]], list[slice]]:
        """Place, rows and columns of each matrix, the last row perhaps not full; the places of the rest."""
        side = math.isqrt(max(d - 1, 0)) + 1
        arrays = [(at, -(-(at.stop - at.start) // columns), columns)
                  for at, columns in places(self.tensors, d, side)]
        fit = [self.rank * (rows + columns) < at.stop - at.start for at, rows, columns in arrays]
        return ([array for array, small in zip(arrays, fit, strict=True) if small],
                [at for (at, _, _), small in zip(arrays, fit, strict=True) if not small])

    def split(self, v: Array, sizes: Sequence[int]) -> list[Array]:
        """Factors, one for each matrix, from one vector."""
        ends = np.cumsum([size * self.rank for size in sizes])
        return [factor.reshape(-1, self.rank) for factor in np.split(v, ends)[: len(sizes)]]

    def held(self, d: int) -> int:
        return self.phases(d, None)[1]  # the last Q, and whatever follows

    def start(self, d: int) -> Factors:
        """The first Q, the same on every rank."""
        return Factors(drawn(d, self.rank, self.rank * sum(columns for _, _, columns in self.parts(d)[0])))

    def project(self, state: Factors, s: Array) -> Array:
        """P = M Q of each matrix; a column of Q that has become 0 starts again."""
        matrices, _ = self.parts(s.size)
        sizes = [columns for _, _, columns in matrices]
        found = [s[:0]]
        for (at, rows, columns), q, first in zip(matrices, self.split(state.q, sizes),
                                                 self.split(self.start(s.size).q, sizes), strict=True):
            q = np.where(q.any(axis=0), q, first).astype(s.dtype)
            found.append(product(matrix(s[at], rows, columns), q).ravel())
        return np.concatenate(found)

    def encode(self, state: Factors, s: Array, key: Key) -> tuple[Message, Factors]:
        """P, orthonormal, then Q = M^T P and what is sent whole."""
        matrices, whole = self.parts(s.size)
        p = self.project(state, s) if state.p is None else state.p
        bases = [orthonormal(base) for base in self.split(p, [rows for _, rows, _ in matrices])]
        q = [product(matrix(s[at], rows, columns).T, base).ravel()
             for (at, rows, columns), base in zip(matrices, bases, strict=True)]
        last = np.concatenate([s[:0], *q, *(s[at] for at in whole)])
        return (np.concatenate([s[:0], *(base.ravel() for base in bases)]), last), Factors(last)

    def decode(self, message: Message, d: int) -> Array:
        """P Q^T of each matrix, and what was sent whole."""
        p, q = message
        matrices, whole = self.parts(d)
        found = np.empty(d, q.dtype)
        left = self.split(p, [rows for _, rows, _ in matrices])
        right = self.split(q, [columns for _, _, columns in matrices])
        for (at, _, _), base, other in zip(matrices, left, right, strict=True):
            found[at] = reduce(np.add, map(np.outer, base.T, other.T)).ravel()[: at.stop - at.start]
        rest = q[sum(other.size for other in right):]
        for at in whole:
            found[at], rest = np.split(rest, [at.stop - at.start])
        return found

    def phases(self, d: int, t: int | None) -> tuple[int, ...]:
        matrices, whole = self.parts(d)
        return (4 * self.rank * sum(rows for _, rows, _ in matrices),
                4 * self.rank * sum(columns for _, _, columns in matrices)
                + 4 * sum(at.stop - at.start for at in whole))


@lru_cache(maxsize=1024)
def drawn(d: int, rank: int, entries: int) -> Array:
    """The numbers of a first Q, read-only: the ranks of a simulation share one array, not one each."""
    found = np.random.default_rng([d, rank]).standard_normal(entries, np.float32)
    found.setflags(write=False)
    return found


def product(m: Array, q: Array) -> Array:
    """M Q for a Q of few columns, with the same bits everywhere, unlike those of BLAS."""
    return np.stack([np.sum(m * column, axis=1) for column in q.T], axis=1)


def matrix(v: Array, rows: int, columns: int) -> Array:
    """The entries row by row, with zeros where the last row is not full."""
    return np.pad(v, (0, rows * columns - v.size)).reshape(rows, columns)
