"""The grader judges from outside: submissions that attack it get the points of what they compute, each gets a grade,
none outlives the grading; programs in further styles pass or fail as they should."""

import html
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from refsgd.cli import main
from refsgd.grader import grading, plain
from refsgd.grader.process import Gone, Process, apart
from tests.grader import strangers
from tests.grader.test_grader import failures, steps_of

PLAIN = Path(strangers.__file__).read_text(encoding="utf-8").partition("#: program, the text")[0]
RIGHT, FORBIDDEN = PLAIN, "refsgd.algorithms.server"
#: a bound of one clock more than the option says: 13 of 20
WRONG = PLAIN.replace("min(clock.values()) + staleness:\n                _, free", "min(clock.values()) + staleness + 1:\n                _, free")

OPEN = "import os, sys\nFDS = [int(fd) for fd in sys.argv[1:3]]\n"
PATCH = "import sys\nEXECUTOR = sys.modules['__main__']\n"
#: what a hostile submission does first: name -> lines before the wrong program
HOSTILE = {
    "garbage": OPEN + "os.write(FDS[1], b'garbage\\n')",
    "binary": OPEN + "os.write(FDS[1], bytes(range(256)) + b'\\n')",
    "forged answer": OPEN + "os.write(FDS[1], b'{\"done\": []}\\n' * 50)",
    "deep nesting": OPEN + "os.write(FDS[1], b'[' * 100_000 + b'\\n')",
    "a line without end": OPEN + "while True: os.write(FDS[1], b'x' * 65536)",
    "closed descriptors": OPEN + "os.closerange(3, 100)",
    "replaced descriptors": OPEN + "r, w = os.pipe(); os.dup2(w, FDS[1])",
    "exits in a program": PATCH + "import os; EXECUTOR.Executor.run = lambda *a: os._exit(0)",
    "false contents": PATCH + "EXECUTOR.Executor.say = lambda self, value: {'array': ['<f4', [3], 'AAAAAAAAAAAAAAAA']}",
    "wrong shapes": PATCH + "EXECUTOR.Executor.say = lambda self, value: {'array': ['<f4', [10**9], 'AAAA']}",
    "objects for arrays": PATCH + "EXECUTOR.Executor.say = lambda self, value: {'array': ['|O', [1], 'AAAAAAAAAAA=']}",
    "a report of a million effects": PATCH + "EXECUTOR.Executor.run = lambda *a: [['x', 'mark', 'clock', {'dict': []}]] * 10**6",
    "endless effects": PATCH + "EXECUTOR.Executor.run = lambda *a: [['x', 'send', a[2], {'message': ['M', [], []]}]] * 50",
    "unknown effects": PATCH + "EXECUTOR.Executor.run = lambda *a: [['x', 'judge', 20]]",
    "strange error": PATCH + "EXECUTOR.Executor.run = lambda *a: [['raise', 'SystemExit', 'x' * 10**6, [], '']]",
    "ignores the limit": "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    "sleeps": "import time\nwhile True: time.sleep(1)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "threads": "import threading, time\nfor _ in range(8): threading.Thread(target=time.sleep, args=(10**6,)).start()",
    "escapes": "import _posixsubprocess, os\nr, w = os.pipe()\n_posixsubprocess.fork_exec([b'/bin/sh', b'-c', "
               "b'setsid sh -c \"exec -a MARK sleep 60\" &'], [b'/bin/sh'], True, (), None, None, -1, -1, -1, -1, -1, -1, "
               "r, w, True, False, 0, None, None, None, -1, None, True)",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)",
    "reads the solution": f"print(open({os.path.abspath('docs/course/homework/A-ssp/solution.py')!r}).read())",
    "reads the library": "import refsgd.algorithms as a\nexec(open(a.__path__[0] + '/server/ssp_gate.py').read())",
    "takes the module back": "import sys, importlib\nfor n in [n for n, m in sys.modules.items() if m is None]: del sys.modules[n]\n"
                             "importlib.import_module('refsgd.algorithms.server.ssp')",
    "asks the collector": "import gc\nprint([o for o in gc.get_objects() if getattr(o, '__name__', '') == 'ssp'])",
    "removes a file": "import os, sys\nos.remove(__file__)",
    "moves a folder": "import shutil\nshutil.move('.', '../elsewhere')",
    "writes a file": "open('points.json', 'w').write('20')",
}
QUICK = ("garbage", "a line without end", "takes the module back")
UNHARMED = {"threads", "forged answer"}  # the forged lines answer what follows, or nothing


