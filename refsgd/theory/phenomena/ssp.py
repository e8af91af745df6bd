"""How long stale synchronous parallel SGD waits for its bound.

A worker with C completed clocks may start the next one iff C - min completed <= s.  Without a network that is
all there is to it: with F_i(c) the end of clock c at worker i,

    F_i(c) = T_i(c) + max(F_i(c-1), max_j F_j(c-1-s))

(E more per clock where every exchange takes a constant E).  Three exact answers follow from it:

* two workers, exponential times: the gap of completed clocks is a walk on -(s+1) .. s+1 with equal rates,
  hence uniform over 2s+3 states; a worker is blocked in one of them: share 1/(2s+3);
* n workers, exponential times: a Markov chain on *how many* workers are at each lag 0 .. s+1 behind which
  only their number counts: C(n+s, s+1) states;
* any distribution: the recursion itself, its mean by Monte Carlo.

References
----------
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
Kemeny and Snell, "Finite Markov chains", 1960, section 6.3: lumping.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import linalg

from refsgd.cluster.distributions import Distribution
from refsgd.theory.prediction import (
    DomainError,
    Prediction,
    TooWide,
    check_count,
    check_distribution,
    check_time,
    kind_of,
    sampling,
)

Values = npt.NDArray[np.float64]

WIDEST = 2_000  # workers of an evaluated recursion
LARGEST_CHAIN = 6_000  # states; beyond it the chain is refused and the recursion is drawn


def check_slack(staleness: float) -> float:
    """The slack s, a whole number >= 0 or infinity; else DomainError."""
    if staleness == math.inf:
        return math.inf
    return check_count("staleness", int(staleness) if staleness == staleness else -1, 0)


def check_width(workers: int) -> None:
    """TooWide where there are too many workers to evaluate a recursion in a second or two."""
    if workers > WIDEST:
        raise TooWide(f"{workers} workers; the recursion of who waits for whom has no closed form and is "
                      f"evaluated for at most {WIDEST}")


def chain_size(workers: int, staleness: int) -> int:
    """States of the lumped chain: C(n+s, s+1)."""
    return math.comb(workers + staleness, staleness + 1)


@dataclass(frozen=True)
class Chain:
    """Stationary figures of SSP with equal exponential workers and no network."""

    blocked: float
    missed: float
    gap: float
    states: int


@functools.lru_cache(maxsize=64)
def lumped_chain(workers: int, staleness: int) -> Chain:
    """Solve the lumped Markov chain of SSP(s): n equal exponential workers, no network.

    A state counts the workers at lag 0, 1, ..., s+1 ahead of the slowest, at least one at 0.  Each of the m
    workers at a lag of at most s ends its clock at rate 1 and moves up by one; if it was the only one at lag
    0, all lags fall by one.  Those at s+1 are blocked.
    """
    n, s = check_count("workers", workers), check_count("staleness", staleness, 0)
    if chain_size(n, s) > LARGEST_CHAIN:
        raise DomainError(
            f"{chain_size(n, s)} states for {n} workers and slack {s}; the chain assumes at most "
            f"{LARGEST_CHAIN}")
    start = (n, *[0] * (s + 1))
    index, todo = {start: 0}, [start]
    rows: list[int] = []
    cols: list[int] = []
    rates: list[float] = []
    while todo:
        state = todo.pop()
        here = index[state]
        for lag in range(s + 1):
            if not state[lag]:
                continue
            new = list(state)
            new[lag], new[lag + 1] = new[lag] - 1, new[lag + 1] + 1
            after = tuple(new) if new[0] else (*new[1:], 0)
            if after not in index:
                index[after] = len(index)
                todo.append(after)
            rows += [index[after], here]
            cols += [here, here]
            rates += [float(state[lag]), -float(state[lag])]
    size = len(index)
    generator = sparse.coo_matrix((rates, (rows, cols)), shape=(size, size)).tolil()
    generator[size - 1, :] = 1.0  # replaces one redundant balance equation: probabilities add up to 1
    right = np.zeros(size)
    right[size - 1] = 1.0
    share: Values = np.atleast_1d(linalg.spsolve(generator.tocsc(), right))
    states = np.array(list(index), float)
    held = states[:, -1]
    running = n - held
    blocked = float(share @ held) / n
    missed = float(share @ (held * running)) / (float(share @ running))
    gap = float(share @ (states @ np.arange(s + 2))) / n
    return Chain(blocked, missed, gap, size)


@dataclass(frozen=True)
class Path:
    """Figures of the drawn recursion."""

    seconds: float
    error: float
    end: float
    staleness: float
    refreshes: float
    whole: bool = False
    queued: float = 0.0
    end_error: float = 0.0
    age_error: float = 0.0


def recursion(times: Sequence[Distribution], staleness: float, steps: int,
              exchange: float | Sequence[float] = 0.0, *,
              refresh: str = "fresh",
              gate: float | None = None, replicas: int = 0) -> Path:
    """Draw the recursion of SSP(s) and average.

    fresh: F_i(c) = T + E + max(F_i(c-1), max_j F_j(c-1-s)).  eager: a worker waits only for the bound,
    F_i(c) = T + max(F_i(c-1), max_j F_j(c-1-s) + G).  lazy: as fresh where the cache is older than c - s,
    else F_i(c) = T + F_i(c-1); a read at R brings the clock of the slowest at R.
    """
    n, s = check_count("workers", len(times)), check_slack(staleness)
    check_width(n)
    paid = np.broadcast_to(np.asarray(exchange, float), (n,))
    for e in paid:
        check_time("exchange", float(e))
    for time in times:
        check_distribution("compute", time)
    warm = 100
    clocks = min(max(steps, warm + 500), max(warm + 500, 1_000_000 // n))
    replicas = replicas or max(8 if n * clocks < 200_000 else 2, 400_000 // (n * clocks))
    rng = np.random.default_rng(2013)
    drawn = np.stack([time.sample(rng, replicas * clocks).reshape(replicas, clocks) for time in times],
                     axis=2)
    ends, reads, asked = _draw(drawn, s, paid, float(paid.max()) if gate is None else gate, refresh)
    each = n / np.sum((clocks - 1 - warm) / np.maximum(ends[-1] - ends[warm], 1e-300), axis=1)
    tail = paid if refresh == "fresh" else 0.0 * paid
    seen = min(steps, clocks)
    lasts = (ends[seen - 1] + tail).max(axis=1) if steps else np.zeros(replicas)
    last = float(np.mean(lasts)) + (steps - seen) * float(np.mean(each)) if steps else 0.0
    tied = all(time.family == "fixed" for time in times)
    error = 0.0 if tied else float(np.std(each) / math.sqrt(replicas))
    ages = _ages(ends[:seen], reads[:seen])
    return Path(float(np.mean(each)), error, last, float(np.mean(ages)), float(np.mean(asked[:max(seen, 1)])),
                end_error=float(np.std(lasts) / math.sqrt(replicas)) + (steps - seen) * error * bool(steps),
                age_error=float(np.std(ages) / math.sqrt(len(ages))))


def _draw(drawn: Values, s: float, exchange: Values, gate: float,
          refresh: str) -> tuple[Values, Values, Values]:
    """Ends F_i(c), read times and whether a read was asked for; shape (clocks, replicas, workers)."""
    replicas, clocks, n = drawn.shape
    ends, reads, asked = (np.zeros((clocks, replicas, n)) for _ in range(3))
    # the lower rank is served first where two end at once
    drawn = drawn + 1e-9 * np.mean(drawn) * np.arange(n)
    ends[0] = drawn[:, 0]
    slowest = np.full((clocks, replicas, 1), -math.inf)
    slowest[0, :, 0] = ends[0].max(axis=1)
    cache = np.zeros((replicas, n))  # clock of the cached row
    for c in range(1, clocks):
        own = ends[c - 1]
        bound = slowest[int(c - 1 - s)] if c - 1 - s >= 0 else np.full((replicas, 1), -math.inf)
        ready = np.maximum(own, bound)
        if refresh == "fresh":
            start, reads[c], asked[c] = ready + exchange, ready, 1.0
        elif refresh == "eager":
            start = np.maximum(own, bound + gate)
            known = np.full((replicas, n), -1.0)
            # the newest row; one that comes as the worker goes on is missed
            for m in range(max(0, c - 1 - int(min(s, c))), c):
                known = np.where((slowest[m] + gate < start) | ((slowest[m] + gate == start) & (start > own)),
                                 slowest[m], known)
            reads[c] = np.maximum(known, reads[c - 1])
        else:
            asks = cache < c - s
            start = np.where(asks, ready + exchange, own)
            found = np.zeros((replicas, n))
            for m in range(max(1, int(c - s)) if s < c else 1, c + 1):
                found = np.where(slowest[m - 1] <= ready, m, found)
            cache, asked[c] = np.where(asks, found, cache), asks
            reads[c] = np.where(asks, ready, reads[c - 1])
        ends[c] = drawn[:, c] + start
        slowest[c, :, 0] = ends[c].max(axis=1)
    return ends, reads, asked


def _ages(ends: Values, reads: Values) -> Values:
    """Mean number of updates of others between each read and its own update, of some replicas."""
    steps, replicas, n = ends.shape
    if n == 1 or not steps:
        return np.zeros(1)
    used = min(replicas, max(4, 60_000 // (n * steps)))
    total = np.zeros(used)
    for r in range(used):
        every = np.sort(ends[:, r].ravel())
        mine = np.sort(ends[:, r], axis=0)
        for i in range(n):
            between = np.searchsorted(every, ends[:, r, i],
                                      side="left") - np.searchsorted(every, reads[:, r, i], side="right")
            own = np.arange(steps) - np.searchsorted(mine[:, i], reads[:, r, i], side="right")
            total[r] += float(np.sum(np.maximum(between - own, 0)))
    return np.asarray(total / (n * steps))


def ssp(times: Sequence[Distribution], staleness: float, *, exchange: float | Sequence[float] = 0.0,
        steps: int = 1000,
        refresh: str = "fresh",
        gate: float | None = None) -> Prediction:
    """Seconds per iteration of SSP(s) with a constant exchange and nothing that queues.

    Parameters as in `recursion`.  Exact: n = 1; equal fixed times; equal exponential times with a small chain
    and no exchange; else the recursion, exact up to the stated standard error.  `lower` is the time without a
    bound.
    """
    n, s = check_count("workers", len(times)), check_slack(staleness)
    mean = math.fsum(check_distribution("compute", time).mean for time in times) / n
    each = np.broadcast_to(np.asarray(exchange, float), (n,))
    e = check_time("exchange", float(each.mean()))
    equal = len(set(times)) == 1 and bool(np.all(each == each[0]))
    source = "Ho et al. 2013: the gate; "
    if refresh == "fresh" and (n == 1 or (equal and times[0].family == "fixed") or (math.isinf(s) and equal)):
        return Prediction(mean + e, "s", "exact", {"compute E[T]": mean, "slack": 0.0, "exchange": e},
                          "E[T] + exchange: nobody is held", source, "no queueing")
    calm = e == 0 and not gate
    if calm and equal and times[0].family == "exponential" and s < 1000 and chain_size(
        n, int(s)) <= LARGEST_CHAIN:
        chain = lumped_chain(n, int(s))
        value = mean / (1 - chain.blocked)
        return Prediction(value, "s", "exact",
                          {"compute E[T]": mean, "slack": value - mean, "exchange": 0.0,
                           "blocked share": chain.blocked},
                          "E[T] / (1 - blocked share)" + (", blocked share 1/(2s+3)" if n == 2 else ""),
                          source + "lumped Markov chain", "equal exponential times; no network",
                          {"blocked share": "1"})
    path = recursion(times, s, steps, list(each), refresh=refresh, gate=gate)
    paid = e * path.refreshes if refresh != "eager" else 0.0
    rounds = [time.mean + float(x) * (paid / e if e else 0.0) for time, x in zip(times, each, strict=True)]
    harmonic = n / math.fsum(1 / r if r else math.inf for r in rounds)
    free = n / math.fsum(1 / time.mean if time.mean else math.inf for time in times)
    return Prediction(path.seconds, "s", kind_of(True, path.error),
                      {"compute E[T]": mean, "slack": max(path.seconds - harmonic, 0.0), "exchange": paid,
                       **sampling(path.error)},
                      "F_i(c) = T + max(F_i(c-1) + E, max_j F_j(c-1-s) + G), mean by Monte Carlo",
                      source + "max-plus recursion", "constant exchange; no queueing",
                      lower=harmonic if refresh == "fresh" else free)
