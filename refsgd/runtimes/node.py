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
import queue
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from refsgd.effects import (
    Add,
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
    IDLE,
    NOTICED,
    SENT,
    Board,
    Notes,
)
from refsgd.runtimes.lateness import Lateness
from refsgd.runtimes.mailbox import Letter, Mailbox, tag_of
from refsgd.runtimes.programs import counts_steps, freeze, line_of
from refsgd.runtimes.simulator import ARRIVE, HEAD, RESUME, ForgottenYield
from refsgd.runtimes.wire import Frame, WireError
from refsgd.trace import Event, Thinner

SLACK = 0.005  # seconds by which a Compute may end late before nominal time slips; what a busy machine's scheduler costs
HEARTBEAT = 0.25  # longest sleep
LONG = 0.005  # a Compute that really takes longer moves to a helper thread, so that messages go on meanwhile
SWITCH = 5e-4  # seconds between thread switches where there are helpers; Python's default makes responders wait 5 ms
_BLOCKED = object()


class Aborted(Exception):
    """The launcher wants this process to end."""


class Transport(Protocol):
    """What a driver needs of rings, sockets or MPI; nothing of it ever waits except `wait`."""

    def post(self, host: str, body: Any, src: int, to: int, number: int, stamp: float) -> None: ...
    def take(self) -> list[Frame]: ...
    def wait(self, timeout: float, others: Sequence[int]) -> list[int]: ...
    def knock(self) -> None: ...
    @property
    def unsent(self) -> int: ...
    def forget(self, host: str) -> None: ...
    def close(self) -> None: ...