def graded(tmp_path, text, function="ssp_heap", algorithm="ssp", *more, seconds=2.0):
    file = tmp_path / "homework.py"
    file.write_text(text, encoding="utf-8")
    began, worked = time.monotonic(), time.process_time()
    found = grading.grade(f"{file}:{function}", algorithm, (FORBIDDEN,), seconds, lambda _: {}, pages=False)
    return found, (time.monotonic() - began, time.process_time() - worked)


@pytest.mark.slow
def test_the_wrong_program_has_its_points_without_an_attack(tmp_path):
    assert [graded(tmp_path, text, seconds=20.0)[0]["score"] for text in (RIGHT, WRONG)] == [20, 13]


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in HOSTILE])
def test_a_hostile_submission_gets_a_grade_and_no_points_that_it_does_not_deserve(name, tmp_path, monkeypatch):
    monkeypatch.setenv("REFSGD_MARK", str(tmp_path))  # inherited by all that it starts
    found, (took, worked) = graded(tmp_path, f"{HOSTILE[name]}\n\n{WRONG}")
    assert 0 <= found["score"] <= 13 and found["max_score"] == 20
    lost = next(row for row in found["properties"] if row["passed"] is False)
    assert len(lost["text"]) <= 160
    # generously: the submission has 2 s of processor time, or as much asleep, and the grader 10 s; the clock is that of a
    # machine that does other things
    assert worked < 20 and took < 120
    if name != "escapes" or apart():  # without namespaces it may: the page for teachers says so
        until = time.monotonic() + 5  # the system ends a namespace after its first process
        while left := [p for p in Path("/proc").glob("[0-9]*/environ") if bytes(tmp_path) in quiet(p)]:
            assert time.monotonic() < until, left


