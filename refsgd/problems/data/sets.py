"""The data sets: the locations of their files, and their conversion to arrays."""
from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from refsgd.problems.data.formats import Bytes, DataError, read_cifar, read_digits, read_idx

_DIGITS = 1797
_DIGITS_TRAINING = 1437
# In file order the last 360 digits were written by other people, so the split is one fixed permutation.
_SPLIT_SEED = 1797

# Mean and standard deviation of the training pixels divided by 255, as commonly published.
_IDX_SCALE = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}
_IDX_COUNTS = {"train": 60_000, "t10k": 10_000}

_CIFAR_MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)
_CIFAR_DEVIATION = np.array([0.2470, 0.2435, 0.2616], np.float32)
RECORDS = 10_000
LARGEST = 200_000  # values in a synthetic image, of which there are 2,500
# Not a published file: the first 1,000 records of test_batch.bin, for machines without the rest.
_CIFAR_PREFIX, _CIFAR_PREFIX_RECORDS = "test_batch_first1000.bin", 1_000

NAMES = ("digits", *_IDX_SCALE, "cifar10", "synthetic")


def files(name: str) -> list[str]:
    """The published files of a data set; none if it needs no files."""
    if name in _IDX_SCALE:
        return [f"{part}-{kind}-ubyte.gz" for part in _IDX_COUNTS for kind in ("images-idx3", "labels-idx1")]
    if name == "cifar10":
        return [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    return []


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
    partial : mapping of str to str
        What there is of the published images of "train" and "test", where some are missing.
    validation : (images, labels) or None
        Training images that `hold_back` has taken out of the training.
    """

    name: str
    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    classes: int
    partial: Mapping[str, str] = field(default_factory=dict)
    validation: tuple[NDArray[np.float32], NDArray[np.int64]] | None = None

    @property
    def note(self) -> str:
        """Missing parts of the published set, if any."""
        return "; ".join(self.partial.values())

    def hold_back(self, share: float) -> Dataset:
        """The same set with a share of its training images, in [0, 1), for validation: the same ones for
        every seed; raises DataError if no image would be left on one of the two sides."""
        if share == 0:
            return self
        count = len(self.train_labels)
        held = round(share * count) if 0 < share < 1 else 0
        if not 0 < held < count:
            raise DataError(f"{self.name}: validation {share} of {count} training images, expected a share "
                            "that leaves images on both sides, such as 0.1")
        order = np.random.default_rng(_SPLIT_SEED).permutation(count)
        kept, apart = np.sort(order[held:]), np.sort(order[:held])
        return replace(self, train_images=self.train_images[kept], train_labels=self.train_labels[kept],
                       validation=(self.train_images[apart], self.train_labels[apart]))

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            if len(images) != len(labels):
                raise DataError(
                    f"{self.name}: {len(images)} {part} images, {len(labels)} labels, "
                    "expected the same number")
            bad = ~np.isfinite(images).all(axis=(1, 2, 3))
            if bad.any():
                raise DataError(
                    f"{self.name}: NaN or infinity in {part} image {bad.argmax()}, expected finite pixels")
            if len(labels) and not (labels.min() >= 0 and labels.max() < self.classes):
                raise DataError(f"{self.name}: {part} labels {labels.min()} to {labels.max()}, expected 0 "
                                f"to {self.classes - 1}")
            for array in (images, labels, *(self.validation or ())):
                array.setflags(write=False)


def user_cache() -> Path | None:
    """The library's folder in the user's cache; None if there is neither ``XDG_CACHE_HOME`` nor a home
    directory."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refsgd"
    except RuntimeError:
        return None


def folders(name: str) -> list[Path]:
    """The folders searched for the files of a data set, in order: ``$REFSGD_DATA``, then the user's cache."""
    roots = [Path(os.environ["REFSGD_DATA"]) if os.environ.get("REFSGD_DATA") else None, user_cache()]
    return [root / name for root in roots if root is not None]


def find(name: str, wanted: list[str]) -> tuple[Path | None, list[str]]:
    """The first folder that holds some of the files, and which; None if there is none."""
    for place in folders(name):
        if found := [file for file in wanted if os.path.isfile(place / file)]:
            return place, found
    return None, []


def _complete(name: str) -> Path:
    """The folder of all published files; raises DataError if there is none."""
    wanted = files(name)
    place, found = find(name, wanted)
    if place is None:
        looked = " or ".join(map(str, folders(name))) or "a home directory, which this user lacks"
        raise DataError(f"{name}: no files in {looked}; fetch it with `refsgd data {name}`, put "
                        f"{', '.join(wanted)} there, or set REFSGD_DATA to the folder that holds {name}/")
    if missing := [file for file in wanted if file not in found]:
        raise DataError(
            f"{name}: {place} lacks {', '.join(missing)}, expected the {len(wanted)} published files")
    return place


def load(name: str) -> Dataset:
    """Read a data set; digits and the last large one are cached as long as their files do not change.

    Parameters
    ----------
    name : str
        "digits" (1,437 + 360 images of 8x8, part of the library), "mnist" or "fashion-mnist"
        (60,000 + 10,000 of 28x28), "cifar10" (50,000 + 10,000 of 32x32x3; fewer if some of its files are
        missing, see ``note``), "synthetic" (32x32x3) or "synthetic:HxWxC" (see `synthetic`).

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        One line: if the name is unknown, files are missing, truncated or of another format, values are not
        finite, or labels are invalid.
    """
    if name == "digits":
        return _load_digits()
    if files(name):
        found = [place / file for place in folders(name) for file in (*files(name), _CIFAR_PREFIX)]
        return _read(name,
                     tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in found
                           if os.path.isfile(path)))
    kind, _, shape = name.partition(":")
    if kind == "synthetic":
        sizes = (shape or "32x32x3").split("x")
        if len(sizes) != 3 or not all(size.isascii() and size.isdigit() and int(size) > 0 for size in sizes):
            raise DataError(f"data set is {name!r}, expected synthetic:HxWxC as in synthetic:32x32x3")
        height, width, channels = map(int, sizes)
        if height * width * channels > LARGEST:
            raise DataError(f"data set is {name!r}, expected at most {LARGEST:,} values in an image")
        return synthetic((height, width, channels))
    raise DataError(f"data set is {name!r}, expected one of {', '.join(NAMES)}")


