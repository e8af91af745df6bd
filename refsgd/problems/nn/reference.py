"""A net computed from its layers' definitions: plain numpy, slow, in the precision of the parameters.

The kernels are tested against these functions, and nets use them if numba cannot be imported.
"""
from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from refsgd.problems.nn.layer import Array, Layer, forward
from refsgd.problems.nn.layers import BatchNorm, softmax_cross_entropy

#: (scores, labels) -> the mean loss, and its gradient by the scores
Loss = Callable[[Array, Array], tuple[float, Array]]
_CHUNK = 64  # images evaluated at once


@cache
def has_kernels() -> bool:
    """Whether nets use compiled kernels; warns once if they cannot."""
    try:
        from numba import config
    except ImportError as error:
        found, expected = f"numba cannot be imported ({error})", "`pip install numba`"
    else:
        if not config.DISABLE_JIT:
            return True
        found, expected = "NUMBA_DISABLE_JIT is set", "it to be 0 or absent"
    warnings.warn(f"{found}: nets are computed with numpy, many times slower; expected {expected}",
                  RuntimeWarning, stacklevel=3)
    return False


def loss_and_accuracy(layers: Sequence[Layer], p: list[Any], images: Array, labels: Array,
                      sample: Array, loss_of: Loss = softmax_cross_entropy) -> tuple[float, float]:
    """Mean loss and share of images classified correctly; batch norm takes its statistics from `sample`."""
    _fix_statistics(layers, p, sample)
    loss, right = 0.0, 0
    for k in range(0, len(images), _CHUNK):
        z, _ = forward(layers, p, images[k:k + _CHUNK])
        truth = labels[k:k + _CHUNK]
        loss += loss_of(z, truth)[0] * len(truth)
        right += int(np.sum(z.argmax(axis=1) == truth))
    return loss / len(images), right / len(images)


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


def flattened(gradients: Any) -> Iterator[Array]:
    """Arrays of nested lists of dicts, in order."""
    for part in gradients:
        yield from part.values() if isinstance(part, dict) else flattened(part)
