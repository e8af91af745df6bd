"""Outgoing links that serve messages by priority: not preemptive, so a message waits for at most one other of
a lower one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from refsgd.effects import Deployment
from refsgd.runtimes.engine import RESUME, Engine, Task

LAST = 1 << 60  #: the rank on the agenda behind all programs that resume at the same moment


def of_nodes(deployment: Deployment) -> dict[str, int]:
    """The priority of each node; empty if all are alike, so that links serve in the order of sending."""
    found = {name: node.priority for name, node in deployment.items()}
    return found if any(found.values()) else {}


class Outgoing:
    """Messages that wait for the outgoing links of an engine's hosts.

    `free` says when each link is, `departs` books one from now on, and `post` sends a message on its way.
    """

    def __init__(self, engine: Engine, priority: Mapping[str, int], free: Sequence[float],
                 departs: Callable[[Task, str, int], float], post: Callable[..., None]) -> None:
        self._engine, self._priority = engine, priority
        self._free, self._departs, self._post = free, departs, post
        self._waiting = defaultdict[int, list[Any]](list)
        self._order = count()

    def __bool__(self) -> bool:
        return bool(self._priority)

    def wait(self, link: int, task: Task, to: str, body: Any, number: int, nbytes: int) -> None:
        """A message that was sent just now waits for a link."""
        waiting, event = self._waiting[link], len(self._engine.events) - 1
        urgency = max(self._priority[task.node], self._priority[to])
        heappush(waiting, (urgency, next(self._order), event, task, to, body, number, nbytes))
        if len(waiting) == 1:
            self._turn(link)

    def _turn(self, link: int) -> None:
        self._engine._at(max(self._free[link], self._engine.now), RESUME, LAST, self._serve, link)

    def _serve(self, link: int) -> None:
        """The link is free: it serves the most urgent message, whose event is told when that began."""
        waiting, events = self._waiting[link], self._engine.events
        _, _, event, task, to, body, number, nbytes = heappop(waiting)
        start = self._departs(task, to, nbytes)
        events[event] = events[event]._replace(start=start)
        self._post(task, to, body, number, nbytes, start)
        if waiting:
            self._turn(link)
