"""Scheduling for model parallelism (STRADS): which parameters to update next, and which never together.

Workers hold rows of the data, not parameters: any coordinate can be updated next, and several at once.  The
choice determines how fast the algorithm converges, and whether it does: updates of strongly correlated
coordinates overshoot together.

The example is the Lasso by coordinate descent, min |b - A x|^2 / 2 + penalty |x|_1 with columns of norm 1.

Quick facts
-----------
synchronous: yes | centralised: yes | roles: a scheduler (server0), n workers with rows | messages per step: 3
n | bytes per worker and step, block of k: 4 k down, 8 k up, 12 k down | staleness: 0 | aggregation: sum, in
worker order | deterministic: given the choices

rho = 0 updates one coordinate at a time, rho = inf means no restriction.  With pairwise orthogonal columns a
block has the effect of its coordinates one after another.  With eps > 0 every coordinate can be drawn.

What differs from the papers
----------------------------
Conflicts are looked up in the whole matrix A'A; the papers compute them for the candidates only.  The papers
also synchronise by SSP.  A partial update cannot be committed twice, since messages are never repeated: if
one were lost, the run would stop.

References
----------
Lee, Kim, Zheng, Ho, Gibson and Xing, "On model parallelization and scheduling strategies for distributed
machine learning", NIPS 2014, section 2: schedule, push, pull; section 3.3: Lasso, its priorities and its
dependencies.
Xing et al., "Petuum: a new platform for distributed machine learning on big data", KDD 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refsgd.algorithms.exchange import equal
from refsgd.algorithms.parts import names
from refsgd.algorithms.server.blocks import Matrix, Policy, check, schedule
from refsgd.effects import Compute, Deployment, Mark, Node, Program, Recv, Send


class Task(NamedTuple):
    """scheduler -> worker: compute partial updates of these coordinates."""

    block: npt.NDArray[np.int32]  # (k,)


class Partial(NamedTuple):
    """worker -> scheduler: the worker's rows' share of them."""

    z: Matrix  # (k,)


class Commit(NamedTuple):
    """scheduler -> worker: the changes of these coordinates."""

    block: npt.NDArray[np.int32]  # (k,)
    delta: Matrix  # (k,)


def scheduler(workers: Sequence[str], gram: Matrix, penalty: float, steps: int, policy: Policy, width: int,
              rho: float, eps: float) -> Program[Matrix]:
    """Schedule, push, pull, in each step; returns x, (d,)."""
    x, change = np.zeros(len(gram)), np.ones(len(gram))
    for t in range(steps):
        block = np.array((yield from schedule(t, change, gram, policy, width, rho, eps)), np.int32)
        for w in workers:
            yield Send(w, Task(block))
        z = np.zeros(len(block))
        for w in workers:  # in worker order: addition must not depend on the network
            z = z + (yield Recv(Partial, src=w))[1].z
        new = yield Compute(soft, x[block] + z, penalty, kind="update")
        delta, x = new - x[block], x.copy()
        x[block], change[block] = new, delta
        yield Mark("update", part=0, version=t, reads=tuple((w, t) for w in workers), x=x)
        for w in workers:
            yield Send(w, Commit(block, delta))
    return x


def worker(rows: Matrix, b: Matrix, steps: int) -> Program[None]:
    """Partial updates from own rows; their residual r = b - A x follows the committed changes."""
    r = b
    for t in range(steps):
        _, (block,) = yield Recv(Task)
        z = yield Compute(np.matmul, rows[:, block].T, r)
        yield Send("server0", Partial(z))
        _, (block, delta) = yield Recv(Commit)
        r = r - rows[:, block] @ delta
        yield Mark("clock", t=t)


def soft(v: Matrix, penalty: float) -> Matrix:
    """Shrink towards 0 by `penalty`: the minimum of (x - v)^2 / 2 + penalty |x|."""
    return np.asarray(np.sign(v) * np.maximum(np.abs(v) - penalty, 0))


def lasso(a: Matrix, b: Matrix, penalty: float, workers: int, steps: int, *, policy: Policy = "priority",
          width: int = 4, rho: float = 0.5, eps: float = 1e-3) -> Deployment:
    """Deploy scheduled coordinate descent.

    Parameters
    ----------
    a, b : ndarray, float64
        The matrix, (rows, d), with columns of norm 1, and the right-hand side, (rows,).
    penalty : float
        Penalty on a coordinate's absolute value, >= 0.
    workers, steps : int
    policy : {"round-robin", "random", "priority"}
        The choice of coordinates.
    width : int
        Number of coordinates per step, 1 to d.
    rho : float
        Two coordinates with at least this correlation are not updated together, >= 0; unused by round-robin.
    eps : float
        Added to each priority, > 0.
    """
    check(policy, width, rho, eps, a.shape[1])
    if not 0 <= penalty < float("inf"):
        raise ValueError(f"penalty {penalty}; expected a finite number >= 0")
    gram = a.T @ a
    if not np.allclose(norms := np.sqrt(np.diag(gram)), 1):  # otherwise x[block] + z is not the minimum
        raise ValueError(f"columns of norms {norms.min():.3g} to {norms.max():.3g}; expected norm 1: "
                         "a / np.linalg.norm(a, axis=0)")
    ws, (server,) = names(workers, 1)
    parts = zip(ws, equal(len(b), workers), strict=True)
    nodes = {w: Node(worker(a[rows], b[rows], steps)) for w, rows in parts}
    program = scheduler(ws, gram, penalty, steps, policy, width, rho, eps)
    return {**nodes, server: Node(program, role="server")}
