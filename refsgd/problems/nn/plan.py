"""The execution plan of a net: a list of steps over preallocated buffers.

`Plan` makes each layer a step that runs one or a few kernels forward and backward. Adjacent layers that are
cheaper together become one step: a relu joins the layer before it, and a small convolution with relu and 2x2
pooling is one step whose backward pass visits only the largest pixel of each window. Branches become sections
of the list.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from refsgd.problems.nn import elementwise
from refsgd.problems.nn.layer import Array, Concat, Layer, Residual, Shape
from refsgd.problems.nn.layers import (
    BatchNorm,
    Conv,
    Dropout,
    Flatten,
    GlobalAverage,
    Linear,
    Loss,
    MaxPool,
    Relu,
    Sigmoid,
    Tanh,
    softmax_cross_entropy,
)
from refsgd.problems.nn.memory import Buffer, Field, Frame, Room, Scratch
from refsgd.problems.nn.steps import (
    AddStep,
    AverageStep,
    BatchNormStep,
    ConvPoolStep,
    CopyStep,
    DefinedStep,
    MaxPoolStep,
    ProductStep,
    Step,
)

At = Mapping[str, int]


class Plan:
    """The steps of one net and the buffers between them.

    ``at`` gives the byte offsets of each layer's parameters and its number in its kind, layers of branches
    first.  Without ``keep`` there is only a forward pass, and buffers share memory.  ``wanted``: whether the
    gradient of the input is computed too.
    """

    def __init__(self, layers: Sequence[Layer], shape: Shape, at: Iterator[tuple[At, int]], keep: bool = True,
                 wanted: bool = False) -> None:
        self.input = Buffer(shape, wanted)
        self.buffers = [self.input]
        self.steps: list[Step] = []
        self.scratch = Scratch()
        self._at = at
        self.output = self._chain(list(layers), self.input)
        self.capacity, self.keep = 0, keep
        if not keep:
            self._share_rooms()
        self.pieces = self._pieces()
        whole = any(isinstance(step, BatchNormStep | DefinedStep)
                    and isinstance(step.layer, BatchNorm | Dropout) for step in self.steps)
        per_image = 8 * sum(buffer.value.floats for buffer in self.buffers)
        # Images computed at once, None for all: few enough to stay near the cache, enough to pay for reading
        # the weights again.
        self.chunk = None if whole else int(min(256, max(64, 2 ** ((1 << 22) // per_image).bit_length())))

    def _pieces(self) -> list[list[Step]]:
        """The steps in a list per layer with parameters: its own and those up to the next such layer, for the
        first also those before it."""
        pieces: list[list[Step]] = [[]]
        at: At = {}
        for step in self.steps:
            if at and step.at and step.at != at:
                pieces.append([])
            at = step.at or at
            pieces[-1].append(step)
        return pieces

    def _share_rooms(self) -> None:
        """Give every value memory that no other value needs at the same time."""
        spans = {self.input.value: [-1, 0]}
        for k, step in enumerate(self.steps):
            for buffer in (step.source, step.target):
                spans.setdefault(_owner(buffer.value), [k, k])[1] = k
        spans[_owner(self.output.value)][1] = len(self.steps)
        rooms: list[Room] = []
        for field, (first, end) in spans.items():
            free = [room for room in rooms if room.free_after < first]
            room = min(free, key=lambda room: abs(room.floats - field.floats), default=None)
            if room is None:
                room = Room()
                rooms.append(room)
            room.floats, room.free_after, field.of = max(room.floats, field.floats), end, room

    def _chain(self, layers: Sequence[Layer], source: Buffer, branch: bool = False,
               accumulate: bool = False) -> Buffer:
        """Append the steps of a chain of layers; ``branch``: others read the source too."""
        if branch and layers and (not isinstance(layers[0], Conv | MaxPool) or _pools(layers[:3])):
            # The step may work in place, or cannot add to a gradient.
            source, accumulate = self._copied(source, accumulate), False
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
        (at, number), shape = next(self._at), layer.output_shape(source.shape)
        if relu and isinstance(layer, Conv | Linear | BatchNorm):
            next(self._at)
        if isinstance(layer, Dropout | Relu | Sigmoid | Tanh):  # in place
            if source.masks and isinstance(layer, Sigmoid):  # whose value at 0 is not 0
                source = self._copied(source)
            self._append(DefinedStep(layer, source, number))
            source.masks = source.masks or isinstance(layer, Relu)
            return source, 1
        if isinstance(layer, Flatten):
            if source.value.pad or source.gradient.pad:
                source = self._copied(source)
            return self._buffer(source.reshaped(shape)), 1
        if pools := _pools(following):
            next(self._at)
            shape = MaxPool().output_shape(shape)
        target = self._buffer(Buffer(shape, source.wanted or bool(at)))
        if isinstance(layer, Conv) and pools:
            self._append(ConvPoolStep(layer, source, target, at, self.scratch))
            return target, 3
        if isinstance(layer, Conv | Linear):
            conv = layer if isinstance(layer, Conv) else Conv(layer.features, 1)
            self._append(ProductStep(conv, source, target, at, relu, self.scratch))
            return target, 1 + relu
        if isinstance(layer, BatchNorm):
            self._append(BatchNormStep(layer, source, target, at, relu, self.scratch))
            return target, 1 + relu
        if isinstance(layer, MaxPool):
            self._append(MaxPoolStep(layer, source, target))
        elif isinstance(layer, GlobalAverage):
            self._append(AverageStep(source, target))
        else:
            raise NotImplementedError(f"kernels for {layer}")
        return target, 1

    def _residual(self, layer: Residual, source: Buffer, relu: bool) -> Buffer:
        before = len(self.steps)
        y = self._chain(layer.body, source, branch=True, accumulate=True)
        if y is source:
            y = self._copied(source, accumulate=True)
        elif self.steps[-1].masks or self.steps[-1].target is not y or len(self.steps) - before < 2:
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
        y.wanted = y.wanted or z.wanted
        self._append(AddStep(z, y, relu))
        return y

    def _copied(self, source: Buffer, accumulate: bool = False) -> Buffer:
        target = self._buffer(Buffer(source.shape, source.wanted))
        self._append(CopyStep(source, target), accumulate)
        return target

    def _concat(self, layer: Concat, source: Buffer) -> Buffer:
        # The backward pass begins with the copies, the last branch first: the first to write the source's
        # gradient sets it, the others add to it.
        order = sorted(range(len(layer.branches)), key=lambda k: (not layer.branches[k], k))
        ends = [self._chain(branch, source, branch=True, accumulate=k != order[-1])
                for k, branch in enumerate(layer.branches)]
        next(self._at)
        target = self._buffer(Buffer((*ends[0].shape[:-1], sum(end.shape[-1] for end in ends))))
        first = 0
        for k, end in enumerate(ends):
            self._append(CopyStep(end, target, first), accumulate=end is source and k != order[-1])
            first += end.shape[-1]
        return target

    def _buffer(self, buffer: Buffer) -> Buffer:
        self.buffers.append(buffer)
        return buffer

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

    def held(self, images: int) -> int:
        """Bytes of activations, what steps keep of them, their gradients and scratch for this many images."""
        fields = {each for buffer in self.buffers
                  for each in (buffer.value, *([buffer.gradient] if buffer.wanted else []))}
        own = sum(each.floats for each in fields if each.of is None)
        own += sum(step.target.value.floats for step in self.steps if isinstance(step, DefinedStep))
        return 4 * images * own + self.scratch.nbytes

    def forward(self, images: Array, frame: Frame) -> None:
        """Compute the scores, in the value of ``self.output``."""
        self.read(images)
        self.run(self.steps, len(images), frame)

    def read(self, images: Array) -> None:
        """Copy the images into the input of the first step."""
        first = self.input.value
        first.images(len(images))[...] = images.reshape(len(images), *first.shape)
        self._clear_border(len(images), first)

    def run(self, steps: Sequence[Step], b: int, frame: Frame) -> None:
        """Run steps forward."""
        for step in steps:
            step.forward(b, frame)
            self._clear_border(b, step.target.value)

    def _clear_border(self, b: int, field: Field) -> None:
        if not self.keep and (pad := field.pad):  # the previous field in this room had other borders
            whole = field.images(b, border=True)
            whole[:, :pad] = whole[:, -pad:] = whole[:, :, :pad] = whole[:, :, -pad:] = 0

    def loss(self, labels: Array, share: np.float32, loss: Loss) -> tuple[float, int]:
        """Loss and number of correct predictions; sets the gradient of ``self.output``."""
        if loss is not softmax_cross_entropy:
            b, scores = len(labels), self.output.value.images(len(labels))[:, 0, 0]
            mean, d = loss(scores, labels)
            self.output.gradient.images(b)[:, 0, 0] = d * (share * np.float32(b))
            return mean * b, int(np.sum(scores.argmax(axis=1) == labels))
        z, dz = self.output.value.place, self.output.gradient.place
        total, right = elementwise.softmax_cross_entropy(len(labels), self.output.size, z, labels, share, dz)
        return total, right

    def run_back(self, steps: Sequence[Step], b: int, frame: Frame) -> None:
        """Run steps backward, and add the gradient to the vector at ``frame.g``."""
        for step in reversed(steps):
            step.backward(b, frame)


def _owner(field: Field) -> Field:
    """The field in whose memory a field lies: a flattened value is its source's."""
    return field.of if isinstance(field.of, Field) else field


def _pools(layers: Sequence[Layer]) -> bool:
    """Whether layers begin with a convolution that is cheaper together with its relu and pooling."""
    first = layers[0]
    return (isinstance(first, Conv) and first.stride == 1 and first.bias
            and list(layers[1:3]) == [Relu(), MaxPool()])
