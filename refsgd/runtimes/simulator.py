"""Programs in virtual time: deterministic, an iterator of events, one effect a step.

The agenda is a heap keyed (time, order, rank, sequence).  At one moment first programs continue whose
computing has ended, then heads of messages reach incoming links, then messages arrive; ties go to the lower
rank (a node's place in the deployment), then to the earlier one.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import chain

from refsgd.cluster import prices
from refsgd.cluster.cores import of_hosts
from refsgd.cluster.draws import Draws
from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine
from refsgd.effects import Add, Compute, Deployment, Factory
from refsgd.runtimes.engine import RESUME, Task
from refsgd.runtimes.errors import Deadlock, RunFailed
from refsgd.runtimes.linked import Linked
from refsgd.runtimes.programs import line_of, read, share_of
from refsgd.trace import Event, Marked, Polled, Run, Trace


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """Events stay: the garbage collector's usual pace would look at them again and again, a quarter of a
    large run's time."""
    young, middle, full = gc.get_threshold()
    gc.set_threshold(100 * young, middle, 100 * full)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, full)


class Simulator(Linked):
    """Runs a deployment in virtual time on a machine; durations and choices are drawn from `seed`.

    It is an iterator of the run's events.  It raises `Deadlock` when nothing can happen and a main program
    has not returned, and `RunFailed` when a program polls again and again and lets no time pass.

    Examples
    --------
    >>> from refsgd.effects import Node
    >>> def work():
    ...     for t in range(2):
    ...         yield Compute(abs, -t)
    >>> sim = Simulator({"worker0": Node(work())}, Machine(compute="fixed(1)"))
    >>> [(event.time, event.kind) for event in sim]
    [(1.0, 'compute'), (2.0, 'compute'), (2.0, 'return')]
    """

    def __init__(self, deployment: Deployment | Factory, machine: Machine | None = None, seed: int = 0,
                 observe: int | None = 64, keep: int = 0) -> None:
        self.machine = machine = machine or Machine()
        deployment = deployment() if callable(deployment) else deployment
        super().__init__(Network(machine, deployment), deployment, observe=observe, keep=keep)
        self.host, priced = self.network.host, prices.of_nodes(machine, deployment)
        self._read = 0
        # programs that are still to be told that the run has ended
        self._told: Iterator[Task] | None = None
        self._steps = self._go_on()
        for task in self.all_tasks:
            task.draws = Draws(priced[task.node], seed, task.node, task.index)
            task.host = self.host[task.node]
            self._at(0.0, RESUME, task.rank, self._begin, task)
        loads = prices.loads(machine, deployment)
        self._shared = of_hosts(machine.cores, machine.crowding, [(task.host, task, loads[task.node])
                                                                  for task in self.all_tasks])
        self.overhead = machine.overhead

    # -- the clock -----------------------------------------------------------------------------------------

    def _go_on(self, pause: bool = True) -> Iterator[bool]:
        """Perform one effect or one event of the agenda after the other to the end of the run; `pause`: stop
        after each."""
        agenda, resume = self._agenda, self.resume
        while True:
            if (ready := self.ready) is not None:
                self.ready = None
                resume(*ready)
            elif agenda:
                self.now, _, _, _, call, args = heappop(agenda)
                call(*args)
            elif not self._close():
                return
            if pause:
                yield True

    def advance(self) -> bool:
        """Perform one effect or one event of the agenda; False when the run is over."""
        return next(self._steps, False)

    def step(self) -> Event | None:
        """The next event, or None when the run is over."""
        return next(self, None)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while self._read == len(self.events):
            if not self.advance():
                raise StopIteration
        self._read += 1
        return self.events[self._read - 1]

    def run(self) -> Run:
        """Run to the end; the trace and the values that the main programs returned."""
        with rare_full_collections():
            deque(self._go_on(pause=False), maxlen=0)
        self._read = len(self.events)
        return Run(self.trace(), self.values)

    def trace(self) -> Trace:
        """The events so far as a `Trace`."""
        return Trace(self.events, self.nodes, self.seconds or self.now, self.machine.latency,
                     self.machine.bandwidth, roles=self.roles, links=self.uses or [],
                     wires=self.network.wires(self._ways),
                     hosts=self.host if self.network.described else {},
                     shared_links=self.network.shared_links())

    def _begin(self, task: Task) -> None:
        self.ready = task, None

    # -- computing -----------------------------------------------------------------------------------------

    def compute(self, task: Task, effect: Compute) -> None:
        """Compute now, and continue the program after the time that it takes."""
        result = self.result(task, effect)
        seconds = self._duration(task, effect.kind, effect)
        if task.host in self._shared:
            self._when_served(self._occupy(task, seconds), self.computed, task, self.now, effect, result)
        else:
            now = self.now
            self._sequence += 1  # as in `_at`, where to pack *args takes as long as the heap
            heappush(self._agenda, (now + seconds, RESUME, task.rank, self._sequence, self.computed,
                                    (task, now, effect, result)))

    def add(self, task: Task, effect: Add) -> None:
        """Read now, and write after the time that it takes."""
        seconds = self._duration(task, "update") * share_of(effect)
        self._when_served(self._occupy(task, seconds), self.added, task, effect, read(effect), self.tickets)

    # -- the end -------------------------------------------------------------------------------------------

    def idles(self, task: Task) -> None:
        """Refuse a program that polls unsuccessfully or marks again and again while nothing else happens:
        time would stand still.

        The events say so, once in a while: to reset a counter whenever something happens would cost each
        effect more.
        """
        task.idle = 0
        for event in reversed(self.events):
            if (event.node, event.program) != (task.node, task.index):
                return
            if isinstance(event, Marked) or (isinstance(event, Polled) and event.src is None):
                task.idle += 1
            # others take no time either, but any number of them may be meant
            elif event.kind not in ("send", "choose", "load"):
                return
            if task.idle >= self.patience:
                raise RunFailed(
                    f"{task.node}: {line_of(task.program)} asks again and again at {self.now:.6g} s and no "
                    "time passes; expected a Recv, or a Compute between two Polls", task.host)

    def _survives(self, stuck: list[Task]) -> bool:
        """Whether something can be done, after a death, for main programs that no message can reach."""
        return False

    def _close(self) -> bool:
        """Nothing is under way: tell a handler if every main program has returned; False at the end."""
        if self._told is None:
            stuck = [task for task in self.all_tasks
                     if task.index == 0 and task.node not in self.values and task.node not in self.dead]
            if stuck and self._survives(stuck):
                return True
            if stuck:
                after = f" after the death of {', '.join(self.dead)}" if self.dead else ""
                raise Deadlock(f"deadlock at {self.now:.6g} s{after}: {self.stuck(stuck)}")
            self._told = iter(self.all_tasks)
        # One after the other: to look at all of them again after each took n times as long.
        waiting = next((task for task in chain(self._told, self.all_tasks) if task.waiting is not None), None)
        if waiting is None:
            return False
        self.end(waiting)
        return True


def simulate(factory: Deployment | Factory, machine: Machine | None = None, seed: int = 0,
             observe: int = 64) -> Run:
    """Run a deployment to its end in virtual time; see `Simulator`."""
    return Simulator(factory, machine, seed, observe).run()
