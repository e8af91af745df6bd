"""A network: a list of layers, one flat vector of parameters, and the gradient of its loss."""
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refsgd.nn.layers import Array, Layer, Shape, backward, forward, softmax_cross_entropy

if TYPE_CHECKING:
    from refsgd.nn.plan import Plan

Vector = NDArray[np.float32]

# Spawn key of the random stream of initial parameters, so that no other use of the same seed repeats it.
_INITIAL = 0x1217


class Segment(NamedTuple):
    """One parameter array within the flat vector."""

    slice: slice
    shape: Shape


class Row(NamedTuple):
    """One layer in a net's description; FLOPs of a forward pass and activation bytes (float32) for one image."""

    name: str
    output_shape: Shape
    parameters: int
    flops: int
    activation_bytes: int


class Net:
    """A list of layers with softmax cross-entropy on top.

    Parameters
    ----------
    name : str
    layers : list of layers
        The last one gives one score per class.
    input_shape : (H, W, C)
        Of one image.

    Attributes
    ----------
    parameters : int
        Length d of the flat parameter vector.
    segments : dict of str to Segment
        Where each array lies in it, by name, as ``"conv1.weight"``, in the order of the layers.
    classes : int

    Raises
    ------
    ValueError
        If a layer does not fit the output of the one before it.

    Notes
    -----
    A net owns the buffers it computes in: use one net object per thread. Two nets of the same name are the same
    function, and give the same bits for the same arguments, whatever they computed before.

    Examples
    --------
    >>> from refsgd.nn import nets
    >>> net = nets.build("tiny")
    >>> net.parameters, net.segments["conv1.weight"]
    (9930, Segment(slice=slice(0, 144, None), shape=(3, 3, 1, 16)))
    """

    def __init__(self, name: str, layers: Sequence[Layer], input_shape: Shape) -> None:
        self.name, self.layers, self.input_shape = name, list(layers), input_shape
        self.segments: dict[str, Segment] = {}
        self._names: list[str] = []
        self._shapes = [input_shape]
        self._fans: dict[str, tuple[int, float]] = {}
        position, counts = 0, dict.fromkeys((type(layer).__name__ for layer in layers), 0)
        for layer in layers:
            kind = type(layer).__name__
            counts[kind] += 1
            self._names.append(f"{kind.lower()}{counts[kind]}")
            shape = self._shapes[-1]
            for key, (size, fan_in, fill) in _fitting(self._names[-1], layer, shape).items():
                name = f"{self._names[-1]}.{key}"
                self.segments[name] = Segment(slice(position, position + prod(size)), size)
                self._fans[name] = (fan_in, fill)
                position += prod(size)
            self._shapes.append(layer.output_shape(shape))
        self.parameters = position
        if len(self._shapes[-1]) != 1:
            raise ValueError(f"net {name}: the last layer gives {self._shapes[-1]}, expected one score per class")
        self.classes = self._shapes[-1][0]
        self._plan: Plan | None = None

    def __repr__(self) -> str:
        return f"Net({self.name!r}, {self.layers}, {self.input_shape})"

    def init(self, seed: int) -> Vector:
        """Initial parameters, shape (d,): uniform in +-1/sqrt(fan in), weights and biases alike (PyTorch's default)."""
        random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_INITIAL,)))
        x = np.empty(self.parameters, np.float32)
        for name, (part, _) in self.segments.items():
            fan_in, fill = self._fans[name]
            bound = fan_in**-0.5 if fan_in else 0.0
            x[part] = random.uniform(-bound, bound, x[part].size) if fan_in else fill
        return x

    def gradient(self, x: Array, images: Array, labels: Array) -> tuple[float, Vector]:
        """Mean loss over a batch and its gradient.

        Parameters
        ----------
        x : float32, shape (d,)
            Parameters; may be read-only.
        images : float32, shape (b, H, W, C)
            Any b, 0 included.
        labels : integers, shape (b,)
            Classes, 0 to classes - 1.

        Returns
        -------
        loss : float
            Mean cross-entropy; 0.0 for no images.
        g : float32, shape (d,)
            A new array; zeros for no images.

        Raises
        ------
        ValueError
            If an argument has another shape or type, or a label is no class.
        """
        images, labels = self._checked(x, images, labels)
        g = np.zeros(self.parameters, np.float32)
        b = len(images)
        if b == 0:
            return 0.0, g
        plan, frame = self._frame(x, g)
        plan.reserve(min(b, plan.chunk))
        share, loss = np.float32(1 / b), 0.0
        for step in plan.steps:
            step.prepare(frame)
        for k in range(0, b, plan.chunk):
            part = slice(k, min(k + plan.chunk, b))
            plan.forward(images[part], frame)
            loss += plan.loss(labels[part], share)[0]
            plan.backward(part.stop - k, frame)
        for step in plan.steps:
            step.finish(frame)
        return loss / b, g

    def loss_and_accuracy(self, x: Array, images: Array, labels: Array) -> tuple[float, float]:
        """Mean loss and share of images classified rightly, forward only; arguments and errors as `gradient`.

        No images have loss 0.0 and accuracy 0.0.
        """
        images, labels = self._checked(x, images, labels)
        b = len(images)
        plan, frame = self._frame(x, None)
        plan.reserve(min(b, plan.chunk))
        loss, right = 0.0, 0
        for k in range(0, b, plan.chunk):
            part = slice(k, k + plan.chunk)
            plan.forward(images[part], frame)
            more, hits = plan.loss(labels[part], np.float32(0))
            loss, right = loss + more, right + hits
        return loss / max(b, 1), right / max(b, 1)

    def describe(self) -> list[Row]:
        """One row per layer: name, output shape, parameters, FLOPs forward and activation bytes for one image."""
        rows = []
        for name, layer, shape, out in zip(self._names, self.layers, self._shapes, self._shapes[1:], strict=False):
            count = sum(prod(parameter.shape) for parameter in layer.parameters(shape).values())
            rows.append(Row(name, out, count, layer.flops(shape), 4 * prod(out)))
        return rows

    def compile(self) -> None:
        """Compile, or load from the disk cache, everything that `gradient` needs: seconds once, then milliseconds."""
        self.gradient(self.init(0), np.zeros((1, *self.input_shape), np.float32), np.zeros(1, np.int64))

    def reference_gradient(self, x: Array, images: Array, labels: Array) -> tuple[float, Array]:
        """`gradient` by the definitions in `refsgd.nn.layers`: slow, plain numpy, in the precision of ``x``."""
        p = self.unflatten(x)
        z, kept = forward(self.layers, p, images.astype(x.dtype))
        loss, dz = softmax_cross_entropy(z, labels)
        _, gradients = backward(self.layers, p, kept, dz)
        return loss, np.concatenate([part.ravel() for layer in gradients for part in layer.values()])

    def unflatten(self, x: Array) -> list[dict[str, Array]]:
        """Views of the flat vector ``x``, one dict per layer: the parameters that its definition takes."""
        views: dict[str, dict[str, Array]] = {name: {} for name in self._names}
        for name, (part, shape) in self.segments.items():
            layer, key = name.split(".")
            views[layer][key] = x[part].reshape(shape)
        return list(views.values())

    def _frame(self, x: Array, g: Array | None) -> tuple[Plan, Any]:
        # Imported here: numba takes a quarter of a second to load, which `refsgd predict` need not wait for.
        from refsgd.nn.plan import Frame, Plan

        if self._plan is None:
            at = [
                {key: 4 * self.segments[f"{name}.{key}"].slice.start for key in layer.parameters(shape)}
                for name, layer, shape in zip(self._names, self.layers, self._shapes, strict=False)
            ]
            self._plan = Plan(self.layers, self.input_shape, at)
        return self._plan, Frame(x.ctypes.data, 0 if g is None else g.ctypes.data)

    def _checked(self, x: Array, images: Array, labels: Array) -> tuple[Array, Array]:
        """The images and labels as the kernels read them, after checking all three arguments."""
        if x.shape != (self.parameters,) or x.dtype != np.float32 or not x.flags.c_contiguous:
            raise ValueError(
                f"net {self.name}: parameters are {x.dtype} of shape {x.shape}, "
                f"expected contiguous float32 of shape ({self.parameters},)"
            )
        if images.shape[1:] != self.input_shape or images.dtype != np.float32:
            raise ValueError(
                f"net {self.name}: images are {images.dtype} of shape {images.shape}, "
                f"expected float32 of shape (b, {', '.join(map(str, self.input_shape))})"
            )
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
            raise ValueError(
                f"net {self.name}: labels are {labels.dtype} of shape {labels.shape}, "
                f"expected integers of shape ({len(images)},)"
            )
        if len(labels) and not (labels.min() >= 0 and labels.max() < self.classes):
            raise ValueError(
                f"net {self.name}: labels lie in {labels.min()}..{labels.max()}, expected 0..{self.classes - 1}"
            )
        return np.ascontiguousarray(images), np.ascontiguousarray(labels, np.int64)


def _fitting(name: str, layer: Layer, shape: Shape) -> Any:
    """Parameters of a layer on inputs of that shape, after checking that it takes them."""
    try:
        output = layer.output_shape(shape)
        parameters = layer.parameters(shape)
    except (ValueError, TypeError, IndexError):
        raise ValueError(f"{name} ({layer}) does not take an input of shape {shape}") from None
    if min(output) < 1:
        raise ValueError(f"{name} ({layer}) makes {output} of an input of shape {shape}, expected sizes of 1 or more")
    return parameters
