"""What staleness does to gradient descent on a quadratic of curvature a.

References
----------
Mitliagkas, Zhang, Hadjis, Re, "Asynchrony begets momentum", Allerton 2016, theorem 3.
Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016.
Levin and May, "A note on difference-delay equations", Theoretical Population Biology 9, 1976: constant delay.
Polyak, "Some methods of speeding up the convergence of iteration methods", 1964: heavy ball.
"""

from __future__ import annotations

import math

from refsgd.theory.prediction import DomainError, Prediction, check_count


def _curvature(curvature: float) -> float:
    if not curvature > 0 or math.isinf(curvature):
        raise DomainError(f"curvature {curvature}; the formula assumes a finite number > 0")
    return float(curvature)


def constant_delay(tau: int, curvature: float = 1.0) -> Prediction:
    """Largest stable learning rate of x_{t+1} = x_t - lr a x_{t-tau}: 2 sin(pi / (2 (2 tau + 1))) / a.

    On the edge z^{tau+1} - z^tau + lr a = 0 has a root exp(i phi); its modulus gives lr a = 2 sin(phi/2), its
    argument phi (tau + 1/2) = pi/2, the smallest of the solutions.  tau = 0: 2/a; large tau: about pi/(2 tau a).

    Parameters
    ----------
    tau : int
        Staleness of every gradient [updates], >= 0.
    curvature : float
        a, of the quadratic, > 0.

    Returns
    -------
    Prediction
    """
    tau, a = check_count("tau", tau, 0), _curvature(curvature)
    value = 2 * math.sin(math.pi / (2 * (2 * tau + 1))) / a
    return Prediction(value, "1", "exact", {"without delay": 2 / a}, "2 sin(pi/(2 (2 tau + 1))) / a",
                      "Levin and May 1976", "quadratic; every gradient tau updates old")


def implicit_momentum(workers: int) -> Prediction:
    """Momentum that geometric staleness amounts to in expectation: 1 - 1/n, *with learning rate lr/n*.

    E x_{t+1} - E x_t = -lr a sum_j (1/n) q^j E x_{t-j}, q = 1 - 1/n; subtracting q times the same at t-1 leaves
    (x_{t+1} - x_t) = q (x_t - x_{t-1}) - (lr/n) a x_t: heavy ball.

    Parameters
    ----------
    workers : int
        n, at least 1.

    Returns
    -------
    Prediction
    """
    n = check_count("workers", workers)
    return Prediction(1 - 1 / n, "1", "exact", {"momentum": 1 - 1 / n, "learning rate times": 1 / n}, "1 - 1/n, lr/n",
                      "Mitliagkas et al. 2016, theorem 3", "staleness geometric and independent of the iterates; in expectation")


def geometric_delay(workers: int, curvature: float = 1.0) -> Prediction:
    """Largest learning rate at which the expectation is stable under geometric staleness: (4n - 2)/a.

    Heavy ball with momentum mu and rate r is stable iff 0 < r a < 2 (1 + mu); here r = lr/n and mu = 1 - 1/n.
    The variance asks for less.

    Parameters
    ----------
    workers : int
        n, at least 1.
    curvature : float
        a, of the quadratic, > 0.

    Returns
    -------
    Prediction
    """
    n, a = check_count("workers", workers), _curvature(curvature)
    return Prediction((4 * n - 2) / a, "1", "exact", {"without staleness": 2 / a}, "(4n - 2)/a",
                      "Mitliagkas et al. 2016; Polyak 1964", "quadratic; expectation only; independent staleness")


def aware_rate(workers: int) -> Prediction:
    """Mean factor on the learning rate of lr / max(1, tau) under geometric staleness: (1 + ln n)/n.

    P(tau = 0) = 1/n and sum_{j>=1} (1/n) q^j / j = -ln(1 - q)/n = ln(n)/n.

    Parameters
    ----------
    workers : int
        n, at least 1.

    Returns
    -------
    Prediction
    """
    n = check_count("workers", workers)
    return Prediction((1 + math.log(n)) / n, "1", "exact", {"fresh": 1 / n, "stale": math.log(n) / n}, "(1 + ln n)/n",
                      "Zhang et al. 2016; geometric staleness", "equal exponential times; no queueing")
