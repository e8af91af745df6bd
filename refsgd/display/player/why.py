"""Why a program waits, in one sentence, from the events of a run and the positions of its programs.

A wait has stages: the request is on the wire, is in an inbox, is being served, the answer is held back, the
answer is on the wire.  If the answer is held back, the sentence names the deciding line: the statement that
keeps the other program from the ``Send``, or, if a program holds itself back, the condition around its
``Mark("block", worker=...)``.  The second half of this file finds such lines in the source.
"""

from __future__ import annotations

import ast
import linecache
import re
from bisect import bisect_left
from functools import lru_cache
from inspect import isgenerator
from typing import NamedTuple

from refsgd.display.player.listing import parsed, title
from refsgd.display.player.states import ENDED, Stand, States, called, follow, value_at
from refsgd.effects import Factory
from refsgd.runtimes.programs import LIBRARY
from refsgd.runtimes.world import World
from refsgd.trace import Polled, Received, Trace
from refsgd.trace.diagram import computed
from refsgd.trace.waiting import History, Message, Program, Stage

LONG = 60  #: longer values are shown by their keys only
#: a value that is a number, or numbers by name
NUMBERS = re.compile(r"(-?[\d.]+(e[-+]?\d+)?|inf)|\{(\w+: -?[\d.]+(, )?)*\}")

RECEIVING = ("Recv", "Poll", "recv")  #: effects, and a shard's sub-program
Branch = ast.If | ast.For | ast.While
Condition = tuple[int, tuple[str, ...]]  #: line, names on which it depends


class Reason(NamedTuple):
    """The reason for a wait."""

    text: str  #: follows "worker0 waits"
    held: bool = False  #: it ends when another program proceeds, not with a message on the wire or an update
    #: number of the file and line at which the awaited program holds the answer back, or is suspended
    place: tuple[int, int] | None = None


