"""Programs in virtual time: deterministic, an iterator of events, one effect a step.

The heap holds what will happen, keyed (time, order, rank, sequence).  At one moment first programs go on
whose computing has ended, then heads of messages reach incoming links, then messages arrive; ties go to the
lower rank (a node's place in the deployment), then to the earlier one.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from typing import Any

from refsgd.effects import (
    Add,
    Choose,
    Compute,
    Deployment,
    Factory,
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
from refsgd.runtimes.mailbox import Letter, Mailbox, tag_of
from refsgd.runtimes.processors import Processors
from refsgd.runtimes.programs import (
    Where,
    add_to,
    blame,
    describe,
    forgotten,
    freeze,
    line_of,
    no_effect,
    no_message,
    perform,
    share_of,
    unread,
    where,
)
from refsgd.trace import Event, Run, Thinner, Trace

RESUME, HEAD, ARRIVE = range(3)
IDLE = 100_000  #: polls in vain and marks of one program at one moment, after which it is taken to go on like this for ever
_new = tuple.__new__  # a NamedTuple of all its fields in half the time that its own constructor takes


class Deadlock(RuntimeError):
    """No program can go on and some main program has not returned."""


class RunFailed(RuntimeError):
    """A run was ended by a death or a failing program; the message is one line that names the culprit.

    Attributes
    ----------
    node : str
        The culprit's host, "" if there is none.
    traceback : str
        The culprit's own traceback, "" if it left none.
    silent : float
        Seconds from the culprit's last sign of life until its end was known; 0 in virtual time.
    """

    def __init__(self, message: str, node: str = "", trace: str = "", silent: float = 0.0) -> None:
        super().__init__(message)
        self.node, self.traceback, self.silent = node, trace, silent

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.node, self.traceback, self.silent)


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """Events stay: the garbage collector's usual pace would look at them again and again, a quarter of a large run's time."""
    young, middle, full = gc.get_threshold()
    gc.set_threshold(100 * young, middle, 100 * full)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, full)


class _Process:
    """One program with its place in the world."""

    __slots__ = ("box", "draws", "host", "idle", "index", "name", "node", "numbers", "program", "rank", "send", "since", "waiting")

    def __init__(self, world: Simulator, node: str, index: int, program: Program[Any], draws: Draws) -> None:
        self.node, self.index, self.program, self.draws = node, index, program, draws
        self.rank, self.host, self.box = world.rank[node], world.host[node], world.boxes[node]
        self.numbers = world._numbers[node]
        self.send = program.send
        self.waiting: Any = None  # the effect that is not answered yet
        self.since = 0.0
        self.idle = 0  # polls in vain and marks since `_look_whether_idle` looked
        self.name = getattr(program, "__name__", "program")


class Simulator:
    """Runs a deployment in virtual time.

    Parameters
    ----------
    deployment : Deployment or Factory
        Node names and their programs, or the function that builds them.
    machine : Machine
        Prices computing and messages.
    seed : int
        Seed of the drawn durations and choices.
    observe : int
        At most so many evenly spaced parameter vectors of a node's marks are kept.

    Raises
    ------
    Deadlock
        While iterating, when nothing can happen and a main program has not returned.
    ForgottenYield
        When a program built an effect that it did not yield.
    RunFailed
        When a program polls in vain again and again and lets no time pass.

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
                 observe: int = 64) -> None:
        self.machine = machine = machine or Machine()
        deployment = deployment() if callable(deployment) else deployment
        self.nodes = list(deployment)
        self.rank = {name: i for i, name in enumerate(self.nodes)}
        self.host = machine.hosts(self.nodes)
        self.now, self.events = 0.0, list[Event]()
        self.journal: Callable[[Event], None] | None = None  #: told each event at once
        self.evaluate: Callable[[Compute], Any] = perform
        self.values: dict[str, Any] = {}
        self.seconds = 0.0
        self._thin = Thinner(observe)
        self.boxes = {name: Mailbox() for name in self.nodes}
        self._out_free = dict.fromkeys(self.nodes, 0.0)
        self._in_free = self._out_free if machine.duplex == "half" else dict.fromkeys(self.nodes, 0.0)
        self._byte_time = 1 / machine.bandwidth
        self._heap: list[tuple[float, int, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence, self._read = 0, 0
        self._numbers: dict[str, dict[str, int]] = defaultdict(dict)  # messages by sender and receiver
        self._current: tuple[_Process, Any] | None = None
        self._closing = False
        self._told: Iterator[_Process] | None = None  # programs that are still to be told that the run has ended
        self._steps = self._go_on()
        self.dead: list[str] = []  #: nodes that a planned fault has killed, see `refsgd.runtimes.faults`
        self.processes: list[_Process] = []
        for name, node in deployment.items():
            for index, program in enumerate([node.main, *node.responders]):
                process = _Process(self, name, index, program, Draws(machine, seed, name, index))
                self.processes.append(process)
                self._at(0.0, RESUME, self.rank[name], self._resume, process, None)
        programs = Counter(p.host for p in self.processes)
        self._shared = {h: Processors(machine.cores) for h, k in programs.items() if machine.cores and k > machine.cores}
        self.cells = [cell for node in deployment.values() for cell in node.cells]
        self._of_node = {name: [p for p in self.processes if p.node == name] for name in self.nodes}

    # -- the clock -----------------------------------------------------------------------------------------

    def _at(self, time: float, order: int, rank: int, call: Callable[..., None], *args: Any) -> None:
        # What happens for each message and computation enters itself: the packing of *args would take as long as the heap.
        self._sequence += 1
        heappush(self._heap, (time, order, rank, self._sequence, call, args))

    def _go_on(self) -> Iterator[bool]:
        """Each step performs one effect or one happening; ends with the run."""
        heap, perform = self._heap, self._perform
        while True:
            if (current := self._current) is not None:
                self._current = None
                perform(*current)
            elif heap:
                self.now, _, _, _, call, args = heappop(heap)
                call(*args)
            elif not self._closing:
                self._close()
            else:
                return
            yield True

    def advance(self) -> bool:
        """Perform one effect or one happening; False when the run is over."""
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
            deque(self._steps, maxlen=0)
        self._read = len(self.events)
        return Run(self.trace(), self.values)

    def trace(self) -> Trace:
        """The events so far as a `Trace`."""
        return Trace(self.events, self.nodes, self.seconds or self.now, self.machine.latency, self.machine.bandwidth)

    def pending(self) -> list[Any]:
        """What is under way: for each happening of the agenda the programs, messages and results that it is about."""
        def plain(args: Iterable[Any]) -> list[Any]:
            return [(a.node, a.index) if isinstance(a, _Process) else a for a in args]

        return [*(plain(args) for *_, args in self._heap), plain(self._current or ())]

    def forget_parameters(self) -> None:
        """Drop `x` from all marks so far."""
        for event in self.events:
            if event.kind == "mark":
                event.data.pop("x", None)
        self._thin = Thinner(self._thin.limit)

    def where(self) -> list[Where]:
        """Each program's current line, the effect it waits for, and its local variables."""
        return [where(p.node, p.index, p.program, p.waiting) for p in self.processes]

    # -- programs ------------------------------------------------------------------------------------------

    def _record(self, process: _Process, kind: str, data: dict[str, Any]) -> None:
        event = _new(Event, (self.now, process.node, process.index, kind, data))
        self.events.append(event)
        if self.journal is not None:
            self.journal(event)

    def _resume(self, process: _Process, value: Any) -> None:
        self._current = (process, value)

    def _finish_compute(self, process: _Process, start: float, work: str, value: Any) -> None:
        self._record(process, "compute", {"start": start, "work": work})
        self._current = (process, value)

    def _finish_add(self, process: _Process, effect: Add, seen: Any) -> None:
        add_to(effect, seen)
        self._record(process, "add", {"part": effect.part})
        self._current = (process, None)

    def _perform(self, process: _Process, value: Any) -> None:
        """Send `value` into a program and act on the effect that it gives back."""
        effect: Any
        built = _Built.count
        try:
            effect = process.send(value) if type(value) is not RunEnded else process.program.throw(value)
        except StopIteration as stop:
            if _Built.count > built:
                raise forgotten(process.node, process.program, built, 0) from None
            self._returned(process, stop.value)
            return
        except RunEnded:
            self._returned(process, None)
            return
        except Exception as error:
            blame(error, process.name, process.node, self.now)
            raise
        if _Built.count > built + 1:
            raise forgotten(process.node, process.program, built, 1)
        process.waiting = effect
        kind = type(effect)
        if kind is Compute:
            self._compute(process, effect)
        elif kind is Send:
            self._send(process, effect)
        elif kind is Recv:
            process.since = self.now
            if process.box.letters or self._closing:
                self._receive(process, effect)
        elif kind is Poll:
            self._poll(process, effect)
        elif kind is Mark:
            values = effect.values
            freeze(values.values())
            self._record(process, "mark", {"name": effect.name, **values})
            if "x" in values:
                self._thin(self.events[-1])
            self._current = (process, None)
            process.idle += 1
            if process.idle >= IDLE:
                self._look_whether_idle(process)
        elif kind is Choose:
            option = process.draws.choose(effect.options, effect.p)
            self._record(process, "choose", {"option": option})
            self._current = (process, option)
        elif kind is Load:
            part = effect.cell.x[effect.cell.cut[effect.part]].copy()
            self._record(process, "load", {"part": effect.part})
            self._current = (process, part)
        elif kind is Add:
            freeze((effect.delta,))
            seen = effect.cell.x[effect.cell.cut[effect.part]].copy()
            self._occupy(process, self._duration(process, "update") * share_of(effect), self._finish_add, effect, seen)
        else:
            raise no_effect(process.node, process.program, effect)

    def _returned(self, process: _Process, value: Any) -> None:
        process.waiting = None
        self._record(process, "return", {})
        if process.index == 0:
            self.values[process.node] = value
            self.seconds = max(self.seconds, self.now)

    def _compute(self, process: _Process, effect: Compute) -> None:
        freeze(effect.args)
        try:
            result = self.evaluate(effect)
        except Exception as error:
            error.add_note(f"in {describe(effect)} of {process.node}, yielded at {line_of(process.program)}")
            raise
        kind = effect.kind
        duration = self._duration(process, kind, payload_bytes(effect.args[1:]) if kind == "reduction" else 0)
        if process.host in self._shared:
            self._occupy(process, duration, self._finish_compute, self.now, kind, result)
        else:
            now = self.now
            self._sequence += 1  # as in `_at`
            heappush(self._heap, (now + duration, RESUME, process.rank, self._sequence, self._finish_compute, (process, now, kind, result)))

    def _occupy(self, process: _Process, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """`call` when a program has computed for so long, or for longer where others of its host compute as well."""
        shared = self._shared.get(process.host)
        if shared is None:
            self._at(self.now + seconds, RESUME, process.rank, call, process, *args)
        else:
            turn = self._sequence + 1
            self._at(shared.begin(process, self.now, seconds), RESUME, process.rank, partial(self._served, shared, turn, call), process, *args)

    def _served(self, shared: Processors, turn: int, call: Callable[..., None], process: _Process, *args: Any) -> None:
        """The end of a computing, unless others who began meanwhile have moved it; among equals it keeps its turn."""
        due = shared.due(process)
        if due > self.now:
            again: Callable[..., None] = partial(self._served, shared, turn, call, process)
            heappush(self._heap, (due, RESUME, process.rank, turn, again, args))
        else:
            call(process, *args)

    def _duration(self, process: _Process, kind: str, nbytes: int = 0) -> float:
        return process.draws.duration(kind, nbytes)

    # -- messages ------------------------------------------------------------------------------------------

    def _latency(self, src: str, to: str) -> float:
        return self.machine.latency

    def _send(self, process: _Process, effect: Send) -> None:
        src, to, body = process.node, effect.to, effect.body
        there = self.host.get(to)
        if there is None:
            raise ValueError(f"{src}: {line_of(process.program)} sends to {to!r}; expected one of {', '.join(self.nodes)}")
        if not hasattr(body, "_fields"):
            raise no_message(src, process.program, body)
        freeze(body)
        nbytes = payload_bytes(body)
        numbers, here, start = process.numbers, process.host, self.now
        number = numbers[to] = numbers.get(to, -1) + 1
        if here == there:
            due, order, call = start, ARRIVE, self._arrive
        else:
            free = self._out_free
            if free[here] > start:
                start = free[here]
            free[here] = start + nbytes * self._byte_time
            due = start + self._latency(src, to)
            order, call = (HEAD, self._head) if self._byte_time else (ARRIVE, self._arrive)
        self._sequence += 1  # as in `_at`
        heappush(self._heap, (due, order, process.rank, self._sequence, call, (src, body, number, to, nbytes)))
        self._record(process, "send", {"to": to, "message": type(body).__name__, "number": number, "bytes": nbytes, "start": start})
        self._current = (process, None)

    def _head(self, src: str, body: Any, number: int, to: str, nbytes: int) -> None:
        """The head of a message reaches the receiver's incoming link, which serves in this order."""
        there, start, free = self.host[to], self.now, self._in_free
        if free[there] > start:
            start = free[there]
        free[there] = due = start + nbytes * self._byte_time
        self._sequence += 1  # as in `_at`
        heappush(self._heap, (due, ARRIVE, self.rank[src], self._sequence, self._arrive, (src, body, number, to, nbytes)))

    def _arrive(self, src: str, body: Any, number: int, to: str, nbytes: int) -> None:
        kind = type(body)
        for process in self._of_node[to]:  # to whoever waits for it, past the inbox, where such a program has found nothing
            effect = process.waiting
            if type(effect) is Recv and kind in effect.kinds and (effect.src is None or effect.src == src):
                self._received(process, src, body, number, self.now, nbytes)
                return
        self.boxes[to].letters.append(_new(Letter, (src, tag_of(kind), body, number, self.now, nbytes)))
        for process in self._of_node[to]:
            if type(process.waiting) is Recv and self._receive(process, process.waiting):
                break

    def _receive(self, process: _Process, effect: Recv) -> bool:
        hit = process.box.take(effect.kinds, effect.src)
        if hit is None:
            if self._closing:
                self._current = (process, RunEnded())
            return False
        (src, _, _, number, arrival, nbytes), body = hit
        self._received(process, src, body, number, arrival, nbytes)
        return True

    def _received(self, process: _Process, src: str, body: Any, number: int, arrival: float, nbytes: int) -> None:
        process.waiting = None
        self._record(process, "receive", {"src": src, "message": type(body).__name__, "number": number, "bytes": nbytes,
                                          "since": process.since, "arrival": arrival})
        self._current = (process, (src, body))

    def _poll(self, process: _Process, effect: Poll) -> None:
        hit = process.box.take(effect.kinds, effect.src)
        data: dict[str, Any] = {"src": None}
        if hit is not None:
            letter, body = hit
            data = {"src": letter.src, "message": type(body).__name__, "number": letter.number,
                    "bytes": letter.nbytes, "arrival": letter.arrival}
        self._record(process, "poll", data)
        self._current = (process, (hit[0].src, hit[1]) if hit else None)
        if hit is None:
            process.idle += 1
            if process.idle >= IDLE:
                self._look_whether_idle(process)

    def _look_whether_idle(self, process: _Process) -> None:
        """Refuse a program that polls in vain or marks again and again while nothing else happens: time would stand still for ever.

        The events say so, once in a while: to set a counter back whenever something happens would cost each effect more.
        """
        process.idle = 0
        for event in reversed(self.events):
            if (event.node, event.program) != (process.node, process.index):
                return
            if event.kind == "mark" or (event.kind == "poll" and event.data["src"] is None):
                process.idle += 1
            elif event.kind not in ("send", "choose", "load"):  # which take no time either, but any number of them may be meant
                return
            if process.idle >= IDLE:
                raise RunFailed(f"{process.node}: {line_of(process.program)} asks again and again at {self.now:.6g} s and no time passes; "
                                "expected a Recv, or a Compute between two Polls", process.host)

    # -- the end -------------------------------------------------------------------------------------------

    def _survives(self, stuck: list[_Process]) -> bool:
        """Whether something can be done for main programs that wait for what will not come: after a death."""
        return False

    def _close(self) -> None:
        """Nothing is under way: every main has returned and responders are told, or this is a deadlock."""
        mains = [p for p in self.processes if p.index == 0] if self._told is None else []
        stuck = [p for p in mains if p.node not in self.values and p.node not in self.dead]
        if stuck and self._survives(stuck):
            return
        if stuck:
            lines = "; ".join(f"{p.node} at {line_of(p.program)} waits for {describe(p.waiting)}{unread(p.box.letters)}" for p in stuck)
            after = f" after the death of {', '.join(self.dead)}" if self.dead else ""
            raise Deadlock(f"deadlock at {self.now:.6g} s{after}: {lines}")
        if self._told is None:
            self._told = iter(self.processes)
        # One after the other: to look at all of them again after each took n times as long.
        waiting = next((p for p in chain(self._told, self.processes) if type(p.waiting) is Recv), None)
        if waiting is None:
            self._closing = True
            return
        waiting.waiting = None
        self._current = (waiting, RunEnded())


def simulate(factory: Deployment | Factory, machine: Machine | None = None, seed: int = 0, observe: int = 64) -> Run:
    """Run a deployment to its end in virtual time; see `Simulator`."""
    return Simulator(factory, machine, seed, observe).run()
