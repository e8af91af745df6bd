"""What one call hands to every step of a plan."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """What one call works on, and in which mode.

    Parameters
    ----------
    x : int
        Address of the parameters (float32, d of them).
    g : int
        Address of as many numbers, to which their gradient is added; 0 where there is no backward pass.
    fixed : bool
        Whether batch norm uses the statistics that it has, and dropout keeps everything.
    key : int or None
        Chooses what dropout drops, 0 to 2**64 - 1; with None it keeps everything.
    first : int
        Number in the batch of the first image that a step is given.
    last : bool
        Whether no images of the batch come after those that a step is given.
    """

    x: int
    g: int
    fixed: bool = False
    key: int | None = None
    first: int = 0
    last: bool = True