class Why:
    """Explains waits."""

    def __init__(self, trace: Trace, states: States) -> None:
        self.trace, self.states, self.events, self.history = trace, states, trace.events, History(trace)
        self.files = list(states.files)
        self.sources = ["".join(linecache.getlines(name)) for name in self.files]

    def sentence(self, node: str, program: int, k: int) -> str:
        """Why a program waits, or what it does, after k events."""
        reason = self.reason((node, program), k)
        said = f"waits{reason.text}" if reason else self._doing((node, program), k)
        return f"{called(node, program)} {said}"

    def reason(self, key: Program, k: int) -> Reason | None:
        """Why a program waits after k events; None if it does not wait."""
        stand, node = self.stand(key, k), key[0]
        if not stand.pending.kinds:
            return None
        if key[1]:
            return Reason(f" for {' or '.join(stand.pending.kinds)}")
        stage, marked = self.history.stage(key, stand.pending, k), self.history.held_itself(node, k)
        if stage.answer is not None:
            return Reason(f": {self._on_its_way(stage.answer, k, ' ')}")
        if marked is not None:
            place, values = self._decided(key, marked, key, k)
            return Reason(f": it holds itself back{values}{self._at(place)}", True, place)
        if stage.other is None or not (stand.pending.src or self.trace.is_worker(node)):
            kinds = " or ".join(stand.pending.kinds)
            return Reason(f": no {kinds} has arrived{self._meanwhile(key, k)}", True)
        if stage.request and self.history.taken.get(stage.request, k) >= k:
            return self._under_way(key, stage.request, k)
        return self._asked(key, stand, stage, k)

    def _under_way(self, key: Program, request: Message, k: int) -> Reason:
        """Why a program waits whose request has not been taken."""
        what, other = self._name(request), (request[1], 0)
        if self.history.transit(request).arrival > self._now(k):
            return Reason(f": its {what} is on the wire to {other[0]}")
        stand = self.stand(other, k)
        its_next = self.history.stage(other, stand.pending, k).answer if stand.pending.kinds else None
        said = "takes it next" if its_next == request else self._doing(other, k, (key[0],))
        return Reason(f": its {what} is in the inbox of {other[0]}, which {said}", _held(stand, said),
                      self._line(other, k))

    def _asked(self, key: Program, stand: Stand, stage: Stage, k: int) -> Reason:
        """Why a program waits for one other program, which has taken its request or got none."""
        assert stage.other is not None
        its, other, request = stage.other, stage.other[0], stage.request
        theirs, place = self.stand(its, k), self._line(its, k)
        has = (f"{other} has its {self._name(request)} and " if request
               else f"{other} has not sent {' or '.join(stand.pending.kinds)} yet: it ")
        marked = self.history.held(other, key[0], self.history.taken[request], k) if request else None
        if request and marked is not None and not theirs.says.endswith(f" to {key[0]}"):
            has = f"{other} holds the answer to {self._name(request)} back"
        elif not theirs.pending.kinds or not request or theirs.pending.src:
            said = self._doing(its, k, (key[0],))
            return Reason(f": {has}{said}{self._at(place)}", _held(theirs, said), place)
        else:
            has, marked = f"{has}does not answer yet", None
        decided, values = self._decided(its, marked, key, k)
        trigger, decided = self._trigger(stage.awaited, k), decided or place
        said = "" if trigger else self._meanwhile(key, k)
        # a handler passes it to its main program
        if its[1] and not trigger and self.stand((other, 0), k).says not in ENDED:
            said = f", while {other} {self._doing((other, 0), k, (key[0],))}"
        return Reason(f"{' for ' + trigger if trigger else ''}: {has}{values}{said}{self._at(decided)}",
                      True, decided)

    # -- what has happened ---------------------------------------------------------------------------------

    def _now(self, k: int) -> float:
        return self.events[k - 1].time if k else 0.0

    def stand(self, key: Program, k: int) -> Stand:
        """The position of a program after k events."""
        return value_at(self.states.stands.get(key, []), k) or Stand(-1, "")

    def _name(self, message: Message) -> str:
        return f"{self.history.send(message).message}#{message[2]}"

    def _on_its_way(self, message: Message, k: int, which: str) -> str:
        """A message that has been sent, and whether it has arrived."""
        there = "has arrived" if self.history.transit(message).arrival <= self._now(k) else "is on the wire"
        return f"{self._name(message)} of {message[0]}{which}{there}"

    def _trigger(self, answer: Message | None, k: int) -> str:
        """The message of another program that will release an answer, if it is known."""
        at = self.history.sent.get(answer, k) if answer else k
        own = self.history.of[self.events[at].node, self.events[at].program] if at > k else []
        later = [e for e in (self.events[i] for i in own[bisect_left(own, k):bisect_left(own, at)])
                 if isinstance(e, Received | Polled) and e.src]
        if not answer or not later or later[-1].src == answer[1]:
            return ""
        return f"{later[-1].message}#{later[-1].number} of {later[-1].src}"

    # -- what the others do --------------------------------------------------------------------------------

    def _doing(self, key: Program, k: int, waiting: tuple[str, ...] = ()) -> str:
        """What a program does; if it waits for another program, also what that one does."""
        stand = self.stand(key, k)
        if not stand.pending.kinds:
            verb, _, work = stand.says.partition(": ")
            if verb == "computes":
                return f"computes {computed(work)}"
            if stand.says in ENDED:
                return f"has {stand.says}"
            return re.sub(r"^(send|mark|choose)s\b", r"is about to \1", stand.says) or "has not begun"
        awaited, answer, _, other = self.history.stage(key, stand.pending, k)
        if answer is not None:
            return f"waits for {self._on_its_way(answer, k, ', which ')}"
        src, kinds = awaited[0] if awaited else stand.pending.src, " or ".join(stand.pending.kinds)
        if src is None or other is None or len(waiting) > 3:
            return f"waits for {kinds}" + (f" of {src}" if src else "")
        if src in waiting:
            return f"waits for {src}" + (": a cycle" if src == waiting[0] else "")
        return f"waits for {src}, which {self._doing(other, k, (*waiting, key[0]))}"

    def _meanwhile(self, key: Program, k: int) -> str:
        """What happens while a program waits."""
        stands = {other: self.stand(other, k) for other in self.states.stands if other != key}
        busy = [node for (node, _), stand in stands.items() if stand.says.startswith("computes")]
        if busy:
            some = " and ".join(busy) if len(busy) < 3 else f"{', '.join(busy[:2])} and {len(busy) - 2} more"
            return f", while {some} compute{'s' if len(busy) == 1 else ''}"
        for other, stand in stands.items():
            if not stand.pending.kinds and stand.says not in ENDED and stand.says:
                return f", while {other[0]} {self._doing(other, k)}"
            if stand.pending.kinds and (answer := self.history.stage(other, stand.pending, k).answer):
                return f", while {self._on_its_way(answer, k, f' to {answer[1]} ')}"
        return ", and no program can continue"

    # -- lines ---------------------------------------------------------------------------------------------

    def _line(self, key: Program, k: int) -> tuple[int, int] | None:
        """The position of a program: file and line of its innermost frame."""
        place = self.stand(key, k).place
        return self.states.places[place][-1] if place >= 0 else None

    def _at(self, place: tuple[int, int] | None) -> str:
        return f"; {title(self.files[place[0]]).rsplit('/', 1)[-1]}:{place[1]}" if place else ""

    def _decided(self, key: Program, marked: int | None, waiting: Program,
                 k: int) -> tuple[tuple[int, int] | None, str]:
        """The line at which a program holds another one back, and the values of its variables there."""
        at, there = self.stand(key, k).place, self._line(key, marked) if marked is not None else None
        for file, line in reversed(self.states.places[at]) if at >= 0 else ():
            found = None
            if key != waiting:
                found = between(self.sources[file], line, self.stand(waiting, k).pending.kinds)
            if found is None and there is not None and there[0] == file:
                found = around(self.sources[file], there[1], line)
            if found is not None:
                return (file, found[0]), self._values(key, found[1], bound(self.sources[file], line),
                                                      waiting[0], k, marked)
        return there, ""

    def _values(self, key: Program, names: tuple[str, ...], binds: frozenset[str], waiting: str, k: int,
                marked: int | None) -> str:
        """The values of a condition's variables; names bound by a Recv are read at the mark, if there is one,
        since they may already belong to the next message."""
        out: dict[str, str] = {}
        for name in dict.fromkeys(names):
            column = self.states.locals.get(key, {}).get(name, [])
            text = value_at(column, (marked if marked is not None else -1) if name in binds else k)
            number = text is not None and NUMBERS.fullmatch(text)
            fixed = len(column) < 3 and sum(value is not None for _, value in column) == 1
            if text is None or text == waiting or name.startswith("_") or (
                fixed and not number and name not in binds):
                continue
            keys = re.findall(r"(?:^\{|, )(\w+): ", text) if len(text) > LONG and not number else []
            out[name] = f"{{{', '.join(keys)}}}" if keys else text
        # named numbers are more useful than names alone
        if any(re.match(r"\{\w+: ", text) for text in out.values()):
            out = {name: text for name, text in out.items() if not re.fullmatch(r"\{\w+(, \w+)*\}", text)}
        return f" ({', '.join(f'{name} {text}' for name, text in out.items())})" if out else ""


