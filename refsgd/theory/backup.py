"""Synchronous SGD with backup workers: the first N of n = N + k gradients count.

A worker that comes too late *finishes* its gradient, which is discarded, and only then starts on the new model
(a computation cannot be cut short).  So a step begins with N fresh workers and k stale ones.  For exponential
times the rest of each is again exponential: with F fresh and Z stale workers computing, the next to end is
fresh with probability F/(F+Z) and contributes, else stale and starts afresh::

    h(F, Z) = [1 + F h(F-1, Z) + Z h(F+1, Z-1)] / (F + Z),    h = 0 where F + Z = k

and a step takes h(N, k) E[T].  If late workers are cancelled instead, it is the N-th of n order statistic.

References
----------
Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting distributed synchronous SGD", 2016.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refsgd.laws import Law
from refsgd.theory.prediction import DomainError, Prediction, check_count, check_law, check_time, kind_of, sampling
from refsgd.theory.stragglers import Values, mean_of_maximum, mean_of_order

MESSAGES = 6_000  # of one replica, about: a longer run is continued at its pace
DRAWS = 60_000  # drawn compute times, over all replicas


@functools.lru_cache(maxsize=256)
def steps_of_mean(fresh: int, backups: int) -> float:
    """h(N, k): seconds of a step over E[T], exponential times, late workers finish.

    >>> steps_of_mean(3, 0), round(steps_of_mean(3, 1), 4)
    (1.8333333333333333, 1.3542)
    """
    n = fresh + backups
    h: dict[tuple[int, int], float] = {}
    for active in range(backups, n + 1):
        for z in range(min(backups, active) + 1):
            f = active - z
            if active == backups:
                h[f, z] = 0.0
                continue
            later = h[f + 1, z - 1] if z else 0.0
            h[f, z] = (1 + (f * h[f - 1, z] if f else 0.0) + z * later) / active
    return h[fresh, backups]


@functools.lru_cache(maxsize=256)
def late_of_step(fresh: int, backups: int) -> float:
    """Gradients of a step that are dropped, exponential times: d(F, Z) = [F d(F-1, Z) + Z (1 + d(F+1, Z-1))] / (F + Z).

    A step begins with F = N fresh and Z = k late workers and ends where F + Z = k.

    Parameters
    ----------
    fresh, backups : int
        N and k.

    Returns
    -------
    float

    Examples
    --------
    >>> late_of_step(3, 0), round(late_of_step(1, 1), 4)
    (0.0, 0.5)
    """
    n = fresh + backups
    d: dict[tuple[int, int], float] = {}
    for active in range(backups, n + 1):
        for z in range(min(backups, active) + 1):
            f = active - z
            more = f * d[f - 1, z] if f and active > backups else 0.0
            d[f, z] = (more + (z * (1 + d[f + 1, z - 1]) if z else 0.0)) / active if active > backups else 0.0
    return d[fresh, backups]


def computing(law: Law, workers: int, backups: int, step: float) -> Prediction | None:
    """Share of the time in which a worker computes, late gradients too; None for laws other than exponential and fixed.

    (N + late) E[T] / (n step): every gradient, counted or dropped, takes E[T].

    Parameters
    ----------
    law : Law
        Compute time [s].
    workers : int
        n, at least 1.
    backups : int
        Workers whose gradients are not waited for.
    step : float
        Seconds of an iteration.

    Returns
    -------
    Prediction or None
    """
    n, k = check_count("workers", workers), check_count("backups", backups, 0)
    if k and law.family != "exponential":
        return None
    late = late_of_step(n - k, k) if k else 0.0
    value = min((n - k + late) * law.mean / (n * step), 1.0)
    return Prediction(value, "1", "exact", {"counted": (n - k) / n * law.mean / step, "dropped": late / n * law.mean / step},
                      "(N + late) E[T]/(n step)", "Chen et al. 2016", "late workers finish; long run")


@dataclass(frozen=True)
class Steps:
    """Figures of the drawn process.

    Parameters
    ----------
    seconds, error : float
        Long-run seconds of a step, and the standard error of this Monte Carlo mean.
    end, end_error : float
        Mean seconds of the run, and their standard error.
    computing, computing_error : float
        Share of a run in which a worker computes, late gradients too.
    pushes, pushes_error : float
        Gradients of a run, counted and dropped.
    """

    seconds: float
    error: float
    end: float
    end_error: float
    computing: float
    computing_error: float
    pushes: float
    pushes_error: float


def drawn(laws: Sequence[Law], backups: int, steps: int, *, transfer: float = 0.0, latency: float = 0.0, update: Law | None = None) -> Steps:
    """The process itself, push by push in the order of their heads, many replicas side by side; any laws.

    With h the time at which a push's head reaches the server's incoming link, which serves w seconds each::

        in = max(in, h) + w,    now = max(busy, in),    out = max(out, now) + w for each answer

    A push of an earlier step is answered at once, the others when the N-th has come and the update is made; an answer
    is with its worker at out + latency.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker [s].
    backups : int
        k, less than n.
    steps : int
        Of the server, at least 1.
    transfer, latency : float
        w, seconds of the model on a link; of a message [s].
    update : Law, optional
        Of one update; none by default.

    Returns
    -------
    Steps
        Exact up to its standard errors, one server.
    """
    n, k, seen = len(laws), check_count("backups", backups, 0), min(check_count("steps", steps), max(MESSAGES // len(laws), 40))
    w, alpha = check_time("transfer", transfer), check_time("latency", latency)
    replicas = max(8, min(256, DRAWS // (n * seen)))
    rng = np.random.default_rng(1604)
    times = np.stack([law.sample(rng, replicas * seen).reshape(replicas, seen) for law in laws], axis=2)
    updates = update.sample(rng, replicas * seen).reshape(replicas, seen) if update is not None else np.zeros((replicas, seen))
    rows, head = np.arange(replicas), times[:, 0] + alpha
    step, of_step, got = np.zeros(replicas, int), np.zeros((replicas, n), int), np.zeros((replicas, n), bool)  # of the server; of each push
    incoming, busy, outgoing, end = (np.zeros(replicas) for _ in range(4))
    computing, pushes, ends = times[:, 0].sum(axis=1), np.full(replicas, n), np.zeros((replicas, seen))
    while (live := np.isfinite(head).any(axis=1)).any():
        who = head.argmin(axis=1)
        incoming = np.where(live, np.maximum(incoming, head[rows, who]) + w, incoming)
        now = np.maximum(busy, incoming)
        head[rows, who] = np.inf
        late = live & (of_step[rows, who] < step)
        got[rows, who] |= live & ~late
        full = live & (got.sum(axis=1) == n - k)
        last = np.minimum(step, seen - 1)
        busy = np.where(live, now + full * updates[rows, last], busy)
        ends[rows[full], last[full]] = busy[full]
        step = step + full
        answered = got & full[:, None]
        answered[rows, who] |= late
        got &= ~full[:, None]
        arrives = np.maximum(outgoing, busy)[:, None] + w * np.cumsum(answered, axis=1) + alpha
        row, col = np.nonzero(answered)
        outgoing[row] = arrives[row, col] - alpha  # the last one's stays
        end[row] = np.maximum(end[row], arrives[row, col])
        row, col = row[step[row] < seen], col[step[row] < seen]
        of_step[row, col] = step[row]
        each = times[row, step[row], col]
        head[row, col] = arrives[row, col] + each + alpha
        np.add.at(computing, row, each)
        np.add.at(pushes, row, 1)
    low = seen // 4
    pace = (ends[:, -1] - (ends[:, low - 1] if low else 0.0)) / (seen - low)
    mean, more = float(pace.mean()), steps - seen

    def error(values: Values) -> float:
        return 0.0 if all(law.family == "fixed" for law in laws) else float(np.std(values) / math.sqrt(replicas))

    share = computing / (n * end)
    return Steps(mean, error(pace), float(end.mean()) + more * mean, error(end) + more * error(pace), float(share.mean()), error(share),
                 float(pushes.mean()) * steps / seen, error(pushes) * steps / seen)


def backup_workers(laws: Sequence[Law], backups: int, *, cancelled: bool = False, exchange: float = 0.0) -> Prediction:
    """Seconds per iteration with n workers of which the first n - k count.

    Parameters
    ----------
    laws : sequence of Law
        Compute time of each worker.
    backups : int
        k, less than n.
    cancelled : bool
        Late workers drop their gradient and start afresh at once: E[T_(N:n)], exact, unequal laws too.
    exchange : float
        Seconds of the exchange, added to each step (an approximation then).

    Returns
    -------
    Prediction
        Late workers finish: exact for equal exponential times (h) and, by Monte Carlo, for other equal laws;
        unequal laws: the order statistic, a lower bound.  E[T_(N:n)] <= step <= E[max of N fresh] holds for
        equal laws.
    """
    n, k = check_count("workers", len(laws)), check_count("backups", backups, 0)
    if k >= n:
        raise DomainError(f"{k} backups of {n} workers; the formula assumes at least one that counts")
    for law in laws:
        check_law("compute", law)
    needed, first = n - k, laws[0]
    equal = len(set(laws)) == 1
    quickest = mean_of_order(laws, needed)
    slowest = mean_of_maximum([first] * needed) if equal else mean_of_maximum(laws)
    error, bound = 0.0, False
    if cancelled or k == 0 or (equal and first.family == "fixed"):
        value, formula = quickest, "E[T_(N:n)]"
    elif equal and first.family == "exponential":
        value, formula = first.mean * steps_of_mean(needed, k), "h(N, k) E[T]"
    elif equal:
        process = drawn(laws, k, 200)
        value, error = process.seconds, process.error
        formula = "N-th fresh end, late workers finish; by Monte Carlo"
    else:
        value, formula, bound = quickest, "E[T_(N:n)]", True
    mean = math.fsum(law.mean for law in laws) / n
    terms = {"compute E[T]": mean, "straggling": value - mean, "transfer": exchange, **sampling(error)}
    return Prediction(value + exchange, "s", "bound" if bound else kind_of(not exchange, error), terms,
                      formula + (" + exchange" if exchange else ""), "Chen et al. 2016", "independent times; late workers "
                      + ("are cancelled" if cancelled else "finish"), bound="lower" if bound else "",
                      lower=quickest + exchange, upper=slowest + exchange)
