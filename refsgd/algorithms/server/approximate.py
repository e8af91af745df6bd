"""Approximate synchronous parallel (Gaia): data centres exchange only what has changed significantly.

Each data centre has servers with a copy of the whole model, and its workers read and update that copy only,
as under BSP, SSP or ASP.  Links between centres are slow; three techniques of section 3.2 keep the copies
close to each other with few bytes: significance filter, selective barrier and mirror clock; see `mirrors`.

Quick facts
-----------
synchronous: bounded between centres, as chosen inside | centralised: K servers with a part each in each of D
data centres | roles: n workers, D K servers | messages per worker and iteration: K up, K down inside the
centre | bytes per worker and iteration: M up, M down inside; 8 for each significant entry and other centre,
and 4 more where the indexes go ahead | staleness: unbounded in updates; what the filter holds back is at most
limit |x_j| an entry | clock gap: between centres at most `ahead` started, `ahead` + 1 completed; inside as
BSP, SSP or ASP | momentum: at each server, of its updates | aggregation: inside as BSP, SSP or ASP; changes
of centres add up | deterministic: given the order of arrival

Sent and unsent changes of a centre sum to all changes by its own workers.  threshold = 0 sends every change;
a huge one isolates the centres until the end.  The last update flushes, so all copies are equal at the end,
to rounding, even after deaths.  A piece of the result is read from each copy.  Unequal batches: BSP's mean is
over examples; all centres, and all pushes of SSP and ASP, have the same weight.

What differs from the paper
---------------------------
A link is behind by a count of acknowledgements, where Gaia knows its WAN's bandwidth.  Workers read all
parameters in each iteration, so a barrier blocks the whole part of a server.  At x_j = 0 any change is
significant.  The end of a clock without significant changes is announced by an update without entries.  Left
out: thresholds that follow the bandwidth (section 4.4), hubs that relay (section 4.5).

References
----------
Hsieh et al., "Gaia: geo-distributed machine learning approaching LAN speeds", NSDI 2017: section 3.1, servers
per data centre; 3.2, approximate synchronous parallel; a threshold that falls as 1 / sqrt(t) from about 1 %;
4, the queues of the mirror client for data and for control messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from refsgd.algorithms.facts import CHOOSES, Facts, Options, declare
from refsgd.algorithms.parts import Model, Objective, Push, names, worker
from refsgd.algorithms.server import ssp_gate
from refsgd.algorithms.server.mirrors import Barrier, Copy, Mirror, Significant, Taken
from refsgd.algorithms.sgd import SGD
from refsgd.collectives.parts import chunks
from refsgd.effects import Array, Deployment, Died, Mark, Node, Program, Recv, Send

Inside = Literal["bsp", "ssp", "asp"]


def server(copy: Copy, workers: Sequence[str], mirrors: Sequence[Mirror], steps: int, local: Inside,
           slack: float, threshold: float, share: float | None, ahead: float) -> Program[Array]:
    """Apply own workers' pushes, send the mirrors significant changes, answer the workers that the gates let
    pass (up to `slack` clocks ahead of the slowest one here); returns its piece of the copy."""
    mirror, clock = {m.name: m for m in mirrors}, dict.fromkeys(workers, 0)  # of each living own worker
    pushes, waiting, flushed = dict[str, Push](), set[str](), not steps
    while not flushed or any(m.open() for m in mirrors):
        src, message = yield Recv(Push, Significant, Barrier, Taken, Died)
        if isinstance(message, Push):
            pushes[src] = message
            waiting.add(src)
            clock[src] += 1
        elif isinstance(message, Died):
            clock.pop(message.node, None)  # the others no longer wait for it
        else:
            yield from mirror[src].heard(copy, message)
        now, applied = min(clock.values(), default=steps), list[tuple[str, Push]]()
        if pushes and (local != "bsp" or pushes.keys() >= clock.keys()):
            applied = [(w, pushes[w]) for w in workers if w in pushes]
            yield from copy.step(applied)
            pushes.clear()
        if applied or (now == steps and not flushed):
            # significance filter: v / sqrt(t) in iteration t of the living workers; the last update flushes
            t = max(1, -(-sum(clock.values()) // max(1, len(clock))))
            limit = 0.0 if now == steps else threshold / t**0.5
            yield from copy.share(mirrors, applied, now, limit, share)
            flushed = now == steps
        # selective barrier: its receiver blocks its local workers from reading the parameters that it names;
        # mirror clock: so does a server that is too far ahead of the slowest one with the same parameters
        lead, blocked = now - min((m.clock for m in mirrors), default=now), any(m.awaited for m in mirrors)
        if not blocked and lead <= ahead:
            for w in [w for w in clock if w in waiting and clock[w] <= now + slack]:
                waiting.remove(w)
                yield Send(w, Model(copy.x, copy.version))
        for w in [w for w, _ in applied if w in waiting]:
            yield Mark("block", worker=w)
    return copy.x[copy.piece]


def members_of(workers: int, centers: int | None, groups: Sequence[int] | None) -> list[list[int]]:
    """The workers of each data centre by rank: of each group of the machine, else as many in each.

    >>> members_of(5, None, None), members_of(4, None, [0, 1, 0, 1])
    ([[0, 1], [2, 3, 4]], [[0, 2], [1, 3]])
    """
    if groups is not None and centers in (None, len(set(groups))):
        return [[i for i in range(workers) if groups[i] == g] for g in sorted(set(groups))]
    count = min(2, max(1, workers)) if centers is None else centers
    if not 1 <= count <= workers:
        raise ValueError(f"centers {count} for {workers} workers; expected at least 1, and a worker for each")
    return [list(range(workers))[center] for center in chunks(workers, count)]


def needs(options: Options, workers: int) -> dict[str, str]:
    """Only SSP has a slack, and a single data centre sends nothing to others."""
    found = {} if options["local"] == "ssp" else {"staleness": "local ssp, whose slack it is"}
    found |= {} if options["share"] is None else {"threshold": "no share: that many entries are sent"}
    alone = 1 in (options["centers"], workers)
    return found | dict.fromkeys(("threshold", "barrier", "ahead", "share") if alone else (),
                                 "at least centers 2: a single data centre has no other to send to")


@declare(Facts(
    ("servers", "groups"), needs=needs, because={"": "its servers choose the significant entries themselves"},
    updates=lambda n, steps, options: steps if options["local"] == "bsp" else None,  # by a centre's workers
    mean_of="the updates of its data centres are added, which already multiplies the rate",
    lost="the gradient that it was computing", copies=True, formula="approximate", recursion=CHOOSES))
def approximate(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1,
                groups: Sequence[int] | None = None, *, centers: int | None = None, threshold: float = 0.01,
                local: Inside = "bsp", staleness: float = 3, barrier: float = 4, ahead: float = 10,
                share: float | None = None) -> Deployment:
    """Deploy approximate synchronous parallel SGD.

    Parameters
    ----------
    servers : int
        K, servers of each data centre.
    groups : sequence of int, optional
        Group of each worker, on a machine that has groups.
    centers : int, optional
        D, data centres; by default the machine's groups, else two (one for a single worker).
    threshold : float
        v >= 0: share of a parameter's value by which it must have changed, at first.
    local : {"bsp", "ssp", "asp"}
        How the workers of a data centre are synchronised; ssp with the slack `staleness`.
    staleness : int or inf
        Clocks >= 0 that a worker may be ahead of the slowest of its data centre, under ssp.
    barrier : int or inf
        Iterations >= 0 whose updates to another data centre may be unacknowledged before their indexes
        are sent ahead of their values; inf: never.
    ahead : int or inf
        Clocks >= 0 that a data centre may be ahead of the slowest one; inf: any number.
    share : float, optional
        In (0, 1]: send this share of the entries, those that have changed most; for shape-only nets.
    """
    if not 0 <= threshold < float("inf"):
        raise ValueError(f"threshold {threshold}; expected a finite number >= 0")
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"share {share}; expected a share of the entries in (0, 1]")
    slacks = {"bsp": 0.0, "ssp": staleness, "asp": np.inf}
    if local not in slacks:
        raise ValueError(f"local {local!r}; expected {', '.join(slacks)}")
    for name, value in (("staleness", staleness), ("barrier", barrier), ("ahead", ahead)):
        ssp_gate.check(value, name)
    ws, _ = names(workers, servers)
    members = members_of(workers, centers, groups)
    ss = names(workers, servers * len(members))[1]
    nodes = dict[str, Node]()
    for c, center in enumerate(members):
        nodes |= {ws[i]: Node(worker(i, ss[c::len(members)], problem, steps), rank=i) for i in center}
    for i, s in enumerate(ss):  # the first of each centre, then the second of each
        part, c = divmod(i, len(members))
        own, x = [ws[j] for j in members[c]], problem.x0[chunks(problem.x0.size, servers)[part]]
        copy = Copy(i, x, sgd, piece=chunks(x.size, len(members))[c])
        window = barrier * (1 if local == "bsp" else len(own))
        mirrors = [Mirror(m, window, steps) for m in ss[part * len(members):][:len(members)] if m != s]
        beside = members[c][part % len(own)]  # on a machine that deals servers to the hosts of workers
        program = server(copy, own, mirrors, steps, local, slacks[local], threshold, share, ahead)
        nodes[s] = Node(program, role="server", survives=True,
                        rank=i if groups is None else beside + workers * (part // len(own)))
    return nodes