def _held(stand: Stand, said: str) -> bool:
    """Whether what a program does ends neither with an update nor with a message that is on its way."""
    if stand.pending.kinds:
        return not said.endswith(("is on the wire", "has arrived", "takes it next"))
    return stand.pending.work == "gradient" or stand.says in ENDED


def deadlock(world: World, factory: Factory, error: Exception) -> str:
    """The deadlock of a world in a sentence for one program that waits, with a line of a user's file if one
    holds it back; the text of the error where the programs run elsewhere, or if it is no deadlock."""
    here = all(isgenerator(task.program) for task in world.all_tasks)
    if not here or not str(error).startswith("deadlock"):
        return str(error)
    trace, now = world.trace(), len(world.events)
    why, said = Why(trace, follow(trace, factory, 0, now)), list[tuple[bool, bool, str]]()
    for key in [(task.node, 0) for task in world.all_tasks if task.effect is not None and not task.index]:
        reason = why.reason(key, now)
        place = reason.place if reason else None
        at = "" if place else why._at(place := why._line(key, now))  # where it waits
        own = place is not None and not why.files[place[0]].startswith(LIBRARY)
        said.append((not own, bool(at), f"{why.sentence(*key, now)}{at if own else ''}"))
    return f"{str(error).partition(': ')[0]}: {min(said, key=lambda each: each[:2])[2]}"


