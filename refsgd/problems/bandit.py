"""The softmax bandit: the smallest problem of reinforcement learning, with the samples that actors draw.

A policy chooses arm a with probability pi_a of ``pi = softmax(x)`` and gets its reward r_a plus noise; the
loss is the negative expected reward J = sum pi_a r_a, whose gradient is -pi_a (r_a - J).  A rollout of b
choices may be drawn with one policy and used for the gradient of a later one, with the importance ratio
rho = pi_new(a) / pi_old(a) of each choice.

References
----------
Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", Machine
Learning 8, 1992.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refsgd.effects import Array
from refsgd.problems.problem import Problem, with_batches

Samples = tuple[Any, Array, Array]  #: arms chosen, their rewards, log-probabilities when they were; (b,) each
CUT = 2.0  #: the largest ratio that "truncated" uses


@dataclass(frozen=True)
class Rollouts:
    """The gradient in two halves, of which the first may be computed at an older x."""

    sample: Callable[[Array, int, int], Samples]  #: ``(x, rank, t)``: choices of the policy x
    #: ``(x, samples, correct)``: minus the policy gradient at x, (d,), with ratios 1 ("none"), rho ("is") or
    #: at most 2 ("truncated")
    surrogate: Callable[..., Array]


def log_softmax(x: Array) -> Array:
    """Logarithms of the probabilities of the policy x."""
    z = x - x.max()
    return np.asarray(z - np.log(np.sum(np.exp(z))))


def bandit(arms: int = 10, batch: int | Sequence[int] = 16, noise: float = 0.1, seed: int = 0,
           baseline: float | None = None) -> Problem:
    """A bandit whose arms, at least 2, have the rewards 0, 1/(arms - 1), ..., 1 in a drawn order, with noise
    of standard deviation `noise`; `batch` is the number of choices in a rollout, or in each worker's.

    The order is drawn from `seed`, choices and noise from (seed, rank, t).  `baseline` is subtracted from all
    rewards, by default the mean reward of the rollout.
    """
    means = np.random.default_rng([seed, 6]).permutation(np.linspace(0, 1, arms))
    batches = [batch] if isinstance(batch, int) else list(batch)

    def sample(x: Array, rank: int, t: int) -> Samples:
        rng, logp = np.random.default_rng([seed, 7, rank, t]), log_softmax(x)
        edges = np.cumsum(np.exp(logp, dtype=float))
        size = batches[rank % len(batches)]
        chosen = np.searchsorted(edges[:-1], edges[-1] * rng.random(size), "right").astype(np.int32)
        rewards = means[chosen] + noise * rng.standard_normal(size)
        return chosen, rewards.astype(x.dtype), logp[chosen]

    def surrogate(x: Array, samples: Samples, correct: str = "none") -> Array:
        chosen, rewards, drawn = samples
        logp = log_softmax(x)
        ratio = np.exp(logp[chosen] - drawn) if correct != "none" else np.ones_like(drawn)
        if correct == "truncated":
            ratio = np.minimum(ratio, x.dtype.type(CUT))
        weight = ratio * (rewards - (rewards.mean() if baseline is None else x.dtype.type(baseline)))
        g = np.exp(logp) * weight.sum() - np.bincount(chosen, weight, arms)
        return np.asarray(g / len(chosen), x.dtype)

    def gradient(x: Array, rank: int, t: int) -> Array:
        return surrogate(x, sample(x, rank, t))

    found = Problem(np.zeros(arms, np.float32), gradient,
                    lambda x: -float(np.exp(log_softmax(np.asarray(x, float))) @ means),
                    describe={"data": "bandit", "net": "bandit", "parameters": arms, "bytes": 4 * arms},
                    rollouts=Rollouts(sample, surrogate))
    return with_batches(found, batches)
