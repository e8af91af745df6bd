"""How a net is computed: a list of steps over preallocated buffers.

`build` walks a list of layers once and turns it into steps, each of which runs one kernel, or a few, forward
and backward. Neighbours that are cheaper together become one step: convolution or linear layer + relu, and
convolution + relu + 2x2 pooling, whose backward pass visits only the pixels that won their window.

A buffer holds a value and its gradient for as many images as the workspace has room for, with a border of
zeros as wide as the convolution that reads it needs, so that kernels never test for edges.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from refsgd.nn import kernels
from refsgd.nn.layers import Array, Conv, Flatten, Layer, Linear, MaxPool, Relu, Shape

_NO_FLOOR, _RELU = np.float32(-np.inf), np.float32(0)


class Frame(NamedTuple):
    """Where one call finds its parameters and leaves their gradient: addresses of two vectors of float32."""

    x: int
    g: int


class Buffer:
    """Room for one activation of every image, and for its gradient; ``shape`` is (H, W, C) or (features,)."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.pad = 0
        self.border_dirty = False  # a step writes into the border of the gradient
        self.source: Buffer | None = None  # shares that buffer's memory, if that has no border (flattening)
        self.value = self.gradient = np.zeros((0, 0), np.float32)

    @property
    def floats(self) -> int:
        """Floats of one image, border included."""
        if len(self.shape) == 1:
            return self.shape[0]
        height, width, channels = self.shape
        return (height + 2 * self.pad) * (width + 2 * self.pad) * channels

    def allocate(self, images: int) -> None:
        """Make room for ``images`` images; what was there is lost."""
        if self.source is not None and not self.source.pad:
            self.value, self.gradient = self.source.value, self.source.gradient
        else:
            self.value = np.zeros((images, self.floats), np.float32)
            self.gradient = np.zeros((images, self.floats), np.float32)
        self.image = 4 * self.floats
        if len(self.shape) == 3:
            self.pixel = 4 * self.shape[2]
            self.row = (self.shape[1] + 2 * self.pad) * self.pixel
            inside = self.pad * (self.row + self.pixel)
        else:
            self.pixel = self.row = self.image
            inside = 0
        # Addresses of the first pixel inside the border; the arrays stay alive as long as the buffer does.
        self.y = self.value.ctypes.data + inside
        self.dy = self.gradient.ctypes.data + inside
        self.corner, self.dcorner = self.value.ctypes.data, self.gradient.ctypes.data


class Step:
    """One entry of the plan. ``prepare`` and ``finish`` run once a gradient, the others once a chunk of images."""

    def allocate(self, images: int) -> None:
        """Make room for ``images`` images."""

    def prepare(self, frame: Frame) -> None:
        """Before the first chunk: derive what the backward pass needs from the parameters."""

    def forward(self, b: int, frame: Frame) -> None:
        """Compute the output of b images."""

    def backward(self, b: int, frame: Frame) -> None:
        """Add to the gradient of the parameters; write that of the input."""

    def finish(self, frame: Frame) -> None:
        """After the last chunk: complete the gradient of the parameters."""