@lru_cache(maxsize=4096)
def _chain(source: str, line: int) -> list[ast.stmt]:
    """The function and the statements around a line, outermost first; `pass` if the source is unreadable."""
    around = [s for s in ast.walk(parsed(source)) if isinstance(s, ast.stmt)
              and s.lineno <= line <= (s.end_lineno or s.lineno)]
    around.sort(key=lambda s: (s.lineno, -(s.end_lineno or s.lineno)))
    return around[max((i for i, s in enumerate(around) if isinstance(s, ast.FunctionDef)), default=0):] or [
        ast.Pass()]


@lru_cache(maxsize=4096)
def around(source: str, line: int, stands: int) -> Condition | None:
    """The innermost condition around a line."""
    function, *inside = _chain(source, line)
    return next((_condition(function, s) for s in reversed(inside)
                 if isinstance(s, Branch) and s.lineno < line
                 and (isinstance(s, ast.If) or not s.lineno <= stands <= (s.end_lineno or 0))), None)


@lru_cache(maxsize=4096)
def between(source: str, line: int, kinds: tuple[str, ...]) -> Condition | None:
    """The obstacle before the next Send: a loop to leave, a condition to leave by, or one that must hold."""
    function, *inside = _chain(source, line)
    sends = [n.lineno for n in ast.walk(function) if isinstance(n, ast.Call) and _called(n) == "Send"
             and len(n.args) > 1 and isinstance(n.args[1], ast.Call) and _called(n.args[1]) in kinds]
    for there in sorted(sends, key=lambda found: (found <= line, -found)):
        behind = _chain(source, there)[1:]
        leave = [s for s in inside if isinstance(s, ast.For | ast.While) and s not in behind]
        skip = [s for s in ast.walk(function) if isinstance(s, ast.If) and line < s.lineno
                and (s.end_lineno or s.lineno) < there
                and isinstance(s.body[-1], ast.Continue | ast.Break | ast.Return)]
        fulfil = [s for s in behind if isinstance(s, Branch) and s not in inside]
        if found := leave or skip or fulfil:
            return _condition(function, found[-1])
    return None


@lru_cache(maxsize=4096)
def bound(source: str, line: int) -> frozenset[str]:
    """The names that a function binds to received messages, or is about to bind."""
    chain = _chain(source, line)
    function, here = chain[0], chain[-1]
    binds = [s for s in ast.walk(function) if isinstance(s, ast.Assign)
             and any(isinstance(n, ast.Call) and _called(n) in RECEIVING for n in ast.walk(s.value))]
    return frozenset(n.id for s in [here, *binds] for n in _names(s) if isinstance(n.ctx, ast.Store)
                     and (s is not here or n.lineno == line))


def _condition(function: ast.stmt, s: Branch) -> Condition:
    """The line of a condition and the names in it: of a single name, those from which it was computed, and of
    a loop also those that it changes."""
    test = s.iter if isinstance(s, ast.For) else s.test
    if isinstance(test, ast.Name):
        made = [a for a in ast.walk(function) if isinstance(a, ast.Assign) and a.lineno < s.lineno
                and test.id in {n.id for t in a.targets for n in _names(t)}]
        if made:
            last = max(made, key=lambda a: a.lineno)
            return last.lineno, tuple(n.id for n in _names(last.value))
    changed = [n for n in ast.walk(s) if isinstance(n, ast.Subscript | ast.Attribute)
               and isinstance(n.value, ast.Name)] if isinstance(s, ast.For) else []
    return s.lineno, (*(n.id for n in _names(test)),
                      *(n.value.id for n in changed if isinstance(n.value, ast.Name)))


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _names(tree: ast.AST) -> list[ast.Name]:
    """The names in a syntax tree, in source order."""
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))
