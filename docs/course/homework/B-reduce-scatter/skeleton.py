"""Homework B: reduce-scatter as a sub-program.

n peers hold a vector each, of the same length d.  Afterwards peer i has part i of their sum, where the parts
are those of `numpy.array_split(x, n)`.  The sum's bits must not depend on the order of arrival, and no peer
may send more than d - d/n numbers (rounded up).
"""

from typing import NamedTuple

import numpy as np


class Part(NamedTuple):
    values: np.ndarray


def reduce_scatter(rank, peers, x):
    """Peer `rank` of the list of names `peers`; returns part `rank` of the sum."""
    # TODO: yield Send(peer, Part(...)), and _, (values,) = yield Recv(Part, src=peer)
    yield from ()
    return x
