"""You as the scheduler: step an algorithm action by action, choose what happens next, go back.

A run in a world without a clock (`refsgd.runtimes.world.World`) is the list of picks, so to go back a
`Stepper` runs the beginning again, and it can begin with a schedule that a test found.
"""

from __future__ import annotations

import html
import linecache
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

from refsgd.cluster.units import counted
from refsgd.display.player import Player, player_html
from refsgd.display.player.listing import title
from refsgd.display.player.states import action_in_words, called, follow, rank, readable
from refsgd.display.player.why import Why, deadlock
from refsgd.experiment.arguments import check_kind, check_whole
from refsgd.experiment.functions import Algorithm
from refsgd.experiment.options.batches import text_of, weights_of
from refsgd.experiment.prepare import Usage, prepare
from refsgd.problems import Problem, quadratic
from refsgd.runtimes.programs import Where
from refsgd.runtimes.world import BEGIN, Action, Stuck, World
from refsgd.trace import Event, Marked, Trace
from refsgd.trace.diagram import deed, diagram

Grain = Literal["effect", "decision"]
WIDTH = 100  #: columns of what is printed of programs
HARD = "\xa0"  #: a non-breaking space
Target = str | Callable[[Event], bool]


class Places(list[Where]):
    """Where each program is paused and why it waits, as a list that prints readably."""

    def __repr__(self) -> str:
        return self.text(variables=True)

    def text(self, variables: bool = False, width: int = WIDTH) -> str:
        """A sentence and the line for each program, and its variables if they are asked for."""
        lines = []
        for w in self:
            lines += wrap(w.why, width, subsequent_indent="    ")
            if w.line:
                text = linecache.getline(w.filename, w.line).strip()
                values = readable(w.locals)
                local = ", ".join(f"{n} {values[n]}".replace(" ", HARD) for n in sorted(values, key=rank))
                place = f"{title(w.filename).rsplit('/', 1)[-1]}:{w.line}  {text}"
                for more in (place, local) if variables else (place,):
                    lines += wrap(more, width, initial_indent="    ", subsequent_indent=" " * 8)
        return "\n".join(lines).replace(HARD, " ")

    def of(self, node: str) -> Places:
        """The programs of one node; raises ValueError if there is none of this name."""
        found = Places(w for w in self if w.node == node)
        if not found:
            raise Usage(f"node {node!r}; expected one of {', '.join(dict.fromkeys(w.node for w in self))}")
        return found


