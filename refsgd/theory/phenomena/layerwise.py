"""Gradients that are sent in parts while workers compute: layers, overlap, buckets, codecs.

The passes through a layer take fixed shares of a gradient's time.  The backward pass goes from the last layer
to the first, so a part is sent when the backward pass through its first layer has ended; the next forward
pass through a layer waits for the parts that hold it.  Without overlap, all parts wait for all layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


def first_come(forward: float, backward: Sequence[float], exchange: Sequence[float]) -> float:
    """Seconds until all layers have exchanged gradients one by one, the last layer first; the exchange of the
    first layer, here 2 s, is not hidden.

    >>> first_come(3, [2, 2, 2], [2, 2, 2])
    11
    """
    now, end = forward, 0.0
    for b, c in zip(reversed(backward), reversed(exchange), strict=True):
        now += b
        end = max(end, now) + c
    return end


class Part(NamedTuple):
    """A part of the parameters."""

    server: int
    layers: tuple[int, ...]
    up: float  #: bytes of a push, and of its answer
    down: float
    sums: tuple[float, ...] = ()  #: bytes of each sum, if peers sum messages


@dataclass(frozen=True)
class Plan:
    """How a gradient is exchanged."""

    parts: tuple[Part, ...]
    forward: tuple[float, ...] = ()  #: share of a gradient's time of each layer's passes
    backward: tuple[float, ...] = ()
    overlap: str = "none"  #: or backward, or both
    priority: bool = False  #: whether links serve low parts first
    codec: float = 0.0  #: seconds per byte
    even: bool = True  #: one part for each server
    unknown: str = ""  #: why no formula covers it

    @property
    def stages(self) -> list[tuple[float, list[int]]]:
        """The stages of the forward pass: share of a gradient's time, and the parts that it waits for."""
        numbers = range(len(self.parts))
        if self.overlap == "both":
            return [(share, [j for j in numbers if k in self.parts[j].layers])
                    for k, share in enumerate(self.forward)]
        return [(math.fsum(self.forward) if self.overlap == "backward" else 0.0, list(numbers))]

    def moves(self, order: Sequence[int]) -> list[tuple[float, list[int]]]:
        """The stages of the backward pass: share of a gradient's time, and the parts that then leave, without
        overlap in this `order`."""
        if self.overlap == "none":
            return [(1.0, list(order))]
        return [(share, [j for j in reversed(range(len(self.parts))) if self.parts[j].layers[0] == k])
                for k, share in reversed(list(enumerate(self.backward)))]
