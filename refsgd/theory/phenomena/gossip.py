"""Gossip: how fast replicas that average with neighbours agree, and how long that takes.

The consensus distance of replicas x_1..x_n is D = (1/n) sum_i |x_i - xbar|^2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from refsgd.cluster.distributions import Distribution, survival
from refsgd.theory.estimate import Estimate, Values, certain, check_count, check_width, sampled
from refsgd.theory.phenomena.collectives import Rounds
from refsgd.theory.phenomena.stragglers import integrate_survival
from refsgd.theory.prediction import DomainError, Prediction

Counts = npt.NDArray[np.int64]

CLOCKS = 600  # iterations of an evaluated run; its pace excludes the first ones


def pair(workers: int) -> Prediction:
    """Factor on E[D] when a uniformly random pair is replaced by its average, which reduces n D by
    |x_i - x_j|^2 / 2, n D / (n-1) on average; exact."""
    n = check_count("workers", workers, 2)
    return Prediction(1 - 1 / (n - 1), "1", "exact", {"lost per exchange": 1 / (n - 1)}, "1 - 1/(n-1)",
                      "Boyd et al. 2006", "pair uniform over all pairs")


def mixing(weights: Values) -> Prediction:
    """Bound, which is reached, on the factor of the *deviation* |X - Xbar| in a round of a fixed symmetric W:
    the largest of its eigenvalues besides that of the all-ones vector, in absolute value."""
    w = np.asarray(weights, float)
    square = w.ndim == 2 and w.shape[0] == w.shape[1]
    if not (square and np.allclose(w, w.T) and np.allclose(w.sum(1), 1) and (w >= 0).all()):
        raise DomainError(f"weights of shape {w.shape}; the formula assumes a symmetric matrix >= 0 with "
                          "rows that sum to 1")
    n = len(w)
    value = float(np.max(np.abs(np.linalg.eigvalsh(w - np.ones((n, n)) / n))))
    return Prediction(value, "1", "bound", {"spectral gap": 1 - value}, "max(|lambda_2|, |lambda_n|)",
                      "Xiao and Boyd 2004", "fixed symmetric W", bound="upper")


def ring_mixing(workers: int) -> Prediction:
    """`mixing` of a ring with weights 1/3: 1/3 + 2/3 cos(2 pi/n) for n >= 4, 0 for n = 3."""
    n = check_count("workers", workers, 3)
    value = 1 / 3 + 2 / 3 * math.cos(2 * math.pi / n) if n > 3 else 0.0
    return Prediction(value, "1", "bound", {"spectral gap": 1 - value}, "1/3 + 2/3 cos(2 pi/n)",
                      "Xiao and Boyd 2004", "ring, weights 1/3", bound="upper")


@functools.lru_cache(maxsize=1024)
def mean_of_longer(time: Distribution, other: float) -> float:
    """E[max(T, x)] in seconds for a fixed x."""
    fixed = Distribution("fixed", (other,))

    def survive(t: Values) -> Values:
        return np.where(t < other, 1.0, survival(time, t))

    return integrate_survival([time, fixed], survive)


Group = tuple[Counts, Counts, Counts]


def _groups(heard: Sequence[Sequence[int]], rotated: bool) -> list[Group]:
    """Peers with equal numbers of in-neighbours; their in-neighbours; receivers that these serve before."""
    n = len(heard)
    to = [sorted(i for i in range(n) if j in heard[i]) for j in range(n)]
    if rotated:
        to = [[i for i in receivers if i > j] + [i for i in receivers if i < j]
              for j, receivers in enumerate(to)]
    out = []
    for count in sorted({len(near) for near in heard} - {0}):
        peers = [i for i in range(n) if len(heard[i]) == count]
        near = [list(heard[i]) for i in peers]
        out.append((np.array(peers), np.array(near),
                    np.array([[to[j].index(i) for j in heard[i]] for i in peers])))
    return out


def neighbours(times: Sequence[Distribution], sources: Sequence[Sequence[Sequence[int]]], latency: float,
               transfer: float = 0.0, *, update: float = 0.0,
               before: bool = False, rotated: bool = False, steps: int = CLOCKS) -> Rounds:
    """Iteration and run of synchronous gossip, from the recursion of its links.

    A peer starts its next iteration when it has its own result and the replicas of its in-neighbours, which
    are sent before computing or after the update.  Messages to k earlier receivers leave before the next one,
    and an incoming link serves its m heads h in order of arrival (Lindley 1952)::

        head = max(ready, out) + k w + latency,   in = max(in + m w, max_k [h_(k) + (m - k + 1) w])

    No peer waits for all, so delays travel one hop per iteration.  If transfers take no time, this is exact
    up to the standard errors; otherwise it assumes that an incoming link serves all heads of an iteration
    before those of the next.
    """
    n = len(times)
    check_width(n)
    busiest = max(len(near) for heard in sources for near in heard)
    clocks = max(48, min(CLOCKS, 500_000 // (n * busiest + 1)))
    seen = min(steps, clocks)
    replicas = 1 if certain(*times) else max(8, 300_000 // (n * clocks))
    rng = np.random.default_rng(1705)
    drawn = sampled(rng, times, replicas, clocks)
    groups = [_groups(heard, rotated) for heard in sources]
    sends = [np.bincount([j for near in heard for j in near], minlength=n) for heard in sources]
    starts, warm, end, first = np.zeros((replicas, n)), np.zeros(replicas), np.zeros(replicas), clocks // 6
    outgoing, incoming = np.zeros((replicas, n)), np.zeros((replicas, n))
    for t in range(clocks):
        own = starts + drawn[:, :, t] + (0.0 if before else update)
        leaves = np.maximum(starts if before else own, outgoing)
        outgoing = leaves + transfer * sends[t % len(sends)]
        for peers, near, place in groups[t % len(groups)]:
            heads = np.sort(leaves[:, near] + transfer * place + latency,
                            axis=2) if transfer else leaves[:, near] + latency
            left = transfer * np.arange(heads.shape[2], 0, -1)
            incoming[:, peers] = np.maximum(incoming[:, peers] + left[0], (heads + left).max(axis=2))
        starts = np.maximum(own, incoming) + (update if before else 0.0)
        warm = starts.mean(axis=1) if t == first else warm
        end = starts.max(axis=1) if t == seen - 1 else end
    pace = Estimate.of((starts.mean(axis=1) - warm) / (clocks - 1 - first))
    return Rounds(pace, Estimate.of(end).continued(steps - seen, pace))
