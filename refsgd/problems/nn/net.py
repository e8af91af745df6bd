"""A network: a list of layers, one flat vector of parameters, and the gradient of its loss."""
from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from refsgd.problems.layers import Part, Steps, at_once, joined
from refsgd.problems.nn import kernel_cache
from refsgd.problems.nn.layer import Array, Layer, Parameter, Shape, backward, flattened, forward
from refsgd.problems.nn.layers import BatchNorm, Dropout, Loss, Relu, softmax_cross_entropy
from refsgd.problems.nn.memory import Frame, keyed

if TYPE_CHECKING:
    from refsgd.problems.nn.plan import Plan
    from refsgd.problems.nn.steps import Step

Vector = NDArray[np.float32]

# Spawn key of the initial parameters' random stream, so that no other use of the same seed repeats it.
_INITIAL = 0x1217
# Numbers drawn at a time, as float64: a whole layer at once would be the peak of the memory of training.
_DRAWN = 1 << 14
_CHUNK = 64  # images evaluated at once without kernels


_NETS: WeakSet[Net] = WeakSet()


def _forget_plans() -> None:
    """In a forked process: give up the parent's plans, whose memory it would copy page by page."""
    for net in _NETS:
        net.idle.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_plans)


class Segment(NamedTuple):
    """One parameter array within the flat vector."""

    slice: slice
    shape: Shape


class Leaf(NamedTuple):
    """A layer in its place in a net, with FLOPs (forward) and bytes of activations for one image.

    One with branches comes after the layers of its branches.
    """

    name: str
    number: int  #: among the net's layers of its kind, from 1
    layer: Layer
    shape: Shape  #: of its input
    output_shape: Shape
    at: dict[str, int]  #: byte offsets of its parameters in the flat vector
    parameters: int
    flops: int
    activation_bytes: int


