"""Training through a ring whose ranks do not start together: the max-plus recursion of its messages.

Only one rank sends to an incoming link, so messages cannot overtake each other, and no agenda is needed.  Let
rank i be ready for a step of the ring at t_i, its outgoing and incoming links be free at o_i and e_i, a chunk
take c seconds on a link and r seconds to add, and alpha be the latency.  Then

    start_i = max(t_i, o_i),   o_i = start_i + c,
    e_i = max(start_{i-1} + alpha, e_i) + c,   t_i = max(t_i, e_i) [+ r]

2 (n-1) times in an exchange.  A late rank delays only the ranks that wait for it, and early ones send in the
meantime, so this takes less than E[max T] + exchange, the time of ranks that start together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from refsgd.cluster.distributions import Distribution
from refsgd.theory.estimate import Estimate, Values, certain, sampled
from refsgd.theory.phenomena.collectives import Link

STEPS = 12_000  # of the ring, in one replica; a longer run is continued at its pace
DRAWS = 60_000  # compute times drawn for all replicas


@dataclass(frozen=True)
class Rounds:
    """The pace of a run in rounds, and its end."""

    pace: Estimate  #: seconds of a round, mean over the ranks
    end: Estimate  #: seconds of the run
    steady: bool = True  #: whether the pace is that of the long run
    whole: bool = True  #: whether the run was evaluated to its end


def summary(ends: Values, seen: Sequence[int], gradients: Sequence[int], random: bool) -> Rounds:
    """Pace and end, from the times at which rounds ended (replicas, rounds, peers)."""
    mean, low = ends.mean(axis=2), len(seen) // 3
    middle = (low + len(seen)) // 2

    def pace(a: int, b: int) -> Values:
        return np.asarray((mean[:, b - 1] - (mean[:, a - 1] if a else 0.0)) / (b - a))

    each = Estimate.of(pace(low, len(seen)))
    steady = random or (low > 0 and math.isclose(float(pace(low, middle)[0]), each.value, rel_tol=1e-9))
    unseen = math.fsum(gradients[len(seen):]) / max(seen[-1], 1)
    return Rounds(each, Estimate.of(ends[:, -1].max(axis=1)).continued(unseen, each), steady,
                  random or len(seen) == len(gradients))


def rounds(times: Sequence[Distribution], gradients: Sequence[int], chunk: float, link: Link,
           updates: Sequence[Distribution | None], *, before: int = 0, after: int = 0) -> Rounds:
    """Rounds of a fixed number of gradients and a ring allreduce."""
    n, own = len(times), list(updates)
    seen = gradients[: max(STEPS // max(2 * (n - 1), 1), 12)]
    random = not certain(*times, *own)
    replicas = max(4 if n > 500 else 8, min(256, DRAWS // (n * sum(seen) + 1))) if random else 1
    rng = np.random.default_rng(2009)
    ready, outgoing, incoming = (np.zeros((replicas, n)) for _ in range(3))
    ends = np.zeros((replicas, len(seen), n))
    for k, h in enumerate(seen):
        computing = sampled(rng, times, replicas, h).sum(axis=2)
        ready += computing + sampled(rng, own, replicas, h * before).sum(axis=2)
        _exchange(ready, outgoing, incoming, chunk, link)
        ready += sampled(rng, own, replicas, after).sum(axis=2)
        ends[:, k] = ready
    return summary(ends, seen, gradients, random)


def _exchange(ready: Values, outgoing: Values, incoming: Values, chunk: float, link: Link) -> None:
    """One allreduce in all replicas: changes when each rank is ready and its links are free."""
    wire, start, head = link.wire(chunk), np.empty_like(ready), np.empty_like(ready)
    n = ready.shape[1]
    for step in range(2 * (n - 1)):
        np.maximum(ready, outgoing, out=start)
        np.add(start, wire, out=outgoing)
        np.add(start[:, :-1], link.latency, out=head[:, 1:])  # from the previous rank
        np.add(start[:, -1], link.latency, out=head[:, 0])
        np.maximum(head, incoming, out=incoming)
        incoming += wire
        np.maximum(ready, incoming, out=ready)
        if step < n - 1:
            ready += link.reduction * chunk
