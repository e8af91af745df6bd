"""A barrier: no rank leaves before all ranks have entered.

References
----------
Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", IJPP 17(1), 1988: dissemination.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refsgd.effects import Program, Recv, Send


class Here(NamedTuple):
    """rank -> rank: I have entered, and so have all ranks whose messages have reached me."""

    round: int


def barrier(me: int, peers: Sequence[str]) -> Program[None]:
    """Send to the rank 1, 2, 4, ... further on, receive from the one as far behind: ceil(log2 n) alpha
    seconds.

    Yields
    ------
    Send, Recv
        ceil(log2 n) messages without payload to ranks further on, as many from ranks behind.
    """
    n = len(peers)
    for k in range((n - 1).bit_length()):
        yield Send(peers[(me + (1 << k)) % n], Here(k))
        yield Recv(Here, src=peers[(me - (1 << k)) % n])
