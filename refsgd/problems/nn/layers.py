"""Layers of convolutional networks, each defined in a few lines of numpy.

`refsgd.problems.nn.layer` has their interface. They work in the precision of their arguments, so that float64
can be checked against finite differences. `refsgd.problems.nn.kernels` computes the same faster, in float32,
and is tested against them.

Losses have the signature ``(z, labels) -> (loss, dz)``, which is described here.

Parameters
----------
z : array, shape (b, classes)
    Scores; b is at least 1.
labels : integer array, shape (b,)
    Classes, 0 to classes - 1.

Returns
-------
loss : float
    A mean over images.
dz : array, shape (b, classes)
    Its gradient with respect to z.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from refsgd.problems.nn.layer import Array, Layer, Parameter, Parameters, Shape


@dataclass(frozen=True)
class Conv(Layer):
    """Convolution (a cross-correlation, as usual in the field) with ``channels`` square filters.

    ``y[n, r, c, o] = bias[o] + sum_{i, j, k} x[n, r*stride + i - pad, c*stride + j - pad, k] * weight[i, j,
    k, o]``, where pixels outside the image are 0.

    Parameters
    ----------
    channels : int
        Number of filters: channels of the output.
    kernel : int
        Height and width of a filter, in pixels.
    stride : int
        Pixels between adjacent positions of the filter.
    pad : int
        Pixels of zeros around the image.
    bias : bool
        Whether there is a bias, shape (channels,). The weight has shape (kernel, kernel, C, channels).
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
        patches = _windows(x, self, 0)
        y = np.tensordot(patches, p["weight"], axes=([4, 5, 3], [0, 1, 2]))
        return (y + p["bias"] if self.bias else y), x

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        x, s = kept, self.stride
        gradients = {"weight": np.tensordot(_windows(x, self, 0), dy,
                                            axes=([0, 1, 2], [0, 1, 2])).transpose(1, 2, 0, 3)}
        if self.bias:
            gradients["bias"] = dy.sum(axis=(0, 1, 2))
        b, height, width, c = x.shape
        padded = np.zeros((b, height + 2 * self.pad, width + 2 * self.pad, c), dy.dtype)
        rows, columns = s * dy.shape[1], s * dy.shape[2]
        for i in range(self.kernel):
            for j in range(self.kernel):
                # Tap (i, j) reads the input shifted by (i, j), and adds its share of the gradient there.
                padded[:, i : i + rows : s, j : j + columns : s] += dy @ p["weight"][i, j].T
        return _inside(padded, self.pad, height, width), gradients

    def flops(self, shape: Shape) -> int:
        return 2 * self.kernel**2 * shape[2] * prod(self.output_shape(shape))


@dataclass(frozen=True)
class Relu(Layer):
    """``y = max(x, 0)``; the gradient at 0 is defined as 0."""

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        y = np.maximum(x, 0)
        return y, y

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        return np.where(kept > 0, dy, dy.dtype.type(0)), {}


@dataclass(frozen=True)
class Tanh(Layer):
    """``y = tanh(x)``."""

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        y = np.tanh(x)
        return y, y

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        return dy * (1 - kept * kept), {}


@dataclass(frozen=True)
class Sigmoid(Layer):
    """``y = 1 / (1 + exp(-x))``, computed as ``(1 + tanh(x / 2)) / 2``, which does not overflow."""

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        y = (1 + np.tanh(x / 2)) / 2
        return y, y

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        return dy * (kept * (1 - kept)), {}


@dataclass(frozen=True)
class MaxPool(Layer):
    """The largest pixel of each ``kernel x kernel`` window, windows ``stride`` apart.

    Incomplete windows are dropped, and pixels in the padding are never the largest. The gradient goes to the
    first of the largest pixels of a window, in reading order.

    Parameters
    ----------
    kernel, stride, pad : int
        In pixels.

    Raises
    ------
    ValueError
        If the pad is more than half the kernel, so that a window could lie outside the image.
    """

    kernel: int = 2
    stride: int = 2
    pad: int = 0

    def __post_init__(self) -> None:
        if 2 * self.pad > self.kernel:
            raise ValueError(
                f"{self}: windows lie outside the image, expected a pad of at most half the kernel")

    def output_shape(self, shape: Shape) -> Shape:
        height, width, channels = shape
        return (_positions(height, self), _positions(width, self), channels)

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        windows = _windows(x, self, -np.inf)
        flat = windows.reshape(*windows.shape[:4], -1)
        return flat.max(axis=-1), (x.shape, flat.argmax(axis=-1))

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        (b, height, width, c), winner = kept
        dx = np.zeros((b, height + 2 * self.pad, width + 2 * self.pad, c), dy.dtype)
        n, row, column, k = np.ogrid[tuple(map(slice, dy.shape))]
        rows, columns = row * self.stride + winner // self.kernel, column * self.stride + winner % self.kernel
        # Windows may overlap: `add.at` adds where plain indexing would overwrite.
        np.add.at(dx, (n, rows, columns, k), dy)
        return _inside(dx, self.pad, height, width), {}

    def flops(self, shape: Shape) -> int:
        return self.kernel**2 * prod(self.output_shape(shape))


