"""The process of a submission: it runs the programs of its nodes and reports their effects.

Each node is a function from the answers that its programs have received to the effects that they yield, so it
runs apart from the others, as in a process of its own, and is run again from the start when the judge goes
back to an earlier state.  Nothing here decides about points: a submission shares this interpreter, and can
only spoil its own report.
"""

from __future__ import annotations

import ast
import base64
import builtins
import contextlib
import gc
import inspect
import json
import math
import os
import pickle
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import refsgd
from refsgd import effects
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD
from refsgd.display.player.why import deadlock
from refsgd.effects import Array, Compute, Deployment, RunEnded, _Built
from refsgd.experiment.arguments import Usage, check_deployment
from refsgd.experiment.functions import imported
from refsgd.grader import plain
from refsgd.problems import Problem
from refsgd.problems.layers import equal
from refsgd.runtimes import programs
from refsgd.runtimes.explorer import follow
from refsgd.runtimes.world import Stuck
from refsgd.testing.comparison import squares

MEMORY = 1 << 30  #: bytes of a submission's address space
OUTPUT = 16 << 20  #: bytes of any file that it writes, its standard output included
MANY = 1000  #: effects of one report
SHOWN = 1 << 20  #: most characters of a page of the step player
#: what a submission may not do, by the names of Python's audit events
REFUSED = re.compile(r"os\.(fork|forkpty|posix_spawn|spawn|exec|system|kill|killpg)$"
                     r"|(subprocess|socket|ctypes|shutil|tempfile|sqlite3)\.|gc\.get_"
                     r"|os\.(chdir|remove|rename|rmdir|mkdir|truncate|link|symlink)$"
                     r"|os\.(chmod|chown|utime|setxattr)$")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


# -- limits ------------------------------------------------------------------------------------------------


def imports_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each module, or name in a module, that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def forbid(path: str, modules: Sequence[str]) -> list[str]:
    """Refuse a file that imports one of these modules, and forget them; the places of their sources."""
    def within(name: str) -> bool:
        return any(name == module or name.startswith(module + ".") for module in modules)

    for line, name in imports_of(ast.parse(Path(path).read_bytes(), path)):
        if within(name):
            raise Usage(f"{Path(path).name}:{line} imports {name}, which this homework forbids")
    places = []
    for name in [name for name in sys.modules if within(name)]:
        gone, sys.modules[name] = sys.modules[name], None  # type: ignore[assignment]
        places += [file for file in [getattr(gone, "__file__", None)] if file]
        for module in [m for m in sys.modules.values() if isinstance(m, ModuleType)]:
            for key in [key for key, value in vars(module).items() if value is gone
                        or (within(getattr(value, "__module__", None) or "") and module is not gone)]:
                delattr(module, key)
    for algorithm, function in CATALOGUE.items():
        if within(function.__module__):
            CATALOGUE[algorithm] = _refusing(algorithm, inspect.signature(function))
    gc.collect()
    return places


def _refusing(algorithm: str, takes: inspect.Signature) -> Callable[..., Any]:
    """What stands for an algorithm that may not be called, with its name and its options."""
    def refuse(*_: Any, **__: Any) -> Any:
        raise Usage(f"calls {algorithm} of the catalogue, which this homework forbids")

    refuse.__name__, refuse.__signature__ = algorithm, takes  # type: ignore[attr-defined]
    return refuse


