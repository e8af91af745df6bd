"""Steps of a plan: products, norms, pooling, activations, and the joints of branches."""
from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsgd.problems.nn import elementwise, kernels
from refsgd.problems.nn.layer import Array, Layer
from refsgd.problems.nn.layers import BatchNorm, Conv, MaxPool
from refsgd.problems.nn.memory import Buffer, Field, Frame, Place, Scratch, keyed, zeros

Offsets = NDArray[np.int64]
Lists = tuple[Any, ...]

NO_FLOOR, RELU = np.float32(-np.inf), np.float32(0)


class Step:
    """One entry of a plan, run once per chunk of images.

    Forward, it reads its source and writes its target; backward, it reads the target's gradient and writes
    the source's.  Subclasses take ``relu``: whether a relu follows."""

    accumulate = False  #: whether ``backward`` adds to the source's gradient, which other steps write too
    at: Mapping[str, int] = MappingProxyType({})  #: byte offsets of parameters in the flat vector, by name
    masks = False  #: whether ``backward`` changes or passes on the target's gradient: it is then not shared

    def __init__(self, source: Buffer, target: Buffer) -> None:
        self.source, self.target = source, target

    def allocate(self, images: int) -> None:
        """Allocate memory besides the buffers."""

    def clear(self, b: int) -> None:
        """Set the source's gradient to 0, before a sum, unless other steps add to it."""
        if not self.accumulate:
            d = self.source.gradient
            d.data[: b * d.floats] = 0

    def forward(self, b: int, frame: Frame) -> None:
        """Compute the target."""

    def backward(self, b: int, frame: Frame) -> None:
        """Add to the gradient of the parameters, and write that of the source if it is wanted."""


