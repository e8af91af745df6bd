"""Stability of gradient descent with stale gradients on a quadratic of curvature a.

References
----------
Mitliagkas, Zhang, Hadjis, Re, "Asynchrony begets momentum", Allerton 2016, theorem 3.
Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016.
Levin and May, "A note on difference-delay equations", Theoretical Population Biology 9, 1976: constant delay.
Polyak, "Some methods of speeding up the convergence of iteration methods", 1964: heavy ball.
"""

from __future__ import annotations

import math

from refsgd.theory.estimate import check_count
from refsgd.theory.prediction import DomainError, Prediction


def constant_delay(tau: int, curvature: float = 1.0) -> Prediction:
    """Largest stable learning rate of x_{t+1} = x_t - lr a x_{t-tau}: 2 sin(pi / (2 (2 tau + 1))) / a.

    At the limit z^{tau+1} - z^tau + lr a = 0 has a root exp(i phi).  Its modulus gives lr a = 2 sin(phi/2),
    its argument phi (tau + 1/2) = pi/2 as the smallest solution.  tau = 0: 2/a; large tau: about pi/(2 tau
    a).
    """
    tau, a = check_count("tau", tau, 0), float(curvature)
    if not 0 < a < math.inf:
        raise DomainError(f"curvature {curvature}; the formula assumes a finite number > 0")
    value = 2 * math.sin(math.pi / (2 * (2 * tau + 1))) / a
    return Prediction(value, "1", "exact", {"without delay": 2 / a}, "2 sin(pi/(2 (2 tau + 1))) / a",
                      "Levin and May 1976", "quadratic; every gradient tau updates old")
