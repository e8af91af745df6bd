"""What all transports have: memory that processes share, wake-ups on which they sleep, and the interface to
the driver."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from refsgd.runtimes.transports.wire import Frame

SPIN, LOOKS = 2e-3, 200  # limits of polling in seconds and polls: 0.3 ms if no other process wants the core
# named since Python 3.13
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)


def anonymous(nbytes: int) -> mmap.mmap:
    """Zeroed memory shared with children; untouched pages cost nothing and are not even reserved."""
    return mmap.mmap(-1, max(nbytes, mmap.PAGESIZE), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NORESERVE)


class WakeUp:
    """A descriptor on which a process sleeps; a wake-up that comes before the sleep ends it immediately."""

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
        with contextlib.suppress(BlockingIOError):  # the counter is full, so the owner will wake
            os.write(self._write, b"\1\0\0\0\0\0\0\0")

    def drain(self) -> None:
        """Forget earlier wake-ups; check for work afterwards, not before."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)

    def close(self) -> None:
        """Close the descriptors."""
        for fd in {self._read, self._write} - {-1}:
            os.close(fd)
        self._read = self._write = -1

    def __del__(self) -> None:
        self.close()


def wait_for(descriptors: Sequence[int], timeout: float) -> list[int]:
    """The readable ones of `descriptors`, after at most `timeout` seconds, by `select`, because `poll` and
    `epoll` round up to a millisecond."""
    if max(descriptors) < 1024:
        return select.select(descriptors, [], [], timeout)[0]
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout * 1e3)]


class Waiter:
    """Sleeps until a message arrives, and if messages came soon the last time polls for a moment before.

    It limits polls and not only time, because on a shared core time passes while others work.  `arrived` says
    whether a message, or a part of one, is there.
    """

    def __init__(self, arrived: Callable[[], bool]) -> None:
        self._arrived = arrived
        self._brisk = False  # whether the last sleep was short, and ended with a message

    def soon(self, timeout: float) -> bool:
        """Whether a message arrives during the next polls; without polling if the last wait was long."""
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


class Transport:
    """The methods of rings, sockets or MPI for a driver; only `wait` and, for a moment, `soon` wait."""

    lost: Iterable[str] = ()  #: hosts whose connection has ended
    _frames: list[Frame]
    _wake_up: WakeUp
    _waiter: Waiter

    def post(self, process: str, body: Any, src: int, to: int, number: int, stamp: float) -> None:
        """Send a message; bytes that do not fit are kept and sent later."""
        raise NotImplementedError

    def take(self) -> list[Frame]:
        """The messages that have arrived, in order for each channel."""
        raise NotImplementedError

    def _completed(self) -> list[Frame]:
        """The messages completed since the last call; decoders keep appending to the same list."""
        frames = self._frames[:]
        self._frames.clear()
        return frames

    def soon(self, timeout: float) -> bool:
        """Whether a message arrives in the next moment; a cheap poll before an expensive sleep."""
        return self._waiter.soon(timeout)

    def wait(self, timeout: float, others: Sequence[int]) -> list[int]:
        """Sleep until a message arrives, there is room for kept bytes, or the time is up; the readable ones
        of `others`."""
        raise NotImplementedError

    def knock(self) -> None:
        """Wake the waiter, from another thread."""
        self._wake_up.wake()

    @property
    def unsent(self) -> int:
        """Number of kept bytes, or over MPI and torch messages, that did not fit."""
        raise NotImplementedError

    def forget(self, process: str) -> None:
        """Drop the bytes kept for a process that has died."""

    def sever(self, process: str = "") -> bool:
        """Cut all connections, or the one to a process, like a broken network; False if there are none."""
        return False

    def close(self) -> None:
        """Close the transport at the end of the run."""
