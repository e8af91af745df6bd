"""What pictures take from a run, a comparison, a sweep: anything that has these attributes can be drawn.

`refsgd.result.Result`, `refsgd.comparison.Comparison` and `refsgd.sweep.Sweep` have them, and say what they mean.  A
`Result` draws itself with this room, so this room does not import it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from refsgd.machine import Machine
from refsgd.trace import Trace


class DrawnRun(Protocol):
    """One run: its name, its figures, its history, its trace if it is still there."""

    @property
    def algorithm(self) -> str:
        """A name of the catalogue."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The algorithm's own."""

    @property
    def machine(self) -> Machine:
        """What the run took place on."""

    @property
    def runtime(self) -> str:
        """Where it took place."""

    @property
    def workers(self) -> int:
        """How many."""

    @property
    def measured(self) -> Mapping[str, Any]:
        """Figures of the trace."""

    @property
    def predicted(self) -> Mapping[str, Any]:
        """The same keys where a formula exists."""

    @property
    def history(self) -> Sequence[Sequence[float]]:
        """Rows of seconds, updates, images, loss, test accuracy."""

    @property
    def accuracy(self) -> Mapping[str, float]:
        """Shares of images; empty where there are no classes."""

    @property
    def trace(self) -> Trace | None:
        """The events."""


class DrawnComparison(Protocol):
    """Several runs on one machine."""

    @property
    def machine(self) -> Machine:
        """What they took place on."""

    @property
    def runtime(self) -> str:
        """Where they took place."""

    @property
    def seed(self) -> int:
        """Of all of them."""

    @property
    def results(self) -> Mapping[str, DrawnRun]:
        """By label."""

    @property
    def hard(self) -> DrawnComparison | None:
        """The same algorithms where they part."""


class DrawnSweep(Protocol):
    """Curves of one figure over one quantity."""

    @property
    def quantity(self) -> str:
        """What varies."""

    @property
    def figure(self) -> str:
        """What is predicted."""

    @property
    def unit(self) -> str:
        """Of the figure."""

    @property
    def values(self) -> Sequence[float]:
        """Of the quantity, ascending."""

    @property
    def curves(self) -> Mapping[str, Sequence[float | None]]:
        """By algorithm."""

    @property
    def crossings(self) -> Sequence[tuple[str, str, float]]:
        """Two algorithms and where one overtakes the other."""
