"""The interface between driver and transport: rings in shared memory, sockets, or MPI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from refsgd.runtimes.transports.wire import Frame


class Transport(Protocol):
    """The methods of rings, sockets or MPI for a driver; only `wait` and, for a moment, `soon` wait."""

    def post(self, process: str, body: Any, src: int, to: int, number: int, stamp: float) -> None:
        """Send a message; bytes that do not fit are kept and sent later."""
        ...

    def take(self) -> list[Frame]:
        """The messages that have arrived, in order for each channel."""
        ...

    def soon(self, timeout: float) -> bool:
        """Whether a message arrives in the next moment; a cheap poll before an expensive sleep."""
        ...

    def wait(self, timeout: float, others: Sequence[int]) -> list[int]:
        """Sleep until a message arrives, there is room for kept bytes, or the time is up."""
        ...

    def knock(self) -> None:
        """Wake the waiter, from another thread."""
        ...

    @property
    def unsent(self) -> int:
        """Number of kept bytes that did not fit."""
        ...

    def forget(self, process: str) -> None:
        """Drop the bytes kept for a process that has died."""
        ...

    @property
    def lost(self) -> Iterable[str]:
        """Hosts whose connection has ended."""
        ...

    def sever(self, process: str = "") -> bool:
        """Cut all connections, or the one to a process, like a broken network."""
        ...

    def close(self) -> None:
        """Close the transport at the end of the run."""
        ...