class ConvStep(Step):
    """Convolution, with the relu that follows it if there is one, for any kernel size and stride 1."""

    def __init__(self, conv: Conv, source: Buffer, target: Buffer, at: dict[str, int], relu: bool, first: bool) -> None:
        self.conv, self.source, self.target, self.at, self.relu, self.first = conv, source, target, at, relu, first
        self.run = conv.kernel * source.shape[2]
        self.zeros = np.zeros(max(conv.channels, source.shape[2]), np.float32)
        self.sink = np.zeros(conv.channels, np.float32)  # takes the gradient of a bias that is not there
        self.flipped = np.zeros((conv.kernel, conv.kernel, conv.channels, source.shape[2]), np.float32)
        source.pad = max(source.pad, conv.pad)
        if not first:
            if conv.stride != 1:
                raise NotImplementedError("kernels for a strided convolution that is not the first layer")
            target.pad = max(target.pad, conv.kernel - 1 - conv.pad)

    def prepare(self, frame: Frame) -> None:
        if not self.first:
            c, o, k = self.source.shape[2], self.conv.channels, self.conv.kernel
            size, base = 4 * c * o, self.flipped.ctypes.data
            for tap in range(k * k):
                kernels.transpose(c, o, frame.x + self.at["weight"] + tap * size, base + (k * k - 1 - tap) * size, False)

    def forward(self, b: int, frame: Frame) -> None:
        s, t, conv = self.source, self.target, self.conv
        bias = frame.x + self.at["bias"] if conv.bias else self.zeros.ctypes.data
        kernels.convolve(
            b, t.shape[0], t.shape[1], s.y - conv.pad * (s.row + s.pixel), s.image, conv.stride * s.row,
            conv.stride * s.pixel, conv.kernel, s.row, self.run, frame.x + self.at["weight"], bias, conv.channels,
            t.y, t.image, t.row, t.pixel, _RELU if self.relu else _NO_FLOOR,
        )  # fmt: skip

    def backward(self, b: int, frame: Frame) -> None:
        s, t, conv = self.source, self.target, self.conv
        rows, columns, o = t.shape
        bias = frame.g + self.at["bias"] if conv.bias else self.sink.ctypes.data
        if self.relu:
            kernels.relu_backward(b, rows, columns, o, t.y, t.image, t.row, t.dy, t.image, t.row, bias)
        elif conv.bias:
            kernels.bias_backward(b, rows, columns, o, t.dy, t.image, t.row, bias)
        kernels.convolve_weights(
            b, rows, columns, s.y - conv.pad * (s.row + s.pixel), s.image, conv.stride * s.row,
            conv.stride * s.pixel, conv.kernel, s.row, self.run, t.dy, t.image, t.row, t.pixel, o,
            frame.g + self.at["weight"],
        )  # fmt: skip
        if self.first:
            return
        if t.border_dirty:
            kernels.zero_border(b, rows, columns, o, t.pad, t.dy, t.image, t.row)
        # The gradient of the input is the convolution of dy with the filters turned by half a turn.
        reach = conv.kernel - 1 - conv.pad
        kernels.convolve(
            b, s.shape[0], s.shape[1], t.dy - reach * (t.row + t.pixel), t.image, t.row, t.pixel, conv.kernel,
            t.row, conv.kernel * o, self.flipped.ctypes.data, self.zeros.ctypes.data, s.shape[2],
            s.dy, s.image, s.row, s.pixel, _NO_FLOOR,
        )  # fmt: skip


class ConvPoolStep(Step):
    """Convolution of stride 1, relu and 2x2 max-pooling as one; see `kernels.pool_convolve_backward`."""

    def __init__(self, conv: Conv, source: Buffer, target: Buffer, at: dict[str, int], first: bool) -> None:
        self.conv, self.source, self.target, self.at, self.first = conv, source, target, at, first
        height, width, c = source.shape
        self.rows, self.columns, _ = conv.output_shape(source.shape)
        self.run = conv.kernel * c
        self.w = np.zeros((conv.channels, conv.kernel * self.run), np.float32)
        self.dw = np.zeros_like(self.w)
        self.scratch = np.zeros(2 * self.columns * conv.channels, np.float32)
        windows = prod(target.shape[:2])
        self.offsets = np.zeros(windows + 1, np.int64)
        self.values = np.zeros(windows + 1, np.float32)
        source.pad = max(source.pad, conv.pad)
        source.border_dirty = conv.pad > 0

    def allocate(self, images: int) -> None:
        self.winner = np.zeros(images * prod(self.target.shape), np.uint8)

    def prepare(self, frame: Frame) -> None:
        size, o = self.w.shape[1], self.conv.channels
        kernels.transpose(size, o, frame.x + self.at["weight"], self.w.ctypes.data, False)
        self.dw.fill(0)

    def forward(self, b: int, frame: Frame) -> None:
        s, t, conv = self.source, self.target, self.conv
        kernels.convolve_pool(
            b, self.rows, self.columns, s.y - conv.pad * (s.row + s.pixel), s.image, s.row, s.pixel, conv.kernel,
            s.row, self.run, frame.x + self.at["weight"], frame.x + self.at["bias"], conv.channels,
            self.scratch.ctypes.data, t.y, t.image, t.row, self.winner,
        )  # fmt: skip

    def backward(self, b: int, frame: Frame) -> None:
        s, t, conv = self.source, self.target, self.conv
        back = conv.pad * (s.row + s.pixel)
        if not self.first:
            kernels.zero(s.dcorner, b * s.floats)
        kernels.pool_convolve_backward(
            b, t.shape[0], t.shape[1], s.y - back, s.image, s.row, s.pixel, conv.kernel, self.run,
            self.w.ctypes.data, conv.channels, t.dy, t.image, t.row, self.winner, self.dw.ctypes.data,
            frame.g + self.at["bias"], 0 if self.first else s.dy - back, self.offsets, self.values,
        )  # fmt: skip

    def finish(self, frame: Frame) -> None:
        o, size = self.dw.shape
        kernels.transpose(o, size, self.dw.ctypes.data, frame.g + self.at["weight"], True)


