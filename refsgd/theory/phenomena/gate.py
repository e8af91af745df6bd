"""Workers that push to parameter servers and wait for answers: a recursion, evaluated in the order of time.

A worker that has its answers computes a gradient and sends each server its part.  A server takes messages in
the order of their arrival, u seconds for an update, and answers.  Algorithms differ in *the clock that the
slowest worker must have before a server answers*: here c - s, SSP's bound; for others see
`refsgd.theory.phenomena.queues`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from refsgd.cluster.distributions import Distribution
from refsgd.theory.estimate import Uncovered
from refsgd.theory.phenomena.ways import ANSWER, PUSH, REQUEST, RESUME, Agenda, Urgent, Ways, in_step

if TYPE_CHECKING:
    from refsgd.theory.phenomena.layerwise import Plan

Table = list[list[float]]  # seconds by worker and gradient

HEAVIEST = 1_500  # workers x (events of an iteration / those on a flat machine)


def too_many(workers: int, servers: int) -> Uncovered:
    """The error that the recursion is too large to evaluate."""
    return Uncovered(f"the recursion of waiting times has no closed form, and {workers} workers and "
                     f"{servers} servers on shared links send too many messages to evaluate it")


@dataclass(frozen=True)
class Network:
    """The network between workers and K servers."""

    servers: int = 1
    transfer: float = 0.0  #: w: seconds of the whole model on a link
    latency: float = 0.0
    update: Distribution | None = None
    near: bool = False  #: worker 0 is on the servers' node, so its messages use no link
    ways: Ways | None = None  #: on machines with other links than one per node and direction
    plan: Plan | None = None  #: if gradients are sent in parts

    def over(self, workers: int) -> Ways:
        """The paths of the messages of this many workers."""
        return self.ways or in_step(workers, self.servers, self.transfer, self.latency, self.near)


class Server:
    """A server: the clocks of its workers, and the workers that wait for an answer."""

    def __init__(self, workers: int) -> None:
        self.busy = self.decoding = 0.0  # until when; seconds to decode a push
        self.version = self.slowest = 0
        self.done = [0] * workers  # clocks of each worker
        self.behind = set(range(workers))  # workers with no more clocks than the slowest
        self.waiting: list[tuple[float, int]] = []  # awaited clock of the slowest worker, worker
        self.seen = [0] * workers  # others' updates in each worker's model
        self.known: list[list[int]] = [[] for _ in range(workers)]  # updates in the model of each gradient

    def count(self, i: int) -> None:
        """Count a clock of a worker."""
        self.done[i] += 1
        if i in self.behind:
            self.behind.remove(i)
            if not self.behind:
                self.slowest += 1
                self.behind = {j for j, done in enumerate(self.done) if done == self.slowest}


class Fresh:
    """SSP: a push of clock c is answered when the slowest worker has c - s clocks."""

    asking = 0  # a worker waits for the answer to its push (0), or to its request (1)
    timely = False  # whether messages that arrive during a gradient matter to the worker

    def __init__(self, network: Network, times: Table, updates: Iterator[float], s: float = math.inf) -> None:
        self.n, self.clocks, self.times, self.updates, self.s = len(times), len(times[0]), times, updates, s
        self.ways = network.over(self.n).timed if self.asking else network.over(self.n)
        urgent = network.plan is not None and network.plan.priority
        self.agenda = (Urgent if urgent else Agenda)(self.ways.links)
        self.servers = [Server(self.n) for _ in self.ways.answers]
        self.events = self.ways.crowded | (frozenset(range(self.n)) if self.timely else frozenset())
        if urgent:
            self.events = frozenset(range(self.n + len(self.servers)))
        self.final = self.age = self.held = 0.0
        self.reads = 0
        self.made = [0] * self.n  # gradients of each worker
        self.missing, self.begins = [len(self.servers)] * self.n, [0.0] * self.n  # answers; time of the last
        self.ends: Table = [[] for _ in times]
        self.gradients = self.n * self.clocks
        self.start()

    def start(self) -> None:
        """Start all workers together."""
        for i in range(self.n):
            self.begin(0.0, i)

    def run(self) -> None:
        """Run until no message is in transit."""
        self.agenda.run()

    def begin(self, start: float, i: int) -> None:
        """Begin the next gradient of a worker, if there is one; a push follows."""
        clock = self.made[i]
        if clock < self.clocks:
            self.made[i] = clock + 1
            ended = start + self.times[i][clock]
            self.ends[i].append(ended)
            for server in self.servers:
                server.known[i].append(server.seen[i] + clock)
            self.then(ended, i, self.push)

    def then(self, time: float, node: int, call: Callable[..., None], *args: Any) -> None:
        """Call at a time; as an event if the node's messages meet others on their first link."""
        if node in self.events:
            self.agenda.at(time, RESUME, node, call, node, *args)
        else:
            call(time, node, *args)

    def push(self, now: float, i: int) -> None:
        """A worker sends each server its part."""
        send, early = self.agenda.send, self.ways.early
        for k, way in self.ways.pushes[i]:
            send(way, now, i, PUSH, early[k], self.pushed, k, i)

    def ask(self, now: float, i: int) -> None:
        """A worker sends each server a request, if there is another gradient."""
        if self.made[i] < self.clocks:
            for k, way in self.ways.requests[i]:
                self.agenda.send(way, now, i, REQUEST, False, self.asked, k, i)

    def pushed(self, at: float, k: int, i: int) -> None:
        """A push arrives at a server."""
        server = self.servers[k]
        if server.busy < at:
            server.busy = at
        elif not self.asking:
            self.held += server.busy - at
        server.busy += server.decoding
        self.apply(server, i)
        self.arrive(k, server, i, 0)

    def asked(self, at: float, k: int, i: int) -> None:
        """A request arrives at a server."""
        server = self.servers[k]
        self.held += max(server.busy - at, 0.0)
        server.busy = max(server.busy, at)
        self.reads += 1
        self.arrive(k, server, i, 1)

    def apply(self, server: Server, i: int) -> None:
        """Apply a push as an update."""
        self.update(server)
        self.age += self.staleness(server, i)
        server.version += 1
        server.count(i)

    def update(self, server: Server) -> None:
        """A server computes an update."""
        server.busy += next(self.updates)
        self.final = max(self.final, server.busy)

    def staleness(self, server: Server, i: int) -> float:
        """Updates by others between a read and its push, which is about to be applied."""
        return server.version - server.known[i][server.done[i]]

    def need(self, server: Server, i: int) -> float:
        """The clock of the slowest worker for which an answer waits."""
        return server.done[i] - self.s

    def arrive(self, k: int, server: Server, i: int, request: int) -> None:
        """Answer all workers whose bound is satisfied, in worker order."""
        if request == self.asking:
            heappush(server.waiting, (self.need(server, i), i))
        ready = []
        while server.waiting and server.waiting[0][0] <= server.slowest:
            ready.append(heappop(server.waiting)[1])
        if ready:
            ready.sort()
            self.release(k, server, ready)

    def release(self, k: int, server: Server, ready: Sequence[int]) -> None:
        """A server answers workers, in this order, with the current model."""
        told = [(j, server.slowest, self.others(server, j)) for j in ready]
        self.then(server.busy, self.n + k, self.answer, told)

    def others(self, server: Server, i: int) -> int:
        """Updates in the current model, without the worker's own."""
        return server.version - server.done[i]

    def answer(self, now: float, node: int, told: Sequence[tuple[int, int, int]]) -> None:
        """A server sends models."""
        k = node - self.n
        back, send, direct = self.ways.answers[k], self.agenda.send, not self.timely
        for j, row, others in told:
            send(back[j], now, node, ANSWER, direct, self.answered, k, j, row, others)

    def answered(self, at: float, k: int, i: int, row: int, others: int) -> None:
        """A worker receives a server's part; it begins when it has all."""
        self.final = max(self.final, at)
        self.servers[k].seen[i] = others
        self.begins[i] = max(self.begins[i], at)
        self.missing[i] -= 1
        if not self.missing[i]:
            self.missing[i] = len(self.servers)
            self.complete(self.begins[i], i)

    def complete(self, at: float, i: int) -> None:
        """A worker has the answers of all servers."""
        self.begin(at, i)

    def summary(self) -> tuple[float, ...]:
        """Pace of the middle half, end, staleness, requests and queueing per gradient, change of the pace."""
        low, total = self.clocks // 4, self.n * self.clocks * len(self.servers)
        high = max(3 * self.clocks // 4, low + 1)
        queued = self.agenda.queued
        waited = self.held + queued[ANSWER] + queued[REQUEST if self.asking else PUSH]
        pace, parts = self.pace(low, high), [low + (high - low) // k for k in (2, 3)]
        seen = low and pace and high - low > 2
        change = max(abs(self.pace(low, part) / pace - 1) for part in parts) if seen else math.inf
        return (pace, max(self.final, *(e[-1] for e in self.ends)),
                self.age / self.gradients / len(self.servers), self.reads / total, waited / total, change)

    def pace(self, low: int, high: int) -> float:
        """Seconds of an iteration, over all workers, from gradient `low` to `high`."""
        spent = [(e[high - 1] - e[low - 1]) / (high - low) if low else e[-1] / self.clocks for e in self.ends]
        return self.n / math.fsum(1 / max(x, 1e-300) for x in spent)


def lone(ways: Ways, worker: int, update: float, request: bool = False) -> float:
    """Seconds of a lone worker's push, or request, and its answers."""
    agenda, ends, n = Agenda(ways.links), [0.0], len(ways.pushes)

    def served(at: float, k: int) -> None:
        agenda.at(at if request else at + update, RESUME, n + k, answer, k)

    def answer(at: float, k: int) -> None:
        agenda.send(ways.answers[k][worker], at, n + k, ANSWER, False, ends.append)

    for k, way in (ways.requests if request else ways.pushes)[worker]:
        agenda.send(way, 0.0, worker, PUSH, False, served, k)
    agenda.run()
    return max(ends)
