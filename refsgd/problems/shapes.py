"""Shape-only vectors: they have a size and cost their bytes on a link, but nothing is allocated or computed.

They serve timing studies with large models or a thousand workers.  The same programs run unchanged, because
slicing, arithmetic and the numpy functions that algorithms use give another shape-only vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import accumulate
from math import prod
from numbers import Integral
from operator import mul
from typing import Any, NamedTuple, NoReturn

import numpy as np

from refsgd.effects import Array
from refsgd.problems import chain
from refsgd.problems.chain import Block
from refsgd.problems.layers import Part, by_work, joined, whole
from refsgd.problems.nn import nets
from refsgd.problems.nn.blocks import blocks as blocks_of
from refsgd.problems.nn.net import Net
from refsgd.problems.problem import Problem, with_batches

_SAME = (np.zeros, np.zeros_like, np.empty_like, np.ones_like, np.abs, np.sort, np.argsort)


class NoContents(TypeError):
    """A program reads the entries of a shape-only vector."""


def _refuse(found: str, expected: str = "arithmetic") -> NoReturn:
    raise NoContents(f"{found} of a shape-only vector; expected {expected} (--net shapes:P is for timing)")


class ShapeOnly:
    """A vector of `size` float32 numbers without contents.

    >>> x = ShapeOnly(1000)
    >>> (x[:250] - np.float32(0.1) * x[:250]).nbytes
    1000
    >>> np.concatenate([x, x]).size
    2000
    """

    __slots__ = ("size",)
    dtype = np.dtype(np.float32)
    ndim = 1

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def nbytes(self) -> int:
        """Bytes of an array of this size, which links charge for."""
        return 4 * self.size

    @property
    def shape(self) -> tuple[int]:
        """As an array's."""
        return (self.size,)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: Any) -> ShapeOnly:
        if isinstance(part, ShapeOnly):  # shape-only indices select as many entries
            return ShapeOnly(part.size)
        if not isinstance(part, slice):
            _refuse(f"entry {part!r}", "a slice")
        return ShapeOnly(len(range(*part.indices(self.size))))

    def __setitem__(self, part: Any, value: Any) -> None:
        if not isinstance(part, ShapeOnly | slice):
            _refuse(f"setting entry {part!r}", "a slice")

    def copy(self) -> ShapeOnly:
        """Itself: it never changes."""
        return self

    def astype(self, dtype: Any) -> ShapeOnly:
        """Itself as float32 or int32, which take the same number of bytes."""
        if np.dtype(dtype).itemsize != self.dtype.itemsize:
            _refuse(f"{np.dtype(dtype)} copy", "a type of 4 bytes")
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> ShapeOnly:
        if method != "__call__" or ufunc.signature:  # such as matmul's
            _refuse(f"{ufunc.__name__}.{method}".removesuffix(".__call__"), "elementwise arithmetic")
        for other in inputs:
            self._arithmetic(other)
        return self

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.concatenate:
            return ShapeOnly(sum(len(part) for part in args[0]))
        if function in (np.sum, np.mean):
            return args[0][0]
        return self if function in _SAME else _refuse(function.__name__)

    def _arithmetic(self, other: Any) -> ShapeOnly:
        if isinstance(other, ShapeOnly) and other.size != self.size:
            raise ValueError(f"shape-only vectors of sizes {self.size} and {other.size}; expected equal ones")
        return self

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"shape-only vectors have no attribute {name!r}")
        _refuse(name)

    def _compared(self, other: Any) -> Any:
        _refuse("comparison")

    def _product(self, other: Any) -> Any:
        _refuse("inner product")

    def _value(self) -> Any:
        _refuse("value")

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compared
    __hash__ = object.__hash__
    __matmul__ = __rmatmul__ = _product
    __bool__ = __int__ = __float__ = __complex__ = _value
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _arithmetic
    __pow__ = __rpow__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _arithmetic
    __neg__ = __pos__ = __abs__ = copy