def limit(seconds: float, folder: str, hidden: Sequence[str]) -> None:
    """Limits of this process, where the system has them: no other processes, no connections, no files
    written, and none read but those of its folder and of the library, without the hidden ones.

    Processor time is that of the submission: what this process has used until now is no part of it.
    """
    with contextlib.suppress(ImportError):
        import resource

        processor = math.ceil(time.process_time() + seconds)
        for kind, soft, hard in ((resource.RLIMIT_AS, MEMORY, MEMORY), (resource.RLIMIT_CORE, 0, 0),
                                 (resource.RLIMIT_FSIZE, OUTPUT, OUTPUT),
                                 (resource.RLIMIT_CPU, processor, processor + 1)):
            with contextlib.suppress(ValueError, OSError, OverflowError):
                resource.setrlimit(kind, (soft, hard))
    sys.dont_write_bytecode = True
    shut = {os.path.realpath(path) for place in hidden for path in (place, cache_from_source(place))}
    roots = {os.path.realpath(root) for root in (
        folder, os.path.dirname(refsgd.__file__), sys.prefix, sys.base_prefix, os.path.dirname(np.__file__),
        os.path.dirname(os.__file__), sys.pycache_prefix or folder)}

    def hook(event: str, arguments: Any) -> None:
        if event == "open":
            path, _, flags = arguments
            if type(path) is int:
                return
            if type(path) not in (str, bytes):  # it could name another path when it is opened
                raise PermissionError(f"a path of type {type(path).__name__}; expected text")
            place = os.path.realpath(os.fsdecode(path))
            if isinstance(flags, int) and flags & WRITES:
                raise PermissionError(f"{place} is opened to be written; a submission may write no files")
            if os.path.isdir(place):  # relative to which others could be opened
                raise PermissionError(f"{place} is a folder; a submission opens files only")
            if place in shut or not any(place.startswith(root + os.sep) for root in roots):
                raise PermissionError(f"{place} may not be read by a submission")
        elif REFUSED.match(event):
            raise PermissionError(f"{event}: a submission may start no processes, open no connections and "
                                  "change neither files nor the working folder")

    sys.addaudithook(hook)


# -- the submission ----------------------------------------------------------------------------------------


class Live:
    """The running programs of one node, and for each the answer that only this process knows."""

    def __init__(self, name: str, node: Any) -> None:
        self.name, self.programs = name, [node.main, *node.handlers]
        self.cells = {id(cell): i for i, cell in enumerate(node.cells)}
        self.own: dict[int, Any] = {}


