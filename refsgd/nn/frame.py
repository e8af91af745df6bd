"""What one call hands to every step of a plan."""
from __future__ import annotations

from typing import NamedTuple


class Frame(NamedTuple):
    """What one call works on: addresses of the parameters and of the vector that takes their gradient, and the mode.

    ``fixed``: batch norm uses the statistics that it has, dropout keeps everything. ``key`` chooses what dropout drops.
    """

    x: int
    g: int
    fixed: bool = False
    key: int | None = None
