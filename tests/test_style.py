"""The house's rules, read from the source: arrows point one way, no forgotten yield, public names are documented."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import refsgd
from refsgd.testing import forgotten_yields

ROOT = Path(refsgd.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

#: room -> rooms of the library that it may import
ARROWS = {
    "effects": set(),
    "graphs": set(),
    "architectures": set(),
    "version": set(),
    "kernel_cache": set(),
    "units": set(),
    "laws": {"units"},
    "machine": {"laws", "units"},
    "trace": set(),
    "waiting": {"trace"},
    "algorithms": {"algorithms", "effects", "graphs", "collectives"},
    "collectives": {"collectives", "effects", "graphs"},
    "nn": {"kernel_cache", "nn"},
    "data": {"data"},
    "problems": {"effects", "data", "nn"},
    "arguments": {"algorithms", "effects", "machine", "problems", "units"},
    "phantom": {"effects", "problems"},
    "schema": set(),
    "runtimes": {"runtimes", "effects", "kernel_cache", "laws", "machine", "schema", "trace"},
    "theory": {"theory", "laws", "machine"},
    "plots": {"plots", "algorithms", "machine", "trace", "waiting"},
    "experiment": {"algorithms", "arguments", "data", "effects", "machine", "nn", "phantom", "problems", "theory"},
    "lives": {"effects", "experiment", "machine", "result", "runtimes", "trace"},
    "performing": {"arguments", "effects", "experiment", "lives", "phantom", "runtimes", "trace"},
    "evaluation": {"effects", "experiment", "machine", "problems", "result", "trace"},
    "checkpoint": {"runtimes", "schema"},
    "resumable": {"checkpoint", "effects", "machine", "runtimes", "trace"},
    "result": {"effects", "machine", "schema", "trace", "units", "waiting", "player", "plots", "version"},
}
FREE = {
    "running", "comparison", "advice", "calibration", "sweep", "report", "doctor",
    "cli", "player", "stepper", "terminal", "testing", "check", "__init__", "__main__",
}


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[0]


def imported_rooms(tree: ast.AST) -> set[str]:
    rooms = set()
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module] if node.module != "refsgd" else [f"refsgd.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            modules = [a.name for a in node.names]
        rooms |= {m.split(".")[1] if "." in m else "" for m in modules if m.split(".")[0] == "refsgd"}
    return rooms


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_point_one_way(path):
    room = room_of(path)
    if room in FREE:
        return
    allowed = ARROWS[room]
    assert imported_rooms(ast.parse(path.read_text())) <= allowed, f"{path.name} imports more than {sorted(allowed)}"


def test_the_arrow_check_catches_a_wrong_import():
    assert imported_rooms(ast.parse("from refsgd.runtimes.simulator import simulate")) == {"runtimes"}


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in ("algorithms", "collectives")], ids=lambda p: p.stem)
def test_no_effect_is_built_without_a_yield(path):
    assert forgotten_yields(ast.parse(path.read_text())) == []


def test_the_yield_check_catches_a_forgotten_one():
    wrong = "def program():\n    x = yield Recv(Push)\n    Send('worker0', x)\n"
    assert forgotten_yields(ast.parse(wrong)) == [3]


def test_every_public_function_and_class_has_a_docstring():
    missing = []
    for module in pkgutil.walk_packages(refsgd.__path__, "refsgd."):
        if module.name == "refsgd.__main__":
            continue
        loaded = importlib.import_module(module.name)
        assert loaded.__doc__, module.name
        for name, thing in vars(loaded).items():
            own = getattr(thing, "__module__", None) == module.name
            if own and not name.startswith("_") and (inspect.isfunction(thing) or inspect.isclass(thing)) and not thing.__doc__:
                missing.append(f"{module.name}.{name}")
    assert not missing


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) == "algorithms" and p.stem not in ("__init__", "parameter_server", "sgd")],
                         ids=lambda p: p.stem)
def test_an_algorithm_is_one_short_file_with_its_facts(path):
    text = path.read_text()
    doc = ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 175
    for section in ("Quick facts", "References"):
        assert section in doc, f"{path.name} lacks {section}"
    for function in [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]:
        if any(isinstance(n, ast.Yield) for n in ast.walk(function)):
            assert function.end_lineno - function.lineno <= 36, f"{function.name} does not fit on a screen"


def test_importing_the_library_is_quick_and_needs_neither_numba_nor_matplotlib():
    code = "import sys, refsgd; print(sorted({'numba', 'matplotlib', 'sklearn', 'rich'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
