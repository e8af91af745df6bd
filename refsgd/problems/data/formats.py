"""Readers of the published file formats, which verify all of a file's headers and sizes."""
from __future__ import annotations

import gzip
import io
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
RECORD_BYTES = 3073  #: of an image of CIFAR-10 with its label
DIGITS_TEXT = 1 << 20  #: characters, four times those of scikit-learn's file


class DataError(Exception):
    """A data set is missing or invalid: one line with what was found and what was expected."""


def read_idx(path: Path, shape: tuple[int, ...]) -> Bytes:
    """Read a gzipped IDX file of bytes, the format of MNIST, of this shape; no more of it is unpacked."""
    header, magic, size = 4 + 4 * len(shape), 0x0800 + len(shape), math.prod(shape)
    try:
        with gzip.open(path) as file:
            raw = file.read(header)
            if len(raw) < header:
                raise DataError(f"{path}: {len(raw)} bytes, expected a header of {header}")
            found_magic, *lengths = (int(v) for v in np.frombuffer(raw, ">u4"))
            if found_magic != magic:
                raise DataError(f"{path}: magic number {found_magic}, expected {magic}")
            if tuple(lengths) != shape:
                raise DataError(f"{path}: array of shape {tuple(lengths)}, expected {shape}")
            raw = file.read(size)
            more = file.read(1)
    except (OSError, EOFError, zlib.error) as error:
        found = "ends too early" if isinstance(error, EOFError) else str(error)
        raise DataError(f"{path}: {found}, expected a complete gzip file") from None
    if len(raw) != size or more:
        found = "more bytes" if more else f"{len(raw)} bytes"
        raise DataError(f"{path}: {found} after the header, expected {size} ({' x '.join(map(str, shape))})")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def read_cifar(path: Path, records: int) -> tuple[Bytes, Bytes]:
    """Read a file of the binary version of CIFAR-10: a label byte and 3,072 pixel bytes for each image."""
    try:
        if (size := path.stat().st_size) == records * RECORD_BYTES:
            raw = path.read_bytes()
            size = len(raw)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}, expected {records} images of CIFAR-10") from None
    if size != records * RECORD_BYTES:
        raise DataError(f"{path}: {size} bytes, expected {records * RECORD_BYTES} ({records} records of "
                        f"{RECORD_BYTES})")
    table = np.frombuffer(raw, np.uint8).reshape(records, RECORD_BYTES)
    if table[:, 0].max() > 9:
        raise DataError(f"{path}: label {table[:, 0].max()}, expected 0 to 9")
    return table[:, 1:].reshape(records, 3, 32, 32).transpose(0, 2, 3, 1), table[:, 0]


def read_digits(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read the gzipped digits: a line of 64 pixels (0 to 16) and a label for each image."""
    try:
        with gzip.open(path, "rt") as file:
            text = file.read(DIGITS_TEXT + 1)
        if len(text) > DIGITS_TEXT:
            raise ValueError(f"more than {DIGITS_TEXT} characters")
        table = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.float32, ndmin=2)
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
