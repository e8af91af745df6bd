"""Throughput of a parameter server that answers each push: saturation and queueing.

ASP is a closed queueing network: n workers compute, then their pushes pass three stations in series, the
server's incoming link (w/K), its processor (u) and its outgoing link (w/K).  The slowest station and the
workers' speed without queues limit the throughput (Lazowska et al. 1984, chapter 5)::

    X <= min(n / R, K / w, 1 / E[u]),        R = E[T] + 2 latency + (1 + 1/K) w + E[u]

Equal fixed times reach this bound: after the first round workers take turns, and below saturation none waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from refsgd.cluster.distributions import Distribution
from refsgd.theory.estimate import certain, check_count, check_time
from refsgd.theory.phenomena.iteration import mean_time, update_mean
from refsgd.theory.prediction import Prediction


def alone(times: Sequence[Distribution], servers: int, transfer: float, latency: float, update: float,
          colocated: bool = False) -> list[float]:
    """R_i - E[T_i]: seconds of each worker's exchange without queueing.

    A co-located worker reaches its own servers without the network.  With a server on every node, pushes and
    answers share each node's outgoing link, which takes 2 (n-1)/n w.
    """
    n = len(times)
    if not colocated:
        return [2 * latency + (1 + 1 / servers) * transfer + update] * n
    if servers == n:
        return [(2 * latency if n > 1 else 0.0) + 2 * (n - 1) / n * transfer + update] * n
    out = []
    for i in range(n):
        own = servers // n + (i < servers % n)
        away = (servers - own) / servers
        out.append(update + (2 * latency + (away + 1 / servers) * transfer if away else 0.0))
    return out


def mean_value_analysis(workers: int, round_time: float, service: float,
                        cv2: float = 0.0) -> tuple[float, float]:
    """Throughput and time at the bottleneck of a closed network with one station that queues.

    Workers are added one by one (Lazowska et al. 1984, chapter 6).  An arriving push finds the queue of the
    network without itself: Q others, one of them in service with probability U, with (1 + cv2)/2 of its
    service left.
    """
    if not service:
        return workers / round_time if round_time else math.inf, 0.0
    queue = busy = rate = wait = 0.0
    for j in range(1, workers + 1):
        wait = service * (1 + queue - busy + busy * (1 + cv2) / 2)
        rate = min(j / (round_time - service + wait), 1 / service)
        queue, busy = rate * wait, rate * service
    return rate, wait


def asp(times: Sequence[Distribution], *, servers: int = 1, transfer: float = 0.0, latency: float = 0.0,
        update: Distribution | None = None, colocated: bool = False) -> Prediction:
    """Seconds per iteration of ASP: n / (updates per second).

    Exact for equal fixed times, for any times with negligible links and updates, and for equal workers with
    exponential updates and negligible links (`repairman`).  Otherwise it is mean-value analysis of the
    slowest station, an approximation within 8 %.  `colocated`: servers on workers' hosts, if nothing queues.
    """
    n, k = check_count("workers", len(times)), check_count("servers", servers)
    w, alpha, u = check_time("transfer", transfer), check_time("latency", latency), update_mean(update)
    mean, exchanges = mean_time(times), alone(times, k, w, alpha, u, colocated)
    rounds = [time.mean + e for time, e in zip(times, exchanges, strict=True)]
    harmonic_round = n / math.fsum(1 / r for r in rounds) if all(rounds) else 0.0
    service = max(w / k, u) if n > 1 else 0.0
    cv2 = update.variance / (u * u) if update is not None and u > w / k and math.isfinite(
        update.variance) else 0.0
    lower = max(harmonic_round, n * service)
    equal = len(set(times)) == 1
    fixed = equal and certain(*times, update)
    if fixed or not service:
        value, kind = lower, True
    elif equal and w == 0 and k == 1 and update is not None and update.family == "exponential":
        value, kind = n / repairman(n, mean + 2 * alpha, u), True
    else:
        value, kind = max(n / mean_value_analysis(n, harmonic_round, service, cv2)[0], lower), False
    lone, queueing = math.fsum(exchanges) / n - u, max(value - harmonic_round, 0.0)
    return Prediction(
        value, "s", "exact" if kind else "approximation",
        {"compute E[T]": max(harmonic_round - lone - u, 0.0), "transfer": lone, "update": u,
         "queueing": queueing},
        "max(R, n w/K, n u), R = E[T] + 2 latency + (1 + 1/K) w + u" if fixed else
        "n/X, X by mean-value analysis on the slowest of link (w/K) and server (u)" if not kind
        else "n / sum 1/R_i",
        "Lazowska et al. 1984, chapters 5 and 6", "independent times; full duplex; first come first served",
        lower=lower)


def repairman(workers: int, think: float, service: float) -> float:
    """Updates per second of one server with exponential update times and negligible links.

    In the machine-repairman model (Takacs 1962, chapter 5) j of n workers are at the server with probability
    proportional to n!/(n-j)! (service/think)^j, for *any* distribution of compute times (insensitivity).
    """
    if think == 0:
        return 1 / service
    logs = [math.lgamma(workers + 1) - math.lgamma(workers - j + 1) + j * math.log(service / think)
            for j in range(workers + 1)]
    top = max(logs)
    idle = math.exp(logs[0] - top) / math.fsum(math.exp(x - top) for x in logs)
    return (1 - idle) / service
