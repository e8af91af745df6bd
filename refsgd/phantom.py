"""Vectors in name only: they have a size and cost their bytes on a link, but nothing is allocated or computed.

For timing studies with large models or a thousand workers: the same programs run unchanged, because a phantom
answers to slicing, arithmetic and the numpy functions that algorithms use with another phantom.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from refsgd.effects import Array
from refsgd.problems import Problem


class NoContents(TypeError):
    """A program looks at the entries of a vector that is there in name only."""


class Phantom:
    """A vector of `size` float32 numbers without contents.

    Parameters
    ----------
    size : int
        Entries, >= 0.

    Examples
    --------
    >>> x = Phantom(1000)
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
        """Bytes that it would take, and that count on a link."""
        return 4 * self.size

    @property
    def shape(self) -> tuple[int]:
        """As an array's."""
        return (self.size,)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: Any) -> Phantom:
        if isinstance(part, Phantom):  # indices in name only select as many entries
            return Phantom(part.size)
        if not isinstance(part, slice):
            raise NoContents(f"a phantom was indexed with {part!r}; expected a slice: it has no entries to look at (--net phantom:P is for timing)")
        return Phantom(len(range(*part.indices(self.size))))

    def __setitem__(self, part: Any, value: Any) -> None:
        if not isinstance(part, Phantom | slice):
            raise NoContents(f"entries {part!r} of a phantom were set; expected a slice: it has no entries (--net phantom:P is for timing)")

    def copy(self) -> Phantom:
        """Itself: it never changes."""
        return self

    def astype(self, dtype: Any) -> Phantom:
        """Itself as float32 or int32, which take as many bytes."""
        if np.dtype(dtype).itemsize != self.dtype.itemsize:
            raise NoContents(f"a phantom as {np.dtype(dtype)}; expected a type of 4 bytes (--net phantom:P is for timing)")
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Phantom:
        if method != "__call__":
            raise NoContents(f"{ufunc.__name__}.{method} of a phantom; expected elementwise arithmetic (--net phantom:P is for timing)")
        for other in inputs:
            if isinstance(other, Phantom) and other.size != self.size:
                raise ValueError(f"phantoms of sizes {sorted((self.size, other.size))}; expected equal ones")
        return self

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.concatenate:
            return Phantom(sum(len(part) for part in args[0]))
        if function in (np.zeros_like, np.empty_like, np.ones_like, np.abs, np.sort, np.argsort):
            return self
        if function in (np.sum, np.mean):
            return args[0][0]
        raise NoContents(f"{function.__name__} of a phantom; expected arithmetic (--net phantom:P is for timing)")

    def _same(self, *_: Any) -> Phantom:
        return self

    def _arithmetic(self, other: Any) -> Phantom:
        if isinstance(other, Phantom) and other.size != self.size:
            raise ValueError(f"phantoms of sizes {self.size} and {other.size}; expected equal ones")
        return self

    def _compared(self, other: Any) -> Any:
        raise NoContents("entries of a phantom were compared; expected arithmetic (--net phantom:P is for timing)")

    __lt__ = __le__ = __gt__ = __ge__ = _compared
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _arithmetic
    __neg__ = __pos__ = _same


def phantom(d: int, batch: int = 1) -> Problem:
    """A problem with `d` parameters in name only: gradients take their drawn time and nothing else."""
    for name, value in (("parameters", d), ("images a gradient", batch)):
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"phantom of {value} {name}; expected a whole number, at least 1")
    x: Any = Phantom(d)

    def gradient(x: Array, rank: int, t: int) -> Array:
        return x

    return Problem(x, gradient, lambda x: float("nan"),
                   describe={"data": "none", "net": f"phantom:{d}", "parameters": d, "bytes": 4 * d, "batch": batch, "phantom": True})

