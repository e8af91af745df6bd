"""Parameter servers with queues on links and bounds between workers: recursions, evaluated numerically.

A message whose head reaches the servers at h passes their incoming link, processor and outgoing link.  Each
serves in order of arrival (Lindley 1952), and parameters take g = w/K seconds on a link::

    in = max(in, h) + g,    busy = max(busy, in) + u,    out = max(out, busy) + g

An answer reaches its worker at out + latency + (K-1) g.  The worker then computes a gradient and pushes it.
Algorithms differ in *the clock that the slowest worker must have before a server answers*: c - s for SSP's
clock c, a bound that moves for dynamic SSP, none for Downpour and EASGD; with backup workers, an answer waits
for the N-th push of a step.  If links take no time, only the max-plus recursion of the bound is left: with
F_i(c) the end of clock c at worker i, and E a constant exchange,

    F_i(c) = T_i(c) + E + max(F_i(c-1), max_j F_j(c-1-s))

Its mean has a closed form only for exponential times (`refsgd.theory.phenomena.ssp`).  Otherwise the
recursion is evaluated in order of arrival for drawn times, and its mean is given with its standard error.

References
----------
Lindley, "The theory of queues with a single server", Proc. Camb. Phil. Soc. 48, 1952.
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
Zhao et al., "Dynamic stale synchronous parallel distributed training for deep learning", ICDCS 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from refsgd.cluster.distributions import Distribution
from refsgd.theory.estimate import Estimate, Values, certain, check_width, sampled
from refsgd.theory.phenomena import layerwise
from refsgd.theory.phenomena.gate import HEAVIEST, Server, Table, too_many
from refsgd.theory.phenomena.gate import Fresh as Fresh
from refsgd.theory.phenomena.gate import Network as Network

MESSAGES = 6_000  # of one replica, at most; a longer run is continued at its pace
DRAWS = 60_000  # compute times drawn for all replicas
PACE = 20_000  # messages from which a short run's pace is taken: LEAST to 160 gradients of each worker
LEAST = 40  # gradients of each worker
MANY = 200  # workers, beyond which PACE and LEAST are halved: a prediction takes two seconds at most


class Bulk(Fresh):
    """BSP: one update of all gradients of a step, then all answers; `rotated`: server k's worker first."""

    def __init__(self, network: Network, times: Table, updates: Iterator[float], rotated: bool) -> None:
        self.rotated = rotated
        super().__init__(network, times, updates)

    def apply(self, server: Server, i: int) -> None:
        """Count a push; only whole steps are updates."""
        server.count(i)

    def arrive(self, k: int, server: Server, i: int, request: int) -> None:
        """Update and answer when the last push of a step has arrived."""
        if server.slowest > server.version:
            self.update(server)
            server.version += 1
            first = k % self.n if self.rotated else 0
            self.release(k, server, [*range(first, self.n), *range(first)])


class Batched(Fresh):
    """Softsync: one update of `size` gradients, but an answer to each push."""

    def __init__(self, network: Network, times: Table, updates: Iterator[float], size: int) -> None:
        self.size = size
        super().__init__(network, times, updates)
        self.kept = [list[int]() for _ in self.servers]  # staleness of the pushes that are kept
        self.left = [self.gradients] * len(self.servers)

    def apply(self, server: Server, i: int) -> None:
        """Count a push, which is kept until there are enough, or no more."""
        server.count(i)

    def arrive(self, k: int, server: Server, i: int, request: int) -> None:
        """Update if there are enough pushes, and answer."""
        kept = self.kept[k]
        kept.append(server.version - server.known[i][server.done[i] - 1])
        self.left[k] -= 1
        if len(kept) == self.size or not self.left[k]:
            self.update(server)
            self.age += sum(kept)
            server.version += 1
            kept.clear()
        self.release(k, server, [i])


class Granting(Fresh):
    """Dynamic SSP: beyond `lower`, a worker is granted the clocks after which its wait is shortest.

    Intervals of the worker and of the slowest worker, in pushes, are assumed to repeat (Zhao et al.,
    algorithm 2).
    """

    def __init__(self, network: Network, times: Table, updates: Iterator[float], lower: int,
                 upper: int) -> None:
        self.lower, self.upper = lower, upper
        # for each worker: clocks granted, its last push, its next push; in pushes of all workers
        self.pushes: dict[Server, tuple[list[int], list[int], list[int]]] = {}
        super().__init__(network, times, updates)

    def need(self, server: Server, i: int) -> float:
        """A bound that moves with each push of the worker."""
        if server not in self.pushes:
            self.pushes[server] = [0] * self.n, [0] * self.n, [0] * self.n
        granted, last, due = self.pushes[server]
        now = server.version
        last[i], due[i] = now, now + now - last[i]
        ahead = server.done[i] - server.slowest
        if not granted[i] and ahead > self.lower:
            granted[i] = self.grant(server, due[i] - now, ahead)
        bound = max(self.lower, ahead - (not granted[i]))
        granted[i] = max(granted[i] - 1, 0)
        return server.done[i] - bound

    def grant(self, server: Server, mine: int, ahead: int) -> int:
        """The fewest clocks, each of `mine` pushes, after which the slowest worker's next push comes soonest.

        The slowest worker is that of those behind whose next push is due last, but not in the past.
        """
        _, last, due = self.pushes[server]
        now, latest = server.version, max(map(due.__getitem__, server.behind))
        slow = max(j for j in server.behind if due[j] == latest) if latest > now else max(server.behind)
        gap = max(latest, now) - last[slow]
        return min(range(max(self.upper + 2 - ahead, 1)),
                   key=lambda extra: (last[slow] - now - extra * mine) % gap)


