"""The trial of the open house: a new algorithm is one module, one page and one test, and everything else follows.

`tests/trial` has these three files, of Ringmaster ASGD, which is in a copy of the library for the time of this test.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = {"module.py": "refsgd/algorithms/server/ringmaster.py", "page.md": "docs/algorithms/ringmaster.md",
          "claims.py": "tests/papers/test_ringmaster.py"}
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
    assert "ringmaster" in refsgd(copy, "list")
    bits = {}
    for runtime in ("simulator", "processes", "tcp"):
        refsgd(copy, f"run ringmaster {SMALL} --threshold 2 --runtime {runtime} --json {runtime}.json")
        bits[runtime] = json.loads((copy / f"{runtime}.json").read_text())
        assert bits[runtime]["measured"]["staleness_max"] <= 1
    refsgd(copy, f"run ringmaster {SMALL} --record r --plot p.png --player p.html --trace t.json")
    assert all((copy / name).stat().st_size > 1000 for name in ("p.png", "p.html", "t.json"))
    assert bits["simulator"]["algorithm"] == "ringmaster" and "staleness" in refsgd(copy, "replay r")
    assert "no deadlock" in refsgd(copy, "explore ringmaster --workers 2 --steps 2 --threshold 1 --page e.html")
    assert "ok" in refsgd(copy, "check refsgd.algorithms.server.ringmaster:ringmaster --no-processes")
    out = refsgd(copy, "compare --algorithms asp;ringmaster --no-hard --runtime simulator --epochs 1 --plot c.png")
    assert "ringmaster" in out and (copy / "c.png").stat().st_size > 1000
    assert "seconds" in refsgd(copy, "predict ringmaster --kind simulated --data quadratic --steps 20")


@pytest.mark.slow
def test_options_are_taken_or_refused_with_the_true_reason(copy):
    refsgd(copy, f"run ringmaster {SMALL} --net softmax --data digits --layout layers --overlap both --compress topk:0.1")
    for line, reason in (("--bucket 1000", "it has servers"), ("--scale-lr", "gradient of one worker"),
                         ("--threshold 0", "expected at least 1"), ("--schedule cosine", "is known at its end")):
        assert reason in refsgd(copy, f"run ringmaster {SMALL} {line}", code=2)
    for policy in ("continue", "shrink", "restart"):
        done(copy, "-m", "refsgd", "run", "ringmaster", *SMALL.split(), "--fault", "kill worker 1 at step 4",
             "--on-death", policy)
    table = done(copy, "-c", "from tests.runtimes.outcomes import table; print(table())")
    assert "| ringmaster | ends | continues | continues | continues | the gradient that it was computing |" in table


# Folders whose tests read neither the catalogue nor its pages: a new algorithm cannot change what they find.
ELSEWHERE = ("cluster", "problems/data", "problems/nn")


def test_what_is_left_out_reads_no_catalogue():
    for folder in ELSEWHERE:
        for path in (ROOT / "tests" / folder).glob("*.py"):
            assert not {"CATALOGUE", "tests.catalogue"} & set(path.read_text().replace("(", " ").split()), path


@pytest.mark.slow
def test_the_whole_suite_passes(copy):
    """With as many examples as the README's test command has."""
    out = done(copy, "-m", "pytest", "-p", "no:cacheprovider", "--deselect", "tests/test_trial.py",
               *(f"--ignore=tests/{name}" for name in ELSEWHERE), HYPOTHESIS_PROFILE="dev")
    assert " passed" in out and " failed" not in out
