"""The ring: every rank sends only to its right neighbour, and sends the fewest possible bytes.

The vector is divided into n chunks.  Reduce-scatter: in n-1 steps each chunk goes once round the ring and
collects every rank's part; rank i finishes chunk i.  All-gather: in n-1 more steps the finished chunks go
round.

References
----------
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009,
section 3.  Sergeev and Del Balso, "Horovod", arXiv:1802.05799, 2018: its use for SGD.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from refsgd.collectives.parts import Part, Total, chunks, plus
from refsgd.effects import Array, Compute, Program, Recv, Send


def reduce_scatter(me: int, peers: Sequence[str], x: Array, cut: Sequence[slice] | None = None
                   ) -> Program[Array]:
    """Chunk number `me` of the sum over ranks, shape (d/n,) to within one; n-1 messages to the right.

    Parameters
    ----------
    cut : sequence of slice, optional
        The chunk of each rank, the same on every rank, if they are not equal; empty ones are not sent.

    Returns
    -------
    ndarray, (d/n,)
        This rank's chunk of the sum.
    """
    n = len(peers)
    part = [x[chunk] for chunk in cut or chunks(x.size, n)]
    for step in range(n - 1):
        theirs = (me - 1 - step) % n
        mine = (me - 2 - step) % n
        if travels(cut, theirs):
            yield Send(peers[(me + 1) % n], Part(part[theirs]))
        if travels(cut, mine):
            _, (other,) = yield Recv(Part, src=peers[(me - 1) % n])
            part[mine] = yield Compute(plus, part[mine], other, kind="reduction")
            del other
    return part[me]


def travels(cut: Sequence[slice] | None, rank: int) -> bool:
    """Whether a rank's chunk is sent."""
    return cut is None or cut[rank].stop > cut[rank].start


def all_gather(me: int, peers: Sequence[str], chunk: Array, cut: Sequence[slice] | None = None
               ) -> Program[Array]:
    """Every rank's chunk, joined in rank order (lengths may differ); n-1 messages to the right.

    Parameters
    ----------
    chunk : ndarray
        The contribution of this rank.
    cut : sequence of slice, optional
        The place of each rank's chunk, the same on every rank; empty chunks are not sent.

    Returns
    -------
    ndarray, (d,)
        All chunks, joined.
    """
    n = len(peers)
    total = [chunk] * n
    for step in range(n - 1):
        mine, theirs = (me - step) % n, (me - 1 - step) % n
        if travels(cut, mine):
            yield Send(peers[(me + 1) % n], Total(total[mine]))
        if travels(cut, theirs):
            _, (total[theirs],) = yield Recv(Total, src=peers[(me - 1) % n])
        else:
            total[theirs] = chunk[:0]
    return np.concatenate(total)


def ring_allreduce(me: int, peers: Sequence[str], x: Array) -> Program[Array]:
    """The sum over ranks in 2 (n-1) steps of 1/n of the vector each.

    With m the bytes of the largest chunk: 2 (n-1) (alpha + m beta) + (n-1) m gamma seconds.
    """
    chunk = yield from reduce_scatter(me, peers, x)
    return (yield from all_gather(me, peers, chunk))


def rings_allreduce(me: int, peers: Sequence[str], x: Array, count: int = 2) -> Program[Array]:
    """The sum over ranks by `count` rings at once, each on its share of the vector.

    While a piece of one ring is in transit, those of the others keep the link busy: the latency is hidden.
    Every link carries the rings' pieces in one order, so first-in first-out distinguishes them.

    Parameters
    ----------
    count : int
        Number of rings, at least 1.
    """
    n = len(peers)
    if n == 1:
        return x
    left, right = peers[(me - 1) % n], peers[(me + 1) % n]
    rings = [[x[share][chunk] for chunk in chunks(x[share].size, n)] for share in chunks(x.size, count)]
    for part in rings:
        yield Send(right, Part(part[(me - 1) % n]))
    for step in range(n - 1):
        mine = (me - 2 - step) % n
        for part in rings:
            _, (other,) = yield Recv(Part, src=left)
            part[mine] = yield Compute(plus, part[mine], other, kind="reduction")
            yield Send(right, Total(part[mine]) if mine == me else Part(part[mine]))
    for step in range(n - 1):
        mine = (me - 1 - step) % n
        for part in rings:
            _, (part[mine],) = yield Recv(Total, src=left)
            if step < n - 2:
                yield Send(right, Total(part[mine]))
    return np.concatenate([chunk for part in rings for chunk in part])
