"""Rings in two levels: leaders of groups, or the rows and columns of a torus.

References
----------
Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash", arXiv:1811.05233, 2018,
section 2.2: the 2D torus.  Jia et al., "Highly scalable deep learning training system with mixed-precision",
arXiv:1807.11205, 2018, section 4.2.2: the hierarchy of masters.
"""

from __future__ import annotations

from collections.abc import Sequence

from refsgd.collectives.parts import Total, factors
from refsgd.collectives.ring import all_gather, reduce_scatter, ring_allreduce
from refsgd.collectives.root import collect, hand_in
from refsgd.effects import Array, Program, Send


def hierarchical_allreduce(me: int, peers: Sequence[str], x: Array,
                           group: int | None = None) -> Program[Array]:
    """The sum over ranks: a star inside each group, a ring of the groups' leaders, the star back.

    `group` consecutive ranks are the devices of one host, the last one perhaps with fewer; by default X of
    `factors`.  Between m hosts it takes 2 (m-1) steps where the flat ring has 2 (n-1).

    Parameters
    ----------
    group : int, optional
        Ranks of a group, at least 1.
    """
    g = factors(len(peers))[0] if group is None else group
    if g < 1:
        raise ValueError(f"group {g}; expected at least 1")
    number, seat = divmod(me, g)
    mates = peers[number * g : (number + 1) * g]
    if seat:
        return (yield from hand_in(mates[0], x))
    total = yield from collect(seat, mates, x)
    total = yield from ring_allreduce(number, peers[::g], total)
    for mate in mates[1:]:
        yield Send(mate, Total(total))
    return total


def torus_allreduce(me: int, peers: Sequence[str], x: Array, columns: int | None = None) -> Program[Array]:
    """The sum over ranks on X x Y: reduce-scatter along rows, ring along columns, all-gather.

    As many bytes as the flat ring in 2 (X-1) + 2 (Y-1) steps instead of 2 (XY - 1).  `columns` divides n.

    Parameters
    ----------
    columns : int, optional
        X, a divisor of n; as square as possible by default.
    """
    n = len(peers)
    width = factors(n)[0] if columns is None else columns
    if width < 1 or n % width:
        raise ValueError(f"torus of {n} ranks in {width} columns; expected a divisor of {n}")
    y, x_ = divmod(me, width)
    row, column = peers[y * width : (y + 1) * width], peers[x_::width]
    chunk = yield from reduce_scatter(x_, row, x)
    chunk = yield from ring_allreduce(y, column, chunk)
    return (yield from all_gather(x_, row, chunk))
