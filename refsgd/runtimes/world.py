"""A deployment in a world without a clock: whoever drives it picks what happens next.

A `World` lists the actions that may happen next: a message of some channel arrives, a poll looks, a choice is made, and on
nodes with several programs, which share state, any of them goes on.  A schedule is the list of picks, so it can be replayed,
shrunk and printed.  Who picks is a reader (`refsgd.Stepper`) or `refsgd.runtimes.explorer`, which tries every schedule.

Not every order matters, so not every order is offered:

* a program alone on its node goes on until it needs somebody else: computing and sending commute with all else;
* a message for which such a program waits, from that very source, is delivered at once: nothing can race with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from refsgd.effects import Add, Cell, Choose, Compute, Factory, Load, Mark, Poll, Recv, RunEnded, Send, _Built, payload_bytes
from refsgd.runtimes.mailbox import Letter, Mailbox, tag_of
from refsgd.runtimes.programs import Where, add_to, describe, forgotten, freeze, line_of, no_effect, no_message, unread, where
from refsgd.trace import Event, Run, Trace

MAX_STEPS = 100_000  #: actions after which a run counts as endless


class Action(NamedTuple):
    """Something that may happen next: ``deliver`` (from node, to node), or ``go``, ``poll``, ``choose`` of a program."""

    kind: str
    node: str
    program: int = 0
    src: str = ""
    option: int = 0

    def __str__(self) -> str:
        if self.kind == "deliver":
            return f"deliver {self.src} -> {self.node}"
        program = f"/{self.program}" if self.program else ""
        return f"{self.kind} {self.node}{program}" + (f" option {self.option}" if self.kind == "choose" else "")


BEGIN = object()  #: the effect of a program that has not started


class Stuck(AssertionError):
    """No program can go on, and some main program has not returned."""


class _Task:
    """One program, and the effect that it waits to see answered."""

    __slots__ = ("effect", "index", "node", "number", "program", "since")

    def __init__(self, node: str, index: int, program: Any) -> None:
        self.node, self.index, self.program = node, index, program
        self.effect: Any = None
        self.since = 0


class World:
    """A deployment whose every next action is picked from outside.

    Parameters
    ----------
    factory : Factory
        Builds a fresh deployment.
    every : bool
        Pick also where every order gives the same: each effect is an action of its own, as a reader steps.

    Examples
    --------
    >>> from refsgd.effects import Node
    >>> def pick():
    ...     option = yield Choose(("left", "right"))
    ...     return option
    >>> world = World(lambda: {"peer0": Node(pick())})
    >>> [str(action) for action in world.enabled()]
    ['choose peer0 option 0', 'choose peer0 option 1']
    >>> str(world.perform(1))
    'choose peer0 option 1'
    >>> world.enabled(), world.values
    ([], {'peer0': 'right'})
    """

    def __init__(self, factory: Factory, every: bool = False) -> None:
        deployment = factory()
        self.every = every
        self.nodes = list(deployment)
        self.events: list[Event] = []
        self.values: dict[str, Any] = {}
        self.boxes = {n: Mailbox() for n in self.nodes}
        self.wire: dict[tuple[str, str], deque[Letter]] = {}
        self.tasks: dict[str, list[_Task]] = {}
        self.history: dict[str, list[Any]] = {n: [] for n in self.nodes}  # of a node: its programs share state
        self._numbers: dict[tuple[str, str], int] = {}
        self.cells: dict[int, Cell] = {}  # shared by nodes: every access is picked
        self._seen: dict[tuple[str, int], Any] = {}  # what an Add that is not atomic has read
        self.clock = 0
        for name, node in deployment.items():
            self.cells.update({id(cell): cell for cell in node.cells})
            self.tasks[name] = [_Task(name, i, p) for i, p in enumerate([node.main, *node.responders])]
        for task in self.all_tasks():
            if len(self.tasks[task.node]) > 1:
                task.effect = BEGIN  # where programs share state, their beginnings are ordered too
            else:
                self._advance(task, None)

    def all_tasks(self) -> Iterator[_Task]:
        """Programs in the deployment's order."""
        for tasks in self.tasks.values():
            yield from tasks

    # -- programs ------------------------------------------------------------------------------------------

    def _record(self, task: _Task, kind: str, data: dict[str, Any]) -> None:
        self.clock += 1
        self.events.append(Event(float(self.clock), task.node, task.index, kind, data))

    def _advance(self, task: _Task, value: Any) -> None:
        """Answer a program; alone on its node it goes on until it needs a pick."""
        while True:
            built = _Built.count
            try:
                thrown = isinstance(value, RunEnded)
                task.effect = task.program.throw(value) if thrown else task.program.send(value)
            except StopIteration as stop:
                if _Built.count > built:
                    raise forgotten(task.node, task.program, built, 0) from None
                self._returned(task, stop.value)
                return
            except RunEnded:
                self._returned(task, None)
                return
            if _Built.count > built + 1:
                raise forgotten(task.node, task.program, built, 1)
            if self.clock > MAX_STEPS:
                raise Stuck(f"still running after {MAX_STEPS} steps; expected an end")
            task.since = self.clock
            if self.every or len(self.tasks[task.node]) > 1 or isinstance(task.effect, Poll | Recv | Choose | Load | Add):
                return
            value = self._simple(task)

    def _returned(self, task: _Task, value: Any) -> None:
        task.effect = None
        self._record(task, "return", {})
        if task.index == 0:
            self.values[task.node] = value

    def _simple(self, task: _Task) -> Any:
        """Perform a Compute, Send or Mark; the answer."""
        effect = task.effect
        if isinstance(effect, Compute):
            freeze(effect.args)
            value = effect.fn(*effect.args)
            self._record(task, "compute", {"start": float(task.since), "work": effect.kind})
            return value
        if isinstance(effect, Send):
            if effect.to not in self.boxes:
                raise ValueError(f"{task.node}: {line_of(task.program)} sends to {effect.to!r}; expected one of {', '.join(self.nodes)}")
            if not hasattr(effect.body, "_fields"):
                raise no_message(task.node, task.program, effect.body)
            freeze(effect.body)
            channel = task.node, effect.to
            number, size = self._numbers.get(channel, 0), payload_bytes(effect.body)
            self._numbers[channel] = number + 1
            self._record(task, "send", {"to": effect.to, "message": type(effect.body).__name__, "number": number,
                                        "bytes": size, "start": float(self.clock)})
            self.wire.setdefault(channel, deque()).append(
                Letter(task.node, tag_of(type(effect.body)), effect.body, number, 0.0, size))
            return None
        if isinstance(effect, Mark):
            freeze(effect.values.values())
            self._record(task, "mark", {"name": effect.name, **effect.values})
            return None
        if isinstance(effect, Load):
            part = effect.cell.x[effect.cell.cut[effect.part]].copy()
            self.history[task.node].append((task.index, part.tobytes()))
            self._record(task, "load", {"part": effect.part})
            return part
        if isinstance(effect, Add):
            freeze((effect.delta,))
            add_to(effect, self._seen.pop((task.node, task.index), None))
            self._record(task, "add", {"part": effect.part})
            return None
        raise no_effect(task.node, task.program, effect)

    def _take(self, task: _Task, kind: str) -> tuple[str, Any] | None:
        hit = self.boxes[task.node].take(task.effect.kinds, task.effect.src)
        if hit is None:
            return None
        letter, body = hit
        self.history[task.node].append((task.index, (letter.src, letter.number)))
        self._record(task, kind, {"src": letter.src, "message": type(body).__name__, "number": letter.number,
                                  "bytes": letter.nbytes, "since": float(task.since), "arrival": letter.arrival})
        return letter.src, body

    def _deliver(self, src: str, to: str) -> None:
        self.boxes[to].put(self.wire[src, to].popleft()._replace(arrival=float(self.clock)))

    # -- actions -------------------------------------------------------------------------------------------

    def enabled(self) -> list[Action]:
        """What may happen next, in a fixed order; empty when the run is over."""
        if not self.every:
            self._settle()
        actions = []
        for task in self.all_tasks():
            effect = task.effect
            if isinstance(effect, Choose):
                p = effect.p
                actions += [Action("choose", task.node, task.index, option=i) for i in range(len(effect.options)) if p is None or p[i] > 0]
            elif type(effect) is Poll:
                actions.append(Action("poll", task.node, task.index))
            elif effect is not None and (type(effect) is not Recv or self.boxes[task.node].has(effect.kinds, effect.src)):
                actions.append(Action("go", task.node, task.index))
        actions += [Action("deliver", to, src=src) for (src, to), letters in self.wire.items() if letters]
        if not actions and self._close():
            return self.enabled()
        return actions

    def _settle(self) -> None:
        """Deliver what nothing can race with: to a lone program that waits for exactly this source."""
        moved = True
        while moved:
            moved = False
            for node, tasks in self.tasks.items():
                effect = tasks[0].effect
                if len(tasks) > 1 or type(effect) is not Recv:
                    continue
                hit = self._take(tasks[0], "receive")
                if hit is None and effect.src is not None and self.wire.get((effect.src, node)):
                    self._deliver(effect.src, node)
                    hit = self._take(tasks[0], "receive")
                    moved = True
                if hit is not None:
                    moved = True
                    self._advance(tasks[0], hit)

    def perform(self, pick: int) -> Action:
        """Let the enabled action number `pick` happen; a number beyond the last means the last."""
        actions = self.enabled()
        action = actions[min(pick, len(actions) - 1)]
        if action.kind == "deliver":
            self._deliver(action.src, action.node)
            return action
        task = self.tasks[action.node][action.program]
        if action.kind == "choose":
            option = task.effect.options[action.option]
            self.history[task.node].append((task.index, ("choose", action.option)))
            self._record(task, "choose", {"option": option})
            self._advance(task, option)
        elif type(task.effect) is Recv:
            self._advance(task, self._take(task, "receive"))
        elif type(task.effect) is Poll:
            hit = self._take(task, "poll")
            if hit is None:
                self.history[task.node].append((task.index, None))
                self._record(task, "poll", {"src": None})
            self._advance(task, hit)
        elif isinstance(task.effect, Add) and not task.effect.atomic and (task.node, task.index) not in self._seen:
            cell = task.effect.cell  # the first of two steps: others may write before the second
            self._seen[task.node, task.index] = cell.x[cell.cut[task.effect.part]].copy()
            self.history[task.node].append((task.index, "read"))
        else:
            self.history[task.node].append((task.index, "go"))
            self._advance(task, None if task.effect is BEGIN else self._simple(task))
        return action

    def _close(self) -> bool:
        """Nothing is under way: an error, or the next responder is told that the run has ended."""
        waiting = [t for t in self.all_tasks() if t.index == 0 and t.effect is not None]
        if waiting:
            lines = "; ".join(f"{t.node} at {line_of(t.program)} waits for {describe(t.effect)}{unread(self.boxes[t.node].letters)}" for t in waiting)
            raise Stuck(f"deadlock: {lines}")
        for task in self.all_tasks():
            if task.effect is not None:
                self._advance(task, RunEnded())
                return True
        return False

    def where(self) -> list[Where]:
        """Each program's current line, the effect it waits for, and its local variables."""
        return [where(t.node, t.index, t.program, None if t.effect is BEGIN else t.effect) for t in self.all_tasks()]

    def letter(self, action: Action) -> Letter | None:
        """The message that an action delivers, or lets a program take."""
        if action.kind == "deliver":
            return self.wire[action.src, action.node][0]
        effect = self.tasks[action.node][action.program].effect
        return self.boxes[action.node].find(effect.kinds, effect.src) if isinstance(effect, Recv) else None

    def state(self) -> tuple[Any, ...]:
        """What identifies the state: what each program was told, and what lies in each inbox in which order."""
        return (tuple(tuple(h) for h in self.history.values()),
                tuple(tuple((m.src, m.number) for m in box.letters) for box in self.boxes.values()),
                tuple(cell.x.tobytes() for cell in self.cells.values()),
                tuple((key, seen.tobytes()) for key, seen in self._seen.items()))

    def run(self) -> Run:
        """The finished run, with step numbers for times."""
        return Run(Trace(self.events, self.nodes, float(self.clock)), self.values)
