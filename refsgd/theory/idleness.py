"""Idle ratio: 1 - (time a worker computes gradients)/(elapsed), mean over workers.

Bytes under way are waiting; being handed a message is an instant.

References
----------
Jia, Saha, Bhimani, Mi, IPCCC 2020, section IV-E and Fig. 11: idleness by latency and batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy import optimize

from refsgd.laws import Law
from refsgd.theory.gossip import mean_of_longer
from refsgd.theory.prediction import DomainError, Prediction, check_count, check_law, check_share, check_time
from refsgd.theory.stragglers import harmonic


def of_rates(rates: Sequence[float], laws: Sequence[Law]) -> Prediction:
    """Any algorithm: 1 - mean_i (iterations/s of worker i) E[T_i], exact in the long run.

    Parameters
    ----------
    rates : sequence of float
        Iterations per second of each worker, >= 0.
    laws : sequence of Law
        Compute time of each worker [s].

    Returns
    -------
    Prediction
    """
    if not rates or len(rates) != len(laws) or any(not r >= 0 for r in rates):
        raise DomainError(f"{len(rates)} rates, {len(laws)} laws; the formula assumes a rate >= 0 and a law per worker")
    busy = [r * check_law("compute", law).mean for r, law in zip(rates, laws, strict=True)]
    return Prediction(1 - math.fsum(busy) / len(busy), "1", "exact", {f"worker{i} computes": b for i, b in enumerate(busy)},
                      "1 - mean_i X_i E[T_i]", "definition", "long run")


def of_iteration(law: Law, seconds_per_iteration: float) -> Prediction:
    """Equal workers: 1 - E[T]/seconds_per_iteration, exact in the long run.

    Parameters
    ----------
    law : Law
        Compute time [s].
    seconds_per_iteration : float
        At least E[T].

    Returns
    -------
    Prediction
    """
    mean = check_law("compute", law).mean
    if not seconds_per_iteration >= mean:
        raise DomainError(f"{seconds_per_iteration} s per iteration; the formula assumes at least E[T] = {mean:g} s")
    value = 1 - mean / seconds_per_iteration if seconds_per_iteration else 0.0
    return Prediction(value, "1", "exact", {"compute E[T]": mean, "iteration": seconds_per_iteration},
                      "1 - E[T]/iteration", "definition", "equal workers; long run", {"compute E[T]": "s", "iteration": "s"})


def bsp_exponential(workers: int) -> Prediction:
    """BSP, exponential times, no network: 1 - 1/H_n, all of it straggling.

    Parameters
    ----------
    workers : int
        n, at least 1.

    Returns
    -------
    Prediction
    """
    h = harmonic(check_count("workers", workers))
    return Prediction(1 - 1 / h, "1", "exact", {"straggling": 1 - 1 / h}, "1 - 1/H_n", "Renyi 1953",
                      "equal exponential times; no network")


def adpsgd_asker(law: Law, exchange: float) -> Prediction:
    """Asking peer of AD-PSGD: 1 - E[T]/E[max(T, x)]; an asked peer is never idle.

    Parameters
    ----------
    law : Law
        Compute time [s].
    exchange : float
        Seconds of an exchange, >= 0.

    Returns
    -------
    Prediction
    """
    mean = check_law("compute", law).mean
    longer = mean_of_longer(law, check_time("exchange", exchange))
    return Prediction(1 - mean / longer if longer else 0.0, "1", "exact", {"partner": 1 - mean / longer if longer else 0.0},
                      "1 - E[T]/E[max(T, x)]", "Lian et al. 2018", "askers do not meet at one partner")


def latency_sweep(latency: float, per_compute: float) -> Prediction:
    """idle = k alpha/(T + k alpha), k latencies on the critical path of an iteration of T seconds.

    Parameters
    ----------
    latency : float
        alpha [s].
    per_compute : float
        k/T [1/s]; see `calibrated`.

    Returns
    -------
    Prediction
    """
    x = check_time("latency", latency) * check_time("k/T", per_compute)
    return Prediction(x / (1 + x), "1", "exact", {"waiting over computing": x}, "k alpha/(T + k alpha)",
                      "Jia et al. 2020, Fig. 11(c)", "nothing waits but the latency")


def calibrated(latency: float, idle: float) -> float:
    """k/T [1/s] from one measured point: idle/(1 - idle)/latency.

    Parameters
    ----------
    latency : float
        alpha [s], > 0.
    idle : float
        Measured idle share, in [0, 1).

    Returns
    -------
    float
        k/T [1/s].

    Examples
    --------
    >>> round(latency_sweep(0.2, calibrated(0.01, 0.10)).value, 3)
    0.69
    """
    if not latency > 0 or check_share("idle", idle) == 1:
        raise DomainError(f"idle {idle} at latency {latency} s; calibration assumes a latency > 0 and less than all idle")
    return idle / (1 - idle) / latency


def fitted(points: Sequence[tuple[float, float]]) -> float:
    """k/T [1/s] from several (latency, idle) points: the smallest largest error of the idle ratio.

    Parameters
    ----------
    points : sequence of (float, float)
        Latency [s] and idle share of each measurement.

    Returns
    -------
    float
        k/T [1/s].

    Examples
    --------
    >>> k = fitted([(0.010, 0.10), (0.200, 0.72)])
    >>> [round(latency_sweep(a, k).value, 3) for a in (0.010, 0.200)]
    [0.109, 0.711]
    """
    if not points:
        raise DomainError("0 points; the fit assumes at least one")
    starts = [math.log(calibrated(a, i)) for a, i in points]

    def misfit(log_k: float) -> float:
        return max(abs(latency_sweep(a, math.exp(log_k)).value - i) for a, i in points)

    if max(starts) - min(starts) < 1e-12:
        return math.exp(starts[0])
    return math.exp(float(optimize.minimize_scalar(misfit, bounds=(min(starts), max(starts)), method="bounded",
                                                   options={"xatol": 1e-10}).x))
