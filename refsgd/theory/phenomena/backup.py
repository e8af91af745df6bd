"""Synchronous SGD with backup workers: the first N of n = N + k gradients count.

A late worker *finishes* its gradient, which is dropped, and only then starts on the new model.  So a step
begins with N fresh workers and k stale ones.  Remaining exponential times are again exponential: with F fresh
and Z stale workers computing, the next to end is fresh with probability F/(F+Z), and contributes; otherwise
it is stale, and starts on the new model::

    h(F, Z) = [1 + F h(F-1, Z) + Z h(F+1, Z-1)] / (F + Z),    h = 0 where F + Z = k

A step takes h(N, k) E[T].  If late workers are cancelled instead, it takes the N-th order statistic of n
times.

References
----------
Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting distributed synchronous SGD", 2016.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from refsgd.cluster.distributions import Distribution
from refsgd.theory.estimate import Estimate, certain, check_count, check_distribution, check_width
from refsgd.theory.phenomena import queues
from refsgd.theory.phenomena.gate import Fresh, Server, Table
from refsgd.theory.phenomena.stragglers import mean_of_maximum, mean_of_order
from refsgd.theory.prediction import DomainError, Prediction

SEED = 1604


@functools.lru_cache(maxsize=256)
def steps_of_mean(fresh: int, backups: int) -> float:
    """h(N, k): seconds of a step over E[T], for exponential times, if late workers finish.

    >>> steps_of_mean(3, 0), round(steps_of_mean(3, 1), 4)
    (1.8333333333333333, 1.3542)
    """
    n = fresh + backups
    h: dict[tuple[int, int], float] = {}
    for active in range(backups, n + 1):
        for z in range(min(backups, active) + 1):
            f = active - z
            if active == backups:
                h[f, z] = 0.0
                continue
            later = h[f + 1, z - 1] if z else 0.0
            h[f, z] = (1 + (f * h[f - 1, z] if f else 0.0) + z * later) / active
    return h[fresh, backups]


class Quorum(Fresh):
    """Backup workers: the first n - k pushes of a step are answered together, late ones immediately."""

    def __init__(self, network: queues.Network, times: Table, updates: Iterator[float], backups: int) -> None:
        self.needed = len(times) - backups
        self.started, self.got = [0] * len(times), list[int]()  # step of each worker; counting pushes
        self.steps = list[float]()  # ends of steps
        self.computing, self.sent = 0.0, 0
        super().__init__(network, times, updates)

    def begin(self, start: float, i: int) -> None:
        """Begin a gradient of the server's step, if there is another step."""
        step = self.servers[0].seen[i]
        if step < self.clocks:
            self.started[i] = step
            self.computing += self.times[i][step]
            self.sent += 1
            self.then(start + self.times[i][step], i, self.push)

    def apply(self, server: Server, i: int) -> None:
        """Do nothing: only whole steps are updates."""

    def arrive(self, k: int, server: Server, i: int, request: int) -> None:
        """Answer a late push immediately, the others after the last counting push and the update."""
        ready = [i]
        if self.started[i] == len(self.steps):
            self.got.append(i)
            if len(self.got) < self.needed:
                return
            self.update(server)
            self.steps.append(server.busy)
            ready, self.got = sorted(self.got), []
        self.release(k, server, ready)

    def others(self, server: Server, i: int) -> int:
        """The step of the model that a worker receives."""
        return len(self.steps)

    def summary(self) -> tuple[float, ...]:
        """Pace after the first quarter, end, share of computing, pushes per step."""
        low = self.clocks // 4
        pace = (self.steps[-1] - (self.steps[low - 1] if low else 0.0)) / (self.clocks - low)
        return pace, self.final, self.computing / (self.n * self.final), self.sent / self.clocks


def evaluated(times: Sequence[Distribution], network: queues.Network, backups: int,
              steps: int) -> tuple[Estimate, Estimate, Estimate, Estimate]:
    """Seconds of a step and of a run, share of computing, pushes of a run, through one server's queues."""
    n = len(times)
    check_width(n)
    random = not certain(*times, network.update)
    weight = queues.weight_of(network, n, random)
    seen = min(steps, max(queues.MESSAGES // weight, queues.LEAST))
    replicas = max(4 if weight > 500 else 8, min(256, queues.DRAWS // (weight * seen))) if random else 1
    rows = queues.evaluated(Quorum, times, network, seen, replicas, backups, seed=SEED)
    pace, end, computing, pushes = (Estimate.of(column) for column in rows.T)
    return pace, end.continued(steps - seen, pace), computing, pushes.scaled(steps)


def backup_workers(times: Sequence[Distribution], backups: int, *, cancelled: bool = False) -> Prediction:
    """Seconds per iteration if the first n - k of n equal workers count, without a network.

    If late workers finish: exact for exponential times (h), otherwise by Monte Carlo.  In every case
    E[T_(N:n)] <= step <= E[max of N fresh].
    """
    n, k = check_count("workers", len(times)), check_count("backups", backups, 0)
    if k >= n or len(set(times)) > 1:
        raise DomainError(f"{k} backups of {n} workers; the formula assumes equal workers, and at least one "
                          "that counts")
    needed, first = n - k, check_distribution("compute", times[0])
    quickest = mean_of_order(times, needed)
    if cancelled or k == 0 or first.family == "fixed":
        step, formula = Estimate(quickest), "E[T_(N:n)]"
    elif first.family == "exponential":
        step, formula = Estimate(first.mean * steps_of_mean(needed, k)), "h(N, k) E[T]"
    else:
        step = evaluated(times, queues.Network(), k, 200)[0]
        formula = "N-th fresh end, late workers finish; by Monte Carlo"
    return step.predicted("s", {"compute E[T]": first.mean, "straggling": step.value - first.mean}, formula,
                          "Chen et al. 2016",
                          f"independent times; late workers {'are cancelled' if cancelled else 'finish'}",
                          lower=quickest, upper=mean_of_maximum(times[:needed]))
