"""The judge's side: a deployment function whose programs run in the process of a submission.

`Submission` is called as any deployment function.  Its programs answer from what the process has reported
before, or ask it: what a node yields depends on the answers that its programs have received, so each report
is made once and kept.  Every report is checked: in the worst case a submission loses its points.
"""

from __future__ import annotations

import base64
import builtins
import contextlib
import inspect
import pickle
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from refsgd import effects
from refsgd.algorithms import parts
from refsgd.algorithms.pipeline import stages
from refsgd.algorithms.sgd import SGD, constant
from refsgd.effects import Cell, Compute, Deployment, Died, Node, Piece, RunEnded
from refsgd.grader import plain
from refsgd.grader.process import Gone, Process
from refsgd.problems import Problem
from refsgd.runtimes.programs import ForgottenYield

JUDGED = 5  #: seconds of processor time of all checks for each that the submission may take
MOST = 10_000  #: parts of a cell
RATES = 1000  #: updates for which a schedule of the rate is told
#: classes of the library that the checks know by their type
KNOWN = {(kind.__qualname__, kind._fields): kind
         for kind in [Died, *vars(parts).values(), *vars(stages).values()]
         if isinstance(kind, type) and hasattr(kind, "_fields")}


def named(name: str, fields: tuple[str, ...]) -> Any:
    """The class of a message."""
    return KNOWN.get((name, fields)) or plain.message_class(name, fields)


def heard(said: Any) -> Any:
    """A value from the submission."""
    return plain.decode(said, named, plain.Kept)


def _kept(value: Any) -> list[int]:
    raise TypeError(f"a value of type {type(value).__name__} cannot cross; expected numbers, texts, arrays")


def told(value: Any) -> Any:
    """A value for the submission."""
    return plain.encode(value, _kept)


@cache
def _error(name: str) -> type[Exception]:
    """The class of an error of the submission."""
    found = getattr(builtins, name, None)
    if name == "ForgottenYield":
        return ForgottenYield
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    return type(name if name.isidentifier() else "Error", (Exception,), {})


def _as_error(report: Sequence[Any]) -> Exception:
    """The error that a report describes."""
    _, name, text, notes, place = report
    try:
        error = _error(str(name)[:200])(str(text)[:2000])
    except Exception:  # an error that takes other arguments
        error = RuntimeError(f"{name}: {text}"[:2000])
    for note in [*notes[:5], *([f"raised at {place}"] if place else [])]:
        error.add_note(str(note)[:500])
    return error


class State:
    """What a node reports in one state, and the states that follow from further answers."""

    __slots__ = ("asked", "number", "reports", "then")

    def __init__(self, number: int, reports: list[Any], asked: list[tuple[tuple[Any, ...], bytes]]) -> None:
        self.number, self.reports, self.asked = number, reports, asked
        self.then: dict[bytes, list[State]] = {}


class Remote(Generator[Any, Any, Any]):
    """One program of a node, as the engine sees it."""

    def __init__(self, place: Place, index: int, name: str) -> None:
        self.__name__ = name
        self._place, self._index = place, index
        self.line = f"the beginning of {name}"  #: where it stands, for errors
        self._kind = "start"

    def send(self, value: Any) -> Any:
        """The next effect."""
        return self._next(None if self._kind in ("start", "compute", "send", "mark", "add") else told(value))

    def throw(self, error: Any, *_: Any) -> Any:
        """The next effect after `RunEnded`."""
        return self._next({"end": []})

    def close(self) -> None:
        """Nothing is left to end here."""

    def _next(self, answer: Any) -> Any:
        report = self._place.report(self._index, answer)
        if report[0] == "raise":
            raise _as_error(report)
        if report[0] == "ended":
            raise RunEnded
        if report[0] == "return":
            raise StopIteration(heard(report[1]))
        self.line, self._kind, *what = report
        return self._place.effect(self._kind, what)


