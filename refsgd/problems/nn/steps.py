"""Steps of a plan with matrix products: convolutions and linear layers."""
from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from refsgd.problems.nn import elementwise, kernels, winograd
from refsgd.problems.nn.frame import Frame
from refsgd.problems.nn.layers import Conv, Linear
from refsgd.problems.nn.memory import Buffer, Place, Scratch, zeros
from refsgd.problems.nn.vector import ROWS

NO_FLOOR, RELU = np.float32(-np.inf), np.float32(0)


class Step:
    """One entry of a plan. ``prepare`` and ``finish`` run once per gradient, the others once per chunk.

    Forward, it reads its source and writes its target; backward, it reads the target's gradient and writes
    the source's.  Subclasses take ``relu``: whether a relu follows."""

    accumulate = False  #: whether ``backward`` adds to the source's gradient, which other steps write too
    at: dict[str, int] = {}  #: byte offsets of parameters in the flat vector, by name
    masks = False  #: whether ``backward`` changes or passes on the target's gradient: it is then not shared

    def __init__(self, source: Buffer, target: Buffer) -> None:
        self.source, self.target = source, target

    def allocate(self, images: int) -> None:
        """Allocate memory besides the buffers."""

    def prepare(self, frame: Frame) -> None:
        """Before the first chunk: derive what the backward pass needs from the parameters."""

    def forward(self, b: int, frame: Frame) -> None:
        """Compute the target."""

    def backward(self, b: int, frame: Frame) -> None:
        """Add to the gradient of the parameters, and write that of the source if it is wanted."""

    def finish(self, frame: Frame) -> None:
        """After the last chunk: complete the gradient of the parameters."""


