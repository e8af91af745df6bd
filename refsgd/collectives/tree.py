"""The binomial tree: reduce to a root, broadcast from it, and both one after the other.

Counted from the root, rank i receives from i + 1, i + 2, i + 4, ... and sends to i minus its lowest one bit.

References
----------
Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19(1),
2005, sections 4.1 and 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from refsgd.collectives.parts import Part, Total, plus
from refsgd.effects import Array, Compute, Program, Recv, Send


class Place(NamedTuple):
    """The place of a rank in a tree; the root has no parent."""

    parent: int | None
    children: list[int]


def children(i: int, n: int) -> list[int]:
    """The ranks that send to rank i of n, nearest and smallest subtree first; the root is 0.

    >>> children(0, 6), children(4, 6), children(5, 6)
    ([1, 2, 4], [5], [])
    """
    lowest = i & -i or n
    return [i + (1 << k) for k in range(n.bit_length()) if 1 << k < lowest and i + (1 << k) < n]


def place(me: int, n: int, root: int) -> Place:
    """The place of a rank in the tree with this root."""
    i = (me - root) % n
    return Place(((i & i - 1) + root) % n if i else None, [(child + root) % n for child in children(i, n)])


def climb(place: Place, peers: Sequence[str], x: Array) -> Program[Array]:
    """Add the children's sums and pass the result to the parent; the sum over this rank's subtree."""
    for child in place.children:
        _, (other,) = yield Recv(Part, src=peers[child])
        x = yield Compute(plus, x, other, kind="reduction")
    if place.parent is not None:
        yield Send(peers[place.parent], Part(x))
    return x


def descend(place: Place, peers: Sequence[str], x: Array) -> Program[Array]:
    """Take the sum from the parent (the root has it as x) and pass it to the children."""
    if place.parent is not None:
        _, (x,) = yield Recv(Total, src=peers[place.parent])
    for child in place.children:
        yield Send(peers[child], Total(x))
    return x


def reduce(me: int, peers: Sequence[str], x: Array, root: int = 0) -> Program[Array]:
    """The sum over ranks at `root`; the others return the sum of their subtree.

    At most ceil(log2 n) (alpha + w + M gamma) seconds, exactly so for n = 2^k.

    Parameters
    ----------
    root : int
        The rank that gets the sum.

    Returns
    -------
    ndarray, (d,)
    """
    return (yield from climb(place(me, len(peers), root), peers, x))


def broadcast(me: int, peers: Sequence[str], x: Array, root: int = 0) -> Program[Array]:
    """The root's vector on every rank, largest subtree first: floor(log2 n) alpha + ceil(log2 n) w seconds.

    Parameters
    ----------
    x : ndarray, (d,)
        The vector, at the root; elsewhere any array.
    root : int
        The rank that has the vector.

    Returns
    -------
    ndarray, (d,)
        The root's vector.
    """
    parent, nearest_first = place(me, len(peers), root)
    return (yield from descend(Place(parent, nearest_first[::-1]), peers, x))


def tree_allreduce(me: int, peers: Sequence[str], x: Array) -> Program[Array]:
    """The sum over ranks: reduce to rank 0, then broadcast."""
    x = yield from reduce(me, peers, x)
    return (yield from broadcast(me, peers, x))