class Place:
    """A node of one run: where it is among the states that are known."""

    def __init__(self, submission: Submission, key: int, node: str, state: State, problem: Problem,
                 cells: Sequence[Cell]) -> None:
        self._submission, self._key, self._node, self._state = submission, key, node, state
        self._problem, self._cells = problem, cells
        self._left = deque[Any]()

    def report(self, program: int, answer: Any) -> Any:
        """The report that follows an answer."""
        if not self._left:
            self._state = self._submission.follow(self._key, self._node, self._state, program, answer,
                                                  self._problem)
            self._left.extend(self._state.reports)
        return self._left.popleft()

    def effect(self, kind: str, what: list[Any]) -> Any:
        """The effect that a report describes."""
        if kind == "gradient":
            price, piece, x, rank, t = what
            return Compute(self._problem.gradient, heard(x), rank, t, kind=str(price), piece=_piece(piece))
        if kind == "compute":
            return Compute(_done, kind=str(what[0]), piece=_piece(what[1]))
        if kind == "send":
            return effects.Send(str(what[0]), heard(what[1]))
        if kind in ("recv", "poll"):
            kinds = [named(name, tuple(fields)) for name, fields in what[0]]
            return (effects.Recv if kind == "recv" else effects.Poll)(*kinds, src=what[1])
        if kind == "mark":
            return effects.Mark(str(what[0]), **heard(what[1]))
        if kind == "choose":
            return effects.Choose(heard(what[0]), what[1])
        if kind == "load":
            return effects.Load(self._cells[what[0]], what[1])
        return effects.Add(self._cells[what[0]], what[1], heard(what[2]), bool(what[3]))


def _done(*_: Any) -> None:
    """What the submission has computed itself."""


def _piece(said: Any) -> Piece | None:
    return None if said is None else Piece(*said)


