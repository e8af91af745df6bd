"""The small programs of an algorithm's page: run as they stand, and again with a line of the algorithm
changed.

A page gives a change as a diff and an experiment as Python::

    @@ server
    - if clock[w] > slowest + staleness:
    + if clock[w] > slowest + staleness + 1:

    explore(lambda: ssp.ssp(...), bound)

`changed` imports the algorithms afresh with that text, so that every module that uses the changed one sees
it, and puts everything back afterwards.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import linecache
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
ALGORITHMS = ROOT / "refsgd" / "algorithms"
PACKAGES = ("refsgd.algorithms", "refsgd.collectives")
WIDTH = 90  #: columns that a page shows of a listing

#: where the names come from that an experiment may use without importing them
NAMES = {
    "np": "import numpy as np",
    "SGD": "from refsgd.algorithms.sgd import SGD",
    "Machine": "from refsgd.cluster.machine import Machine",
    "Problem": "from refsgd.problems import Problem",
    "quadratic": "from refsgd.problems import quadratic",
    "generated": "from refsgd.problems.regression import generated",
    "sparse": "from refsgd.problems.regression import sparse",
    "bandit": "from refsgd.problems.bandit import bandit",
    "integer_gradients": "from refsgd.problems import integer_gradients",
    "final_parameters": "from refsgd.experiment.result import final_parameters",
    "parameters_sha256": "from refsgd.experiment.result import parameters_sha256",
    "explore": "from refsgd.runtimes.explorer import explore",
    "walk": "from refsgd.runtimes.explorer import walk",
    "Simulator": "from refsgd.runtimes.simulator import Simulator",
    "simulate": "from refsgd.runtimes.simulator import simulate",
    "Computed": "from refsgd.trace import Computed",
    "Sent": "from refsgd.trace import Sent",
    "ledger": "from refsgd.testing import ledger",
    "server_lead": "from refsgd.testing import server_lead",
    "predict": "from refsgd import predict",
    "run": "from refsgd import run",
    "compare": "from refsgd import compare",
    "theory": "from refsgd import theory",
    "graphs": "from refsgd import graphs",
    "metropolis": "from refsgd.algorithms.gossip.graphs import metropolis",
}
#: errors that say that an experiment is mistaken, not that an algorithm is
MISTAKES = (NameError, SyntaxError, ImportError, AttributeError, TypeError)


class Hunk(NamedTuple):
    """Lines of one function that are replaced by others; without indentation."""

    function: str  # "" for anywhere in the file
    old: tuple[str, ...]
    new: tuple[str, ...]


class Source(NamedTuple):
    """A module of the library that pages quote."""

    name: str  # "ssp", "collectives.ring"
    path: Path
    lines: tuple[str, ...]

    def within(self, function: str) -> range:
        """Line numbers, from 0, of a function or class, by its name; of all the file for ""."""
        if not function:
            return range(len(self.lines))
        found = [n for n in ast.walk(ast.parse("".join(self.lines)))
                 if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == function]
        if len(found) != 1:
            raise ValueError(
                f"{self.name}: {len(found)} functions or classes are named {function!r}; expected 1")
        return range(found[0].lineno - 1, found[0].end_lineno or 0)

    def find(self, old: Sequence[str], function: str = "") -> int:
        """Number, from 0, of the first of these consecutive lines; raises ValueError where they are not
        there exactly once."""
        where = self.within(function)
        bare = [line.strip() for line in self.lines]
        hits = [i for i in where if bare[i:i + len(old)] == list(old)]
        if len(hits) != 1:
            place = f"{self.name}.{function}" if function else self.name
            raise ValueError(
                f"{place}: {len(hits)} places read {old[0]!r}; expected exactly 1: the source has changed, "
                "or the page is mistaken")
        return hits[0]


def file_of(name: str) -> Path:
    """The file of an algorithm, in whichever family it is."""
    return next(ALGORITHMS.rglob(f"{name}.py"), ALGORITHMS / f"{name}.py")


def source_of(name: str) -> Source:
    """The source of ``ssp`` or ``backup-workers`` (an algorithm's) or ``collectives.ring`` (another
    module's)."""
    name = name.replace("-", "_")
    path = ROOT / "refsgd" / f"{name.replace('.', '/')}.py" if "." in name else file_of(name)
    if not path.exists():
        raise ValueError(
            f"no module {name!r}; expected the name of a file of refsgd/algorithms or a path such as "
            "collectives.ring")
    return Source(name, path, tuple(path.read_text(encoding="utf-8").splitlines(keepends=True)))


def parse(text: str) -> tuple[list[Hunk], str]:
    """The hunks of a diff and the experiment that follows it."""
    hunks: list[Hunk] = []
    lines = text.splitlines()
    function, old, new = "", list[str](), list[str]()

    def close() -> None:
        nonlocal old, new
        if old:
            hunks.append(Hunk(function, tuple(old), tuple(new)))
        old, new = [], []

    while lines and re.match(r"(@@ |[-+] |\+$)", lines[0]):
        sign, rest = lines[0][:2].strip(), lines.pop(0)[2:]
        if sign == "@@":
            close()
            function = rest.strip()
        elif sign == "-":
            if new:
                close()
            old.append(rest.strip())
        else:
            new.append(rest)
    close()
    return hunks, "\n".join(lines).strip("\n") + "\n"


def apply(source: Source, hunks: Sequence[Hunk]) -> str:
    """The source with lines replaced; new lines are indented as the first of the old ones."""
    lines = list(source.lines)
    for first, hunk in sorted(((source.find(h.old, h.function), h) for h in hunks), reverse=True):
        indent = re.match(r" *", lines[first])[0]  # type: ignore[index]
        lines[first:first + len(hunk.old)] = [f"{indent}{line}\n" for line in hunk.new]
    return "".join(lines)


class _Changed(MetaPathFinder, Loader):
    """Imports one module from a text instead of from its file."""

    def __init__(self, name: str, filename: str, text: str) -> None:
        self.name, self.filename, self.text = name, filename, text

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.text, self.filename, "exec"), vars(module))


