"""The interface of a layer, chains of layers, and layers whose branches are chains.

A network is a list of layers, which have the methods of `Layer`. A layer holds its hyper-parameters; its
parameters are in the net's flat vector, and the caller passes them as a dict from name to array, or as one
list of such dicts for each branch.

Images are NHWC: ``x[image, row, column, channel]``.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]
Parameters = dict[str, Array]


class Parameter(NamedTuple):
    """One parameter array of a layer."""

    shape: Shape
    fan_in: int  #: number of inputs that each output sums, for the initial values; 0: they are `fill`
    fill: float = 0.0


class Layer(Protocol):
    """The interface of a layer; the defaults keep the shape, without parameters, at one FLOP per number."""

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of the output for one input.

        Parameters
        ----------
        shape : (H, W, C) or (features,)
            Shape of one input.

        Returns
        -------
        (H, W, C) or (features,)
            Shape of one output.
        """
        return shape

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """The parameter arrays of the layer.

        Parameters
        ----------
        shape : (H, W, C) or (features,)
            Shape of one input.

        Returns
        -------
        dict of str to Parameter
            In their order in the flat vector, without those of layers in branches.
        """
        return {}

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        """Run the layer on a batch.

        Parameters
        ----------
        p : dict of str to array
            The arrays of `parameters`; for a layer with branches, one list of such dicts for each branch.
        x : float32 or float64, shape (b, H, W, C) or (b, features)

        Returns
        -------
        y : array
            The b outputs, in the precision of ``p`` and ``x``.
        kept : object
            The values that `backward` needs.
        """
        ...

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        """Apply the chain rule.

        Parameters
        ----------
        p : dict of str to array
            As for `forward`.
        kept : object
            From `forward`.
        dy : array, shape of y
            Gradient of the loss with respect to the output.

        Returns
        -------
        dx : array, shape of x
            Gradient with respect to the input.
        gradients : dict of str to array
            Gradient with respect to each array of ``p``, summed over the batch; nested like ``p``.
        """
        ...

    def flops(self, shape: Shape) -> int:
        """Floating-point operations of the forward pass of one input.

        Parameters
        ----------
        shape : (H, W, C) or (features,)
            Shape of one input.

        Returns
        -------
        int
            A multiplication and an addition count as two. Layers in branches are counted separately.
        """
        return prod(shape)


def forward(layers: Sequence[Layer], p: list[Any], x: Array) -> tuple[Array, list[Any]]:
    """Run layers in order: the output, and the values that each layer keeps for `backward`."""
    kept = []
    for layer, q in zip(layers, p, strict=True):
        x, k = layer.forward(q, x)
        kept.append(k)
    return x, kept


def backward(layers: Sequence[Layer], p: list[Any], kept: list[Any], dy: Array) -> tuple[Array, list[Any]]:
    """Run layers backward: gradients with respect to the input and to each layer's parameters."""
    gradients = []
    for layer, q, k in zip(reversed(layers), reversed(p), reversed(kept), strict=True):
        dy, g = layer.backward(q, k, dy)
        gradients.append(g)
    return dy, gradients[::-1]


def flattened(gradients: Any) -> Iterator[Array]:
    """The arrays of nested lists of dicts, in order."""
    for part in gradients:
        yield from part.values() if isinstance(part, dict) else flattened(part)


def chain_shape(layers: Sequence[Layer], shape: Shape) -> Shape:
    """The output shape of a chain of layers."""
    for layer in layers:
        shape = layer.output_shape(shape)
    return shape


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
