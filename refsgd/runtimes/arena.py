"""Large arrays between processes with one copy: slots of shared memory, free again when the receiver drops them.

The sender copies an array into a free slot of its own and sends the slot's number through the ring; the
receiver gets a read-only view, and the slot is free when the last reference to it goes.  An array sent to
several hosts is copied once.  Where no slot is free the bytes stream through the ring, so nothing ever waits
and a program may keep what it got.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from refsgd.runtimes.board import anonymous
from refsgd.runtimes.wire import WireError

LARGE = 1 << 16  # from here on a slot beats the ring
SLOTS = 8  # of a host: its answers under way, and what others keep of it
SLOT_BYTES = 1 << 27  # pages that nobody writes to cost nothing
MOST_BYTES = 1 << 36  # of address space for all slots of a run


class Slots:
    """The memory of all hosts' slots, made before the fork.

    One word per (slot, receiver) says that this receiver may still read: set by the sender before it sends,
    cleared by the receiver.

    Parameters
    ----------
    hosts : sequence of str
    slots : int
        Slots of each host.
    nbytes : int
        Bytes of a slot; larger arrays stream.
    """

    def __init__(self, hosts: Sequence[str], slots: int = SLOTS, nbytes: int = SLOT_BYTES) -> None:
        self._hosts, self._slots = len(hosts), slots
        self._nbytes = min(nbytes, MOST_BYTES // (self._hosts * slots)) // 4096 * 4096
        rows = self._hosts * slots
        self._control, self._data = anonymous(8 * rows * self._hosts), anonymous(rows * self._nbytes)
        self._views = memoryview(self._control), memoryview(self._data)

    def of(self, host: int) -> Arena:
        """The slots that `host` fills."""
        control, data = self._views
        row, n, size = 8 * self._hosts, self._slots, self._nbytes
        return Arena([control[at : at + row].cast("Q") for at in range(host * n * row, (host + 1) * n * row, row)],
                     [data[at : at + size] for at in range(host * n * size, (host + 1) * n * size, size)])

    def close(self) -> None:
        """Give the memory back; all arrays in it must be gone."""
        for view in self._views:
            view.release()
        self._control.close()
        self._data.close()


class Arena:
    """The slots of one host, as it fills them and as others read them.

    Parameters
    ----------
    words : list of memoryview
        For each slot a word per receiver.
    slots : list of memoryview
        The bytes of each slot.
    """

    def __init__(self, words: list[memoryview], slots: list[memoryview]) -> None:
        self._words, self._slots, self._nbytes = words, slots, len(slots[0])
        # What each slot holds, by identity: arrays that were sent are read-only, so the slot stays true.
        self._held: list[Callable[[], Any]] = [_nothing] * len(slots)
        # The receiver's side: the one owner of each slot's buffer.  (`weakref.finalize` is ten times as dear.)
        self._lent: list[weakref.ref[Any] | None] = [None] * len(slots)

    def place(self, to: int, array: npt.NDArray[Any]) -> int | None:
        """Sender: the slot that now holds `array` for host `to`; None if it should stream."""
        if not LARGE <= array.nbytes <= self._nbytes:
            return None
        found, lonely = None, False
        for slot, held in enumerate(self._held):
            content = held()
            if content is array and not self._words[slot][to]:
                self._words[slot][to] = 1
                return slot
            # Rather a slot whose array nobody can send again.
            if (found is None or (content is None and not lonely)) and not any(self._words[slot]):
                found, lonely = slot, content is None
        if found is None:
            return None
        self._slots[found][: array.nbytes] = array.reshape(-1).view(np.uint8).data
        self._held[found] = weakref.ref(array)
        self._words[found][to] = 1
        return found

    def forget(self, to: int) -> None:
        """Sender: host `to` has died and reads no slot any more."""
        for words in self._words:
            words[to] = 0

    def fetch(self, me: int, slot: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Receiver: the array in a slot, for host `me`; the slot is given back when the array and its views go."""
        nbytes = math.prod(shape) * dtype.itemsize
        if slot >= len(self._slots) or nbytes > self._nbytes or not self._words[slot][me]:
            raise WireError(f"an array of {nbytes} bytes in slot {slot}, which does not hold one")
        # A buffer of its own, so that every view's base ends here and not at the whole mapping.
        owner = np.frombuffer(self._slots[slot][:nbytes], dtype)
        owner.flags.writeable = False
        self._lent[slot] = weakref.ref(owner, partial(_give_back, self._words[slot], me))
        return owner.reshape(shape)


def _nothing() -> None:
    """A slot that has held no array."""


def _give_back(words: memoryview, me: int, _: Any) -> None:
    words[me] = 0
