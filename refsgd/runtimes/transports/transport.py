"""What a driver needs of a transport: rings in shared memory, sockets, or MPI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from refsgd.runtimes.transports.wire import Frame


class Transport(Protocol):
    """What a driver needs of rings, sockets or MPI; nothing of it ever waits except `soon`, a moment, and
    `wait`."""

    def post(self, process: str, body: Any, src: int, to: int, number: int, stamp: float) -> None:
        """Hand over a message; what does not fit now is kept and sent later."""
        ...

    def take(self) -> list[Frame]:
        """The messages that are here, each channel's in order."""
        ...

    def soon(self, timeout: float) -> bool:
        """Whether something comes in the next moment; a cheap look before all that a sleep costs."""
        ...

    def wait(self, timeout: float, others: Sequence[int]) -> list[int]:
        """Sleep until something comes, or there is room for what did not fit, or the time is up."""
        ...

    def knock(self) -> None:
        """Wake the waiter, from another thread."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes that are kept because they did not fit."""
        ...

    def forget(self, process: str) -> None:
        """A process has died: drop what is kept for it."""
        ...

    @property
    def lost(self) -> Iterable[str]:
        """Hosts whose connection has ended."""
        ...

    def sever(self, process: str = "") -> bool:
        """Cut all connections at once, or that to one process, as a broken network does."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...