class _Task:
    """One program with its place in the world."""

    __slots__ = ("draws", "helper", "index", "name", "node", "program", "since", "waiting")

    def __init__(self, node: str, index: int, program: Program[Any], draws: Draws) -> None:
        self.node, self.index, self.program, self.draws = node, index, program, draws
        self.waiting: Any = None  # the effect that is not answered yet
        self.since = 0.0
        self.name = getattr(program, "__name__", "program")
        self.helper: queue.SimpleQueue[Any] | None = None


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
    kills : mapping of str to int
        Nodes whose process is to be killed, and before which of its steps.
    """

    def __init__(self, host: str, deployment: Deployment, machine: Machine, seed: int, transport: Transport,
                 board: Board, quiet: Callable[[], None], watch: Sequence[int] = (), observe: int = 64,
                 kills: Mapping[str, int] | None = None) -> None:
        self.machine, self.transport, self.watch, self._quiet = machine, transport, watch, quiet
        self.nodes = list(deployment)
        self.rank = {name: i for i, name in enumerate(self.nodes)}
        self.host = machine.hosts(self.nodes)
        self.here = host
        self.paced = machine.paced
        self.began = 0.0  # the common start on the monotonic clock
        self.now = 0.0  # seconds since then: nominal if paced, real otherwise
        self.events: list[Event] = []
        self.values: dict[str, Any] = {}
        self.seconds = 0.0
        mine = [name for name in self.nodes if self.host[name] == host]
        self.boxes = {name: Mailbox() for name in mine}
        self.lateness = {name: Lateness() for name in mine}
        self._tasks: dict[str, list[_Task]] = {}
        for name in mine:
            programs = [deployment[name].main, *deployment[name].responders]
            self._tasks[name] = [_Task(name, i, p, Draws(machine, seed, name, i)) for i, p in enumerate(programs)]
        self._every = [task for tasks in self._tasks.values() for task in tasks]
        self._board, self._command = board, board.words
        self._words, self._notes = board.of(host), Notes(board, host)
        self._dead: set[str] = set()
        self._sent_to: Counter[str] = Counter()  # messages by host, to forget those of the dead
        self._got_from: Counter[str] = Counter()
        self._kills, self._steps = dict(kills or {}), Counter[str]()
        self._thin = Thinner(observe)
        self._byte_time = 1 / machine.bandwidth
        self._out_free = self._in_free = 0.0
        self._cores = [0.0] * (machine.cores or 0)
        self._heap: list[tuple[float, int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = self._effects = 0
        self._numbers: dict[tuple[str, str], int] = {}  # of the next message to send in a channel
        self._next: dict[tuple[str, str], int] = {}  # of the next message to come in a channel
        self._computed: deque[tuple[Any, ...]] = deque()  # what helper threads have finished
        self._computing = 0
        self._local = threading.local()  # which program a thread works for
        self._long: set[tuple[str, str]] = set()  # (node, kind) of Computes that take long

    def standing(self) -> tuple[str, int]:
        """For which node this thread works, and how many Computes that node has finished."""
        task: _Task | None = getattr(self._local, "task", None)
        return (task.node, self.lateness[task.node].computes) if task else (self.here, 0)

    # -- the clock -----------------------------------------------------------------------------------------

    def clock(self) -> float:
        """Real seconds since the common start."""
        return time.monotonic() - self.began

    def _at(self, due: float, order: int, rank: int, call: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (due, order, rank, self._sequence, call, args))

    def run(self, began: float) -> None:
        """Drive all programs until the launcher says that nothing can happen any more.

        Parameters
        ----------
        began : float
            The common start, on the clock of `time.monotonic`.
        """
        self.began = began
        for task in self._every:
            self._at(0.0, RESUME, self.rank[task.node], self._resume, task, None)
        heap, command = self._heap, self._command
        while not command[COMMAND]:
            self._words[BEAT] = time.monotonic_ns()
            self._collect()
            if command[DEATHS] != len(self._dead):
                self._bury()
            if heap and heap[0][0] <= self.clock():
                self._advance()
            else:
                self._rest()
        if command[COMMAND] == ABORT:
            raise Aborted
        self._close()

    def _collect(self) -> None:
        """Put what has come over the wire and out of helper threads on the agenda."""
        for frame in self.transport.take():
            src, to = self.nodes[frame.src], self.nodes[frame.to]
            if frame.number != self._next.get((src, to), 0):
                raise WireError(f"message {frame.number} of {src} to {to} came twice or out of turn; expected "
                                f"{self._next.get((src, to), 0)}")
            self._next[src, to] = frame.number + 1
            letter = Letter(src, frame.tag, frame.fields, frame.number, 0.0, payload_bytes(frame.fields))
            head = frame.stamp + self.machine.latency
            if not self.machine.linked and not self.paced:
                head = self.clock()  # nothing is emulated: it arrives when it is there
            if self._byte_time:
                self._at(head, HEAD, frame.src, self._head, to, letter)
            else:
                self._at(head, ARRIVE, frame.src, self._deliver, to, letter)
        while self._computed:
            self._computing -= 1
            self._finish(*self._computed.popleft())

    def _bury(self) -> None:
        """Hear of deaths: tell the programs here, and count no more what the dead sent or were sent."""
        for host in self._board.programs:
            if not self._board.of(host)[DEAD] or host in self._dead:
                continue
            self._dead.add(host)
            self.transport.forget(host)
            del self._sent_to[host], self._got_from[host]
            for node in (n for n in self.nodes if self.host[n] == host):
                for to in self._tasks:
                    letter = Letter(node, tag_of(Died), (node,), -1, 0.0, 0)
                    self._at(self.clock(), ARRIVE, self.rank[node], self._deliver, to, letter)
        self._words[NOTICED] = len(self._dead)

    def _advance(self) -> None:
        """Perform the earliest due happening: one program then runs until it waits."""
        due, order, _, _, call, args = heapq.heappop(self._heap)
        if order == HEAD:
            call(due, *args)  # the link keeps its own time
        else:
            self.now = max(due, self.now) if self.paced else self.clock()
            call(*args)

    def _rest(self) -> None:
        """Nothing is due: say so and sleep until something is or may be."""
        words, heap = self._words, self._heap
        idle = not heap and not self._computing and not self.transport.unsent
        words[SENT], words[GOT], words[EFFECTS] = self._sent_to.total(), self._got_from.total(), self._effects
        words[DUE] = int(heap[0][0] * 1e9) if heap else 0
        done = all(node in self.values for node in self._tasks)
        words[DONE], words[IDLE] = done, idle
        if idle and done:
            self._quiet()
        timeout = min(HEARTBEAT, heap[0][0] - self.clock()) if heap else HEARTBEAT
        if timeout > 0 and self.transport.wait(timeout, self.watch):
            raise Aborted
        words[IDLE] = 0

    # -- programs ------------------------------------------------------------------------------------------

    def _record(self, task: _Task, kind: str, data: dict[str, Any]) -> None:
        self.events.append(Event(self.now, task.node, task.index, kind, data))

    def _resume(self, task: _Task, value: Any) -> None:
        """Run a program until it has to wait."""
        self._local.task = task
        while value is not _BLOCKED:
            if not self.paced:
                self.now = self.clock()
            self._effects += 1
            value = self._perform(task, value)

    def _perform(self, task: _Task, value: Any) -> Any:
        """Send `value` into a program and act on its effect; the answer, or _BLOCKED."""
        built = _Built.count
        try:
            effect: Any = task.program.throw(value) if isinstance(value, RunEnded) else task.program.send(value)
        except StopIteration as stop:
            return self._returned(task, stop.value)
        except RunEnded:
            return self._returned(task, None)
        except Exception as error:
            error.add_note(f"in program {task.name} of {task.node} at {self.now:.6g} s")
            raise
        if _Built.count > built + 1:
            raise ForgottenYield(
                f"{task.node}: {_Built.count - built} effects were built before {line_of(task.program)} and one "
                "was yielded; write `yield` before each effect and `yield from` before each sub-program")
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
            due = self.now + task.draws.duration("update") if self.paced else self.now
            self._at(due, RESUME, self.rank[task.node], self._finish_add, task, effect, cells.before(effect))
            return _BLOCKED
        raise TypeError(f"{task.node}: {line_of(task.program)} yielded {effect!r}; expected an effect "
                        "(a sub-program needs `yield from`)")

    def _finish_add(self, task: _Task, effect: Add, seen: Any) -> None:
        self._record(task, "add", {"part": effect.part, "ticket": cells.add(effect, seen)})
        self._resume(task, None)

    def _returned(self, task: _Task, value: Any) -> Any:
        task.waiting = None
        self._record(task, "return", {})
        self._notes.ended(task.node, task.index)
        if task.index == 0:
            self.values[task.node] = value
            self.seconds = max(self.seconds, self.now)
        return _BLOCKED

    # -- computing -----------------------------------------------------------------------------------------

    def _compute(self, task: _Task, effect: Compute) -> Any:
        freeze(effect.args)
        self._notes.waits(task.node, task.index, task.program, effect, time.monotonic_ns())
        if counts_steps(task.node, effect.kind):
            if self._steps[task.node] == self._kills.get(task.node):
                os.kill(os.getpid(), signal.SIGKILL)
            self._steps[task.node] += 1
        start, due, priced = self.now, self.now, True
        if self.paced:
            duration = task.draws.duration(
                effect.kind, payload_bytes(effect.args[:1]) if effect.kind == "reduction" else 0)
            priced = duration > 0 or self.machine.law(task.node, effect.kind) is not None
            if self._cores:
                start = max(start, heapq.heappop(self._cores))
                heapq.heappush(self._cores, start + duration)
            due = start + duration
            self.lateness[task.node].drawn += duration
        if priced and (len(self._every) > 1 or (task.node, effect.kind) in self._long):
            if task.helper is None:
                task.helper = self._start_helper(task)
            self._computing += 1
            task.helper.put((task, effect, start, due, priced))
        else:
            began = time.monotonic()
            value = _outcome(effect)
            ended = time.monotonic()
            if priced and ended - began > LONG:
                self._long.add((task.node, effect.kind))
            self._finish(task, effect.kind, start, due, priced, value, ended, ended - began)
        return _BLOCKED

    def _start_helper(self, task: _Task) -> queue.SimpleQueue[Any]:
        """A thread that does a program's computing; the sleep until the due time is a timer of the driver."""
        sys.setswitchinterval(SWITCH)
        work: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def loop() -> None:
            while True:
                task, effect, start, due, priced = work.get()
                self._local.task = task
                began = time.monotonic()
                value = _outcome(effect)
                ended = time.monotonic()
                self._computed.append((task, effect.kind, start, due, priced, value, ended, ended - began))
                self.transport.knock()

        threading.Thread(target=loop, name=f"{task.node} computes", daemon=True).start()
        return work

    def _finish(self, task: _Task, work: str, start: float, due: float, priced: bool, value: Any,
                ended: float, took: float) -> None:
        """A Compute has really ended; its program goes on at its due time."""
        if isinstance(value, _Failed):
            value.error.add_note(f"in Compute({work}) of {task.node}, yielded at {line_of(task.program)}")
            raise value.error
        record = self.lateness[task.node]
        record.computes += 1
        record.computing += took
        if not self.paced:
            due = ended - self.began  # not 0: that would overtake every message for ever
        elif priced:
            record.overrun += max(0.0, ended - self.began - due)
        self._at(due, RESUME, self.rank[task.node], self._resume_compute, task, work, start, due, priced, value)

    def _resume_compute(self, task: _Task, work: str, start: float, due: float, priced: bool, value: Any) -> None:
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

    def _send(self, task: _Task, effect: Send) -> Any:
        src, to, body = task.node, effect.to, effect.body
        if to not in self.rank:
            raise ValueError(f"{src}: {line_of(task.program)} sends to {to!r}; expected one of {', '.join(self.nodes)}")
        freeze(body)
        nbytes, start = payload_bytes(body), self.now
        number = self._numbers.get((src, to), 0)
        self._numbers[src, to] = number + 1
        if self.host[to] == self.here:
            letter = Letter(src, tag_of(type(body)), body, number, 0.0, nbytes)
            self._at(start, ARRIVE, self.rank[src], self._deliver, to, letter)
        else:
            start = max(start, self._out_free)
            self._out_free = start + nbytes * self._byte_time
            try:
                if self.host[to] not in self._dead:
                    self._sent_to[self.host[to]] += 1
                    self.transport.post(self.host[to], body, self.rank[src], self.rank[to], number, start)
            except TypeError as error:
                raise TypeError(f"{src}: {line_of(task.program)} sends {error}") from None
        self._record(task, "send", {"to": to, "message": type(body).__name__, "number": number,
                                    "bytes": nbytes, "start": start})
        return None

    def _head(self, head: float, to: str, letter: Letter) -> None:
        """The head of a message reaches the incoming link, which serves in this order."""
        self._in_free = max(head, self._in_free) + letter.nbytes * self._byte_time
        self._at(self._in_free, ARRIVE, self.rank[letter.src], self._deliver, to, letter)

    def _deliver(self, to: str, letter: Letter) -> None:
        host = self.host[letter.src]
        if host != self.here and host not in self._dead:
            self._got_from[host] += 1
        if self.paced:
            self.lateness[to].seen(max(0.0, self.clock() - self.now))
        self.boxes[to].put(letter._replace(arrival=self.now))
        for task in self._tasks[to]:
            if type(task.waiting) is Recv:
                answer = self._receive(task)
                if answer is not _BLOCKED:
                    self._resume(task, answer)
                    break

    def _receive(self, task: _Task) -> Any:
        effect = task.waiting
        hit = self.boxes[task.node].take(effect.kinds, effect.src)
        if hit is None:
            return _BLOCKED
        letter, body = hit
        task.waiting = None
        self._record(task, "receive", {"src": letter.src, "message": type(body).__name__, "number": letter.number,
                                       "bytes": letter.nbytes, "since": task.since, "arrival": letter.arrival})
        return letter.src, body

    def _poll(self, task: _Task, effect: Poll) -> Any:
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
            if self._heap:
                self.transport.wait(max(0.0, self._heap[0][0] - self.clock()), self.watch)
                self._advance()
            elif self._computing:
                self.transport.wait(HEARTBEAT, self.watch)
                self._collect()
            elif task is not None:
                task.waiting = None
                self._resume(task, RunEnded())
            else:
                break
        for task in self._every:
            task.program.close()


class _Failed:
    """An exception on its way from a Compute to the driver."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _outcome(effect: Compute) -> Any:
    """The result of a Compute, or what it raised."""
    try:
        return effect.fn(*effect.args)
    except BaseException as error:
        return _Failed(error)
