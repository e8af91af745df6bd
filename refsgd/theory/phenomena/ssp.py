"""The time that SSP's workers wait for its bound: chains with a closed solution, and a recursion.

docs/algorithms/ssp.md has both.  With an exchange of E_i seconds that does not queue, clock c of worker i is
applied at F_i(c) = T_i(c) + E_i + max(F_i(c-1), max_j F_j(c-1-s)) (Baccelli et al. 1992).  Its mean is that
of drawn times, with a standard error.  The staleness of a clock is the number of the others' updates since
its read, which is at that maximum.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from refsgd.cluster.distributions import Distribution
from refsgd.theory.estimate import Estimate, Values, certain, check_count, check_width, sampled

LARGEST_CHAIN = 6_000  # states; beyond it the recursion is evaluated
SHORT, LONG = 400, 4_000  # clocks that are evaluated: at least, and at most to reach the long run
DRAWS = 600_000  # compute times drawn for all replicas
RANKED = 16  # replicas whose updates are put in order


def check_slack(staleness: float) -> float:
    """The slack s, a whole number >= 0 or infinity; otherwise DomainError."""
    if staleness == math.inf:
        return math.inf
    return check_count("staleness", int(staleness) if staleness == staleness else -1, 0)


def chain_size(workers: int, staleness: int) -> int:
    """States of the lumped chain: C(n+s, s+1)."""
    return math.comb(workers + staleness, staleness + 1)


@functools.lru_cache(maxsize=64)
def blocked_share(workers: int, staleness: int) -> float:
    """Share of time in which a worker waits, from the chain of n equal exponential workers without a network,
    lumped (Kemeny and Snell 1960, section 6.3) to *the number* of workers at each lag.

    A state counts the workers that are 0, 1, ..., s+1 clocks ahead of the slowest, at least one of them 0.
    Each worker less than s+1 ahead ends its clock at rate 1 and moves up by one; if it was the only slowest
    one, all others then fall by one.  Those s+1 ahead are blocked.
    """
    n, s = workers, staleness
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
    generator[size - 1, :] = 1.0  # probabilities sum to 1, instead of a redundant balance equation
    right = np.zeros(size)
    right[size - 1] = 1.0
    share: Values = np.atleast_1d(linalg.spsolve(generator.tocsc(), right))
    return float(share @ np.array(list(index), float)[:, -1]) / n


@dataclass(frozen=True)
class Gated:
    """Means of a run of the recursion."""

    pace: Estimate  #: seconds of an iteration in the long run
    excess: Estimate  #: seconds of the run beyond `steps` iterations of that pace
    staleness: Estimate

    def end(self, steps: int, pace: float | None = None) -> Estimate:
        """Seconds of the run, at the known pace of the long run if it is given."""
        whole = self.pace if pace is None else Estimate(pace)
        return Estimate(steps * whole.value + self.excess.value, self.excess.error + steps * whole.error)


def gated(times: Sequence[Distribution], exchanges: Sequence[float], s: float, steps: int,
          pace: float | None = None) -> Gated:
    """The recursion of a run; if the `pace` of the long run is known, only the beginning is evaluated, and
    the excess of a longer run is that of the last step that is."""
    n, random = len(times), not certain(*times)
    check_width(n)
    spread = min((time.variance / time.mean**2 for time in times if time.mean and time.variance), default=1.0)
    far = SHORT + 4 * (min(s, LONG) + 1) ** 2 / spread  # clocks until workers differ by s
    clocks = int(min(far, LONG) if pace is not None else max(min(steps, LONG), min(far, LONG)))
    replicas = max(4, min(256, DRAWS // (n * clocks))) if random else 1
    drawn = sampled(np.random.default_rng(1983), times, replicas, clocks) + np.array(exchanges)[:, None]
    reads, ends = np.zeros_like(drawn), np.zeros((replicas, n, clocks + 1))
    for c in range(clocks):
        slowest = ends[:, :, max(c - int(min(s, clocks)), 0)].max(axis=1, keepdims=True)
        reads[:, :, c] = np.maximum(ends[:, :, c], slowest)
        ends[:, :, c + 1] = reads[:, :, c] + drawn[:, :, c]
    seen, low = min(steps, clocks), clocks // 2
    each = Estimate.of(n / (1 / ((ends[:, :, -1] - ends[:, :, low]) / (clocks - low))).sum(axis=1))
    known = each.value if pace is None else pace
    excess = Estimate.of(ends[:, :, seen].max(axis=1) - seen * known)
    return Gated(each, excess, _staleness(reads[:RANKED, :, :seen], ends[:RANKED, :, 1:seen + 1]))


def _staleness(reads: Values, ends: Values) -> Estimate:
    """Mean number of others' updates between a read and its update."""
    found = []
    for read, end in zip(reads, ends, strict=True):
        order = np.sort(end, axis=None)
        before, after = (np.searchsorted(order, at, side="right") for at in (read, end))
        found.append(float(np.mean(after - before)) - 1)
    return Estimate.of(np.array(found))
