"""What a student reads about a mistake in homework A: the cause, its values and the own line, once."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cli import main
from refsgd.grader import grading
from refsgd.testing.comparison import _same_rule
from refsgd.testing.rules import other_rules

ROOT = Path(__file__).parents[2]
HOMEWORK = ROOT / "docs/course/homework/A-ssp"
SOLUTION = (HOMEWORK / "solution.py").read_text()

GATE = "for u in [u for u in workers if u in waiting and clock[u] <= slowest + staleness]:"
APPLY = 'x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")'
#: what is changed, and what it becomes
IN_PLACE = APPLY, "v = sgd.momentum * v + push.grad\n        x -= sgd.lr * sgd.schedule(version) * v"
SENDER_ONLY = GATE, "for u in [u for u in [w] if clock[u] <= slowest + staleness]:"
LESS = "clock[u] <= slowest", "clock[u] < slowest"
TWICE = "            waiting.remove(u)\n", ""
FORGOTTEN = "            yield Send(u, Model", "            Send(u, Model"
BSP = " <= slowest + staleness", " <= slowest"
ASP = " and clock[u] <= slowest + staleness", ""
LATE = " <= slowest + staleness", " <= slowest + staleness + 1"
HINT = "an array that has crossed a yield must not change any more: make a new one"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a solution with a mistake as homework.py, and go to its folder; where a text is in it."""
    monkeypatch.chdir(tmp_path)

    def write(right="", wrong=""):
        assert SOLUTION.count(right) == 1 or not right
        text = SOLUTION.replace(right, wrong) if right else SOLUTION
        Path("homework.py").write_text(text)
        return lambda part: next(i for i, line in enumerate(text.splitlines(), 1) if part in line)

    return write


def rows(*more):
    """The rows of the grade of homework.py by name, and its points."""
    main(["check", "homework.py:homework", "--as", "ssp", "--json", "grade.json", *more])
    grade = json.loads(Path("grade.json").read_text())
    return {row["name"]: row["text"] for row in grade["properties"]}, grade["score"]


def printed(capsys, *command):
    capsys.readouterr()
    main([*command])
    said = capsys.readouterr()
    return said.out + said.err


def in_one_line(text):
    return " ".join(text.split())


def test_an_array_changed_in_place_is_told_with_its_line_and_the_remedy_once(written, capsys):
    line = written(*IN_PLACE)("x -= ")
    found, _ = rows()
    causes = [text for text in found.values() if HINT in text]
    assert causes == [found["all schedules"]] and f"homework.py:{line} in server" in causes[0]
    assert causes[0].count("(") == causes[0].count(")")
    assert {found[name] for name in ("sizes", "determinism", "update rule")} == {"fails as 'all schedules' does"}
    for command in ("check", "explore"):
        said = in_one_line(printed(capsys, command, "homework.py:homework"))
        assert said.count(HINT) == 1 and f"homework.py:{line} in server" in said


def test_a_long_explanation_is_parted_and_never_cut_in_a_bracket():
    parts = ["ValueError: x" * 4, f"a hint ({'y' * 80})", f"the place ({'z' * 200})"]
    assert grading._parted("; ".join(parts)) == ("; ".join(parts[:2]), parts[2])


@pytest.mark.parametrize(("mistake", "row", "values", "case"), [
    (SENDER_ONLY, "all schedules", "clock {worker0: 2, worker1: 3}, slowest 2, staleness 1", "3 steps, staleness=1"),
    (LESS, "staleness bound", "clock {worker0: 1, worker1: 1}, slowest 1, staleness 0", "2 steps, staleness=0")])
def test_a_deadlock_is_shown_where_the_server_still_runs_with_its_line_values_and_case(
        mistake, row, values, case, written, capsys):
    line = written(*mistake)("for u in")
    found, _ = rows()
    assert re.fullmatch(
        r"deadlock: worker0 waits: server0 has its Push#\d and does not answer yet \((u worker1, )?"
        + re.escape(f"{values}); homework.py:{line}") + rf"(; with 2 workers, {case})?", found[row])
    assert f"with 2 workers, {case}" in in_one_line(printed(capsys, "check", "homework.py:homework", "--as", "ssp"))
    assert sum("deadlock: " in text for text in found.values()) == 1
    if mistake is SENDER_ONLY:  # at the default slack, which the others take
        for command in ("check", "explore"):
            said = in_one_line(printed(capsys, command, "homework.py:homework"))
            assert said.count("deadlock: ") == 1 and f"no program can continue; homework.py:{line}" in said
            assert "parts.py" not in said


def test_of_a_deadlock_a_run_names_the_own_line_first(written, capsys):
    line = written(*SENDER_ONLY)("yield Recv")
    said = printed(capsys, "run", "homework.py:homework", "--workers", "2", "--steps", "3", "--quiet")
    assert re.search(rf"s: server0 at \S*homework.py:{line} in server waits for Recv\(Push\); worker1 in the library's "
                     r"worker waits for Recv\(Model from server0\)$", said.strip())


def test_a_worker_that_is_answered_twice_is_named_and_its_schedule_is_shown_once(written, capsys):
    written(*TWICE)
    said = printed(capsys, "check", "homework.py:homework", "--as", "ssp")
    assert in_one_line(said).count("server0 seems to answer worker1 twice: ") == 2
    assert said.count("schedule []: the first action each time") == 1 and "in the schedule of 'staleness bound'" in said
    assert "with a slack of 0 it must wait for gradient 1 of every worker" in in_one_line(said)


