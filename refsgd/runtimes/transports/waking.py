"""Shared memory without a name, and what a process sleeps on."""

from __future__ import annotations

import mmap
import os
import select
import sys
import time
from collections.abc import Callable, Sequence

SPIN, LOOKS = 2e-3, 200  # seconds, and looks: 0.3 ms where nobody else wants the core
# named from Python 3.13 on
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def anonymous(nbytes: int) -> mmap.mmap:
    """Zeroed memory that children share; untouched pages cost nothing, not even a promise."""
    return mmap.mmap(-1, max(nbytes, mmap.PAGESIZE), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NORESERVE)


class WakeUp:
    """What a process sleeps on: a wake-up that comes before the sleep ends it at once."""

    def __init__(self) -> None:
        self._read = self._write = -1
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._read

    def wake(self) -> None:
        """Wake the owner, now or at its next sleep."""
        try:
            os.write(self._write, b"\1\0\0\0\0\0\0\0")
        except BlockingIOError:
            pass  # it cannot count any further

    def drain(self) -> None:
        """Forget earlier wake-ups; look for work afterwards, not before."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in {self._read, self._write} - {-1}:
            os.close(fd)
        self._read = self._write = -1

    def __del__(self) -> None:
        self.close()


def wait_for(descriptors: Sequence[int], timeout: float) -> list[int]:
    """The readable ones of `descriptors`, after at most `timeout` seconds.

    `select` because it counts in microseconds: `poll` and `epoll` round up to a millisecond.
    """
    if max(descriptors) < 1024:
        return select.select(descriptors, [], [], timeout)[0]
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout * 1e3)]


class Waiter:
    """Sleeps until something comes, or looks a little longer before it does.

    If messages came soon the last time, it first looks again for a moment and yields the core between looks:
    an answer that is on its way then costs no wake-up.  Looks are counted, and not only time: where several
    processes share a core, time passes while others work.  A process that usually waits long, as
    in a paced run, sleeps immediately.

    Parameters
    ----------
    arrived : callable
        Whether a message, or a part of one, is there.
    """

    def __init__(self, arrived: Callable[[], bool]) -> None:
        self._arrived = arrived
        self._brisk = False  # whether the last sleep was short, and ended with a message

    def soon(self, timeout: float) -> bool:
        """Whether a message comes within the next looks; none is taken where the last one was long in
        coming."""
        if not self._brisk:
            return False
        looks, end = LOOKS, time.perf_counter() + min(SPIN, timeout)
        while looks and time.perf_counter() < end:
            if self._arrived():
                return True
            os.sched_yield()
            looks -= 1
        return False

    def wait(self, descriptors: Sequence[int], timeout: float) -> list[int]:
        """Sleep; the readable ones of `descriptors`, after at most `timeout` seconds."""
        began = time.perf_counter()
        ready = wait_for(descriptors, timeout)
        self._brisk = time.perf_counter() - began < SPIN and self._arrived()
        return ready
