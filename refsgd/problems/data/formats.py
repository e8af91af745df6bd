"""Readers of the published file formats, which verify all of a file's headers and sizes."""
from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class DataError(Exception):
    """A data set is missing or invalid: one line with what was found and what was expected."""


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Read a gzipped IDX file of bytes, the format of MNIST."""
    try:
        with gzip.open(path) as file:
            raw = file.read()
    except (OSError, EOFError, zlib.error) as error:
        found = "ends too early" if isinstance(error, EOFError) else str(error)
        raise DataError(f"{path}: {found}, expected a complete gzip file") from None
    header = 4 + 4 * dimensions
    magic = 0x0800 + dimensions
    if len(raw) < header:
        raise DataError(f"{path}: {len(raw)} bytes, expected a header of {header}")
    found_magic, *lengths = (int(v) for v in np.frombuffer(raw, ">u4", 1 + dimensions))
    if found_magic != magic:
        raise DataError(f"{path}: magic number {found_magic}, expected {magic}")
    size = int(np.prod(lengths, dtype=object))
    if len(raw) != header + size:
        shape = " x ".join(map(str, lengths))
        raise DataError(f"{path}: {len(raw) - header} bytes after the header, expected {size} ({shape})")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(lengths)


def read_cifar(path: Path, records: int) -> tuple[Bytes, Bytes]:
    """Read a file of the binary version of CIFAR-10: a label byte and 3,072 pixel bytes for each image."""
    try:
        raw = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}, expected {records} images of CIFAR-10") from None
    if raw.size != records * 3073:
        raise DataError(f"{path}: {raw.size} bytes, expected {records * 3073} ({records} records of 3073)")
    table = raw.reshape(records, 3073)
    if table[:, 0].max() > 9:
        raise DataError(f"{path}: label {table[:, 0].max()}, expected 0 to 9")
    return table[:, 1:].reshape(records, 3, 32, 32).transpose(0, 2, 3, 1), table[:, 0]


def read_digits(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read the gzipped digits: a line of 64 pixels (0 to 16) and a label for each image."""
    try:
        with gzip.open(path, "rt") as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.float32, ndmin=2)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(
            f"{path}: {str(error).splitlines()[0]}, expected gzipped lines of 65 numbers") from None
    if table.shape[1] != 65:
        raise DataError(f"{path}: {table.shape[1]} numbers a line, expected 65")
    pixels, labels = table[:, :64], table[:, 64]
    if not (np.all((pixels >= 0) & (pixels <= 16)) and np.all(np.isin(labels, range(10)))):
        raise DataError(
            f"{path}: invalid pixels or labels, expected pixels 0 to 16 and labels 0 to 9")
    return pixels.reshape(-1, 8, 8, 1), labels.astype(np.int64)
