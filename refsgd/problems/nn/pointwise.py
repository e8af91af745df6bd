"""Steps of a plan that do not multiply: normalise, pool, add, move."""
from __future__ import annotations

from typing import Any

import numpy as np

from refsgd.problems.nn import elementwise
from refsgd.problems.nn.frame import Frame
from refsgd.problems.nn.layers import AvgPool, BatchNorm, Dropout, GlobalAverage, MaxPool
from refsgd.problems.nn.memory import Buffer, Field, zeros
from refsgd.problems.nn.steps import NO_FLOOR, RELU, Step


class MomentsStep(Step):
    """The first half of batch norm: forward its statistics, backward the gradient of its input.

    Both halves of batch norm see all images before the other half sees the first, so each is on its own side
    of a border between stages (see `refsgd.problems.nn.plan.Stage`)."""

    def __init__(self, layer: BatchNorm, source: Buffer, target: Buffer, at: dict[str, int],
                 relu: bool) -> None:
        super().__init__(source, source)
        c = source.shape[-1]
        self.layer, self.norm_at, self.normed = layer, at, target
        self.floor = RELU if relu else NO_FLOOR
        self.mean, self.inverse = np.zeros(c), np.ones(c)
        self.sums, self.partial = np.zeros((3, c)), zeros(3, c)
        self.rounded = zeros(c)
        self.scale, self.shift = zeros(c), zeros(c)
        self.factors = zeros(3, c)

    def forward(self, b: int, frame: Frame) -> None:
        s = self.source.value
        rows, columns, c = s.shape
        if not frame.fixed:
            elementwise.moments(b, rows, columns, c, s.address, s.image, s.row, s.pixel, frame.first == 0,
                                self.partial, self.sums)
        if frame.last:
            elementwise.scale_and_shift(
                c, (frame.first + b) * rows * columns, self.sums, not frame.fixed, self.layer.epsilon,
                frame.x + self.norm_at["gain"], frame.x + self.norm_at["bias"], self.mean, self.inverse,
                self.scale, self.shift,
            )  # fmt: skip
            self.rounded[:] = self.mean

    def backward(self, b: int, frame: Frame) -> None:
        if self.source.wanted:
            d = self.source.gradient
            elementwise.normalise_backward(*self.given(b), self.factors, d.address, d.image, d.row)

    def given(self, b: int) -> tuple[Any, ...]:
        """What the kernels of the backward pass read."""
        s, t = self.source.value, self.normed.gradient
        return (
            b, *s.shape, s.address, s.image, s.row, self.rounded, self.scale, self.shift,
            t.address, t.image, t.row, t.pixel, self.floor,
        )  # fmt: skip


class BatchNormStep(Step):
    """The second half of batch norm, with the relu that follows it if there is one: forward the output,
    backward the sums over the batch."""

    def __init__(self, moments: MomentsStep) -> None:
        super().__init__(moments.source, moments.normed)
        self.moments, self.at = moments, moments.norm_at

    def forward(self, b: int, frame: Frame) -> None:
        s, t, m = self.source.value, self.target.value, self.moments
        elementwise.normalise(b, *s.shape, s.address, s.image, s.row, m.scale, m.shift, t.address, t.image,
                              t.row, t.pixel, m.floor)

    def backward(self, b: int, frame: Frame) -> None:
        m = self.moments
        elementwise.normalise_sums(*m.given(b), frame.first == 0, m.partial, m.sums)
        if frame.last:
            rows, columns, c = self.source.value.shape
            elementwise.normalise_factors(
                c, (frame.first + b) * rows * columns, m.sums, m.mean, m.inverse, frame.x + self.at["gain"],
                frame.g + self.at["gain"], frame.g + self.at["bias"], m.factors,
            )  # fmt: skip


class MaxPoolStep(Step):
    """Max-pooling; remembers the winner of each window."""

    def __init__(self, layer: MaxPool, source: Buffer, target: Buffer) -> None:
        super().__init__(source, target)
        self.layer = layer

    def allocate(self, images: int) -> None:
        self.winner = np.zeros(images * self.target.size, np.uint8)

    def forward(self, b: int, frame: Frame) -> None:
        s, t, pool = self.source.value, self.target.value, self.layer
        elementwise.max_pool(
            b, *t.shape, s.address, s.image, s.row, s.shape[0], s.shape[1], pool.kernel, pool.stride,
            pool.pad,
            t.address, t.image, t.row, self.winner[frame.first * self.target.size :],
        )  # fmt: skip

    def backward(self, b: int, frame: Frame) -> None:
        t, d, pool = self.target.gradient, self.source.gradient, self.layer
        if not self.source.wanted:
            return
        if not self.accumulate:
            elementwise.zero(d.corner, b * d.floats)
        elementwise.max_pool_backward(
            b, *t.shape, t.address, t.image, t.row, d.shape[0], d.shape[1], pool.kernel, pool.stride,
            pool.pad,
            self.winner[frame.first * self.target.size :], d.address, d.image, d.row,
        )  # fmt: skip


