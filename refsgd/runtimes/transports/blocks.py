"""Shared memory for large arrays: senders copy once, messages name the copy, receivers read it in place.

A receiver's read-only view of a block is a loan, which ends when the last view is gone; an array that is sent
to several receivers, or again, is copied once.  A loan is one word, with one writer at a time: the owner of
the block replaces 0 by the receiver's place (from 1), and that receiver writes 0.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from refsgd.runtimes.transports.transport import anonymous
from refsgd.runtimes.transports.wire import WireError

LARGE = 1 << 16  # bytes; below, a copy through the ring costs less than a block
POOL_BYTES = 1 << 32  # of a process; untouched pages cost nothing
MOST_BYTES = 1 << 36  # of address space for all pools of a run
BLOCKS = 128  # of a pool
STAGGER = 17 * 64  # bytes between blocks: arrays with equal offsets in a page slow each other down
START, ROOM, LOANS = range(3)  # words of a block: offset, bytes, loans
AGAIN = 8  # loans of a block beyond one for each receiver

Array = npt.NDArray[Any]


class Pools:
    """The pools of all processes, of `nbytes` each, made before the fork."""

    def __init__(self, processes: Sequence[str], nbytes: int = POOL_BYTES) -> None:
        count = len(processes)
        self._nbytes = min(nbytes, MOST_BYTES // count) // mmap.PAGESIZE * mmap.PAGESIZE
        self._per_pool = BLOCKS * (LOANS + count + AGAIN)
        self._table, self._bytes = anonymous(8 * self._per_pool * count), anonymous(self._nbytes * count)
        self._words, self._data = memoryview(self._table).cast("Q"), memoryview(self._bytes)

    def of(self, place: int) -> Pool:
        """The pool of one process."""
        return Pool(self._words[place * self._per_pool : (place + 1) * self._per_pool],
                    self._data[place * self._nbytes : (place + 1) * self._nbytes])

    def close(self) -> None:
        """Free the memory; no array in it may be in use."""
        self._words.release()
        self._data.release()
        self._table.close()
        self._bytes.close()


class Pool:
    """The pool of one process: the table of blocks in `words`, their bytes in `data`; `lend` and `forget` are
    for its owner, `borrow` for receivers."""

    def __init__(self, words: memoryview, data: memoryview) -> None:
        self._words, self._data, self._readable = words, data, data.toreadonly()
        self._stride = len(words) // BLOCKS
        self._sources: list[Callable[[], Array | None]] = []  # the array that each block is a copy of
        self._end = 0  # of the last block
        # The owners of the receivers' views.  (`weakref.finalize` takes ten times as long.)
        self._borrowed: dict[int, weakref.ref[Array]] = {}

    def lend(self, to: int, array: Array) -> int | None:
        """Owner: a loan to receiver `to` of a copy of `array`; None if the array should stream."""
        if array.nbytes < LARGE:
            return None
        at = next((k * self._stride for k, source in enumerate(self._sources) if source() is array), None)
        loan = None if at is None else self._unused(at)
        if loan is None:
            at = self._free(array.nbytes)
            if at is None:
                return None
            loan = at + LOANS
            self._sources[at // self._stride] = weakref.ref(array)
            copy = np.frombuffer(self._data, array.dtype, array.size, self._words[at + START])
            np.copyto(copy.reshape(array.shape), array)
        self._words[loan] = to + 1
        return loan

    def _unused(self, at: int) -> int | None:
        """The word of an unused loan of the block at word `at`."""
        loans = self._words[at + LOANS : at + self._stride].tolist()
        return at + LOANS + loans.index(0) if 0 in loans else None

    def _free(self, nbytes: int) -> int | None:
        """The first word of a block without loans: of about `nbytes`, or a new one, or a larger one."""
        words, end, larger = self._words, len(self._sources) * self._stride, None
        for at in range(0, end, self._stride):
            if words[at + ROOM] >= nbytes and not any(words[at + LOANS : at + self._stride]):
                if words[at + ROOM] <= 2 * nbytes:
                    return at
                larger = at
        room = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if end == len(words) or self._end + room > len(self._data):
            return larger
        words[end + START], words[end + ROOM] = self._end, room
        self._end += room + STAGGER
        self._sources.append(lambda: None)
        return end

    def forget(self, to: int) -> None:
        """Owner: take back the loans of receiver `to`, which has died."""
        for at in range(len(self._sources) * self._stride):
            if at % self._stride >= LOANS and self._words[at] == to + 1:
                self._words[at] = 0

    def borrow(self, me: int, loan: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Receiver: a read-only view of the block of a loan, which ends when its last view is dropped."""
        nbytes, at = math.prod(shape) * dtype.itemsize, loan - loan % self._stride
        if not (0 <= loan < len(self._words) and loan - at >= LOANS and self._words[loan] == me + 1
                and nbytes <= self._words[at + ROOM]):
            raise WireError(f"an array of {nbytes} bytes with loan {loan}, which does not exist")
        # the base of all views of the block
        owner = np.frombuffer(self._readable, dtype, math.prod(shape), self._words[at + START])
        ref = weakref.ref(owner, partial(self._give_back, loan))
        self._borrowed[id(ref)] = ref
        return owner if len(shape) == 1 else owner.reshape(shape)

    def _give_back(self, loan: int, ref: Any) -> None:
        del self._borrowed[id(ref)]
        self._words[loan] = 0
