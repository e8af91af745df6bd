"""All-reduce SGD (AR-SGD): every peer holds the whole model, and gradients are summed without a server.

Peer i, step t::

    g_i = gradient at x on its share of b_i images
    g = allreduce(b_i * g_i) / sum_i b_i               # the same bits on every peer
    x = update(x, g)                                   # on every peer, each with its own velocity

It is BSP without a server: the same mean gradient, summed in another order.  In a ring each link carries
about 2 M per iteration for any number of peers, while the link of a single server carries n M each way.

Quick facts
-----------
synchronous: yes | centralised: no | roles: n peers | messages and bytes per iteration: those of the
collective; the ring 2 (n-1) messages and 2 (n-1)/n M out of each peer (M = 4 d) | staleness: 0 | clock gap: 0
while computing | momentum: replicated on every peer | aggregation: mean over images | deterministic: yes,
whatever the schedule

What differs from the papers
----------------------------
Nothing is broadcast at the start: every peer starts with the same x0.  Goyal et al. divide by n since their
shares are equal; here shares may be unequal, even empty, and gradients are weighted by images.  The counts
b_i are known to all peers.  The vector is reduced in one piece after the backward pass, not layer by layer
during it.  With a codec, messages of a linear one are summed by the collective, and others are gathered.

References
----------
Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", arXiv:1706.02677, 2017, section 4:
all-reduce of gradients; section 3: momentum, and the mean over the whole minibatch.
Sergeev and Del Balso, "Horovod", arXiv:1802.05799, 2018: the ring instead of servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from refsgd.algorithms.codecs import Message
from refsgd.algorithms.compression import Codec
from refsgd.algorithms.parts import Objective, rotate
from refsgd.algorithms.replica import Replica, deploy
from refsgd.algorithms.sgd import SGD, weights
from refsgd.collectives import ALLREDUCE, hierarchical_allreduce, torus_allreduce
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, Send

Collective = Literal["ring", "rings", "recursive-doubling", "halving-doubling", "tree", "double-tree", "root",
                     "pscpu", "hierarchical", "torus"]


Reduce = Callable[[int, Sequence[str], Array], Program[Array]]  # a collective: (rank, group, x) -> the sum


class Coded(NamedTuple):
    """peer -> peer: a compressed gradient."""

    message: Message


def gather(rank: int, group: Sequence[str], mine: Message) -> Program[list[Message]]:
    """Every peer's message, in rank order; each sends to its right neighbour first, to share the links."""
    for to in rotate(group, rank + 1)[:-1]:
        yield Send(to, Coded(mine))
    messages = [mine] * len(group)
    for i, src in enumerate(group):
        if i != rank:
            _, (messages[i],) = yield Recv(Coded, src=src)
    return messages


def compressed(rank: int, group: Sequence[str], g: Array, t: int, codec: Codec, state: Any,
               reduce: Reduce) -> Program[tuple[Array, Any]]:
    """The sum over ranks of what their messages say, the same bits on every peer, and the codec's next
    state."""
    if codec.linear:
        return (yield from codec.summed(state, g, codec.key(rank, t), partial(reduce, rank, group)))
    mine, state = yield Compute(codec.encode, state, g, codec.key(rank, t), kind="codec")
    total = np.zeros_like(g)
    for message in (yield from gather(rank, group, mine)):
        total = total + (yield Compute(codec.decode, message, g.size, kind="codec"))
    return total, state


def peer(replica: Replica, group: Sequence[str], problem: Objective, steps: int, reduce: Reduce,
         codec: Codec | None = None) -> Program[Array]:
    """Gradient, all-reduce, update; returns the parameters, (d,), the same on every peer."""
    rank, state = replica.rank, codec.start(replica.x.size) if codec else None
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, replica.x, rank, t)
        share, whole = weights([problem.images(i, t) for i in range(len(group))])
        if codec is None:
            g = (yield from reduce(rank, group, g * np.float32(share[rank]))) / np.float32(whole)
        else:  # weighed first, since what is kept back will be a part of another step
            g = codec.ready(g, replica.x) * np.float32(share[rank]) / np.float32(whole)
            g, state = yield from compressed(rank, group, g, t, codec, state, reduce)
        yield from replica.apply(g, t)
        yield Mark("clock", t=t)
    return replica.x


def seats(workers: int, hosts: Sequence[int] | None, group: int | None) -> tuple[list[int], int | None]:
    """The ranks host by host, and how many of them form a group: by default those of a host.

    >>> seats(4, [0, 1, 0, 1], None), seats(4, None, None)
    (([0, 2, 1, 3], 2), ([0, 1, 2, 3], None))
    """
    if hosts is None:
        return list(range(workers)), group
    devices = list(Counter(sorted(hosts)).values())
    if group is None and len(set(devices)) > 1:
        raise ValueError(f"hosts with {', '.join(map(str, devices))} workers; expected as many on each for "
                         "hierarchical all-reduce, or a group: --group 2")
    return sorted(range(workers), key=hosts.__getitem__), group or devices[0]


def allreduce(problem: Objective, workers: int, steps: int, sgd: SGD, hosts: Sequence[int] | None = None, *,
              collective: Collective = "ring", group: int | None = None,
              columns: int | None = None) -> Deployment:
    """Deploy AR-SGD.

    Parameters
    ----------
    problem, workers, steps, sgd
        As for `refsgd.algorithms.parts.deploy`.
    hosts : sequence of int, optional
        Host of each worker, on a machine that has hosts.
    collective : str
        How gradients are summed: a key of `refsgd.collectives.ALLREDUCE`.
    group : int, optional
        Of `hierarchical`: consecutive workers that hand their gradients to a leader, at least 1; by default
        the workers of a host, on a machine without hosts the larger of two factors of n.
    columns : int, optional
        Of `torus`: ranks in a row, a divisor of n; as square as possible by default.

    See Also
    --------
    refsgd.theory.phenomena.collectives : the time of each collective.
    """
    if collective not in ALLREDUCE:
        raise ValueError(f"collective {collective!r}; expected one of {', '.join(ALLREDUCE)}")
    for option, value, owner in (("group", group, "hierarchical"), ("columns", columns, "torus")):
        if value is not None and collective != owner:
            raise ValueError(f"{option} {value} with collective {collective}; expected collective {owner}")
        if value is not None and (value < 1 or (owner == "torus" and workers % value)):
            raise ValueError(f"{option} {value}; expected "
                             + (f"a divisor of {workers}" if owner == "torus" else "at least 1"))
    reduce: Reduce = ALLREDUCE[collective]
    if collective == "torus":
        reduce = partial(torus_allreduce, columns=columns)
    elif collective == "hierarchical":
        order, size = seats(workers, hosts, group)

        def reduce(me: int, peers: Sequence[str], x: Array) -> Program[Array]:
            return hierarchical_allreduce(order.index(me), [peers[rank] for rank in order], x, size)

    codec = getattr(getattr(problem, "exchange", None), "codec", None)
    return deploy(problem, workers, sgd,
                  lambda replica, peers: peer(replica, peers, problem, steps, reduce, codec))
