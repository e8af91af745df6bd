"""Mistakes in the use of the update rule, each with the rule that it amounts to: they name what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refsgd.algorithms.sgd import SGD, constant
from refsgd.effects import Array

Moves = Callable[[Any, Any, Any, Any], tuple[Any, Any]]  #: (momentum, v, g, rate) -> the move, v


class _Twice(SGD):
    """Momentum of a gradient that has momentum."""

    def start(self, x: Array) -> Any:
        return super().start(x), np.zeros_like(x)

    def step(self, x: Array, v: Any, g: Array, t: int) -> tuple[Array, Any]:
        inner = np.float32(self.momentum) * v[1] + g
        x, outer = super().step(x, v[0], inner, t)
        return x, (outer, inner)


@dataclass(frozen=True)
class _Moved(SGD):
    """A rule that moves the parameters otherwise."""

    moves: Moves = lambda m, v, g, rate: (rate * g, v)

    def step(self, x: Array, v: Any, g: Array, t: int) -> tuple[Array, Any]:
        moved, v = self.moves(np.float32(self.momentum), v, g, self.rate(t))
        return x - moved, v


def _velocity(v: Any, rate: Any) -> tuple[Any, Any]:
    return rate * v, v


#: by what a student could have written
MOVES: dict[str, Moves] = {
    "the velocity is computed twice from each gradient":
        lambda m, v, g, rate: _velocity(m * (m * v + g) + g, rate),
    "the gradient is multiplied by 1 - momentum": lambda m, v, g, rate: _velocity(m * v + (1 - m) * g, rate),
    "the velocity keeps the rates of earlier updates":
        lambda m, v, g, rate: _velocity(m * v + rate * g, np.float32(1)),
    "the parameters move before the velocity has changed": lambda m, v, g, rate: (rate * v, m * v + g),
    "momentum is Nesterov's": lambda m, v, g, rate: (rate * (g + m * (m * v + g)), m * v + g),
}


def other_rules(sgd: SGD, workers: int) -> Iterator[tuple[str, SGD]]:
    """Mistakes in the use of the rule, each with the rule that it amounts to."""
    lr, momentum, rate = sgd.lr, sgd.momentum, sgd.schedule
    yield "momentum is applied twice, as in a worker and in its server", _Twice(lr, momentum, schedule=rate)
    yield from ((said, _Moved(lr, momentum, schedule=rate, moves=moves)) for said, moves in MOVES.items())
    yield "momentum is not applied", replace(sgd, momentum=0.0)
    yield "the learning rate never changes", replace(sgd, schedule=constant)
    yield "neither momentum nor schedule is applied", replace(sgd, momentum=0.0, schedule=constant)
    yield "the learning rate changes an update too early", replace(sgd, schedule=lambda t: rate(t + 1))
    yield "the learning rate changes an update too late", replace(sgd, schedule=lambda t: rate(max(t - 1, 0)))
    if workers > 1:
        yield "the learning rate follows the steps of a worker, not updates", replace(
            sgd, schedule=lambda t: rate(t // workers))
        yield "the learning rate follows the gradients of all workers, not updates", replace(
            sgd, schedule=lambda t: rate(t * workers))
