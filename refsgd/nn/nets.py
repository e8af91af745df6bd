"""The networks by name."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from refsgd.nn.layers import Conv, Flatten, Layer, Linear, MaxPool, Relu
from refsgd.nn.net import Net


def tiny() -> Net:
    """A small net for the 8x8 digits: 9,930 parameters."""
    layers: list[Layer] = [Conv(16, 3, pad=1), Relu(), Conv(32, 3, pad=1), Relu(), MaxPool(), Flatten(), Linear(10)]
    return Net("tiny", layers, (8, 8, 1))


def shallow() -> Net:
    """The shallow net of the class report, for 28x28 images: 431,080 parameters."""
    layers: list[Layer] = [
        Conv(20, 5), Relu(), MaxPool(),
        Conv(50, 5), Relu(), MaxPool(),
        Flatten(), Linear(500), Relu(), Linear(10),
    ]  # fmt: skip
    return Net("shallow", layers, (28, 28, 1))


_BUILDERS: dict[str, Callable[[], Net]] = {"tiny": tiny, "shallow": shallow}
NAMES = tuple(_BUILDERS)


def build(name: str) -> Net:
    """A new net object, with buffers of its own.

    Parameters
    ----------
    name : str
        One of `NAMES`.

    Raises
    ------
    ValueError
        If there is no such net.
    """
    if name not in _BUILDERS:
        raise ValueError(f"net is {name!r}, expected one of {', '.join(NAMES)}")
    return _BUILDERS[name]()


def needs_compiling() -> bool:
    """Whether the kernels have not been compiled on this machine yet, so that a first gradient takes some seconds.

    A guess from the files of numba's disk cache, good enough to tell a user why nothing happens yet.
    """
    from refsgd.nn import kernels

    source = Path(kernels.__file__)
    indices = Path(kernels.convolve.stats.cache_path).glob("kernels.convolve-*.nbi")
    return not any(index.stat().st_mtime >= source.stat().st_mtime for index in indices)
