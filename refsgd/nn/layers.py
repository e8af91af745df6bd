"""Layers of convolutional networks, each defined by a few lines of numpy.

A network is a plain list of layers. A layer is a frozen value that knows its hyper-parameters, not its parameters: those live in one
flat vector and are handed in, as a dict from name to array, by whoever calls. Every layer answers the same five questions:

* ``output_shape(shape)``: what one image of shape ``(H, W, C)`` (or ``(features,)``) becomes;
* ``parameters(shape)``: names, shapes and fan-in of its parameters;
* ``forward(p, x)``: the output ``y`` and what the backward pass needs to keep;
* ``backward(p, kept, dy)``: the gradient with respect to the input, and a dict of gradients of the parameters;
* ``flops(shape)``: floating-point operations for one image, a multiplication and an addition counting as two.

These functions *are* the definition. They work in the precision of their arguments, so that float64 can be checked against finite
differences; `refsgd.nn.kernels` computes the same in float32, faster, and is tested against them.

Images are NHWC: ``x[image, row, column, channel]``.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]
Parameters = dict[str, Array]


class Parameter(NamedTuple):
    """One parameter array of a layer: its shape, and the number of inputs that each output sums (0: not random, see `fill`)."""

    shape: Shape
    fan_in: int
    fill: float = 0.0


class Layer(Protocol):
    """What every layer answers; see the module's docstring."""

    def output_shape(self, shape: Shape) -> Shape: ...
    def parameters(self, shape: Shape) -> dict[str, Parameter]: ...
    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]: ...
    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]: ...
    def flops(self, shape: Shape) -> int: ...


@dataclass(frozen=True)
class Conv:
    """Convolution (cross-correlation, as the field calls it) of ``channels`` square filters.

    ``y[n, r, c, o] = bias[o] + sum_{i, j, k} x[n, r*stride + i - pad, c*stride + j - pad, k] * weight[i, j, k, o]``,
    where pixels outside the image are 0.
    """

    channels: int
    kernel: int
    stride: int = 1
    pad: int = 0
    bias: bool = True

    def output_shape(self, shape: Shape) -> Shape:
        height, width, _ = shape
        return (_positions(height, self), _positions(width, self), self.channels)

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        fan_in = self.kernel**2 * shape[2]
        weight = {"weight": Parameter((self.kernel, self.kernel, shape[2], self.channels), fan_in)}
        return weight | ({"bias": Parameter((self.channels,), fan_in)} if self.bias else {})

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        patches = self._patches(x)
        y = np.tensordot(patches, p["weight"], axes=([4, 5, 3], [0, 1, 2]))
        return (y + p["bias"] if self.bias else y), x

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        x, s = kept, self.stride
        gradients = {"weight": np.tensordot(self._patches(x), dy, axes=([0, 1, 2], [0, 1, 2])).transpose(1, 2, 0, 3)}
        if self.bias:
            gradients["bias"] = dy.sum(axis=(0, 1, 2))
        b, height, width, c = x.shape
        padded = np.zeros((b, height + 2 * self.pad, width + 2 * self.pad, c), dy.dtype)
        rows, columns = s * dy.shape[1], s * dy.shape[2]
        for i in range(self.kernel):
            for j in range(self.kernel):
                # Each tap saw the input shifted by (i, j), so its share of the gradient goes back there.
                padded[:, i : i + rows : s, j : j + columns : s] += dy @ p["weight"][i, j].T
        return padded[:, self.pad : self.pad + height, self.pad : self.pad + width], gradients

    def flops(self, shape: Shape) -> int:
        return 2 * self.kernel**2 * shape[2] * prod(self.output_shape(shape))

    def _patches(self, x: Array) -> Array:
        """Views of shape ``(b, rows, columns, C, kernel, kernel)`` of what each output position sees."""
        x = np.pad(x, ((0, 0), (self.pad, self.pad), (self.pad, self.pad), (0, 0)))
        windows = sliding_window_view(x, (self.kernel, self.kernel), axis=(1, 2))
        return windows[:, :: self.stride, :: self.stride]


@dataclass(frozen=True)
class Relu:
    """``y = max(x, 0)``; at 0 the gradient is taken to be 0."""

    def output_shape(self, shape: Shape) -> Shape:
        return shape

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        return {}

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        y = np.maximum(x, 0)
        return y, y

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        return np.where(kept > 0, dy, dy.dtype.type(0)), {}

    def flops(self, shape: Shape) -> int:
        return prod(shape)