class Executor:
    """Answers the judge's requests, one after the other."""

    def __init__(self, function: Callable[..., Deployment], ask: Callable[..., Any]) -> None:
        self._function, self._ask = function, ask
        self._make: dict[int, Callable[[], Deployment]] = {}
        self._problem: dict[int, Problem] = {}
        self._came: dict[int, tuple[int, int, Any]] = {}  # the state before, the program, and its answer
        self._live: dict[int, Live] = {}
        self._kept: list[Any] = []
        self._classes: dict[tuple[str, tuple[str, ...]], type] = {}

    # -- values --------------------------------------------------------------------------------------------

    def _keep(self, value: Any) -> list[int]:
        self._kept.append(value)
        return [len(self._kept) - 1, int(getattr(value, "nbytes", 0))]

    def say(self, value: Any) -> Any:
        """A value for the judge."""
        self._learn(value)
        return plain.encode(value, self._keep)

    def _learn(self, value: Any) -> None:
        """Remember the classes of messages, which come back by name."""
        if isinstance(value, tuple | list):
            if hasattr(value, "_fields"):
                self._class(type(value))
            for item in value:
                self._learn(item)

    def _class(self, kind: type) -> list[Any]:
        fields = tuple(getattr(kind, "_fields", ()))
        self._classes[kind.__qualname__, fields] = kind
        return [kind.__qualname__, list(fields)]

    def hear(self, said: Any) -> Any:
        """A value from the judge."""
        return plain.decode(said, lambda name, fields: self._classes.get((name, fields))
                            or plain.message_class(name, fields), lambda number, _: self._kept[number])

    # -- requests ------------------------------------------------------------------------------------------

    def deploy(self, key: int, x0: Any, images: list[list[int]], about: dict[str, Any], workers: int,
               steps: int, rule: list[Any], options: Any) -> Any:
        """The nodes of a deployment, whose programs have not begun."""
        x0, options = self.hear(x0), self.hear(options)

        def gradient(x: Array, rank: int, t: int) -> Array:
            g: Array = self.hear(self._ask("gradient", self.say(x), int(rank), int(t)))
            return g

        def share(rank: int, t: int) -> int:
            return images[rank % len(images)][t % len(images[0])]

        problem = Problem(x0, gradient, lambda x: 0.0, layers=equal(x0.size, gradient), images=share)
        if about.get("squares"):
            problem = replace(problem, chain=squares(x0.size).chain)
        if about.get("exchange"):
            problem = replace(problem, exchange=pickle.loads(base64.b64decode(about["exchange"])))
        lr, momentum, decay, factors = rule
        sgd = SGD(lr, momentum, decay)
        if factors is not None:
            sgd = replace(sgd, schedule=lambda t: factors[min(t, len(factors) - 1)])
        self._problem[key] = problem
        self._make[key] = lambda: check_deployment(
            self._function.__name__, self._function(problem, workers, steps, sgd, **options))
        cells = dict[int, int]()
        found = []
        for name, node in self._make[key]().items():
            shared = [[cells.setdefault(id(cell), len(cells)), self.say(cell.x), len(cell.cut)]
                      for cell in node.cells]
            called = [str(getattr(p, "__name__", "program")) for p in (node.main, *node.handlers)]
            found.append([str(name), node.role, node.rank, node.host, bool(node.survives),
                          int(node.priority), called, shared])
        return found

    def run(self, key: int, node: str, before: int, after: int, program: int, answer: Any) -> list[Any]:
        """The effects of a node's program after one more answer, until it needs another."""
        live = self._live.pop(before, None) or self._again(key, node, before)
        reports = self._advance(live, program, answer, key)
        self._came[after] = before, program, answer
        if len(self._live) > 200:
            self._live.clear()
        self._live[after] = live
        return reports

    def _again(self, key: int, node: str, state: int) -> Live:
        """The node in an earlier state: its programs run from the start."""
        path = []
        while state in self._came:
            state, program, answer = self._came[state]
            path.append((program, answer))
        live = Live(node, self._make[key]()[node])
        for program, answer in reversed(path):
            self._advance(live, program, answer, key)
        return live

    def _advance(self, live: Live, i: int, answer: Any, key: int) -> list[Any]:
        program, reports, ended = live.programs[i], list[Any](), answer == {"end": []}
        value: Any = live.own.pop(i) if i in live.own else None if ended else self.hear(answer)
        while True:
            built = _Built.count
            try:
                effect = program.throw(RunEnded()) if ended else program.send(value)
                ended = False
            except StopIteration as stop:
                if _Built.count > built:
                    reports.append(_raised(programs.forgotten(live.name, program, built, 0), None))
                else:
                    reports.append(["return", self.say(stop.value)])
                return reports
            except RunEnded:
                return [*reports, ["ended"]]
            except Exception as error:
                return [*reports, _raised(error, None)]
            if _Built.count > built + 1:
                return [*reports, _raised(programs.forgotten(live.name, program, built, 1), None)]
            try:
                report, answered, value = self._report(live, program, effect, key)
            except Exception as error:
                return [*reports, _raised(error, f"in {programs.describe(effect)} of {live.name}, yielded at "
                                                 f"{programs.line_of(program)}")]
            reports.append([programs.line_of(program), *report])
            if not answered or len(live.programs) > 1 or len(reports) == MANY:
                if answered:
                    live.own[i] = value
                return reports

    def _report(self, live: Live, program: Any, effect: Any, key: int) -> tuple[list[Any], bool, Any]:
        """The effect in plain values; whether its answer is known here, and the answer."""
        kind = type(effect)
        if kind is Compute:
            programs.freeze(effect.args)
            piece = list(effect.piece) if effect.piece is not None else None
            if effect.fn is self._problem[key].gradient and len(effect.args) == 3:
                x, rank, t = effect.args
                return ["gradient", effect.kind, piece, self.say(x), int(rank), int(t)], False, None
            return ["compute", effect.kind, piece], True, effect.fn(*effect.args)
        if kind is effects.Send:
            if not hasattr(effect.body, "_fields"):
                raise programs.no_message(live.name, program, effect.body)
            programs.freeze(effect.body)
            return ["send", effect.to, self.say(effect.body)], True, None
        if kind is effects.Recv or kind is effects.Poll:
            kinds = [self._class(each) for each in effect.kinds]
            return [kind.__name__.lower(), kinds, effect.src], False, None
        if kind is effects.Mark:
            programs.freeze(effect.values.values())
            return ["mark", effect.name, self.say(dict(effect.values))], True, None
        if kind is effects.Choose:
            p = [float(each) for each in effect.p] if effect.p is not None else None
            return ["choose", self.say(list(effect.options)), p], False, None
        if kind is effects.Load:
            return ["load", live.cells[id(effect.cell)], int(effect.part)], False, None
        if kind is effects.Add:
            programs.freeze((effect.delta,))
            return ["add", live.cells[id(effect.cell)], int(effect.part), self.say(effect.delta),
                    bool(effect.atomic)], False, None
        raise programs.no_effect(live.name, program, effect)

    def show(self, key: int, schedule: list[int], name: str, page: bool) -> list[str]:
        """Why no program can continue at the end of a schedule, and the schedule in the step player."""
        world, error = follow(self._make[key], schedule)
        html = ""
        if page and world.events:
            from refsgd.display.player import player_html

            html = player_html(world.trace(), self._make[key], name=name, unit="steps", at_end=True,
                               limit=len(world.events))
        why = deadlock(world, self._make[key], error) if isinstance(error, Stuck) else ""
        return [why, html if len(html) < SHOWN else ""]


