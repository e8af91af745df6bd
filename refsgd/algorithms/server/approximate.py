"""Approximate synchronous parallel (Gaia): two data centres exchange only what has changed significantly.

Inside a data centre links are fast, between them slow and dear.  Each centre has a server with a copy of the
whole model, which its own workers use at once.  A server gathers, entry by entry, what its own workers have
changed, and sends an entry to the other centre only when the change is a noticeable share of the entry's
value.

An entry u_j of the unsent changes is significant if |u_j| > limit |x_j|, with limit = threshold / sqrt(1 +
iterations done).

Quick facts
-----------
synchronous: no | centralised: a server per data centre | roles: n workers, 2 servers with a full copy each (1
for a single worker) | messages per worker and iteration: 1 up, 1 down inside the centre, 1 between the
centres | bytes per worker and iteration: M up, M down inside; 8 for each significant entry between |
staleness: unbounded, as ASP's; what the filter holds back is at most limit |x_j| an entry | clock gap:
unbounded | momentum: at each server, of own pushes | aggregation: each push is applied alone | deterministic:
given the order of arrival

What has been sent and what is unsent sum to all own changes.  threshold = 0 sends every change; a huge one
isolates the centres until the end.  The last push flushes, so both copies end equal, to rounding; after a
death it never comes and they differ.  Half of the result is read from each.  A copy's version counts the
pushes that it knows of, own and remote: staleness means the same on both.  Unequal batches: each push counts
alike, however many examples it is the mean of, as in the paper.

What differs from the paper
---------------------------
There the workers of a centre run BSP or SSP among themselves, here ASP.  Left out: the selective barrier
(indexes ahead of values on a full link) and the mirror clock (a bound on how far one centre runs ahead).  At
x_j = 0 any change is significant.  A message without significant entries is sent too; it costs no payload.

References
----------
Hsieh et al., "Gaia: geo-distributed machine learning approaching LAN speeds", NSDI 2017: approximate
synchronous parallel, the significance filter, a threshold that falls as 1 / sqrt(t) from about 1 %.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refsgd.algorithms.parts import Model, Objective, Push, equal, names, worker
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, RunEnded, Send


class Significant(NamedTuple):
    """server -> server: changes to add to these entries, after a push of `worker`."""

    entries: npt.NDArray[np.int32]
    change: Array  # as many as `entries`
    worker: str
    version: int  # of the sender's copy at which it computed


def filtered(x: Array, unsent: Array, limit: float) -> tuple[npt.NDArray[np.int32], Array]:
    """Which entries of `unsent` exceed `limit` times the parameter; the rest, with zeros in their place.

    >>> filtered(np.ones(3), np.array([0.5, 0.01, -0.2]), 0.1)
    (array([0, 2], dtype=int32), array([0.  , 0.01, 0.  ]))
    """
    significant = np.abs(unsent) > np.float32(limit) * np.abs(x)
    return np.flatnonzero(significant).astype(np.int32), np.where(significant, np.zeros_like(unsent), unsent)


def add(x: Array, entries: npt.NDArray[np.int32], change: Array) -> Array:
    """The copy with the other centre's changes."""
    x = x.copy()
    x[entries] += change
    return x


def server(k: int, other: str | None, mine: slice, x: Array, pushes: int, remote: int, per_iteration: int,
           sgd: SGD, threshold: float) -> Program[Array]:
    """Apply `pushes` of own workers and `remote` messages of the other centre; returns part `mine`."""
    v, unsent, done = sgd.start(x), np.zeros_like(x), 0  # done: own pushes
    with suppress(RunEnded):  # raised after a death, when nobody sends any more
        for version in range(pushes + remote):  # counts all pushes that the copy knows of
            w, message = yield Recv(Push, Significant)
            if isinstance(message, Significant):
                x = yield Compute(add, x, message.entries, message.change, kind="update")
                reads = ((message.worker, message.version),)
                yield Mark("update", part=k, version=version, reads=reads, x=x[mine])
                continue
            old = x
            x, v = yield Compute(sgd.step, x, v, message.grad, done, kind="update")
            yield Mark("update", part=k, version=version, reads=((w, message.version),), x=x[mine])
            unsent, done = unsent + (x - old), done + 1
            # the last push flushes
            limit = threshold / (1 + (done - 1) // per_iteration) ** 0.5 if done < pushes else 0.0
            if other is not None:
                entries, rest = filtered(x, unsent, limit)
                yield Send(other, Significant(entries, unsent[entries], w, message.version))
                unsent = rest
            yield Send(w, Model(x, version + 1))
    return x[mine]


def approximate(problem: Objective, workers: int, steps: int, sgd: SGD, *,
                threshold: float = 0.01) -> Deployment:
    """Deploy approximate synchronous parallel SGD on two data centres, half of the workers in each.

    Parameters
    ----------
    problem, workers, steps, sgd
        As for `refsgd.algorithms.parts.deploy`; a single worker is alone in the only data centre.
    threshold : float
        v >= 0: share of a parameter's value by which it must have changed, at first.
    """
    if not 0 <= threshold < float("inf"):
        raise ValueError(f"threshold {threshold}; expected a finite number >= 0")
    ws, ss = names(workers, min(2, max(1, workers)))
    nodes, centers = dict[str, Node](), equal(workers, len(ss))
    for s, center in zip(ss, centers, strict=True):
        nodes |= {w: Node(worker(i, [s], problem, steps), rank=i) for i, w in list(enumerate(ws))[center]}
    for k, (s, mine) in enumerate(zip(ss, equal(problem.x0.size, len(ss)), strict=True)):
        own, other = len(ws[centers[k]]), ss[1 - k] if len(ss) == 2 else None
        remote = (workers - own) * steps
        program = server(k, other, mine, problem.x0, own * steps, remote, own, sgd, threshold)
        nodes[s] = Node(program, role="server", rank=k, survives=True)
    return nodes
