"""Workers that push to parameter servers and wait for answers, evaluated in the order of time.

A worker that has its answers computes a gradient and sends each server its part.  A server takes messages in
the order of their arrival, u seconds for an update, and answers.  Algorithms differ in *the clock that the
slowest worker must have before a server answers*: here c - s, SSP's bound; for others see
`benchmarks.oracle.queues`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

from benchmarks.oracle.ways import ANSWER, PUSH, REQUEST, RESUME, Agenda, Urgent, Ways
from refsgd.theory.phenomena.layerwise import Plan

Table = list[list[float]]  # seconds by worker and gradient

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

    def __init__(self, ways: Ways, plan: Plan | None, times: Table, updates: Iterator[float],
                 s: float = math.inf) -> None:
        self.n, self.clocks, self.times, self.updates, self.s = len(times), len(times[0]), times, updates, s
        self.ways = ways.timed if self.asking else ways
        urgent = plan is not None and plan.priority
        self.agenda = (Urgent if urgent else Agenda)(self.ways.links)
        self.servers = [Server(self.n) for _ in self.ways.answers]
        self.events = self.ways.crowded | (frozenset(range(self.n)) if self.timely else frozenset())
        if urgent:
            self.events = frozenset(range(self.n + len(self.servers)))
        self.final = self.age = 0.0
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
        server.busy = max(server.busy, at) + server.decoding
        self.apply(server, i)
        self.arrive(k, server, i, 0)

    def asked(self, at: float, k: int, i: int) -> None:
        """A request arrives at a server."""
        server = self.servers[k]
        server.busy = max(server.busy, at)
        self.arrive(k, server, i, 1)

    def apply(self, server: Server, i: int) -> None:
        """Apply a push as an update."""
        self.update(server)
        self.age += self.old(server, i)
        server.version += 1
        server.count(i)

    def update(self, server: Server) -> None:
        """A server computes an update."""
        server.busy += next(self.updates)
        self.final = max(self.final, server.busy)

    def old(self, server: Server, i: int) -> float:
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

    def seconds(self) -> float:
        """When the last message has arrived and the last gradient is ready."""
        return max(self.final, *(e[-1] for e in self.ends))

    def staleness(self) -> float:
        """Mean age of the gradients that were applied, over all servers."""
        return self.age / self.gradients / len(self.servers)