class Lazy(Fresh):
    """SSP with a lazy cache: a worker reads only if its cache is older than c - s."""

    asking, timely = 1, True

    def start(self) -> None:
        """Give row 0 to all workers."""
        self.rows = [[0] * len(self.servers) for _ in range(self.n)]  # clock of the slowest, of each part
        self.inbox: list[list[tuple[int, int, int]]] = [[] for _ in range(self.n)]
        self.blocked = set[int]()
        super().start()

    def begin(self, start: float, i: int) -> None:
        """Begin a gradient with all rows that have arrived."""
        self.take(i, math.inf)
        super().begin(start, i)

    def push(self, now: float, i: int) -> None:
        """Push, then continue or wait for newer rows."""
        super().push(now, i)
        if min(self.rows[i]) >= self.made[i] - self.s:
            self.begin(now, i)
        else:
            self.blocked.add(i)
            self.wait(now, i)
            self.look(now, i)

    def wait(self, now: float, i: int) -> None:
        """Send a request after the push."""
        self.ask(now, i)

    def answered(self, at: float, k: int, i: int, row: int, others: int) -> None:
        """A row arrives in a worker's inbox."""
        self.inbox[i].append((k, row, others))
        if i in self.blocked:
            self.look(at, i)

    def look(self, now: float, i: int) -> None:
        """Begin if the rows that have arrived are new enough."""
        if self.take(i, self.made[i] - self.s) >= self.made[i] - self.s:
            self.blocked.remove(i)
            self.begin(now, i)

    def take(self, i: int, enough: float) -> int:
        """Put rows into the cache until its oldest one is new enough; returns that one's clock."""
        while self.inbox[i] and min(self.rows[i]) < enough:
            k, row, others = self.inbox[i].pop(0)
            self.rows[i][k], self.servers[k].seen[i] = row, others
        return min(self.rows[i])


class Eager(Lazy):
    """SSP with an eager cache: servers send a row whenever the slowest clock advances."""

    def start(self) -> None:
        """Start without any row sent."""
        self.sent = [0] * len(self.servers)
        super().start()

    def wait(self, now: float, i: int) -> None:
        """Do nothing: rows come without a request."""

    def arrive(self, k: int, server: Server, i: int, request: int) -> None:
        """Send a row to all if the slowest clock has advanced."""
        if server.slowest > self.sent[k]:
            self.sent[k] = server.slowest
            self.release(k, server, range(self.n))


