"""What carries messages between hosts, as their drivers see it: rings in shared memory, sockets, or MPI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from refsgd.runtimes.wire import Frame


class Transport(Protocol):
    """What a driver needs of rings, sockets or MPI; nothing of it ever waits except `soon`, a moment, and `wait`."""

    def post(self, host: str, body: Any, src: int, to: int, number: int, stamp: float) -> None:
        """Hand over a message; what does not fit now is kept and sent later.

        Parameters
        ----------
        host : str
            Where the receiver lives.
        body : NamedTuple
            The message; its arrays are read-only from now on.
        src, to : int
            Places of sender and receiver in the deployment's order.
        number : int
            Of the message in the channel (src, to), from 0.
        stamp : float
            Nominal start of its transmission [s since the common start].

        Raises
        ------
        TypeError
            If a field of the message cannot travel, or the message is too large (`refsgd.runtimes.wire.encode`).
        """
        ...

    def take(self) -> list[Frame]:
        """The messages that are here, each channel's in order."""
        ...

    def soon(self, timeout: float) -> bool:
        """Whether something comes in the next moment; a cheap look before all that a sleep costs.

        Parameters
        ----------
        timeout : float
            Seconds, after which it is not worth waiting for.

        Returns
        -------
        bool
            Where messages were long in coming the last time it may be False without a look.
        """
        ...

    def wait(self, timeout: float, others: Sequence[int]) -> list[int]:
        """Sleep until something comes, or there is room for what did not fit, or the time is up.

        Parameters
        ----------
        timeout : float
            Seconds.
        others : sequence of int
            Descriptors that also end the sleep when they become readable.

        Returns
        -------
        list of int
            Those of `others` that are readable.
        """
        ...

    def knock(self) -> None:
        """Wake the waiter, from another thread."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes that are kept because they did not fit."""
        ...

    def forget(self, host: str) -> None:
        """A host has died: drop what is kept for it.

        Parameters
        ----------
        host : str
        """
        ...

    @property
    def lost(self) -> Iterable[str]:
        """Hosts whose connection has ended."""
        ...

    def sever(self, host: str = "") -> bool:
        """Cut all connections at once, or that to one host, as a broken network does.

        Parameters
        ----------
        host : str
            "": all.

        Returns
        -------
        bool
            Whether there was a connection to cut.
        """
        ...

    def close(self) -> None:
        """The run is over."""
        ...
