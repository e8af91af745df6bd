"""A deployment in a world without a clock, whose caller, a user or the explorer, picks what happens next.

A schedule is the list of picks, so it can be replayed, shrunk and printed.  Not every order is offered: a
program alone on its node continues until it needs another node, because computing and sending commute with
everything else; a message is delivered immediately if such a program waits for its class from exactly this
source, because nothing can race with it; and a `Died` arrives only while a program waits for one.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from refsgd.effects import Add, Cell, Choose, Compute, Died, Factory, Load, Poll, Recv, RunEnded
from refsgd.runtimes.engine import Engine, Task
from refsgd.runtimes.mailbox import Envelope, tag_of
from refsgd.runtimes.programs import Where, read, where
from refsgd.trace import Event, Run, Trace

MAX_STEPS = 100_000  #: actions after which a run counts as endless


#: effects whose order across nodes may matter even if a program is alone on its node
RACING = frozenset({Recv, Poll, Choose, Load, Add})


class Action(NamedTuple):
    """Something that may happen next: ``deliver`` (from node, to node), ``die`` of a worker, or ``go``,
    ``poll``, ``choose`` of a program."""

    kind: str
    node: str
    program: int = 0
    src: str = ""
    option: int = 0

    def __str__(self) -> str:
        if self.kind == "deliver":
            return f"deliver {self.src} -> {self.node}"
        program = f"/{self.program}" if self.program else ""
        return f"{self.kind} {self.node}{program}" + (f" option {self.option}" if self.kind == "choose"
                                                      else "")


BEGIN = object()  #: the effect of a program that has not started


class Stuck(AssertionError):
    """No program can continue, and some main program has not returned."""


class World(Engine):
    """A deployment whose caller picks every action; with `every` each effect is an action, as in stepping,
    even where every order gives the same result.  Up to `deaths` workers may die, whenever the caller picks.

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

    def __init__(self, factory: Factory, every: bool = False, deaths: int = 0) -> None:
        deployment = factory()
        super().__init__(deployment, observe=None)
        self.every, self.deaths = every, deaths
        self.wire: dict[tuple[str, str], deque[Envelope]] = {}
        self.history: dict[str, list[Any]] = {n: [] for n in self.nodes}  # by node: its programs share state
        # shared by nodes, so every access is picked
        self.cells: dict[int, Cell] = {id(cell): cell for node in deployment.values() for cell in node.cells}
        # the value read by an Add that is not atomic, and the number of accesses before
        self._seen: dict[tuple[str, int], tuple[Any, int]] = {}
        self._option = 0  # of the Choose that is performed
        for task in self.all_tasks:
            if len(self.tasks[task.node]) > 1:
                task.effect = BEGIN  # programs that share state also race to begin
            else:
                self._continue(task, None)

    # -- programs ------------------------------------------------------------------------------------------

    def record(self, event: Event) -> None:
        """Keep an event; its time is its number."""
        self.now += 1
        self.events.append(tuple.__new__(type(event), (self.now, *event[1:])))

    def moment(self) -> str:
        return f"step {self.now:g}"

    def _continue(self, task: Task, value: Any) -> None:
        """Answer a program; if alone on its node, it continues until it needs a pick."""
        self.ready = task, value
        while self.ready is not None:
            ready, self.ready = self.ready, None
            self.resume(*ready)

    def act(self, task: Task, effect: Any) -> None:
        """Act immediately if every order gives the same result; otherwise leave it to `perform`."""
        if self.now > MAX_STEPS:
            raise Stuck(f"still running after {MAX_STEPS} steps; expected the run to end")
        if not self.every and len(self.tasks[task.node]) == 1 and type(effect) not in RACING:
            super().act(task, effect)

    def _tell(self, task: Task, what: Any) -> None:
        self.history[task.node].append((task.index, what))

    def compute(self, task: Task, effect: Compute) -> None:
        self.computed(task, task.since, effect, self.result(task, effect))

    def add(self, task: Task, effect: Add) -> None:
        """Write an `Add`; one that is not atomic has read in an earlier step."""
        self.added(task, effect, *self._seen.pop((task.node, task.index), (None, None)))

    def choose(self, task: Task, effect: Choose) -> Any:
        self._tell(task, ("choose", self._option))
        return effect.options[self._option]

    def load(self, task: Task, effect: Load) -> tuple[Any, int]:
        part, ticket = super().load(task, effect)
        self._tell(task, part.tobytes())
        return part, ticket

    def take(self, task: Task, effect: Recv) -> tuple[Envelope, Any] | None:
        hit = super().take(task, effect)
        if hit is not None or type(effect) is Poll:
            self._tell(task, hit and (hit[0].src, hit[0].number))
        return hit

    def post(self, task: Task, to: str, body: Any, number: int, nbytes: int, start: float) -> None:
        """Append a message to its channel, where it stays until a pick delivers it; lost if `to` is dead."""
        if to in self.dead:
            return
        self.wire.setdefault((task.node, to), deque()).append(
            Envelope(task.node, tag_of(type(body)), body, number, 0.0, nbytes))

    def _deliver(self, src: str, to: str) -> None:
        self.mailboxes[to].envelopes.append(self.wire[src, to].popleft()._replace(arrival=self.now))

    # -- deaths --------------------------------------------------------------------------------------------

    def _mortal(self) -> list[str]:
        """The workers that may die now: one always lives, and what has returned does not die."""
        living = [n for n in self.nodes if self.roles[n] == "worker" and n not in self.dead]
        if len(self.dead) >= self.deaths or len(living) == 1:
            return []
        return [node for node in living if self.tasks[node][0].effect is not None]

    def die(self, node: str) -> None:
        """End a worker, as on_death "continue" does: what it has sent arrives, and then a `Died`."""
        self.lose(node, f"{node} dies")
        self.mailboxes[node].envelopes.clear()
        for task in self.tasks[node]:
            self._seen.pop((node, task.index), None)
        for other in self.nodes:
            self.wire.pop((other, node), None)
            self.post(self.tasks[node][0], other, Died(node), -1, 0, self.now)

    def _heard(self, to: str, letter: Envelope) -> bool:
        """Whether a message may arrive: any but a `Died` that no program waits for."""
        return type(letter.body) is not Died or any(
            isinstance(task.effect, Recv | Poll) and Died in task.effect.kinds for task in self.tasks[to])

    # -- actions -------------------------------------------------------------------------------------------

    def enabled(self) -> list[Action]:
        """What may happen next, in a fixed order; empty when the run is over."""
        if not self.every:
            self._settle()
        actions = [action for task in self.all_tasks for action in self._offers(task)]
        actions += [Action("deliver", to, src=src) for (src, to), sent in self.wire.items()
                    if sent and self._heard(to, sent[0])]
        if not actions and self._close():
            return self.enabled()
        return actions + [Action("die", node) for node in self._mortal()]

    def _offers(self, task: Task) -> list[Action]:
        """The actions by which a program may continue."""
        effect = task.effect
        if isinstance(effect, Choose):
            return [Action("choose", task.node, task.index, option=i) for i in range(len(effect.options))
                    if effect.p is None or effect.p[i] > 0]
        if isinstance(effect, Poll):
            return [Action("poll", task.node, task.index)]
        if effect is None or (isinstance(effect, Recv) and not task.mailbox.find(effect.kinds, effect.src)):
            return []
        return [Action("go", task.node, task.index)]

    def _settle(self) -> None:
        """Deliver messages that cannot race: to a lone program that waits for this class from this source."""
        moved = True
        while moved:
            moved = False
            for node, (task, *others) in self.tasks.items():
                effect = task.effect
                if others or type(effect) is not Recv:
                    continue
                sent = self.wire.get((effect.src, node)) if effect.src is not None else None
                if self._answer(task):
                    moved = True
                elif effect.src is not None and sent and type(sent[0].body) in effect.kinds:
                    self._deliver(effect.src, node)
                    self._answer(task)
                    moved = True

    def _answer(self, task: Task) -> bool:
        """Act on a program's pending effect; if it has an answer, the program continues."""
        super().act(task, task.effect)
        if self.ready is None:
            return False
        self._continue(*self.ready)
        return True

    def perform(self, pick: int) -> Action:
        """Perform the enabled action number `pick`; a number beyond the last means the last."""
        actions = self.enabled()
        action = actions[min(pick, len(actions) - 1)]
        if action.kind == "deliver":
            self._deliver(action.src, action.node)
            return action
        if action.kind == "die":
            self.die(action.node)
            return action
        task = self.tasks[action.node][action.program]
        effect, key, told = task.effect, (task.node, task.index), len(self.history[task.node])
        if effect is BEGIN:
            self._tell(task, "go")
            self._continue(task, None)
        elif isinstance(effect, Add) and not effect.atomic and key not in self._seen:
            # the first of two steps: others may write before the second
            self._seen[key] = read(effect), self.tickets
            self._tell(task, "read")
        else:
            self._option = action.option
            self._answer(task)
            if len(self.history[task.node]) == told:  # it only continues
                self._tell(task, "go")
        return action

    def _close(self) -> bool:
        """Nothing can happen: raise an error, or tell the next handler that the run has ended."""
        waiting = [task for task in self.all_tasks if task.effect is not None]
        mains = [task for task in waiting if task.index == 0]
        if mains and not (self.dead and all(task.node in self.endable for task in mains)):
            raise Stuck(f"deadlock{self.stuck(mains)}")
        if mains:
            self._tell(mains[0], "ended")
            self._continue(mains[0], RunEnded())
        elif waiting:
            self._continue(waiting[0], RunEnded())
        return bool(waiting)

    def where(self) -> list[Where]:
        """Each program's current line, the effect it waits for, and its local variables."""
        return [where(t.node, t.index, t.program, None if t.effect is BEGIN else t.effect)
                for t in self.all_tasks]

    def envelope(self, action: Action) -> Envelope | None:
        """The message that an action delivers, or lets a program take."""
        if action.kind == "deliver":
            return self.wire[action.src, action.node][0]
        task = self.tasks[action.node][action.program]
        effect = task.effect
        return task.mailbox.find(effect.kinds, effect.src) if isinstance(effect, Recv) else None

    def state(self) -> tuple[Any, ...]:
        """The identity of the state: the answers to each program, and each mailbox in order."""
        return (tuple(tuple(h) for h in self.history.values()),
                tuple(tuple((m.src, m.number) for m in box.envelopes) for box in self.mailboxes.values()),
                tuple(cell.x.tobytes() for cell in self.cells.values()),
                tuple((key, seen.tobytes()) for key, (seen, _) in self._seen.items()), frozenset(self.dead))

    def trace(self) -> Trace:
        """The trace so far; times count events."""
        inboxes = {(m.src, node, m.number): m.arrival for node, box in self.mailboxes.items()
                   for m in box.envelopes}
        return Trace(self.events, self.nodes, self.now, roles=self.roles, inboxes=inboxes)

    def run(self) -> Run:
        """The finished run, with step numbers for times."""
        return Run(self.trace(), self.values)
