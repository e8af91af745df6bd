"""Light augmentation: shifted and mirrored images, a pure function of (seed, epoch, index)."""
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_STREAM = np.uint64(0x9E3779B97F4A7C15)


def augmented(
    images: NDArray[np.float32], indices: Any, seed: int, epoch: int = 0, shift: int = 2, flip: bool = True
) -> NDArray[np.float32]:
    """Some images of a set, each moved by up to ``shift`` pixels and mirrored or not.

    Parameters
    ----------
    images : float32, shape (N, H, W, C)
        The whole set.
    indices : integers, shape (b,)
        Which images; how each is changed depends on its index, not on the others.
    seed, epoch : int
        Another epoch changes an image in another way.
    shift : int
        Largest move in rows and in columns [pixels]; what comes in from outside is 0, the mean of normalised images.
    flip : bool
        Whether to mirror every second image, left to right. Not for digits.

    Returns
    -------
    float32, shape (b, H, W, C), a new array
    """
    indices = np.asarray(indices, np.int64)
    if shift < 0:
        raise ValueError(f"shift is {shift}, expected 0 or more")
    height, width = images.shape[1:3]
    padded = np.pad(images[indices], ((0, 0), (shift, shift), (shift, shift), (0, 0)))
    bits = _bits(indices, seed, epoch)
    span = np.uint64(2 * shift + 1)
    down, right = (bits >> np.uint64(8)) % span, (bits >> np.uint64(32)) % span
    result = np.empty((len(indices), *images.shape[1:]), np.float32)
    for k, (r, c, mirror) in enumerate(zip(down.tolist(), right.tolist(), (bits & np.uint64(1)).tolist(), strict=True)):
        image = padded[k, r : r + height, c : c + width]
        result[k] = image[:, ::-1] if flip and mirror else image
    return result


def _bits(indices: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.uint64]:
    """64 well-mixed bits for each index (SplitMix64; Steele, Lea and Flood 2014)."""
    z = np.asarray(np.random.SeedSequence(seed, spawn_key=(0xA09, epoch)).generate_state(1, np.uint64))
    z = z + indices.astype(np.uint64) * _STREAM
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
