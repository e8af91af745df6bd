"""The arguments of one call, which every step of a plan receives."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """The arguments and the mode of one call."""

    x: int  #: address of the parameters (float32, d of them)
    g: int  #: address of their gradient, which is added to; 0 without a backward pass
    fixed: bool = False  #: batch norm uses its last statistics, and dropout keeps everything
    key: int | None = None  #: chooses what dropout drops, 0 to 2**64 - 1; None: nothing
