"""Partners at distances that are powers of two: recursive doubling, halving and doubling, and a barrier.

Recursive doubling exchanges whole vectors log2 n times: fewest steps, for short vectors.  Halving and
doubling exchanges halves, quarters, ... and then the finished pieces back: as few bytes as the ring in 2 log2
n steps. Both need n = q = 2^k; otherwise the first 2 (n-q) ranks form pairs, and one of each pair gives its
vector to the other and gets the sum at the end (`folded`).

References
----------
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1),
2005, sections 4.4 and 4.5.  Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", IJPP 17(1), 1988: dissemination.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from refsgd.collectives.parts import Part, Total, plus
from refsgd.effects import Array, Compute, Program, Recv, Send


def folded(me: int, peers: Sequence[str], x: Array,
           core: Callable[[int, Sequence[str], Array], Program[Array]]) -> Program[Array]:
    """Run `core` on q = 2^floor(log2 n) ranks: among the first 2 (n-q), even ranks fold into odd ones."""
    n = len(peers)
    extra = n - (1 << n.bit_length() - 1)
    pair = me < 2 * extra
    if pair and me % 2 == 0:
        yield Send(peers[me + 1], Part(x))
        _, (x,) = yield Recv(Total, src=peers[me + 1])
        return x
    if pair:
        _, (other,) = yield Recv(Part, src=peers[me - 1])
        x = yield Compute(plus, other, x, kind="reduction")
    inner = [*peers[1 : 2 * extra : 2], *peers[2 * extra :]]
    total = yield from core(me // 2 if pair else me - extra, inner, x)
    if pair:
        yield Send(peers[me - 1], Total(total))
    return total


def double(me: int, peers: Sequence[str], x: Array) -> Program[Array]:
    """Exchange whole sums with partners 1, 2, 4, ... apart; n = 2^k.

    Partners compute a + b and b + a, which have the same bits in floating-point arithmetic.
    """
    distance = 1
    while distance < len(peers):
        partner = peers[me ^ distance]
        yield Send(partner, Part(x))
        _, (other,) = yield Recv(Part, src=partner)
        x = yield Compute(plus, x, other, kind="reduction")
        distance *= 2
    return x


def halve_and_double(me: int, peers: Sequence[str], x: Array) -> Program[Array]:
    """Exchange halves with the partner n/2 away, sum mine on my side, swap finished halves; n = 2^k."""
    if len(peers) == 1:
        return x
    half, middle = len(peers) // 2, x.size // 2
    lower = me < half
    mine, theirs = (x[:middle], x[middle:]) if lower else (x[middle:], x[:middle])
    partner = peers[me ^ half]
    yield Send(partner, Part(theirs))
    _, (other,) = yield Recv(Part, src=partner)
    mine = yield Compute(plus, mine, other, kind="reduction")
    mine = yield from halve_and_double(me % half, peers[:half] if lower else peers[half:], mine)
    yield Send(partner, Total(mine))
    _, (theirs,) = yield Recv(Total, src=partner)
    return np.concatenate([mine, theirs] if lower else [theirs, mine])


def recursive_doubling_allreduce(me: int, peers: Sequence[str], x: Array) -> Program[Array]:
    """The sum over ranks in log2 q exchanges of the whole vector (and two more messages if n > q)."""
    return (yield from folded(me, peers, x, double))


def halving_doubling_allreduce(me: int, peers: Sequence[str], x: Array) -> Program[Array]:
    """The sum over ranks in 2 log2 q exchanges of ever smaller pieces (and two more messages if n > q)."""
    return (yield from folded(me, peers, x, halve_and_double))


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
