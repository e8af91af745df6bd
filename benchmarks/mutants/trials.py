"""Trying mutants: pytest collects the tests once; each mutant is then tried in a fork of that process, which
has its functions changed in place.

A first pass notes which lines of the algorithms each test executes, and for how long it runs, so that only
tests which can notice a mutant are run.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby, zip_longest
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from _pytest.runner import runtestprotocol

from benchmarks.mutants.operators import FILES, ROOT, Mutant

MEMORY = 8 << 30  #: bytes of address space that a mutant may take


def in_forks(tasks: dict[Any, Callable[[Callable[[Any], None]], None]], jobs: int,
             folder: Path) -> Iterator[tuple[Any, Any, int]]:
    """Run each task in a fork of its own, and give the key, the last thing that it told, and how it ended
    (0: well)."""
    waiting, running = list(tasks), dict[int, Any]()
    while waiting or running:
        while waiting and len(running) < jobs:
            key = waiting.pop(0)
            if not (pid := os.fork()):
                perform(tasks[key], folder / str(os.getpid()))
            running[pid] = key
        pid, status = os.wait()
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what its tests have left running
        told = folder / str(pid)
        yield running.pop(pid), json.loads(told.read_text()) if told.exists() else None, status
        told.unlink(missing_ok=True)


def perform(task: Callable[[Callable[[Any], None]], None], told: Path) -> None:
    """The life of a fork, in a session of its own."""
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        task(lambda value: told.write_text(json.dumps(value, allow_nan=False), encoding="utf-8") and None)
        code = 0
    except BaseException:
        told.write_text(json.dumps(["", traceback.format_exc()], allow_nan=False), encoding="utf-8")
    finally:
        os._exit(code)


def install(file: str, text: bytes | ast.Module) -> ModuleType:
    """Give the functions, and the plain constants, of an imported file those of another text."""
    old = importlib.import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    new = ModuleType(old.__name__)
    vars(new)["_executed"] = id  # a function that runs while its file is imported is not counted
    exec(compile(text, str(old.__file__), "exec"), new.__dict__)
    for name, value in vars(new).items():
        if isinstance(value, type) and value.__module__ == old.__name__:
            for key, function in vars(value).items():
                transplant(vars(vars(old)[name]).get(key), function)
        elif isinstance(value, int | float) and value != vars(old)[name]:
            for module in [m for m in sys.modules.values() if vars(m).get(name) is vars(old)[name]]:
                setattr(module, name, value)
        elif isinstance(value, FunctionType) and value.__module__ == old.__name__:
            transplant(vars(old)[name], value)
    return old


def transplant(old: object, new: object) -> None:
    """The body and the defaults of a function, for all who have imported it."""
    if isinstance(new, FunctionType) and isinstance(old, FunctionType):
        before = old.__defaults__ or ()  # a function remains the one whose body is changed
        old.__defaults__ = tuple(a if isinstance(b, FunctionType) else b
                                 for a, b in zip(before, new.__defaults__ or (), strict=True)) or None
        old.__kwdefaults__ = new.__kwdefaults__
        if not new.__closure__:
            old.__code__ = new.__code__


def noting(node: ast.AST, file: str) -> ast.AST:
    """The node with a call of `_executed` before each statement of its functions."""
    for child in ast.iter_child_nodes(node):
        noting(child, file)
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list) and not isinstance(node, ast.Module | ast.ClassDef):
            notes = [
                ast.Expr(ast.Call(ast.Name("_executed", ast.Load()),
                                  [ast.Constant(f"{file}:{statement.lineno}")], [])) for statement in block]
            setattr(node, field,
                    [part for note, statement in zip(notes, block)
                     for part in (ast.copy_location(note, statement), statement)])
    return node


class Trials:
    """A pytest plugin that tries mutants with the tests which have been collected, instead of running
    these."""

    def __init__(self, mutants: list[Mutant], jobs: int, seconds: float, known: Path, folder: Path,
                 tell: Callable[[Mutant, str, str], None]) -> None:
        self.mutants, self.jobs, self.seconds, self.known, self.folder, self.tell = (
            mutants, jobs, seconds, known, folder, tell)

    def pytest_runtestloop(self, session: Any) -> bool:
        """All of it."""
        map_ = self.map(session.items)
        tests = {item.nodeid: item for item in session.items}
        tasks = {
            mutant: self.attempt(mutant,
                                 [(tests[name], seconds) for name, seconds in self.concerned(mutant, map_)])
                                 for mutant in self.mutants}
        for mutant, told, status in in_forks(tasks, self.jobs, self.folder):
            test, how = told or ["", ""]
            self.tell(mutant, test, how if not status else "time limit" if status == signal.SIGALRM else how
                      or "crash")
        return True

    def map(self, items: list[Any]) -> dict[str, tuple[float, list[str]]]:
        """Seconds and executed lines of each test; files that are as before are not run again while all
        statements stand in their lines."""
        places = [f"{file}:{n.lineno}" for file in FILES
                  for n in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(n, ast.stmt)]
        known = json.loads(self.known.read_text()) if self.known.exists() else {}
        of, tasks = {}, {}
        for path, group in groupby(items, key=lambda item: item.path):
            of[path] = hashlib.sha256(repr(places).encode() + path.read_bytes()).hexdigest()
            if of[path] not in known:
                tasks[path] = self.baseline(list(group))
        for path, told, status in in_forks(tasks, self.jobs, self.folder):
            if not isinstance(told, dict):
                raise RuntimeError(f"{path} ended with {status}: {told}")
            print(f"{path.relative_to(ROOT)}: {len(told)} tests mapped", file=sys.stderr, flush=True)
            known[of[path]] = told
            self.known.write_text(json.dumps(known, allow_nan=False))
        return {name: entry for digest in of.values() for name, entry in known[digest].items() if entry}

    def baseline(self, items: list[Any]) -> Callable[[Callable[[Any], None]], None]:
        """The task of running tests on the algorithms as they are; a test that fails counts for nothing."""
        def task(told: Callable[[Any], None]) -> None:
            lines, found = set[str](), dict[str, Any]()
            for file in FILES:
                tree = ast.fix_missing_locations(noting(ast.parse((ROOT / file).read_text()), file))
                vars(install(file, tree))["_executed"] = lines.add
            for item, following in zip_longest(items, items[1:]):
                lines.clear()
                began = time.perf_counter()
                passed = not any(report.failed
                                 for report in runtestprotocol(item, nextitem=following, log=False))
                found[item.nodeid] = [time.perf_counter() - began, sorted(lines)] if passed else None
            told(found)
        return task

    def concerned(self, mutant: Mutant, map_: dict[str, tuple[float, list[str]]]) -> list[tuple[str, float]]:
        """Tests that execute the mutant's statement, the quickest first; then those that execute its
        file; `seconds` of them."""
        rated = []
        for name, (seconds, lines) in map_.items():
            # signatures are looked at without a call
            if any(line.startswith(f"{mutant.file}:") for line in lines) or not (lines or mutant.statement):
                rated.append((f"{mutant.file}:{mutant.statement}" not in lines, seconds, name))
        chosen, spent = [], 0.0
        for _, seconds, name in sorted(rated):
            if spent + seconds <= self.seconds:
                chosen.append((name, seconds))
                spent += seconds
        return chosen

    def attempt(self, mutant: Mutant,
                items: list[tuple[Any, float]]) -> Callable[[Callable[[Any], None]], None]:
        """The task of running tests on a mutant until one fails."""
        def task(told: Callable[[Any], None]) -> None:
            told(["", "not importable"])
            try:
                install(mutant.file, mutant.text())
            except Exception:
                return
            for (item, seconds), following in zip_longest(items, items[1:]):
                told([item.nodeid, "crash"])
                signal.alarm(30 + int(20 * seconds))
                if any(report.failed
                       for report in runtestprotocol(item, nextitem=following and following[0], log=False)):
                    return told([item.nodeid, "failed"])
            signal.alarm(0)
            told([f"{len(items)} tests", "survived"])
        return task
