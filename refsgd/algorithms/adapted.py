"""A number that follows the training loss during a run: AdaComm's period, AdaSync's batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from refsgd.algorithms.facts import Options
from refsgd.algorithms.parts import Objective
from refsgd.effects import Array, Compute, Program

LEAST = 1e-12  #: of the share of the loss that is left, so that rules may divide by it


def check_interval(interval: float, name: str = "interval") -> None:
    """Raise ValueError if a number of updates is neither whole and at least 1 nor infinite."""
    if not (interval >= 1 and (math.isinf(interval) or interval == int(interval))):
        raise ValueError(f"{name} {interval}; expected a whole number >= 1, or inf")


def unless_adapted(recursion: str) -> Callable[[Options], str]:
    """The recursion of updates that always have the same number of gradients, for `Facts.recursion`."""
    return lambda options: recursion if math.isinf(options["interval"]) else (
        "the number of gradients in an update depends on the loss")


@dataclass
class Adapted:
    """Every `interval` updates the number becomes ``rule(number, first, F/F_0)``.

    F is the loss on the training set, F_0 that at the start.  It is the same at every node that has the same
    model, so no message says it.
    """

    number: int
    interval: float
    rule: Callable[[int, int, float], int]
    problem: Objective

    def __post_init__(self) -> None:
        self.first, self.calls, self.loss = self.number, 0, 0.0

    def at(self, x: Array) -> Program[int]:
        """Count an update, whose result is x, and return the number."""
        self.calls += 1
        if self.calls % self.interval == 0:  # never, if it is infinite
            if self.calls == self.interval:
                self.loss = yield Compute(self.problem.loss, self.problem.x0, kind="evaluation")
            now: float = yield Compute(self.problem.loss, x, kind="evaluation")
            # a loss that has not fallen, or is NaN, counts as that of the start
            left = max(LEAST, min(1.0, now / self.loss)) if self.loss > 0 else 1.0
            self.number = self.rule(self.number, self.first, left)
        return self.number
