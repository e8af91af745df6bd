"""Parameter servers with queues on links and bounds between workers: recursions, evaluated numerically.

A message whose head reaches the servers at h passes their incoming link, processor and outgoing link, which
serve first come, first served (Lindley 1952), g = w/K seconds on a link if it carries parameters::

    in = max(in, h) + g,    busy = max(busy, in) + u,    out = max(out, busy) + g

and an answer reaches its worker at out + latency + (K-1) g.  A worker that has its answer computes, and its
next push leaves at the end of its gradient.  The algorithms differ in *the clock of the slowest worker for
which an answer waits*: c - s for SSP's clock c, a bound that moves for dynamic SSP, none for Downpour and
EASGD, the N-th push of a step for backup workers.  If links take no time, only the max-plus recursion of the
bound is left: with F_i(c) the end of clock c at worker i, and E a constant exchange,

    F_i(c) = T_i(c) + E + max(F_i(c-1), max_j F_j(c-1-s))

The mean has a closed form only for exponential times (`refsgd.theory.phenomena.ssp`).  Otherwise the
recursion is evaluated in order of arrival for drawn times, and its mean is given with its standard error.

References
----------
Lindley, "The theory of queues with a single server", Proc. Camb. Phil. Soc. 48, 1952.
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
Zhao et al., "Dynamic stale synchronous parallel distributed training for deep learning", ICDCS 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import repeat

import numpy as np

from refsgd.cluster.distributions import Distribution
from refsgd.theory.estimate import Estimate, Values, check_count, check_distribution, check_time, check_width
from refsgd.theory.phenomena.ssp import check_slack

Table = list[list[float]]  # seconds by worker and gradient

MESSAGES = 6_000  # of one replica, at most: a longer run is continued at its pace
DRAWS = 60_000  # drawn compute times, over all replicas
PACE = 20_000  # messages that show a short run's pace: LEAST to 160 gradients of each worker
LEAST = 40  # gradients of each worker


@dataclass(frozen=True)
class Network:
    """The network: K servers, w seconds of the whole model on a link, latency, time of an update.

    near: worker 0 is on the servers' node, so its messages use no link.
    """

    servers: int = 1
    transfer: float = 0.0
    latency: float = 0.0
    update: Distribution | None = None
    near: bool = False

    def __post_init__(self) -> None:
        check_count("servers", self.servers)
        check_time("transfer", self.transfer)
        check_time("latency", self.latency)


class Fresh:
    """SSP: a push of clock c is answered when the slowest worker has c - s clocks."""

    asking = 0  # a worker waits for 0 the answer to its push, 1 that to its request

    def __init__(self, network: Network, times: Table, updates: Iterator[float], s: float = math.inf) -> None:
        self.n, self.clocks, self.times, self.updates, self.s = len(times), len(times[0]), times, updates, s
        self.g, self.servers = network.transfer / network.servers, network.servers
        self.beside = 0 if network.near else -1
        self.latency, self.transfer = ([0.0 if i == self.beside else seconds for i in range(self.n)]
                                       for seconds in (network.latency, network.transfer))
        self.heads: list[tuple[float, int]] = []  # in transit: when, twice the worker (+ 1: a request)
        self.line: list[tuple[float, int]] = []  # through the incoming link
        self.waiting: list[tuple[float, int]] = []  # awaited clock of the slowest worker, worker
        self.incoming = self.busy = self.outgoing = self.final = self.age = self.queued = 0.0
        self.version = self.slowest = self.reads = 0
        self.behind = set(range(self.n))  # workers that have only the clocks of the slowest
        self.done, self.made = [0] * self.n, [0] * self.n  # clocks at the servers; that have left the worker
        self.seen, self.rows = [0] * self.n, [0] * self.n  # others' updates in the held model; its clock
        self.known: list[list[int]] = [[] for _ in times]  # `seen` and own clocks at each gradient
        self.ends: Table = [[] for _ in times]
        self.leaves = [0.0] * self.n  # until when the outgoing link is busy
        self.gradients = self.n * self.clocks
        self.start()

    def start(self) -> None:
        """All start together."""
        for i in range(self.n):
            self.begin(i, 0.0)

    def run(self) -> None:
        """Serve heads and arrivals in the order of time until no message is in transit."""
        heads, line = self.heads, self.line
        while heads or line:
            if heads and (not line or heads[0][0] <= line[0][0]):
                head, which = heappop(heads)
                if which // 2 == self.beside:
                    heappush(line, (head, which))
                else:
                    free = max(self.incoming, head)
                    if which % 2 == self.asking:
                        self.queued += free - head
                    self.incoming = free if which % 2 else free + self.g
                    heappush(line, (self.incoming, which))
                if not which % 2:
                    self.leave(which // 2)
                continue
            arrival, which = heappop(line)
            if which % 2 == self.asking:
                self.queued += max(self.busy - arrival, 0.0)
            self.busy = max(self.busy, arrival)
            if which % 2:
                self.reads += 1
            else:
                self.apply(which // 2)
            self.arrive(which // 2, which % 2)

    def begin(self, i: int, start: float) -> None:
        """Begin the next gradient of a worker, if there is one, and its push."""
        clock = self.made[i]
        if clock < self.clocks:
            ended = start + self.times[i][clock]
            self.known[i].append(self.seen[i] + clock)
            self.ends[i].append(ended)
            self.send(i, ended)

    def send(self, i: int, at: float) -> None:
        """Send a push through the worker's outgoing link."""
        head = max(at, self.leaves[i])
        self.leaves[i] = head + self.transfer[i]
        heappush(self.heads, (head + self.latency[i], 2 * i))

    def ask(self, i: int) -> None:
        """Send a request behind earlier pushes, if there is another gradient."""
        if self.made[i] < self.clocks:
            heappush(self.heads, (max(self.ends[i][-1], self.leaves[i]) + self.latency[i], 2 * i + 1))

    def leave(self, i: int) -> None:
        """Continue while the push is in transit."""
        self.made[i] += 1

    def apply(self, i: int) -> None:
        """Apply a push as an update."""
        self.busy += next(self.updates)
        self.final = max(self.final, self.busy)
        self.age += self.staleness(i)
        self.version += 1
        self.done[i] += 1
        if i in self.behind:
            self.behind.remove(i)
            if not self.behind:
                self.slowest += 1
                self.behind = {j for j in range(self.n) if self.done[j] == self.slowest}

    def staleness(self, i: int) -> float:
        """Updates of others between the read and the push that is about to be applied."""
        return self.version - self.known[i][self.done[i]]

    def need(self, i: int) -> float:
        """Clock of the slowest worker for which an answer waits."""
        return self.done[i] - self.s

    def arrive(self, i: int, request: int) -> None:
        """Answer all workers whose bound is satisfied, in worker order."""
        if request == self.asking:
            heappush(self.waiting, (self.need(i), i))
        ready = []
        while self.waiting and self.waiting[0][0] <= self.slowest:
            ready.append(heappop(self.waiting)[1])
        if ready:
            ready.sort()
            for j, at in zip(ready, self.answers(ready), strict=True):
                self.final = max(self.final, at)
                self.answered(j, at)

    def answers(self, ready: list[int]) -> list[float]:
        """When the answers reach these workers, in order, summed as a link sums (messages may tie)."""
        leaves = max(self.outgoing, self.busy)
        near = [self.busy for i in ready if i == self.beside]
        count = len(ready) - len(near)
        self.queued += count * (leaves - self.busy) + self.g * count * (count - 1) / 2
        self.outgoing = leaves + self.g * count
        return near + [leaves + self.g * k + self.latency[-1] + self.g * self.servers for k in range(count)]

    def answered(self, i: int, at: float) -> None:
        """A worker has the model of now."""
        self.seen[i], self.rows[i] = self.version - self.done[i], self.slowest
        self.begin(i, at)

    def summary(self) -> tuple[float, ...]:
        """Pace of the middle half, end, staleness; requests and queueing per gradient."""
        low = self.clocks // 4
        high = max(3 * self.clocks // 4, low + 1)
        spent = [(e[high - 1] - e[low - 1]) / (high - low) if low else e[-1] / self.clocks for e in self.ends]
        pace = self.n / math.fsum(1 / max(x, 1e-300) for x in spent)
        return (pace, max(self.final, *(e[-1] for e in self.ends)), self.age / self.gradients,
                self.reads / (self.n * self.clocks), self.queued / (self.n * self.clocks))


class Granting(Fresh):
    """Dynamic SSP: beyond `lower` a worker is granted the clocks after which its wait is shortest.

    The worker and the slowest worker are assumed to keep their last intervals, in pushes (Zhao et al.,
    algorithm 2).
    """

    def __init__(self, network: Network, times: Table, updates: Iterator[float], lower: int,
                 upper: int) -> None:
        self.lower, self.upper = lower, upper
        self.granted, self.before, self.last = ([0] * len(times) for _ in range(3))
        super().__init__(network, times, updates)

    def need(self, i: int) -> float:
        """The bound of a worker moves with each of its pushes."""
        self.before[i], self.last[i] = self.last[i], self.version
        ahead = self.done[i] - self.slowest
        if not self.granted[i] and ahead > self.lower:
            self.granted[i] = self.grant(i, ahead)
        bound = max(self.lower, ahead - (not self.granted[i]))
        self.granted[i] = max(self.granted[i] - 1, 0)
        return self.done[i] - bound

    def grant(self, i: int, ahead: int) -> int:
        """The fewest clocks after which a push is followed soonest by one of the slowest worker."""
        now, mine = self.version, self.version - self.before[i]

        def gap(j: int) -> int:
            return max(self.last[j] - self.before[j], now - self.last[j])

        slow = max(self.behind, key=lambda j: (self.last[j] + gap(j), j))
        return min(range(max(self.upper + 2 - ahead, 1)),
                   key=lambda extra: (self.last[slow] - now - extra * mine) % gap(slow))


class Lazy(Fresh):
    """SSP on a cache: a worker reads only if its cache is older than c - s."""

    asking = 1

    def leave(self, i: int) -> None:
        """Read, right behind the push, or continue at once."""
        self.made[i] += 1
        if self.rows[i] < self.made[i] - self.s:
            self.ask(i)
        else:
            self.begin(i, self.ends[i][-1])


class Eager(Fresh):
    """SSP on a cache to which a row is sent whenever the slowest clock advances."""

    def start(self) -> None:
        """Row 0 is everywhere."""
        self.arrivals, self.others = [[0.0] * self.n], [[0] * self.n]  # of row m, by worker
        super().start()

    def leave(self, i: int) -> None:
        """Continue with the newest row, or wait for the one that the bound asks for."""
        self.made[i] += 1
        heappush(self.waiting, (max(self.made[i] - self.s, 0), i))
        self.proceed()

    def arrive(self, i: int, request: int) -> None:
        """A row to all if the slowest clock has advanced."""
        if self.slowest == len(self.arrivals):
            self.arrivals.append(self.answers(list(range(self.n))))
            self.others.append([self.version - d for d in self.done])
            self.proceed()

    def proceed(self) -> None:
        """Start workers whose row is known; a row that arrives at exactly the moment of the start is
        missed."""
        while self.waiting and self.waiting[0][0] < len(self.arrivals):
            need, i = heappop(self.waiting)
            start = max(self.ends[i][-1], self.arrivals[int(need)][i])
            row = max(int(need), self.rows[i])
            while row + 1 < len(self.arrivals) and self.arrivals[row + 1][i] < start:
                row += 1
            self.rows[i], self.seen[i] = row, self.others[row][i]
            self.begin(i, start)


class Fetching(Fresh):
    """Downpour, EASGD: a worker waits only for its fetches.

    A push follows gradients 0, `push_every`, ... and the last one; if `elastic`, each fetch.
    """

    asking = 1

    def __init__(self, network: Network, times: Table, updates: Iterator[float], own: Table, fetch_every: int,
                 push_every: int, elastic: bool) -> None:
        steps = range(len(times[0]))
        self.own, self.fetch_every, self.elastic = own, fetch_every, elastic
        self.pushes = [not elastic and (t % push_every == 0 or t == steps[-1]) for t in steps]
        self.window = [0, *(t + 1 for t in steps if self.pushes[t])]  # first gradient of each push
        super().__init__(network, times, updates)
        if elastic:
            self.gradients = self.n * -(-self.clocks // fetch_every)

    def start(self) -> None:
        """All workers fetch first."""
        for i in range(self.n):
            heappush(self.heads, (self.latency[i], 2 * i + 1))

    def begin(self, i: int, start: float) -> None:
        """Compute until the next push or fetch."""
        while self.made[i] < self.clocks:
            t = self.made[i]
            start = start + self.times[i][t] + self.own[i][t]
            self.ends[i].append(start)
            self.known[i].append(self.seen[i])
            self.made[i] += 1
            if self.pushes[t]:
                self.send(i, start)
                return
            if self.made[i] % self.fetch_every == 0:
                self.ask(i)
                return

    def leave(self, i: int) -> None:
        """Fetch, if it is time, or continue."""
        if not self.elastic:
            if self.made[i] % self.fetch_every:
                self.begin(i, self.ends[i][-1])
            else:
                self.ask(i)

    def answered(self, i: int, at: float) -> None:
        """A worker has the model of now, and returns its force at once if elastic."""
        self.seen[i] = self.version
        if self.elastic:
            self.send(i, at)
        self.begin(i, at)

    def staleness(self, i: int) -> float:
        """All updates since the read, including own ones, summed over the gradients of a push."""
        number = self.done[i]
        if self.elastic:
            return self.version - self.known[i][number * self.fetch_every]
        first, end = self.window[number], self.window[number + 1]
        return (end - first) * self.version - sum(self.known[i][first:end])


Make = Callable[[Table, Iterator[float], Table], Fresh]


def evaluated(times: Sequence[Distribution], update: Distribution | None, clocks: int, replicas: int,
               make: Make, own: Sequence[Distribution | None] = (), seed: int = 1983) -> Values:
    """The summaries of independent evaluations, (replicas, figures)."""
    rng = np.random.default_rng(seed)

    def drawn(time: Distribution | None) -> Values:
        if time is None:
            return np.zeros((replicas, clocks))
        return time.sample(rng, replicas * clocks).reshape(replicas, clocks)

    table = np.stack([drawn(time) for time in times], axis=1)
    after = np.stack([drawn(time) for time in own], axis=1) if any(own) else np.zeros_like(table)
    rows = []
    for r in range(replicas):
        updates = repeat(0.0) if update is None else iter(update.sample(rng, len(times) * clocks).tolist())
        run = make(table[r].tolist(), updates, after[r].tolist())
        run.run()
        rows.append(run.summary())
    return np.array(rows)


@dataclass(frozen=True)
class Path:
    """Seconds of an iteration and of a run, staleness; reads and seconds of queueing per gradient."""

    pace: Estimate
    end: Estimate
    staleness: Estimate
    refreshes: float
    queued: float


def parameter_server(times: Sequence[Distribution], network: Network, staleness: float, steps: int,
                     refresh: str = "fresh") -> Path:
    """SSP(s) through queues; s = infinity: ASP.  Several servers: the same order of pushes at all of them."""
    s, rule = check_slack(staleness), {"fresh": Fresh, "lazy": Lazy, "eager": Eager}[refresh]
    return _path(times, network, steps, lambda drawn, updates, _: rule(network, drawn, updates, s))


def granting(times: Sequence[Distribution], network: Network, lower: int, upper: int, steps: int) -> Path:
    """Dynamic SSP through queues."""
    low, high = check_count("lower", lower, 0), check_count("upper", upper, 0)
    return _path(times, network, steps,
                 lambda drawn, updates, _: Granting(network, drawn, updates, low, high))


def fetching(times: Sequence[Distribution], network: Network, steps: int, *, fetch_every: int = 1,
             push_every: int = 1, elastic: bool = False, own: Sequence[Distribution | None] = ()) -> Path:
    """Downpour, or EASGD if `elastic`, through queues; `own`: each worker's update after a gradient."""
    f, p = check_count("fetch_every", fetch_every), check_count("push_every", push_every)
    return _path(times, network, steps,
                 lambda drawn, updates, after: Fetching(network, drawn, updates, after, f, p, elastic), own)


def _path(times: Sequence[Distribution], network: Network, steps: int, make: Make,
          own: Sequence[Distribution | None] = ()) -> Path:
    """Means of the run, and of a longer one if the run is too short to have a pace."""
    n = check_count("workers", len(times))
    check_count("steps", steps)
    check_width(n)
    every = [check_distribution("compute", t) for t in (*times, network.update, *own) if t is not None]
    random = any(time.family != "fixed" for time in every)

    def means(clocks: int) -> Values:
        least = 4 if n <= 500 else 3  # more workers, more draws per replica
        replicas = max(least, min(256, DRAWS // (n * clocks))) if random else 1
        return evaluated(times, network.update, clocks, replicas, make, own)

    clocks = max(min(steps, MESSAGES // n), min(steps, LEAST))
    enough = max(LEAST, min(160, PACE // n))
    run = means(clocks)
    long = run if clocks >= min(enough, 120) else means(enough)
    pace = Estimate.of(long[:, 0])
    return Path(pace, Estimate.of(run[:, 1]).continued(steps - clocks, pace), Estimate.of(run[:, 2]),
                float(run[:, 3].mean()), float(long[:, 4].mean()))
