"""Reproduce a recorded run: every program gets the recorded answers, in the order of its node.

For each node, a record keeps which program acted and what a receive, poll or choice returned, but no computed
numbers.  Arguments of a `Compute` are frozen and its function is pure, so the rest follows, bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from refsgd.cluster.prices import Draws
from refsgd.effects import (
    Add,
    Choose,
    Compute,
    Died,
    Effect,
    Factory,
    Load,
    Mark,
    Poll,
    Recv,
    RunEnded,
    Send,
)
from refsgd.runtimes import programs
from refsgd.runtimes.engine import Engine, Task
from refsgd.runtimes.errors import ReplayError
from refsgd.runtimes.faults import KEEP
from refsgd.runtimes.mailbox import Envelope, tag_of
from refsgd.trace import UNORDERED, Added, Crashed, Event, Loaded, Polled, Received, Run, Trace, taken
from refsgd.trace.codec import CLASSES, NOTICE, Steps

#: called with a node, the number of its completed steps, and its programs with their pending effects
Observer = Callable[[str, int, Sequence[tuple[Any, Any]]], None]
#: the pending effect behind each kind of event; an ended program has none
EFFECTS = dict(zip(CLASSES.values(), (Compute, Send, Recv, Poll, Choose, Mark, type(None), Load, Add)))


def record(trace: Trace) -> Steps:
    """The events of each node, in order."""
    if any(e.ticket == UNORDERED for e in trace.of(Added)):
        raise unordered()
    steps: Steps = {node: [] for node in trace.nodes}
    for event in trace.events:
        steps[event.node].append(event)
    return steps


def unordered() -> ReplayError:
    """Error: the run's additions have no order that could be recorded."""
    return ReplayError(
        "additions without a lock have no order that could be recorded; expected hogwild --atomic")


