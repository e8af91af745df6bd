"""Iteration times: the slowest worker, models that servers send one by one, and pushes that queue.

In BSP through K parameter servers on separate nodes (Li et al. 2014; docs/server-link.md), each part takes g
= w/K seconds on a link, and workers are served in index order.  Server k has its last push k g after server
0, because every worker sends its parts one by one; worker i has the whole model u + latency + w + (i-1) g
after server 0's last push.  An incoming link that serves n arrivals, S_(k) the k-th smallest, in g seconds
each is done at max_k [S_(k) + (n-k+1) g] (Lindley 1952).  Hence, with S_i = T_i + i g,

    iteration = 2 latency + u + w - g + E max_k [S_(k) + (n-k+1) g]

for every distribution, n and K: each update empties the system, so iterations are independent and identically
distributed.

ASP is a closed queueing network: n workers compute, then their pushes pass three stations in series, the
server's incoming link (w/K), its processor (u) and its outgoing link (w/K).  The slowest station and the
workers' speed without queues limit the throughput (Lazowska et al. 1984, chapter 5)::

    X <= min(n / R, K / w, 1 / E[u]),        R = E[T] + 2 latency + (1 + 1/K) w + E[u]

Equal fixed times reach this bound: after the first round workers take turns, and below saturation none waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from refsgd.cluster.distributions import Distribution
from refsgd.theory.estimate import (
    Values,
    certain,
    check_count,
    check_distribution,
    check_time,
    kind_of,
    sampling,
)
from refsgd.theory.phenomena.stragglers import mean_of_maximum, sum_of
from refsgd.theory.prediction import DomainError, Prediction

SAMPLES = 2_000_000  # compute times drawn for one Monte Carlo mean, over all workers


def mean_time(times: Sequence[Distribution]) -> float:
    """E[T] in seconds, mean over the workers."""
    return math.fsum(check_distribution("compute", time).mean for time in times) / len(times)


def update_mean(update: Distribution | None) -> float:
    """E[u] in seconds; 0 if the machine has no update time."""
    return 0.0 if update is None else check_distribution("update", update).mean


def drain(arrivals: Values, service: float) -> Values:
    """When a link has served all arrivals of each row in order, `service` seconds each."""
    n = arrivals.shape[1]
    return np.asarray(np.max(np.sort(arrivals, axis=1) + service * np.arange(n, 0, -1), axis=1))


def controlled_mean(values: Values, controls: Sequence[tuple[Values, float]]) -> tuple[float, float]:
    """Monte Carlo mean and standard error; the regression of `values` on control variates (samples, known
    mean) removes known errors, e.g. that of the sampled E[max T]."""
    design = [c - mean for c, mean in controls if np.ptp(c) > 0 and math.isfinite(mean)]
    columns = np.stack([np.ones_like(values), *design], axis=1)
    solution, *_ = np.linalg.lstsq(columns, values, rcond=None)
    residual = values - columns @ solution
    return float(solution[0]), float(np.std(residual) / math.sqrt(len(values)))


def _drawn(times: Sequence[Distribution]) -> tuple[Values, list[tuple[Values, float]]]:
    """Drawn times, one row for each iteration (one row if all are fixed), and control variates."""
    rows = 1 if certain(*times) else max(SAMPLES // (8 * len(times)), 500)
    rng = np.random.default_rng(20170)
    drawn = np.stack([time.sample(rng, rows) for time in times], axis=1)
    return drawn, [(drawn.max(axis=1), mean_of_maximum(times)), (drawn.mean(axis=1), mean_time(times))]


def bsp_barrier(times: Sequence[Distribution], slice_time: float, *, staggered: bool = True, lag: float = 0.0,
                local: bool = False, least: float = 0.0) -> tuple[float, float]:
    """E max_k [S_(k) + (n-k+1) g] + lag, the time from the first answer to the last push; standard error."""
    n = len(times)
    remote = n - 1 if local else n
    if remote == 0:
        return mean_of_maximum(times), 0.0
    if slice_time == 0 and (lag == 0 or not local):
        return lag + mean_of_maximum(times), 0.0
    drawn, controls = _drawn(times)
    offsets = slice_time * np.arange(1, remote + 1) * staggered
    ends = lag + drain(drawn[:, n - remote:] + offsets, slice_time)
    if local:
        ends = np.maximum(ends, drawn[:, 0])
    return controlled_mean(np.maximum(ends, least), controls)


def behind(times: Sequence[Distribution], slice_time: float, local: bool = False) -> float:
    """Seconds from a worker's gradient to the last one, mean over workers (E max S - E S, S_i = T_i + i g):
    workers that are answered later start later, even with equal fixed times."""
    if slice_time == 0:
        return mean_of_maximum(times) - mean_time(times)
    drawn, controls = _drawn(times)
    starts = drawn + slice_time * (np.arange(len(times)) + (not local))
    return max(controlled_mean(starts.max(axis=1) - starts.mean(axis=1), controls)[0], 0.0)


def bsp(times: Sequence[Distribution], *, servers: int = 1, transfer: float = 0.0, latency: float = 0.0,
        update: Distribution | None = None, colocated: bool = False, duplex: str = "full") -> Prediction:
    """Seconds per iteration of BSP through parameter servers, index order; docs/server-link.md.

    Terms: waiting for workers that are still computing is straggling (`behind`); the rest beyond a lone
    exchange and the update is queueing.  It is exact for servers on separate nodes, unless several have
    random update times, and for one co-located server, whose worker 0 uses no link: the last of the others
    decides unless worker 0 is slower.  With K = n co-located servers, each worker sending to its own first,
    it is exact for equal fixed T, where all stay in step.  With one half-duplex server and r remote workers,
    the answers occupy its link for r w before it serves pushes.
    """
    n, k = check_count("workers", len(times)), check_count("servers", servers)
    w, alpha = check_time("transfer", transfer), check_time("latency", latency)
    u, mean = update_mean(update), mean_time(times)
    slowest, remote, half = mean_of_maximum(times), n - colocated, duplex == "half"
    if duplex not in ("full", "half") or (half and k > 1):
        raise DomainError(f"duplex {duplex!r}, servers {k}; expected full, or half with one server")
    exact = k == 1 or certain(update)
    error = 0.0
    if stepped := colocated and k == n > 1:  # all stay in step, and answers come at the same time
        total = slowest + 2 * alpha + u + 2 * (n - 1) / n * w
        exact = exact and (w == 0 or (len(set(times)) == 1 and certain(*times)))
        formula = "E[max T] + 2 latency + u + 2 (n-1)/n w"
    else:
        barrier, error = bsp_barrier(times, w / k, lag=2 * alpha + w - w / k, local=colocated,
                                     least=2 * remote * w * half)
        total, exact = barrier + u, exact and (k == 1 or not colocated)
        formula = "2 latency + u + (1 - 1/K) w + E max_k [S_(k) + (n-k+1) w/K], S_i = T_i + i w/K"
        if half:
            formula = "u + E max(2 r w, 2 latency + max_k [S_(k) + (r-k+1) w]), S_i = T_i + i w"
        elif colocated:
            formula = "E max(T_0, 2 latency + max_k [S_(k) + (n-k) w]) + u, S_i = T_i + i w, i = 1..n-1"
    straggling = min(slowest - mean if stepped or half else behind(times, w / k, colocated),
                     max(total - mean - u, 0.0))
    alone = 2 * alpha + (1 + 1 / k) * w if remote else 0.0
    transfer_term = min(alone, max(total - mean - straggling - u, 0.0))
    terms = {"compute E[T]": mean, "straggling": straggling, "transfer": transfer_term, "update": u,
             "queueing": max(total - mean - straggling - u - transfer_term, 0.0), **sampling(error)}
    told = ("renewal argument", "half duplex; one server") if half else (
        "renewal argument; Lindley 1952",
        "independent times; full duplex; parts of equal size; first come first served")
    spread = slowest + 2 * alpha + u + (n / k + 1) * w
    return Prediction(
        total, "s", kind_of(exact, error), terms, formula, *told,
        lower=None if colocated or half else max(mean + 2 * alpha + u + (n / k + 1) * w,
                                                 slowest + 2 * alpha + u + (1 + 1 / k) * w),
        upper=None if colocated or half or not exact else spread)


def bsp_run(times: Sequence[Distribution], steps: int, *, servers: int = 1, transfer: float = 0.0,
            latency: float = 0.0, update: Distribution | None = None, colocated: bool = False,
            duplex: str = "full") -> tuple[Prediction, Prediction]:
    """Seconds of an iteration of BSP, see `bsp`, and of a run from the common start (S_i = T_i) to the last
    answer, which leaves n-1 parts after the first one."""
    check_count("steps", steps)
    step = bsp(times, servers=servers, transfer=transfer, latency=latency, update=update, colocated=colocated,
               duplex=duplex)
    n, k, w, alpha, u = len(times), servers, transfer, latency, update_mean(update)
    if colocated and k == n > 1:
        total = steps * step.value
    elif colocated:
        first, _ = bsp_barrier(times, w / k, staggered=False, lag=alpha + w - w / k, local=True)
        total = first + u + (steps - 1) * step.value + (alpha + (n - 1) * w / k if n > 1 else 0.0)
    else:
        first, _ = bsp_barrier(times, w / k, staggered=False, lag=alpha)
        total = first + (steps - 1) * step.value + u + alpha + w + (n - 1) * w / k
    terms = {"iterations": steps * step.value, "first and last": total - steps * step.value,
             **sampling(steps * step.error)}
    run = Prediction(total, "s", step.kind, terms, "first barrier + (steps - 1) iterations + last answers",
                     step.source, step.assumptions)
    return step, run


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


def allreduce(times: Sequence[Distribution], exchange: Prediction, update: Distribution | None = None,
              period: int = 1) -> Prediction:
    """Seconds per iteration with an allreduce every H: (E[max of sums of H times] + exchange)/H + u.

    Exact for equal fixed times, where all start and end the exchange together, and if nothing is sent.  With
    random times, early ranks already send: then it is an upper bound for the ring, and for others an
    approximation, from 24 % high to 3 % low.
    """
    h, mean, sums = check_count("period", period), mean_time(times), [sum_of(time, period) for time in times]
    u = update_mean(update)
    if update is not None and h == 1 and not certain(update):
        u = mean_of_maximum([update] * len(times))
    slowest, each = mean_of_maximum([time for time, _ in sums]) / h, exchange.value / h
    together = len(set(times)) == 1 and certain(*times)
    exact = (all(known for _, known in sums) and exchange.kind == "exact"
             and (certain(update) or len(times) == 1) and (together or exchange.value == 0))
    told = (f"E[max T] + {exchange.formula} + u", exchange.source, exchange.assumptions) if h == 1 else (
        "(E[max_i sum_{h<=H} T_ih] + exchange)/H + u", "Stich 2019",
        "independent times; a barrier every H iterations")
    return Prediction(slowest + each + u, "s", kind_of(exact),
                      {"compute E[T]": mean, "straggling": slowest - mean, "transfer": each, "update": u},
                      *told, lower=slowest)