class ProductStep(Step):
    """Convolution of any kernel size, stride and padding, with a relu if one follows.

    A linear layer is one with a kernel of 1 on images of one pixel.  The gradient of the input is summed tap
    by tap, at the pixels that each tap read; what falls outside the image lands in the border."""

    def __init__(self, conv: Conv, source: Buffer, target: Buffer, at: Mapping[str, int], relu: bool,
                 scratch: Scratch) -> None:
        super().__init__(source, target)
        self.conv, self.at, self.scratch = conv, at, scratch
        self.masks, self.floor = relu, RELU if relu else NO_FLOOR
        target.masks = relu
        self.c, self.o, self.taps = source.value.shape[2], conv.channels, conv.kernel**2
        self.zeros = zeros(0 if conv.bias else self.o)
        self.zeros_at = self.zeros.ctypes.data  # asking for an address takes a microsecond
        for field in (source.value, source.gradient):
            field.need(conv.pad)
        # Of a linear layer, whole panels are read where they are, since few images would share packed ones,
        # and few columns are transposed at once.
        single = target.value.shape[:2] == (1, 1)
        self.whole = self.o - self.o % kernels.PANEL if single else 0
        self.block = kernels.PANEL if single else self.c
        scratch.need("filters", self.taps * max(self.c * _panelled(self.o - self.whole),
                                                self.o * _panelled(self.block)))

    def allocate(self, images: int) -> None:
        s, t, k = self.source, self.target, self.conv.kernel
        rows, columns, o = t.value.shape
        group = min(images, -(-kernels.CHUNK // (rows * columns)))
        patches = offsets(self._seen(s.value), group, rows, columns)
        steps = offsets((0, 0, s.value.place[2], 4), 1, k, k * self.c)
        outputs, uppers = (offsets(field.place, group, rows, columns) for field in (t.value, t.gradient))
        self.filters = line(4 * o, len(steps))
        self.forward_lists: Lists = patches, steps, outputs, np.zeros_like(outputs), line(0, 1), group
        self.scratch.need("outputs", min(kernels.CHUNK, len(uppers)) * _panelled(o))
        self.weight_lists: Lists = patches, steps, uppers, self.filters, group
        inputs = offsets(self._seen(s.gradient), group, rows, columns)
        taps = offsets((0, 0, s.gradient.place[2], 4 * self.c), 1, k, k)
        self.input_lists: Lists = uppers, line(4, o), inputs, inputs, taps, group

    def _seen(self, field: Field) -> Place:
        """The place of the input, or of its gradient, under the first tap."""
        return field.at(-self.conv.pad, -self.conv.pad, self.conv.stride)

    def forward(self, b: int, frame: Frame) -> None:
        (y, image, *_), packed = self.target.value.place, self.scratch.address("filters")
        w, bias = frame.x + self.at["weight"], frame.x + self.at["bias"] if self.conv.bias else self.zeros_at
        kernels.pack(len(self.filters), self.o - self.whole, w + 4 * self.whole, self.filters, packed)
        for first, o, panels in ((0, self.whole, (w, 4 * self.o, 4 * kernels.PANEL)),
                                 (4 * self.whole, self.o - self.whole, _packed(packed, len(self.filters)))):
            kernels.convolve(b, o, self._seen(self.source.value)[:2], panels, (bias + first, 0),
                             (y + first, image), self.forward_lists, self.floor)

    def backward(self, b: int, frame: Frame) -> None:
        t = self.target.gradient
        bias = frame.g + self.at["bias"] if self.conv.bias else 0
        if bias or self.floor == RELU:
            elementwise.output_backward(b, *t.shape, self.target.value.place, t.place, self.floor, bias)
        self.weight_gradient(b, frame)
        if self.source.wanted:
            self.input_gradient(b, frame)

    def weight_gradient(self, b: int, frame: Frame) -> None:
        """Add to the gradient of the weights."""
        kernels.convolve_weights(b, self.o, self._seen(self.source.value)[:2],
                                 self.target.gradient.place[:2], frame.g + self.at["weight"],
                                 self.weight_lists, self.scratch.address("outputs"))

    def input_gradient(self, b: int, frame: Frame) -> None:
        """Sum the gradient of the source."""
        self.clear(b)
        kernels.convolve_inputs(b, (self.c, self.o, self.taps, self.block), self.target.gradient.place[:2],
                                frame.x + self.at["weight"], self._seen(self.source.gradient)[:2],
                                self.input_lists, self.scratch.address("filters"))


class ConvPoolStep(Step):
    """Convolution of stride 1, relu and 2x2 max-pooling as one; see `kernels.pool_convolve_backward`."""

    def __init__(self, conv: Conv, source: Buffer, target: Buffer, at: Mapping[str, int],
                 scratch: Scratch) -> None:
        super().__init__(source, target)
        self.conv, self.at, self.scratch = conv, at, scratch
        self.run = conv.kernel * source.shape[2]
        self.filters = line(4 * conv.channels, conv.kernel * self.run)
        scratch.need("filters", len(self.filters) * _panelled(conv.channels))
        scratch.need("transposed", len(self.filters) * conv.channels)
        windows = prod(target.shape[:2])
        self.entries = np.zeros(windows + 1, np.int64), zeros(windows + 1)
        # The input and its gradient share a list of offsets, so both need the same border.
        for field in (source.value, source.gradient) if source.wanted else (source.value,):
            field.need(max(conv.pad, source.value.pad, source.gradient.pad))

    def allocate(self, images: int) -> None:
        self.winner = np.zeros(images * prod(self.target.shape), np.uint8)
        t, o, (k, row, run) = self.target.value, self.conv.channels, self._patch()
        group = min(images, -(-kernels.CHUNK // (4 * prod(t.shape[:2]))))
        window = offsets((0, 0, *self._seen()[2:]), 1, 2, 2)
        self.scratch.need("outputs", min(kernels.CHUNK, 4 * group * prod(t.shape[:2])) * o)
        corners = offsets(self.source.value.at(0, 0, 2), group, *t.shape[:2])
        self.lists = ((corners[:, None] + window).ravel(), offsets((0, 0, row, 4), 1, k, run),
                      line(4 * o, kernels.CHUNK), offsets(t.place, group, *t.shape[:2]),
                      np.zeros(kernels.CHUNK, np.int64), group)

    def _seen(self) -> Place:
        """The place of the input under the first tap."""
        return self.source.value.at(-self.conv.pad, -self.conv.pad)

    def forward(self, b: int, frame: Frame) -> None:
        o, packed = self.conv.channels, self.scratch.address("filters")
        kernels.pack(len(self.filters), o, frame.x + self.at["weight"], self.filters, packed)
        kernels.convolve_pool(b, o, self._seen()[:2], _packed(packed, len(self.filters)),
                              frame.x + self.at["bias"], self.lists, self.scratch.address("outputs"),
                              self.target.value.place[:2], self.winner)

    def _patch(self) -> tuple[int, int, int]:
        return self.conv.kernel, self.source.value.place[2], self.run

    def backward(self, b: int, frame: Frame) -> None:
        d, t, pad = self.source.gradient, self.target.gradient, self.conv.pad
        wanted, o, size = self.source.wanted, self.conv.channels, len(self.filters)
        w, dw = self.scratch.address("filters"), self.scratch.address("transposed")
        kernels.transpose(size, o, frame.x + self.at["weight"], w, 4 * size)
        kernels.transpose(size, o, frame.g + self.at["weight"], dw, 4 * size)
        if wanted:
            self.clear(b)
        kernels.pool_convolve_backward(
            (b, *t.shape[:2]), self._seen(), d.at(-pad, -pad) if wanted else (0, 0, 0, 0), self._patch(),
            w, o, t.place, self.winner, (dw, frame.g + self.at["bias"]), self.entries)
        kernels.transpose(o, size, dw, frame.g + self.at["weight"], 4 * o)


class BatchNormStep(Step):
    """Batch norm, with a relu if one follows.

    Kernels see a row of an image as one pixel with ``run`` channels: long loops are fast."""

    def __init__(self, layer: BatchNorm, source: Buffer, target: Buffer, at: Mapping[str, int], relu: bool,
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
        target.masks = relu

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
    """Dropout or an activation that no other step includes, in place, by its definition in numpy: they take
    little of a net's time."""

    masks = True

    def __init__(self, layer: Layer, buffer: Buffer, number: int) -> None:
        super().__init__(buffer, buffer)
        self.layer, self.number = layer, number
        self.kept: Any = None

    def forward(self, b: int, frame: Frame) -> None:
        x = self.target.value.images(b)
        p = {} if frame.key is None else keyed(frame.key, self.number, frame.first)
        x[...], self.kept = self.layer.forward(p, x)

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


def offsets(place: Place, images: int, rows: int, columns: int) -> Offsets:
    """The distance of each pixel from the first one of a place, in bytes, image by image, row by row."""
    n, r, c = np.ogrid[:images, :rows, :columns]
    return np.asarray(n * place[1] + r * place[2] + c * place[3], np.int64).ravel()


def line(stride: int, count: int) -> Offsets:
    """Equal distances in bytes."""
    return stride * np.arange(count, dtype=np.int64)


def _packed(address: int, rows: int) -> tuple[int, int, int]:
    """A matrix packed in panels: address, and the strides of its rows and panels."""
    return address, 4 * kernels.PANEL, 4 * kernels.PANEL * rows


def _panelled(columns: int) -> int:
    """Columns rounded up to whole panels."""
    return -(-columns // kernels.PANEL) * kernels.PANEL