@pytest.mark.parametrize("i", range(len([*other_rules(SGD(1), 1)])))
def test_each_mistake_in_the_rule_is_named(i):
    sgd = SGD(0.125, momentum=0.5, schedule=StepDecay(2, 0.5))
    said, wrong = [*other_rules(sgd, 1)][i]

    def deploy(problem, workers, steps, sgd, **options):
        return CATALOGUE["ssp"](problem, workers, steps, wrong, **options)

    with pytest.raises(AssertionError, match=f"^{re.escape(said)}; the rule is x, v = "):
        _same_rule(deploy, "ssp", {}, 1)


@pytest.mark.slow
def test_a_velocity_computed_twice_is_named(written):
    line = "v = sgd.momentum * v + push.grad\n        "
    written(APPLY, f"{line}{line}x = x - sgd.lr * sgd.schedule(version) * v")
    found, points = rows()
    assert found["update rule"].startswith("the velocity is computed twice from each gradient; the rule is ")
    assert points == 19


@pytest.mark.parametrize(("mistake", "points", "lead"), [
    (BSP, 16, "begun 1; expected 2 with a slack of 1: they wait too long"),
    pytest.param(ASP, 13, "begun 5; expected 1 with a slack of 0: they go too far ahead", marks=pytest.mark.slow),
    pytest.param(LATE, 13, "begun 2; expected 1 with a slack of 0: they go too far ahead", marks=pytest.mark.slow)])
def test_a_server_without_the_bound_does_not_pass(mistake, points, lead, written):
    """As docs/howto/course.md says it."""
    written(*mistake)
    found, score = rows()
    assert score == points and found["lead of fast workers"].endswith(lead)


def test_the_rubric_quotes_what_the_check_says(written):
    written(*LESS)
    (quoted,) = re.findall(r"question 3 \| \*([^*]+)\*", (HOMEWORK / "rubric.md").read_text())
    found, _ = rows()
    assert next(text for text in found.values() if text.startswith("deadlock")).startswith(quoted)


def test_a_forgotten_yield_is_named_by_its_own_line(written, capsys):
    line = written(*FORGOTTEN)("Send(u, Model")
    assert re.search(rf"one was yielded: see \S*homework.py:{line}; write `yield`",
                     printed(capsys, "run", "homework.py:homework", "--quiet"))


def test_a_submission_that_is_the_algorithm_of_the_catalogue_is_told_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("homework.py").write_text("from refsgd.algorithms import CATALOGUE\nhomework = CATALOGUE['ssp']\n")
    found, _ = rows("--forbid", "refsgd.algorithms.server")
    assert found["deployment"] == "calls ssp of the catalogue, which this homework forbids"


def test_a_missing_file_replaces_an_older_grade_by_0_points(written, capsys):
    written()
    assert rows()[1] == 20
    Path("homework.py").unlink()
    found, points = rows("--html", "grade.html", "--gradescope", "results.json")
    assert points == 0 and "of a file that exists" in found["file"]
    assert "0 of 20 points" in Path("grade.html").read_text()
    assert json.loads(Path("results.json").read_text())["score"] == 0


def test_the_script_for_moodle_awards_no_older_grade(tmp_path):
    """VPL's script as the page prints it, in a folder with the grade of an earlier submission."""
    page = (ROOT / "docs/howto/course.md").read_text()
    script = re.search(r"```bash\n#!/bin/bash\n(cat > vpl_execution.*?)```", page, re.S)[1]
    command = tmp_path / "refsgd"
    for does, said in ((f'exec {sys.executable} -m refsgd "$@"', "Grade :=>> 0\n"), ("exit 1", "")):  # or it is killed
        (tmp_path / "grade.json").write_text('{"score": 20, "max_score": 20, "properties": []}')
        command.write_text(f"#!/bin/sh\n{does}\n")
        command.chmod(0o755)
        subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
        ended = subprocess.run(["./vpl_execution"], cwd=tmp_path, capture_output=True, text=True,
                               env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)})
        assert said in ended.stdout and ("Grade" in ended.stdout) == bool(said)


def test_step_tells_a_deadlock_once_and_how_to_mark_a_block(written, capsys, monkeypatch):
    line = written(*LESS)("for u in")
    monkeypatch.setattr("sys.stdin", io.StringIO("u block\nr\nl\nl\nq\n"))
    said = printed(capsys, "step", "homework.py:homework", "--workers", "2", "--staleness", "0")
    assert "no event 'block' happens in this run" in said
    assert 'your program reports it by yield Mark("block", worker=w) where it holds w back' in " ".join(said.split())
    assert said.count("deadlock: worker0 waits: server0 has its Push#0") == 1 and f"; homework.py:{line}\n" in said
    assert said.count("deadlock (b goes back") == 2
    assert 'yield Mark("block", worker=w)' in (HOMEWORK / "skeleton.py").read_text()


def test_explore_says_which_options_it_explored_and_how_to_try_more(written, capsys):
    written(*LESS)  # nothing of which two steps with a slack of 1 show
    said = printed(capsys, "explore", "homework.py:homework")
    assert "\nexplored only with staleness=1; other values of --staleness, and --steps 3, may show more\n" in said
    assert "deadlock: worker0 waits" in printed(capsys, "explore", "homework.py:homework", "--staleness", "0")
    assert "explored only" not in printed(capsys, "explore", "ssp")