def quiet(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_a_page_of_a_submission_is_shown_in_a_sandbox(tmp_path):
    script = "import refsgd.display.player as p\np.player_html = lambda *a, **k: '<script>parent.document.title=\"20 of 20\"</script>'\n"
    file, page = tmp_path / "homework.py", tmp_path / "grade.html"
    file.write_text(script + WRONG, encoding="utf-8")
    assert main(["check", f"{file}:ssp_heap", "--as", "ssp", "--html", str(page)]) == 1
    shown = page.read_text(encoding="utf-8")
    assert "13 of 20 points" in shown and html.escape("20 of 20") in shown
    assert shown.count("<iframe") == shown.count('sandbox="allow-scripts"') == shown.count("srcdoc") > 0
    assert "<script" not in shown  # but escaped, in the frame


WAYS = """
import os, sys
from pathlib import Path
from refsgd.grader import executor

class Name:
    def __fspath__(self): return OUTSIDE

class Large(int):
    def __fspath__(self): return OUTSIDE

def by_folder():
    fd = os.open(sys.prefix, os.O_RDONLY)
    os.chdir(sys.base_prefix)
    return os.open('x', os.O_RDONLY, dir_fd=fd)

def sqlite():
    import sqlite3
    sqlite3.connect(FOLDER + '/new.db')

FOLDER, OUTSIDE, OWN = sys.argv[1:4]
LINK = FOLDER + '/link/outside.txt'
executor.limit(20, FOLDER, [LINK])
assert open(OWN).read() == 'mine'
for way in (lambda: open(LINK), lambda: os.open(OUTSIDE, 0), lambda: open(Name()), lambda: __import__('io').FileIO(Name()),
            lambda: __import__('io').FileIO(Large(10**30)), lambda: os.open(bytearray(os.fsencode(OUTSIDE)), 0), by_folder,
            lambda: os.open(FOLDER, 0), lambda: os.chdir(FOLDER), lambda: os.open(OWN, os.O_TRUNC), lambda: os.open(OWN, os.O_APPEND),
            lambda: os.open(FOLDER + '/new', os.O_CREAT), sqlite):
    try:
        way()
    except PermissionError:
        print('refused')
    else:
        sys.exit(f'line {way.__code__.co_firstlineno} opens a file')
"""


def test_no_way_of_opening_a_file_leads_past_the_limits(tmp_path):
    (folder := tmp_path / "own").mkdir()
    (hidden := folder / "library").mkdir()
    (folder / "link").symlink_to(hidden)
    for path, text in ((tmp_path / "outside.txt", "x"), (hidden / "outside.txt", "x"), (folder / "own.txt", "mine")):
        path.write_text(text)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", WAYS, str(folder), str(tmp_path / "outside.txt"), str(folder / "own.txt")],
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n" * 13), done.stderr
    assert {p.name for p in folder.iterdir()} == {"library", "link", "own.txt"} and (folder / "own.txt").read_text() == "mine"


def test_a_module_is_hidden_by_whatever_path_the_library_is_reached(tmp_path):
    (tmp_path / "link").symlink_to(Path.cwd())
    (tmp_path / "homework.py").write_text("import sys, importlib\nfor n in [n for n, m in sys.modules.items() if m is None]: del sys.modules[n]\n"
                                          "importlib.import_module('refsgd.algorithms.server.ssp')\n")
    done = subprocess.run([sys.executable, "-m", "refsgd", "check", f"{tmp_path / 'homework.py'}:f", "--as", "ssp", "--forbid", FORBIDDEN],
                          env=os.environ | {"PYTHONPATH": str(tmp_path / "link")}, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "may not be read by a submission" in " ".join(done.stdout.split())


#: what one submission does, and what the table says of it
ONE = {
    "reports at import": (OPEN + "os.write(FDS[1], b'{\"loaded\":[\"f\",1,[[\"p\",\"KEYWORD_ONLY\",true,[1]]]]}\\n')", "its report cannot be read"),
    "reports why it fails": (OPEN + "os.write(FDS[1], b'{\"failed\":\"' + b'/' * 10**6 + b'\"}\\n')", "///"),
    "a long error": (PATCH + "EXECUTOR._raised = lambda e, n: ['raise', 'ValueError', '/' * 10**6, ['/' * 10**6], '/' * 10**6]\n"
                     "def f(problem, workers, steps, sgd, *, staleness=1): raise ValueError", "///"),
    "strange nodes": (PATCH + "EXECUTOR.Executor.deploy = lambda *a: [['w', 0, 0, 0, 0, 0, [], [[0, [], 1]]]]\n"
                      "def f(problem, workers, steps, sgd, *, staleness=1): pass", "its report cannot be read (AttributeError"),
    "options of the command": ("def f(problem, workers, steps, sgd, *, json=1, help=2): pass", ""),
}


@pytest.mark.parametrize("name", ONE)
def test_one_submission_never_ends_the_grading_of_a_class(name, tmp_path):
    (folder := tmp_path / "class").mkdir()
    text, says = ONE[name]
    (folder / "ada.py").write_text(text + "\n")
    (folder / "bob.py").write_text("f = 1 +\n")
    worked = time.process_time()
    assert main(["check", f"{folder}:f", "--as", "ssp", "--reports", str(tmp_path / "reports")]) == 0
    ada, bob = (tmp_path / "reports" / "grades.csv").read_text().splitlines()[1:]
    assert says in ada and "invalid syntax" in bob and time.process_time() - worked < 20


def test_an_error_of_the_checks_is_a_failure_of_the_submission(tmp_path, monkeypatch):
    monkeypatch.setattr(grading, "findings", lambda *_, **__: {}["no check"])
    found, _ = graded(tmp_path, RIGHT, seconds=20.0)
    assert found["score"] == 1 and "KeyError: 'no check'" in found["properties"][1]["text"]


def test_values_cross_as_what_they_are():
    import numpy as np

    kept = []
    for value in (None, True, 3, -1.5, float("inf"), "ü", (1, (2.0,)), [1, "a"], {"a": (1,)}, np.float32(0.1), np.arange(6.0).reshape(2, 3)):
        said = json.loads(plain.dumps(plain.encode(value, kept.append)))
        back = plain.decode(said, plain.message_class, plain.Kept)
        assert type(back) is type(value) and repr(back) == repr(value)
    up = plain.decode(json.loads(plain.dumps(plain.encode(strangers.Up(np.ones(2, np.float32), 3), kept.append))),
                      plain.message_class, plain.Kept)
    assert type(up).__name__ == "Up" and up.t == 3 and not up.g.flags.writeable
    assert plain.encode(object(), lambda value: [7, 0]) == {"kept": [7, 0]}
    for wrong in ({"array": ["|O", [1], "AAAAAAAAAAA="]}, {"message": ["M", ["1"], [2]]}, {"array": ["<f4", [3], "AAAA"]}):
        with pytest.raises((ValueError, TypeError)):
            plain.decode(wrong, plain.message_class, plain.Kept)


def test_a_process_that_says_nothing_is_waited_for_no_longer_than_its_limit():
    process = Process(0.5)
    try:  # it waits for a first line that does not come
        began = time.monotonic()
        with pytest.raises(Gone, match="did nothing for 3 s"):
            process.read()
        assert time.monotonic() - began < 10
    finally:
        process.close()


@pytest.mark.parametrize("name", [n if n in ("ssp_relay", "all_pieces") else pytest.param(n, marks=pytest.mark.slow)
                                  for n in strangers.PROGRAMS])
def test_a_correct_program_in_a_further_style_passes(name):
    assert failures(getattr(strangers, name), strangers.PROGRAMS[name]) == []


@pytest.mark.parametrize("i", [i if i == 10 else pytest.param(i, marks=pytest.mark.slow)
                               for i in range(len(strangers.MISTAKES))])
def test_a_mistake_in_it_is_caught_and_explained_in_one_sentence(i, tmp_path):
    name, right, wrong = strangers.MISTAKES[i]
    assert PLAIN.count(right) == 1
    found, _ = graded(tmp_path, PLAIN.replace(right, wrong), name, strangers.PROGRAMS[name], seconds=20.0)
    lost = [row for row in found["properties"] if row["passed"] is False]
    assert lost and all(0 < len(row["text"]) <= 160 for row in lost)
    assert "refsgd/" not in " ".join(row["text"] for row in lost)
    shortest = [f for f in failures(f"{tmp_path / 'homework.py'}:{name}", strangers.PROGRAMS[name]) if f.found]
    assert not shortest or min(steps_of(f.found) for f in shortest) <= 15


@pytest.mark.slow
def test_the_command_gives_the_grade_of_the_checks_in_this_process(tmp_path):
    """What runs in another process is judged as what runs here: the same findings, word for word."""
    from refsgd.testing import check

    for text in (RIGHT, WRONG):
        found, _ = graded(tmp_path, text, seconds=20.0)
        here = {f.name: (f.held, f.text.splitlines()[0].removeprefix("Misread: ")) for f in check(
            f"{tmp_path / 'homework.py'}:ssp_heap", algorithm="ssp", processes=False, max_runs=60)}
        for row in found["properties"][1:]:
            assert row["passed"] == here[row["name"]][0]
            assert here[row["name"]][1].startswith(row["text"]) or row["text"].startswith("fails as")


def test_nothing_of_the_verdict_is_imported_by_name_from_a_submission(tmp_path):
    """The parent's interpreter never runs the file."""
    file = tmp_path / "homework.py"
    file.write_text("import sys\nsys.modules['builtins'].STOLEN = True\n" + RIGHT, encoding="utf-8")
    code = subprocess.run([sys.executable, "-c", f"import sys, builtins\nfrom refsgd.cli import main\nmain(['check', {str(file)!r} + ':ssp_heap', "
                           "'--as', 'ssp'])\nsys.exit(3 if hasattr(builtins, 'STOLEN') else 0)"], capture_output=True, check=False)
    assert code.returncode == 0
