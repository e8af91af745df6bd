"""Engines whose messages occupy links and whose programs occupy processors, slower and later where faults say
so; `refsgd.cluster.links` has the formulas and the path of each message.

The process that sends a message serves the first link of its path, the one that receives it all others, each
at the time when the head is due there, so that heads are served in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from refsgd.cluster import prices
from refsgd.cluster.cores import Processors, of_hosts
from refsgd.cluster.links import Hop, Network
from refsgd.cluster.machine import Machine
from refsgd.cluster.prices import Draws
from refsgd.effects import Compute, Deployment
from refsgd.runtimes.engine import ARRIVE, HEAD, RESUME, Engine, Task
from refsgd.runtimes.faults import Plan
from refsgd.trace import Use

if TYPE_CHECKING:
    from refsgd.runtimes.processes.shared import GroupLinks

LAST = 1 << 60  #: the rank on the agenda behind all programs that resume at the same moment


class Linked(Engine):
    """An engine whose messages occupy the links of a machine; durations and choices are drawn from `seed`.

    A process drives the nodes of its host `here`, and serves the links in `groups` together with others.
    If nodes have priorities, a message waits before its first link until the link has chosen it.  That is not
    preemptive, so a message waits for at most one other of a lower priority.
    """

    def __init__(self, deployment: Deployment, machine: Machine, seed: int, observe: int | None, keep: int,
                 here: str | None = None, groups: GroupLinks | None = None) -> None:
        network = Network(machine, deployment)
        self.machine, self.network, self.host, self._groups = machine, network, network.host, groups
        super().__init__(deployment, [name for name in deployment if here in (None, self.host[name])],
                         observe, keep)
        priced, loads = prices.of_nodes(machine, deployment), prices.loads(machine, deployment)
        for task in self.all_tasks:
            task.host = self.host[task.node]
            task.draws = Draws(priced[task.node], seed, task.node, task.index)
        self._ways, self._free = network.ways, [0.0] * len(network.links)
        self.uses: list[Use] | None = [] if network.described else None
        priority = {name: node.priority for name, node in deployment.items()}
        self._priority = priority if any(priority.values()) else {}
        self._waiting = defaultdict[int, list[Any]](list)  # by link
        self._order = count()
        self._shared: Mapping[str, Processors] = {}  # of hosts whose programs share them
        if here is None or machine.paced:  # else processors and messages take the time that they take
            self._shared = of_hosts(machine.cores, machine.crowding, [(task.host, task, loads[task.node])
                                                                      for task in self.all_tasks])
            self.overhead = machine.overhead
        self._faults = Plan((), self.roles)

    # -- processors ----------------------------------------------------------------------------------------

    def _duration(self, task: Task, kind: str, effect: Compute | None = None) -> float:
        """The time that a computation takes if no other program shares its processors."""
        return task.draws.duration(kind, effect) * self._faults.slower(task.node)

    def _occupy(self, task: Task, seconds: float) -> float:
        """When a computation that begins now ends, unless other programs of its host begin before."""
        shared = self._shared.get(task.host)
        return self.now + seconds if shared is None else shared.begin(task, self.now, seconds)

    def spends(self, task: Task, nbytes: int, call: Callable[..., None], *args: Any) -> None:
        """Occupy a program and a processor with one end of a message, then call `call` with the program."""
        assert self.overhead is not None
        self._when_served(self._occupy(task, self.overhead.seconds(nbytes)), call, task, *args)

    def _when_served(self, due: float, call: Callable[..., None], task: Task, *args: Any) -> None:
        """Call `call` at the end of a computation."""
        if task.host in self._shared:
            self._at(due, RESUME, task.rank, self._served, self._sequence + 1, call, task, *args)
        else:
            self._at(due, RESUME, task.rank, call, task, *args)

    def _served(self, turn: int, call: Callable[..., None], task: Task, *args: Any) -> None:
        """The end of a computation, unless others that began in between have moved it; ties keep their
        order."""
        due = self._shared[task.host].due(task)
        if due > self.now:
            heappush(self._agenda, (due, RESUME, task.rank, turn, self._served, (turn, call, task, *args)))
        else:
            call(task, *args)

    # -- links ---------------------------------------------------------------------------------------------

    def departs(self, task: Task, to: str, nbytes: int) -> float:
        """When the transmission of a message begins; with priorities, now and until the link has decided."""
        return self.now if self._priority else self._departs(task, to, nbytes)

    def _departs(self, task: Task, to: str, nbytes: int) -> float:
        """When the first link of its way is free for a message; a message within memory needs none."""
        way = self._ways[task.node, to]
        return self._serve(way[0], self.now, task.node, to, nbytes) if way else self.now

    def _serve(self, hop: Hop, head: float, src: str, to: str, nbytes: int) -> float:
        """Occupy a link with a message whose head is there, as soon as it is free; when that is."""
        link, byte_time, _ = hop
        if self._groups is not None and link in self._groups:
            start = self._groups.serve(link, head, nbytes * byte_time)
        else:
            start = self._free[link]
            if start < head:
                start = head
            self._free[link] = start + nbytes * byte_time
        if self.uses is not None:
            self.uses.append(Use(link, start, start + nbytes * byte_time, src, to))
        return start

    def post(self, task: Task, to: str, body: Any, number: int, nbytes: int, start: float) -> None:
        """Send a message on its way; with priorities it waits for its turn first."""
        if self._priority and (way := self._ways[task.node, to]):
            waiting = self._waiting[way[0].link]
            event = len(self.events) - 1 if number >= 0 else -1  # a notice of a death has none
            urgency = max(self._priority[task.node], self._priority[to])
            heappush(waiting, (urgency, next(self._order), event, task, to, body, number, nbytes))
            if len(waiting) == 1:
                self._turn(way[0].link)
        else:
            self._post(task, to, body, number, nbytes, start)

    def _turn(self, link: int) -> None:
        self._at(max(self._free[link], self.now), RESUME, LAST, self._choose_next, link)

    def _choose_next(self, link: int) -> None:
        """The link is free: it serves the most urgent message, whose event is told when that began."""
        waiting, events = self._waiting[link], self.events
        _, _, event, task, to, body, number, nbytes = heappop(waiting)
        start = self._departs(task, to, nbytes)
        if event >= 0:
            events[event] = events[event]._replace(start=start)
        self._post(task, to, body, number, nbytes, start)
        if waiting:
            self._turn(link)

    def _post(self, task: Task, to: str, body: Any, number: int, nbytes: int, start: float) -> None:
        """Send a message that begins to leave at `start`; a fault delays it if it uses links."""
        if self._faults.delays and (way := self._ways[task.node, to]):
            start = self._faults.late(task.node, to, start, nbytes * way[0].byte_time)
        self._enters(start, (to, task.node, body, number, nbytes, 0))

    def _enters(self, start: float, message: tuple[str, str, Any, int, int, int]) -> None:
        """Put the arrival of a message's head at its second link, or without one its own, on the agenda;
        `message` are the arguments of `deliver`."""
        to, src, _, _, nbytes, _ = message
        way = self._ways[src, to]
        self._sequence += 1  # as in `_at`, where to pack *args takes as long as the heap
        if len(way) > 1:
            _, byte_time, latency = way[0]
            heappush(self._agenda, (start + latency, HEAD, self.rank[src], self._sequence, self._head,
                                    (start + latency, way, 1, nbytes * byte_time, message)))
        else:
            if way:
                _, byte_time, latency = way[0]
                start += nbytes * byte_time + latency
            heappush(self._agenda, (start, ARRIVE, self.rank[src], self._sequence, self.deliver, message))

    def _head(self, head: float, way: tuple[Hop, ...], at: int, lag: float,
              message: tuple[str, str, Any, int, int, int]) -> None:
        """The head of a message reaches a link of its way, which serves in this order; its tail is `lag`
        behind."""
        to, src, _, _, nbytes, _ = message
        start = self._serve(way[at], head, src, to, nbytes)
        _, byte_time, latency = way[at]
        lag += head - start
        if lag < nbytes * byte_time:
            lag = nbytes * byte_time
        at += 1
        self._sequence += 1  # as in `_at`
        if at < len(way):
            heappush(self._agenda, (start + latency, HEAD, self.rank[src], self._sequence, self._head,
                                    (start + latency, way, at, lag, message)))
        else:
            heappush(self._agenda, (start + lag + latency, ARRIVE, self.rank[src], self._sequence,
                                    self.deliver, message))
