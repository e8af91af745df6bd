"""Scheduled block coordinate descent (STRADS): which parameters to update next, and which never together.

Workers hold rows of the data, not parameters, so any blocks of coordinates can be updated next.  Where the
problem knows the minimum along a coordinate, as the Lasso does, a step goes there.  Elsewhere it is a step of
SGD on the scheduled blocks.

Quick facts
-----------
synchronous: yes | centralised: yes | roles: a scheduler (server0), n workers with rows | messages per worker
and step: 1 up, 1 down (and a last one down) | bytes per worker and step: the scheduled blocks up and down,
and their numbers | staleness: 0 | clock gap: 0 while computing | momentum: at the scheduler, for scheduled
blocks; refused with minima | aggregation: mean over examples, in worker order | deterministic: given the
choices

rho = 0 updates one block at a time, rho = inf means no restriction.  With pairwise orthogonal columns blocks
together have the effect of one after another.  Since eps > 0, every block can be drawn.

What differs from the papers
----------------------------
Conflicts are looked up in the whole correlation matrix; the papers compute them for the candidates only.  The
papers also synchronise by SSP, and schedule no nets.  The changes of a step travel with the next one's task,
so a partial update cannot be committed twice.

References
----------
Lee, Kim, Zheng, Ho, Gibson and Xing, "On model parallelization and scheduling strategies for distributed
machine learning", NIPS 2014, section 2: schedule, push, pull; section 3.3: Lasso, its priorities and its
dependencies.
Xing et al., "Petuum: a new platform for distributed machine learning on big data", KDD 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms.facts import Facts, Options, declare
from refsgd.algorithms.parts import names
from refsgd.algorithms.server.blocks import Matrix, Policy, between, check, put, schedule, take
from refsgd.algorithms.sgd import SGD, mean_gradient
from refsgd.collectives.parts import chunks
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, Send


class Task(NamedTuple):
    """scheduler -> worker: new values of the last blocks, then compute partial updates of these."""

    blocks: Array  # (k,), their numbers
    values: Array  # of the last blocks


class Partial(NamedTuple):
    """worker -> scheduler: the mean gradient of its rows in these blocks."""

    grad: Array
    examples: int  # number of examples in that mean


def update(sgd: SGD, problem: Any, x: Array, v: Array, partials: Sequence[Partial],
           t: int) -> tuple[Array, Array]:
    """The scheduled blocks after step t: the minimum along each coordinate if that is known, else SGD."""
    g = mean_gradient([p.grad for p in partials], [p.examples for p in partials])
    if problem.coordinates is not None:
        return problem.coordinates.minimum(x, g), v
    return sgd.step(x, v, g, t)


def scheduler(workers: Sequence[str], problem: Any, cut: Sequence[slice], sgd: SGD, steps: int,
              policy: Policy, width: int, conflicts: Matrix, rho: float, eps: float) -> Program[Array]:
    """Schedule, push, pull, in each step; returns x, (d,)."""
    x: Array = problem.x0
    v = sgd.start(x)
    change, values = np.ones(len(cut)), x[:0]
    for t in range(steps):
        blocks = yield from schedule(t, change, conflicts, policy, width, rho, eps)
        for w in workers:
            yield Send(w, Task(np.array(blocks, np.int32), values))
        partials = []
        for w in workers:  # in worker order: addition must not depend on the network
            partials.append((yield Recv(Partial, src=w))[1])
        before, parts = x, [cut[k] for k in blocks]
        values, velocity = yield Compute(update, sgd, problem, take(x, parts), take(v, parts), partials, t,
                                         kind="update")
        x, v = put(x, parts, values), put(v, parts, velocity)
        if policy == "prioritised":
            change[blocks] = [np.max(np.abs(x[part] - before[part])) for part in parts]
        yield Mark("update", part=0, version=t, reads=tuple((w, t) for w in workers),
                   images=sum(p.examples for p in partials), x=x)
    for w in workers:
        yield Send(w, Task(np.zeros(0, np.int32), values))
    return x


def worker(rank: int, problem: Any, cut: Sequence[slice], steps: int) -> Program[Array]:
    """Partial updates from own rows, at a copy of x that follows the scheduler's, (d,)."""
    x: Array = problem.x0
    known = problem.coordinates
    _, task = yield Recv(Task)
    for t in range(steps):
        parts = [cut[k] for k in task.blocks]
        if known is not None:
            where = np.concatenate([np.arange(part.start, part.stop) for part in parts])
            g = yield Compute(known.slope, x, rank, where)
            yield Send("server0", Partial(g, known.rows(rank)))
        else:
            g = yield Compute(problem.gradient, x, rank, t)
            yield Send("server0", Partial(take(g, parts), problem.images(rank, t)))
        _, task = yield Recv(Task)
        x = put(x, parts, task.values)
        yield Mark("clock", t=t)
    return x


def needs(options: Options, workers: int) -> dict[str, str]:
    """Blocks that take turns have no conflicts, and only one policy has priorities."""
    found = {"rho": "policy dependency-aware or prioritised"} if options["policy"] == "fixed" else {}
    return found | ({} if options["policy"] == "prioritised" else {"eps": "policy prioritised"})


@declare(Facts(
    because={"": "its scheduler says which blocks are exchanged, and each block is sent whole"},
    only_sgd="it updates some blocks at a time, but the averages of a rule would count every update",
    timeless=True, needs=needs, minimises=True,
    recursion="it updates some blocks at a time, which no recursion here follows",
    no_formula="how many blocks are scheduled together depends on the data and on chance"))
def strads(problem: Any, workers: int, steps: int, sgd: SGD, *, policy: Policy = "fixed",
           blocks: int | None = None, width: int | None = None, rho: float = 0.5,
           eps: float = 1e-3) -> Deployment:
    """Deploy scheduled block coordinate descent.

    Parameters
    ----------
    problem : Objective
        With `coordinates`, as of `refsgd.problems.regression`, each step minimises along coordinates; then
        `sgd` has neither momentum nor weight decay, and its rate is not used.
    policy : {"fixed", "dependency-aware", "prioritised"}
        The choice of blocks: in turn; drawn without those that conflict; drawn by their last change, too.
    blocks, width : int, optional
        Into how many blocks the parameters are cut, and how many of them are in a step; by default all
        coordinates and a quarter of them with `coordinates`, at most 16 blocks and half of them elsewhere.
    rho : float
        Blocks with coordinates of at least this correlation are not updated together, >= 0; unused by fixed.
    eps : float
        Added to each priority, > 0.
    """
    ws, (server,) = names(workers, 1)
    known, d = problem.coordinates, problem.x0.size
    count = (d if known is not None else min(d, 16)) if blocks is None else blocks
    wide = max(1, count // (2 if known is None else 4)) if width is None else width
    check(policy, count, wide, rho, eps, d)
    if known is None and policy == "dependency-aware":
        raise ValueError("policy dependency-aware with data whose correlations are not known; expected data "
                         "lasso or logistic, or policy fixed or prioritised")
    if known is not None and (sgd.momentum or sgd.weight_decay):
        raise ValueError(f"momentum {sgd.momentum}, weight decay {sgd.weight_decay} with steps to the "
                         "minimum along a coordinate; expected 0")
    cut = chunks(d, count)
    conflicts = np.zeros((count, count)) if known is None else between(known.correlation, cut)
    nodes = {w: Node(worker(i, problem, cut, steps)) for i, w in enumerate(ws)}
    program = scheduler(ws, problem, cut, sgd, steps, policy, wide, conflicts, rho, eps)
    return {**nodes, server: Node(program, role="server")}
