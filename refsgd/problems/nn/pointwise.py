"""Steps of a plan without matrix products: normalisation, pooling, activations, addition, copies."""
from __future__ import annotations

from typing import Any

import numpy as np

from refsgd.problems.nn import elementwise
from refsgd.problems.nn.layer import Array, Layer
from refsgd.problems.nn.layers import BatchNorm, MaxPool
from refsgd.problems.nn.memory import Buffer, Field, Frame, Scratch, zeros
from refsgd.problems.nn.steps import NO_FLOOR, RELU, Step


class BatchNormStep(Step):
    """Batch norm, with a relu if one follows.

    Kernels see a row of an image as one pixel with ``run`` channels: long loops are fast."""

    def __init__(self, layer: BatchNorm, source: Buffer, target: Buffer, at: dict[str, int], relu: bool,
                 scratch: Scratch) -> None:
        super().__init__(source, target)
        self.layer, self.at, self.floor = layer, at, RELU if relu else NO_FLOOR
        self.rows, columns, c = source.value.shape
        self.run = columns * c
        self.statistics = np.stack([np.zeros(c), np.ones(c)])  # mean and inverse deviation
        self.norm, self.sums = zeros(3, self.run), np.zeros((2, self.run))  # mean, scale and shift
        self.scratch = scratch
        scratch.need("rows", 3 * self.run)

    def forward(self, b: int, frame: Frame) -> None:
        sizes, place = (b, self.rows, self.run), self.source.value.place
        if not frame.fixed:
            elementwise.measure(sizes, place, self.scratch.address("rows"), self.sums, self.layer.epsilon,
                                (frame.x + self.at["gain"], frame.x + self.at["bias"]), self.statistics,
                                self.norm)
        elementwise.normalise(sizes, place, self.norm, self.target.value.place, self.floor)

    def backward(self, b: int, frame: Frame) -> None:
        gain, bias = self.at["gain"], self.at["bias"]
        elementwise.normalise_backward(
            (b, self.rows, self.run), self.source.value.place, self.norm, self.target.gradient.place,
            self.floor, (self.scratch.address("rows"), frame.x + gain, frame.g + gain, frame.g + bias),
            self.sums, self.statistics, self.source.gradient.place if self.source.wanted else (0, 0, 0, 0))


class MaxPoolStep(Step):
    """Max-pooling, with the winner of each window."""

    def __init__(self, layer: MaxPool, source: Buffer, target: Buffer) -> None:
        super().__init__(source, target)
        self.window = layer.kernel, layer.stride, layer.pad

    def allocate(self, images: int) -> None:
        self.winner = np.zeros(images * self.target.size, np.uint8)

    def forward(self, b: int, frame: Frame) -> None:
        self._pool(b, self.source.value, self.target.value, False)

    def backward(self, b: int, frame: Frame) -> None:
        if self.source.wanted:
            self.clear(b)
            self._pool(b, self.source.gradient, self.target.gradient, True)

    def _pool(self, b: int, s: Field, t: Field, back: bool) -> None:
        elementwise.max_pool((b, *t.shape[:2]), s.shape, self.window, s.place, t.place, self.winner, back)


class AverageStep(Step):
    """The average of each channel over the image."""

    masks = True

    def _share(self) -> np.float32:
        rows, columns, _ = self.source.value.shape
        return np.float32(1.0 / (rows * columns))

    def forward(self, b: int, frame: Frame) -> None:
        y = self.target.value.images(b)
        np.sum(self.source.value.images(b), axis=(1, 2), keepdims=True, out=y)
        y *= self._share()

    def backward(self, b: int, frame: Frame) -> None:
        if self.source.wanted:
            dy = self.target.gradient.images(b)
            dy *= self._share()
            self.source.gradient.images(b)[...] = dy


class AddStep(Step):
    """The end of a residual block: ``target += source``, in place in the body's output, then a relu if any.

    If both gradients are one field, the backward pass only masks it."""

    masks = True

    def __init__(self, source: Buffer, target: Buffer, relu: bool) -> None:
        super().__init__(source, target)
        self.floor = RELU if relu else NO_FLOOR

    def forward(self, b: int, frame: Frame) -> None:
        t = self.target.value
        rows, columns, c = t.shape
        elementwise.add(b, rows, columns * c, t.place, self.source.value.place, self.floor)

    def backward(self, b: int, frame: Frame) -> None:
        t, d = self.target.gradient, self.source.gradient
        if self.floor == RELU:
            elementwise.output_backward(b, *t.shape, self.target.value.place, t.place, RELU, 0)
        if d is not t and self.source.wanted:
            d.images(b)[...] = t.images(b)


class DefinedStep(Step):
    """A layer without parameters that keeps the shape, in place, by its definition in numpy.

    So are activations computed that no product or norm includes, and dropout: they take little of a net's
    time."""

    masks = True

    def __init__(self, layer: Layer, buffer: Buffer) -> None:
        super().__init__(buffer, buffer)
        self.layer = layer
        self.kept: Any = None

    def forward(self, b: int, frame: Frame) -> None:
        x = self.target.value.images(b)
        x[...], self.kept = self.layer.forward({} if frame.key is None else {"key": np.asarray(frame.key)}, x)

    def backward(self, b: int, frame: Frame) -> None:
        d = self.target.gradient.images(b)
        d[...], _ = self.layer.backward({}, self.kept, d)


class CopyStep(Step):
    """Copies an activation into channels of another; backward, copies or adds the gradient.

    Joins branches, and gives a branch that works in place its own input."""

    masks = True

    def __init__(self, source: Buffer, target: Buffer, first: int = 0) -> None:
        super().__init__(source, target)
        self.first = first

    def forward(self, b: int, frame: Frame) -> None:
        self._channels(self.target.value, b)[...] = self.source.value.images(b)

    def backward(self, b: int, frame: Frame) -> None:
        d = self.source.gradient.images(b)
        if self.source.wanted and self.accumulate:
            d += self._channels(self.target.gradient, b)
        elif self.source.wanted:
            d[...] = self._channels(self.target.gradient, b)

    def _channels(self, field: Field, b: int) -> Array:
        return field.images(b)[..., self.first : self.first + self.source.shape[-1]]
