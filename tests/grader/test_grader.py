"""`refsgd check --as`: mistakes are caught and explained, correct programs in any style pass, and a submission
that loops, exits or takes all memory loses only points."""

import csv
import json
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.cli import main, parsed
from refsgd.grader import folder as folder_of
from refsgd.runtimes.explorer import World
from refsgd.testing import check
from refsgd.testing.tracers import Misread, ahead
from tests.grader import mistakes, others, unusual

PLAIN = Path(unusual.__file__)
ALL = len(mistakes.NEW + mistakes.KNOWN + mistakes.MORE)
QUICK = [2, 25, 51]  # of these mistakes


def failures(target, algorithm, **options):
    return [f for f in check(target, algorithm=algorithm, processes=False, max_runs=60, **options) if f.held is False]


@pytest.mark.parametrize("name", [n if n == "bsp_broadcast" else pytest.param(n, marks=pytest.mark.slow)
                                  for n in unusual.PROGRAMS])
def test_a_correct_program_in_an_unusual_style_passes(name):
    assert failures(getattr(unusual, name), unusual.PROGRAMS[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", others.PROGRAMS)
def test_a_correct_program_of_another_algorithm_passes(name):
    assert failures(getattr(others, name), others.PROGRAMS[name]) == []


def test_an_error_in_one_case_is_a_finding():
    def strict(problem, workers, steps, sgd):
        if (workers, steps, len(problem.x0)) == (2, 1, 8):
            raise RuntimeError("not this one")
        return CATALOGUE["bsp"](problem, workers, steps, sgd)

    lost = [f for f in check(strict, processes=False, max_runs=5) if f.held is False]
    assert lost[-1].name == "priority" and lost[-1].text == "RuntimeError: not this one"


def test_a_needless_wait_is_explained_by_options_of_a_run():
    with pytest.raises(Misread, match=r"^when worker 1 ends gradient 0, the others have begun 1; expected 2: they wait too long; with --") as refused:
        ahead([[1, 1]], [[2, 2]], [[2, 2]], 1, "")
    run = parsed(["run", "ssp", *str(refused.value).partition("; with ")[2].split()])
    assert (run.workers, run.steps, run.speeds) == (3, 1, "1,0.001,1")


def steps_of(found):
    """Actions of the shortest schedule that fails."""
    world, picks, count = World(found.factory), iter(found.schedule), 0
    try:
        while world.enabled():
            count += 1
            world.perform(next(picks, 0))
    except Exception:
        pass
    return count


@pytest.mark.parametrize("i", [i if i in QUICK else pytest.param(i, marks=pytest.mark.slow) for i in range(ALL)])
def test_a_mistake_is_caught_and_explained_in_at_most_15_steps(i, tmp_path):
    found = mistakes.write(tmp_path, PLAIN.read_text())
    assert len(found) == ALL == 53
    target, algorithm, options = found[i]
    wrong = failures(target, algorithm, **options)
    assert wrong
    schedules = [steps_of(f.found) for f in wrong if f.found]
    assert not schedules or min(schedules) <= 15, schedules


def graded(tmp_path, text, *more, code=1, function="homework", seconds="60"):
    """The grade of a submission, by the command, as JSON."""
    file, out = tmp_path / "homework.py", tmp_path / "grade.json"
    file.write_text(text)
    assert main(["check", f"{file}:{function}", "--as", "ssp", "--seconds", seconds, "--json", str(out), *more]) == code
    return json.loads(out.read_text())


def first_failure(grade):
    return next(row for row in grade["properties"] if row["passed"] is False)


def test_a_grade_is_written_in_three_forms(tmp_path, capsys):
    text = PLAIN.read_text().replace(*mistakes.NEW[1][1:])
    page, scope = tmp_path / "grade.html", tmp_path / "results.json"
    grade = graded(tmp_path, text, "--html", str(page), "--gradescope", str(scope), function="ssp_plain")
    assert (grade["score"], grade["max_score"], grade["format"]) == (13, 20, "refsgd grade 1")
    row = first_failure(grade)
    assert row["name"] == "staleness bound" and row["text"].startswith(
        "worker 0 computes gradient 1 at a model without gradient 0 of worker 1") and "worker0" in row["details"]
    assert "FAIL 0/3  staleness bound: worker 0" in " ".join(capsys.readouterr().out.split(" "))
    shown = page.read_text()
    assert "13 of 20 points" in shown and "<iframe" in shown and "width=device-width" in shown
    assert "http" not in shown.replace("http://www.w3.org", "")
    results = json.loads(scope.read_text())
    assert results["score"] == sum(t["score"] for t in results["tests"]) == 13
    assert {"name", "score", "max_score", "output", "visibility"} <= set(results["tests"][0])


@pytest.mark.parametrize(("text", "says", "seconds"), [
    ("while True: pass", "still running after 1 s of processor time", "1"),
    ("import time\ntime.sleep(60)", "still running after 2 s; expected a run that ends", "0.1"),
    ("import os, time\ntime.sleep(1.5)\nos._exit(3)", "ended the process with exit code 3", "1"),
    pytest.param("import os; os._exit(0)", "ended the process with exit code 0", "60", marks=pytest.mark.slow),
    pytest.param("x = bytearray(1 << 33)", "MemoryError", "60", marks=pytest.mark.slow),
    pytest.param("import os\nwhile True: os.fork()", "may start no processes", "60", marks=pytest.mark.slow),
    pytest.param("while True: print('x' * 10**6)", "File too large", "60", marks=pytest.mark.slow),
    pytest.param("homework = 1 +", "invalid syntax", "60", marks=pytest.mark.slow),
    ("from refsgd.algorithms.server.ssp import ssp as homework", "homework.py:1 imports refsgd.algorithms.server.ssp",
     "60"),
    pytest.param("from refsgd.algorithms import CATALOGUE\n\ndef homework(p, n, t, sgd, *, staleness):\n"
                 "    return CATALOGUE['ssp'](p, n, t, sgd, staleness=staleness)",
                 "calls ssp of the catalogue, which this homework forbids", "60", marks=pytest.mark.slow),
    pytest.param("import importlib\nssp_gate = importlib.import_module('refsgd.algorithms.server.ssp_gate')",
                 "import of refsgd.algorithms.server.ssp_gate halted", "60", marks=pytest.mark.slow),
])
def test_a_submission_that_misbehaves_is_one_finding(tmp_path, text, says, seconds):
    grade = graded(tmp_path, text + "\n", "--forbid", "refsgd.algorithms.server", seconds=seconds)
    assert says in first_failure(grade)["text"], first_failure(grade)
    assert grade["score"] <= 2 and grade["max_score"] == 20


@pytest.mark.slow
def test_a_lint_error_is_the_only_failure_that_is_explained(tmp_path):
    text = PLAIN.read_text().replace(*mistakes.NEW[4][1:])
    grade = graded(tmp_path, text, function="ssp_plain")
    assert first_failure(grade)["name"] == "lint" and "without a yield" in first_failure(grade)["text"]
    assert {row["text"] for row in grade["properties"][2:]} == {"not checked, because of the failure above"}


@pytest.mark.parametrize(("arguments", "says"), [
    (["nothing.py:f", "--as", "ssp"], "expected FILE.py:FUNCTION, of a file that exists"),
    ([f"{PLAIN}:ssp_plain", "--as", "spp"], "did you mean ssp?"),
    *(([f"{PLAIN}:ssp_plain", "--as", "ssp", "--seconds", wrong], f"--seconds {wrong}; expected a finite number above 0")
      for wrong in ("inf", "nan", "0", "-1")),
    ([f"{PLAIN}:ssp_plain", "--forbid", "refsgd.algorithms.servers"], "there is no such module"),
    ([f"{PLAIN}:ssp_plain", "--forbid", "refsgd.algorithms.servers.ssp"], "did you mean refsgd.algorithms.server.ssp?"),
    ([f"{PLAIN}:ssp_plain", "--as", "gosgd"], "gosgd cannot be compared; expected one of independent, approximate")])
def test_wrong_use_is_refused(arguments, says, capsys):
    assert main(["check", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_any_options_are_those_of_the_algorithm(tmp_path):
    """A function with ``**options`` gets all that `--as` says."""
    text = PLAIN.read_text().replace("def ssp_plain(problem, workers, steps, sgd, *, staleness=3):",
                                     "def ssp_plain(problem, workers, steps, sgd, **options):\n    staleness = options['staleness']")
    grade = graded(tmp_path, text, "--as", "ssp staleness=2", function="ssp_plain", code=0)
    assert grade["score"] == 20


@pytest.mark.slow
def test_mistakes_and_correct_programs_take_seconds(tmp_path):
    """As processes: nothing wrong passes, nothing correct is refused; processor seconds of each.

    Each twelfth mistake, each third program: all are found and passed above, without a process.
    """
    import resource

    seconds = []
    cases = [(*case, 1) for case in mistakes.write(tmp_path, PLAIN.read_text())[::12]]
    cases += [(f"{module.__file__}:{name}", algorithm, {}, 0) for module in (unusual, others)
              for name, algorithm in list(module.PROGRAMS.items())[::3]]
    for target, algorithm, options, code in cases:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        more = [text for key, value in options.items()
                for text in (f"--{key.replace('_', '-')}", str(value)) if text != "True"]
        ended = subprocess.run([sys.executable, "-m", "refsgd", "check", target, "--as", algorithm,
                                "--seconds", "100", *more], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert ended.returncode == code, (target, ended.stdout[-1500:], ended.stderr)
    print(f"median {statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s")
    assert statistics.median(seconds) < 5 and max(seconds) < 20  # generously: 3 and 10 on a quiet machine


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files:
            archive.writestr(name, text)


def test_a_folder_of_submissions_becomes_a_table_and_a_report_of_each(tmp_path, capsys):
    folder, text = tmp_path / "handed-in", PLAIN.read_text()
    into = folder / "reports"  # which is no submission
    for name in ("eve", "gil", "hal"):
        (folder / name).mkdir(parents=True)
    (folder / "eve" / "notes.md").write_text("none")
    (folder / ".hidden.py").write_text("")
    (folder / "ADA.PY").write_text(text)
    (folder / "bob.zip").write_bytes(b"not an archive")
    zipped(folder / "cy.zip", [("sub\\homework.py", "ssp_plain = 1 +"), ("sub\\answers.txt", "Because."), ("x" * 300 + ".txt", "")])
    zipped(folder / "dee.zip", [("homework.py", "x = 1"), ("other.py", "y = 2")])
    zipped(folder / "fay.zip", [("homework.py", "#" * (folder_of.LARGEST + 1))])
    zipped(folder / "gil" / "submission.zip", [("homework.py", "raise AssertionError('\\n=1+1')")])
    (folder / "hal" / "homework.py").symlink_to(PLAIN)
    zipped(folder / "ian.zip", [("a/homework.py", text), ("b/homework.py", text)])
    zipped(folder / "joe.zip", [(f"a{i}.py", "") for i in range(30)])
    (folder / "kim.tar.gz").write_bytes(b"")
    assert main(["check", f"{folder}:ssp_plain", "--as", "ssp", "--reports", str(into)]) == 0
    table = {row["submission"]: row for row in csv.DictReader((into / "grades.csv").read_text().splitlines())}
    assert [row["points"] for row in table.values()] == ["20"] + ["0"] * 10
    for name, says in (("bob", "bob.zip cannot be unpacked: BadZipFile"), ("cy", "invalid syntax"), ("dee", "homework.py and other.py in dee.zip"),
                       ("eve", "no file .py in eve; expected one program"), ("fay", "homework.py has more than 1048576 bytes"),
                       ("gil", "cannot import homework.py: AssertionError"), ("hal", "no file .py in hal"), ("ian", "ian.zip has more than one homework.py"),
                       ("joe", "or 20 files"), ("kim.tar.gz", "no file .py in kim.tar.gz")):
        assert says in table[name]["why"] and not table[name]["why"].startswith("="), (name, table[name])
    assert (into / "cy.txt").read_text() == "Because.\n"
    assert json.loads((into / "ADA.json").read_text())["submission"] == "ADA.PY:ssp_plain"
    assert "20 of 20 points" in (into / "ADA.html").read_text() and "ADA: 20 of 20 points" in capsys.readouterr().out
    assert folder_of.as_csv([("=cmd", {"properties": [], "score": 1, "max_score": 2})]).endswith("\n'=cmd,1,2,,,\n")


def test_answers_of_an_earlier_grading_do_not_stay(tmp_path):
    folder, into = tmp_path / "handed-in", tmp_path / "a" / "reports"
    folder.mkdir()
    for answers in ([("answers.txt", "Old.")], []):
        zipped(folder / "ada.zip", [("homework.py", "x = 1 +"), *answers])
        assert main(["check", f"{folder}:f", "--as", "ssp", "--reports", str(into)]) == 0
        assert (into / "ada.txt").exists() is bool(answers)


@pytest.mark.parametrize("into", [".", "a/reports"])
def test_reports_are_not_written_among_the_submissions(into, tmp_path, capsys):
    (tmp_path / "ada.py").write_text("")
    assert main(["check", f"{tmp_path}:f", "--as", "ssp", "--reports", str(tmp_path / into)]) == 2
    assert "is among the submissions; expected another folder" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("names", "more", "says"), [
    (("ada.py", "ada.zip"), (), "ada.py and ada.zip"), ((), (), "no submission in"),
    (("ada.py",), ("--json", "-"), "and no other output")])
def test_a_folder_that_cannot_be_graded_is_refused(tmp_path, capsys, names, more, says):
    (folder := tmp_path / "handed-in").mkdir()
    for name in names:
        (folder / name).write_text("")
    assert main(["check", f"{folder}:f", "--as", "ssp", "--reports", str(tmp_path / "reports"), *more]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
