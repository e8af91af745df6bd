"""The rules of the project, read from the source: arrows point one way, no forgotten yield, public names are
documented."""

import ast
import importlib
import inspect
import io
import pkgutil
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.runtimes.lint import forgotten_yields

ROOT = Path(refsgd.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

#: room -> rooms of the library that it may import besides itself
ARROWS = {
    "effects": set(),
    "collectives": {"effects"},
    "algorithms": {"effects", "collectives"},
    "problems": {"effects"},
    "cluster": {"effects"},
    "trace": set(),
    "runtimes": {"effects", "cluster", "trace", "problems"},
    "theory": {"cluster", "trace"},
    "display": {"effects", "algorithms", "problems", "cluster", "trace", "runtimes", "theory", "experiment"},
    "experiment": {"effects", "algorithms", "problems", "cluster", "trace", "runtimes", "theory", "_version", ""},  # "": `Result.plot` and `.player` ask the package for the room of display
    "_version": set(),
    "grader": {"effects", "algorithms", "problems", "runtimes", "experiment", "testing", "display", "trace", ""},  # "": the folder of the package
    "testing": {"effects", "algorithms", "problems", "cluster", "trace", "runtimes", "experiment", "display"},
}
FREE = {"cli", "__init__", "__main__"}
#: files that are a piece of an algorithm, with the file that has its facts and references
PIECES = {"blocks": "strads", "mirrors": "approximate", "portions": "sandblaster", "vector_shards": "sandblaster",
          "ssp_gate": "ssp"}


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
    allowed = ARROWS[room] | {room}
    assert imported_rooms(
        ast.parse(path.read_text())) <= allowed, f"{path.name} imports more than {sorted(allowed)}"


#: lists of defaults: what advice tries first, what other frameworks call their architectures, what calibration runs
DEFAULTS = {"experiment/advice/candidates.py", "experiment/options/architectures.py", "experiment/computer/inside.py"}


def algorithms_named(tree):
    """Texts in the code, docstrings left out, that are the name of an algorithm."""
    names = {*CATALOGUE, *(name.replace("-", "_") for name in CATALOGUE)}
    docs = {node.body[0].value for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body and isinstance(node.body[0], ast.Expr)}
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in docs
            and isinstance(node.value, str) and node.value in names]


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) != "algorithms"], ids=lambda p: str(p.relative_to(ROOT)))
def test_no_algorithm_is_named_outside_its_room(path):
    """What must be known of one stands in its `refsgd.algorithms.facts`."""
    named = algorithms_named(ast.parse(path.read_text()))
    assert not named or str(path.relative_to(ROOT)) in DEFAULTS, f"{path.name} names {named}"


def test_a_named_algorithm_is_noticed():
    assert algorithms_named(ast.parse('"""As bsp."""\nif name == "bsp":\n    pass')) == ["bsp"]


def circles(arrows):
    """Rooms from which one comes back by following arrows."""
    reached = {room: set(to) - {room} for room, to in arrows.items()}
    for middle in reached:
        for room in reached:
            if middle in reached[room]:
                reached[room] |= reached[middle]
    return [room for room, to in reached.items() if room in to]


def test_no_arrows_lead_back_to_a_room():
    assert not circles(ARROWS)
    assert set(circles({**ARROWS, "trace": {"runtimes"}})) == {"trace", "runtimes"}


def test_the_arrow_check_catches_a_wrong_import():
    assert imported_rooms(ast.parse("from refsgd.runtimes.simulator import simulate")) == {"runtimes"}


@pytest.mark.parametrize("path", [p for p in FILES if room_of(p) in ("algorithms", "collectives")],
                         ids=lambda p: p.stem)
def test_no_effect_is_built_without_a_yield(path):
    assert forgotten_yields(ast.parse(path.read_text())) == []


