"""The execution plan of a net: a list of steps over preallocated buffers.

`Plan` makes each layer a step that runs one or a few kernels forward and backward. Adjacent layers that are
cheaper together become one step: a relu joins the layer before it, and a small convolution with relu and 2x2
pooling is one step whose backward pass visits only the largest pixel of each window. Branches become sections
of the list.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from refsgd.problems.nn import elementwise
from refsgd.problems.nn.branches import Concat, Residual
from refsgd.problems.nn.frame import Frame
from refsgd.problems.nn.layer import Array, Layer, Shape
from refsgd.problems.nn.layers import BatchNorm, Conv, Dropout, Flatten, GlobalAverage, Linear, MaxPool, Relu
from refsgd.problems.nn.memory import Buffer, Field, Room, Scratch
from refsgd.problems.nn.pointwise import (
    AddStep,
    AverageStep,
    BatchNormStep,
    CopyStep,
    DropoutStep,
    FlattenStep,
    MaxPoolStep,
    MomentsStep,
    ReluStep,
)
from refsgd.problems.nn.steps import ConvPoolStep, ConvStep, LinearStep, PixelStep, Step, WinogradStep

At = dict[str, int]

# A group of images takes at least this many bytes, and less than twice as many: it fits into the cache that
# two cores share, and is large enough that its overhead is small.
_CACHE = 8 << 20


class Stage:
    """Steps that process one group of images after the other, so that each reads its input from the cache.

    Batch norm ends a stage, because it reads all images before it changes the first. Groups and stages change
    no sum over the images of a batch, except Winograd's gradients, which are summed by group.  Without
    ``grouped``, all images are one group.
    """

    def __init__(self, steps: list[Step], grouped: bool) -> None:
        self.steps = steps
        buffers = {id(buffer): buffer for step in steps
                   for buffer in (step.source, step.target, getattr(step, "normed", step.target))}
        fields = [field for buffer in buffers.values() for field in (buffer.value, buffer.gradient)]
        self.fields = list({id(field): field for field in fields}.values())
        self.images = 0  # least number in a group; 0: all
        if grouped:
            # Filters are packed for each group, which must be cheap compared with the work on the images.
            filters = sum(step.conv.kernel**2 * step.c * step.o for step in steps
                          if isinstance(step, ConvStep))
            self.images = max(8,
                              max(_CACHE, 64 * filters) // (4 * sum(field.floats for field in self.fields)))

    def only(self, step: Step) -> Stage:
        """A stage of one of the steps, with the same groups of images."""
        found = Stage([step], grouped=False)
        found.images = self.images
        return found

    def groups(self, b: int, frame: Frame) -> Iterator[tuple[int, Frame]]:
        """Divide images into groups, and set the stage's fields to each group's first image."""
        groups = b // self.images if self.images else 1
        if groups <= 1:
            yield b, frame
            return
        size = -(-b // groups)
        for first in range(0, b, size):
            count = min(size, b - first)
            self._seek(first)
            yield count, replace(frame, first=first, last=first + count == b)
        self._seek(0)

    def _seek(self, image: int) -> None:
        for field in self.fields:
            field.seek(image)


class Plan:
    """The steps of one net and the buffers between them.

    ``at`` gives the byte offsets of each layer's parameters, layers of branches first.  Without ``keep``
    there is only a forward pass, and buffers share memory.  ``wanted``: whether the gradient of the input is
    computed too.
    """

    def __init__(self, layers: Sequence[Layer], shape: Shape, at: Iterator[At], keep: bool = True,
                 wanted: bool = False) -> None:
        self.input = Buffer(shape, wanted)
        self.buffers = [self.input]
        self.steps: list[Step] = []
        self.scratch = Scratch()
        self._at = at
        self.output = self._chain(list(layers), self.input)
        self.capacity, self.keep = 0, keep
        while any([buffer.settle() for buffer in self.buffers]):
            pass
        for step in self.steps:
            if isinstance(step, FlattenStep):
                step.share()
        if not keep:
            self._share_rooms()
        self.normalises = any(isinstance(step, BatchNormStep) for step in self.steps)
        self.stages = list(self._staged())
        self.pieces = self._pieces()
        whole = any(isinstance(step, BatchNormStep | DropoutStep) for step in self.steps)
        per_image = 8 * sum(buffer.value.floats for buffer in self.buffers)
        # Images computed at once, None for all: few enough to stay near the cache, enough to pay for reading
        # the weights again.
        self.chunk = None if whole else int(min(256, max(64, 2 ** ((1 << 22) // per_image).bit_length())))

    def _staged(self) -> Iterator[Stage]:
        """The stages: from one batch norm to the next; if there is none, one per step."""
        if not self.normalises:
            yield from (Stage([step], grouped=False) for step in self.steps)
            return
        steps: list[Step] = []
        for step in self.steps:
            if isinstance(step, BatchNormStep):
                yield Stage(steps, self.keep)
                steps = []
            steps.append(step)
        yield Stage(steps, self.keep)

    def _pieces(self) -> list[list[Stage]]:
        """The steps one by one, in a list per layer with parameters: its own steps and those up to the next
        such layer, for the first also those before it."""
        pieces: list[list[Stage]] = [[]]
        at: At = {}
        for stage in self.stages:
            for step in stage.steps:
                if at and step.at and step.at != at:
                    pieces.append([])
                at = step.at or at
                pieces[-1].append(stage.only(step))
        return pieces

    def _share_rooms(self) -> None:
        """Give every value memory that no other value needs at the same time."""
        spans = {id(self.input.value): [-1, 0]}
        fields = [self.input.value]
        for k, step in enumerate(self.steps):
            for buffer in (step.source, step.target):
                field = buffer.value.of or buffer.value  # a flattened value is its source's
                if id(field) not in spans:
                    spans[id(field)] = [k, k]
                    fields.append(field)
                spans[id(field)][1] = k
        last = self.output.value.of or self.output.value
        spans[id(last)][1] = len(self.steps)
        rooms: list[Room] = []
        for field in fields:
            first, end = spans[id(field)]
            free = [room for room in rooms if room.free_after < first]
            room = min(free, key=lambda room: abs(room.floats - field.floats), default=None)
            if room is None:
                room = Room()
                rooms.append(room)
            room.floats, room.free_after, field.room = max(room.floats, field.floats), end, room

    def _chain(self, layers: Sequence[Layer], source: Buffer, branch: bool = False,
               accumulate: bool = False) -> Buffer:
        """Append the steps of a chain of layers; ``branch``: others read the source too."""
        if branch and layers and not isinstance(layers[0], Conv | MaxPool):
            # The layer may work in place, or cannot add to a gradient.
            own = self._buffer(source.shape, source.wanted)
            self._append(CopyStep(source, own), accumulate)
            source, accumulate = own, False
        k = 0
        while k < len(layers):
            before = len(self.steps)
            source, taken = self._layer(list(layers[k : k + 3]), source)
            if k == 0 and accumulate:
                self.steps[before].accumulate = True
            k += taken
        return source

    def _layer(self, following: list[Layer], source: Buffer) -> tuple[Buffer, int]:
        """Append the step of the first layer, fused with others if possible; returns output, layers taken."""
        layer = following[0]
        relu = following[1:2] == [Relu()]
        if isinstance(layer, Residual):
            return self._residual(layer, source, relu), 1 + relu
        if isinstance(layer, Concat):
            return self._concat(layer, source), 1
        at = next(self._at)
        if relu and isinstance(layer, Conv | Linear | BatchNorm):
            next(self._at)
        if isinstance(layer, Conv):
            return self._convolution(layer, at, following, source, relu)
        if isinstance(layer, Relu | Dropout):  # in place
            self._append(ReluStep(source) if isinstance(layer, Relu) else DropoutStep(layer, source))
            return source, 1
        target = self._buffer(layer.output_shape(source.shape), source.wanted or bool(at))
        if isinstance(layer, Linear):
            self._append(LinearStep(layer, source, target, at, relu))
            return target, 1 + relu
        if isinstance(layer, BatchNorm):
            moments = MomentsStep(layer, source, target, at, relu)
            self._append(moments)
            self._append(BatchNormStep(moments))
            return target, 1 + relu
        if isinstance(layer, Flatten):
            self._append(FlattenStep(source, target))
        elif isinstance(layer, MaxPool):
            self._append(MaxPoolStep(layer, source, target))
        elif isinstance(layer, GlobalAverage):
            self._append(AverageStep(source, target))
        else:
            raise NotImplementedError(f"kernels for {layer}")
        return target, 1

    def _convolution(self, conv: Conv, at: At, following: list[Layer], source: Buffer,
                     relu: bool) -> tuple[Buffer, int]:
        shape = conv.output_shape(source.shape)
        kind = next((kind for kind in (PixelStep, WinogradStep) if kind.fits(conv, source)), ConvStep)
        if kind is ConvStep and following[1:] == [Relu(), MaxPool()] and conv.stride == 1 and conv.bias:
            next(self._at)
            target = self._buffer(MaxPool().output_shape(shape))
            self._append(ConvPoolStep(conv, source, target, at))
            return target, 3
        target = self._buffer(shape)
        self._append(kind(conv, source, target, at, relu, self.scratch))
        return target, 1 + relu

    def _residual(self, layer: Residual, source: Buffer, relu: bool) -> Buffer:
        before = len(self.steps)
        y = self._chain(layer.body, source, branch=True, accumulate=True)
        last = self.steps[-1]
        if last.masks or len(self.steps) - before < 2:
            y = self._copied(y)  # a step that cannot share its gradient with the shortcut
        z = self._chain(layer.shortcut, source, branch=True) if layer.shortcut else source
        last = self.steps[-1]
        next(self._at)
        if relu:
            next(self._at)
        if z.wanted and not (layer.shortcut and last.masks):
            # Both terms of a sum have its gradient, so body and shortcut share one field.
            z.gradient.need(y.gradient.pad)
            y.gradient = z.gradient
        self._append(AddStep(z, y, relu))
        return y

    def _copied(self, source: Buffer) -> Buffer:
        target = self._buffer(source.shape)
        self._append(CopyStep(source, target))
        return target

    def _concat(self, layer: Concat, source: Buffer) -> Buffer:
        ends = []
        for k, branch in enumerate(layer.branches):
            ends.append(self._chain(branch, source, branch=True, accumulate=k < len(layer.branches) - 1))
        next(self._at)
        target = self._buffer((*ends[0].shape[:-1], sum(end.shape[-1] for end in ends)))
        first = 0
        for end in ends:
            self._append(CopyStep(end, target, first))
            first += end.shape[-1]
        return target

    def _buffer(self, shape: Shape, wanted: bool = True) -> Buffer:
        self.buffers.append(Buffer(shape, wanted))
        return self.buffers[-1]

    def _append(self, step: Step, accumulate: bool = False) -> None:
        step.accumulate = accumulate
        self.steps.append(step)

    def reserve(self, images: int) -> None:
        """Allocate memory if there is not enough."""
        if images <= self.capacity:
            return
        for buffer in self.buffers:
            buffer.value.allocate(images)
            if self.keep or buffer is self.output:
                buffer.gradient.allocate(images)
        for step in self.steps:
            step.allocate(images)
        self.scratch.allocate()
        self.capacity = images

    def forward(self, images: Array, frame: Frame) -> None:
        """Compute the scores, in the value of ``self.output``."""
        self.read(images)
        for stage in self.stages:
            self._forward(stage, len(images), frame)

    def read(self, images: Array) -> None:
        """Copy the images into the input of the first step."""
        first = self.input.value
        rows, columns, c = first.shape
        row = 4 * columns * c
        given = images.ctypes.data, rows * row, row, 0
        elementwise.copy(len(images), rows, 1, columns * c, given, first.place, False)
        self._clear_border(len(images), first)

    def _forward(self, stage: Stage, b: int, frame: Frame) -> None:
        for count, group in stage.groups(b, frame):
            for step in stage.steps:
                step.forward(count, group)
                self._clear_border(count, step.target.value)

    def _clear_border(self, b: int, field: Field) -> None:
        if field.room is not None and field.pad:  # the previous field in this room had other borders
            elementwise.zero_border(b, *field.shape, field.pad, field.place)

    def loss(self, labels: Array, share: np.float32) -> tuple[float, int]:
        """Loss and number of correct predictions; sets the gradient of ``self.output``."""
        z, dz = self.output.value.place, self.output.gradient.place
        loss, right = elementwise.softmax_cross_entropy(len(labels), self.output.size, z, labels, share, dz)
        return loss, right

    def backward(self, b: int, frame: Frame) -> None:
        """Add the gradient to the vector at ``frame.g``."""
        for stage in reversed(self.stages):
            self._backward(stage, b, frame)

    def _backward(self, stage: Stage, b: int, frame: Frame) -> None:
        for count, group in stage.groups(b, frame):
            for step in reversed(stage.steps):
                step.backward(count, group)

    def forward_piece(self, stages: list[Stage], b: int, frame: Frame) -> None:
        """Run the steps of one layer forward, with its current parameters."""
        for stage in stages:
            for step in stage.steps:
                step.prepare(frame)
            self._forward(stage, b, frame)

    def backward_piece(self, stages: list[Stage], b: int, frame: Frame) -> None:
        """Run the steps of one layer backward, and complete the gradient of its parameters."""
        for stage in reversed(stages):
            self._backward(stage, b, frame)
            for step in stage.steps:
                step.finish(frame)
