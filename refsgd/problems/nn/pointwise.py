"""Steps of a plan without matrix products: normalisation, pooling, addition, copies."""
from __future__ import annotations

from math import prod

import numpy as np

from refsgd.problems.nn import elementwise
from refsgd.problems.nn.layers import BatchNorm, Dropout, MaxPool, Sigmoid, Tanh
from refsgd.problems.nn.memory import Buffer, Field, Frame, Place, Scratch, zeros
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
        place, partial = self.source.value.place, self.scratch.address("rows")
        if not frame.fixed:
            elementwise.moments(b, self.rows, self.run, self.source.shape[-1], place, partial, self.sums)
            elementwise.scale_and_shift(
                self._numbers(b), self.sums, partial + 8 * self.run, self.layer.epsilon,
                frame.x + self.at["gain"], frame.x + self.at["bias"], self.statistics, self.norm)
        elementwise.normalise(b, self.rows, self.run, place, self.norm, self.target.value.place, self.floor)

    def _numbers(self, b: int) -> int:
        """The count of numbers of each channel."""
        return b * self.rows * self.run // self.source.shape[-1]

    def backward(self, b: int, frame: Frame) -> None:
        x, dy, partial = self.source.value.place, self.target.gradient.place, self.scratch.address("rows")
        elementwise.normalise_sums(b, self.rows, self.run, x, self.norm, dy, self.floor, partial, self.sums)
        gain, bias = self.at["gain"], self.at["bias"]
        elementwise.normalise_factors(self._numbers(b), self.sums, self.statistics, frame.x + gain,
                                      frame.g + gain, frame.g + bias, partial)
        if self.source.wanted:
            elementwise.normalise_backward(b, self.rows, self.run, x, self.norm, dy, self.floor, partial,
                                           self.source.gradient.place)


class MaxPoolStep(Step):
    """Max-pooling, with the winner of each window."""

    def __init__(self, layer: MaxPool, source: Buffer, target: Buffer) -> None:
        super().__init__(source, target)
        self.window = layer.kernel, layer.stride, layer.pad

    def allocate(self, images: int) -> None:
        self.winner = np.zeros(images * self.target.size, np.uint8)

    def forward(self, b: int, frame: Frame) -> None:
        s, t = self.source.value, self.target.value
        elementwise.max_pool((b, *t.shape[:2]), t.shape[2], s.place, s.shape, self.window, t.place,
                             self.winner)

    def backward(self, b: int, frame: Frame) -> None:
        t, d = self.target.gradient, self.source.gradient
        if not self.source.wanted:
            return
        if not self.accumulate:
            elementwise.zero(d.corner, b * d.floats)
        elementwise.max_pool_backward((b, *t.shape[:2]), t.shape[2], t.place, d.shape, self.window,
                                      self.winner, d.place)


class AverageStep(Step):
    """The average of each channel over the image."""

    def forward(self, b: int, frame: Frame) -> None:
        s = self.source.value
        elementwise.average(b, *s.shape, s.place, self.target.value.place)

    def backward(self, b: int, frame: Frame) -> None:
        d = self.source.gradient
        if self.source.wanted:
            elementwise.average_backward(b, *d.shape, self.target.gradient.place, d.place)


class AddStep(Step):
    """The end of a residual block: ``target += source``, in place in the body's output, then a relu if any.

    If both gradients are one field, the backward pass only masks it."""

    masks = True

    def __init__(self, source: Buffer, target: Buffer, relu: bool) -> None:
        super().__init__(source, target)
        self.floor = RELU if relu else NO_FLOOR

    def added(self) -> Place:
        """The place of the summand."""
        return self.source.value.place

    def forward(self, b: int, frame: Frame) -> None:
        t = self.target.value
        rows, columns, c = t.shape
        elementwise.add(b, rows, columns * c, t.place, self.added(), self.floor)

    def backward(self, b: int, frame: Frame) -> None:
        t, d = self.target.gradient, self.source.gradient
        if self.floor == RELU:
            elementwise.output_backward(b, *t.shape, self.target.value.place, t.place, RELU, 0)
        if d is not t and self.source.wanted:
            elementwise.copy(b, *t.shape, t.place, d.place, False)