def test_the_yield_check_catches_a_forgotten_one():
    wrong = "def program():\n    x = yield Recv(Push)\n    Send('worker0', x)\n"
    assert forgotten_yields(ast.parse(wrong)) == [3]
    right = "    _, x = yield (Recv(Push) if ws else Poll(Push))\n    x = yield from (first if ws else ring_allreduce(0, ws, x))\n"
    source = f"from refsgd.collectives import ring_allreduce as total, ring_allreduce\ndef program(ws):\n{right}    x = total(0, ws, x)\n"
    assert forgotten_yields(ast.parse(source)) == [5]


def test_every_public_function_and_class_has_a_docstring():
    missing = []
    for module in pkgutil.walk_packages(refsgd.__path__, "refsgd."):
        if module.name == "refsgd.cli.__main__":
            continue
        loaded = importlib.import_module(module.name)
        assert loaded.__doc__, module.name
        for name, thing in vars(loaded).items():
            own = getattr(thing, "__module__", None) == module.name
            if own and not name.startswith("_") and (inspect.isfunction(thing)
                                                     or inspect.isclass(thing)) and not thing.__doc__:
                missing.append(f"{module.name}.{name}")
    assert not missing


@pytest.mark.parametrize("path", [p for p in FILES if p in {Path(inspect.getfile(f)) for f in CATALOGUE.values()}
                                  or (room_of(p) == "algorithms" and p.stem in (*PIECES, "powersgd"))], ids=lambda p: p.stem)
def test_an_algorithm_is_one_short_file_with_its_facts(path):
    text = path.read_text()
    doc = ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 175
    if whole := PIECES.get(path.stem):
        assert f"`{whole}`" in doc, f"{path.name} does not name {whole}, where its facts stand"
    for section in () if whole else ("References",) if path.stem == "powersgd" else ("Quick facts", "References"):
        assert section in doc, f"{path.name} lacks {section}"
    for function in [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]:
        if any(isinstance(n, ast.Yield) for n in ast.walk(function)):
            assert function.end_lineno - function.lineno <= 36, f"{function.name} does not fit on a screen"


def test_importing_the_library_is_quick_and_needs_neither_numba_nor_matplotlib():
    code = "import sys, refsgd; print(sorted({'numba', 'matplotlib', 'rich'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def code_lines(text):
    """The numbers of lines that hold code: no blank lines, comments and docstrings."""
    docs, found = set(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs |= set(range(node.lineno, node.end_lineno + 1))
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in blank:
            found |= set(range(token.start[0], token.end[0] + 1))
    return found - docs


def test_files_and_functions_are_short():
    """At most 450 lines a file, 50 lines of code a function, 13 modules and packages at the top."""
    long = [f"{path}: {lines} lines" for path in FILES
            if (lines := len(path.read_text().splitlines())) > 450]
    for path in FILES:
        functions = [node for node in ast.walk(ast.parse(path.read_text()))
                     if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= 50]
        code = code_lines(path.read_text()) if functions else set()
        long += [f"{path}: {node.name} has {lines} lines of code" for node in functions
                 if (lines := len(code.intersection(range(node.lineno, node.end_lineno + 1)))) > 50]
    assert long == []
    entries = [p.name for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
    assert len([name for name in entries if not name.startswith("_")]) <= 13


def too_many_parameters(text, most=10):
    """Functions with more than `most` parameters, by name."""
    return [n.name for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)
            and len([*n.args.posonlyargs, *n.args.args, *n.args.kwonlyargs]) > most]


def test_no_function_of_the_nets_takes_more_than_ten_parameters():
    for path in (ROOT / "problems" / "nn").glob("*.py"):
        assert too_many_parameters(path.read_text()) == [], path.name
    assert too_many_parameters("def product(a, b, c, d, e, f, g, h, i, j, *, k): pass") == ["product"]


def test_the_count_of_code_lines_leaves_out_docstrings_comments_and_blanks():
    assert code_lines('def f():\n    """Two\n    lines."""\n\n    # why\n    return 1\n') == {1, 6}