class Fetching(Fresh):
    """Downpour, EASGD: a worker waits only for its fetches.

    A push follows gradients 0, `push_every`, ... and the last one, or each fetch if `elastic`.
    """

    asking = 1

    def __init__(self, network: Network, times: Table, updates: Iterator[float], fetch_every: int,
                 push_every: int, elastic: bool, own: Table) -> None:
        steps = range(len(times[0]))
        self.own, self.fetch_every, self.elastic = own, fetch_every, elastic
        self.pushes = [not elastic and (t % push_every == 0 or t == steps[-1]) for t in steps]
        # in the order of time if nodes share links, or if a worker computes for many iterations
        over = network.over(len(times))
        self.timely = bool(over.crowded) or over.instant or fetch_every > 40 * push_every
        self.window = [0, *(t + 1 for t in steps if self.pushes[t])]  # first gradient of each push
        super().__init__(network, times, updates)
        if elastic:
            self.gradients = self.n * -(-self.clocks // fetch_every)

    def start(self) -> None:
        """Start all workers with a fetch."""
        for i in range(self.n):
            self.ask(0.0, i)

    def begin(self, start: float, i: int) -> None:
        """Compute until the next push or fetch."""
        while self.made[i] < self.clocks:
            t = self.made[i]
            start = start + self.times[i][t] + self.own[i][t]
            self.made[i] += 1
            self.ends[i].append(start)
            for server in self.servers:
                server.known[i].append(server.seen[i])
            if self.pushes[t] or self.made[i] % self.fetch_every == 0:
                self.then(start, i, self.ended)
                return

    def ended(self, now: float, i: int) -> None:
        """Push if it is due; then fetch if it is due, otherwise continue."""
        if self.pushes[self.made[i] - 1]:
            self.push(now, i)
        if self.made[i] % self.fetch_every == 0:
            self.ask(now, i)
        else:
            self.begin(now, i)

    def others(self, server: Server, i: int) -> int:
        """All updates, including the worker's own."""
        return server.version

    def complete(self, at: float, i: int) -> None:
        """A worker has the current model, and if elastic returns its force immediately."""
        if self.elastic:
            self.push(at, i)
        self.begin(at, i)

    def staleness(self, server: Server, i: int) -> float:
        """All updates since the read, including own ones, summed over the gradients of a push."""
        number = server.done[i]
        if self.elastic:
            return server.version - server.known[i][number * self.fetch_every]
        first, end = self.window[number], self.window[number + 1]
        return (end - first) * server.version - sum(server.known[i][first:end])


class Centred(Fetching):
    """Synchronous EASGD: the next centre is sent once all forces on this one have been added."""

    def apply(self, server: Server, i: int) -> None:
        """Add all forces when the last one has arrived."""
        server.count(i)
        if server.slowest > server.version:
            self.update(server)
            server.version += 1

    def arrive(self, k: int, server: Server, i: int, request: int) -> None:
        """Answer a request immediately, or with the next centre if the worker's force on this one is here."""
        if request and server.done[i] > server.version:
            server.waiting.append((server.done[i], i))
        elif request:
            self.release(k, server, [i])
        elif server.waiting and server.waiting[0][0] <= server.version:
            self.release(k, server, [j for _, j in server.waiting])
            server.waiting = []


def evaluated(rule: type[Any], times: Sequence[Distribution], network: Network, clocks: int, replicas: int,
              *args: Any, own: Sequence[Distribution | None] = (), seed: int = 1983) -> Values:
    """The summaries of independent evaluations, (replicas, metrics)."""
    rng, update = np.random.default_rng(seed), network.update
    count = len(times) * clocks * (len(network.ways.answers) if network.ways else 1)
    tables = [sampled(rng, each, replicas, clocks) for each in (times, own) if each]
    rows = []
    for r in range(replicas):
        updates = repeat(0.0) if update is None else iter(update.sample(rng, count).tolist())
        drawn, *after = (table[r].tolist() for table in tables)
        run = rule(network, drawn, updates, *args, *after)
        run.run()
        rows.append(run.summary())
    return np.array(rows)


@dataclass(frozen=True)
class Path:
    """Means of an evaluated run."""

    pace: Estimate  #: seconds of an iteration
    end: Estimate  #: seconds of the run
    staleness: Estimate
    refreshes: float  #: reads per gradient
    queued: float  #: seconds of queueing per gradient
    steady: bool  #: whether the pace is that of the long run
    whole: bool  #: whether fixed times were evaluated to the end


def weight_of(network: Network, workers: int, random: bool) -> int:
    """Workers x (events of an iteration / those on a flat machine); Uncovered if too many."""
    weight = workers * network.ways.weight if network.ways else workers
    most = HEAVIEST * (4 if network.plan else 1)
    if network.ways and weight > most * (1 if random else 3):
        raise too_many(workers, network.servers)
    return weight


def path(rule: type[Fresh], times: Sequence[Distribution], network: Network, steps: int, *args: Any,
         own: Sequence[Distribution | None] = ()) -> Path:
    """Means of a run by a servers' rule with these arguments; `own`: times of workers' own updates.

    The pace is that of a longer run if this one is too short.  On a flat machine, all servers act in the same
    order and are evaluated as one.
    """
    n, rule, random = len(times), layerwise.of(rule, network), not certain(*times, network.update, *own)
    check_width(n)
    weight = weight_of(network, n, random)

    def means(clocks: int) -> Values:
        least = 4 if weight <= 500 else 3
        replicas = max(least, min(256, DRAWS // (weight * clocks))) if random else 1
        return evaluated(rule, times, network, clocks, replicas, *args, own=own)

    fewest, followed = (LEAST, PACE) if weight <= MANY else (LEAST // 2, PACE // 2)
    if network.plan and weight > 2 * MANY:
        fewest, followed = LEAST // 4, PACE // 4
    clocks = max(min(steps, MESSAGES * (1 if random else 5) // weight), min(steps, fewest))
    enough = max(fewest, min(160, followed // weight))
    if clocks < min(enough, 120) and steps >= enough:
        clocks = enough  # one run then gives both
    run = means(clocks)
    long = run if clocks >= min(enough, 120) else means(enough)
    pace = Estimate.of(long[:, 0])
    return Path(pace, Estimate.of(run[:, 1]).continued(steps - clocks, pace), Estimate.of(run[:, 2]),
                float(run[:, 3].mean()), float(long[:, 4].mean()),
                random or bool(abs(long[0, 5]) <= 1e-9), random or steps == clocks)