class Net:
    """A list of layers with a loss on top, softmax cross-entropy by default.

    `parameters` is the length d of the flat vector, `segments` the place of each array in it by name
    ("conv1.weight"), `classes` the number of scores.  Several threads may use a net at the same time, each
    with its own buffers.  Two nets of the same name give the same bits for the same arguments.

    Examples
    --------
    >>> from refsgd.problems.nn import nets
    >>> net = nets.build("tiny")
    >>> net.parameters, net.segments["conv1.weight"]
    (9930, Segment(slice=slice(0, 144, None), shape=(3, 3, 1, 16)))
    """

    def __init__(self, name: str, layers: Sequence[Layer], input_shape: Shape,
                 loss: Loss = softmax_cross_entropy) -> None:
        self.name, self.layers, self.input_shape, self.loss = name, list(layers), input_shape, loss
        self.segments: dict[str, Segment] = {}
        self.leaves: list[Leaf] = []
        self.parameters = 0
        self._counts: Counter[str] = Counter()
        shape = self._enter(self.layers, input_shape)
        if len(shape) != 1:
            raise ValueError(f"net {name}: the last layer gives {shape}, expected one score per class")
        self.classes = shape[0]
        self.normalises = any(isinstance(leaf.layer, BatchNorm) for leaf in self.leaves)
        self.idle: defaultdict[Any, list[Plan]] = defaultdict(list)  #: plans in no use
        _NETS.add(self)

    def _enter(self, layers: Sequence[Layer], shape: Shape) -> Shape:
        """Name the layers, including those of branches, and assign a segment to each of their parameters."""
        for layer in layers:
            kind = type(layer).__name__.lower()
            self._counts[kind] += 1
            number = self._counts[kind]
            name = f"{kind}{number}"
            for branch in getattr(layer, "branches", ()):
                self._enter(branch, shape)
            output, parameters = _fitting(name, layer, shape)
            first, at = self.parameters, {}
            for key, parameter in parameters.items():
                at[key], end = 4 * self.parameters, self.parameters + prod(parameter.shape)
                self.segments[f"{name}.{key}"] = Segment(slice(self.parameters, end), parameter.shape)
                self.parameters = end
            self.leaves.append(Leaf(name, number, layer, shape, output, at, self.parameters - first,
                                    layer.flops(shape), 4 * prod(output)))
            shape = output
        return shape

    def __repr__(self) -> str:
        return f"Net({self.name!r}, {self.layers}, {self.input_shape})"

    def init(self, seed: int) -> Vector:
        """Initial parameters, float32 (d,): uniform in +-1/sqrt(fan in), like PyTorch's default."""
        random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_INITIAL,)))
        x = np.empty(self.parameters, np.float32)
        drawn = [each for leaf in self.leaves for each in leaf.layer.parameters(leaf.shape).values()]
        for (part, _), (_, fan_in, fill) in zip(self.segments.values(), drawn, strict=True):
            x[part] = fill
            for k in range(part.start, part.stop if fan_in else part.start, _DRAWN):
                block = x[k : min(k + _DRAWN, part.stop)]
                block[:] = random.uniform(-(fan_in**-0.5), fan_in**-0.5, block.size)
        return x

    def gradient(self, x: Array, images: Array, labels: Array, key: int | None = None,
                 weight: float = 1.0, out: Vector | None = None) -> tuple[float, Vector]:
        """Mean loss over a batch and its gradient, a new float32 array (d,) or ``out``; zeros for no images.

        ``x`` is float32 (d,), ``images`` float32 (b, H, W, C), ``labels`` are integers (b,). ``key`` chooses
        what dropout drops; without one, nothing is dropped. Both results are multiplied by ``weight``: these
        images' share of a larger batch. Raises ValueError for other types and shapes, and FloatingPointError
        if the loss is not finite, naming the first layer with such an output.
        """
        images, labels = self._checked(x, images, labels)
        if out is not None:
            out.fill(0)
        g, b = np.zeros(self.parameters, np.float32) if out is None else out, len(images)
        if b == 0:
            return 0.0, g
        if not kernel_cache.has_kernels():
            loss, g[:] = self.reference_gradient(x, images, labels, key)
            g *= np.float32(weight)
            self._finite(x, images, loss)
            return loss * weight, g
        frame, share, loss = Frame(x.ctypes.data, g.ctypes.data, key=key), np.float32(weight / b), 0.0
        with self._planned(keep=True) as plan:
            chunk = plan.chunk or b
            plan.reserve(min(b, chunk))
            for k in range(0, b, chunk):
                part = slice(k, min(k + chunk, b))
                plan.forward(images[part], frame)
                loss += plan.loss(labels[part], share, self.loss)[0]
                plan.run_back(plan.steps, part.stop - k, frame)
        self._finite(x, images, loss / b)
        return loss * weight / b, g

    def layer_by_layer(self, images: Array, labels: Array, key: int | None = None) -> Steps:
        """`gradient` layer by layer of ``parts``, as the body of a `LayerByLayer`.

        Each layer takes its parameters when a pass through it begins, keeps none of them, and gives its
        gradient when its backward pass ends.  The batch is not divided into chunks, so the result equals
        `gradient` up to rounding, and bit for bit if the batch is at most one chunk (64 images or more).
        Numbers that are not finite end it in its last step, when it has been given all parameters.
        """
        if not (len(images) and kernel_cache.has_kernels()):
            slices = [part.slice for part in self.parts]
            yield from at_once(slices, lambda x: self.gradient(x, images, labels, key)[1])
            return
        images, labels = self._examples(images, labels)
        b, given = len(images), list[Array]()  # of the last layer; of all if numbers are not finite
        with self._planned(keep=True) as plan:
            plan.reserve(b)
            plan.read(images)
            for part, steps in zip(self.parts, plan.pieces, strict=True):
                self._run(plan.run, steps, part, (yield None), b, key)
            given.append((yield None))
            loss = plan.loss(labels, np.float32(1 / b), self.loss)[0] / b
            for part, steps in zip(reversed(self.parts), reversed(plan.pieces)):
                if np.isfinite(loss):
                    given.append((yield self._run(plan.run_back, steps, part, given.pop(), b, key)))
                elif part.slice.start:
                    given.append((yield np.full_like(given[-1], loss)))
            if not np.isfinite(loss):
                raise FloatingPointError(self._diagnosis(np.concatenate(given[::-1]), images, loss))

    def _run(self, run: Callable[[list[Step], int, Frame], None], steps: list[Step], part: Part, x: Array,
             b: int, key: int | None) -> Vector:
        """Run one layer, in kernels that find its parameters at their place in the flat vector; its
        gradient."""
        if x.shape != (part.slice.stop - part.slice.start,):
            raise ValueError(f"net {self.name}: parameters of {part.name} are of shape {x.shape}, expected "
                             f"({part.slice.stop - part.slice.start},)")
        x, g = np.ascontiguousarray(x, np.float32), np.zeros(x.shape, np.float32)
        first = 4 * part.slice.start
        run(steps, b, Frame(x.ctypes.data - first, g.ctypes.data - first, key=key))
        return g

    def loss_and_accuracy(
        self, x: Array, images: Array, labels: Array, sample: Array | None = None
    ) -> tuple[float, float]:
        """Mean loss and share of images classified correctly, forward only; both 0.0 for no images.

        Batch norm takes its statistics from ``sample``, or from the first 500 of ``images``.
        """
        return self.evaluations(x, [(images, labels)], sample)[0]

    def evaluations(self, x: Array, sets: Sequence[tuple[Array, Array]],
                    sample: Array | None = None) -> list[tuple[float, float]]:
        """`loss_and_accuracy` of several sets of images, for which batch norm takes its statistics once."""
        sets = [self._checked(x, *each) for each in sets]
        if sample is None:
            sample = sets[0][0][:500]
        sample, _ = self._checked(x, sample, np.zeros(len(sample), int))
        if not kernel_cache.has_kernels():
            p = self.unflatten(x)
            if len(sample):
                _fix_statistics(self.layers, p, sample)
            return [self._evaluated(p, *each) for each in sets]
        frame, found = Frame(x.ctypes.data, 0), []
        with self._planned(keep=False) as plan:
            if self.normalises and len(sample):
                plan.reserve(len(sample))
                plan.forward(sample, frame)
            frame, chunk = replace(frame, fixed=True), plan.chunk or 64
            for images, labels in sets:
                b, loss, right = len(images), 0.0, 0
                plan.reserve(min(b, chunk))
                for k in range(0, b, chunk):
                    plan.forward(images[k : k + chunk], frame)
                    more, hits = plan.loss(labels[k : k + chunk], np.float32(0), self.loss)
                    loss, right = loss + more, right + hits
                found.append((loss / max(b, 1), right / max(b, 1)))
        return found

    def _evaluated(self, p: list[Any], images: Array, labels: Array) -> tuple[float, float]:
        """`loss_and_accuracy` from the layers' numpy definitions."""
        loss, right = 0.0, 0
        for k in range(0, len(images), _CHUNK):
            z, _ = forward(self.layers, p, images[k:k + _CHUNK])
            truth = labels[k:k + _CHUNK]
            loss += self.loss(z, truth)[0] * len(truth)
            right += int(np.sum(z.argmax(axis=1) == truth))
        return loss / max(len(images), 1), right / max(len(images), 1)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The layers with parameters, in order, with their work in FLOPs of one image."""
        ends = list(accumulate((leaf.parameters for leaf in self.leaves), initial=0))
        return tuple(joined([
            Part(leaf.name, slice(first, end), leaf.flops,
                 tuple(self.segments[f"{leaf.name}.{key}"].shape for key in leaf.at))
            for leaf, first, end in zip(self.leaves, ends, ends[1:])]))

    def work(self, b: int) -> float:
        """FLOPs of a gradient of b images, counting a backward pass as two forward passes."""
        return 3 * b * sum(part.work for part in self.parts)

    @property
    def saved(self) -> int:
        """Bytes of one image's activations that a framework saves for the backward pass: the outputs of all
        layers but those that a relu overwrites."""
        after = (*(leaf.layer for leaf in self.leaves[1:]), None)
        return sum(leaf.activation_bytes for leaf, following in zip(self.leaves, after)
                   if not isinstance(following, Relu))

    def held(self, b: int) -> int:
        """Bytes besides parameters and gradient that `gradient` of b images keeps, by its plan."""
        if not kernel_cache.has_kernels():
            return 2 * b * sum(leaf.activation_bytes for leaf in self.leaves)
        with self._planned(keep=True) as plan:
            return plan.held(min(b, plan.chunk or b))

    def compile(self) -> None:
        """Compile the kernels that `gradient` needs (seconds), or load them from disk (milliseconds)."""
        self.gradient(self.init(0), np.zeros((1, *self.input_shape), np.float32), np.zeros(1, np.int64))

    def reference_gradient(self, x: Array, images: Array, labels: Array,
                           key: int | None = None) -> tuple[float, Array]:
        """`gradient` from the layers' numpy definitions, in the precision of ``x``; without checks."""
        p = self.unflatten(x, key)
        z, kept = forward(self.layers, p, images.astype(x.dtype))
        loss, dz = self.loss(z, labels)
        _, gradients = backward(self.layers, p, kept, dz)
        return loss, np.concatenate([part.ravel() for part in flattened(gradients)])

    def unflatten(self, x: Array, key: int | None = None, first: int = 0) -> list[Any]:
        """The flat vector as a list of one dict of views per layer, for `refsgd.problems.nn.layer.forward`.

        A layer with branches has a list of such lists; a dropout gets ``first`` and a key made of ``key``.
        """
        leaves = iter(self.leaves)

        def views(layers: Sequence[Layer]) -> list[Any]:
            found: list[Any] = []
            for layer in layers:
                inner = [views(branch) for branch in getattr(layer, "branches", ())]
                leaf = next(leaves)
                arrays = {field: self.segments[f"{leaf.name}.{field}"] for field in leaf.at}
                own = {field: x[part].reshape(shape) for field, (part, shape) in arrays.items()}
                if key is not None and isinstance(layer, Dropout):
                    own |= keyed(key, leaf.number, first)
                found.append(inner or own)
            return found

        return views(self.layers)

    @contextmanager
    def _planned(self, keep: bool) -> Iterator[Plan]:
        """A plan that no other thread uses at the same time: the nodes of one host share a net."""
        plan = self.taken(keep, self.layers, self.input_shape, self.leaves, keep)
        try:
            yield plan
        finally:
            self.idle[keep].append(plan)

    def taken(self, key: Any, layers: Sequence[Layer], shape: Shape, leaves: Sequence[Leaf],
              *options: bool) -> Plan:
        """A plan for some layers from ``idle[key]``, where it goes after use, or a new one."""
        from refsgd.problems.nn.plan import Plan  # here: numba takes a quarter of a second to load

        try:
            return self.idle[key].pop()  # atomic
        except IndexError:
            return Plan(layers, shape, ((leaf.at, leaf.number) for leaf in leaves), *options)

    def _finite(self, x: Array, images: Array, loss: float) -> None:
        """Raise if a loss is not finite."""
        if not np.isfinite(loss):
            raise FloatingPointError(self._diagnosis(x, images, loss))

    def _diagnosis(self, x: Array, images: Array, loss: float) -> str:
        """Where the first non-finite number appears."""
        where = f"net {self.name}: loss is {loss}"
        for name, (part, _) in self.segments.items():
            if not np.isfinite(x[part]).all():
                return f"{where}: {name} has numbers that are not finite"
        if not np.isfinite(images).all():
            return f"{where}: the images have numbers that are not finite"
        names = [leaf.name for leaf in self.leaves if any(leaf.layer is layer for layer in self.layers)]
        with np.errstate(all="ignore"):
            for name, layer, p in zip(names, self.layers, self.unflatten(x), strict=False):
                images, _ = layer.forward(p, images)
                if not np.isfinite(images).all():
                    return f"{where}: {name} is the first layer whose output is not finite"
        return f"{where}: every layer's output is finite, but the scores are too far apart"

    def _checked(self, x: Array, images: Array, labels: Array) -> tuple[Array, Array]:
        """Check the arguments and return images and labels in the kernels' form."""
        if x.shape != (self.parameters,) or x.dtype != np.float32 or not x.flags.c_contiguous:
            raise ValueError(
                f"net {self.name}: parameters are {x.dtype} of shape {x.shape}, "
                f"expected contiguous float32 of shape ({self.parameters},)")
        return self._examples(images, labels)

    def _examples(self, images: Array, labels: Array) -> tuple[Array, Array]:
        """Check a batch and return it in the kernels' form."""
        if images.shape[1:] != self.input_shape or images.dtype != np.float32:
            raise ValueError(f"net {self.name}: images are {images.dtype} of shape {images.shape}, expected "
                             f"float32 of shape (b, {', '.join(map(str, self.input_shape))})")
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
            raise ValueError(
                f"net {self.name}: labels are {labels.dtype} of shape {labels.shape}, "
                f"expected integers of shape ({len(images)},)")
        if len(labels) and not (labels.min() >= 0 and labels.max() < self.classes):
            raise ValueError(f"net {self.name}: labels lie in {labels.min()}..{labels.max()}, expected "
                             f"0..{self.classes - 1}")
        labels = np.ascontiguousarray(labels, np.int64).view()
        labels.setflags(write=False)  # the kernel is compiled for read-only labels only
        return np.ascontiguousarray(images), labels


def _fitting(name: str, layer: Layer, shape: Shape) -> tuple[Shape, dict[str, Parameter]]:
    """Output shape and parameters of a layer for an input shape, which is checked."""
    try:
        output = layer.output_shape(shape)
        parameters = layer.parameters(shape)
    except (ValueError, TypeError, IndexError):
        raise ValueError(f"{name} ({layer}) does not take an input of shape {shape}") from None
    if min(output) < 1:
        raise ValueError(
            f"{name} ({layer}) makes {output} of an input of shape {shape}, expected sizes of 1 or more")
    return output, parameters


def _fix_statistics(layers: Sequence[Layer], p: list[Any], x: Array) -> Array:
    """Set each batch norm's mean and variance to those of its inputs for the images `x`."""
    for layer, q in zip(layers, p, strict=True):
        for branch, inner in zip(getattr(layer, "branches", ()), q, strict=False):
            _fix_statistics(branch, inner, x)
        if isinstance(layer, BatchNorm):
            axes = tuple(range(x.ndim - 1))
            q |= {"mean": x.mean(axis=axes), "var": x.var(axis=axes)}
        x, _ = layer.forward(q, x)
    return x
