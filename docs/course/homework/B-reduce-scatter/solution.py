"""Homework B: reduce-scatter as a sub-program, a solution.

n peers hold a vector each, of the same length d.  Afterwards peer i has part i of their sum, where the parts
are those of `numpy.array_split(x, n)`.  The sum's bits must not depend on the order of arrival, and no peer
may send more than d - d/n numbers (rounded up).
"""

from typing import NamedTuple

import numpy as np

from refsgd.effects import Recv, Send


class Part(NamedTuple):
    values: np.ndarray


def reduce_scatter(rank, peers, x):
    """Peer `rank` of the list of names `peers`; returns part `rank` of the sum."""
    parts = np.array_split(x, len(peers))
    for peer, part in zip(peers, parts):
        if peer != peers[rank]:
            yield Send(peer, Part(part))
    total = np.zeros_like(parts[rank])
    for i, peer in enumerate(peers):  # in the order of ranks, never of arrival
        values = parts[rank] if i == rank else (yield Recv(Part, src=peer))[1].values
        total = total + values
    return total
