"""Regression with a penalty on absolute values: the Lasso and logistic regression, on generated data.

The loss is ``f(x) + penalty |x|_1``, where f is a mean over rows and the columns have mean square 1.  Few of
the true coefficients differ from 0.  All algorithms take subgradients of it; `strads` minimises it coordinate
by coordinate, with the information in `Coordinates`.

References
----------
Tibshirani, "Regression shrinkage and selection via the lasso", JRSS B 58(1), 1996.
Bradley, Kyrola, Bickson and Guestrin, "Parallel coordinate descent for L1-regularized loss minimization",
ICML 2011: the step with an upper bound of the curvature, 1/4 for logistic regression.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refsgd.effects import Array
from refsgd.problems.problem import Problem, described


@dataclass(frozen=True)
class Coordinates:
    """The behaviour of ``f(x) + penalty |x|_1`` along single coordinates."""

    #: ``(x, rank, where) -> (k,)``: these entries of the gradient of f, a mean over all rows of the worker
    slope: Callable[[Array, int, Array], Array]
    rows: Callable[[int], int]  #: ``rank -> int``: number of these rows
    correlation: Any  #: (d, d), of the columns of the data
    curvature: float  #: second derivative of f along each coordinate, or an upper bound
    penalty: float

    def minimum(self, x: Array, slope: Array) -> Array:
        """The minimum along each of k coordinates x, of a parabola with these slopes plus the penalty."""
        v = x - slope / self.curvature
        return np.asarray(np.sign(v) * np.maximum(np.abs(v) - self.penalty / self.curvature, 0))


class _Kind(NamedTuple):
    """A loss of a row with score s and target b, its derivative in s, and the largest second one."""

    loss: Callable[[Any, Any], Any]
    derivative: Callable[[Any, Any], Any]
    curvature: float


KINDS = {"lasso": _Kind(lambda s, b: (s - b) ** 2 / 2, lambda s, b: s - b, 1.0),
         "logistic": _Kind(lambda s, b: np.logaddexp(0, -b * s),
                           lambda s, b: b * (np.tanh(b * s / 2) - 1) / 2, 0.25)}


def sparse(kind: str, a: Array, b: Array, penalty: float, workers: int = 1, batch: int | Sequence[int] = 16,
           seed: int = 0, how: str = "iid") -> Problem:
    """Regression on given data, (rows, d) with targets (rows,), which are +1 and -1 for logistic; rows are
    divided among workers.

    Gradients are means over batches of each worker's rows, divided as `refsgd.problems.data.Shards` says;
    slopes of `Coordinates` are over all rows of a worker.  Raises FloatingPointError in a slope of a run that
    has diverged.
    """
    from refsgd.problems.data import Shards

    if not 0 <= penalty < float("inf"):
        raise ValueError(f"penalty {penalty}; expected a finite number >= 0")
    squares = np.mean(a**2, axis=0)
    if not np.allclose(squares, 1):  # otherwise x - slope is not the minimum
        raise ValueError(f"columns of mean square {squares.min():.3g} to {squares.max():.3g}; expected 1: "
                         "a / np.sqrt(np.mean(a**2, axis=0))")
    if len(b) < workers:
        raise ValueError(f"{len(b)} rows for {workers} workers; expected at least one for each")
    law, shards = KINDS[kind], Shards(len(b), workers, batch, seed, b, how)

    def mean(x: Array, rows: Any, where: Any = slice(None)) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):  # of a run that diverges
            slope = law.derivative(a[rows] @ x, b[rows]) @ a[rows][:, where]
        return np.asarray(slope / x.dtype.type(max(1, len(b[rows]))), x.dtype)

    def gradient(x: Array, rank: int, t: int) -> Array:
        return np.asarray(mean(x, shards.share(rank, t)) + x.dtype.type(penalty) * np.sign(x))

    def own(rank: int) -> slice:
        return slice(len(b) * rank // workers, len(b) * (rank + 1) // workers)

    def slope(x: Array, rank: int, where: Array) -> Array:
        found = mean(x, own(rank), where)
        if not np.all(np.isfinite(found)):
            raise FloatingPointError(f"worker {rank}: its slope is not finite; expected finite numbers: "
                                     "correlated coordinates overshoot together, use policy dependency-aware "
                                     "with rho below 1 / (width - 1), or width 1")
        return found

    d = a.shape[1]
    return Problem(
        np.zeros(d, a.dtype), gradient,
        lambda x: float(np.mean(law.loss(a @ np.asarray(x, float), b)) + penalty * np.sum(np.abs(x))),
        images=lambda rank, t: len(shards.share(rank, t)),
        describe={"data": kind, "net": kind, "parameters": d, "bytes": 4 * d, "workers": workers,
                  "steps_per_epoch": shards.steps_per_epoch, **described(shards.batches)},
        coordinates=Coordinates(slope, lambda rank: len(b[own(rank)]), a.T @ a / len(b), law.curvature,
                                penalty))


def generated(text: str, workers: int, batch: int | Sequence[int], seed: int = 0,
              how: str = "iid") -> Problem:
    """The problem of ``lasso`` or ``logistic``, or of ``lasso:samples,features,correlation``, by default
    ``200,50,0``; the last is that of each pair of columns.

    Every tenth coefficient, at least one, is 1; the penalty is a tenth of the least that makes all
    coefficients 0.
    """
    kind, _, rest = text.partition(":")
    try:
        rows, d, correlation = (float(part) for part in (rest or "200,50,0").split(","))
        if not (rows >= 1 and d >= 1 and rows % 1 == d % 1 == 0 and 0 <= correlation < 1):
            raise ValueError
    except ValueError:
        raise ValueError(f"data {text!r}; expected {kind}:samples,features,correlation, two whole numbers, "
                         f"at least 1, and a number in [0, 1), such as {kind}:200,50,0.5") from None
    if rows * d > 10**8 or d > 10_000:
        raise ValueError(f"data {text}; expected at most 10,000 features, and 10**8 numbers in all samples")
    n, rng = int(rows), np.random.default_rng([seed, 4])
    a = np.sqrt(correlation) * rng.standard_normal((n, 1)) + np.sqrt(1 - correlation) * rng.standard_normal(
        (n, int(d)))
    a = np.asarray(a / np.sqrt(np.mean(a**2, axis=0)), np.float32)
    b = np.asarray(a[:, ::10].sum(1) + 0.1 * rng.standard_normal(n), np.float32)
    if kind == "logistic":
        b = np.where(b < 0, b.dtype.type(-1), b.dtype.type(1))
    most = np.max(np.abs(KINDS[kind].derivative(np.zeros_like(b), b) @ a)) / n
    found = sparse(kind, a, b, 0.1 * float(most), workers, batch, seed, how)
    found.describe["data"] = text
    return found