@dataclass(frozen=True)
class MaxPool:
    """The largest of each ``kernel x kernel`` window, windows ``stride`` apart; rows that fill no window are dropped.

    The gradient goes to the first largest pixel of a window, in reading order.
    """

    kernel: int = 2
    stride: int = 2

    def output_shape(self, shape: Shape) -> Shape:
        height, width, channels = shape
        return ((height - self.kernel) // self.stride + 1, (width - self.kernel) // self.stride + 1, channels)

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        return {}

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        windows = sliding_window_view(x, (self.kernel, self.kernel), axis=(1, 2))[:, :: self.stride, :: self.stride]
        flat = windows.reshape(*windows.shape[:4], -1)
        return flat.max(axis=-1), (x.shape, flat.argmax(axis=-1))

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        shape, winner = kept
        n, r, c, k = np.ogrid[tuple(map(slice, dy.shape))]
        dx = np.zeros(shape, dy.dtype)
        # Windows may overlap: `add.at` adds where plain indexing would overwrite.
        np.add.at(dx, (n, r * self.stride + winner // self.kernel, c * self.stride + winner % self.kernel, k), dy)
        return dx, {}

    def flops(self, shape: Shape) -> int:
        return self.kernel**2 * prod(self.output_shape(shape))


@dataclass(frozen=True)
class Flatten:
    """One row of features per image, in the order row, column, channel."""

    def output_shape(self, shape: Shape) -> Shape:
        return (prod(shape),)

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        return {}

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        return x.reshape(len(x), prod(x.shape[1:])), x.shape

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        return dy.reshape(kept), {}

    def flops(self, shape: Shape) -> int:
        return 0


@dataclass(frozen=True)
class Linear:
    """``y = x @ weight + bias``, with ``weight`` of shape ``(inputs, features)``."""

    features: int

    def output_shape(self, shape: Shape) -> Shape:
        return (self.features,)

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        (inputs,) = shape
        return {"weight": Parameter((inputs, self.features), inputs), "bias": Parameter((self.features,), inputs)}

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        return x @ p["weight"] + p["bias"], x

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        return dy @ p["weight"].T, {"weight": kept.T @ dy, "bias": dy.sum(axis=0)}

    def flops(self, shape: Shape) -> int:
        return 2 * shape[0] * self.features


def softmax_cross_entropy(z: Array, labels: Array) -> tuple[float, Array]:
    """Mean cross-entropy of softmax(z) against the labels, and its gradient with respect to z.

    Parameters
    ----------
    z : array, shape (b, classes)
        Scores; b is at least 1.
    labels : integer array, shape (b,)
        Classes, 0 to classes - 1.

    Returns
    -------
    loss : float
        ``mean(-log(softmax(z)[label]))``.
    dz : array, shape (b, classes)
        ``(softmax(z) - onehot(labels)) / b``.
    """
    rows = np.arange(len(z))
    shifted = z - z.max(axis=1, keepdims=True)  # the same softmax, and exp cannot overflow
    e = np.exp(shifted)
    total = e.sum(axis=1, keepdims=True)
    loss = float(np.mean(np.log(total[:, 0]) - shifted[rows, labels]))
    dz = e / total
    dz[rows, labels] -= 1
    return loss, dz / len(z)


def forward(layers: Sequence[Layer], p: list[Any], x: Array) -> tuple[Array, list[Any]]:
    """Run layers one after the other; returns the last output and what each layer kept."""
    kept = []
    for layer, q in zip(layers, p, strict=True):
        x, k = layer.forward(q, x)
        kept.append(k)
    return x, kept


def backward(layers: Sequence[Layer], p: list[Any], kept: list[Any], dy: Array) -> tuple[Array, list[Any]]:
    """Run layers backward, last one first; returns the gradient of the input and the gradients of each layer's parameters."""
    gradients = []
    for layer, q, k in zip(reversed(layers), reversed(p), reversed(kept), strict=True):
        dy, g = layer.backward(q, k, dy)
        gradients.append(g)
    return dy, gradients[::-1]


def _positions(length: int, conv: Conv) -> int:
    return (length + 2 * conv.pad - conv.kernel) // conv.stride + 1