@dataclass(frozen=True)
class GlobalAverage(Layer):
    """The mean of each channel over the whole image: ``(H, W, C)`` becomes ``(C,)``."""

    def output_shape(self, shape: Shape) -> Shape:
        return (shape[2],)

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        return x.mean(axis=(1, 2)), x.shape

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        _, height, width, _ = kept
        return np.broadcast_to(dy[:, np.newaxis, np.newaxis] / (height * width), kept), {}


@dataclass(frozen=True)
class BatchNorm(Layer):
    """``y = gain * (x - mean) / sqrt(var + epsilon) + bias``, with each channel's mean and variance.

    They are those of the batch: there are no running averages. An evaluation computes them once, on a sample
    of images, and passes them as ``p["mean"]`` and ``p["var"]``.

    Parameters
    ----------
    epsilon : float
        Added to the variance, which may be 0.
    """

    epsilon: float = 1e-5

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        return {"gain": Parameter(shape[-1:], 0, 1.0), "bias": Parameter(shape[-1:], 0, 0.0)}

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        axes = tuple(range(x.ndim - 1))
        mean, var = (p["mean"], p["var"]) if "mean" in p else (x.mean(axis=axes), x.var(axis=axes))
        inverse = 1 / np.sqrt(var + self.epsilon)
        normal = (x - mean) * inverse
        return p["gain"] * normal + p["bias"], (normal, inverse)

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        normal, inverse = kept
        axes = tuple(range(dy.ndim - 1))
        dgain, dbias = (dy * normal).sum(axis=axes), dy.sum(axis=axes)
        count = prod(dy.shape[:-1])
        # Mean and variance depend on every x of the channel, hence the last two terms.
        dx = p["gain"] * inverse * (dy - dbias / count - normal * dgain / count)
        return dx, {"gain": dgain, "bias": dbias}

    def flops(self, shape: Shape) -> int:
        return 2 * prod(shape)


@dataclass(frozen=True)
class Dropout(Layer):
    """Keep each number with probability ``1 - rate``, scaled by ``1 / (1 - rate)``; an evaluation keeps all.

    The choice depends only on the position and on the integer ``p["key"]``; without a key, all are kept. Of
    some images of a batch, ``p["first"]`` is the first one's number in it.

    Parameters
    ----------
    rate : float
        Probability of being dropped, at least 0 and less than 1.
    """

    rate: float = 0.5

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        if "key" not in p:
            return x, 1.0
        first = int(p.get("first", 0)) * prod(x.shape[1:])
        bits = _hash(np.arange(first, first + x.size).astype(np.uint32), int(p["key"])).reshape(x.shape)
        keep = bits >= np.uint32(self.rate * 2**32)
        scale = keep * x.dtype.type(1 / (1 - self.rate))
        return x * scale, scale

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        return dy * kept, {}


@dataclass(frozen=True)
class Flatten(Layer):
    """One row of features per image, ordered by row, column, channel."""

    def output_shape(self, shape: Shape) -> Shape:
        return (prod(shape),)

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        return x.reshape(len(x), prod(x.shape[1:])), x.shape

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        return dy.reshape(kept), {}

    def flops(self, shape: Shape) -> int:
        return 0


