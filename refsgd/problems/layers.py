"""The layers of a problem: their places in the flat vector, their shares of a gradient's time, and gradients
computed layer by layer.

The forward pass of a layer needs only the parameters of that layer, and the backward pass completes their
gradient long before that of the first layer.  A worker that exchanges layer by layer therefore computes while
parameters and gradients travel.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from refsgd.effects import Array

Steps = Generator[Array | None, Array, None]  #: the body of a `LayerByLayer`
Gradient = Callable[[Array, int, int], Array]


class Part(NamedTuple):
    """A layer with parameters, and the layers without parameters that follow it: its place in the flat
    vector, and the work of its forward pass in any unit."""

    name: str
    slice: slice
    work: float
    shapes: tuple[tuple[int, ...], ...] = ()  # of its parameter arrays, in the order of the vector


class LayerByLayer:
    """One gradient, layer by layer: forward from the first layer to the last, then backward to the first.

    Parameters
    ----------
    layers : int
        Their number.
    steps : generator
        It is sent the parameters of each layer in turn and yields None, and then is sent those of each layer
        again, the last layer's first, and yields its gradient.
    """

    def __init__(self, layers: int, steps: Steps) -> None:
        self._layers, self._steps, self._done = layers, steps, 0

    def forward(self, layer: int, x: Array) -> None:
        """Run a layer forward with its parameters, (part,); layers come in order."""
        self._check("forward", layer)
        if layer == 0:
            next(self._steps)
        self._steps.send(x)

    def backward(self, layer: int, x: Array) -> Array:
        """Run a layer backward with its parameters again, which a pass need not keep; their gradient,
        (part,), a mean over the worker's share."""
        self._check("backward", layer)
        g = self._steps.send(x)
        if layer == 0:
            self._steps.close()
        assert g is not None
        return g

    def _check(self, direction: str, layer: int) -> None:
        """Count this step, and refuse it if it is not the next one."""
        done, n = self._done, self._layers
        way, which = ("forward", done) if done < n else ("backward", 2 * n - 1 - done)
        if (direction, layer) != (way, which):
            expected = f"{way} of layer {which}" if done < 2 * n else "a new pass"
            raise ValueError(f"{direction} of layer {layer} after {done} of {2 * n} steps of a gradient; "
                             f"expected {expected}")
        self._done += 1


@dataclass(frozen=True)
class Layers:
    """The description of a problem's layers, in the order of the forward pass.

    Parameters
    ----------
    names : tuple of str
        Layers with parameters; others count with the one before them.
    parts : tuple of slice
        Their places in the vector: contiguous, in order, covering the whole vector.
    forward, backward : tuple of float
        Share of a gradient's time that each layer's pass takes; all of them together sum to 1.
    begin : callable
        ``(rank, t) -> LayerByLayer``: a new pass, which computes this worker's gradient of step t.
    tensors : tuple of tuple of int
        Shapes of all parameter arrays in the order of the vector, from which codecs know matrices; () if
        unknown.

    Examples
    --------
    A vector of two layers, the second of which takes three times as long:

    >>> parts = [Part("first", slice(0, 2), 1), Part("second", slice(2, 5), 3)]
    >>> begin = whole([part.slice for part in parts], lambda x, rank, t: 2 * x)
    >>> layers = by_work(parts, begin)
    >>> one, x = layers.begin(0, 0), np.arange(5)
    >>> one.forward(0, x[:2]), one.forward(1, x[2:]), one.backward(1, x[2:])
    (None, None, array([4, 6, 8]))
    """

    names: tuple[str, ...]
    parts: tuple[slice, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    begin: Callable[[int, int], LayerByLayer]
    tensors: tuple[tuple[int, ...], ...] = ()

    def check(self, d: int) -> None:
        """Refuse layers that do not cover a vector of `d` numbers, or the whole time of a gradient."""
        counts = {len(self.names), len(self.parts), len(self.forward), len(self.backward)}
        if len(counts) > 1:
            raise ValueError(f"layers: {len(self.names)} names, {len(self.parts)} parts, {len(self.forward)} "
                             f"forward and {len(self.backward)} backward shares; expected one of each per "
                             "layer")
        ends = [0, *(part.stop for part in self.parts)]
        for name, part, end in zip(self.names, self.parts, ends):
            if part.start != end or part.stop <= end:
                raise ValueError(f"layer {name} is {part}; expected one number or more, from {end} on")
        if ends[-1] != d:
            raise ValueError(f"layers end at {ends[-1]}; expected {d}, the number of parameters")
        total = sum(self.forward) + sum(self.backward)
        if not abs(total - 1) < 1e-9:
            raise ValueError(f"shares of layers sum to {total}; expected 1")


def joined(layers: Sequence[Part]) -> list[Part]:
    """The layers with parameters; others count with the one before them, or at the start with the next."""
    found: list[Part] = []
    before: float = 0
    for layer in layers:
        if layer.slice.start < layer.slice.stop:
            found.append(layer._replace(work=before + layer.work))
            before = 0
        elif found:
            found[-1] = found[-1]._replace(work=found[-1].work + layer.work)
        else:
            before += layer.work
    return found


def at_once(parts: Sequence[slice], gradient: Callable[[Array], Array]) -> Steps:
    """The steps of a pass that collects the parameters of all layers, then computes the whole gradient."""
    x = []
    for _ in parts:
        x.append((yield None))
    yield None
    g = gradient(np.concatenate(x))
    for part in reversed(parts):
        yield g[part]


def whole(parts: Sequence[slice], gradient: Gradient) -> Callable[[int, int], LayerByLayer]:
    """The `begin` of `Layers` for a problem that knows only its whole gradient, ``(x, rank, t) -> (d,)``:
    passes compute it `at_once`."""
    return lambda rank, t: LayerByLayer(len(parts), at_once(parts, lambda x: gradient(x, rank, t)))


def by_work(parts: Sequence[Part], begin: Callable[[int, int], LayerByLayer]) -> Layers:
    """Layers that take time by their work, twice as much backward as forward; `begin` is that of `Layers`."""
    total = 3 * sum(part.work for part in parts)
    return Layers(tuple(part.name for part in parts), tuple(part.slice for part in parts),
                  tuple(part.work / total for part in parts), tuple(2 * part.work / total for part in parts),
                  begin, tuple(shape for part in parts for shape in part.shapes))


def equal(d: int, gradient: Gradient, count: int = 4) -> Layers:
    """Equal layers, no more than there are parameters; passes compute the gradient, ``(x, rank, t) -> (d,)``,
    `at_once`."""
    count = min(count, d)
    edges = [d * k // count for k in range(count + 1)]
    parts = [slice(first, end) for first, end in pairwise(edges)]
    return by_work([Part(f"layer{k}", part, part.stop - part.start) for k, part in enumerate(parts, 1)],
                   whole(parts, gradient))