class AverageStep(Step):
    """Average pooling, or the average of the whole image."""

    def __init__(self, layer: AvgPool | GlobalAverage, source: Buffer, target: Buffer) -> None:
        super().__init__(source, target)
        if isinstance(layer, AvgPool):
            self.window = (layer.kernel, layer.kernel, layer.stride, layer.stride)
        else:
            self.window = (source.shape[0], source.shape[1], 0, 0)

    def forward(self, b: int, frame: Frame) -> None:
        s, t = self.source.value, self.target.value
        elementwise.average(
            b, *t.shape, s.address, s.image, s.row, s.pixel, *self.window, t.address, t.image, t.row
        )  # fmt: skip

    def backward(self, b: int, frame: Frame) -> None:
        t, d = self.target.gradient, self.source.gradient
        if not self.source.wanted:
            return
        if not self.accumulate:
            elementwise.zero(d.corner, b * d.floats)
        elementwise.average_backward(
            b, *t.shape, t.address, t.image, t.row, *self.window, d.address, d.image, d.row, d.pixel
        )  # fmt: skip


class ReluStep(Step):
    """Relu in place: source and target are one buffer. The steps that reach here do not need what it
    overwrites."""

    masks = True

    def forward(self, b: int, frame: Frame) -> None:
        t = self.target.value
        elementwise.relu(b, t.shape[0], t.shape[1] * t.shape[2], t.address, t.image, t.row)

    def backward(self, b: int, frame: Frame) -> None:
        y, t = self.target.value, self.target.gradient
        elementwise.relu_backward(b, *t.shape, y.address, y.image, y.row, y.pixel, t.address, t.image, t.row,
                                  t.pixel, 0)


class DropoutStep(Step):
    """Dropout in place: what is dropped depends on the place and ``frame.key`` alone."""

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
        elementwise.dropout(
            b, rows, columns * c, field.address, field.image, field.row, frame.first * self.target.size, low,
            high, int(self.layer.threshold), scale
        )


class FlattenStep(Step):
    """Features in one row: a copy without the border, or no work where there is none and both share the
    memory."""

    masks = True

    def share(self) -> None:
        """Share the memory, where the images have no border; to be asked once all borders are known."""
        for of, field in (
            (self.source.value, self.target.value),
            (self.source.gradient, self.target.gradient),
        ):
            field.of = of if of.pad == 0 else None

    def forward(self, b: int, frame: Frame) -> None:
        s, t = self.source.value, self.target.value
        if t.of is None:
            rows, run = s.shape[0], s.shape[1] * s.shape[2]
            elementwise.copy_images(b, rows, run, s.address, s.image, s.row, t.address, t.image, 4 * run)

    def backward(self, b: int, frame: Frame) -> None:
        t, d = self.target.gradient, self.source.gradient
        if t.of is None and self.source.wanted:
            rows, run = d.shape[0], d.shape[1] * d.shape[2]
            elementwise.copy_images(b, rows, run, t.address, t.image, 4 * run, d.address, d.image, d.row)


class AddStep(Step):
    """``target += source``, then relu if one follows: the end of a residual block, in place in the body's
    output.

    Where both gradients are one field, there is nothing to do backward but to mask it."""

    masks = True

    def __init__(self, source: Buffer, target: Buffer, relu: bool) -> None:
        super().__init__(source, target)
        self.relu = relu

    def forward(self, b: int, frame: Frame) -> None:
        s, t = self.source.value, self.target.value
        rows, columns, c = t.shape
        floor = RELU if self.relu else NO_FLOOR
        elementwise.add(b, rows, columns * c, t.address, t.image, t.row, s.address, s.image, s.row, floor)

    def backward(self, b: int, frame: Frame) -> None:
        y, t, d = self.target.value, self.target.gradient, self.source.gradient
        if self.relu:
            elementwise.relu_backward(b, *t.shape, y.address, y.image, y.row, y.pixel, t.address, t.image,
                                      t.row, t.pixel, 0)
        if d is not t and self.source.wanted:
            elementwise.copy_pixels(b, *t.shape, t.address, t.image, t.row, t.pixel, d.address, d.image,
                                    d.row, d.pixel, False)


class CopyStep(Step):
    """A copy of an activation into channels of another; its gradient goes back, or is added.

    It joins branches, and it gives a branch that works in place an input of its own."""

    masks = True

    def __init__(self, source: Buffer, target: Buffer, first: int = 0) -> None:
        super().__init__(source, target)
        self.offset = 4 * first

    def forward(self, b: int, frame: Frame) -> None:
        s, t = self.source.value, self.target.value
        elementwise.copy_pixels(b, *s.shape, s.address, s.image, s.row, s.pixel, t.address + self.offset,
                                t.image, t.row, t.pixel, False)

    def backward(self, b: int, frame: Frame) -> None:
        t, d = self.target.gradient, self.source.gradient
        if self.source.wanted:
            elementwise.copy_pixels(
                b, *d.shape, t.address + self.offset, t.image, t.row, t.pixel, d.address, d.image, d.row,
                d.pixel,
                self.accumulate,
            )  # fmt: skip
