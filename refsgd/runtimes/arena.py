"""Large arrays between processes with one copy: slots of shared memory, free again when the receiver drops them.

The sender copies an array into a free slot of its own and sends the slot's number through the ring; the
receiver gets a read-only view, and the slot is free when the last reference to it goes.  An array sent to
several hosts is copied once.  Where no slot is free the bytes stream through the ring, so nothing ever waits
and a program may keep what it got.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
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
        n = len(hosts)
        nbytes = min(nbytes, MOST_BYTES // (n * slots)) // 4096 * 4096
        self._control, self._data = anonymous(8 * n * slots * n), anonymous(n * slots * nbytes)
        self._words = np.frombuffer(self._control, np.uint64, n * slots * n).reshape(n, slots, n)
        self._bytes = np.frombuffer(self._data, np.uint8, n * slots * nbytes).reshape(n, slots, nbytes)

    def of(self, host: int) -> Arena:
        """The slots that `host` fills."""
        return Arena(self._words[host], self._bytes[host])

    def close(self) -> None:
        """Give the memory back."""
        del self._words, self._bytes
        self._control.close()
        self._data.close()


class Arena:
    """The slots of one host, as it fills them and as others read them."""

    def __init__(self, words: npt.NDArray[np.uint64], data: npt.NDArray[np.uint8]) -> None:
        self._words, self._data = words, data
        self._slots, self._nbytes = data.shape
        # What each slot holds, by identity: arrays that were sent are read-only, so the slot stays true.
        self._held: list[weakref.ref[Any] | None] = [None] * self._slots

    def place(self, to: int, array: npt.NDArray[Any]) -> int | None:
        """Sender: the slot that now holds `array` for host `to`; None if it should stream."""
        if not LARGE <= array.nbytes <= self._nbytes:
            return None
        held = [one() if one is not None else None for one in self._held]
        for slot, content in enumerate(held):
            if content is array and not self._words[slot, to]:
                self._words[slot, to] = 1
                return slot
        busy = np.any(self._words, axis=1)
        free = min((slot for slot in range(self._slots) if not busy[slot]), default=None,
                   key=lambda slot: held[slot] is not None)  # rather one whose array nobody can send again
        if free is None:
            return None
        self._data[free, : array.nbytes] = array.reshape(-1).view(np.uint8)
        self._held[free] = weakref.ref(array)
        self._words[free, to] = 1
        return free

    def forget(self, to: int) -> None:
        """Sender: host `to` has died and reads no slot any more."""
        self._words[:, to] = 0

    def fetch(self, me: int, slot: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Receiver: the array in a slot, for host `me`; the slot is given back when the array and its views go."""
        nbytes = math.prod(shape) * dtype.itemsize
        if slot >= self._slots or nbytes > self._nbytes or not self._words[slot, me]:
            raise WireError(f"an array of {nbytes} bytes in slot {slot}, which does not hold one")
        # A buffer of its own, so that every view's base ends here and not at the whole mapping.
        owner = np.frombuffer(self._data[slot, :nbytes].data, dtype)
        owner.flags.writeable = False
        weakref.finalize(owner, self._words.__setitem__, (slot, me), 0).atexit = False
        return owner.reshape(shape)