class Submission:
    """A deployment function of a file in a process of its own, which may use neither the forbidden modules
    nor more seconds of processor time than `refsgd.grader.process` allows."""

    def __init__(self, path: str, function: str, forbidden: Sequence[str], seconds: float) -> None:
        self.path, self._key, self._numbers = path, 0, 0
        self._known: dict[bytes, tuple[int, Any]] = {}
        self._roots: dict[tuple[int, str], State] = {}
        self._afresh, self._left_out = 0, set[str]()
        self.process, self._until = Process(seconds), time.process_time() + JUDGED * seconds
        self._begin = {"path": path, "function": function, "forbid": list(forbidden), "seconds": seconds}

    # -- its life ------------------------------------------------------------------------------------------

    def load(self) -> str:
        """Import the file; why it cannot be, or empty."""
        self.process.write(self._begin)
        found = self.process.read()
        if "failed" in found:
            return str(found["failed"])
        try:
            name, self.first, takes = found["loaded"]
            self.__name__ = str(name)
            kinds = {kind.name: kind for kind in inspect._ParameterKind}
            self.__signature__ = inspect.Signature([inspect.Parameter(
                name, kinds[kind], default=heard(default) if given else inspect.Parameter.empty)
                for name, kind, given, default in takes])
        except Exception as error:  # whatever a report can do
            raise self.process.garbage(error) from None
        own = [p for p in self.__signature__.parameters.values() if p.kind is p.KEYWORD_ONLY]
        self.__kwdefaults__ = {p.name: p.default for p in own if p.default is not p.empty}
        self.__annotations__ = {p.name: type(p.default) for p in own if p.default is not p.empty}
        return ""

    def without(self, options: Mapping[str, Any]) -> None:
        """Accept options of the algorithm that it should be, and leave out those that it does not have."""
        own = self.__signature__.parameters
        missing = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
                   for name, value in options.items() if name not in own]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in own.values())
        self._left_out = set() if takes_any else {p.name for p in missing}
        self.__signature__ = inspect.Signature(sorted([*own.values(), *missing], key=lambda p: p.kind))

    def forget(self) -> None:
        """Ask again from now on: what is reported twice must be the same twice."""
        self._afresh += 1

    # -- a deployment function -----------------------------------------------------------------------------

    def __call__(self, problem: Problem, workers: int, steps: int, sgd: SGD, **options: Any) -> Deployment:
        """The nodes of a deployment, whose programs run in the submission's process."""
        images = [[problem.images(i, t) for t in range(max(steps, 1))] for i in range(max(workers, 1))]
        exchange = base64.b64encode(pickle.dumps(problem.exchange)).decode() if problem.exchange else ""
        about = {"squares": problem.describe.get("net") == "squares", "exchange": exchange}
        rule = [sgd.lr, sgd.momentum, sgd.weight_decay,
                None if sgd.schedule is constant else [sgd.schedule(t) for t in range(RATES)]]
        options = {name: value for name, value in options.items() if name not in self._left_out}
        what = [told(problem.x0), images, about, workers, steps, rule, told(options)]
        text = plain.dumps([self._afresh, what])
        if text not in self._known:
            key = len(self._known)
            self._known[text] = key, self._ask(problem, "deploy", key, *what)
        self._key, nodes = self._known[text]
        try:
            return self._nodes(self._key, nodes, problem)
        except Exception as error:
            raise self.process.garbage(error) from None

    def _nodes(self, key: int, said: Any, problem: Problem) -> Deployment:
        found, cells = dict[str, Node](), dict[int, Cell]()
        for name, role, rank, host, survives, priority, programs, shared in said:
            for number, x, count in shared:
                if number not in cells:
                    if not 0 < count <= MOST:
                        raise ValueError(f"a cell of {count} parts; expected at most {MOST}")
                    cells[number] = Cell(heard(x), count)
            own = [cells[number] for number, _, _ in shared]
            root = self._roots.setdefault((key, name), State(self._number(), [], []))
            place = Place(self, key, name, root, problem, own)
            main, *handlers = (Remote(place, i, str(program)) for i, program in enumerate(programs))
            found[name] = Node(main, handlers, role, rank, host, survives, own, priority)
        return found

    def follow(self, key: int, node: str, state: State, program: int, answer: Any, problem: Problem) -> State:
        """The state after one more answer to one of a node's programs."""
        if time.process_time() > self._until:
            raise Gone(f"was still running after {JUDGED * self.process.seconds:g} s of checks; expected "
                       "programs that end: do they send or poll without end?")
        text = plain.dumps([program, answer])
        for known in state.then.get(text, ()):
            if all(plain.dumps(self._answer(problem, what)) == said for what, said in known.asked):
                return known
        asked = list[tuple[tuple[Any, ...], bytes]]()
        number = self._number()
        reports = self._ask(problem, "run", key, node, state.number, number, program, answer, asked=asked)
        if not isinstance(reports, list) or not reports:
            raise self.process.garbage(TypeError(f"a report of type {type(reports).__name__}"))
        found = State(number, reports, asked)
        state.then.setdefault(text, []).append(found)
        return found

    def show(self, schedule: Sequence[int], name: str, page: bool) -> tuple[str, str]:
        """Why no program of the newest deployment can continue at the end of a schedule, and a page that
        shows it: the submission's own words."""
        with contextlib.suppress(Exception):
            why, html = self._ask(None, "show", self._key, list(schedule), name, page)
            return str(why)[:400], str(html)
        return "", ""

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- requests ------------------------------------------------------------------------------------------

    def _ask(self, problem: Problem | None, *what: Any,
             asked: list[tuple[tuple[Any, ...], bytes]] | None = None) -> Any:
        """The answer to a request, during which the submission may ask for gradients."""
        self.process.write(what)
        while True:
            found = self.process.read()
            if "done" in found:
                return found["done"]
            if "error" in found:
                try:
                    error = _as_error(found["error"])
                except Exception as wrong:
                    raise self.process.garbage(wrong) from None
                raise error
            if "ask" not in found:
                raise self.process.garbage(ValueError("neither an answer nor a question"))
            answer = self._answer(problem, found["ask"])
            if asked is not None:
                asked.append((tuple(found["ask"]), plain.dumps(answer)))
            self.process.write(answer)

    def _answer(self, problem: Problem | None, what: Sequence[Any]) -> dict[str, Any]:
        """A gradient for the submission."""
        try:
            _, x, rank, t = what
            if problem is None:  # only shown, not judged
                return {"answer": told(np.zeros_like(heard(x)))}
            return {"answer": told(problem.gradient(heard(x), rank, t))}
        except Exception as error:
            return {"error": [type(error).__name__, str(error)]}
