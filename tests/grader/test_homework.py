"""The hand-outs in docs/course/homework: a solution passes its hidden tests; the skeleton and mistakes fail."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOMEWORK = Path(__file__).parents[2] / "docs/course/homework"
FOLDERS = sorted(path.name for path in HOMEWORK.iterdir())

#: folder, the text of the solution that is changed, what it becomes
MISTAKES = [
    ("A-ssp", "clock[u] <= slowest + staleness", "clock[u] < slowest + staleness"),
    ("A-ssp", "for u in [u for u in workers if u in waiting and", "for u in [u for u in [w] if"),
    ("A-ssp", "            waiting.remove(u)\n", ""),
    ("B-reduce-scatter", "Recv(Part, src=peer)", "Recv(Part)"),
    ("B-reduce-scatter", "yield Send(peer, Part(part))", "yield Send(peer, Part(x))"),
    ("B-reduce-scatter", "np.array_split(x, len(peers))",
     "[x[i * (x.size // len(peers)):][:x.size // len(peers)] for i in range(len(peers))]"),
    ("C-lost-gradient", "[2, 2, 2, 2, 2]", "[]"),
    ("C-lost-gradient", "[2, 2, 2, 2, 2]", "[2, 2, 2, 2, 2] + [0] * 6"),
    ("E-gate-by-updates", "version - oldest + len(computing) <= bound", "version - oldest <= bound"),
    ("E-gate-by-updates", "version - oldest + len(computing) <= bound", "version - oldest + len(computing) < bound"),
    ("E-gate-by-updates", "                if left[u]:\n                    computing", "                if True:\n                    computing"),
    ("D-predict", "(sum(speeds) - s) / s", "sum(speeds) / s"),
    ("D-predict", "(-1) ** (k + 1)", "1"),
    ("D-predict", "[s / sum(speeds) for", "[1 / len(speeds) for"),
    ("F-two-servers", "_, push = yield Recv(Push, src=w)", "w, push = yield Recv(Push)"),
    ("F-two-servers", "range(2 * steps * len(workers))", "range(2 * steps * len(workers) - 1)"),
    ("F-two-servers", "min(clock.values()) + staleness]", "min(clock.values())]"),
    ("G-three-at-once", "sorted(me.partners)", "me.partners"),
    ("G-three-at-once", "            me.held = True\n", ""),
    ("G-three-at-once", "sum(replicas) / 3", "sum(replicas[:2]) / 2"),
    ("H-lost-worker", "BETA / len(arrived)", "BETA / len(workers)"),
    ("H-lost-worker", "living.discard(message.node)", "living.discard(message.node), replicas.pop(message.node, None)"),
    ("H-lost-worker", "        if not replicas:\n            break\n", ""),
]


def passes(folder, file):
    """Whether a file passes the hidden tests of a folder."""
    ended = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n0", "--noconftest",
                            str(HOMEWORK / folder / "hidden_test.py")], env=os.environ | {"HOMEWORK": str(file)},
                           capture_output=True, text=True)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    return ended.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_the_solution_passes_and_the_skeleton_fails(folder):
    assert passes(folder, HOMEWORK / folder / "solution.py")
    assert not passes(folder, HOMEWORK / folder / "skeleton.py")


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "right", "wrong"), MISTAKES)
def test_a_mistake_fails(folder, right, wrong, tmp_path):
    text = (HOMEWORK / folder / "solution.py").read_text()
    assert text.count(right) == 1
    (tmp_path / "homework.py").write_text(text.replace(right, wrong))
    assert not passes(folder, tmp_path / "homework.py")


def test_every_folder_is_whole_and_its_sheet_fits_its_rubric():
    assert len(FOLDERS) >= 8
    for folder in FOLDERS:
        assert {p.name for p in (HOMEWORK / folder).iterdir() if p.is_file()} == {
            "README.md", "skeleton.py", "solution.py", "hidden_test.py", "rubric.md"}, folder
        sheet, rubric = ((HOMEWORK / folder / name).read_text() for name in ("README.md", "rubric.md"))
        given = re.search(r"(\d+) points are given by the \w+, (\d+) by hand", sheet)
        points = [int(n) for n in re.findall(r"^\| (\d+) \|", rubric, re.M)]
        assert points[0] == int(given[1]) and sum(points[1:]) == int(given[2]), folder
        for name in ("skeleton.py", "solution.py", "hidden_test.py"):
            compile((HOMEWORK / folder / name).read_text(), name, "exec")


@pytest.mark.slow
def test_the_autograder_of_the_page_grades_homework_a(tmp_path):
    """Gradescope's script as it is printed, in another folder: all points for the solution, 0 for no file."""
    page = (HOMEWORK.parents[1] / "howto/course.md").read_text()
    script = re.search(r"> autograder/run_autograder <<'EOF'\n(.*?)^EOF", page, re.M | re.S)[1]
    for folder in ("submission", "results", "venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    command = tmp_path / "venv/bin/refsgd"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m refsgd "$@"\n')
    command.chmod(0o755)

    def score():
        subprocess.run(["bash", "-euc", script.replace("/autograder", str(tmp_path))], check=True, capture_output=True,
                       env=os.environ | {"PYTHONPATH": str(HOMEWORK.parents[2])})
        return json.loads((tmp_path / "results/results.json").read_text())["score"]

    assert score() == 0
    shutil.copy(HOMEWORK / "A-ssp/solution.py", tmp_path / "submission/homework.py")
    assert score() == 20


def test_the_forms_of_the_page_fit_the_grade(tmp_path):
    """The script for PrairieLearn, as it is printed, on a grade."""
    page = (HOMEWORK.parents[1] / "howto/course.md").read_text()
    script = next(block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "gradable" in block)
    row = {"name": "lint", "score": 1, "max_score": 2, "text": "so", "details": "", "passed": False}
    (tmp_path / "grade.json").write_text(json.dumps({"score": 1, "max_score": 2, "properties": [row]}))
    (tmp_path / "script.py").write_text(script)
    subprocess.run([sys.executable, "script.py", "grade.json", "results.json"], cwd=tmp_path, check=True)
    assert '"score": 0.5' in (tmp_path / "results.json").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        compile(block, "block of course.md", "exec")