def _raised(error: Exception, note: str | None) -> list[Any]:
    """An error of a program, with the innermost line of it."""
    if note is not None:
        error.add_note(note)
    place = ""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_flags & inspect.CO_GENERATOR:
            code = trace.tb_frame.f_code
            place = f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return ["raise", type(error).__name__, str(error)[:2000],
            [str(each)[:500] for each in getattr(error, "__notes__", ())][:5], place]


# -- the process -------------------------------------------------------------------------------------------


def main() -> None:
    """Serve the judge over the two descriptors of the command line, until it closes them."""
    requests, replies = (os.fdopen(int(fd), mode) for fd, mode in zip(sys.argv[1:3], ("rb", "wb")))

    def tell(value: Any) -> None:
        replies.write(plain.dumps(value))
        replies.flush()

    def ask(*what: Any) -> Any:
        tell({"ask": what})
        answer = json.loads(requests.readline())
        if "error" in answer:
            raise getattr(builtins, answer["error"][0], RuntimeError)(answer["error"][1])
        return answer["answer"]

    begin = json.loads(requests.readline())
    try:
        hidden = forbid(begin["path"], begin["forbid"]) if begin["forbid"] else []
        limit(begin["seconds"], str(Path(begin["path"]).resolve().parent), hidden)
        function = imported(f"{begin['path']}:{begin['function']}")
        if not callable(function):
            raise Usage(f"{begin['function']} is of type {type(function).__name__}; expected a deployment "
                        "function")
        serves = Executor(function, ask)
        takes = [[p.name, p.kind.name, p.default is not p.empty,
                  serves.say(p.default if p.default is not p.empty else None)]
                 for p in inspect.signature(function).parameters.values()]
        first = getattr(getattr(function, "__code__", None), "co_firstlineno", 0)
        tell({"loaded": [str(getattr(function, "__name__", "algorithm")), first, takes]})
    except MemoryError:
        tell({"failed": "takes more than 1 GiB of memory"})
        return
    except (Usage, SyntaxError, ImportError) as error:
        tell({"failed": str(error)})
        return
    while line := requests.readline():
        name, *what = json.loads(line)
        try:
            tell({"done": getattr(serves, name)(*what)})
        except Exception as error:
            tell({"error": _raised(error, None)})


if __name__ == "__main__":
    main()
    os._exit(0)  # whatever threads or exit functions the submission has left