class ReluStep(AddStep):
    """Relu in place: source and target are one buffer, to which zeros are added."""

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(buffer, buffer, relu=True)
        self.zeros = zeros(prod(buffer.value.shape[1:]))

    def added(self) -> Place:
        return self.zeros.ctypes.data, 0, 0, 0


class CurveStep(Step):
    """A smooth activation, in place, by its definition: numpy's functions are as fast as a kernel."""

    masks = True

    def __init__(self, layer: Sigmoid | Tanh, buffer: Buffer) -> None:
        super().__init__(buffer, buffer)
        self.layer = layer

    def forward(self, b: int, frame: Frame) -> None:
        x = self.target.value.images(b)
        x[...] = self.layer.forward({}, x)[0]

    def backward(self, b: int, frame: Frame) -> None:
        d = self.target.gradient.images(b)
        d[...] = self.layer.backward({}, self.target.value.images(b), d)[0]


class DropoutStep(Step):
    """Dropout in place, as a function of the position and ``frame.key``."""

    masks = True

    def __init__(self, layer: Dropout, buffer: Buffer) -> None:
        super().__init__(buffer, buffer)
        self.layer = layer

    def forward(self, b: int, frame: Frame) -> None:
        self._drop(b, frame, self.target.value)

    def backward(self, b: int, frame: Frame) -> None:
        self._drop(b, frame, self.target.gradient)

    def _drop(self, b: int, frame: Frame, field: Field) -> None:
        if frame.key is None or frame.fixed:
            return
        low, high = frame.key & 0xFFFFFFFF, frame.key >> 32 & 0xFFFFFFFF
        scale = np.float32(1 / (1 - self.layer.rate))
        rows, columns, c = field.shape
        elementwise.dropout(b, rows, columns * c, field.place, low, high,
                            int(self.layer.threshold), scale)


class FlattenStep(Step):
    """Features in one row: a copy without the border, or the same memory if there is no border."""

    masks = True

    def share(self) -> None:
        """Share memory if the images have no border; call this when all borders are known."""
        for of, field in (
            (self.source.value, self.target.value),
            (self.source.gradient, self.target.gradient),
        ):
            field.of = of if of.pad == 0 else None

    def forward(self, b: int, frame: Frame) -> None:
        s, t = self.source.value, self.target.value
        if t.of is None:
            elementwise.copy(b, *self._rows(), s.place, self._features(t), False)

    def backward(self, b: int, frame: Frame) -> None:
        t, d = self.target.gradient, self.source.gradient
        if t.of is None and self.source.wanted:
            elementwise.copy(b, *self._rows(), self._features(t), d.place, False)

    def _rows(self) -> tuple[int, int, int]:
        """The shape of an image whose rows count as one pixel each."""
        rows, columns, c = self.source.value.shape
        return rows, 1, columns * c

    def _features(self, field: Field) -> Place:
        """The place of the features, as rows of an image without a border."""
        rows, columns, c = self.source.value.shape
        first, image, _, _ = field.place
        return first, image, 4 * columns * c, 0


class CopyStep(Step):
    """Copies an activation into channels of another; backward, copies or adds the gradient.

    Joins branches, and gives a branch that works in place its own input."""

    masks = True

    def __init__(self, source: Buffer, target: Buffer, first: int = 0) -> None:
        super().__init__(source, target)
        self.first = first

    def forward(self, b: int, frame: Frame) -> None:
        s = self.source.value
        elementwise.copy(b, *s.shape, s.place, self._channels(self.target.value), False)

    def backward(self, b: int, frame: Frame) -> None:
        d = self.source.gradient
        if self.source.wanted:
            elementwise.copy(b, *d.shape, self._channels(self.target.gradient), d.place, self.accumulate)

    def _channels(self, field: Field) -> Place:
        first, image, row, pixel = field.place
        return first + 4 * self.first, image, row, pixel