class LinearStep(Step):
    """Linear layer, with the relu that follows it if there is one."""

    _SMALL = 1 << 15  # below, transposing the weights costs less than the scalar products along their rows

    def __init__(self, layer: Linear, source: Buffer, target: Buffer, at: dict[str, int], relu: bool, first: bool) -> None:
        self.source, self.target, self.at, self.relu, self.first = source, target, at, relu, first
        self.inputs, self.outputs = source.shape[0], layer.features
        self.zeros = np.zeros(self.inputs, np.float32)
        small = self.inputs * self.outputs <= self._SMALL and not first
        self.transposed = np.zeros((self.outputs, self.inputs), np.float32) if small else None

    def prepare(self, frame: Frame) -> None:
        if self.transposed is not None:
            weight = frame.x + self.at["weight"]
            kernels.transpose(self.inputs, self.outputs, weight, self.transposed.ctypes.data, False)

    def forward(self, b: int, frame: Frame) -> None:
        s, t = self.source, self.target
        kernels.convolve(
            1, 1, b, s.y, 0, 0, s.image, 1, 0, self.inputs, frame.x + self.at["weight"], frame.x + self.at["bias"],
            self.outputs, t.y, 0, 0, t.image, _RELU if self.relu else _NO_FLOOR,
        )  # fmt: skip

    def backward(self, b: int, frame: Frame) -> None:
        s, t, bias = self.source, self.target, frame.g + self.at["bias"]
        if self.relu:
            kernels.relu_backward(b, 1, 1, self.outputs, t.y, t.image, 0, t.dy, t.image, 0, bias)
        else:
            kernels.bias_backward(b, 1, 1, self.outputs, t.dy, t.image, 0, bias)
        kernels.convolve_weights(
            1, 1, b, s.y, 0, 0, s.image, 1, 0, self.inputs, t.dy, 0, 0, t.image, self.outputs,
            frame.g + self.at["weight"],
        )  # fmt: skip
        if self.first:
            return
        if self.transposed is not None:
            kernels.convolve(
                1, 1, b, t.dy, 0, 0, t.image, 1, 0, self.outputs, self.transposed.ctypes.data, self.zeros.ctypes.data,
                self.inputs, s.dy, 0, 0, s.image, _NO_FLOOR,
            )  # fmt: skip
        else:
            kernels.linear_inputs(b, self.inputs, self.outputs, t.dy, frame.x + self.at["weight"], s.dy)


