"""Elastic averaging SGD (EASGD): each worker trains its own replica, tied to a centre by an elastic force.

A replica and the centre, which is the result, apply the same force e every `period` iterations: with
``async`` each worker by itself, with ``sync`` all with the same centre, which moves by the sum of the forces
to (1 - beta) center + beta mean(x_i) with beta = n alpha.  With momentum it is EAMSGD (Nesterov's form).

Quick facts
-----------
synchronous: as `mode` says | centralised: yes | roles: n workers, K servers with a part of the centre each |
messages per worker and exchange: K requests, K down, K up | bytes per worker and iteration: M / period down,
M / period up | staleness: gradients 0 (own replica), forces unbounded (async) or 0 | clock gap: unbounded
(async), at most 2 period - 1 started and 2 period completed (sync) | momentum: at the worker | aggregation:
sum of forces | deterministic: sync yes, async given the order of arrival

An exchange conserves the sum of all replicas and the centre.  ``alpha=0`` is n independent SGDs, 1/2 moves
both to the middle, 1 swaps them.  If no other force comes between a fetch and its force, exchanges alone are
stable for alpha < 1.  If all n workers fetch the same centre, as in ``sync``, and in ``async`` when they run
in step, only for alpha (n + 1) < 2.  The default 0.9/n satisfies both.  Unequal batches: both ends of a force
are equal, so all replicas pull the centre equally, whatever their numbers of examples.

What differs from the paper
---------------------------
Forces of async workers may overtake exchanges of others: each is computed from the centre that the worker
received.  Iterations after the last exchange do not reach the centre, as in the paper's endless loop.

References
----------
Zhang, Choromanska and LeCun, "Deep learning with elastic averaging SGD", NIPS 2015, section 3: the
synchronous rule; algorithm 1: asynchronous EASGD; algorithm 2: EAMSGD; beta = 0.9, alpha = beta / n.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import numpy as np

from refsgd.algorithms.facts import Facts, declare, one_of
from refsgd.algorithms.parts import Fetch, Model, Objective, Servers, Shard, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.collectives.parts import add
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, RunEnded, Send

Mode = Literal["async", "sync"]


class Elastic(NamedTuple):
    """worker -> server: the force on the server's part of the centre; the worker has applied its negative."""

    force: Array  # (part,)
    version: int  # of the part from which it was computed


def nesterov(sgd: SGD, x: Array, v: Array, z: Array, g: Array, t: int) -> tuple[Array, Array]:
    """Replica and velocity after iteration t, whose gradient g was taken at z; all (d,)."""
    g = g + np.float32(sgd.weight_decay) * z
    v = np.float32(sgd.momentum) * v - sgd.rate(t) * g
    return x + v, v


def worker(rank: int, servers: Sequence[str], problem: Objective, steps: int, sgd: SGD, period: int,
           alpha: float, rotated: bool) -> Program[Array]:
    """Algorithm 2, which is algorithm 1 if there is no momentum; returns the replica, (d,)."""
    x, v = problem.x0, sgd.start(problem.x0)
    center = Servers(servers, problem, rank if rotated else 0)
    for t in range(steps):
        z = x + np.float32(sgd.momentum) * v  # from before the exchange
        if t % period == 0:
            e = np.float32(alpha) * (x - (yield from center.fetch(t)))
            for s in center.order:
                yield Send(s, Elastic(e[center.part[s]], center.version[s]))  # b) center = center + e
            x = x - e  # a)
        g: Array = yield Compute(problem.gradient, z, rank, t)
        x, v = yield Compute(nesterov, sgd, x, v, z, g, t, kind="update")
        yield Mark("clock", t=t, images=problem.images(rank, t), x=x)
    return x


def server(center: Shard, workers: Sequence[str], updates: int, together: int) -> Program[Array]:
    """Answer requests; add forces `together` at a time, in worker order; returns the part after `updates`."""
    forces, waiting = dict[str, Elastic](), list[str]()
    with suppress(RunEnded):  # raised after a death, when no worker sends any more
        while center.version < updates:
            w, message = yield Recv(Fetch, Elastic)
            if isinstance(message, Elastic):
                forces[w] = message
            elif w in forces:  # sync: asks for the next centre
                waiting.append(w)
            else:
                yield Send(w, Model(center.x, center.version))
            if len(forces) == together:
                movers = [w for w in workers if w in forces]
                center.x = yield Compute(add, center.x, *(forces[w].force for w in movers), kind="update")
                # No images: a force is no gradient. Gradients are applied to replicas.
                yield from center.mark(tuple((w, forces[w].version) for w in movers), images=0)
                for w in waiting:
                    yield Send(w, Model(center.x, center.version))
                forces, waiting = {}, []
    return center.x


@declare(Facts(
    ("servers", "rotated"), takes=("layout", "balance", "priority"),
    because={"overlap": "it exchanges parameters before it computes the gradient",
             "bucket": "it has servers, and each of their parts is a message of its own",
             **dict.fromkeys(("compress", "feedback"), "it exchanges parameters, which must arrive whole")},
    mean_of="its centre is moved by elastic forces, not by a mean of gradients",
    only_sgd="its update is defined with the velocity of SGD",
    lost="its replica; the centre keeps what it was given", formula="easgd",
    recursion=lambda options: "elastic" if options["mode"] == "sync" else (
        "its forces come one by one, in an order that depends on the schedule: only by running it")))
def easgd(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
          period: int = 4, alpha: float | None = None, mode: Mode = "async") -> Deployment:
    """Deploy EASGD; with a momentum in `sgd`, EAMSGD.

    Parameters
    ----------
    period : int
        Iterations between two exchanges of a worker, at least 1 (the paper's tau).
    alpha : float, optional
        Share of the distance to the centre that an exchange removes, >= 0; by default 0.9 / n, of the n
        workers at the start.
    mode : {"async", "sync"}
    """
    if period < 1:
        raise ValueError(f"period {period}; expected at least 1 iteration")
    if alpha is not None and not 0 <= alpha < float("inf"):
        raise ValueError(f"alpha {alpha}; expected a finite number >= 0")
    one_of("mode", mode, Mode)
    together = workers if mode == "sync" else 1
    updates = -(-steps // period) * (1 if mode == "sync" else workers)
    return deploy(problem, workers, steps, sgd, servers, rotated,
                  lambda center, workers: server(center, workers, updates, together),
                  lambda rank, servers: worker(rank, servers, problem, steps, sgd, period,
                                               0.9 / workers if alpha is None else alpha, rotated),
                  survives=mode == "async")
