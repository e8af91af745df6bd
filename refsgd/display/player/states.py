"""Each program's line, awaited messages and local variables after every event, stored as changes."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refsgd.algorithms.parts import Shard
from refsgd.effects import Add, Choose, Compute, Factory, Load, Mark, Poll, Recv, Send
from refsgd.runtimes import replay
from refsgd.runtimes.programs import describe, frames, local_values
from refsgd.runtimes.world import BEGIN, Action, World
from refsgd.trace import Computed, Trace
from refsgd.trace.waiting import Pending, Program

MOST = 12  #: shown entries of a container; strings have four times as many characters
FIRST = ("t", "c", "clock", "version", "slowest", "waiting")  #: local variables that come first
ENDED = ("returned", "died")  #: how a program has ended


def rank(name: str) -> int:
    """Sort key of a local variable: those of `FIRST` come first."""
    return FIRST.index(name) if name in FIRST else len(FIRST)


def shown(value: Any, depth: int = 0) -> str | None:
    """A value in a few characters, a long array by type and shape; None for values that would not help
    (functions, problems, generators).

    >>> shown({"worker0": 2}), shown(np.zeros(9, np.float32)), shown(0.123456), shown(print)
    ('{worker0: 2}', 'float32 (9,)', '0.1235', None)
    """
    if value is None or isinstance(value, bool | int | np.integer | np.bool_):
        return str(value)
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    if isinstance(value, str):
        return value if len(value) <= 4 * MOST else value[: 4 * MOST - 1] + "…"
    if isinstance(value, slice):
        return f"{value.start}:{value.stop}"
    if isinstance(value, np.ndarray):
        if value.size <= 4 and value.ndim <= 1:
            return "[" + " ".join(f"{v:.4g}" for v in np.atleast_1d(value)) + "]"
        return f"{value.dtype} ({', '.join(map(str, value.shape))}{',' if value.ndim == 1 else ''})"
    return _composed(value, depth) if depth < 3 else "…"


def readable(values: Mapping[str, Any]) -> dict[str, str]:
    """Local variables in a few characters, without those that would not help."""
    return {name: text for name, value in values.items()
            if not name.startswith(("_", ".")) and (text := shown(value)) is not None}


def _composed(value: Any, depth: int) -> str | None:
    kind: Any = type(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        usual = kind._field_defaults  # what was left at its default says nothing
        said = {name: item for name, item in zip(value._fields, value)
                if name not in usual or item is not usual[name]}
        return f"{kind.__name__}({_pairs(said, depth, '=')})"
    if isinstance(value, Mapping):
        return "{" + _pairs(value, depth, ": ") + "}"
    if isinstance(value, set | frozenset):
        return "{" + _items(sorted(value, key=str), depth) + "}"
    if isinstance(value, list | tuple):
        return f"[{_items(value, depth)}]"
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is not None and not parameters.frozen:
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(kind)}
        return f"{kind.__name__}({_pairs(fields, depth, '=')})"
    return None


def _pairs(items: Mapping[Any, Any], depth: int, sign: str) -> str:
    known = [(key, text) for key, value in items.items() if (text := shown(value, depth + 1)) is not None]
    return _joined([f"{shown(key, depth + 1)}{sign}{text}" for key, text in known[:MOST]], len(known))


def _items(items: Sequence[Any], depth: int) -> str:
    return _joined([shown(item, depth + 1) or "…" for item in items[:MOST]], len(items))


def _joined(texts: list[str], count: int) -> str:
    """The given texts, and how many of `count` entries are missing."""
    return ", ".join(texts + [f"… {count - MOST} more"] * (count > MOST))


RECEIVES = Shard.recv.__code__  #: a sub-program shown as the `Recv` that it contains, at its caller's line


class Stand(NamedTuple):
    """The position of a program, and what it does there."""

    place: int  #: number of the place; -1: the program has ended
    says: str
    pending: Pending = Pending()


class States:
    """Observes a replay and keeps each program's changes at the positions from `first` to `last`.

    Position k is the moment after k events; earlier states count as `first`.
    """

    def __init__(self, trace: Trace, first: int, last: int) -> None:
        self.first, self.events = first, trace.events
        # source files in order of appearance, with the first lines of the functions seen in them
        self.files: dict[str, set[int]] = {}
        # each program's (k, value) at which the value changes
        self.stands: dict[Program, list[tuple[int, Stand]]] = defaultdict(list)
        self.locals: dict[Program, dict[str, list[tuple[int, str | None]]]] = defaultdict(dict)
        self.names: dict[Program, str] = {}
        self.bodies: dict[int, str] = {}  # bodies of messages, by the event that sent them
        self.note = ""  # why the lines are missing
        # places, each a stack of frames, outermost first: number of the file, line
        self.places: list[tuple[tuple[int, int], ...]] = []
        self._numbers: dict[tuple[tuple[int, int], ...], int] = {}
        # numbers of the events of each node and program
        self._of_node: dict[str, list[int]] = defaultdict(list)
        self._of_program: dict[Program, list[int]] = defaultdict(list)
        for i, e in enumerate(trace.events[:last]):
            self._of_node[e.node].append(i)
            self._of_program[e.node, e.program].append(i)

    def see(self, node: str, done: int, programs: Sequence[tuple[Any, Any]]) -> None:
        """Observe a node after `done` of its steps."""
        own = self._of_node[node]
        k = own[done - 1] + 1 if done else 0
        if k < self.first and done < len(own) and own[done] < self.first:
            return  # the node's next step is also before the window
        end = ENDED[done > 0 and self.events[k - 1].kind == "died"]
        for index, (program, effect) in enumerate(programs):
            self._look((node, index), k, program, effect, end)

    def _look(self, key: Program, k: int, program: Any, effect: Any, end: str) -> None:
        alive = [f for f in frames(program) if f.gi_frame is not None and f.gi_code is not RECEIVES]
        self.names.setdefault(key, getattr(program, "__name__", "program"))
        own = self._of_program.get(key, [])
        at = bisect_left(own, k)
        if isinstance(effect, Send) and at < len(own):
            self.bodies[own[at]] = shown(effect.body) or ""
        values: dict[str, str] = {}
        for f in alive:
            self.files.setdefault(f.gi_code.co_filename, set()).add(f.gi_code.co_firstlineno)
            values |= readable(local_values(f))
        names = list(self.files)
        where = tuple((names.index(f.gi_code.co_filename), f.gi_frame.f_lineno) for f in alive)
        place = self._numbers.setdefault(where, len(self._numbers)) if alive else -1
        if place == len(self.places):
            self.places.append(where)
        pending, k = Pending(), max(k, self.first)
        if type(effect) is Recv and alive:
            pending = Pending(kinds=tuple(kind.__name__ for kind in effect.kinds), src=effect.src)
        elif type(effect) is Compute and alive:
            pending = Pending(effect.kind)
        _put(self.stands[key], k, Stand(place, waits_for(effect) if alive else end, pending))
        column = self.locals[key]
        for name in [*column, *(name for name in values if name not in column)]:
            _put(column.setdefault(name, []), k, values.get(name))


def value_at(column: Sequence[tuple[int, Any]], k: int) -> Any:
    """The value of a column at position k; None before its first entry."""
    at = bisect_right(column, k, key=lambda pair: pair[0])
    return column[at - 1][1] if at else None


def _put(column: list[tuple[int, Any]], k: int, value: Any) -> None:
    """Append (k, value) if the value changes; a later value of the same k replaces it."""
    if column and column[-1][0] == k:
        column.pop()
    if (column[-1][1] if column else None) != value:
        column.append((k, value))


def waits_for(effect: Any) -> str:
    """What a program does, or for what it waits, as text."""
    match effect:
        case Compute():
            return f"computes: {Computed(0.0, '', 0, 0.0, effect.kind, piece=effect.piece).what}"
        case Send():
            return f"sends {type(effect.body).__name__} to {effect.to}"
        case Poll():  # also a `Recv`
            return f"looks for {' or '.join(kind.__name__ for kind in effect.kinds)}"
        case Recv():
            return f"waits: {describe(effect)}"
        case Choose():
            return "chooses"
        case Mark():
            return f"marks {effect.name}"
        case Load():
            return f"reads part {effect.part}"
        case Add():
            return f"adds to part {effect.part}"
    return describe(effect)


def called(node: str, program: int) -> str:
    """A program in words."""
    return node + (f"[{program}]" if program else "")


def action_in_words(world: World, action: Action) -> str:
    """What may happen next, in words."""
    if action.kind == "die":
        return f"{action.node} dies"
    effect, letter = world.tasks[action.node][action.program].effect, world.envelope(action)
    name = called(action.node, action.program)
    message = f"{type(letter.body).__name__}#{letter.number} of {letter.src}" if letter else ""
    if action.kind == "deliver":
        return f"{message} arrives at {action.node}"
    if isinstance(effect, Choose):
        return f"{name} chooses {effect.options[action.option]}"
    if action.kind == "poll":
        return f"{name} looks: " + (f"takes {message}" if letter else "nothing there")
    if isinstance(effect, Recv):
        return f"{name} takes {message}"
    return f"{name} " + ("begins" if effect is BEGIN else waits_for(effect))


def follow(trace: Trace, factory: Factory | None, first: int, last: int) -> States:
    """Replay the first `last` events of a trace and keep the states from position `first` on; if that is not
    possible, `States.note` says why."""
    states = States(trace, first, last)
    if factory is None:
        states.note = "no programs were given, so their lines are not known"
        return states
    try:
        beginning = Trace(trace.events[:last], trace.nodes, trace.seconds, lateness=trace.lateness,
                          roles=trace.roles)
        replay.Replayer(factory, replay.record(beginning), states.see).advance()
    except Exception as error:  # whatever it is: diagram, messages and metrics do not need the lines
        states.note = f"the lines could not be reproduced to the end: {type(error).__name__}: {error}"
    return states
