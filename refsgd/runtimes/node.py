"""Drives the programs of one host as a real process: the same effects, events and draws as the simulator.

*Nominal time.*  Every wake-up is late by a tenth of a millisecond or more.  If an effect started when the
process happened to wake, the lateness would add up along the critical path.  So an effect starts at the
nominal time of what caused it (a timer's due time, an emulated arrival), and lateness shortens the next sleep
instead of lengthening the run.  Nominal time slips to real time only at the end of a `Compute` that is late by
more than `SLACK`, since no sleep is left there to absorb it; slips are counted.  (Slipping at arrivals too was
tried: a worker whose turn on the core came 7 ms after its message slipped although its 20 ms of drawn
computing had room for that.)  A host's nominal time never goes back.

*The emulated link* is served at the receiver: a message carries the start of its transmission, its head is an
event at start + latency, and the incoming link then says when it arrives (see `refsgd.machine`).
"""

from __future__ import annotations

import heapq
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from refsgd.effects import (
    Add,
    Array,
    Choose,
    Compute,
    Deployment,
    Died,
    Load,
    Mark,
    Poll,
    Program,
    Recv,
    RunEnded,
    Send,
    _Built,
    payload_bytes,
)
from refsgd.machine import Draws, Machine
from refsgd.runtimes import cells
from refsgd.runtimes.board import (
    ABORT,
    BEAT,
    COMMAND,
    DEAD,
    DEATHS,
    DONE,
    DUE,
    EFFECTS,
    GOT,
    HALT,
    IDLE,
    NOTICED,
    SENT,
    VAIN,
    WAKE,
    Board,
    Notes,
)
from refsgd.runtimes.computing import Computing, Done, Job, Task
from refsgd.runtimes.faults import Fault, Plan, can_be_ended, gives_up
from refsgd.runtimes.lateness import Lateness
from refsgd.runtimes.mailbox import Letter, Mailbox, tag_of
from refsgd.runtimes.processors import Processors
from refsgd.runtimes.programs import blame, forgotten, freeze, line_of, no_effect, share_of
from refsgd.runtimes.simulator import ARRIVE, HEAD, RESUME, rare_full_collections
from refsgd.runtimes.transport import Transport
from refsgd.runtimes.wire import WireError
from refsgd.trace import Event, Thinner

SLACK = 0.005  # seconds by which a Compute may end late before nominal time slips; what a busy machine's scheduler costs
HEARTBEAT = 0.25  # longest sleep
PATIENCE = 1.0  # seconds in which a lost connection must turn out to be a death
_BLOCKED = object()


class Aborted(Exception):
    """The launcher wants this process to end."""


class Beginning(NamedTuple):
    """Where a run goes on; see `refsgd.resumable`."""

    deployment: Deployment  #: whose programs stand where they stood
    seconds: float
    effects: dict[tuple[str, int], Any]  #: what each program waits for, None if it has returned
    letters: dict[str, list[Letter]]  #: what has been sent to each node and not been received
    numbers: dict[tuple[str, str], int]  #: how many messages each channel has had
    draws: dict[tuple[str, int], list[Callable[[Draws], Any]]]  #: what each program has taken from its random streams
    tickets: int  #: how many accesses to shared cells there have been
    values: dict[str, Any]
    events: list[Event]


