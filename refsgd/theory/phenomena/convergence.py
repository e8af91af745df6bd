"""Expected loss on a quadratic after each update, and the learning rate that reaches a target first.

Along an eigenvector of the Hessian with eigenvalue a, a gradient at x is a x plus noise of variance s2,
independent of all other noise, and an algorithm that adds multiples of gradients maps second moments to
second moments (docs/explanation/staleness.md).  These recursions are derived here; each yields E[x^2] after
0, 1, 2, ... updates.  Its arrays broadcast: eigenvectors along the last axis, learning rates along the one
before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from refsgd.theory.estimate import Values

#: ``(a, rate, s2, v0) -> E[x^2]`` after 0, 1, 2, ... updates, of which v0 is the first
Recursion = Callable[[Values, Values, Values, Values], Iterator[Values]]
MOST = 100_000  #: updates after which a target counts as never reached
SETTLED = 400  #: updates by which a stable rate has reduced what it started with, at least
TURNS = 40  #: and this many times those that the recursion remembers
GRID = 10  #: rates that are tried together


def delayed(a: Values, rate: Values, s2: Values, v0: Values, staleness: Any,
            momentum: float = 0.0) -> Iterator[Values]:
    """One model that moves by the mean of gradients of given staleness, (schedules, updates, gradients): mean
    over schedules, whose last seven eighths repeat.  0 alone is SGD, n - 1 alone ASP with equal fixed times.

    It keeps E[x_i x_j] of a window of versions, version k in slot k mod its width.
    """
    ages, ha, v0 = np.array(staleness), rate * a, v0 + 0 * (rate * a + s2)
    (count, length, gradients), width, one = ages.shape, ages.max() + 2, np.arange(len(ages))[:, None]
    m = np.broadcast_to(v0, (count, width, width, *v0.shape)).copy()
    yield v0
    for k, at in enumerate(itertools.chain(range(length), itertools.cycle(range(length // 8, length)))):
        last, now, new, read = (k - 1) % width, k % width, (k + 1) % width, (k - ages[:, at]) % width
        row = (1 + momentum) * m[:, now] - momentum * m[:, last] - ha * m[one, read].mean(1)  # E[x_{k+1} x_j]
        square = (1 + momentum) * row[:, now] - momentum * row[:, last] - ha * row[one, read].mean(1)
        m[:, new] = m[:, :, new] = row
        m[:, new, new] = square + rate**2 * s2 / gradients
        yield m[:, new, new].mean(0)


def exponential(a: Values, rate: Values, s2: Values, v0: Values, workers: int,
                collected: int = 1) -> Iterator[Values]:
    """Equal exponential times and no exchange: the next gradient is any worker's, `collected` make an update
    (Mitliagkas et al. 2016; softsync: Gupta et al. 2016).

    Seven moments of the model x, the model r_i that worker i read last, and the sum s of the gradients since
    the last update: A = E[x^2], B = E[x r_i], C = E[r_i^2], D = E[r_i r_j], P = E[s x], Q = E[s r_i],
    S = E[s^2].  ASP needs the first four.
    """
    n, step = workers, rate / collected
    A = B = C = D = v0 + 0 * (rate * a + s2)
    while True:
        yield A
        P = Q = S = 0 * A
        for k in range(collected):
            S, P = S + 2 * a * Q + a * a * C + s2, P + a * B
            Y, q = B, Q + a * D  # E[x r_j] and E[s r_j] of a worker j that did not compute this gradient
            if k == collected - 1:
                A, Y = A - 2 * step * P + step**2 * S, B - step * q
            C, D = A / n + (1 - 1 / n) * C, 2 / n * Y + (1 - 2 / n) * D if n > 1 else C
            B, Q = A / n + (1 - 1 / n) * Y, P / n + (1 - 1 / n) * q


def unequal(a: Values, rate: Values, s2: Values, v0: Values, shares: Sequence[float]) -> Iterator[Values]:
    """ASP with exponential times and no exchange: the next gradient is worker i's with probability
    `shares[i]`; moments of the model (0) and of what each worker read last (1 to n)."""
    v0, i = v0 + 0 * (rate * a + s2), np.arange(len(shares))
    p = np.reshape(shares, (-1, *[1] * v0.ndim))
    m = np.broadcast_to(v0, (i.size + 1, i.size + 1, *v0.shape)).copy()
    while True:
        yield m[0, 0].copy()
        moved = m[:1] - rate * a * m[1:]  # [i, j]: E[x' m_j] if worker i moves the model to x'
        moved[i, i + 1] = moved[i, 0] - rate * a * moved[i, i + 1] + rate**2 * s2  # and it reads x'
        each, kept = p[:, None] * moved[:, 1:], (1 - p) * m[i + 1, i + 1]
        m[1:, 1:] = each + each.swapaxes(0, 1) + (1 - p[:, None] - p) * m[1:, 1:]
        m[i + 1, i + 1] = each[i, i] + kept
        m[0, 1:] = m[1:, 0] = each.sum(0)
        m[0, 0] = each[i, i].sum(0)


def elastic(a: Values, rate: Values, s2: Values, v0: Values, workers: int, period: int,
            alpha: float) -> Iterator[Values]:
    """The centre of synchronous EASGD (Zhang et al. 2015) after each of its updates, one in `period`
    iterations: moments of the centre c and the mean replica x, which an exchange moves by the force and by
    the gradient at x before it.
    """
    cc = cx = xx = v0 + 0 * (rate * a + s2)
    for t in itertools.count():
        if not t % period:
            yield cc
        force = 0.0 if t % period else alpha
        stay, keep, pull = 1 - workers * force, 1 - force - rate * a, workers * force
        cc, cx, xx = (stay**2 * cc + 2 * stay * pull * cx + pull**2 * xx,
                      stay * force * cc + (stay * keep + pull * force) * cx + pull * keep * xx,
                      force**2 * cc + 2 * force * keep * cx + keep**2 * xx + rate**2 * s2 / workers)


def parting(alpha: float, period: int) -> float:
    """The rate times curvature h from which replicas part in synchronous EASGD: distances from their mean are
    multiplied by (1 - alpha - h) (1 - h)^(period - 1) from one exchange to the next."""
    low, high = 1 - alpha / 2, 2.0  # where 1 - alpha - h has turned, and where even a step alone grows
    for _ in range(60):
        h = (low + high) / 2
        low, high = (h, high) if (h - 1 + alpha) * abs(h - 1)**(period - 1) < 1 else (low, h)
    return low


def losses(recursion: Recursion, a: Values, rates: Values, s2: Values, v0: Values) -> Iterator[Values]:
    """The expected loss of each rate after 0, 1, 2, ... updates."""
    return ((a / 2 * square).sum(-1) for square in recursion(a, np.reshape(rates, (-1, 1)), s2, v0))


@np.errstate(all="ignore")  # of rates that diverge, or a loss of 0
def first(curves: Iterable[Values], target: float) -> tuple[float, int]:
    """When the first of several expected losses is at the target, interpolated in its logarithm, and which
    one; infinity if none is there within `MOST` updates, or all stay where they are."""
    before = earlier = np.array([math.inf])
    for k, now in enumerate(itertools.islice(curves, MOST)):
        if (there := np.flatnonzero(now <= target)).size:
            if not k:
                return 0.0, int(there[0])
            parts = np.log(before[there] / target) / np.log(before[there] / now[there])
            return k - 1 + float(parts.min()), int(there[parts.argmin()])
        if k % 100 == 0:
            if not (np.abs(now - earlier) > 1e-9 * now).any():  # nor if they are no numbers
                break
            earlier = now
        before = now
    return math.inf, 0


@np.errstate(all="ignore")
def best_rate(recursion: Recursion, a: Values, s2: Values, v0: Values, target: float,
              most: float = math.inf, memory: float = 0) -> tuple[float, float, float]:
    """The stable rate, below `most`, whose expected loss is first at the target; when it is there; and the
    limit of stability, from which on E[x^2] grows where there is no noise.  Found by grids that narrow, over
    more updates the more of them gradients or a velocity remember: what oscillates slowly grows slowly."""
    ends, updates = np.array([a.min(), a.max()]), round(max(SETTLED, TURNS * memory))
    low, high = 1e-6 / a.max(), min(8 / a.max(), 0.9999 * most)
    for _ in range(5):
        grid = np.geomspace(low, high, GRID)
        squares = itertools.islice(recursion(ends, grid[:, None], 0 * ends, ends**0), updates)
        early, late = np.array_split(np.array(list(squares)), 2)
        falls = late.sum(0) <= early.sum(0) * (1 + 1e-12)  # or stays, where a rate moves nothing
        k = max(1, int(np.argmin([*falls.all(-1), False])))
        low, high = grid[k - 1], grid[min(k, GRID - 1)]
    limit, low, high = low, low / 10_000, low
    for _ in range(5):
        grid = np.geomspace(low, high, GRID)
        fewest, k = first(losses(recursion, a, grid, s2, v0), target)
        low, high = grid[max(k - 1, 0)], grid[min(k + 1, GRID - 1)]
    return float(grid[k]), fewest, float(limit)
