"""The interface between driver and transport: rings in shared memory, sockets, or MPI and torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from refsgd.runtimes.transports.waking import Waiter, WakeUp
from refsgd.runtimes.transports.wire import Frame


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