class FlattenStep(Step):
    """Features in one row: the same memory where the images have no border, else a copy without it."""

    def __init__(self, source: Buffer, target: Buffer) -> None:
        self.source, self.target = source, target
        target.source = source

    def forward(self, b: int, frame: Frame) -> None:
        s, t = self.source, self.target
        if s.pad:
            run = s.shape[1] * s.shape[2]
            kernels.copy_images(b, s.shape[0], run, s.y, s.image, s.row, t.y, t.image, 4 * run)

    def backward(self, b: int, frame: Frame) -> None:
        s, t = self.source, self.target
        if s.pad:
            run = s.shape[1] * s.shape[2]
            kernels.copy_images(b, s.shape[0], run, t.dy, t.image, 4 * run, s.dy, s.image, s.row)


class Plan:
    """The steps of one net and the buffers between them.

    Parameters
    ----------
    layers : list of layers
    shape : (H, W, C) of an image
    at : for each layer, the byte offsets of its parameters in the flat vector
    """

    def __init__(self, layers: Sequence[Layer], shape: Shape, at: list[dict[str, int]]) -> None:
        self.input = Buffer(shape)
        self.buffers = [self.input]
        self.steps: list[Step] = []
        rest = list(zip(layers, at, strict=True))
        while rest:
            rest = rest[self._append(rest) :]
        self.output = self.buffers[-1]
        self.capacity = 0
        per_image = 8 * sum(buffer.floats for buffer in self.buffers)
        # Chunks that stay near the cache, yet long enough to pay for reading the weights again.
        self.chunk = int(min(256, max(64, 2 ** ((1 << 22) // per_image).bit_length())))

    def _append(self, rest: list[tuple[Layer, dict[str, int]]]) -> int:
        """Add one step for the first layers of ``rest``; returns how many layers it took."""
        layer, at = rest[0]
        source = self.buffers[-1]
        first = not any(isinstance(step, ConvStep | ConvPoolStep | LinearStep) for step in self.steps)
        following = [other for other, _ in rest[1:3]]
        relu = following[:1] == [Relu()]
        shape = layer.output_shape(source.shape)
        if isinstance(layer, Conv) and layer.stride == 1 and layer.bias and following == [Relu(), MaxPool()]:
            target = self._add(MaxPool().output_shape(shape))
            self.steps.append(ConvPoolStep(layer, source, target, at, first))
            return 3
        if isinstance(layer, Conv):
            self.steps.append(ConvStep(layer, source, self._add(shape), at, relu, first))
            return 1 + relu
        if isinstance(layer, Linear):
            self.steps.append(LinearStep(layer, source, self._add(shape), at, relu, first))
            return 1 + relu
        if isinstance(layer, Flatten):
            self.steps.append(FlattenStep(source, self._add(shape)))
            return 1
        raise NotImplementedError(f"no kernel for {layer} here")

    def _add(self, shape: Shape) -> Buffer:
        self.buffers.append(Buffer(shape))
        return self.buffers[-1]

    def reserve(self, images: int) -> None:
        """Make room for ``images`` images, if there is not."""
        if images > self.capacity:
            for buffer in self.buffers:
                buffer.allocate(images)
            for step in self.steps:
                step.allocate(images)
            self.capacity = images

    def forward(self, images: Array, frame: Frame) -> None:
        """Scores of ``images`` (b, H, W, C), into the value of ``self.output``."""
        b, first = len(images), self.input
        height, width, c = first.shape
        run = width * c
        kernels.copy_images(b, height, run, images.ctypes.data, 4 * height * run, 4 * run, first.y, first.image, first.row)
        for step in self.steps:
            step.forward(b, frame)

    def loss(self, labels: Array, share: np.float32) -> tuple[float, int]:
        """Sum of the cross-entropies and number classified rightly; leaves the gradient in ``self.output``."""
        z = self.output
        loss, right = kernels.softmax_cross_entropy(len(labels), z.shape[0], z.y, labels, share, z.dy)
        return loss, right

    def backward(self, b: int, frame: Frame) -> None:
        """Add the gradients of b images to the vector at ``frame.g``."""
        for step in reversed(self.steps):
            step.backward(b, frame)
