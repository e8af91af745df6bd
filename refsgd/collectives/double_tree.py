"""Two binary trees at once, each on half of the vector, in pipelined pieces.

In a binary tree half of the ranks are leaves, whose links are idle half of the time.  The second tree is the
first one mirrored (n even) or shifted by one rank (n odd): an inner node of one tree is a leaf of the other,
except for one rank if n is odd.

References
----------
Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
Computing 35(12), 2009, section 3.  NCCL 2.4 uses it, with this numbering of the trees.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refsgd.collectives.parts import chunks
from refsgd.collectives.tree import Place, climb, descend
from refsgd.effects import Array, Program


def parent(i: int, n: int) -> int | None:
    """The parent of i in the first tree, whose root is 0: in-order, so that odd ranks are leaves.

    >>> [parent(i, 8) for i in range(8)]
    [None, 2, 4, 2, 0, 6, 4, 6]
    """
    low = i & -i
    above = (i ^ low) | low << 1
    return None if not i else above if above < n else i ^ low


def places(me: int, n: int) -> list[Place]:
    """The places of rank `me` in both trees.

    >>> places(2, 4)
    [Place(parent=0, children=[1, 3]), Place(parent=1, children=[])]
    """
    trees = []
    mirrored = [n - 1 - i if n % 2 == 0 else (i + 1) % n for i in range(n)]
    for rank in (list(range(n)), mirrored):  # rank[i] has the place that i has in the first tree
        i = rank.index(me)
        above = parent(i, n)
        trees.append(Place(None if above is None else rank[above],
                           [rank[j] for j in range(n) if parent(j, n) == i]))
    return trees


def double_tree_allreduce(me: int, peers: Sequence[str], x: Array, pieces: int = 8) -> Program[Array]:
    """The sum over ranks: each half of the vector goes up and down its own tree, in `pieces` pieces.

    About 2 ceil(log2 n) (alpha + m beta) + 2 w seconds for pieces of m bytes, if gamma = 0.

    Parameters
    ----------
    pieces : int
        Number of pieces of each half, at least 1.
    """
    halves = [[x[half][piece] for piece in chunks(x[half].size, pieces)] for half in chunks(x.size, 2)]
    trees = zip(places(me, len(peers)), halves, strict=True)
    # First as a leaf, which never waits; last as a root, which waits for all.  Down: the other way
    # round.
    order = sorted(trees, key=lambda tree: len(tree[0].children) + (tree[0].parent is None))
    for place, part in order:
        for k in range(pieces):
            part[k] = yield from climb(place, peers, part[k])
    for place, part in reversed(order):
        for k in range(pieces):
            part[k] = yield from descend(place, peers, part[k])
    return np.concatenate([piece for part in halves for piece in part])
