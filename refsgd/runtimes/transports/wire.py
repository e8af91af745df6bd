"""Frames on a byte stream: a fixed head, a typed description of the fields, then the raw bytes of the arrays.

Rings and connections are both byte streams (``write(view) -> n`` and ``read_into(view) -> n``, neither of
which waits).  Nothing is pickled, and no name from the wire is looked up.  Input is checked before memory is
allocated for it: both lengths are bounded, and the shapes must add up to the announced bytes.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Container, Generator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from refsgd.runtimes.mailbox import tag_of

#: bytes of description, tag, sender, receiver, number, stamp, bytes of arrays
HEAD = struct.Struct("<IIHHQdQ")
LONGEST_DESCRIPTION = 1 << 16
LARGEST_PAYLOAD = 1 << 34  #: by default
DEEPEST_TUPLE = 4
MOST_DIMENSIONS = 32
JOINED = 1 << 14  # bytes up to which a copy is cheaper than a second write

NONE, FALSE, TRUE, INT, FLOAT, TEXT, SCALAR, ARRAY, REPEATED, TUPLE, LENT = range(11)
DTYPES = [np.dtype(code) for code in ("<f4", "<f8", "<i4", "<i8", "?", "<f2", "|i1", "|u1", "<i2", "<u2",
                                      "<u4", "<u8", "<c8", "<c16")]
CODES = {dtype: code for code, dtype in enumerate(DTYPES)}

_BYTE, _INT, _FLOAT, _SHORT, _PAIR = (struct.Struct(f) for f in ("<B", "<Bq", "<Bd", "<BH", "<BB"))
_SHAPES = [struct.Struct(f"<BBB{n}Q") for n in range(MOST_DIMENSIONS + 1)]
_LENGTHS = [struct.Struct(f"<{n}Q") for n in range(MOST_DIMENSIONS + 1)]
_Q, _D, _H = (struct.Struct(f) for f in ("<q", "<d", "<H"))

Raw = npt.NDArray[np.uint8]
Lend = Callable[[npt.NDArray[Any]], "int | None"]  #: sender: a loan of a copy in shared memory
#: receiver: the array of a loan
Borrow = Callable[[int, tuple[int, ...], "np.dtype[Any]"], npt.NDArray[Any]]


class WireError(ValueError):
    """Bytes that cannot come from a peer of this run."""


class Frame(NamedTuple):
    """One message from the wire; `src` and `to` are indices in the deployment."""

    src: int
    to: int
    tag: int
    number: int
    stamp: float
    fields: tuple[Any, ...]


# -- sending -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)  # a run sends few shapes very often
def _shape(kind: int, code: int, shape: tuple[int, ...]) -> bytes:
    return _SHAPES[len(shape)].pack(kind, code, len(shape), *shape)


def _describe_array(value: npt.NDArray[Any], parts: list[bytes], raws: list[Raw],
                    lend: Lend | None) -> None:
    code = CODES.get(value.dtype)
    if code is None or value.ndim > MOST_DIMENSIONS:
        raise TypeError(f" is an array of {value.dtype} with {value.ndim} dimensions; expected a number type "
                        f"such as float32 and at most {MOST_DIMENSIONS} dimensions")
    shape = value.shape
    if 0 in value.strides and value.size > 1 and not any(value.strides):
        # one number broadcast to a shape (np.broadcast_to): only the number needs to be sent
        parts += [_shape(REPEATED, code, shape), value.reshape(-1)[:1].tobytes()]
        return
    loan = lend(value) if lend is not None else None
    if loan is not None:
        parts += [_shape(LENT, code, shape), _Q.pack(loan)]
        return
    parts.append(_shape(ARRAY, code, shape))
    if value.nbytes:
        raws.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8))


def _describe(value: Any, parts: list[bytes], raws: list[Raw], lend: Lend | None, depth: int) -> None:
    """Append the description of one field to `parts` and the bytes of its arrays to `raws`; an error's
    text continues after its name."""
    if isinstance(value, np.ndarray):
        _describe_array(value, parts, raws, lend)
    elif value is None:
        parts.append(_BYTE.pack(NONE))
    elif isinstance(value, np.generic) and value.dtype in CODES:  # before float: np.float64 is one
        parts += [_PAIR.pack(SCALAR, CODES[value.dtype]), value.tobytes()]
    elif isinstance(value, bool):
        parts.append(_BYTE.pack(TRUE if value else FALSE))
    elif isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise TypeError(f" is an int of {value.bit_length()} bits; expected one that fits in 64")
        parts.append(_INT.pack(INT, value))
    elif isinstance(value, float):
        parts.append(_FLOAT.pack(FLOAT, value))
    elif isinstance(value, str):
        text = value.encode()
        if len(text) > 0xFFFF:
            raise TypeError(f" is a str of {len(text)} bytes; expected at most 65535")
        parts += [_SHORT.pack(TEXT, len(text)), text]
    elif isinstance(value, tuple) and depth < DEEPEST_TUPLE and len(value) <= 0xFFFF:
        parts.append(_SHORT.pack(TUPLE, len(value)))
        for i, item in enumerate(value):
            try:
                _describe(item, parts, raws, lend, depth + 1)
            except TypeError as error:
                raise TypeError(f"[{i}]{error}") from None
    else:
        raise TypeError(f" is of type {type(value).__name__}; expected an array, a number, str, bool, None "
                        f"or a tuple of these (at most {DEEPEST_TUPLE} deep)")


def encode(body: Any, src: int, to: int, number: int, stamp: float, lend: Lend | None = None,
           limit: int = LARGEST_PAYLOAD) -> list[memoryview]:
    """The bytes of a message, as views to be written in order; large arrays, which are read-only since they
    crossed a yield, are not copied."""
    fields = getattr(type(body), "_fields", None)
    if fields is None:
        raise TypeError(
            f"a message of type {type(body).__name__}; expected an instance of a NamedTuple class")
    parts: list[bytes] = [_SHORT.pack(TUPLE, len(body))]
    raws: list[Raw] = []
    for name, value in zip(fields, body):
        try:
            _describe(value, parts, raws, lend, 0)
        except TypeError as error:
            raise TypeError(f"field {type(body).__name__}.{name}{error}") from None
    total = sum([raw.nbytes for raw in raws])
    description = b"".join(parts)
    if len(description) > LONGEST_DESCRIPTION or total > limit:
        raise TypeError(f"a message {type(body).__name__} of {total} bytes with {len(description)} of "
                        f"description; expected at most {limit} and {LONGEST_DESCRIPTION}")
    head = HEAD.pack(len(description), tag_of(type(body)), src, to, number, stamp, total) + description
    if total <= JOINED:
        return [memoryview(b"".join([head, *[raw.tobytes() for raw in raws]]) if raws else head)]
    return [memoryview(head), *(raw.data for raw in raws)]


class Outgoing:
    """The overflow queue of one stream, so that no `Send` ever waits; ``write(view)`` takes as many bytes as
    it can without waiting and returns their number."""

    def __init__(self, write: Callable[[memoryview], int]) -> None:
        self._write = write
        self._waiting: deque[memoryview] = deque()
        self.nbytes = 0  #: bytes that wait

    def post(self, views: list[memoryview]) -> int:
        """Queue the views of a frame and write what the stream accepts; returns the bytes written."""
        if not self._waiting and len(views) == 1:  # the usual case: no need to queue
            view = views[0]
            moved = self._write(view)
            if moved == len(view):
                return moved
            self._waiting.append(view[moved:])
            self.nbytes = len(view) - moved
            return moved
        self._waiting.extend(views)
        self.nbytes += sum(map(len, views))
        return self.flush()

    def clear(self) -> None:
        """Drop the queue: it will not be read."""
        self._waiting.clear()
        self.nbytes = 0

    def flush(self) -> int:
        """Write what the stream accepts; returns the bytes written."""
        moved = 0
        while self._waiting:
            view = self._waiting[0]
            n = self._write(view)
            moved += n
            if n < len(view):
                self._waiting[0] = view[n:]
                break
            self._waiting.popleft()
        self.nbytes -= moved
        return moved


# -- receiving ---------------------------------------------------------------------------------------------


class _Description:
    """Reads the description of a frame; allocates memory for its arrays within the announced bytes only."""

    __slots__ = ("arrays", "at", "borrow", "data", "left")

    def __init__(self, data: bytearray, total: int, borrow: Borrow | None) -> None:
        self.data, self.at, self.left, self.borrow = data, 0, total, borrow
        self.arrays: list[npt.NDArray[Any]] = []

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return values

    def bytes(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise WireError("the description ends too early")
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def field(self, depth: int = 0) -> Any:
        kind = self.data[self.at]
        self.at += 1
        if kind in (ARRAY, LENT):
            return self.array(kind)
        if kind == NONE:
            return None
        if kind in (FALSE, TRUE):
            return kind == TRUE
        if kind == INT:
            return self.take(_Q)[0]
        if kind == FLOAT:
            return self.take(_D)[0]
        if kind == TEXT:
            return self.bytes(*self.take(_H)).decode()
        if kind == TUPLE and depth <= DEEPEST_TUPLE:
            (count,) = self.take(_H)
            return tuple([self.field(depth + 1) for _ in range(count)])
        if kind == SCALAR:
            dtype = DTYPES[self.data[self.at]]
            self.at += 1
            return np.frombuffer(self.bytes(dtype.itemsize), dtype)[0]
        if kind == REPEATED:
            return self.array(kind)
        raise WireError(f"a field of unknown kind {kind}")

    def array(self, kind: int) -> npt.NDArray[Any]:
        code, ndim = self.data[self.at], self.data[self.at + 1]
        self.at += 2
        if ndim > MOST_DIMENSIONS:
            raise WireError(f"an array of {ndim} dimensions")
        dtype, shape = DTYPES[code], self.take(_LENGTHS[ndim])
        if kind == REPEATED:
            return np.broadcast_to(np.frombuffer(self.bytes(dtype.itemsize), dtype)[0], shape)
        if kind == LENT:
            if self.borrow is None:
                raise WireError("an array in shared memory, which this stream does not have")
            return self.borrow(self.take(_LENGTHS[1])[0], shape, dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > self.left:
            raise WireError(f"an array of shape {shape} where {self.left} bytes were announced")
        self.left -= nbytes
        array = np.empty(shape, dtype)
        if nbytes:
            self.arrays.append(array)
        else:
            array.flags.writeable = False
        return array


def decoder(deliver: Callable[[Frame], None], sources: Container[int], targets: Container[int],
            limit: int = LARGEST_PAYLOAD, borrow: Borrow | None = None) -> Generator[memoryview, None, None]:
    """A generator that cuts a byte stream into frames and calls `deliver` with each complete one; bytes go
    from the stream directly into the arrays that the program gets."""
    head = memoryview(bytearray(HEAD.size))
    while True:
        yield head
        length, tag, src, to, number, stamp, total = HEAD.unpack(head)
        if not 3 <= length <= LONGEST_DESCRIPTION or total > limit:
            raise WireError(f"a frame of {total} bytes with {length} of description; expected at most "
                            f"{limit} and {LONGEST_DESCRIPTION}")
        if src not in sources or to not in targets or not math.isfinite(stamp):
            raise WireError(f"a frame from node {src} to node {to} at {stamp}, which does not belong here")
        data = bytearray(length)
        yield memoryview(data)
        description = _Description(data, total, borrow)
        try:
            fields = description.field()
        except WireError:
            raise
        except (struct.error, IndexError, ValueError, OverflowError, MemoryError) as error:
            raise WireError(f"a description that cannot be read ({error})") from None
        if type(fields) is not tuple or description.at != length or description.left:
            raise WireError(f"a description that leaves {length - description.at} bytes of itself and "
                            f"{description.left} of the payload")
        for array in description.arrays:
            yield array.reshape(-1).view(np.uint8).data
            array.flags.writeable = False
        deliver(Frame(src, to, tag, number, stamp, fields))


class Incoming:
    """Feeds a `decoder` from a byte stream: ``read_into(view)`` writes as many bytes as it can and
    returns their number."""

    def __init__(self, read_into: Callable[[memoryview], int],
                 parts: Generator[memoryview, None, None]) -> None:
        self._read_into, self._parts = read_into, parts
        self._view = next(parts)

    def pump(self) -> int:
        """Read what has arrived; returns the bytes read."""
        moved, read_into, parts = 0, self._read_into, self._parts
        while n := read_into(self._view):
            moved += n
            self._view = self._view[n:] if n < len(self._view) else next(parts)
        return moved
