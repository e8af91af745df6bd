"""Idle ratio: 1 - (time a worker computes gradients)/(elapsed), mean over workers.

Bytes under way are waiting; being handed a message is an instant.

References
----------
Jia, Saha, Bhimani, Mi, IPCCC 2020, section IV-E and Fig. 11: idleness by latency and batch.
"""

from __future__ import annotations

from refsgd.theory.prediction import (
    DomainError,
    Prediction,
    check_share,
    check_time,
)


def latency_sweep(latency: float, per_compute: float) -> Prediction:
    """idle = k alpha/(T + k alpha), k latencies on the critical path of an iteration of T seconds."""
    x = check_time("latency", latency) * check_time("k/T", per_compute)
    return Prediction(x / (1 + x), "1", "exact", {"waiting over computing": x}, "k alpha/(T + k alpha)",
                      "Jia et al. 2020, Fig. 11(c)", "nothing waits but the latency")


def calibrated(latency: float, idle: float) -> float:
    """k/T [1/s] from one measured point: idle/(1 - idle)/latency.

    >>> round(latency_sweep(0.2, calibrated(0.01, 0.10)).value, 3)
    0.69
    """
    if not latency > 0 or check_share("idle", idle) == 1:
        raise DomainError(
            f"idle {idle} at latency {latency} s; calibration assumes a latency > 0 and less than all idle")
    return idle / (1 - idle) / latency
