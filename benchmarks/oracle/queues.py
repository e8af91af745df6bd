"""The rules by which servers answer, each a variant of `benchmarks.oracle.gate.Fresh`.

References
----------
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
Zhao et al., "Dynamic stale synchronous parallel distributed training for deep learning", ICDCS 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from benchmarks.oracle.gate import Fresh, Server, Table
from benchmarks.oracle.ways import Ways
from refsgd.theory.phenomena.layerwise import Plan


class Bulk(Fresh):
    """BSP: one update of all gradients of a step, then all answers; `rotated`: server k's worker first."""

    def __init__(self, ways: Ways, plan: Plan | None, times: Table, updates: Iterator[float],
                 rotated: bool) -> None:
        self.rotated = rotated
        super().__init__(ways, plan, times, updates)

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

    def __init__(self, ways: Ways, plan: Plan | None, times: Table, updates: Iterator[float],
                 size: int) -> None:
        self.size = size
        super().__init__(ways, plan, times, updates)
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

    def __init__(self, ways: Ways, plan: Plan | None, times: Table, updates: Iterator[float],
                 lower: int,
                 upper: int) -> None:
        self.lower, self.upper = lower, upper
        # for each worker: clocks granted, its last push, its next push; in pushes of all workers
        self.pushes: dict[Server, tuple[list[int], list[int], list[int]]] = {}
        super().__init__(ways, plan, times, updates)

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

    def __init__(self, ways: Ways, plan: Plan | None, times: Table, updates: Iterator[float],
                 fetch_every: int,
                 push_every: int, elastic: bool, own: Table) -> None:
        steps = range(len(times[0]))
        self.own, self.fetch_every, self.elastic = own, fetch_every, elastic
        self.pushes = [not elastic and (t % push_every == 0 or t == steps[-1]) for t in steps]
        self.timely = True
        self.window = [0, *(t + 1 for t in steps if self.pushes[t])]  # first gradient of each push
        super().__init__(ways, plan, times, updates)
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

    def old(self, server: Server, i: int) -> float:
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


class Quorum(Fresh):
    """Backup workers: the first n - k pushes of a step are answered together, late ones immediately."""

    def __init__(self, ways: Ways, plan: Plan | None, times: Table, updates: Iterator[float],
                 backups: int, steps: int) -> None:
        self.needed, self.steps_in_all = len(times) - backups, steps
        self.started, self.got = [0] * len(times), list[int]()  # step of each worker; counting pushes
        self.steps = list[float]()  # ends of steps
        super().__init__(ways, plan, times, updates)

    def begin(self, start: float, i: int) -> None:
        """Begin a gradient of the server's step, if there is another step."""
        step = self.servers[0].seen[i]
        if step < self.steps_in_all:
            self.started[i] = step
            time = self.times[i][self.made[i]]
            self.made[i] += 1
            self.then(start + time, i, self.push)

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

    def seconds(self) -> float:
        """When the last message has arrived."""
        return self.final

    def staleness(self) -> float:
        """Nothing is applied to another model than its own."""
        return 0.0
