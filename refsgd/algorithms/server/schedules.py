"""Scheduling of model parallelism (STRADS): which parameters are updated next, and which never together.

Workers hold rows of the data, not parameters: any coordinate can be updated next, and several at once.  Which ones
decides how fast it converges, and whether it does: updates of strongly correlated coordinates overshoot together.

Lasso by coordinate descent, min |b - A x|^2 / 2 + penalty |x|_1 with columns of norm 1.  Scheduler, step t::

    schedule:  block = round-robin, or drawn: each coordinate with a chance of 1/d, or proportional to |last change| + eps,
               and left out if |a_j . a_k| >= rho for a k that is in the block already
    push:      each worker sends z_i = A_i[block]' r_i, r_i its rows of b - A x
    pull:      x[block] = soft(x[block] + sum of z_i, penalty);  everybody is told the change
    sync:      here after every step

Quick facts
-----------
synchronous: yes | centralised: yes | roles: a scheduler (server0), n workers with rows | messages per step: 3 n | bytes
per worker and step, block of k: 4 k down, 8 k up, 12 k down | staleness: 0 | aggregation: sum, in worker order |
deterministic: given the choices

rho = 0 updates one coordinate at a time, rho = inf puts no restriction.  With pairwise orthogonal columns a block does
what its coordinates would do one after another.  eps > 0 keeps every coordinate in the game.

What differs from the papers
----------------------------
Conflicts are looked up in the whole matrix A'A, where the papers compute them for the candidates only.  They sync by
SSP too.  A lost partial update cannot be committed twice, since nothing is sent again: the run would stop.

References
----------
Lee, Kim, Zheng, Ho, Gibson and Xing, "On model parallelization and scheduling strategies for distributed machine
learning", NIPS 2014, section 2: schedule, push, pull; section 3.3: Lasso, its priorities and its dependencies.
Xing et al., "Petuum: a new platform for distributed machine learning on big data", KDD 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from refsgd.algorithms.parts import equal, names
from refsgd.effects import Choose, Compute, Deployment, Mark, Node, Program, Recv, Send

Policy = Literal["round-robin", "random", "priority"]
Matrix = npt.NDArray[np.float64]


class Task(NamedTuple):
    """scheduler -> worker: compute partial updates of these coordinates."""

    block: npt.NDArray[np.int32]  # (k,)


class Partial(NamedTuple):
    """worker -> scheduler: the worker's rows' share of them."""

    z: Matrix  # (k,)


class Commit(NamedTuple):
    """scheduler -> worker: what these coordinates have changed by."""

    block: npt.NDArray[np.int32]  # (k,)
    delta: Matrix  # (k,)


def round_robin(t: int, d: int, width: int) -> list[int]:
    """Block t mod B of the B = ceil(d / width) blocks: each coordinate once in a sweep of B steps.

    >>> round_robin(2, 5, 2), round_robin(3, 5, 2)
    ([4], [0, 1])
    """
    first = width * (t % -(-d // width))
    return list(range(first, min(first + width, d)))


def chances(change: Matrix, eps: float) -> list[float]:
    """Probability of each coordinate, proportional to |last change| + eps; (d,)."""
    weight = np.abs(change) + eps
    return [float(p) for p in weight / weight.sum()]


def independent(candidates: Sequence[int], gram: Matrix, rho: float) -> list[int]:
    """Those candidates, in order, that conflict with none kept before: |a_j . a_k| < rho."""
    kept: list[int] = []
    for j in candidates:
        if all(abs(gram[j, k]) < rho for k in kept):
            kept.append(j)
    return kept


def soft(v: Matrix, penalty: float) -> Matrix:
    """Shrink towards 0 by `penalty`: the minimum of (x - v)^2 / 2 + penalty |x|."""
    return np.asarray(np.sign(v) * np.maximum(np.abs(v) - penalty, 0))


def worker(rows: Matrix, b: Matrix, steps: int) -> Program[None]:
    """Partial updates from own rows, whose residual follows what is committed."""
    r = b
    for t in range(steps):
        _, (block,) = yield Recv(Task)
        z = yield Compute(np.matmul, rows[:, block].T, r)
        yield Send("server0", Partial(z))
        _, (block, delta) = yield Recv(Commit)
        r = r - rows[:, block] @ delta
        yield Mark("clock", t=t)


def scheduler(workers: Sequence[str], gram: Matrix, penalty: float, steps: int, policy: Policy, width: int, rho: float,
              eps: float) -> Program[Matrix]:
    """Schedule, push, pull; returns x, (d,)."""
    d = len(gram)
    x, change = np.zeros(d), np.ones(d)
    for t in range(steps):
        drawn: list[int] = round_robin(t, d, width) if policy == "round-robin" else []
        p = np.array(chances(change if policy == "priority" else 0 * change, eps))
        while len(drawn) < width and policy != "round-robin":
            left = [j for j in range(d) if j not in drawn]
            drawn.append((yield Choose(left, [float(c) for c in p[left] / p[left].sum()])))
        block = np.array(drawn if policy == "round-robin" else independent(drawn, gram, rho), np.int32)
        for w in workers:
            yield Send(w, Task(block))
        z = np.zeros(len(block))
        for w in workers:
            z = z + (yield Recv(Partial, src=w))[1].z
        new = yield Compute(soft, x[block] + z, penalty, kind="update")
        delta, x = new - x[block], x.copy()
        x[block], change[block] = new, delta
        yield Mark("update", part=0, version=t, reads=tuple((w, t) for w in workers), x=x)
        for w in workers:
            yield Send(w, Commit(block, delta))
    return x


def lasso(a: Matrix, b: Matrix, penalty: float, workers: int, steps: int, *, policy: Policy = "priority", width: int = 4,
          rho: float = 0.5, eps: float = 1e-3) -> Deployment:
    """Deploy scheduled coordinate descent.

    Parameters
    ----------
    a : ndarray, float64 (rows, d)
        Columns of norm 1.
    b : ndarray, float64 (rows,)
    penalty : float
        Of a coordinate's absolute value, >= 0.
    workers, steps : int
    policy : {"round-robin", "random", "priority"}
        How coordinates are chosen.
    width : int
        Coordinates that are chosen in a step, 1 to d.
    rho : float
        Correlation from which two of them are not updated together, >= 0; not asked for in a round-robin.
    eps : float
        Added to each priority, > 0.
    """
    if policy not in ("round-robin", "random", "priority"):
        raise ValueError(f"policy {policy!r}; expected round-robin, random or priority")
    if not (1 <= width <= a.shape[1] and rho >= 0 and eps > 0):
        raise ValueError(f"width {width}, rho {rho}, eps {eps}; expected width in 1..{a.shape[1]}, rho >= 0, eps > 0")
    if not 0 <= penalty < float("inf"):
        raise ValueError(f"penalty {penalty}; expected a finite number >= 0")
    gram = a.T @ a
    if not np.allclose(norms := np.sqrt(np.diag(gram)), 1):  # else x[block] + z is not where the minimum is
        raise ValueError(f"columns of norms {norms.min():.3g} to {norms.max():.3g}; expected norm 1: a / np.linalg.norm(a, axis=0)")
    ws, (server,) = names(workers, 1)
    deployment = {w: Node(worker(a[rows], b[rows], steps)) for w, rows in zip(ws, equal(len(b), workers), strict=True)}
    return {**deployment, server: Node(scheduler(ws, gram, penalty, steps, policy, width, rho, eps), role="server")}
