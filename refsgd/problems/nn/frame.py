"""Arguments of one call, passed to every step of a plan."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """The arguments and the mode of one call."""

    x: int  #: address of the parameters (float32, d of them)
    g: int  #: address of as many numbers, to which their gradient is added; 0 without a backward pass
    fixed: bool = False  #: batch norm uses the statistics that it has, and dropout keeps everything
    key: int | None = None  #: chooses what dropout drops, 0 to 2**64 - 1; None: nothing
    first: int = 0  #: number in the batch of the first image that a step is given
    last: bool = True  #: whether these are the last images of the batch
