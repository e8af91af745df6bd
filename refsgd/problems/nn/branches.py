"""Layers whose branches are chains of layers, added or concatenated.

Parameters and gradients of branches are passed as one list per branch.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from refsgd.problems.nn.layer import Array, Layer, Shape, backward, chain_shape, forward


@dataclass(frozen=True)
class Residual(Layer):
    """``y = body(x) + shortcut(x)``, two chains of equal output shape; an empty shortcut is the identity."""

    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()

    @property
    def branches(self) -> tuple[tuple[Layer, ...], ...]:
        """The chains of layers that all read the input."""
        return (self.body, self.shortcut)

    def output_shape(self, shape: Shape) -> Shape:
        shapes = {chain_shape(branch, shape) for branch in self.branches}
        if len(shapes) > 1:
            raise ValueError("branches of different shapes")
        return shapes.pop()

    def forward(self, p: Any, x: Array) -> tuple[Array, Any]:
        (y, kept), (z, kept_too) = (forward(branch, q, x) for branch, q in zip(self.branches, p, strict=True))
        return y + z, (kept, kept_too)

    def backward(self, p: Any, kept: Any, dy: Array) -> tuple[Array, Any]:
        results = [backward(branch, q, k, dy) for branch, q, k in zip(self.branches, p, kept, strict=True)]
        return results[0][0] + results[1][0], [gradients for _, gradients in results]

    def flops(self, shape: Shape) -> int:
        return prod(self.output_shape(shape))  # the addition; layers in branches are counted separately


@dataclass(frozen=True)
class Concat(Layer):
    """The outputs of branches with the same input, images of equal size, concatenated as channels."""

    branches: tuple[tuple[Layer, ...], ...]

    def output_shape(self, shape: Shape) -> Shape:
        shapes = [chain_shape(branch, shape) for branch in self.branches]
        if len({other[:-1] for other in shapes}) > 1:
            raise ValueError("branches of different sizes")
        return (*shapes[0][:-1], sum(other[-1] for other in shapes))

    def forward(self, p: Any, x: Array) -> tuple[Array, Any]:
        results = [forward(branch, q, x) for branch, q in zip(self.branches, p, strict=True)]
        ends = np.cumsum([y.shape[-1] for y, _ in results])
        return np.concatenate([y for y, _ in results], axis=-1), (ends, [kept for _, kept in results])

    def backward(self, p: Any, kept: Any, dy: Array) -> tuple[Array, Any]:
        ends, inner = kept
        parts = np.split(dy, ends[:-1], axis=-1)
        results = [backward(*arguments) for arguments in zip(self.branches, p, inner, parts, strict=True)]
        dx = results[0][0] + 0  # a new array: the branch may have returned a view
        for more, _ in results[1:]:
            dx = dx + more
        return dx, [gradients for _, gradients in results]

    def flops(self, shape: Shape) -> int:
        return 0
