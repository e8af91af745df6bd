"""The state graph of a small case, what each state shows and what may happen next in it, and its page."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from refsgd.cluster.units import counted
from refsgd.display.player import page
from refsgd.display.player.listing import listing, title
from refsgd.display.player.states import ENDED, States, action_in_words, called, rank, value_at
from refsgd.display.player.why import Why
from refsgd.effects import Compute, Factory, Mark
from refsgd.runtimes.engine import Task
from refsgd.runtimes.explorer import Check
from refsgd.runtimes.world import Action, Stuck, World
from refsgd.trace import Computed, Event, Marked, Run, Sent, Trace, taken
from refsgd.trace.diagram import computed, deed
from refsgd.trace.waiting import Program

MOST = 5000  #: states of a page


class TooLarge(ValueError):
    """A case has more states than a page holds."""


class _Watched(World):
    """A world that keeps the line and the local variables of each program, after every event."""

    def __init__(self, factory: Factory, every: bool, deaths: int) -> None:
        self.seen = States(Trace([], [], 0.0), 0, 0)
        super().__init__(factory, every, deaths)

    def act(self, task: Task, effect: Any) -> None:
        """Note where the program is paused, then act."""
        self._note(task)
        super().act(task, effect)

    def ended(self, task: Task, value: Any) -> None:
        """Note that the program has returned."""
        super().ended(task, value)
        self._note(task)

    def die(self, node: str) -> None:
        """Note that the programs of a node have died."""
        super().die(node)
        for task in self.tasks[node]:
            self._note(task)

    def _note(self, task: Task) -> None:
        end = ENDED[task.node in self.dead]
        self.seen._look((task.node, task.index), len(self.events), task.program, task.effect, end)

    def pass_marks(self) -> list[int]:
        """Perform the marks that no other program can see; returns the picks."""
        picks = list[int]()
        while unseen := [i for i, a in enumerate(self.enabled()) if a.kind == "go"
                         and len(own := self.tasks[a.node]) == 1 and type(own[0].effect) is Mark]:
            self.perform(unseen[0])
            picks.append(unseen[0])
        return picks


class Move(NamedTuple):
    """An action of a state: whose it is, what it is, where it leads, and the events that happen."""

    program: int
    text: int
    to: int
    events: list[int]


class _Table(dict[Any, int]):
    """The number of each value, which a new one gets when it is asked for."""

    def __missing__(self, value: Hashable) -> int:
        return self.setdefault(value, len(self))


class Graph:
    """Every state of a deployment that some schedule reaches, found by re-execution as in `explore`.

    `check` raises on a finished run that breaks an invariant; `observe` is the result of one.  With `every`
    each effect is an action, except marks that no other program can see.  Up to `deaths` workers may die.
    """

    def __init__(self, factory: Factory, check: Check, observe: Callable[[Run], Hashable], every: bool = True,
                 deaths: int = 0, most: int = MOST) -> None:
        self.factory, self.check, self.observe = factory, check, observe
        self.every, self.deaths, self.most = every, deaths, most
        self.ids: dict[Hashable, int] = {}
        self.states: list[dict[str, Any]] = []
        self.moves: list[list[Move]] = []
        self.texts, self.events, self.results = _Table(), _Table(), _Table()
        self.files: dict[str, set[int]] = {}
        self.places = _Table()
        world = self._world()
        self.nodes, self.trace = world.nodes, world.trace()
        self.programs = [(task.node, task.index) for task in world.all_tasks]
        self._follow()

    def _world(self) -> _Watched:
        return _Watched(self.factory, self.every, self.deaths)

    def _follow(self) -> None:
        """Follow first actions to a known state; then take up what was left on the way, the last first."""
        todo: list[tuple[list[int], int, int]] = [([], -1, 0)]
        while todo:
            picks, source, number = todo.pop()
            world = self._world()
            for pick in picks:
                world.perform(pick)
            while True:
                before = len(world.events)
                at, known, picked = self._enter(world, source, number)
                if source >= 0:
                    move = self.moves[source][number]
                    happened = [self.events[self._event(e)] for e in world.events[before:]]
                    self.moves[source][number] = move._replace(to=at, events=happened)
                picks = picks + picked
                if known or not self.moves[at]:
                    break
                todo += [(picks, at, i) for i in range(1, len(self.moves[at]))]
                source, number = at, 0

    def _enter(self, world: _Watched, source: int, number: int) -> tuple[int, bool, list[int]]:
        """Perform a move; the number of the state, whether it was known, and the picks performed."""
        picked, end, stuck = list[int](), "", False
        try:
            if source >= 0:
                world.perform(number)
                picked.append(number)
            picked += world.pass_marks()
            actions = world.enabled()
        except Stuck as error:
            actions, stuck = [], True
            end = re.sub(r"\S+\.py", lambda path: title(path[0]), str(error))
        except Exception as error:  # a mistake of the program
            actions, end = [], f"{type(error).__name__}: {error}"
        key = (world.state(), end)
        if key in self.ids:
            return self.ids[key], True, picked
        if len(self.ids) >= self.most:
            raise TooLarge(f"a page of more than {self.most} states; expected a smaller case: fewer workers "
                           "or steps")
        self.ids[key] = len(self.ids)
        state = self._snapshot(world)
        if not actions:
            state |= self._end(world, end, stuck)
        self.states.append(state)
        self.moves.append([Move(self.programs.index((a.node, a.program)), self.texts[said(world, a)], -1, [])
                           for a in actions])
        return self.ids[key], False, picked

    def _end(self, world: World, error: str, stuck: bool) -> dict[str, Any]:
        """How a run has ended: with a result, a broken invariant, a deadlock, or an error."""
        if error:
            return {"end": error, "deadlock": stuck, "broken": not stuck}
        run: Run = world.run()
        try:
            self.check(run)
        except Exception as found:
            return {"end": f"the run is over, and an invariant is broken: {found}", "broken": True}
        result = self.results[self.observe(run)]
        return {"end": "the run is over", "result": result, "lost": _lost(run.trace)}

    # -- what a state shows --------------------------------------------------------------------------------

    def _snapshot(self, world: _Watched) -> dict[str, Any]:
        """Where the programs stand and why they wait, and the messages."""
        k, seen = len(world.events), world.seen
        for name, lines in seen.files.items():
            self.files.setdefault(name, set()).update(lines)
        why = Why(world.trace(), seen)
        ages = world.trace().staleness
        names = list(self.files)
        own = [names.index(name) for name in seen.files]  # this world's numbers of files
        places = [self.places[tuple((own[f], line) for f, line in where)] for where in seen.places]
        views, held = [], list[int]()
        for p, key in enumerate(self.programs):
            reason, stand = why.reason(key, k), why.stand(key, k)
            views.append([
                places[stand.place] if stand.place >= 0 else -1, self.texts[why.sentence(*key, k)],
                self._locals(seen, key, k), self.texts[self._counts(world, key, ages)],
                self.places[((own[reason.place[0]], reason.place[1]),)]
                if reason and reason.held and reason.place else -1])
            if reason and reason.held:
                held.append(p)
        return {"views": views, "held": held, "dead": len(world.dead),
                "age": max((tau for _, tau in ages), default=-1),
                "wire": [self._message(m, to) for (_, to), sent in world.wire.items() for m in sent],
                "inbox": [self._message(m, node) for node, box in world.mailboxes.items()
                          for m in box.envelopes]}

    def _message(self, m: Any, to: str) -> int:
        return self.texts[f"{type(m.body).__name__}#{m.number}, {m.src} → {to}"]

    @staticmethod
    def _locals(seen: States, key: Program, k: int) -> dict[str, str]:
        columns = seen.locals.get(key, {})
        values = {name: value_at(columns[name], k) for name in sorted(columns, key=rank)}
        return {name: value for name, value in values.items() if value is not None}

    @staticmethod
    def _counts(world: World, key: Program, ages: list[tuple[str, int]]) -> str:
        """Gradients and staleness of a worker, updates of any node."""
        node, index = key
        if index:
            return ""
        done = [e for e in world.events if e.node == node]
        out, own = [], [tau for worker, tau in ages if worker == node]
        if world.trace().is_worker(node):
            out.append(counted(sum(getattr(e, "gradient_ended", False) for e in done), "gradient"))
            if own:
                out.append(f"staleness {', '.join(map(str, own))}")
        if updates := sum(isinstance(e, Marked) and e.name == "update" for e in done):
            out.append(counted(updates, "update"))
        return ", ".join(out)

    def _event(self, e: Event) -> tuple[int, str, int, str]:
        """An event: its program, words, 1 for a message sent and 2 for one received, and the message."""
        sent, message = isinstance(e, Sent), taken(e)
        if isinstance(e, Sent):
            message = e.node, e.to, e.number
        name = f"{message[0]}>{message[1]}#{message[2]}" if message else ""
        return self.programs.index((e.node, e.program)), deed(e), 1 if sent else 2 if message else 0, name

    # -- the page's data -----------------------------------------------------------------------------------

    def goals(self) -> list[dict[str, Any]]:
        """What the reader may try to reach, each with its states; none if no schedule reaches it."""
        def goal(text: str, hit: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
            return {"text": text, "states": [i for i, state in enumerate(self.states) if hit(state)]}

        oldest = max(state["age"] for state in self.states)
        first = next((n for n in self.nodes if self.trace.is_worker(n)), self.nodes[0])
        p = self.programs.index((first, 0))
        served = self.trace.is_worker(first) and not all(map(self.trace.is_worker, self.nodes))
        wait = "another worker" if served else "another program"
        old = goal(f"Let a gradient be {counted(max(1, oldest), 'update')} old",
                   lambda s: s["age"] >= max(1, oldest))
        other = goal("Finish with a result other than A (always choosing 1 gives A)",
                     lambda s: s.get("result", 0) > 0 and not s["dead"])
        mortal = [goal("Finish the run although a worker has died", lambda s: "result" in s and s["dead"]),
                  goal("Lose a gradient with the worker that computed it", lambda s: s.get("lost")),
                  goal("Block the others by a death", lambda s: s.get("deadlock") and s["dead"])]
        return [goal("Finish the run", lambda s: "result" in s),
                goal(f"Make {first} wait for {wait}", lambda s: p in s["held"]),
                *([old] if oldest >= 0 else []), *([other] if other["states"] else []),
                *(mortal if self.deaths else []),
                goal("Find a deadlock", lambda s: s.get("deadlock") and not s["dead"]),
                goal("Break the program: an error, or a gradient lost or applied twice",
                     lambda s: s.get("broken"))]

    def to_json(self) -> dict[str, Any]:
        """All data of the page."""
        locals_of = [[state["views"][p][2] for state in self.states] for p in range(len(self.programs))]
        fixed = [{name for name in set().union(*columns) if rank(name) == rank("")
                  and len({column[name] for column in columns if name in column}) == 1}
                 for columns in locals_of]
        views, rows, results = _Table(), [], list(self.results)
        for state, moves in zip(self.states, self.moves):
            own = []
            for p, (place, said_, values, counts, gate) in enumerate(state["views"]):
                shown = [f"{name} {value}" for name, value in values.items() if name not in fixed[p]]
                own.append(views[place, said_, tuple(self.texts[text] for text in shown), counts, gate])
            several = len(results) > 1 and "result" in state
            which = f", with result {letter(state['result'])}" if several else ""
            end = [self.texts[state["end"] + which]] if "end" in state else []
            rows.append([own, state["wire"], state["inbox"], [list(move) for move in moves], *end])
        return {"nodes": self.nodes, "workers": [self.trace.is_worker(n) for n in self.nodes],
                "programs": [[self.nodes.index(node), index] for node, index in self.programs],
                "files": [title(name) for name in self.files], "places": list(self.places),
                "texts": list(self.texts), "events": list(self.events), "views": list(views), "states": rows,
                "goals": self.goals()}


def _lost(trace: Trace) -> bool:
    """Whether a worker has died with a gradient that was not applied."""
    gone = [*(w for w, _ in trace.staleness), *(e.values.get("worker") for e in trace.marks("drop")),
            *(e.node for e in trace.of(Computed) if e.work == "update")]
    return any(trace.iterations[w] > gone.count(w) for w in trace.dead)


def letter(number: int) -> str:
    """The name of a result: A to Z, then numbers."""
    return chr(ord("A") + number) if number < 26 else str(number + 1)


def said(world: World, action: Action) -> str:
    """An action in words."""
    effect = world.tasks[action.node][action.program].effect
    if action.kind == "go" and isinstance(effect, Compute):
        return f"{called(action.node, action.program)} computes {computed(effect.kind)}"
    return action_in_words(world, action)


def scheduler_html(factory: Factory, check: Check, observe: Callable[[Run], Hashable], *, name: str = "run",
                   deaths: int = 0, most: int = MOST) -> str:
    """The page of a deployment: each effect is a move, or, if that is too large, each decision."""
    try:
        graph = Graph(factory, check, observe, every=True, deaths=deaths, most=most)
    except TooLarge:
        graph = Graph(factory, check, observe, every=False, deaths=deaths, most=most)
    source = "".join(listing(i, file, lines) for i, (file, lines) in enumerate(graph.files.items()))
    return page("scheduler", name, source, graph.to_json())