class Stepper:
    """Step through an algorithm; you decide what happens next.

    Every method that moves returns the stepper, which notebooks show as the step player of what happened so
    far, with the list of what may happen next.

    Parameters
    ----------
    algorithm : str or callable
        As in `refsgd.run`.
    problem : Problem, optional
        A quadratic in a few dimensions if none is given, so that local variables are readable;
        ``data="digits"`` trains a net.
    workers, servers, steps : int
        Sizes; small ones are easiest to read.
    lr, momentum : float
    batch : sequence of int or text, optional
        Examples in each worker's gradient, its weight: ``"3,1"``.  All are equal if it is not given.
    grain : {"effect", "decision"}
        What counts as an action: every effect of every program, or only effects that others can race with,
        as in `refsgd.runtimes.explorer.explore` and its schedules.
    schedule : sequence of int
        Picks to begin with.
    **options
        The algorithm's own, e.g. ``staleness=1``.

    Raises
    ------
    ValueError
        Usage error: what was found and what was expected.

    Examples
    --------
    >>> s = Stepper("ssp", workers=2, steps=1, staleness=0)
    >>> s.actions()
    ['worker0 computes: gradient', 'worker1 computes: gradient']
    >>> s.choose(1).actions()
    ['worker0 computes: gradient', 'worker1 sends Push to server0']
    >>> s.run_until("update").last
    ['server0 applies update 0 of worker0, staleness 0']
    >>> [s.back().where()[2].function, s.step().where()[2].function], s.schedule[:2]
    (['mark', 'server'], [1, 0])
    """

    def __init__(self, algorithm: Algorithm, problem: Problem | None = None, *, workers: int = 3,
                 servers: int = 1, steps: int = 3, lr: float = 0.125, momentum: float = 0.0,
                 grain: Grain = "effect", schedule: Sequence[int] = (), **options: Any) -> None:
        if grain not in ("effect", "decision"):
            raise Usage(f"grain {grain!r}; expected effect or decision")
        check_whole(1, workers=workers, servers=servers)
        if problem is None and "data" not in options:
            problem = quadratic(d=min(4, max(2, workers)), workers=max(1, workers),
                                batches=weights_of(options.pop("batch", 1), workers))
        experiment = prepare(algorithm, problem, workers=workers, servers=servers, steps=steps, lr=lr,
                             momentum=momentum, **options)
        self.deploy, self.grain = experiment.deploy, grain
        said = "".join(f" {k}={v}" for k, v in options.items())
        self.name = (
            f"{experiment.name}{said}: {counted(experiment.workers, 'worker')}, {counted(steps, 'step')}")
        if len(set(experiment.batches)) > 1:
            self.name += f", batches {text_of(experiment.batches)}"
        self._begin()
        for pick in schedule:
            self.choose(pick)

    # -- moving --------------------------------------------------------------------------------------------

    def _begin(self, schedule: Sequence[int] = ()) -> None:
        self.world = World(self.deploy, every=self.grain == "effect")
        self._picks = list(schedule)
        self._before = 0
        self._look()
        for pick in schedule:
            self._before = len(self.world.events)
            self.world.perform(pick)
            self._look()

    def _look(self) -> None:
        """Ask the world what may happen next."""
        self.deadlock = ""  #: the programs in a deadlock, if there is one
        try:
            self._enabled: list[Action] = self.world.enabled()
        except Stuck as stuck:
            self._enabled, self.deadlock = [], deadlock(self.world, self.deploy, stuck)

    def choose(self, pick: int) -> Stepper:
        """Perform action number `pick`, from 0 on, of the list in `actions`; raises ValueError if there is no
        such action."""
        check_kind(Integral, "the number of an action, as in actions()", action=pick)
        if not 0 <= pick < len(self._enabled):
            if not self._enabled:
                raise Usage(f"action {pick}; {self.deadlock or 'the run is over'}")
            raise Usage(f"action {pick}; expected 0 to {len(self._enabled) - 1}: "
                        + "; ".join(self.actions()))
        before, done = len(self.world.events), self.schedule
        try:
            self.world.perform(pick)
            self._look()
        except Exception as error:
            self._begin(done)
            error.add_note(
                f"the stepper is before this action again; the schedule that fails is {[*done, pick]}")
            raise
        self._before = before
        self._picks.append(pick)
        return self

    def step(self, n: int = 1) -> Stepper:
        """Perform the first enabled action, n >= 0 times; at the end of the run nothing changes."""
        for _ in range(n):
            if self._enabled:
                self.choose(0)
        return self

    def run_until(self, target: Target) -> Stepper:
        """Perform first actions until an event happens: a mark of this name (``"update"``, ``"clock"``,
        ``"block"``), an event of this kind (``"receive"``, ``"send"``, ``"compute"``, ...), or one for which
        the function is true; raises ValueError, and does not move, if nothing of this name happens in the
        whole run."""
        def hit(event: Event) -> bool:
            if callable(target):
                return bool(target(event))
            return target in (event.kind, event.name if isinstance(event, Marked) else None)

        start = self.schedule
        while self._enabled:
            self.step()
            if any(hit(event) for event in self.world.events[self._before:]):
                return self
        if isinstance(target, str) and not any(hit(event) for event in self.world.events):
            seen = sorted({e.name if isinstance(e, Marked) else e.kind for e in self.world.events})
            self._begin(start)
            how = ("; your program reports it by yield Mark(\"block\", worker=w) where it holds w back"
                   if target == "block" else "")
            raise Usage(f"no event {target!r} happens in this run; expected one of {', '.join(seen)}{how}")
        return self

    def run(self) -> Stepper:
        """Perform first actions to the end."""
        while self._enabled:
            self.step()
        return self

    def back(self, n: int = 1) -> Stepper:
        """Undo the last n >= 0 actions (at most to the start) by running those before them again."""
        if n < 0:
            raise Usage(f"back {n}; expected a number of actions >= 0")
        self._begin(self._picks[:max(0, len(self.schedule) - n)])
        return self

    # -- looking -------------------------------------------------------------------------------------------

    @property
    def schedule(self) -> list[int]:
        """The picks so far."""
        return list(self._picks)

    @property
    def over(self) -> bool:
        """Whether the run is over."""
        return not self._enabled

    @property
    def events(self) -> list[Event]:
        """The events so far; times count steps."""
        return self.world.events

    @property
    def last(self) -> list[str]:
        """The events of the last action, in words."""
        done = self.world.events[self._before:] if self.schedule else []
        return [f"{called(e.node, e.program)} {deed(e)}" for e in done]

    @property
    def values(self) -> dict[str, Any]:
        """The values that main programs have returned, by node."""
        return self.world.values

    def actions(self) -> list[str]:
        """The enabled actions in words; `choose` takes the index."""
        return [action_in_words(self.world, action) for action in self._enabled]

    def where(self) -> Places:
        """Each program's line, the effect it waits for, its local variables, and a sentence (`why`) on what
        it does or why it waits."""
        now, tasks = len(self.events), self.world.all_tasks
        why = Why(self.trace(), follow(self.trace(), self.deploy, 0, now))
        return Places(w._replace(why=why.sentence(w.node, w.program, now) if task.effect is not BEGIN
                                 else f"{called(w.node, w.program)} has not begun")
                      for w, task in zip(self.world.where(), tasks))

    def source(self, node: str | None = None, around: int = 5) -> str:
        """The current line of the main program of `node`, by default of the program that acted last, marked
        by an arrow, with `around` lines before and after it; raises ValueError if there is no such node."""
        last = self.events[-1] if node is None and self.events else None
        key = (last.node, last.program) if last else (node or self.world.nodes[0], 0)
        w = next((w for w in self.world.where() if (w.node, w.program) == key), None)
        if w is None:
            raise Usage(f"node {node!r}; expected one of {', '.join(self.world.nodes)}")
        text = linecache.getlines(w.filename) if w.line else []
        note = "" if text else ", whose source cannot be read" if w.line else ", which has returned"
        first = max(1, w.line - around)
        lines = [f"{'->' if n == w.line else '  '} {n:4}  {line}".rstrip()
                 for n, line in enumerate(text[first - 1:w.line + around], first)]
        return "\n".join([f"{called(*key)} in {w.function}{note}", *lines])

    def diagram(self) -> str:
        """The events so far as text, with a column per node."""
        return diagram(self.world.events, self.world.nodes)

    def trace(self) -> Trace:
        """The trace so far; times count steps."""
        return self.world.trace()

    def player(self, path: str | Path | None = None) -> Player:
        """The events so far in the step player, opened at the end; also written to `path` if one is given."""
        actions = [(f".choose({i})", said) for i, said in enumerate(self.actions())]
        if self.deadlock:
            actions = [(".back()", f"nothing: {self.deadlock}")]
        page = player_html(self.trace(), self.deploy, name=self.name, unit="steps", at_end=True,
                           actions=actions, limit=max(1, len(self.world.events)))
        return Player(page, path)

    def __repr__(self) -> str:
        lines = [f"{self.name}; {len(self.schedule)} actions, {len(self.events)} events so far",
                 repr(self.where())]
        lines += [f"last: {text}" for text in self.last]
        if self.over:
            lines.append(self.deadlock or "the run is over")
        else:
            lines += ["next:", *(f"  {i}  {said}" for i, said in enumerate(self.actions()))]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        note = f"<p>{html.escape(self.deadlock)}</p>" if self.deadlock else ""
        return note + self.player()._repr_html_()
