"""Grade a submission: `refsgd check FILE.py:FUNCTION --as ALGORITHM` in a process with limits.

The submission runs in a child process, which writes each finding to a file as soon as it is known.  So a
submission that loops, exits, prints without end or takes all memory loses only the points of what is left.
The child is not a sandbox: run submissions that you do not trust in a container.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from refsgd.algorithms import CATALOGUE
from refsgd.display.player.listing import title
from refsgd.experiment.prepare import Usage
from refsgd.runtimes.fork import own_children
from refsgd.testing.comparison import names_of
from refsgd.testing.findings import Finding
from refsgd.trace.schema import json_text

MEMORY = 1 << 30  #: bytes of a submission's address space
OUTPUT = 16 << 20  #: bytes of any file that it writes, its standard output included
PATIENCE = 20  #: seconds on the clock for each second of processor time: a busy machine shares its processors
GENERAL = ("file", "lint", "deployment", "sizes", "determinism", "gradients", "fixed point", "descent",
           "all schedules")
DOUBLE = {"all schedules"}  #: general properties with two points, as those of the algorithm have
#: what a submission may not do, by the names of Python's audit events
REFUSED = re.compile(r"os\.(fork|forkpty|posix_spawn|spawn|exec|system|kill|killpg)$"
                     r"|(subprocess|socket|ctypes)\.")


# -- in the child ------------------------------------------------------------------------------------------


def imports_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each module, or name in a module, that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def forbid(path: str, modules: Sequence[str]) -> None:
    """Refuse a file that imports one of these modules, and make them unavailable to what it does later."""
    def within(name: str) -> bool:
        return any(name == module or name.startswith(module + ".") for module in modules)

    for line, name in imports_of(ast.parse(Path(path).read_bytes(), path)):
        if within(name):
            raise Usage(f"{Path(path).name}:{line} imports {name}, which this homework forbids")
    for name in [name for name in sys.modules if within(name)]:
        gone, sys.modules[name] = sys.modules[name], None  # type: ignore[assignment]
        for package in [m for m in sys.modules.values() if hasattr(m, "__path__")]:
            for key in [key for key, value in vars(package).items() if value is gone]:
                delattr(package, key)
    for algorithm, function in CATALOGUE.items():
        if within(function.__module__):
            CATALOGUE[algorithm] = _refusing(algorithm)


def _refusing(algorithm: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Usage(f"calls {algorithm} of the catalogue, which this homework forbids")

    return refuse


def _limit(seconds: float) -> None:
    """Limits of this process, where the system has them; no other processes and no connections.

    Processor time is that of the submission: what this process has used until now is no part of it.
    """
    with contextlib.suppress(ImportError):
        import resource

        processor = math.ceil(time.process_time() + seconds)
        for kind, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, OUTPUT),
                           (resource.RLIMIT_CORE, 0), (resource.RLIMIT_CPU, processor)):
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    sys.dont_write_bytecode = True

    def hook(event: str, _: Any) -> None:
        if REFUSED.match(event):
            raise PermissionError(f"{event}: a submission may start no processes and open no connections")

    sys.addaudithook(hook)


def _page(finding: Finding) -> str:
    """The shortest schedule in the step player."""
    from refsgd.display.player import player_html

    found = finding.found
    if found is None or found.world is None or not found.world.events:
        return ""
    try:
        return player_html(found.world.trace(), found.factory, name=finding.name, unit="steps", at_end=True,
                           limit=len(found.world.events))
    except Exception:  # of a program that another error ended
        return ""


def inside(args: Any, load: Callable[[], tuple[Any, dict[str, Any]]]) -> None:
    """Check the submission and write each finding as a line of JSON."""
    from refsgd.testing import findings

    with open(args.child, "a", encoding="utf-8") as stream:
        def say(finding: Finding, page: str = "") -> None:
            line = {"name": finding.name, "held": finding.held, "text": finding.text,
                    "schedule": finding.schedule, "page": page}
            stream.write(json_text(line, indent=None) + "\n")
            stream.flush()

        reference = CATALOGUE.copy()
        if args.html:
            importlib.import_module("refsgd.display.player")
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # a write may fail, and end a submission
        _limit(args.seconds)
        try:
            if args.forbid:
                forbid(args.target.partition(":")[0], args.forbid)
            target, given = load()
            say(Finding("file", True, "can be imported"))
            for module in ("comparison", "tracers"):
                sys.modules[f"refsgd.testing.{module}"].CATALOGUE = reference  # type: ignore[attr-defined]
            pages = 3
            for finding in findings(target, algorithm=args.algorithm, processes=False, max_runs=60, **given):
                page = _page(finding) if args.html and pages and finding.held is False else ""
                pages -= bool(page)
                say(finding, page)
        except (Usage, SyntaxError, ImportError) as error:
            say(Finding("file", False, str(error)))
        except MemoryError:
            say(Finding("file", False, "takes more than 1 GiB of memory"))
        stream.write("{}\n")
    os._exit(0)  # whatever threads or exit functions the submission has left


# -- in the parent -----------------------------------------------------------------------------------------


def grade(arguments: Sequence[str], target: str, algorithm: str | None, seconds: float) -> dict[str, Any]:
    """Run the check in a child process, and give points.

    The limit is one of processor time, so that a busy machine changes no mark; a child that only sleeps
    is ended later.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="refsgd-") as folder:
        lines, printed = Path(folder, "findings"), Path(folder, "printed")
        lines.touch()
        with printed.open("wb") as output, own_children():
            child = subprocess.Popen(
                [sys.executable, "-m", "refsgd", "check", "--child", str(lines), *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
                                  "PYTHONIOENCODING": "utf-8:replace"})
            try:
                code = child.wait(PATIENCE * seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with contextlib.suppress(ProcessLookupError, AttributeError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.kill()
                child.wait()
        found = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
        text = printed.read_bytes()[:4000].decode(errors="replace")
    ended = bool(found) and not found[-1]
    found = [each for each in found if each]
    if not ended:
        found.append(_cut_short(found, code, text, seconds, algorithm))
    return _graded(found, algorithm) | {"submission": target, "as": algorithm, "printed": text,
                                        "seconds": round(time.monotonic() - began, 2)}


def _expected(algorithm: str | None) -> list[str]:
    return [*GENERAL, *(names_of(algorithm) if algorithm else ())]


def _cut_short(found: list[dict[str, Any]], code: int | None, printed: str, seconds: float,
               algorithm: str | None) -> dict[str, Any]:
    """The finding of a child that did not end by itself."""
    done = {each["name"] for each in found}
    name = next((each for each in _expected(algorithm) if each not in done), "end")
    last = printed.strip().splitlines()[-1:] or [""]
    if code is None:
        text = (f"was still running after {PATIENCE * seconds:g} s; expected a run that ends: "
                "does it sleep or wait?")
    elif code == -getattr(signal, "SIGXCPU", 0):
        text = (f"was still running after {seconds:g} s of processor time; a loop that never ends, "
                "or a loop without a yield?")
    elif code < 0:
        text = f"ended by signal {-code}; expected a run that ends: {last[0]}"
    else:
        text = f"ended the process with exit code {code}; expected no exit: {last[0]}"
    return {"name": name, "held": False, "text": text, "schedule": None, "page": ""}


def _kind(text: str) -> str:
    """What failures with one cause have in common."""
    first = text.splitlines()[0] if text else ""
    return "deadlock" if "deadlock" in first.lower() else re.sub(r"\d+", "#", first.split("; expected")[0])


def _graded(found: list[dict[str, Any]], algorithm: str | None) -> dict[str, Any]:
    """Points by property; a failure with the cause of another one refers to it."""
    by_name = {each["name"]: each for each in found}
    shown: dict[str, str] = {}
    for each in sorted(found, key=lambda e: e["schedule"] is None):  # a schedule explains it best
        if each["held"] is False:
            first = shown.setdefault(_kind(each["text"]), each["name"])
            if first != each["name"]:
                each |= {"text": f"fails as '{first}' does", "schedule": None, "page": ""}
    rows = []
    for i, name in enumerate(_expected(algorithm)):
        most = 2 if name in DOUBLE or i >= len(GENERAL) else 1
        each = by_name.get(name, {"held": False, "text": "not checked, because of the failure above",
                                  "schedule": None, "page": ""})
        sentence, _, details = each["text"].partition("\n")
        # without the folders of the grader's machine
        sentence = re.sub(r"/\S+\.py", lambda path: title(path[0]), sentence)
        rows.append({"name": name, "passed": each["held"], "score": 0 if each["held"] is False else most,
                     "max_score": most, "text": re.sub(r"^(Misread|Usage|AssertionError): ", "", sentence),
                     "schedule": each["schedule"], "details": details, "page": each["page"]})
    return {"format": "refsgd grade 1", "score": sum(r["score"] for r in rows),
            "max_score": sum(r["max_score"] for r in rows), "properties": rows}
