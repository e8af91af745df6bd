"""Collectives: sub-programs that a group of ranks runs together.

``total = yield from ring_allreduce(me, peers, g)`` is one line of an algorithm.

Every all-reduce has the signature ``(me, peers, x, ...) -> Program[Array]``; what all of them take and return
is described here.

* All ranks get the same bits: each element is finished once and then copied, or partners add a + b and b + a.
* `x` is not modified.  n = 1 sends nothing.  n and d are arbitrary; d may be 0 or not divisible by n.
* The order of additions depends on the collective and on n, never on the network.
* Several collectives in sequence need no barrier between them: every receive names its sender, and a
  collective receives everything that it sends along a channel, in that order.

`ALLREDUCE` maps names to functions.  Times in docstrings are for ranks that start together: alpha is the
latency, beta the seconds per byte of a link, w = M beta for the whole vector of M bytes, gamma the seconds to
reduce a byte.

Parameters
----------
me : int
    This rank, 0 to n - 1.
peers : sequence of str
    Names of all n nodes, by rank; the same on every rank.
x : ndarray, (d,)
    This rank's vector, of any float type; not modified. All ranks have the same d.

Returns
-------
ndarray, (d,)
    The sum, the same bits on every rank.

Examples
--------
>>> import numpy as np
>>> from refsgd.effects import Node
>>> from refsgd.runtimes.simulator import simulate
>>> peers = ["peer0", "peer1", "peer2"]
>>> run = simulate({p: Node(ring_allreduce(i, peers, np.full(2, 10.0**i))) for i, p in enumerate(peers)})
>>> run.values["peer1"], run.trace.messages
(array([111., 111.]), 12)
"""

from __future__ import annotations

from collections.abc import Callable

from refsgd.collectives.double_tree import double_tree_allreduce
from refsgd.collectives.doubling import barrier, halving_doubling_allreduce, recursive_doubling_allreduce
from refsgd.collectives.levels import hierarchical_allreduce, torus_allreduce
from refsgd.collectives.ring import all_gather, reduce_scatter, ring_allreduce, rings_allreduce
from refsgd.collectives.root import pscpu_allreduce, root_allreduce
from refsgd.collectives.tree import broadcast, reduce, tree_allreduce
from refsgd.effects import Array, Program

#: by their name in options of algorithms
ALLREDUCE: dict[str, Callable[..., Program[Array]]] = {
    "ring": ring_allreduce,
    "rings": rings_allreduce,
    "recursive-doubling": recursive_doubling_allreduce,
    "halving-doubling": halving_doubling_allreduce,
    "tree": tree_allreduce,
    "double-tree": double_tree_allreduce,
    "root": root_allreduce,
    "pscpu": pscpu_allreduce,
    "hierarchical": hierarchical_allreduce,
    "torus": torus_allreduce,
}

__all__ = [
    "ALLREDUCE", "all_gather", "barrier", "broadcast", "double_tree_allreduce",
    "halving_doubling_allreduce", "hierarchical_allreduce", "pscpu_allreduce",
    "recursive_doubling_allreduce", "reduce", "reduce_scatter", "ring_allreduce", "rings_allreduce",
    "root_allreduce", "torus_allreduce", "tree_allreduce",
]
