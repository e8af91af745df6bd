"""What one call hands to every step of a plan."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """What one call works on: addresses of the parameters and of the vector that takes their gradient, and the mode.

    ``fixed``: batch norm uses the statistics that it has, dropout keeps everything. ``key`` chooses what dropout drops.
    ``first`` is the number in the batch of the first image that a step is given, ``last`` tells whether none comes after.
    """

    x: int
    g: int
    fixed: bool = False
    key: int | None = None
    first: int = 0
    last: bool = True
