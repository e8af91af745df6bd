"""Large arrays between processes without a copy: they are born in shared memory, and a message says where.

In a process of a run numpy allocates large arrays in the process's own arena (`refsgd.runtimes.allocator`), which all others see.  To send
one is to lend it: the message names its place, the receiver gets a read-only view, and the memory is used again when the sender has
dropped the array and every receiver its view.  An array from elsewhere (made before the fork, received, made by
compiled code) is copied into the arena once, however many it is sent to.  Where the arena is full the bytes stream through the
ring, so nothing ever waits and a program may keep what it got.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from refsgd.runtimes import allocator
from refsgd.runtimes.allocator import LARGE
from refsgd.runtimes.board import anonymous
from refsgd.runtimes.wire import WireError

ARENA_BYTES = 1 << 32  # of a host; pages that nobody writes to cost nothing
MOST_BYTES = 1 << 36  # of address space for all arenas of a run
_ELEMENTS = object.__basicsize__  # where an array object of NumPy's C interface has the address of its elements: behind the head of any object


class Arenas:
    """The arenas of all hosts, made before the fork, so that they lie at the same addresses in every process.

    Parameters
    ----------
    hosts : sequence of str
    nbytes : int
        Bytes of an arena.
    """

    def __init__(self, hosts: Sequence[str], nbytes: int = ARENA_BYTES) -> None:
        self._nbytes = min(nbytes, MOST_BYTES // len(hosts)) // allocator.PAGE * allocator.PAGE
        self._words = allocator.words_of(len(hosts))
        self._control, self._data = anonymous(8 * self._words * len(hosts)), anonymous(self._nbytes * len(hosts))
        self._views = memoryview(self._control).cast("q"), memoryview(self._data)
        start = np.frombuffer(self._data, np.uint8).ctypes.data
        for host in range(len(hosts)):
            allocator.prepare(self._table(host), start + host * self._nbytes, self._nbytes, len(hosts))

    def _table(self, host: int) -> npt.NDArray[np.int64]:
        return np.frombuffer(self._views[0][host * self._words : (host + 1) * self._words], np.int64)

    def of(self, host: int) -> Arena:
        """The arena in which the arrays of `host` lie."""
        return Arena(self._table(host), self._views[1][host * self._nbytes : (host + 1) * self._nbytes])

    def close(self) -> None:
        """Give the memory back; all arrays in it must be gone."""
        for view in self._views:
            view.release()
        self._control.close()
        self._data.close()


class Arena:
    """The arena of one host, as it lends its arrays and as others read them.

    Parameters
    ----------
    words : ndarray of int64
        The table of blocks.
    data : memoryview
        Its bytes.
    """

    def __init__(self, words: npt.NDArray[np.int64], data: memoryview) -> None:
        self._words, self._data, self._readable = words, data, data.toreadonly()
        # The sender's side: where the copies of arrays from elsewhere lie, by the arrays' identity.
        self._copies: dict[int, tuple[weakref.ref[Any], int]] = {}
        # The receiver's side: the one owner of each view's buffer.  (`weakref.finalize` is ten times as dear.)
        self._lent: dict[int, weakref.ref[Any]] = {}

    def adopt(self) -> None:
        """From now on numpy allocates large arrays of this thread here; for the rest of the process's life."""
        allocator.install(self._words.ctypes.data)

    def place(self, to: int, array: npt.NDArray[Any]) -> int | None:
        """Sender: where host `to` finds `array`; None if it should stream."""
        if array.nbytes < LARGE:
            return None
        # `array.ctypes` and `__array_interface__` say it too, in four times the time.
        address = ctypes.c_int64.from_address(id(array) + _ELEMENTS).value
        distance = allocator.lend(self._words, address, to)
        if distance < 0:
            distance = allocator.lend(self._words, self._copy(array), to)
        return distance if distance >= 0 else None

    def _copy(self, array: npt.NDArray[Any]) -> int:
        """The address of the copy of an array from elsewhere, which is read-only, so that the copy stays true; 0 if there is no room."""
        key = id(array)
        if key in self._copies:
            return self._copies[key][1]
        address: int = allocator.take(self._words, array.nbytes)
        if address:
            at = address - int(self._words[allocator.BASE])
            self._data[at : at + array.nbytes] = array.reshape(-1).view(np.uint8).data
            self._copies[key] = weakref.ref(array, partial(self._gone, key)), address
        return address

    def _gone(self, key: int, _: Any) -> None:
        allocator.release(self._words, self._copies.pop(key)[1])

    def forget(self, to: int) -> None:
        """Sender: host `to` has died and reads nothing any more."""
        allocator.forget(self._words, to)

    def fetch(self, me: int, distance: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Receiver: the array that host `me` was lent; it is given back when the array and its views go."""
        count = math.prod(shape)
        nbytes = count * dtype.itemsize
        word = allocator.borrow(self._words, distance, nbytes, me) if max(distance, nbytes) < len(self._data) else -1
        if word < 0:
            raise WireError(f"an array of {nbytes} bytes at {distance} of an arena, where none was lent")
        owner = np.frombuffer(self._readable, dtype, count, distance)  # where the bases of all views of it end
        ref = weakref.ref(owner, partial(self._give_back, word))
        self._lent[id(ref)] = ref
        return owner if len(shape) == 1 else owner.reshape(shape)

    def _give_back(self, word: int, ref: Any) -> None:
        del self._lent[id(ref)]
        allocator.give_back(self._words, word)