@dataclass(frozen=True)
class Linear(Layer):
    """``y = x @ weight + bias``, with ``weight`` of shape ``(inputs, features)``.

    Parameters
    ----------
    features : int
        Number of outputs per input.
    """

    features: int

    def output_shape(self, shape: Shape) -> Shape:
        return (self.features,)

    def parameters(self, shape: Shape) -> dict[str, Parameter]:
        (inputs,) = shape
        return {"weight": Parameter((inputs, self.features), inputs),
                "bias": Parameter((self.features,), inputs)}

    def forward(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        return x @ p["weight"] + p["bias"], x

    def backward(self, p: Parameters, kept: Any, dy: Array) -> tuple[Array, Parameters]:
        return dy @ p["weight"].T, {"weight": kept.T @ dy, "bias": dy.sum(axis=0)}

    def flops(self, shape: Shape) -> int:
        return 2 * shape[0] * self.features


#: (scores, labels) -> the mean loss, and its gradient by the scores
Loss = Callable[[Array, Array], tuple[float, Array]]


def softmax_cross_entropy(z: Array, labels: Array) -> tuple[float, Array]:
    """Cross-entropy of softmax(z), ``mean(-log(softmax(z)[label]))``.

    The gradient is ``(softmax(z) - onehot(labels)) / b``.
    """
    rows = np.arange(len(z))
    shifted = z - z.max(axis=1, keepdims=True)  # the same softmax without overflow
    e = np.exp(shifted)
    total = e.sum(axis=1, keepdims=True)
    loss = float(np.mean(np.log(total[:, 0]) - shifted[rows, labels]))
    dz = e / total
    dz[rows, labels] -= 1
    return loss, dz / len(z)


def squared_error(z: Array, labels: Array) -> tuple[float, Array]:
    """Half the squared distance of the scores from ``onehot(labels)``.

    The gradient is ``(z - onehot(labels)) / b``.
    """
    away = z.copy()
    away[np.arange(len(z)), labels] -= 1
    return float(np.sum(away * away, dtype=float)) / (2 * len(z)), away / len(z)


def negative_likelihood(z: Array, labels: Array) -> tuple[float, Array]:
    """Minus the probability of the right class: PyTorch's NLLLoss applied to softmax, not its logarithm.

    The loss is ``-mean(softmax(z)[label])``, from -1 to 0, and the gradient ``softmax(z)[label] * (softmax(z)
    - onehot(labels)) / b``.
    """
    rows = np.arange(len(z))
    e = np.exp(z - z.max(axis=1, keepdims=True))
    dz = e / e.sum(axis=1, keepdims=True)
    right = dz[rows, labels].copy()
    dz[rows, labels] -= 1
    return -float(np.mean(right, dtype=float)), dz * right[:, None] / len(z)


def negative_score(z: Array, labels: Array) -> tuple[float, Array]:
    """Minus the score of the right class, which has no lower bound: PyTorch's NLLLoss applied to scores.

    The loss is ``-mean(z[label])``, and the gradient ``-onehot(labels) / b``.
    """
    rows = np.arange(len(z))
    dz = np.zeros_like(z)
    dz[rows, labels] = -1
    return -float(np.mean(z[rows, labels], dtype=float)), dz / len(z)


def hinge(z: Array, labels: Array) -> tuple[float, Array]:
    """Mean over classes of what a wrong score lacks to be 1 below the right one.

    The loss is ``mean(sum_j max(0, 1 + z[j] - z[label])) / classes`` over the wrong classes j.
    """
    rows = np.arange(len(z))
    lacks = np.maximum(1 + z - z[rows, labels][:, None], 0)
    lacks[rows, labels] = 0
    dz = (lacks > 0).astype(z.dtype)
    dz[rows, labels] = -dz.sum(axis=1)
    return float(np.sum(lacks, dtype=float)) / z.size, dz / z.dtype.type(z.size)


def _positions(length: int, layer: Conv | MaxPool) -> int:
    return (length + 2 * layer.pad - layer.kernel) // layer.stride + 1


def _windows(x: Array, layer: Conv | MaxPool, outside: float) -> Array:
    """The window of each output position, as views of shape ``(b, rows, columns, C, kernel, kernel)``."""
    pad, size, stride = layer.pad, layer.kernel, layer.stride
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)), constant_values=outside)
    return sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]


def _inside(x: Array, pad: int, height: int, width: int) -> Array:
    return x[:, pad : pad + height, pad : pad + width]


def _hash(position: Array, key: int) -> Array:
    """32 mixed bits for each position and key (the finaliser of MurmurHash3, twice)."""
    h = position ^ np.uint32(key & 0xFFFFFFFF)
    for _ in range(2):
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        h = h ^ (h >> np.uint32(16)) ^ np.uint32(key >> 32)
    return h
