"""All-reduce SGD (AR-SGD): every peer holds the whole model, and gradients are summed without a server.

It is BSP without a server: the same mean gradient, sum_i b_i g_i / sum_i b_i for shares of b_i images, summed
in another order, with the same bits on every peer.

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
b_i are known to all peers.  The vector is reduced in one piece after the backward pass; with ``--overlap
backward`` bucket by bucket during it, and with ``--compress`` in another form; see `mean`.

References
----------
Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour", arXiv:1706.02677, 2017, section 4:
all-reduce of gradients; section 3: momentum, and the mean over the whole minibatch.
Sergeev and Del Balso, "Horovod", arXiv:1802.05799, 2018: the ring instead of servers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

from refsgd.algorithms import exchange
from refsgd.algorithms.allreduce.mean import Collective, Peers, Reduce, by_bucket, communicate, reduction
from refsgd.algorithms.facts import SUMMED, declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.replica import Replica, deploy, peers
from refsgd.algorithms.sgd import SGD
from refsgd.collectives import hierarchical_allreduce, rings_allreduce, torus_allreduce
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, Send

Session = Literal["each", "one"]


class Turn(NamedTuple):
    """peer -> the next one: the controller's session has the gradient of the sender."""

    t: int


def peer(replica: Replica, group: Sequence[str], problem: Objective, steps: int, reduce: Reduce,
         session: Session = "each") -> Program[Array]:
    """Gradient, all-reduce, update; returns the parameters, (d,), the same on every peer."""
    overlaps = exchange.of(problem).overlap != "none"
    whole = Peers(replica, group, problem, reduce, slice(0, replica.x.size))
    for t in range(steps):
        if session == "one" and replica.rank:
            yield Recv(Turn, src=group[replica.rank - 1])
        if overlaps:
            g = yield from by_bucket(group[replica.rank], replica, problem, t)
        else:
            g = yield Compute(problem.gradient, replica.x, replica.rank, t)
            if session == "one" and replica.rank + 1 < len(group):
                yield Send(group[replica.rank + 1], Turn(t))
            g = yield from whole.mean(g, t)
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
        raise ValueError(f"hosts with {', '.join(map(str, devices))} workers; expected the same number on "
                         "each for hierarchical all-reduce, or a group: --group 2")
    return sorted(range(workers), key=hosts.__getitem__), group or devices[0]


@declare(SUMMED, given=("hosts",), collective=True, formula="allreduce")
def allreduce(problem: Objective, workers: int, steps: int, sgd: SGD, hosts: Sequence[int] | None = None, *,
              collective: Collective = "ring", rings: int | None = None, group: int | None = None,
              columns: int | None = None, session: Session = "each") -> Deployment:
    """Deploy AR-SGD; `refsgd.theory.phenomena.collectives` has the time of each collective.

    Parameters
    ----------
    hosts : sequence of int, optional
        Host of each worker, on a machine that has hosts.
    collective : str
        How gradients are summed: a key of `refsgd.collectives.ALLREDUCE`.
    rings : int, optional
        Of `rings`: how many work at once, each on its share of the vector, at least 1; 2 by default.
    group : int, optional
        Of `hierarchical`: consecutive workers that hand their gradients to a leader, at least 1; by default
        the workers of a host, on a machine without hosts the larger of two factors of n.
    columns : int, optional
        Of `torus`: ranks in a row, a divisor of n; as square as possible by default.
    session : {"each", "one"}
        one: a controller's single session computes the peers' gradients one after the other, as in
        TensorFlow's Distributed Allreduce (Graur 2019, section 2.5.2).
    """
    reduce = reduction(collective)
    for option, value, owner in (("rings", rings, "rings"), ("group", group, "hierarchical"),
                                 ("columns", columns, "torus")):
        if value is not None and collective != owner:
            raise ValueError(f"{option} {value} with collective {collective}; expected collective {owner}")
        if value is not None and (not 1 <= value <= 10_000 or (owner == "torus" and workers % value)):
            raise ValueError(f"{option} {value}; expected "
                             + (f"a divisor of {workers}" if owner == "torus" else "1 to 10000"))
    how, names = exchange.of(problem), peers(workers)
    if session not in ("each", "one") or (session == "one" and how.overlap != "none"):
        raise ValueError(f"session {session!r} with overlap {how.overlap}; expected each, or one without")
    if collective == "torus":
        reduce = partial(torus_allreduce, columns=columns)
    elif collective == "rings":
        reduce = partial(rings_allreduce, count=2 if rings is None else rings)
    elif collective == "hierarchical":
        order, size = seats(workers, hosts, group)

        def reduce(me: int, group: Sequence[str], x: Array) -> Program[Array]:
            return hierarchical_allreduce(order.index(me), [group[rank] for rank in order], x, size)

    def handler(replica: Replica) -> Program[None]:
        return communicate(names[replica.rank], [Peers(replica, names, problem, reduce, part)
                                                 for part in how.buckets(problem)])

    return deploy(problem, workers, how.receiver(sgd),
                  lambda replica, group: peer(replica, group, problem, steps, reduce, session),
                  handler if how.overlap != "none" else None)