def shape_only(d: int, batch: int | Sequence[int] = 1, operations: float | None = None,
               net: str = "", parts: Sequence[Part] = (), blocks: Sequence[Block] = (),
               held: Callable[[int], float] = chain.nothing) -> Problem:
    """A problem with `d` shape-only parameters in one layer or in `parts` and `blocks`, whose gradients only
    take their drawn time, or on a device the time of `operations` for each image; batches may differ by
    worker."""
    batches = batch if isinstance(batch, Sequence) else [batch]
    for name, value in (("parameters", d), *(("images a gradient", b) for b in batches)):
        if not isinstance(value, Integral) or not 1 <= value <= 10**12:
            raise ValueError(f"shape-only net with {value} {name}; expected a whole number, at least 1 and "
                             "at most 10**12")
    parts = parts or [Part("net", slice(0, d), 1.0)]
    x: Any = ShapeOnly(d)

    def gradient(x: Array, rank: int, t: int) -> Array:
        return x

    found = Problem(x, gradient, lambda x: _refuse("the loss"), describe={
        "data": "none", "net": net or f"shapes:{d}", "parameters": d, "bytes": 4 * d, "shape_only": True},
                    layers=by_work(parts, whole([part.slice for part in parts], gradient)),
                    chain=chain.shape_only(blocks, ShapeOnly, held) if blocks else None)
    found = with_batches(found, batches)
    return found if operations is None else replace(
        found, work=lambda rank, t: operations * found.images(rank, t))


class LayerSizes(NamedTuple):
    """A layer by its sizes; all but the parameters are for one sample."""

    name: str
    parameters: int
    operations: float  #: of its forward pass; its backward pass has twice as many
    activations: float  #: values that it keeps for its backward pass
    output: float  #: values that leave it
    shapes: tuple[tuple[int, ...], ...] = ()  #: of its parameter arrays

    @classmethod
    def of(cls, name: str, shapes: Sequence[tuple[int, ...]], operations: float, activations: float,
           output: float) -> LayerSizes:
        """A layer with these parameter arrays."""
        return cls(name, sum(map(prod, shapes)), operations, activations, output, tuple(shapes))


def of_layers(name: str, layers: Sequence[LayerSizes], sample: str, batch: int | Sequence[int],
              tokens: int = 0) -> Problem:
    """A shape-only net of layers; `sample` says in words what an image is here, and of how many tokens."""
    work = sum(layer.operations for layer in layers)
    ends = list(accumulate((layer.parameters for layer in layers), initial=0))
    if not (ends[-1] and work):
        raise ValueError(f"net {name}: {ends[-1]} parameters and {work:g} operations in all layers together; "
                         "expected at least one of each")
    parts = joined([Part(layer.name, slice(first, end), float(layer.operations), layer.shapes)
                    for layer, first, end in zip(layers, ends, ends[1:])])
    passes: Any = None  # a shape-only chain has its own
    blocks = [Block(layer.name, slice(first, end), layer.operations, 4 * layer.output, passes, passes,
                    partial(mul, 4 * layer.activations)) for layer, first, end in zip(layers, ends, ends[1:])]
    found = shape_only(ends[-1], batch, 3 * work, name, parts, blocks,
                       partial(mul, 4 * sum(layer.activations for layer in layers)))
    said = {"image": sample, "tokens": tokens} if tokens else {"image": sample}
    return replace(found, describe={**found.describe, **said})


def in_shape_only(problem: Problem, batches: Sequence[int]) -> Problem:
    """A problem of the same size, work and layers, without contents."""
    known = {"blocks": problem.chain.blocks, "held": problem.chain.held} if problem.chain else {}
    found, layers = shape_only(problem.x0.size, batches, **known), problem.layers  # type: ignore[arg-type]
    return replace(found, work=problem.work, images=problem.images, exchange=problem.exchange,
                   layers=layers and replace(layers, begin=whole(layers.parts, found.gradient)))


def of_net(name: str, batch: int | Sequence[int]) -> Problem:
    """A shape-only net, by name and image size: ``resnet50@224``, ``vgg16@32x32x3``."""
    base, _, size = name.partition("@")
    try:
        sides = tuple(map(int, size.split("x"))) if size else ()
        if len(sides) not in (0, 1, 3) or (sides and min(sides) < 1):
            raise ValueError
    except ValueError:
        raise ValueError(f"net shapes:{name}: images of size {size!r}; expected pixels, such as {base}@224 "
                         f"or {base}@224x224x3") from None
    shape = (sides[0], sides[0], 3) if len(sides) == 1 else sides or None
    built = _built(base, shape, 1000 if shape and prod(shape[:2]) > 4096 else 10)
    return shape_only(built.parameters, batch, built.work(1), f"shapes:{name}", built.parts,
                      blocks_of(built, lambda rows: 0), built.held)


@lru_cache(maxsize=4)
def _built(name: str, shape: tuple[int, ...] | None, classes: int) -> Net:
    """The net, built once for many problems that only ask for its sizes."""
    return nets.build(name, shape, classes=classes)
