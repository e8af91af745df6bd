"""The data sets: where their files are looked for, and how they become arrays."""
from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from refsgd.data.errors import DataError
from refsgd.data.formats import Bytes, read_digits, read_idx

_DIGITS = 1797
_DIGITS_TRAINING = 1437
# In file order the last 360 digits were written by other people: the split is one permutation, fixed for good.
_SPLIT_SEED = 1797

# Mean and standard deviation of the training pixels divided by 255, as commonly published.
_IDX_SCALE = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}
_IDX_COUNTS = {"train": 60_000, "t10k": 10_000}

NAMES = ("digits", *_IDX_SCALE)


@dataclass(frozen=True)
class Dataset:
    """Labelled images, in two parts. All arrays are read-only.

    Attributes
    ----------
    name : str
    train_images, test_images : float32, shape (n, H, W, C)
        Pixels, shifted and scaled to about mean 0 and variance 1 over the training images.
    train_labels, test_labels : int64, shape (n,)
        0 to classes - 1.
    classes : int
    """

    name: str
    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    classes: int

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            if len(images) != len(labels):
                raise DataError(f"{self.name}: {len(images)} {part} images and {len(labels)} labels, expected as many")
            bad = ~np.isfinite(images).all(axis=(1, 2, 3))
            if bad.any():
                raise DataError(f"{self.name}: NaN or infinity in {part} image {bad.argmax()}, expected finite pixels")
            if len(labels) and not (labels.min() >= 0 and labels.max() < self.classes):
                raise DataError(
                    f"{self.name}: {part} labels {labels.min()} to {labels.max()}, expected 0 to {self.classes - 1}"
                )
            images.setflags(write=False)
            labels.setflags(write=False)


def folders(name: str) -> list[Path]:
    """Where the files of a data set are looked for, in this order: ``$REFSGD_DATA``, then the user's cache."""
    roots = [Path(os.environ["REFSGD_DATA"])] if os.environ.get("REFSGD_DATA") else []
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [root / name for root in (*roots, Path(cache) / "refsgd")]


def find(name: str, files: list[str]) -> Path:
    """The first folder that holds one of the files.

    Raises
    ------
    DataError
        If there is none, or if it lacks some of the files.
    """
    places = folders(name)
    for place in places:
        missing = [file for file in files if not (place / file).is_file()]
        if not missing:
            return place
        if len(missing) < len(files):
            raise DataError(f"{name}: {place} lacks {', '.join(missing)}, expected the {len(files)} published files")
    raise DataError(
        f"{name}: no files in {' or '.join(map(str, places))}; put {', '.join(files)} there, "
        f"or set REFSGD_DATA to the folder that holds {name}/"
    )


def load(name: str) -> Dataset:
    """Read a data set.

    Parameters
    ----------
    name : str
        "digits" (1,437 + 360 images of 8x8, comes with scikit-learn), "mnist" or "fashion-mnist"
        (60,000 + 10,000 of 28x28, files as published).

    Raises
    ------
    DataError
        One line: if the name is unknown, files are missing, cut short or of another format, or values are
        not finite or no label.
    """
    if name == "digits":
        return _load_digits()
    if name in _IDX_SCALE:
        return _load_idx(name)
    raise DataError(f"data set is {name!r}, expected one of {', '.join(NAMES)}")


def _load_digits() -> Dataset:
    # Located without importing: all of scikit-learn takes a second, this file some milliseconds.
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("digits: scikit-learn is not installed, expected its bundled file; pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    pixels, labels = read_digits(path)
    if len(labels) != _DIGITS:
        raise DataError(f"{path}: {len(labels)} digits, expected {_DIGITS}")
    order = np.random.default_rng(_SPLIT_SEED).permutation(_DIGITS)
    train, test = order[:_DIGITS_TRAINING], order[_DIGITS_TRAINING:]
    mean, deviation = pixels[train].mean(), pixels[train].std()
    images = (pixels - mean) / deviation
    return Dataset("digits", images[train], labels[train], images[test], labels[test], 10)


def _load_idx(name: str) -> Dataset:
    kinds = {"images-idx3-ubyte.gz": 3, "labels-idx1-ubyte.gz": 1}
    folder = find(name, [f"{part}-{kind}" for part in _IDX_COUNTS for kind in kinds])
    arrays: dict[str, Bytes] = {}
    for part, count in _IDX_COUNTS.items():
        for kind, dimensions in kinds.items():
            path = folder / f"{part}-{kind}"
            found = read_idx(path, dimensions)
            expected = (count, 28, 28)[:dimensions]
            if found.shape != expected:
                raise DataError(f"{path}: array of shape {found.shape}, expected {expected}")
            arrays[f"{part}-{kind[:6]}"] = found
    mean, deviation = (np.float32(v) for v in _IDX_SCALE[name])

    def scaled(pixels: Bytes) -> NDArray[np.float32]:
        return ((pixels.astype(np.float32) / np.float32(255) - mean) / deviation)[..., np.newaxis]

    return Dataset(
        name,
        scaled(arrays["train-images"]), arrays["train-labels"].astype(np.int64),
        scaled(arrays["t10k-images"]), arrays["t10k-labels"].astype(np.int64),
        classes=10,
    )  # fmt: skip