# cached, because reading takes seconds and hundreds of MB in each of many consecutive runs
@functools.lru_cache(maxsize=1)
def _read(name: str, stamps: tuple[tuple[Path, int, int], ...]) -> Dataset:
    return _load_cifar() if name == "cifar10" else _load_idx(name)


@functools.lru_cache(maxsize=1)
def _load_digits() -> Dataset:
    """The digits, which are part of the library; digits.md beside their file names source and licence."""
    pixels, labels = read_digits(Path(__file__).with_name("digits.csv.gz"))
    order = np.random.default_rng(_SPLIT_SEED).permutation(_DIGITS)
    train, test = order[:_DIGITS_TRAINING], order[_DIGITS_TRAINING:]
    mean, deviation = pixels[train].mean(), pixels[train].std()
    images = (pixels - mean) / deviation
    return Dataset("digits", images[train], labels[train], images[test], labels[test], 10)


def _load_idx(name: str) -> Dataset:
    folder, parts = _complete(name), list[Any]()
    for part, count in _IDX_COUNTS.items():
        pixels = read_idx(folder / f"{part}-images-idx3-ubyte.gz", (count, 28, 28))
        labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", (count,))
        parts.append((_scaled(pixels[..., np.newaxis], *_IDX_SCALE[name]), labels.astype(np.int64)))
    (train, train_labels), (test, test_labels) = parts
    return Dataset(name, train, train_labels, test, test_labels, 10)


def _scaled(pixels: Bytes, mean: ArrayLike, deviation: ArrayLike) -> NDArray[np.float32]:
    """Pixels divided by 255, minus their mean, divided by their deviation."""
    images = pixels.astype(np.float32)
    images /= np.float32(255)
    images -= np.asarray(mean, np.float32)
    images /= np.asarray(deviation, np.float32)
    return images


def _load_cifar() -> Dataset:
    place, batches = find("cifar10", files("cifar10")[:5])
    if place is None:
        place = _complete("cifar10")  # raises: there is nothing to train on
    test, records = place / "test_batch.bin", RECORDS
    if not test.is_file() and (place / _CIFAR_PREFIX).is_file():
        test, records = place / _CIFAR_PREFIX, _CIFAR_PREFIX_RECORDS
    if not test.is_file():
        raise DataError(f"cifar10: {place} lacks test_batch.bin, expected the 6 published files")
    parts = [read_cifar(place / batch, RECORDS) for batch in batches]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    test_pixels, test_labels = read_cifar(test, records)
    partial = {}
    if len(batches) < 5:
        partial["train"] = f"{len(labels)} of {5 * RECORDS} training images"
    if records < RECORDS:
        partial["test"] = f"the first {records} of {RECORDS} test images"
    train, test_images = (_scaled(raw, _CIFAR_MEAN, _CIFAR_DEVIATION) for raw in (pixels, test_pixels))
    return Dataset("cifar10", train, labels.astype(np.int64), test_images, test_labels.astype(np.int64), 10,
                   partial)


def synthetic(shape: tuple[int, int, int], classes: int = 10, train: int = 2000, test: int = 500,
              seed: int = 0) -> Dataset:
    """Made-up images of any shape: one random pattern per class, with noise of twice its size.

    Parameters
    ----------
    shape : (H, W, C)
    classes, train, test : int
        Numbers of classes and of images; labels are as evenly distributed as possible.
    seed : int

    Returns
    -------
    Dataset
        Learnable, and a pure function of the arguments.
    """
    random = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0x5E7,)))
    patterns = random.standard_normal((classes, *shape), np.float32)
    parts: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.int64]] = []
    for count in (train, test):
        labels.append(random.permutation(np.arange(count) % classes))
        noise = random.standard_normal((count, *shape), np.float32)
        parts.append((patterns[labels[-1]] + 2 * noise) / np.float32(np.sqrt(5)))
    return Dataset("synthetic", parts[0], labels[0], parts[1], labels[1], classes)
