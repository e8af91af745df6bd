"""One root adds all vectors, or every rank is the root of some slices (PSCPU).

A single root receives and sends n-1 vectors: its link is the bottleneck.  TensorFlow's benchmarks distribute
the roots ("pscpu": the parameters' slices are reduced on the workers' CPUs in turn): every link is then as
busy as in a ring, in two steps instead of 2 (n-1).

References
----------
tf_cnn_benchmarks, ``allreduce.py``: algorithm "pscpu", shuffle with round-robin roots.  Jiang et al., "A
unified architecture for accelerating distributed DNN training", OSDI 2020, section 3: the bound that servers
meet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refsgd.collectives.parts import Part, Total, add, chunks
from refsgd.effects import Array, Compute, Program, Recv, Send


def collect(me: int, peers: Sequence[str], x: Array) -> Program[Array]:
    """The root's part: after the last arrival, add all vectors in rank order, not in the order of arrival."""
    part = [x] * len(peers)
    for i, peer in enumerate(peers):
        if i != me:
            _, (part[i],) = yield Recv(Part, src=peer)
    if len(part) == 1:
        return x
    total: Array = yield Compute(add, *part, kind="reduction")
    return total


def hand_in(root: str, x: Array) -> Program[Array]:
    """The others' part: send my vector to the root and wait for the sum."""
    yield Send(root, Part(x))
    _, (x,) = yield Recv(Total, src=root)
    return x


def root_allreduce(me: int, peers: Sequence[str], x: Array) -> Program[Array]:
    """The sum over ranks by rank 0: 2 alpha + 2 (n-1) w + (n-1) M gamma seconds."""
    if me:
        return (yield from hand_in(peers[0], x))
    total = yield from collect(me, peers, x)
    for peer in peers[1:]:
        yield Send(peer, Total(total))
    return total


def pscpu_allreduce(me: int, peers: Sequence[str], x: Array, slices: int | None = None) -> Program[Array]:
    """The sum over ranks, slice k at root k mod n; one slice per rank by default.

    Even slices, one per rank: 2 alpha + 2 (n-1)/n w + (n-1)/n M gamma seconds.

    Parameters
    ----------
    slices : int, optional
        Number of slices, at least 1.
    """
    n = len(peers)
    part = [x[cut] for cut in chunks(x.size, n if slices is None else slices)]
    others = [(me + j) % n for j in range(1, n)]  # no two ranks begin with the same root
    for root in others:
        for slice_ in part[root::n]:
            yield Send(peers[root], Part(slice_))
    for k in range(me, len(part), n):
        part[k] = yield from collect(me, peers, part[k])
    for i in others:
        for slice_ in part[me::n]:
            yield Send(peers[i], Total(slice_))
    for root in others:
        for k in range(root, len(part), n):
            _, (part[k],) = yield Recv(Total, src=peers[root])
    return np.concatenate(part)
