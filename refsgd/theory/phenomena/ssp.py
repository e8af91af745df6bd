"""The share of time that SSP's workers wait for its bound, where it has a closed form.

A worker with C completed clocks may start the next one iff C - min completed <= s.  For equal workers with
exponential times and no network:

* two workers: the gap of completed clocks is a walk on -(s+1) .. s+1 with equal rates, hence uniform over
  2s+3 states; a worker is blocked in one of them: share 1/(2s+3);
* n workers: a Markov chain on *the number* of workers at each lag 0 .. s+1: C(n+s, s+1) states.

In all other cases `refsgd.theory.phenomena.queues` evaluates the recursion.

References
----------
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
Kemeny and Snell, "Finite Markov chains", 1960, section 6.3: lumping.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from refsgd.theory.estimate import Values, check_count

LARGEST_CHAIN = 6_000  # states; beyond it the recursion is evaluated


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
    """Share of time in which a worker waits, from the lumped chain of n equal exponential workers.

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
