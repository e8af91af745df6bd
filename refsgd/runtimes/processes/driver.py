"""The engine of one OS process: the same effects, events and draws as the simulator, on the wall clock.

An effect starts at the nominal time of its cause (a timer's due time, an emulated arrival), so that a late
wake-up only shortens the next sleep; docs/explanation/pacing.md says why.  Nominal time slips to real time
only at the end of a `Compute` that is late by more than `SLACK`; slips are counted.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop
from typing import Any, NamedTuple

from refsgd.cluster.machine import Machine
from refsgd.cluster.prices import Draws
from refsgd.effects import Add, Array, Compute, Deployment, Died, Load, payload_bytes
from refsgd.runtimes.engine import HEAD, RESUME, Task
from refsgd.runtimes.faults import Fault, Plan, gives_up, roles_of_hosts
from refsgd.runtimes.linked import Linked
from refsgd.runtimes.mailbox import Envelope, tag_of
from refsgd.runtimes.processes import shared
from refsgd.runtimes.processes.computing import Computing, Done, Job, Lateness
from refsgd.runtimes.processes.status import ABORT, HALT, StatusLog, StatusTable
from refsgd.runtimes.programs import freeze, line_of, read, share_of
from refsgd.runtimes.simulator import rare_full_collections
from refsgd.runtimes.transports.transport import Transport
from refsgd.runtimes.transports.wire import WireError
from refsgd.trace import Computed, Event

SLACK = 0.005  # seconds by which a Compute may end late before nominal time slips: delays by a scheduler
HEARTBEAT = 0.25  # longest sleep
PATIENCE = 1.0  # seconds in which a lost connection must turn out to be a death


class Aborted(Exception):
    """The launcher wants this process to end."""


class Beginning(NamedTuple):
    """The starting point of a resumed run: the state at the end of its record; see
    `refsgd.experiment.execution.resume`."""

    deployment: Deployment  #: its programs are suspended where the record ends
    seconds: float
    effects: dict[tuple[str, int], Any]  #: the effect for which each program waits, None if it has returned
    envelopes: dict[str, list[Envelope]]  #: messages sent to each node and not yet received
    numbers: dict[tuple[str, str], int]  #: number of messages sent on each channel
    #: draws of each program from its random streams
    draws: dict[tuple[str, int], list[Callable[[Draws], Any]]]
    tickets: int  #: number of accesses to shared cells
    values: dict[str, Any]
    events: list[Event]
    kept: dict[str, list[tuple[int, Array]]]  #: the newest parameters of each node
    dead: list[str]  #: nodes that have died and stay dead


class Driver(Linked):
    """Runs the programs of the nodes of one process.

    `quiet` is called when all main programs here have returned and nothing is left to do; `watch` are
    descriptors that become readable when the launcher is gone; `observe` and `keep` as in `Engine`.
    """

    def __init__(self, process: str, deployment: Deployment, machine: Machine, seed: int,
                 transport: Transport, table: StatusTable, quiet: Callable[[], None],
                 watch: Sequence[int] = (), observe: int = 64, faults: Iterable[Fault] = (),
                 keep: int = 0, groups: shared.GroupLinks | None = None) -> None:
        super().__init__(deployment, machine, seed, observe, keep, process, groups)
        self.here, self.transport, self.watch, self._quiet = process, transport, watch, quiet
        self.paced = machine.paced
        self.began = 0.0  # the common start on the monotonic clock; `now` counts nominal seconds since then
        self.lateness = {name: Lateness() for name in self.tasks}
        self._table, self._run, self._words = table, table.run, table.process[process]
        self._log = StatusLog(table, process)
        self._dead: set[str] = set()  # processes
        self._sent_to: Counter[str] = Counter()  # messages by process, to forget those of the dead
        self._got_from: Counter[str] = Counter()
        self._faults = Plan(faults, self.roles)
        self._role_of_process = roles_of_hosts(self.roles, self.host)
        self._hopeless = 0  # how often the launcher has announced that waiting programs get no message
        self._lost_at: dict[str, float] = {}  # processes with lost connections, and since when
        self._emulated = machine.linked or machine.paced
        if not self._emulated:
            self._priority = {}
        self._left: dict[str, float] = {}  # when the last message of each node had left it
        self._arrived: deque[tuple[str, Envelope]] = deque()  # nothing is emulated: before the agenda
        self._effects = 0
        self._next: dict[tuple[str, str], int] = {}  # number of the next message by channel
        self._computing = Computing(transport.knock, len(self.all_tasks) > 1)

    def standing(self) -> tuple[str, int]:
        """The node for which this thread works, and the number of Computes that it has finished."""
        task = self._computing.task
        return (task.node, self.lateness[task.node].computes) if task else (self.here, 0)

    def continue_from(self, beginning: Beginning) -> None:
        """Continue an earlier run with its programs."""
        self.now = self.seconds = beginning.seconds
        self.dead = list(beginning.dead)
        self._dead = {self.host[node] for node in beginning.dead}
        self._words.noticed = len(self._dead)
        for event in beginning.events:
            if isinstance(event, Computed):
                self._faults.begins(event.node, event.work, event.piece)
        for (src, to), count in beginning.numbers.items():
            self._next[src, to] = count
            if src in self.numbers:
                self.numbers[src][to] = count
        for node, tasks in self.tasks.items():
            self.kept[node].extend(beginning.kept[node])
            self.mailboxes[node].envelopes.extend(beginning.envelopes[node])
            if node in beginning.values:
                self.values[node] = beginning.values[node]
            for task in tasks:
                task.effect = beginning.effects[node, task.index]
                for draw in beginning.draws.get((node, task.index), ()):
                    draw(task.draws)

    # -- the clock -----------------------------------------------------------------------------------------

    def clock(self) -> float:
        """Real seconds since the common start."""
        return time.monotonic() - self.began

    def run(self, began: float) -> None:
        """Drive all programs until the launcher ends the run."""
        self.began = began
        for task in self.all_tasks:
            self._at(self.now, RESUME, task.rank, self._begin, task)
        agenda, run = self._agenda, self._run
        with rare_full_collections():
            while not run.command:
                self._words.beat = time.monotonic_ns()
                self._collect()
                if run.deaths != len(self._dead):
                    self._note_deaths()
                if run.hopeless != self._hopeless:
                    self._end_one()
                if self._arrived or (agenda and agenda[0][0] <= self.clock()):
                    self._advance()
                else:
                    self._rest()
        if run.command == ABORT:
            raise Aborted
        if run.command != HALT:
            self._close()

    def _collect(self) -> None:
        """Put messages from the transport and results of helper threads on the agenda."""
        for frame in self.transport.take():
            sender, receiver, tag, number, stamp, fields = frame
            channel = src, to = self.nodes[sender], self.nodes[receiver]
            if number != self._next.get(channel, 0):
                raise WireError(f"message {number} of {src} to {to} arrived twice or out of order; expected "
                                f"{self._next.get(channel, 0)}")
            self._next[channel] = number + 1
            nbytes, now = payload_bytes(fields), self.clock()
            if self._emulated or stamp > now:
                if way := self._ways[channel]:
                    self._left[src] = max(stamp + nbytes * way[0].byte_time, self._left.get(src, 0.0))
                self._enters(stamp, (to, src, fields, number, nbytes, tag))
            else:  # it arrives now
                self._arrived.append((to, Envelope(src, tag, fields, number, now, nbytes)))
        while self._computing.finished:
            self._computing.running -= 1
            self._finish(self._computing.finished.popleft())

    def _note_deaths(self) -> None:
        """Tell the programs here which processes have died, and stop counting messages from and to them."""
        dead = [p for p, words in self._table.process.items() if words.dead and p not in self._dead]
        self._collect()  # what they sent right before
        for process in dead:
            self._dead.add(process)
            self.transport.forget(process)
            del self._sent_to[process], self._got_from[process]
            for node in (n for n in self.nodes if self.host[n] == process):
                # after everything that it sent, some of which may still be on emulated links
                start = max(self.clock(), self._left.get(node, 0.0))
                self.dead.append(node)
                for to in self.tasks:
                    self._enters(start, (to, node, (node,), -1, 0, tag_of(Died)))
        self._words.noticed = len(self._dead) + self._hopeless

    def _end_one(self) -> None:
        """After a death no message can arrive any more: end a main program that expects this."""
        self._hopeless = self._run.hopeless
        self._words.noticed = len(self._dead) + self._hopeless
        task = next((t for t in self.all_tasks if t.index == 0 and t.node in self.endable
                     and t.waiting is not None), None)
        if task is not None:
            self.end(task)
            self._continue()

    def _look_at_connections(self) -> None:
        """End this process if its connection to another is lost for so long that the other cannot be dead.

        Both ends notice, and only one should end: the other waits twice as long.
        """
        now = time.monotonic()
        for process in self.transport.lost:
            first = gives_up(self.here, process, self._role_of_process) == self.here
            patience = PATIENCE if first else 2 * PATIENCE
            lost = now - self._lost_at.setdefault(process, now)
            if process not in self._dead and lost > patience and not self._run.command:
                raise ConnectionError(
                    f"the connection between {self.here} and {process} was lost, but both are alive")

    def _advance(self) -> None:
        """Perform the earliest due event of the agenda, after which one program runs until it waits."""
        if self._arrived and not (self._agenda and self._agenda[0][0] < self._arrived[0][1].arrival):
            self.now = self.clock()
            to, (src, tag, fields, number, arrival, nbytes) = self._arrived.popleft()
            self.deliver(to, src, fields, number, nbytes, tag, arrival)
        else:
            due, order, _, _, call, args = heappop(self._agenda)
            if order != HEAD:  # a link keeps its own time
                self.now = max(due, self.now) if self.paced else self.clock()
            call(*args)
        self._continue()

    def _continue(self) -> None:
        """Let the program that is ready run until it has to wait."""
        if self.ready is not None:
            self._computing.works_for(self.ready[0])
        while self.ready is not None:
            ready, self.ready = self.ready, None
            if not self.paced:
                self.now = self.clock()
            self._effects += 1
            self.resume(*ready)

    def _rest(self) -> None:
        """Publish that nothing is due, and sleep until something may be."""
        words, agenda = self._words, self._agenda
        timeout = min(HEARTBEAT, agenda[0][0] - self.clock()) if agenda else HEARTBEAT
        if timeout > 0 and self.transport.soon(timeout):
            return
        idle = not agenda and not self._computing.running and not self.transport.unsent
        words.sent, words.got, words.effects = self._sent_to.total(), self._got_from.total(), self._effects
        words.due = int(agenda[0][0] * 1e9) if agenda else 0
        self._look_at_connections()
        done = len(self.values) == len(self.tasks)
        words.done, words.idle = done, idle
        if idle and done:
            self._quiet()
        if timeout > 0 and self.transport.wait(timeout, self.watch):
            raise Aborted
        words.idle = 0

    # -- programs ------------------------------------------------------------------------------------------

    def _begin(self, task: Task) -> None:
        """Start a program, or continue it with its pending effect."""
        if task.effect is not None:
            self._computing.works_for(task)
            task.since = self.now
            self.act(task, task.effect)
        elif getattr(task.program, "gi_frame", None) is not None:
            self.ready = task, None

    def ended(self, task: Task, value: Any) -> None:
        super().ended(task, value)
        self._log.ended(task.node, task.index)

    def waits(self, task: Task) -> None:
        self._log.waits(task.node, task.index, task.program, task.effect, time.monotonic_ns())

    def load(self, task: Task, effect: Load) -> tuple[Any, int]:
        return shared.load(effect)

    def write(self, effect: Add, seen: Any) -> int:
        return shared.add(effect, seen)

    def add(self, task: Task, effect: Add) -> None:
        """Read now, and write after the time that it takes."""
        seconds = self._duration(task, "update") * share_of(effect) if self.paced else 0.0
        seen = None if effect.atomic else read(effect)
        self._when_served(self._occupy(task, seconds), self.added, task, effect, seen)

    # -- computing -----------------------------------------------------------------------------------------

    def compute(self, task: Task, effect: Compute) -> None:
        """Compute here or in a helper thread; the program continues when it is due."""
        freeze(effect.args)
        self.waits(task)
        for fault in self._faults.begins(task.node, effect.kind, effect.piece):
            self._suffer(fault)
        start, due, priced = self.now, self.now, True
        if self.paced:
            duration = self._duration(task, effect.kind, effect)
            priced = duration > 0 or task.draws.prices.of(effect.kind) is not None
            due = self._occupy(task, duration)
            self.lateness[task.node].drawn += duration
        done = self._computing.do(Job(task, effect, start, due, priced))
        if done is not None:
            self._finish(done)

    def _suffer(self, fault: Fault) -> None:
        """Carry out a planned fault of a node here, as it begins a step."""
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "drop":
            cut = self.transport.sever(self.host[fault.to] if fault.to else "")
            if not (fault.to and cut):  # otherwise both ends find out
                what = f"its connection to {fault.to}" if fault.to else "its connections"
                raise ConnectionError(f"{fault.node} lost {what} as planned at step {fault.step}")
        else:
            self._words.wake = time.monotonic_ns() + int(fault.amount * 1e9)
            self._quiet()  # so that the launcher checks when to continue this process
            os.kill(os.getpid(), signal.SIGSTOP)
            self._words.wake = 0
            self.now = self.now + fault.amount if self.paced else self.clock()

    def _finish(self, done: Done) -> None:
        """Schedule the continuation of a program whose Compute has really ended."""
        task, effect, _, due, priced = done.job
        if done.error is not None:
            where = f"{task.node}, yielded at {line_of(task.program)}"
            done.error.add_note(f"in Compute({effect.kind}) of {where}")
            raise done.error
        record = self.lateness[task.node]
        record.computes += 1
        record.computing += done.took
        if not self.paced:  # a due time of 0 would overtake every message
            due = done.ended - self.began + (self._faults.slower(task.node) - 1) * done.took
        elif priced:
            record.overrun += max(0.0, done.ended - self.began - self._due(done.job))
        self._when_served(due, self._resume_compute, task, done)

    def _due(self, job: Job) -> float:
        """When a Compute ends in nominal time, unless other programs of the process begin before."""
        processors = self._shared.get(self.here)
        return job.due if processors is None else processors.due(job.task)

    def _resume_compute(self, task: Task, done: Done) -> None:
        (_, effect, start, _, priced), late = done.job, 0.0
        if self.paced:
            due, record = self._due(done.job), self.lateness[task.node]
            late = max(0.0, self.clock() - due)
            record.seen(late)
            if priced and late > SLACK:
                record.slips += 1
                record.slipped += late
                self.now = max(self.now, due + late)
        self.computed(task, start, effect, done.value, late)

    # -- messages ------------------------------------------------------------------------------------------

    def departs(self, task: Task, to: str, nbytes: int) -> float:
        return super().departs(task, to, nbytes) if self._emulated else self.now

    def _post(self, task: Task, to: str, body: Any, number: int, nbytes: int, start: float) -> None:
        """Hand a message to the transport, or put one for this process on the agenda."""
        src, there = task.node, self.host[to]
        if there == self.here:
            super()._post(task, to, body, number, nbytes, start)
        elif there not in self._dead:
            self._sent_to[there] += 1
            self._words.messages_sent += 1
            self._words.bytes_sent += nbytes
            if self._faults.delays:
                start = self._faults.late(src, to, start, nbytes * self._ways[src, to][0].byte_time)
            try:
                self.transport.post(there, body, task.rank, self.rank[to], number, start)
            except TypeError as error:
                raise TypeError(f"{src}: {line_of(task.program)} sends {error}") from None

    def deliver(self, to: str, src: str, body: Any, number: int, nbytes: int, tag: int = 0,
                arrival: float | None = None) -> None:
        if self.paced:
            self.lateness[to].seen(max(0.0, self.clock() - self.now))
        process = self.host[src]
        if process != self.here and process not in self._dead:
            self._got_from[process] += 1
            self._words.messages_received += 1
            self._words.bytes_received += nbytes
        super().deliver(to, src, body, number, nbytes, tag, arrival)

    # -- the end -------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """End the handlers once nothing is in transit anywhere; they may continue and return a value."""
        while True:
            task = next((t for t in self.all_tasks if t.waiting is not None), None)
            if self._arrived:
                self._advance()
            elif self._agenda:
                self.transport.wait(max(0.0, self._agenda[0][0] - self.clock()), self.watch)
                self._advance()
            elif self._computing.running:
                self.transport.wait(HEARTBEAT, self.watch)
                self._collect()
            elif task is not None:
                self.end(task)
                self._continue()
            else:
                break
        for task in self.all_tasks:
            task.program.close()