class Replayer(Engine):
    """An engine that follows a record: it performs each program's next step once its message was sent, and
    tells `observe` the positions after it."""

    def __init__(self, factory: Factory, steps: Mapping[str, Sequence[Event]],
                 observe: Observer | None = None) -> None:
        self.deployment = deployment = factory()
        if set(deployment) != set(steps):
            raise ReplayError(
                f"the record has nodes {', '.join(steps)}; the programs are for {', '.join(deployment)}")
        super().__init__(deployment, keep=KEEP)
        self._observe = observe
        self.steps = {n: steps[n] for n in self.nodes}
        self.at = dict.fromkeys(self.nodes, 0)
        self._step: Any = None  # the step that is performed
        self.sent: dict[tuple[str, str], list[Envelope | None]] = {}  #: by channel; None: taken
        #: the draws of each program from its random streams
        self.drawn: dict[tuple[str, int], list[Callable[[Draws], Any]]] = defaultdict(list)
        # additions (node and step) by the number of accesses before they begin
        self._reads: dict[int, set[tuple[str, int]]] = defaultdict(set)
        self._seen: dict[tuple[str, int], Any] = {}  # the values that they have read
        self._told = set[int]()  # recorded accesses
        for node in self.nodes:
            for k, step in enumerate(self.steps[node]):
                if isinstance(step, Loaded | Added):
                    self._told.add(step.ticket)
                if isinstance(step, Added) and step.since is not None:
                    self._reads[step.since].add((node, k))
        # number of accesses of nodes that died before recording them
        self._untold = max(self._told, default=-1) + 1 - len(self._told)
        for node, tasks in self.tasks.items():
            for task in tasks:
                self.resume(task, None)
            self._show(node)

    @property
    def pending(self) -> dict[tuple[str, int], Any]:
        """The pending effect of each program, None if it has ended."""
        return {(task.node, task.index): task.effect for task in self.all_tasks}

    def _show(self, node: str) -> None:
        if self._observe is not None:
            self._observe(node, self.at[node], [(task.program, task.effect) for task in self.tasks[node]])

    # -- answers from the record ---------------------------------------------------------------------------

    def act(self, task: Task, effect: Any) -> None:
        """Leave an effect to its recorded step."""

    def ended(self, task: Task, value: Any) -> None:
        """Leave the event of a program's end to its recorded step."""
        task.effect = None
        if task.index == 0:
            self.values[task.node] = value

    def compute(self, task: Task, effect: Compute) -> None:
        self.drawn[task.node, task.index].append(partial(Draws.draw, kind=effect.kind, piece=effect.piece))
        self.computed(task, self._step.start, effect, self.result(task, effect))

    def choose(self, task: Task, effect: Choose) -> Any:
        found = [option for option in effect.options if option == self._step.option]
        if not found:
            raise self._misfit(task)
        self.drawn[task.node, task.index].append(partial(Draws.choose, options=effect.options, p=effect.p))
        return found[0]

    def departs(self, task: Task, to: str, nbytes: int) -> float:
        return float(self._step.start)

    def post(self, task: Task, to: str, body: Any, number: int, nbytes: int, start: float) -> None:
        """Hold a message until a step takes it."""
        self.sent.setdefault((task.node, to), []).append(
            Envelope(task.node, tag_of(type(body)), body, number, start, nbytes))

    def add(self, task: Task, effect: Add) -> None:
        """Write an `Add`; one that is not atomic has read at its start."""
        seen = self._seen.pop((task.node, self.at[task.node]), None)
        self.drawn[task.node, task.index].append(partial(Draws.draw, kind="update"))
        self.added(task, effect, programs.read(effect) if seen is None else seen, self._step.since)

    # -- steps ---------------------------------------------------------------------------------------------

    def _misfit(self, task: Task) -> ReplayError:
        return ReplayError(
            f"{task.node}, step {self.at[task.node]}: recorded {self._step.kind}, but the program "
            f"is at {programs.describe(task.effect)} ({programs.line_of(task.program)}); expected the "
            "algorithm and options that were recorded")

    def _try(self, node: str) -> bool:
        """As `_take_step`; an exception means that the record and the programs do not match."""
        at = self.at[node]
        try:
            return self._take_step(node)
        except (ReplayError, programs.ForgottenYield):
            raise
        except Exception as error:
            raise ReplayError(
                f"{node}, step {at}: the program ended with {type(error).__name__}: {error}; expected the "
                "algorithm and options that were recorded") from error

    def _take_step(self, node: str) -> bool:
        """Perform the next recorded step of a node; False if it must wait for another node."""
        step: Any = self.steps[node][self.at[node]]
        self._step = step
        index = step.program
        if not 0 <= index < len(self.tasks[node]):
            raise ReplayError(
                f"{node}, step {self.at[node]}: recorded program {index}; the node has "
                f"{len(self.tasks[node])}")
        if isinstance(step, Crashed):
            if self._untold and self._at_cell(node):
                return False  # its access may be one that was not recorded
            self.now = step.time
            self.lose(node, "as recorded")
            self.at[node] += 1
            self._show(node)
            return True
        task = self.tasks[node][index]
        told_of_end = type(task.effect) is Recv and not isinstance(step, Received | Polled)
        if told_of_end and (index or node in self.endable):
            self.resume(task, RunEnded())
        if EFFECTS[type(step)] is not type(task.effect):
            if task.effect is not None and not isinstance(task.effect, Effect):
                raise programs.no_effect(node, task.program, task.effect)
            raise self._misfit(task)
        me = node, self.at[node]
        if isinstance(step, Added) and step.since is not None and me in self._reads[step.since]:
            return self._read_before_adding(me, task, step.since)
        if self._must_wait(node, step):
            return False
        self.now = step.time
        self._perform(task)
        self.at[node] += 1
        if self.ready is not None:
            (_, value), self.ready = self.ready, None
            self.resume(task, value)
        self._show(node)
        return True

    def _must_wait(self, node: str, step: Any) -> bool:
        """Whether another node has yet to send the step's message, or to make an earlier access."""
        if taken(step) is not None:
            return bool(step.number >= len(self.sent.get((step.src, node), ())))
        return isinstance(step, Loaded | Added) and (
            step.ticket != self.tickets or bool(self._reads[step.ticket]))

    def _read_before_adding(self, me: tuple[str, int], task: Task, since: int) -> bool:
        """Read for an addition in virtual time that is not atomic, at its start: after `since` accesses."""
        if since != self.tickets:
            return False
        self._reads[since].remove(me)
        self._seen[me] = None if task.effect.atomic else programs.read(task.effect)
        return True

    def _perform(self, task: Task) -> None:
        """Perform the recorded step of a program."""
        step = self._step
        if task.effect is None:
            super().ended(task, self.values.get(task.node))
            return
        if taken(step) is not None:
            found: Envelope | None = Envelope(step.src, tag_of(Died), Died(step.src), NOTICE, 0.0, 0)
            if step.number != NOTICE:
                sent = self.sent[step.src, task.node]
                found, sent[step.number] = sent[step.number], None
            if found is None:
                raise self._misfit(task)
            task.mailbox.envelopes.append(found._replace(arrival=step.arrival))
        super().act(task, task.effect)
        if task.mailbox.envelopes:
            raise self._misfit(task)

    def envelopes(self, node: str) -> list[Envelope]:
        """Messages sent to a node and not received, by sender and number."""
        return [envelope for src in self.nodes for envelope in self.sent.get((src, node), ())
                if envelope is not None]

    def _at_cell(self, node: str) -> list[Any]:
        """The pending accesses to shared cells of a node's programs."""
        return [task.effect for task in self.tasks[node] if type(task.effect) in (Load, Add)]

    def _tell(self) -> bool:
        """Repeat an access that its node could not record before it died, if only one dead node can have made
        it."""
        dead = [n for n in self.nodes if [type(step) for step in self.steps[n][self.at[n]:]] == [Crashed]]
        at = [(n, effect) for n in dead for effect in self._at_cell(n)]
        if not self._untold or self.tickets in self._told or len(at) != 1:
            return False
        (node, effect), = at
        if type(effect) is Add:
            programs.freeze((effect.delta,))
            programs.add_to(effect, None)
        self._untold -= 1
        self.tickets += 1
        for task in self.tasks[node]:
            task.effect = None
        return True

    def advance(self) -> None:
        """Perform all steps that the record allows."""
        moved = True
        while moved:
            moved = False
            for node in self.nodes:
                while self.at[node] < len(self.steps[node]) and self._try(node):
                    moved = True
            moved = moved or self._tell()

    def run(self, whole: bool = True) -> Run:
        """Run to the record's end; if `whole`, refuse a record that ends early."""
        self.advance()
        stuck = [n for n in self.nodes if self.at[n] < len(self.steps[n])]
        if stuck and whole:
            node = stuck[0]
            step = self.steps[node][self.at[node]]
            lost = taken(step)
            what = (f"message {lost[2]} of {lost[0]}, which is never sent" if lost
                    else f"access {self.tickets} to shared memory, which is never made")
            raise ReplayError(f"{node}, step {self.at[node]}: waits for {what}; the record is damaged or "
                              "belongs to another run")
        end = self.seconds if whole else max((e.time for e in self.events if e.program == 0), default=0.0)
        self.events.sort(key=lambda e: e.time)
        return Run(Trace(self.events, self.nodes, end, roles=self.roles), self.values)


def replay(factory: Factory, steps: Mapping[str, Sequence[Event]]) -> Run:
    """Run programs along a record."""
    return Replayer(factory, steps).run()


def replay_beginning(factory: Factory, steps: Mapping[str, Sequence[Event]]) -> tuple[Run, int]:
    """Run programs along a record cut off by a crash, as far as it goes."""
    replayer = Replayer(factory, steps)
    run = replayer.run(whole=False)
    latest = {node: kept[-1][1] for node, kept in replayer.kept.items() if kept}
    return Run(run.trace, {**latest, **run.values}), sum(replayer.at.values())
