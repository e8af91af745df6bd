"""The trial of the open house: a new algorithm is one module, one page and one test, and everything else follows.

`tests/trial` has these three files, of ASP with a growing threshold, which is in a copy of the library for the time of
this test.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refsgd.algorithms import CATALOGUE

ROOT = Path(__file__).parents[1]
PLACES = {"module.py": "refsgd/algorithms/server/growing.py", "page.md": "docs/algorithms/growing.md",
          "claims.py": "tests/papers/test_growing.py"}
TREE = ("refsgd", "tests", "docs", "tutorials", "benchmarks", ".ci", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE",
        "pyproject.toml")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the project with the three files."""
    folder = tmp_path_factory.mktemp("trial") / "project"
    for name in TREE:
        leave = shutil.ignore_patterns("__pycache__")
        (shutil.copytree(ROOT / name, folder / name, ignore=leave) if (ROOT / name).is_dir()
         else shutil.copy(ROOT / name, folder / name))
    for name, place in PLACES.items():
        shutil.copy(ROOT / "tests" / "trial" / name, folder / place)
    return folder


def done(folder, *command, code=0, **more):
    """What a command printed in the copy, with more of an environment."""
    env = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "110"} | more
    found = subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=1500)
    assert found.returncode == code, f"{' '.join(command)}\n{found.stdout[-6000:]}\n{found.stderr[-3000:]}"
    return found.stdout + found.stderr


def refsgd(folder, line, code=0):
    return done(folder, "-m", "refsgd", *line.split(), code=code)


SMALL = "--data quadratic --workers 4 --steps 10"


def test_the_module_is_short():
    assert len((ROOT / "tests" / "trial" / "module.py").read_text().splitlines()) <= 70


@pytest.mark.slow
def test_commands_know_the_new_algorithm(copy):
    """Listed, run in every runtime, stepped, explored, checked, recorded, replayed, compared, drawn."""
    assert "growing" in refsgd(copy, "list")
    bits = {}
    for runtime in ("simulator", "processes", "tcp"):
        refsgd(copy, f"run growing {SMALL} --power 0.25 --runtime {runtime} --json {runtime}.json")
        bits[runtime] = json.loads((copy / f"{runtime}.json").read_text())
        assert bits[runtime]["measured"]["staleness_max"] <= 3
    refsgd(copy, f"run growing {SMALL} --record r --plot p.png --player p.html --trace t.json")
    assert all((copy / name).stat().st_size > 1000 for name in ("p.png", "p.html", "t.json"))
    assert bits["simulator"]["algorithm"] == "growing" and "staleness" in refsgd(copy, "replay r")
    assert "no deadlock" in refsgd(copy, "explore growing --workers 2 --steps 2 --power 0 --page e.html")
    assert "ok" in refsgd(copy, "check refsgd.algorithms.server.growing:growing --no-processes")
    out = refsgd(copy, "compare --algorithms asp;growing --no-hard --runtime simulator --epochs 1 --plot c.png")
    assert "growing" in out and (copy / "c.png").stat().st_size > 1000
    assert "seconds" in refsgd(copy, "predict growing --kind simulated --data quadratic --steps 20")


@pytest.mark.slow
def test_options_are_taken_or_refused_with_the_true_reason(copy):
    refsgd(copy, f"run growing {SMALL} --net softmax --data digits --layout layers --overlap both --compress topk:0.1")
    for line, reason in (("--bucket 1000", "it has servers"), ("--scale-lr", "gradient of one worker"),
                         ("--power -1", "expected at least 0"), ("--schedule cosine", "is known at its end")):
        assert reason in refsgd(copy, f"run growing {SMALL} {line}", code=2)
    for policy in ("continue", "shrink", "restart"):
        done(copy, "-m", "refsgd", "run", "growing", *SMALL.split(), "--fault", "kill worker 1 at step 4",
             "--on-death", policy)
    table = done(copy, "-c", "from tests.runtimes.outcomes import table; print(table())")
    assert "| growing | ends | continues | continues | continues | the gradient that it was computing |" in table


#: words of tests that look at the catalogue, or at pages and files that they find
SEES = re.compile(r'catalogue|ALGORITHMS|README|\bDOCS\b|"docs"|rglob|walk_packages', re.IGNORECASE)


PEERS = ("test_torch.py", "test_mpi.py")  # which README's command skips, for want of an extra


@functools.cache
def sees(path):
    """Whether a file of the tests, or one that it imports, can see a new algorithm."""
    text = path.read_text()
    used = re.findall(r"^from (tests[\w.]*) import ([\w, ]+)", text, re.MULTILINE)
    helpers = [ROOT / (name.replace(".", "/") + ".py") for module, names in used
               for name in (module, *(f"{module}.{each.strip()}" for each in names.split(",")))]
    return bool(SEES.search(text)) or any(helper.exists() and sees(helper) for helper in helpers)


@pytest.mark.slow
def test_the_suite_passes_wherever_it_sees_the_algorithm(copy):
    """With as many examples as the README's test command has; tests of one other algorithm cannot see it."""
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))
             if sees(path) and path != Path(__file__) and path.name not in PEERS]
    others = " or ".join(f"[{name} or -{name}" for name in CATALOGUE)
    out = done(copy, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2", *files, "-k", f"growing or not ({others})",
               HYPOTHESIS_PROFILE="dev")
    assert len(files) > 60 and " passed" in out and " failed" not in out
