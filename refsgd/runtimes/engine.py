"""The interpreter of the effects that all runtimes share: it advances programs and answers what they yield.

A runtime subclasses `Engine` and supplies what differs: its clock, and so when a Compute or an Add ends; the
source of choices; the path of a message; and which program is ready next.  Everything that an event says is
written here, in one place for each kind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappush
from typing import Any

import numpy as np

from refsgd.cluster.links import Overhead
from refsgd.cluster.prices import Draws
from refsgd.effects import (
    Add,
    Array,
    Choose,
    Compute,
    Deployment,
    Load,
    Mark,
    Poll,
    Program,
    Recv,
    RunEnded,
    Send,
    _Built,
    payload_bytes,
    roles,
)
from refsgd.runtimes import programs
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.mailbox import Envelope, Mailbox, tag_of
from refsgd.trace import (
    Added,
    Chosen,
    Computed,
    Crashed,
    Event,
    Loaded,
    Marked,
    Polled,
    Received,
    Returned,
    Sent,
    Thinner,
)

RESUME, HEAD, ARRIVE = range(3)  #: the order on the agenda at one moment: programs, heads, arrivals
_new = tuple.__new__  # builds a NamedTuple of all its fields in half the time that its constructor takes


class Task:
    """One program of a run, and the effect at which it stands; program 0 of a node is its main program."""

    __slots__ = ("draws", "effect", "host", "idle", "index", "mailbox", "name", "node", "numbers", "program",
                 "rank", "send", "since", "waiting")

    draws: Draws  #: of the program's durations and choices, where the runtime draws them

    def __init__(self, node: str, index: int, program: Program[Any], mailbox: Mailbox, rank: int,
                 numbers: dict[str, int]) -> None:
        self.node, self.index, self.program, self.mailbox = node, index, program, mailbox
        self.rank = rank  # the node's place in the deployment
        self.numbers = numbers  # how many messages the node has sent to each other one
        self.name = getattr(program, "__name__", "program")
        self.send = program.send
        self.host = node
        self.effect: Any = None  # the effect yielded last; None before the start and after the end
        self.waiting: Recv | None = None  # the same while it is a Recv without an answer
        self.since = 0.0  # when that was yielded
        self.idle = 0


class Engine:
    """Programs of a deployment, advanced effect by effect.

    `act` calls one method for each effect; a method that knows the answer leaves it in `ready`, and the
    runtime decides when to `resume` that task.

    Of `nodes` (by default all) the programs run here; at most `observe` evenly spaced parameter vectors of a
    node's marks are kept (None: all), and its `keep` newest ones for an elastic restart.
    """

    patience = 100_000  #: marks and unsuccessful polls of a program before `idles` is asked about it

    def __init__(self, deployment: Deployment, nodes: Iterable[str] | None = None, observe: int | None = 64,
                 keep: int = 0) -> None:
        self.nodes, self.roles = list(deployment), roles(deployment)
        self.endable = {name for name, node in deployment.items() if node.survives}
        self.dead: list[str] = []  #: nodes that have died
        self.rank = {name: i for i, name in enumerate(self.nodes)}
        self.now, self.seconds = 0.0, 0.0  #: the clock, and when the last main program returned
        self.events: list[Event] = []
        self.journal: Callable[[Event], None] | None = None  #: told each event at once
        self.values: dict[str, Any] = {}  #: what main programs have returned
        self.mailboxes: dict[str, Mailbox] = {}
        self.tasks: dict[str, list[Task]] = {}
        self.numbers: dict[str, dict[str, int]] = {}  #: messages sent so far, by sender and receiver
        self.tickets = 0  #: accesses to shared cells so far
        for name in self.nodes if nodes is None else nodes:
            box, numbers, node = Mailbox(), dict[str, int](), deployment[name]
            self.mailboxes[name], self.numbers[name] = box, numbers
            self.tasks[name] = [Task(name, i, program, box, self.rank[name], numbers)
                                for i, program in enumerate([node.main, *node.handlers])]
        self.all_tasks = [task for tasks in self.tasks.values() for task in tasks]
        self._agenda: list[tuple[float, int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self.ready: tuple[Task, Any] | None = None  #: the task to resume next, and its answer
        self.kept = {name: deque[tuple[int, Array]](maxlen=keep) for name in self.tasks}
        self._thin = Thinner(observe) if observe is not None else None
        self.overhead: Overhead | None = None  #: of both ends of a message, where the runtime prices them

    # -- one program by one effect -------------------------------------------------------------------------

    def resume(self, task: Task, value: Any) -> None:
        """Answer a program and act on the effect that it yields next."""
        effect: Any
        built = _Built.count
        try:
            effect = task.send(value) if type(value) is not RunEnded else task.program.throw(value)
        except StopIteration as stop:
            if _Built.count > built:
                raise programs.forgotten(task.node, task.program, built, 0) from None
            self.ended(task, stop.value)
            return
        except RunEnded:
            if task.index == 0:
                raise Deadlock(
                    f"deadlock at {self.now:.6g} s after the death of {', '.join(self.dead)}: {task.node} "
                    "waits for messages that cannot arrive and does not catch RunEnded, although its Node "
                    "says survives=True") from None
            self.ended(task, None)
            return
        except (Exception, SystemExit) as error:
            error = programs.no_exit(error)
            programs.blame(error, task.name, task.node, self.moment())
            raise error
        if _Built.count > built + 1:
            raise programs.forgotten(task.node, task.program, built, 1)
        task.effect, task.since = effect, self.now
        self.act(task, effect)

    def moment(self) -> str:
        """The time in words, for errors."""
        return f"{self.now:.6g} s"

    def act(self, task: Task, effect: Any) -> None:
        """Act on an effect: the only place where runtimes tell one kind from another."""
        kind = type(effect)
        if kind is Compute:
            self.compute(task, effect)
        elif kind is Send:
            if self.overhead is None:
                self.send(task, effect)
            else:
                self.spends(task, payload_bytes(effect.body), self.send, effect)
        elif kind is Recv:
            task.waiting = effect
            if not (task.mailbox.envelopes and self.receive(task)):
                self.waits(task)
        elif kind is Poll:
            self.poll(task, effect)
        elif kind is Mark:
            self.mark(task, effect)
        elif kind is Choose:
            option = self.choose(task, effect)
            self.record(_new(Chosen, (self.now, task.node, task.index, option)))
            self.ready = task, option
        elif kind is Load:
            part, ticket = self.load(task, effect)
            self.record(Loaded(self.now, task.node, task.index, effect.part, ticket))
            self.ready = task, part
        elif kind is Add:
            programs.freeze((effect.delta,))
            self.add(task, effect)
        else:
            raise programs.no_effect(task.node, task.program, effect)

    def record(self, event: Event) -> None:
        """Keep an event, and tell the event log."""
        self.events.append(event)
        if self.journal is not None:
            self.journal(event)

    def _at(self, time: float, order: int, rank: int, call: Callable[..., None], *args: Any) -> None:
        """Put a call on the agenda, for runtimes that have one."""
        self._sequence += 1
        heappush(self._agenda, (time, order, rank, self._sequence, call, args))

    def ended(self, task: Task, value: Any) -> None:
        """A program has returned."""
        task.effect = task.waiting = None
        self.record(Returned(self.now, task.node, task.index))
        if task.index == 0:
            self.values[task.node] = value
            self.seconds = max(self.seconds, self.now)

    # -- what each runtime supplies ------------------------------------------------------------------------

    def compute(self, task: Task, effect: Compute) -> None:
        """Begin a Compute, of which `computed` is the end."""
        raise NotImplementedError

    def add(self, task: Task, effect: Add) -> None:
        """Begin an Add, of which `added` is the end."""
        raise NotImplementedError

    def choose(self, task: Task, effect: Choose) -> Any:
        """The option that a Choose answers: by default drawn from the program's own stream."""
        return task.draws.choose(effect.options, effect.p)

    def departs(self, task: Task, to: str, nbytes: int) -> float:
        """When the transmission of a message begins."""
        return self.now

    def post(self, task: Task, to: str, body: Any, number: int, nbytes: int, start: float) -> None:
        """Send a message on its way, which ends with `deliver`."""
        raise NotImplementedError

    def waits(self, task: Task) -> None:
        """A Recv has no answer yet."""

    def spends(self, task: Task, nbytes: int, call: Callable[..., None], *args: Any) -> None:
        """Occupy a program with one end of a message, then call `call` with the program."""
        raise NotImplementedError

    def idles(self, task: Task) -> None:
        """A program has marked and polled unsuccessfully `patience` times."""
        task.idle = 0

    def load(self, task: Task, effect: Load) -> tuple[Any, int]:
        """A copy of a part of a cell, and the number of this access."""
        self.tickets += 1
        return programs.read(effect), self.tickets - 1

    def write(self, effect: Add, seen: Any) -> int:
        """Write an Add to its cell; the number of this access."""
        programs.add_to(effect, seen)
        self.tickets += 1
        return self.tickets - 1

    # -- computing -----------------------------------------------------------------------------------------

    def result(self, task: Task, effect: Compute) -> Any:
        """What a Compute answers."""
        programs.freeze(effect.args)
        try:
            return effect.fn(*effect.args)
        except (Exception, SystemExit) as error:
            error, line = programs.no_exit(error), programs.line_of(task.program)
            error.add_note(f"in {programs.describe(effect)} of {task.node}, yielded at {line}")
            raise error

    def computed(self, task: Task, start: float, effect: Compute, value: Any, late: float = 0.0) -> None:
        """A Compute has ended."""
        finite = (type(value) is not np.ndarray or effect.kind != "gradient"
                  or programs.finite(effect.fn, value))
        self.record(_new(Computed, (self.now, task.node, task.index, start, effect.kind, late, effect.piece,
                                    finite)))
        self.ready = task, value

    def added(self, task: Task, effect: Add, seen: Any, since: int | None = None) -> None:
        """An Add has ended; `seen` is what it read at its beginning, after `since` accesses."""
        ticket = self.write(effect, seen)
        self.record(Added(self.now, task.node, task.index, effect.part, ticket, since))
        self.ready = task, None

    def mark(self, task: Task, effect: Mark) -> None:
        """Record a Mark; its parameters may be thinned out, and the newest are kept for a restart."""
        values = dict(effect.values)
        programs.freeze(values.values())
        event = _new(Marked, (self.now, task.node, task.index, effect.name, values))
        self.record(event)
        if "x" in values:
            if effect.name == "update":
                self.kept[task.node].append((values.get("t", values.get("version", 0)), values["x"]))
            if self._thin is not None:
                self._thin(event)
        self.ready = task, None
        task.idle += 1
        if task.idle >= self.patience:
            self.idles(task)

    # -- messages ------------------------------------------------------------------------------------------

    def send(self, task: Task, effect: Send) -> None:
        """Number a message and hand it over."""
        src, to, body = task.node, effect.to, effect.body
        if to not in self.rank:
            raise ValueError(f"{src}: {programs.line_of(task.program)} sends to {to!r}; "
                             f"expected one of {', '.join(self.nodes)}")
        if not hasattr(body, "_fields"):
            raise programs.no_message(src, task.program, body)
        programs.freeze(body)
        nbytes, number = payload_bytes(body), task.numbers.get(to, 0)
        task.numbers[to] = number + 1
        start = self.departs(task, to, nbytes)
        # Recorded before it leaves: a process may be killed between the two, and a record must not lack what
        # others have received.
        self.record(_new(Sent, (self.now, src, task.index, to, type(body).__name__, number, nbytes, start)))
        self.post(task, to, body, number, nbytes, start)
        self.ready = task, None

    def deliver(self, to: str, src: str, body: Any, number: int, nbytes: int, tag: int = 0,
                arrival: float | None = None) -> None:
        """A message arrives, by default now: at the program that waits for it, or in the mailbox.

        A program that waits has found nothing in the mailbox, so it need not be searched.
        """
        kind = type(body)
        if arrival is None:
            arrival = self.now
        for task in self.tasks[to]:
            recv = task.waiting
            if recv is not None and kind in recv.kinds and (recv.src is None or recv.src == src):
                self.received(task, src, body, number, nbytes, arrival)
                return
        self.mailboxes[to].envelopes.append(
            _new(Envelope, (src, tag or tag_of(kind), body, number, arrival, nbytes)))
        for task in self.tasks[to]:
            if task.waiting is not None and self.receive(task):
                return

    def take(self, task: Task, effect: Recv) -> tuple[Envelope, Any] | None:
        """The earliest message in the mailbox that an effect may take."""
        return task.mailbox.take(effect.kinds, effect.src)

    def receive(self, task: Task) -> bool:
        """Answer a Recv from the mailbox, if it can be."""
        assert task.waiting is not None
        hit = self.take(task, task.waiting)
        if hit is None:
            return False
        (src, _, _, number, arrival, nbytes), body = hit
        self.received(task, src, body, number, nbytes, arrival)
        return True

    def received(self, task: Task, src: str, body: Any, number: int, nbytes: int, arrival: float) -> None:
        """A Recv has its message."""
        task.waiting = None
        self.record(_new(Received, (self.now, task.node, task.index, src, type(body).__name__, number, nbytes,
                                    task.since, arrival)))
        if self.overhead is None or number < 0:  # a notice of a death
            self.ready = task, (src, body)
        else:
            self.spends(task, nbytes, self.answer, src, body)

    def answer(self, task: Task, src: str, body: Any) -> None:
        """Continue a program with a message, after the overhead."""
        self.ready = task, (src, body)

    def poll(self, task: Task, effect: Poll) -> None:
        """Answer a Poll with what the mailbox holds, or None."""
        hit = self.take(task, effect)
        if hit is not None:
            (src, _, _, number, arrival, nbytes), body = hit
            self.record(_new(Polled, (self.now, task.node, task.index, src, type(body).__name__, number,
                                      nbytes, arrival)))
            if self.overhead is None or number < 0:
                self.ready = task, (src, body)
            else:
                self.spends(task, nbytes, self.answer, src, body)
            return
        self.record(_new(Polled, (self.now, task.node, task.index, None, "", 0, 0, 0.0)))
        self.ready = task, None
        task.idle += 1
        if task.idle >= self.patience:
            self.idles(task)

    # -- the end, and a look inside ------------------------------------------------------------------------

    def lose(self, node: str, reason: str) -> None:
        """End the programs of a node that dies now; what they returned is lost, too."""
        self.record(Crashed(self.now, node, 0, reason))
        self.dead.append(node)
        self.values.pop(node, None)
        for task in self.tasks[node]:
            task.effect = task.waiting = None
            task.program.close()

    def end(self, task: Task) -> None:
        """Tell a program that waits that no message can come any more."""
        task.waiting = None
        self.ready = task, RunEnded()

    def stuck(self, tasks: Iterable[Task]) -> str:
        """The rest of an error: after which deaths, and where programs wait that no message can reach."""
        return programs.stuck([(t.node, programs.line_of(t.program), programs.describe(t.effect)
                                + programs.unread(t.mailbox.envelopes)) for t in tasks], self.dead)

    def where(self) -> list[programs.Where]:
        """Each program's current line, the effect it waits for, and its local variables."""
        return [programs.where(t.node, t.index, t.program, t.effect) for t in self.all_tasks]