@contextlib.contextmanager
def changed(source: Source, text: str) -> Iterator[None]:
    """Inside, all of `PACKAGES` are imported afresh, one module with another text."""
    name = ".".join(source.path.relative_to(ROOT).with_suffix("").parts)
    filename = f"{source.path.relative_to(ROOT)} (changed)"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    finder = _Changed(name, filename, text)

    def ours() -> list[str]:
        return [m for m in sys.modules if m.startswith(PACKAGES)]

    saved = {m: sys.modules.pop(m) for m in ours()}
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module("refsgd.algorithms")
        yield
    finally:
        sys.meta_path.remove(finder)
        for m in ours():
            del sys.modules[m]
        sys.modules.update(saved)
        for package in PACKAGES:  # the attributes `refsgd.algorithms` and `refsgd.collectives`
            if package in saved:
                setattr(sys.modules["refsgd"], package.split(".")[1], saved[package])


def import_of(name: str) -> str:
    """The line that imports an algorithm's module."""
    return f"from {'.'.join(file_of(name).parent.relative_to(ROOT).parts)} import {name}"


def imports(code: str) -> str:
    """The import lines of an experiment: those of `NAMES`, and modules of algorithms, that it uses and
    does not define."""
    used = {n.id for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name)
            and isinstance(n.ctx, ast.Load)}
    own = {n.id for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name)
           and isinstance(n.ctx, ast.Store)}
    own |= {n.arg for n in ast.walk(ast.parse(code)) if isinstance(n, ast.arg)}
    own |= {a.asname or a.name for n in ast.walk(ast.parse(code))
            if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names}
    plain, grouped = [], dict[str, list[str]]()
    for name in sorted(used - own):
        line = NAMES.get(name, import_of(name) if file_of(name).exists() else "")
        if line.startswith("from "):
            grouped.setdefault(line.split(" import ")[0], []).append(name)
        elif line:
            plain.append(line)
    return "".join(f"{line}\n"
                   for line in [*plain,
                                *(f"{package} import {', '.join(names)}"
                                  for package, names in sorted(grouped.items()))])


class Outcome(NamedTuple):
    """What an experiment printed, its names, and how it failed (None: it did not)."""

    printed: str
    values: dict[str, Any]
    failure: Exception | None


def perform(code: str, filename: str = "<experiment>", **given: Any) -> Outcome:
    """Run an experiment; `given` are names that it may use."""
    values: dict[str, Any] = {"__name__": "experiment", **given}
    with contextlib.redirect_stdout(io.StringIO()) as out, np.errstate(all="ignore"):
        try:
            exec(compile(imports(code) + code, filename, "exec"), values)
        except MISTAKES:
            raise
        except Exception as error:
            return Outcome(tidy(out.getvalue()), values, error)
    return Outcome(tidy(out.getvalue()), values, None)


def tidy(text: str) -> str:
    """Without the place of this checkout."""
    return text.replace(f"{ROOT}/", "")


def complaint(error: Exception) -> str:
    """A failure as text: for a counterexample the shortest schedule, drawn."""
    schedule = getattr(error, "schedule", None)
    cause = error if schedule is None else error.error  # type: ignore[attr-defined]
    lines = tidy(f"{type(cause).__name__}: {cause}").splitlines()
    said = "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
                     for line in lines)
    if schedule is None:
        return said
    return tidy(
        f"{said}\n\nshortest schedule that shows it, {schedule or 'the first actions'}:\n\n{error.text}")  # type: ignore[attr-defined]


class Comparison(NamedTuple):
    """An experiment with the library as it is and with the change."""

    right: Outcome
    wrong: Outcome


def compare_with_change(module: str, text: str) -> Comparison:
    """Run a page's experiment twice; raises ValueError unless it holds as it is and fails with the change."""
    hunks, code = parse(text)
    if not hunks:
        raise ValueError("no changed line; expected a diff, an empty line, and an experiment")
    source = source_of(module)
    wrong_text = apply(source, hunks)
    right = perform(code)
    if right.failure is not None:
        raise ValueError(
            f"the experiment fails without any change: {complaint(right.failure)}") from right.failure
    with changed(source, wrong_text):
        wrong = perform(code)
    if wrong.failure is None:
        raise ValueError(
            f"the experiment does not notice that {hunks[0].old[0]!r} has been changed; expected that it "
            "fails")
    return Comparison(right, wrong)
