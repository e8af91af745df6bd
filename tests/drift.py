"""Where clients' models meet that take several steps each before they are averaged: client drift.

Client i has f_i(x) = a_i/2 (x - c_i)^2, and all take part with equal weights, without noise and momentum.  H
steps at a rate shrink its distance from c_i by rho_i = (1 - rate a_i)^H.  A round that moves nothing on
average is at the mean of the c_i with weights 1 - rho_i: the optimum of all (weights a_i) for H = 1, their
plain mean for H -> infinity.

References
----------
Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning", ICML 2020: the drift.
Li et al., "Federated optimization in heterogeneous networks", MLSys 2020: the term with mu.
Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def fixed_point(curvatures: Sequence[float], optima: Sequence[float], rate: float, period: int,
                mu: float = 0.0) -> float:
    """The fixed point of FedAvg and local SGD, with mu > 0 of FedProx, which adds mu to each curvature and
    pulls to the round's model.
    """
    a, c = np.asarray(curvatures, float), np.asarray(optima, float)
    weights = (1 - (1 - rate * (a + mu))**period) * a / (a + mu)
    return float(weights @ c / weights.sum())


def largest_step(delay: int) -> float:
    """Up to which outer rate times (1 - rho) FedBuff with K = 1 converges at a constant delay, in updates.

    x' = x - s x_(t - delay) converges for 0 < s < 2 sin(pi / (2 (2 delay + 1))): 1 at a delay of 1, so that
    full moves of clients that reach their optima do not.  FedAsync converges at every delay.
    """
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))
