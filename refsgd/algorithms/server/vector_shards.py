"""Vectors distributed over shards, and the commands of `sandblaster`'s coordinator.

A shard holds its part of every vector in registers.  It collects the portions of a gradient and has two
operations, the inner product and the linear combination of two registers.  Commands wait while portions are
missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from refsgd.algorithms.parts import Fetch, Model
from refsgd.algorithms.server.portions import Begin, Piece, Stop
from refsgd.algorithms.sgd import mean_gradient
from refsgd.effects import Array, Compute, Died, Mark, Program, Recv, Send

#: registers of a shard; pair i is in PAIRS + 2 i (s) and PAIRS + 2 i + 1 (y)
X, G, P, OLD_X, OLD_G, PAIRS = range(6)


class Dot(NamedTuple):
    """coordinator -> shard: send me the inner product of two registers."""

    a: int
    b: int


class Scalar(NamedTuple):
    """shard -> coordinator: the inner product of the shard's parts."""

    value: np.float64


class Combine(NamedTuple):
    """coordinator -> shard: register `to` becomes alpha a + beta b."""

    to: int
    alpha: np.float64
    a: int
    beta: np.float64
    b: int


def dot(shards: Sequence[str], a: int, b: int) -> Program[float]:
    """The inner product of two vectors; when it is known, all shards have executed all earlier commands."""
    for shard in shards:
        yield Send(shard, Dot(a, b))
    total = 0.0
    for shard in shards:
        _, (value,) = yield Recv(Scalar, src=shard)
        total += float(value)
    return total


def combine(shards: Sequence[str], to: int, alpha: float, a: int, beta: float = 0.0,
            b: int = X) -> Program[None]:
    """Vector `to` becomes alpha a + beta b."""
    for shard in shards:
        yield Send(shard, Combine(to, np.float64(alpha), a, np.float64(beta), b))


def total(grads: Sequence[Array], images: Sequence[int], decay: float, x: Array) -> Array:
    """The gradient of the whole batch, in portion order, and of weight decay."""
    g = mean_gradient(grads, images)
    return g + x.dtype.type(decay) * x if decay else g


def parameter_shard(k: int, x: Array, workers: int, images: Sequence[int], decay: float) -> Program[Array]:
    """Execute commands until every worker has stopped; returns part k of X; `images` weight the portions."""
    register, pieces, evaluation, stopped = {X: x}, dict[int, tuple[str, Array]](), -1, set[str]()
    collecting = False
    while len(stopped) < workers:
        commands = [] if collecting else [Begin, Dot, Combine]
        src, message = yield Recv(Piece, Fetch, Stop, Died, *commands)
        match message:
            case Begin(number):  # the gradient of the evaluation before has led to this X
                if pieces:
                    yield Mark("update", part=k, version=evaluation, images=sum(images), x=register[X],
                               reads=tuple((w, evaluation) for w, _ in pieces.values()))
                pieces, collecting, evaluation = {}, True, number
                yield Send(src, message)
            case Piece(grad, portion, at) if at == evaluation and portion not in pieces:
                pieces[portion] = src, grad
                if len(pieces) == len(images):
                    ordered = [pieces[p][1] for p in range(len(images))]
                    register[G] = yield Compute(total, ordered, images, decay, register[X], kind="update")
                    collecting = False
            case Piece(_, portion, _):
                yield Mark("drop", worker=src, t=portion, reason="counted already")
            case Fetch():
                yield Send(src, Model(register[X], evaluation))
            case Dot(a, b):
                yield Send(src, Scalar(np.float64(np.dot(register[a].astype(float), register[b]))))
            case Combine(to, alpha, a, beta, b):
                register[to] = x.dtype.type(alpha) * register[a] + x.dtype.type(beta) * register[b]
            case Stop() | Died():
                stopped.add(src)
    for portion, (w, _) in pieces.items():
        yield Mark("drop", worker=w, t=portion, reason="only ends the last search")
    return register[X]
