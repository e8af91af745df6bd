"""Programs in virtual time: deterministic, an iterator of events, one effect a step.

At one moment first programs continue whose computing has ended, then heads of messages reach incoming links,
then messages arrive; ties go to the lower rank (a node's place in the deployment), then to the earlier one.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import chain
from typing import Any

from refsgd.cluster.machine import Machine
from refsgd.effects import Add, Compute, Deployment, Died, Factory
from refsgd.runtimes.engine import RESUME, Task
from refsgd.runtimes.errors import Deadlock, RunFailed
from refsgd.runtimes.faults import KEEP, Fault, Halted, Plan, check, survives_workers, why_over
from refsgd.runtimes.fork import together
from refsgd.runtimes.linked import Linked
from refsgd.runtimes.programs import line_of, read, share_of
from refsgd.trace import Event, Marked, Polled, Run, Trace


@together
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
        super().__init__(deployment() if callable(deployment) else deployment, machine or Machine(), seed,
                         observe, keep)
        self._read = 0
        # programs that are still to be told that the run has ended
        self._told: Iterator[Task] | None = None
        self._steps = self._go_on()
        for task in self.all_tasks:
            self._at(0.0, RESUME, task.rank, self._begin, task)

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
                raise Deadlock(f"deadlock at {self.now:.6g} s{self.stuck(stuck)}")
            self._told = iter(self.all_tasks)
        # One after the other: to look at all of them again after each took n times as long.
        waiting = next((task for task in chain(self._told, self.all_tasks) if task.waiting is not None), None)
        if waiting is None:
            return False
        self.end(waiting)
        return True


class Faulty(Simulator):
    """A simulator in which faults happen as planned, and deaths are noticed immediately.

    A death ends the run with `RunFailed` (`on_death` "stop"), is survived ("continue"), or ends the attempt
    with `Halted` ("shrink", "restart").
    """

    def __init__(self, deployment: Deployment | Factory, machine: Machine | None = None, seed: int = 0,
                 observe: int = 64, faults: Iterable[Fault] = (), on_death: str = "stop") -> None:
        deployment = deployment() if callable(deployment) else deployment
        super().__init__(deployment, machine, seed, observe,
                         KEEP if on_death in ("shrink", "restart") else 0)
        faults = list(faults)
        check(faults, self.roles, self.host)
        self._faults, self._on_death = Plan(faults, self.roles), on_death
        self._until: dict[str, float] = {}  # ends of the pauses of hosts
        self._halts = on_death == "restart" and survives_workers(deployment)  # otherwise once all wait

    # -- deaths --------------------------------------------------------------------------------------------

    def _die(self, fault: Fault) -> None:
        host = self.host[fault.node]
        gone = [node for node in self.nodes if self.host[node] == host]
        lost = f"its connection to {fault.to}" if fault.to else "its connections"
        how = "was killed" if fault.kind == "kill" else f"lost {lost}"
        reason = f"{fault.node} {how} as planned at step {fault.step}"
        for node in gone:
            self.lose(node, reason)
        over = why_over(self.dead, self.roles)
        if over or self._on_death == "stop":
            raise RunFailed(f"{reason}, at {self.now:.6g} s{over * (self._on_death != 'stop')}", host)
        for node in gone:
            for to in self.nodes:
                if to not in self.dead:
                    self._tell(node, to)
        if self._halts:
            self._halt()

    def _halt(self) -> None:
        self.seconds = self.now
        raise Halted(Run(self.trace(), self.values),
                     {n: list(x) for n, x in self.kept.items() if n not in self.dead})

    def _tell(self, dead: str, to: str) -> None:
        """Send a notice of death behind all earlier messages of the dead node."""
        task = self.tasks[dead][0]
        self.post(task, to, Died(dead), -1, 0, self.departs(task, to, 0))

    def _survives(self, stuck: list[Task]) -> bool:
        if not self.dead:
            return False
        if not all(task.node in self.endable for task in stuck):
            if self._on_death in ("shrink", "restart"):
                self._halt()
            return False
        self.end(stuck[0])
        return True

    # -- what faults change --------------------------------------------------------------------------------

    def compute(self, task: Task, effect: Compute) -> None:
        """As in the simulator, unless a fault happens to the node now or its host is paused."""
        host = self.host[task.node]
        for fault in self._faults.begins(task.node, effect.kind, effect.piece):
            if fault.kind != "pause":
                self._die(fault)
                return
            self._until[host] = max(self.now, self._until.get(host, 0.0)) + fault.amount
        if self._until.get(host, 0.0) > self.now:
            self._at(self._until[host], RESUME, -1, self._compute_now, task, effect)
        else:
            super().compute(task, effect)

    def _compute_now(self, task: Task, effect: Compute) -> None:
        if task.node not in self.dead:
            super().compute(task, effect)

    # -- the dead do nothing, and the paused do it later ---------------------------------------------------

    def _acts(self, node: str, call: Any, *args: Any) -> bool:
        """Whether a node acts now; a paused node will act later, in the same order."""
        until = self._until.get(self.host[node], 0.0)
        if node not in self.dead and until > self.now:
            self._at(until, RESUME, -1, call, *args)
            return False
        return node not in self.dead

    def resume(self, task: Task, value: Any) -> None:
        if task.node not in self.dead:
            super().resume(task, value)

    def spends(self, task: Task, nbytes: int, call: Any, *args: Any) -> None:
        super().spends(task, nbytes, self._spent, call, *args)

    def _spent(self, task: Task, call: Any, *args: Any) -> None:
        if self._acts(task.node, self._spent, task, call, *args):
            call(task, *args)

    def computed(self, task: Task, *result: Any) -> None:
        if self._acts(task.node, self.computed, task, *result):
            super().computed(task, *result)

    def added(self, task: Task, *result: Any) -> None:
        if self._acts(task.node, self.added, task, *result):
            super().added(task, *result)

    def deliver(self, to: str, *message: Any) -> None:
        if self._acts(to, self.deliver, to, *message):
            super().deliver(to, *message)


def simulate(factory: Deployment | Factory, machine: Machine | None = None, seed: int = 0,
             observe: int = 64, *, faults: Iterable[Fault] = (), on_death: str = "continue") -> Run:
    """Run a deployment to its end in virtual time; see `Simulator`, and `Faulty` with faults.

    >>> from refsgd.effects import Node
    >>> from refsgd.trace import Crashed
    >>> def work():
    ...     for t in range(3):
    ...         yield Compute(abs, -t)
    ...     return "done"
    >>> nodes = {"peer0": Node(work()), "peer1": Node(work())}
    >>> run = simulate(nodes, Machine("fixed(1)"), faults=[Fault("kill", "peer0", 2)])
    >>> run.values, [(e.time, e.node) for e in run.trace.of(Crashed)]
    ({'peer1': 'done'}, [(2.0, 'peer0')])
    """
    if faults:
        return Faulty(factory, machine, seed, observe, faults, on_death).run()
    return Simulator(factory, machine, seed, observe).run()