class Driver:
    """Runs the programs of the nodes that live on one host.

    Parameters
    ----------
    host : str
        Which host this process is.
    deployment : Deployment
        The whole deployment; only the host's own programs are driven.
    machine : Machine
        Paces computing and messages.
    seed : int
        Of the drawn durations and choices.
    transport : Transport
        To the other hosts.
    board : Board
        Where the host reports and is told to end.
    quiet : callable
        Called when all mains here have returned and nothing is to be done.
    watch : sequence of int
        Descriptors that become readable when the launcher is gone.
    observe : int
        Most `x` kept of each mark.
    faults : iterable of Fault
        What is to befall the nodes.
    keep : int
        How many of the newest `x` of each node's updates are held in `kept`, for a later life of the run.
    """

    def __init__(self, host: str, deployment: Deployment, machine: Machine, seed: int, transport: Transport,
                 board: Board, quiet: Callable[[], None], watch: Sequence[int] = (), observe: int = 64,
                 faults: Iterable[Fault] = (), keep: int = 0) -> None:
        self.machine, self.transport, self.watch, self._quiet = machine, transport, watch, quiet
        self.nodes = list(deployment)
        self.rank = {name: i for i, name in enumerate(self.nodes)}
        self.host = machine.hosts(self.nodes)
        self.here = host
        self.paced = machine.paced
        self.began = 0.0  # the common start on the monotonic clock
        self.now = 0.0  # seconds since then: nominal if paced, real otherwise
        self.events: list[Event] = []
        self.journal: Callable[[Event], None] | None = None  #: told each event at once
        self.pause: Callable[[Driver], None] | None = None  #: called before each happening, may stop the run for a while
        self.values: dict[str, Any] = {}
        self.seconds = 0.0
        mine = [name for name in self.nodes if self.host[name] == host]
        self.boxes = {name: Mailbox() for name in mine}
        self.lateness = {name: Lateness() for name in mine}
        self._tasks: dict[str, list[Task]] = {}
        for name in mine:
            programs = [deployment[name].main, *deployment[name].responders]
            self._tasks[name] = [Task(name, i, p, Draws(machine, seed, name, i)) for i, p in enumerate(programs)]
        self._every = [task for tasks in self._tasks.values() for task in tasks]
        self._board, self._command = board, board.words
        self._words, self._notes = board.of(host), Notes(board, host)
        self._dead: set[str] = set()
        self._sent_to: Counter[str] = Counter()  # messages by host, to forget those of the dead
        self._got_from: Counter[str] = Counter()
        self._faults = Plan(faults)
        self._endable = {name for name in mine if can_be_ended(deployment[name].main)}
        self._vain = 0  # how often the launcher has said that programs wait in vain
        self._lost_at: dict[str, float] = {}  # hosts to which the connection is lost, and since when
        self._last: dict[str, float] = {}  # head of the last message of each node
        self.kept = {name: deque[tuple[int, Array]](maxlen=keep) for name in mine}
        self._thin = Thinner(observe)
        self._byte_time, self._latency = 1 / machine.bandwidth, machine.latency
        self._emulated = machine.linked or machine.paced
        self._free = [0.0, 0.0]  # when the outgoing and the incoming link are
        self._incoming = 0 if machine.duplex == "half" else 1
        self._processors = Processors(machine.cores) if machine.cores and self.paced and len(self._every) > machine.cores else None
        self._heap: list[tuple[float, int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._arrived: deque[tuple[str, Letter]] = deque()  # where nothing is emulated: what is there, before any look at the agenda
        self._sequence = self._effects = 0
        self._numbers: dict[tuple[str, str], int] = {}  # of the next message to send in a channel
        self._next: dict[tuple[str, str], int] = {}  # of the next message to come in a channel
        self._computing = Computing(transport.knock, len(self._every) > 1)

    def standing(self) -> tuple[str, int]:
        """For which node this thread works, and how many Computes that node has finished."""
        task = self._computing.task
        return (task.node, self.lateness[task.node].computes) if task else (self.here, 0)

    # -- stopping and going on -----------------------------------------------------------------------------

    def go_on(self, beginning: Beginning) -> None:
        """Stand where an earlier run stood, of which the programs of the deployment are."""
        self.now = self.seconds = beginning.seconds
        self._numbers.update({channel: n for channel, n in beginning.numbers.items() if channel[0] in self.boxes})
        self._next.update(beginning.numbers)
        for node, tasks in self._tasks.items():
            for letter in beginning.letters[node]:
                self.boxes[node].put(letter)
            if node in beginning.values:
                self.values[node] = beginning.values[node]
            for task in tasks:
                task.effect = beginning.effects[node, task.index]
                for draw in beginning.draws.get((node, task.index), ()):
                    draw(task.draws)

    @property
    def ended(self) -> bool:
        """Whether the launcher wants this process to end."""
        return bool(self._command[COMMAND])

    @property
    def computing(self) -> int:
        """Computes that helper threads have not finished."""
        return self._computing.running

    @property
    def sent(self) -> Mapping[tuple[str, str], int]:
        """Messages sent by each node here to each other one."""
        return self._numbers

    def got(self, src: str, to: str) -> int:
        """Messages that have come in from a node of another host."""
        return self._next.get((src, to), 0)

    def listen(self, timeout: float) -> None:
        """Take over what comes in, and let nothing happen."""
        self._words[BEAT] = time.monotonic_ns()
        if self.transport.wait(timeout, self.watch):
            raise Aborted
        self._collect()

    def programs(self, node: str) -> list[tuple[Program[Any], Any]]:
        """The programs of a node here, with the effects at which they stand."""
        return [(task.program, task.effect) for task in self._tasks[node]]

    def letters(self, node: str) -> list[Letter]:
        """What has come, or is about to arrive, and has not been received by a node here; by sender and number."""
        due = [args[1] for *_, call, args in self._heap if call in (self._deliver, self._head) and args[0] == node]
        due += [letter for to, letter in self._arrived if to == node]
        return sorted([*self.boxes[node].letters, *due], key=lambda letter: (self.rank[letter.src], letter.number))

    # -- the clock -----------------------------------------------------------------------------------------

    def clock(self) -> float:
        """Real seconds since the common start."""
        return time.monotonic() - self.began

    def _at(self, due: float, order: int, rank: int, call: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (due, order, rank, self._sequence, call, args))

    def run(self, began: float) -> None:
        """Drive all programs until the launcher says that nothing can happen any more."""
        self.began = began
        for task in self._every:
            self._at(self.now, RESUME, self.rank[task.node], self._begin, task)
        heap, command = self._heap, self._command
        with rare_full_collections():
            while not command[COMMAND]:
                self._words[BEAT] = time.monotonic_ns()
                self._collect()
                if self.pause is not None:
                    self.pause(self)
                if command[DEATHS] != len(self._dead):
                    self._bury()
                if command[VAIN] != self._vain:
                    self._wait_in_vain()
                if self._arrived or (heap and heap[0][0] <= self.clock()):
                    self._advance()
                else:
                    self._rest()
        if command[COMMAND] == ABORT:
            raise Aborted
        if command[COMMAND] != HALT:
            self._close()

    def _collect(self) -> None:
        """Put what has come over the wire and out of helper threads on the agenda."""
        for frame in self.transport.take():
            sender, receiver, tag, number, stamp, fields = frame
            channel = src, to = self.nodes[sender], self.nodes[receiver]
            if number != self._next.get(channel, 0):
                raise WireError(f"message {number} of {src} to {to} came twice or out of turn; expected {self._next.get(channel, 0)}")
            self._next[channel] = number + 1
            now = self.clock()
            head = stamp + self._latency if self._emulated else max(stamp, now)
            letter = Letter(src, tag, fields, number, head, payload_bytes(fields))
            self._last[src] = head
            if self._byte_time:
                self._at(head, HEAD, sender, self._head, to, letter)
            elif self._emulated or head > now:
                self._at(head, ARRIVE, sender, self._deliver, to, letter)
            else:  # it arrives as it is there
                self._arrived.append((to, letter))
        while self._computing.finished:
            self._computing.running -= 1
            self._finish(self._computing.finished.popleft())

    def _bury(self) -> None:
        """Hear of deaths: tell the programs here, and count no more what the dead sent or were sent."""
        for host in self._board.programs:
            if not self._board.of(host)[DEAD] or host in self._dead:
                continue
            self._dead.add(host)
            self.transport.forget(host)
            del self._sent_to[host], self._got_from[host]
            for node in (n for n in self.nodes if self.host[n] == host):
                # Behind everything that it has sent, some of which the emulated link may still hold.
                head = max(self.clock(), self._last.get(node, 0.0))
                order, call = (HEAD, self._head) if self._byte_time else (ARRIVE, self._deliver)
                for to in self._tasks:
                    self._at(head, order, self.rank[node], call, to, Letter(node, tag_of(Died), (node,), -1, 0.0, 0))
        self._words[NOTICED] = len(self._dead) + self._vain

    def _wait_in_vain(self) -> None:
        """After a death nothing can come any more: tell a main program that knows what to do."""
        self._vain = self._command[VAIN]
        self._words[NOTICED] = len(self._dead) + self._vain
        task = next((t for t in self._every if t.index == 0 and t.node in self._endable and type(t.waiting) is Recv), None)
        if task is not None:
            task.waiting = None
            self._resume(task, RunEnded())

    def _look_at_connections(self) -> None:
        """A connection that is lost to a host that lives ends this process: soon the launcher would have named the dead.

        Both ends see it, and one should go: the other has twice the patience.
        """
        now = time.monotonic()
        for host in self.transport.lost:
            patience = PATIENCE if gives_up(self.here, host, self.nodes) == self.here else 2 * PATIENCE
            if host not in self._dead and now - self._lost_at.setdefault(host, now) > patience and not self._command[COMMAND]:
                raise ConnectionError(f"the connection between {self.here} and {host} was lost, and both live")

    def _advance(self) -> None:
        """Perform the earliest due happening: one program then runs until it waits."""
        if self._arrived and not (self._heap and self._heap[0][0] < self._arrived[0][1].arrival):
            self.now = self.clock()
            self._hand_over(*self._arrived.popleft())
            return
        due, order, _, _, call, args = heapq.heappop(self._heap)
        if order == HEAD:
            call(due, *args)  # the link keeps its own time
        else:
            self.now = max(due, self.now) if self.paced else self.clock()
            call(*args)

    def _rest(self) -> None:
        """Nothing is due: say so and sleep until something is or may be."""
        words, heap = self._words, self._heap
        timeout = min(HEARTBEAT, heap[0][0] - self.clock()) if heap else HEARTBEAT
        if timeout > 0 and self.transport.soon(timeout):
            return
        idle = not heap and not self._computing.running and not self.transport.unsent
        words[SENT], words[GOT], words[EFFECTS] = self._sent_to.total(), self._got_from.total(), self._effects
        words[DUE] = int(heap[0][0] * 1e9) if heap else 0
        self._look_at_connections()
        done = len(self.values) == len(self._tasks)
        words[DONE], words[IDLE] = done, idle
        if idle and done:
            self._quiet()
        if timeout > 0 and self.transport.wait(timeout, self.watch):
            raise Aborted
        words[IDLE] = 0

    # -- programs ------------------------------------------------------------------------------------------

    def _record(self, task: Task, kind: str, data: dict[str, Any]) -> None:
        self.events.append(Event(self.now, task.node, task.index, kind, data))
        if self.journal is not None:
            self.journal(self.events[-1])

    def _begin(self, task: Task) -> None:
        """Start a program, or let it go on with the effect at which it stands."""
        if task.effect is None:
            if getattr(task.program, "gi_frame", None) is not None:
                self._resume(task, None)
            return
        self._computing.works_for(task)
        answer = self._act(task, task.effect)
        if answer is not _BLOCKED:
            self._resume(task, answer)

    def _resume(self, task: Task, value: Any) -> None:
        """Run a program until it has to wait."""
        self._computing.works_for(task)
        while value is not _BLOCKED:
            if not self.paced:
                self.now = self.clock()
            self._effects += 1
            value = self._perform(task, value)

    def _perform(self, task: Task, value: Any) -> Any:
        """Send `value` into a program and act on its effect; the answer, or _BLOCKED."""
        built = _Built.count
        try:
            effect: Any = task.program.throw(value) if isinstance(value, RunEnded) else task.program.send(value)
        except StopIteration as stop:
            if _Built.count > built:
                raise forgotten(task.node, task.program, built, 0) from None
            return self._returned(task, stop.value)
        except RunEnded:
            return self._returned(task, None)
        except Exception as error:
            blame(error, task.name, task.node, self.now)
            raise
        if _Built.count > built + 1:
            raise forgotten(task.node, task.program, built, 1)
        task.effect = effect
        return self._act(task, effect)

    def _act(self, task: Task, effect: Any) -> Any:
        """Act on the effect of a program; the answer, or _BLOCKED."""
        kind = type(effect)
        if kind is Send:
            return self._send(task, effect)
        if kind is Compute:
            return self._compute(task, effect)
        if kind is Recv:
            task.since, task.waiting = self.now, effect
            answer = self._receive(task)
            if answer is _BLOCKED:
                self._notes.waits(task.node, task.index, task.program, effect, time.monotonic_ns())
            return answer
        if kind is Poll:
            return self._poll(task, effect)
        if kind is Mark:
            freeze(effect.values.values())
            self._record(task, "mark", {"name": effect.name, **effect.values})
            if effect.name == "update" and "x" in effect.values:
                self.kept[task.node].append((effect.values.get("t", effect.values["version"]), effect.values["x"]))
            self._thin(self.events[-1])
            return None
        if kind is Choose:
            option = task.draws.choose(effect.options, effect.p)
            self._record(task, "choose", {"option": option})
            return option
        if kind is Load:
            part, ticket = cells.load(effect)
            self._record(task, "load", {"part": effect.part, "ticket": ticket})
            return part
        if kind is Add:
            freeze((effect.delta,))
            due = self._occupy(task, self._duration(task, "update") * share_of(effect)) if self.paced else self.now
            self._at(due, RESUME, self.rank[task.node], self._finish_add, task, due, effect, cells.before(effect))
            return _BLOCKED
        raise no_effect(task.node, task.program, effect)

    def _finish_add(self, task: Task, due: float, effect: Add, seen: Any) -> None:
        if self._later(self._finish_add, task, due, effect, seen):
            return
        self._record(task, "add", {"part": effect.part, "ticket": cells.add(effect, seen)})
        self._resume(task, None)

    def _returned(self, task: Task, value: Any) -> Any:
        task.waiting = task.effect = None
        self._record(task, "return", {})
        self._notes.ended(task.node, task.index)
        if task.index == 0:
            self.values[task.node] = value
            self.seconds = max(self.seconds, self.now)
        return _BLOCKED

    # -- computing -----------------------------------------------------------------------------------------

    def _compute(self, task: Task, effect: Compute) -> Any:
        freeze(effect.args)
        self._notes.waits(task.node, task.index, task.program, effect, time.monotonic_ns())
        for fault in self._faults.begins(task.node, effect.kind):
            self._befalls(fault)
        start, due, priced = self.now, self.now, True
        if self.paced:
            duration = self._duration(task, effect.kind, payload_bytes(effect.args[1:]) if effect.kind == "reduction" else 0)
            priced = duration > 0 or self.machine.law(task.node, effect.kind) is not None
            due = self._occupy(task, duration)
            self.lateness[task.node].drawn += duration
        done = self._computing.do(Job(task, effect.kind, start, due, priced), effect)
        if done is not None:
            self._finish(done)
        return _BLOCKED

    def _duration(self, task: Task, kind: str, nbytes: int = 0) -> float:
        return task.draws.duration(kind, nbytes) * self._faults.slower(task.node)

    def _occupy(self, task: Task, seconds: float) -> float:
        """A program computes for so long from now on; when it ends, unless others of the host begin meanwhile."""
        return self._processors.begin(task, self.now, seconds) if self._processors else self.now + seconds

    def _later(self, call: Callable[..., None], task: Task, due: float, *args: Any) -> bool:
        """Whether others have begun since and moved what was due; then `call` is on the agenda again."""
        moved = self._processors.due(task) if self._processors else due
        if moved > due:
            self._at(moved, RESUME, self.rank[task.node], call, task, moved, *args)
        return moved > due

    def _befalls(self, fault: Fault) -> None:
        """What a plan has in store for a node here, as it begins a step."""
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "drop":
            cut = self.transport.sever(self.host[fault.to] if fault.to else "")
            if not (fault.to and cut):  # what one end cannot know, both find out
                what = f"its connection to {fault.to}" if fault.to else "its connections"
                raise ConnectionError(f"{fault.node} lost {what} as planned at step {fault.step}")
        else:
            self._words[WAKE] = time.monotonic_ns() + int(fault.amount * 1e9)
            self._quiet()  # the launcher looks when to continue this process
            os.kill(os.getpid(), signal.SIGSTOP)
            self._words[WAKE] = 0
            self.now = self.now + fault.amount if self.paced else self.clock()

    def _finish(self, done: Done) -> None:
        """A Compute has really ended; its program goes on at its due time."""
        task, kind, start, due, priced = done.job
        if done.error is not None:
            done.error.add_note(f"in Compute({kind}) of {task.node}, yielded at {line_of(task.program)}")
            raise done.error
        record = self.lateness[task.node]
        record.computes += 1
        record.computing += done.took
        if not self.paced:  # not 0: that would overtake every message for ever
            due = done.ended - self.began + (self._faults.slower(task.node) - 1) * done.took
        elif priced:
            record.overrun += max(0.0, done.ended - self.began - (self._processors.due(task) if self._processors else due))
        self._at(due, RESUME, self.rank[task.node], self._resume_compute, task, due, kind, start, priced, done.value)

    def _resume_compute(self, task: Task, due: float, work: str, start: float, priced: bool, value: Any) -> None:
        if self._later(self._resume_compute, task, due, work, start, priced, value):
            return
        data: dict[str, Any] = {"start": start, "work": work, "late": 0.0}
        if self.paced:
            late = data["late"] = max(0.0, self.clock() - due)
            record = self.lateness[task.node]
            record.seen(late)
            if priced and late > SLACK:
                record.slips += 1
                record.slipped += late
                self.now = max(self.now, due + late)
        self._record(task, "compute", data)
        self._resume(task, value)

    # -- messages ------------------------------------------------------------------------------------------

    def _send(self, task: Task, effect: Send) -> Any:
        src, to, body = task.node, effect.to, effect.body
        if to not in self.rank:
            raise ValueError(f"{src}: {line_of(task.program)} sends to {to!r}; expected one of {', '.join(self.nodes)}")
        freeze(body)
        nbytes, start = payload_bytes(body), self.now
        number = self._numbers.get((src, to), 0)
        self._numbers[src, to] = number + 1
        away = self.host[to] != self.here
        if away:
            start = max(start, self._free[0])
            self._free[0] = start + nbytes * self._byte_time
        # Before it goes: of who is killed between the two, a record must not lack what others have received.
        self._record(task, "send", {"to": to, "message": type(body).__name__, "number": number,
                                    "bytes": nbytes, "start": start})
        if not away:
            letter = Letter(src, tag_of(type(body)), body, number, 0.0, nbytes)
            self._at(start, ARRIVE, self.rank[src], self._deliver, to, letter)
        elif self.host[to] not in self._dead:
            self._sent_to[self.host[to]] += 1
            try:
                self.transport.post(self.host[to], body, self.rank[src], self.rank[to], number, start + self._faults.later(src, to))
            except TypeError as error:
                raise TypeError(f"{src}: {line_of(task.program)} sends {error}") from None
        return None

    def _head(self, head: float, to: str, letter: Letter) -> None:
        """The head of a message reaches the incoming link, which serves in this order."""
        self._free[self._incoming] = arrival = max(head, self._free[self._incoming]) + letter.nbytes * self._byte_time
        self._at(arrival, ARRIVE, self.rank[letter.src], self._deliver, to, letter)

    def _deliver(self, to: str, letter: Letter) -> None:
        """A message of the agenda arrives, at its time."""
        if self.paced:
            self.lateness[to].seen(max(0.0, self.clock() - self.now))
        self._hand_over(to, Letter(letter.src, letter.tag, letter.body, letter.number, self.now, letter.nbytes))

    def _hand_over(self, to: str, letter: Letter) -> None:
        """A letter goes to the program that waits for it, or into the box."""
        host = self.host[letter.src]
        if host != self.here and host not in self._dead:
            self._got_from[host] += 1
        self.boxes[to].put(letter)
        for task in self._tasks[to]:
            if type(task.waiting) is Recv:
                answer = self._receive(task)
                if answer is not _BLOCKED:
                    self._resume(task, answer)
                    break

    def _receive(self, task: Task) -> Any:
        effect = task.waiting
        hit = self.boxes[task.node].take(effect.kinds, effect.src)
        if hit is None:
            return _BLOCKED
        letter, body = hit
        task.waiting = None
        self._record(task, "receive", {"src": letter.src, "message": type(body).__name__, "number": letter.number,
                                       "bytes": letter.nbytes, "since": task.since, "arrival": letter.arrival})
        return letter.src, body

    def _poll(self, task: Task, effect: Poll) -> Any:
        hit = self.boxes[task.node].take(effect.kinds, effect.src)
        data: dict[str, Any] = {"src": None}
        if hit is not None:
            letter, body = hit
            data = {"src": letter.src, "message": type(body).__name__, "number": letter.number,
                    "bytes": letter.nbytes, "arrival": letter.arrival}
        self._record(task, "poll", data)
        return (hit[0].src, hit[1]) if hit else None

    # -- the end -------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """Nothing is under way anywhere: tell the responders, who may go on and return a value."""
        while True:
            task = next((t for t in self._every if type(t.waiting) is Recv), None)
            if self._arrived:
                self._advance()
            elif self._heap:
                self.transport.wait(max(0.0, self._heap[0][0] - self.clock()), self.watch)
                self._advance()
            elif self._computing.running:
                self.transport.wait(HEARTBEAT, self.watch)
                self._collect()
            elif task is not None:
                task.waiting = None
                self._resume(task, RunEnded())
            else:
                break
        for task in self._every:
            task.program.close()