class ConvStep(Step):
    """Convolution of any kernel size, stride and padding, with a relu if one follows.

    The gradient of the input is a convolution too.  With stride s, pixels whose row and column have the same
    remainders modulo s meet the same taps, so it is s * s small convolutions of dy with some of the taps,
    rotated by 180 degrees."""

    def __init__(self, conv: Conv, source: Buffer, target: Buffer, at: dict[str, int], relu: bool,
                 scratch: Scratch) -> None:
        super().__init__(source, target)
        self.conv, self.at, self.scratch = conv, at, scratch
        self.masks, self.floor = relu, RELU if relu else NO_FLOOR
        self.c, self.o = source.shape[2], conv.channels
        self.zeros = zeros(max(self.o, self.c))
        self.zeros_at = self.zeros.ctypes.data  # asking for an address takes a microsecond
        source.value.need(conv.pad)
        self.phases = [(rows, columns) for rows in self._phases(0) for columns in self._phases(1)]
        if source.wanted:
            for lines in (line for phase in self.phases for line in phase):
                target.gradient.need(lines.border)
            scratch.need("filters", conv.kernel**2 * self.c * self.o)

    def _phases(self, axis: int) -> list[_Lines]:
        """The rows (or columns) of the input, by remainder modulo the stride."""
        k, s, p = self.conv.kernel, self.conv.stride, self.conv.pad
        length, outputs = self.source.shape[axis], self.target.shape[axis]
        found = []
        for remainder in range(s):
            taps = range(remainder, k, s)
            start = -((remainder - p) // s)  # the first q with s * q + remainder - p >= 0
            first = s * start + remainder - p
            count = len(range(first, length, s))
            lowest = start - (len(taps) - 1)
            border = max(0, -lowest, start + count - outputs) if taps and count else 0
            found.append(_Lines(list(taps)[::-1], first, count, lowest, border))
        return found

    def _turn(self, frame: Frame) -> int:
        """Pack the filters for the gradient of the input; returns their address."""
        turned = to = self.scratch.address("filters")
        size = 4 * self.c * self.o
        for rows, columns in self.phases:
            for i in rows.taps:
                for j in columns.taps:
                    tap = frame.x + self.at["weight"] + (i * self.conv.kernel + j) * size
                    kernels.transpose(self.c, self.o, tap, to, kernels.OVERWRITE)
                    to += size
        return turned

    def forward(self, b: int, frame: Frame) -> None:
        t = self.target.value
        if t.shape[1] < min(b, ROWS):
            self._forward_by_pixel(b, frame)
            return
        kernels.convolve((b, *t.shape[:2]), self._seen(), self._patch(), frame.x + self.at["weight"], self.o,
                         self._bias(frame), t.place, self.floor)

    def _seen(self) -> Place:
        """The place of the input under the first tap."""
        return self.source.value.at(-self.conv.pad, -self.conv.pad, self.conv.stride)

    def _patch(self) -> tuple[int, int, int]:
        return self.conv.kernel, self.source.value.place[2], self.conv.kernel * self.c

    def _forward_by_pixel(self, b: int, frame: Frame) -> None:
        """Forward pass if images outnumber columns: all images at one position share the weights."""
        s, t, conv = self.source.value, self.target.value, self.conv
        kernels.convolve_by_pixel((b, *t.shape[:2]), s.place, s.shape, (conv.kernel, conv.pad, conv.stride),
                                  frame.x + self.at["weight"], self.o, self._bias(frame), t.place, self.floor)

    def _bias(self, frame: Frame) -> Place:
        return frame.x + self.at["bias"] if self.conv.bias else self.zeros_at, 0, 0, 0

    def _onto(self, place: Place) -> Place:
        """The place to which the gradient is added: its own to accumulate, else zeros."""
        return place if self.accumulate else (self.zeros_at, 0, 0, 0)

    def backward(self, b: int, frame: Frame) -> None:
        self._backward_output(b, frame)
        t = self.target.gradient
        kernels.convolve_weights((b, *t.shape[:2]), self._seen(), self._patch(), t.place, self.o,
                                 frame.g + self.at["weight"])
        if self.source.wanted:
            self._backward_inputs(b, self._turn(frame))

    def _backward_output(self, b: int, frame: Frame) -> None:
        t = self.target.gradient
        bias = frame.g + self.at["bias"] if self.conv.bias else 0
        if bias or self.floor == RELU:
            elementwise.output_backward(b, *t.shape, self.target.value.place, t.place, self.floor, bias)
        if t.dirty and self.source.wanted:
            elementwise.zero_border(b, *t.shape, t.pad, t.place)

    def _backward_inputs(self, b: int, w: int) -> None:
        t, d = self.target.gradient, self.source.gradient
        if not self.accumulate and not all(rows.taps and columns.taps for rows, columns in self.phases):
            elementwise.zero(d.corner, b * d.floats)  # some pixels are under no tap
        for rows, columns in self.phases:
            if not (rows.taps and columns.taps and rows.number and columns.number):
                continue
            to = d.at(rows.first, columns.first, self.conv.stride)
            patch = len(rows.taps), t.place[2], len(columns.taps) * self.o
            kernels.convolve((b, rows.number, columns.number), t.at(rows.lowest, columns.lowest), patch, w,
                             self.c, self._onto(to), to, NO_FLOOR)
            w += 4 * len(rows.taps) * len(columns.taps) * self.o * self.c


class PixelStep(ConvStep):
    """Convolution on images so small that most taps lie outside; see `kernels.convolve_by_pixel`."""

    @staticmethod
    def fits(conv: Conv, source: Buffer) -> bool:
        """Whether this step can compute a convolution, and faster than `ConvStep`."""
        height, width, c = source.shape
        inside = prod(min(1.0, side / (2 * conv.pad + 1)) for side in (height, width))
        return (conv.stride == 1 and conv.kernel == 2 * conv.pad + 1 and height * width <= 4 and inside < 1
                and c >= 16)

    def forward(self, b: int, frame: Frame) -> None:
        self._forward_by_pixel(b, frame)

    def backward(self, b: int, frame: Frame) -> None:
        self._backward_output(b, frame)
        s, t, d = self.source.value, self.target.gradient, self.source.gradient
        patch = self.conv.kernel, self.conv.pad, 1
        kernels.convolve_weights_by_pixel((b, *t.shape[:2]), s.place, s.shape, patch, t.place, self.o,
                                          frame.g + self.at["weight"])
        if self.source.wanted:
            kernels.convolve_by_pixel((b, *d.shape[:2]), t.place, t.shape, patch, self._turn(frame), self.c,
                                      self._onto(d.place), d.place, NO_FLOOR)


class _Lines(NamedTuple):
    """Rows (or columns) of an input with the same remainder modulo the stride."""

    taps: list[int]  # that read them, in the order in which dy is read
    first: int  # the first of the rows
    number: int
    lowest: int  # the row of dy that its first tap reads
    border: int  # rows of dy that are read outside the image


class WinogradStep(ConvStep):
    """Convolution 3x3 with stride 1 and padding 1 on even sizes; see `refsgd.problems.nn.winograd`."""

    @staticmethod
    def fits(conv: Conv, source: Buffer) -> bool:
        """Whether this step can compute a convolution, and faster than `ConvStep`."""
        even = source.shape[0] % 2 == source.shape[1] % 2 == 0
        same = (conv.kernel, conv.stride, conv.pad) == (3, 1, 1)
        return same and even and min(source.shape[2], conv.channels) >= 24

    def __init__(self, conv: Conv, source: Buffer, target: Buffer, at: dict[str, int], relu: bool,
                 scratch: Scratch) -> None:
        super().__init__(conv, source, target, at, relu, scratch)
        c, o = self.c, self.o
        self.chunk = 0
        scratch.need("filters", 16 * max(c * _panelled(o), o * _panelled(c)))
        scratch.need("turned", 9 * o * kernels.PANEL)

    def allocate(self, images: int) -> None:
        down, across = (side // 2 for side in self.source.shape[:2])
        widest = max(self.c, self.o)
        tiles = max(96, min(256, 100_000 // (16 * widest)))
        self.chunk = min(max(1, tiles // across), images * down)  # rows of tiles
        self.scratch.need("inputs", 16 * self.chunk * across * widest)
        self.scratch.need("outputs", 16 * self.chunk * across * _panelled(widest))

    def forward(self, b: int, frame: Frame) -> None:
        t = self.target.value
        # Packed immediately before they are read, so that they are in the cache.
        filters = self.scratch.address("filters")
        winograd.pack_filters(self.c, self.o, frame.x + self.at["weight"], filters,
                              4 * self.c * _panelled(self.o))
        winograd.convolve(self._sizes(b), self._seen(), self.c, filters, self.o, self._tiles(),
                          self._bias(frame), t.place, self.floor)

    def _sizes(self, b: int) -> tuple[int, int, int, int]:
        height, width, _ = self.source.shape
        return b, height, width, self.chunk

    def _tiles(self) -> tuple[int, int, int]:
        return self.scratch.address("inputs"), self.scratch.address("outputs"), self.zeros_at

    def backward(self, b: int, frame: Frame) -> None:
        self._backward_output(b, frame)
        t, d = self.target.gradient, self.source.gradient
        summed = filters = self.scratch.address("filters")  # one after the other
        winograd.convolve_weights(self._sizes(b), self._seen(), self.c, t.place, self.o, self._tiles(),
                                  summed)
        winograd.unpack_gradient(self.c, self.o, summed, frame.g + self.at["weight"])
        if self.source.wanted:
            winograd.pack_turned_filters(
                self.c, self.o, frame.x + self.at["weight"], self.scratch.address("turned"), filters,
                4 * self.o * _panelled(self.c))
            winograd.convolve(self._sizes(b), t.at(-1, -1), self.o, filters, self.c, self._tiles(),
                              self._onto(d.place), d.place, NO_FLOOR)


class ConvPoolStep(Step):
    """Convolution of stride 1, relu and 2x2 max-pooling as one; see `kernels.pool_convolve_backward`."""

    def __init__(self, conv: Conv, source: Buffer, target: Buffer, at: dict[str, int]) -> None:
        super().__init__(source, target)
        self.conv, self.at = conv, at
        self.rows, self.columns, _ = conv.output_shape(source.shape)
        self.run = conv.kernel * source.shape[2]
        self.w = zeros(conv.channels, conv.kernel * self.run)
        self.dw = zeros(*self.w.shape)
        self.scratch = zeros(2 * self.columns * conv.channels)
        self.w_at, self.dw_at, self.scratch_at = (array.ctypes.data
                                                  for array in (self.w, self.dw, self.scratch))
        windows = prod(target.shape[:2])
        self.entries = np.zeros(windows + 1, np.int64), zeros(windows + 1)
        source.value.need(conv.pad)
        if source.wanted:
            # The input and its gradient share a list of offsets, so both need the same border.
            source.twins = True
            source.gradient.dirty = source.gradient.dirty or conv.pad > 0

    def allocate(self, images: int) -> None:
        self.winner = np.zeros(images * prod(self.target.shape), np.uint8)

    def prepare(self, frame: Frame) -> None:
        o, size = self.w.shape
        kernels.transpose(size, o, frame.x + self.at["weight"], self.w_at, kernels.OVERWRITE)
        self.dw.fill(0)

    def forward(self, b: int, frame: Frame) -> None:
        s, conv = self.source.value, self.conv
        kernels.convolve_pool(
            (b, self.rows, self.columns), s.at(-conv.pad, -conv.pad), self._patch(),
            frame.x + self.at["weight"], frame.x + self.at["bias"], conv.channels, self.scratch_at,
            self.target.value.place, self.winner[frame.first * self.target.size :])

    def _patch(self) -> tuple[int, int, int]:
        return self.conv.kernel, self.source.value.place[2], self.run

    def backward(self, b: int, frame: Frame) -> None:
        s, d, t, pad = self.source.value, self.source.gradient, self.target.gradient, self.conv.pad
        wanted = self.source.wanted
        if wanted and not self.accumulate:
            elementwise.zero(d.corner, b * d.floats)
        kernels.pool_convolve_backward(
            (b, *t.shape[:2]), s.at(-pad, -pad), d.at(-pad, -pad) if wanted else (0, 0, 0, 0), self._patch(),
            self.w_at, self.conv.channels, t.place, self.winner[frame.first * self.target.size :],
            (self.dw_at, frame.g + self.at["bias"]), self.entries)

    def finish(self, frame: Frame) -> None:
        o, size = self.dw.shape
        kernels.transpose(o, size, self.dw_at, frame.g + self.at["weight"], kernels.ACCUMULATE)


class LinearStep(Step):
    """Linear layer, with a relu if one follows."""

    def __init__(self, layer: Linear, source: Buffer, target: Buffer, at: dict[str, int], relu: bool) -> None:
        super().__init__(source, target)
        self.at, self.masks, self.floor = at, relu, RELU if relu else NO_FLOOR
        self.inputs, self.outputs = source.size, layer.features
        self.zeros, self.turned = zeros(kernels.PANEL), zeros(self.outputs, kernels.PANEL)
        self.zeros_at, self.turned_at = self.zeros.ctypes.data, self.turned.ctypes.data

    def forward(self, b: int, frame: Frame) -> None:
        s, t = self.source.value, self.target.value
        kernels.convolve((1, 1, b), s.as_columns, (1, 0, self.inputs), frame.x + self.at["weight"],
                         self.outputs, (frame.x + self.at["bias"], 0, 0, 0), t.as_columns, self.floor)

    def backward(self, b: int, frame: Frame) -> None:
        s, t, d = self.source.value, self.target.gradient, self.source.gradient
        elementwise.output_backward(b, *t.shape, self.target.value.place, t.place, self.floor,
                                    frame.g + self.at["bias"])
        kernels.convolve_weights((1, 1, b), s.as_columns, (1, 0, self.inputs), t.as_columns, self.outputs,
                                 frame.g + self.at["weight"])
        if self.source.wanted:
            kernels.linear_inputs(b, self.inputs, self.outputs, t.place[0], frame.x + self.at["weight"],
                                  self.turned_at, self.zeros_at, d.place[0])


def _panelled(columns: int) -> int:
    """Columns rounded up to whole panels."""
    return -(-columns // kernels.PANEL) * kernels.PANEL
