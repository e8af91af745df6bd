"""One fixed model as a compiled loop: BSP and ASP through one server, the same moments as the simulator's,
bit for bit.

The simulator runs any program and keeps everything that happened; this keeps the figures of one model alone
and is some fifty times as fast: for sweeps over thousands of workers or millions of iterations.  It is
compared with the simulator on a shape-only problem (`refsgd.problems.shapes`): equal seconds, updates and
staleness, on machines that are a law of computing, latency and bandwidth.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from refsgd.cluster import prices
from refsgd.cluster.machine import Machine
from refsgd.cluster.prices import Draws
from refsgd.problems.nn.kernel_cache import kept

RESUME, HEAD, ARRIVE = range(3)  # at one moment in this order, as in the simulator


@dataclass(frozen=True)
class Timing:
    """When a parameter server's run did what.

    Attributes
    ----------
    seconds : float
        When the last program returned.
    times : ndarray, (updates,)
        Of the updates [s].
    staleness : ndarray of int64, (gradients,)
        Updates between the read and the application of each gradient, in order of application.
    idle_ratio : float
        1 - (time computing gradients) / elapsed, mean over workers; 0 for an empty run.
    """

    seconds: float
    times: npt.NDArray[np.float64]
    staleness: npt.NDArray[np.int64]
    idle_ratio: float


def parameter_server(machine: Machine, workers: int, steps: int, nbytes: int, seed: int = 0, *,
                     synchronous: bool = False) -> Timing:
    """Simulate BSP or ASP through one server.

    Examples
    --------
    >>> parameter_server(Machine("fixed(1)", latency=0.25), workers=2, steps=3, nbytes=100).seconds
    4.5
    """
    if workers < 1 or steps < 0:
        raise ValueError(f"workers {workers}, steps {steps}; expected at least 1 worker and steps >= 0")
    if machine.colocated:
        raise ValueError("servers are colocated; expected a server with a link of its own, or the simulator")
    group = workers if synchronous else 1
    gradients = np.array([_durations(machine, "worker", i, seed, "gradient", steps) for i in range(workers)])
    updates = _durations(machine, "server", 0, seed, "update", workers * steps // group)
    byte_time = 1 / machine.bandwidth
    seconds, times, staleness = _run(gradients, updates, group, machine.latency, nbytes * byte_time,
                                     byte_time > 0, machine.duplex == "half")
    busy = float(gradients.sum()) / workers
    return Timing(seconds, times, staleness, 1 - busy / seconds if seconds else 0.0)


def _durations(machine: Machine, role: str, rank: int, seed: int, kind: str, count: int) -> npt.NDArray[np.float64]:
    """The first durations of a kind, as a program draws them."""
    draws = Draws(prices.at(machine, role, rank), seed, f"{role}{rank}")
    return np.array([draws.duration(kind) for _ in range(count)])


@numba.njit(cache=kept())
def _at(agenda, time, order, to_worker, i, n, sequence):  # type: ignore[no-untyped-def]
    """Enter what happens to worker i's push, or to the model for it: at one moment by order, rank of the
    cause, sequence."""
    rank = n if to_worker else i
    heapq.heappush(agenda,
                   (time, ((order * (n + 1) + rank) << 40) + sequence, (i << 3) + (to_worker << 2) + order))
    return sequence + 1


@numba.njit(cache=kept())
def _send(agenda, free, now, source, to_worker, i, n, latency, wire, links,
          sequence):  # type: ignore[no-untyped-def]
    """Transmit over the outgoing link of `source`, one message after the other."""
    start = max(now, free[source])
    free[source] = start + wire
    return _at(agenda, start + latency, HEAD if links else ARRIVE, to_worker, i, n, sequence)


@numba.njit(cache=kept(), nogil=True)
def _run(gradients, updates, group, latency, wire, links, half):  # type: ignore[no-untyped-def]
    """The two programs as one loop; a happening is (time, place among those of one time, worker and what)."""
    n, steps = gradients.shape
    times, staleness = np.empty(updates.size), np.empty(n * steps, np.int64)
    free = np.zeros(n + 1)  # when each outgoing link is; the server's is the last
    free_in = free if half else np.zeros(n + 1)
    # iterations of each worker, and the version that it read
    done, read = np.zeros(n, np.int64), np.zeros(n, np.int64)
    # who has pushed; the server has taken those before `first`
    queue, first, last = np.empty(n * steps, np.int64), 0, 0
    busy, version, sequence, seconds = False, 0, 0, 0.0
    agenda = [(0.0, 0, 0) for _ in range(0)]
    for i in range(n if steps else 0):
        sequence = _at(agenda, gradients[i, 0], RESUME, 0, i, n, sequence)
    while agenda:
        now, _, what = heapq.heappop(agenda)
        order, to_worker, i = what & 3, (what >> 2) & 1, what >> 3
        if order == HEAD:  # the incoming link serves heads in the order in which they reach it
            target = i if to_worker else n
            free_in[target] = max(now, free_in[target]) + wire
            sequence = _at(agenda, free_in[target], ARRIVE, to_worker, i, n, sequence)
        elif order == RESUME and to_worker:  # the server has updated, and answers those whose gradients it took
            times[version], busy = now, False
            for k in range(first - group, first):
                staleness[k] = version - read[queue[k]]
            version += 1
            for k in range(group):
                j = k if group > 1 else queue[first - 1]
                read[j] = version
                sequence = _send(agenda, free, now, n, 1, j, n, latency, wire, links, sequence)
        elif order == RESUME:
            sequence = _send(agenda, free, now, i, 0, i, n, latency, wire, links, sequence)
        elif to_worker:
            done[i] += 1
            seconds = now
            if done[i] < steps:
                sequence = _at(agenda, now + gradients[i, done[i]], RESUME, 0, i, n, sequence)
        else:
            queue[last] = i
            last += 1
        if not busy and last - first >= group:
            first, busy = first + group, True
            sequence = _at(agenda, now + updates[version], RESUME, 1, 0, n, sequence)
    return seconds, times, staleness
