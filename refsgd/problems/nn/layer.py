"""What a layer is, and layers run one after the other.

A network is a plain list of layers. A layer is a frozen value that knows its hyper-parameters, not its
parameters: those live in one flat vector and are handed in, as a dict from name to array, by whoever calls.
Every layer answers the same five questions:

* ``output_shape(shape)``: what one image of shape ``(H, W, C)`` (or ``(features,)``) becomes;
* ``parameters(shape)``: names, shapes and fan-in of its parameters;
* ``forward(p, x)``: the output ``y`` and what the backward pass needs to keep;
* ``backward(p, kept, dy)``: the gradient with respect to the input, and a dict of gradients of the
  parameters;
* ``flops(shape)``: floating-point operations for one image, a multiplication and an addition counting as two.

Images are NHWC: ``x[image, row, column, channel]``.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]
Parameters = dict[str, Array]


class Parameter(NamedTuple):
    """One parameter array of a layer: its shape, and the number of inputs that each output sums (0: not
    random, see `fill`)."""

    shape: Shape
    fan_in: int
    fill: float = 0.0


class Layer(Protocol):
    """The interface of a layer. By default a layer keeps the shape, has no parameters, and does one
    operation per number."""

    def output_shape(self, shape: Shape) -> Shape:
        """What one input becomes.

        Parameters
        ----------
        shape : (H, W, C) or (features,)
            Of one input.

        Returns
        -------
        (H, W, C) or (features,)
            Of one output.
        """
        return shape

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        """The arrays that the layer needs.

        Parameters
        ----------
        shape : (H, W, C) or (features,)
            Of one input.

        Returns
        -------
        dict of str to Parameter
            In the order in which they lie in the flat vector. What belongs to the layers of a branch is not
            among them.
        """
        return {}

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        """Run the layer on a batch.

        Parameters
        ----------
        p : dict of str to array
            What `parameters` names; for a layer with branches, one list of such dicts for each branch.
        x : float32 or float64, shape (b, H, W, C) or (b, features)

        Returns
        -------
        y : array
            The b outputs, in the precision of ``p`` and ``x``.
        kept : object
            What `backward` needs of this pass.
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
            Gradient with respect to each array of ``p``, summed over the batch; nested as ``p`` is.
        """
        ...

    def flops(self, shape: Shape) -> int:
        """Floating-point operations of the forward pass of one input.

        Parameters
        ----------
        shape : (H, W, C) or (features,)
            Of one input.

        Returns
        -------
        int
            A multiplication and an addition count as two. The layers of a branch count themselves.
        """
        return prod(shape)


def forward(layers: Sequence[Layer], p: list[Any], x: Array) -> tuple[Array, list[Any]]:
    """Run layers one after the other: the output, and what each layer keeps for `backward`."""
    kept = []
    for layer, q in zip(layers, p, strict=True):
        x, k = layer.forward(q, x)
        kept.append(k)
    return x, kept


def backward(layers: Sequence[Layer], p: list[Any], kept: list[Any], dy: Array) -> tuple[Array, list[Any]]:
    """Run layers backward: gradients with respect to the input, and of the parameters of each layer."""
    gradients = []
    for layer, q, k in zip(reversed(layers), reversed(p), reversed(kept), strict=True):
        dy, g = layer.backward(q, k, dy)
        gradients.append(g)
    return dy, gradients[::-1]


def chain_shape(layers: Sequence[Layer], shape: Shape) -> Shape:
    """The output shape of layers run one after the other."""
    for layer in layers:
        shape = layer.output_shape(shape)
    return shape
