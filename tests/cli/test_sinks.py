"""Files before talk: whatever standard output is, the files that were asked for are complete and the exit code is
true."""

import ast
import functools
import io
import json
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from refsgd.cli import main, outputs
from refsgd.cluster.machine import Machine
from refsgd.experiment.advice.advise import advise
from refsgd.experiment.computer.calibrate import Calibration, Point
from refsgd.trace.schema import infinities, json_text

ROOT = Path(__file__).parents[2]
SMALL = "--data quadratic --workers 2 --steps 3"
#: the commands that write files; {} is a folder
COMMANDS = {
    "run": f"run bsp {SMALL} --quiet --record {{}}/r --json {{}}/a.json --trace {{}}/t.json --player {{}}/p.html --plot {{}}/a.png",
    "replay": "replay {}/../record --json {}/a.json --player {}/p.html --plot {}/a.svg",
    "compare": f"compare --algorithms bsp;asp --runtime simulator {SMALL} --json {{}}/a.json --plot {{}}/a.png",
    "predict": f"predict bsp {SMALL} --json {{}}/a.json",
    "sweep": f"predict bsp {SMALL} --sweep workers=1:2 --json {{}}/a.json --plot {{}}/a.pdf",
    "explore": "explore bsp --steps 1 --page {}/s.html",
    "step": "step ssp --steps 1 --player {}/p.html",
    "machine": "machine sites-2x8 --output {}/m.toml --json {}/a.json --plot {}/a.png",
    "calibrate": "calibrate --output {}/m.json",
    "advise": "advise --parameters 1000 --compute fixed(0.1) --workers 2 --json {}/a.json",
    "grade": "check {}/../mine.py:mine --json {}/a.json --html {}/p.html --gradescope {}/g.json",
}
ROW = {"name": "lint", "passed": True, "score": 1, "max_score": 1, "text": "σ ≥ 0 – ok", "schedule": None, "details": "", "page": ""}
GRADE = {"format": "refsgd grade 1", "score": 1, "max_score": 1, "properties": [ROW], "submission": "mine", "as": None,
         "printed": "┌─┐", "seconds": 1.0}


class Order(io.StringIO):
    """A standard output that wants the files to be complete before anything is printed."""

    def __init__(self, files):
        super().__init__()
        self.files = files

    def write(self, text):
        assert all(file.exists() for file in self.files), f"printed before a file was written: {text}"
        return super().write(text)


def standard_output(kind, files, folder):
    """A standard output of a kind."""
    if kind in ("closed", "silent"):
        return None
    if kind == "order":
        return Order(files)
    if kind in ("cp1252", "ascii", "latin-1"):
        return open(folder / "printed", "w", encoding=kind)
    if kind == "full":
        return open("/dev/full", "w")
    reader, writer = os.pipe()
    os.close(reader)
    if kind == "unbuffered":
        return io.TextIOWrapper(io.FileIO(writer, "w"), write_through=True)
    return open(writer, "w")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with what the commands read."""
    place = tmp_path_factory.mktemp("sinks")
    (place / "mine.py").write_text("mine = None\n")
    assert main(shlex.split(f"run bsp {SMALL} --quiet --record {place}/record")) == 0
    return place


@functools.cache
def advice(machine):
    return advise(machine, parameters=1000, workers=2, batch=32, images=1000)


@pytest.fixture
def quick(monkeypatch):
    """What takes long and writes nothing itself is given."""
    found = Calibration(Machine(compute="device(1e9)"), (Point("tiny", 1, 1e6, 4000, 0.001, 0.0),), {},
                        {"nets": ["tiny"], "processor": "σ", "cores": 2}, 0.0, 0.0)
    monkeypatch.setattr("refsgd.experiment.computer.calibrate.calibrate", lambda *options: found)
    monkeypatch.setattr("refsgd.experiment.advice.advise.advise", lambda machine, **_: advice(machine))
    monkeypatch.setattr("refsgd.grader.grading.grade", lambda *_: GRADE)
    for module in ("machine", "predict", "outputs"):  # the last one last: modules that are imported here take it from there
        monkeypatch.setattr(f"refsgd.cli.{module}.figure", lambda kind, *_: Figure(figsize=(1, 1)))
    monkeypatch.setattr(sys, "stdin", io.StringIO("r\nd\n"))


CODES = {"order": 0, "closed": 0, "silent": 0, "full": 1, "ended": 141, "unbuffered": 141, "cp1252": 0, "ascii": 0, "latin-1": 0}


@pytest.mark.usefixtures("quick", "few_draws")
@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("command", COMMANDS)
def test_files_are_complete_and_the_code_is_true(command, kind, folder, monkeypatch, capsys):
    if kind == "full" and not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    if (command, kind) == ("step", "order"):
        return  # its page shows what the conversation did
    place = folder / f"{command}-{kind}"
    place.mkdir()
    words = shlex.split(COMMANDS[command].replace("{}", str(place)).replace(";", "';'"))
    files = [Path(word) for word in words if word.startswith(f"{place}/") and "/../" not in word]
    stream = standard_output(kind, files, place)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        if kind == "silent":
            patch.setattr(sys, "stderr", None)
        assert main(words) == CODES[kind]
        if stream is not None:
            stream.close()  # nothing is left that its close could not write
    said = capsys.readouterr().err
    assert said.count("\n") == (kind == "full") and ("No space left on device" in said) == (kind == "full")
    assert files and sorted(files) == sorted(file for file in place.iterdir() if file.name != "printed")
    for file in files:
        data = file.read_bytes()
        if file.suffix == ".json":
            json.loads(data.decode(), parse_constant=pytest.fail)
        elif file.suffix == ".html":
            assert data.decode().rstrip().endswith("</html>")
        assert len(data) > 100


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "line", "code"), [
    ({}, "$run >&- 2>&- <&-", 0),
    ({"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "ascii:strict"}, "$run | true", (0, 141)),  # the reader may still be there
    ({"MPLBACKEND": "no_such_backend"}, "$run >/dev/full", 1),
    ({"PYTHONWARNINGS": "error"}, "$run --runtime processes", 0),
])
def test_a_process_delivers_its_files(environment, line, code, tmp_path):
    """As people start it: what Python itself does with streams at the start and at the end is included; no file's name
    is UTF-8."""
    run = f"{sys.executable} -m refsgd run $'mine\\xff.py:mine' {SMALL} --plot --json $'a\\xff.json' --player $'p\\xff.html'"
    strict = "PYTHONWARNINGS" in environment  # then a warning is printed, and ends nothing
    own = Path(os.fsdecode(os.fsencode(tmp_path) + b"/mine\xff.py"))
    try:
        own.write_text("from refsgd.algorithms.server.bsp import bsp as mine\n" + "import warnings; warnings.warn('so')\n" * strict)
    except OSError:
        pytest.skip("names of files are UTF-8 here")
    done = subprocess.run(["bash", "-c", line.replace("$run", run) + "; exit ${PIPESTATUS[0]}"], cwd=tmp_path,
                          env=os.environ | environment, capture_output=True, text=True, errors="replace")
    assert done.returncode in (code if isinstance(code, tuple) else (code,)), done.stderr
    assert "UserWarning: so" in done.stderr if strict else done.stderr.count("\n") == (code == 1), done.stderr
    assert json.loads(Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff.json")).read_text())["algorithm"] == "bsp"
    assert Path(os.fsdecode(os.fsencode(tmp_path) + b"/p\xff.html")).read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert (tmp_path / "refsgd-run.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("full", ["--json", "--trace", "--player", "--plot", "--record"])
def test_a_full_disk_is_one_line_with_the_file_and_keeps_no_other_file_from_being_written(full, tmp_path, capsys):
    files = {"--json": "a.json", "--trace": "t.json", "--player": "p.html", "--plot": "a.png", "--record": "r"}
    (tmp_path / files[full]).symlink_to("/dev/full")
    words = [text for flag, name in files.items() for text in (flag, str(tmp_path / name))]
    assert main(["run", "bsp", *shlex.split(SMALL), "--quiet", *words]) == 1
    said = capsys.readouterr()
    assert said.err.endswith(f"{tmp_path / files[full]} could not be written (No space left on device); expected more free space\n")
    assert said.err.count("\n") == 1
    if full != "--record":  # the run itself cannot go on without it
        assert said.out.startswith("bsp: 2 workers")
        assert all((tmp_path / name).stat().st_size for flag, name in files.items() if flag != full)


@pytest.mark.parametrize(("command", "line"), [
    (f"run bsp {SMALL} --json x --trace x", "--json and --trace both name x; expected two paths"),
    (f"run bsp {SMALL} --record ./x --checkpoint x", "--record and --checkpoint both name x"),
    (f"run bsp {SMALL} --json - --player -", "--json and --player both name -"),
    ("race bsp --json x --curves x", "--json and --curves both name x"),
    ("replay {}/record --json {}/record", "--json and FILE both name"),
    ("machine sites-2x8 --json m --output ../cwd/m", "--json and --output both name"),
    (f"run bsp {SMALL} --record -", "--record -; expected a file's name"),
    (f"predict bsp {SMALL} --plot", "--plot refsgd-sweep.png without a sweep"),
])
def test_an_output_that_would_be_lost_is_refused(command, line, folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    assert main(shlex.split(command.replace("{}", str(folder)))) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1 and not list(Path().iterdir())


def test_a_device_may_take_two_outputs(capsys):
    assert main(["run", "bsp", *shlex.split(SMALL), "--json", os.devnull, "--trace", os.devnull]) == 0


def test_json_for_a_closed_standard_output_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["run", "bsp", *shlex.split(SMALL), "--json", "-"]) == 2
    assert capsys.readouterr().err == "refsgd: standard output is closed; expected a file's name in place of -\n"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("command", ["run", "replay", "compare", "sweep", "machine"])
def test_a_picture_without_a_path_has_a_name(command, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(COMMANDS[command].replace("{}/../record", str(folder / "record")).replace("{}/", "").replace(";", "';'"))
    del words[words.index("--plot") + 1]
    assert main(words) == 0
    assert (tmp_path / f"refsgd-{command}.png").read_bytes().startswith(b"\x89PNG")


def test_a_pipe_that_does_not_block_gets_everything(monkeypatch):
    """As programs such as Node.js leave it: a write raises as soon as the pipe is full."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    got = []

    def read():
        with open(reader, encoding="utf-8") as stream:
            got.append(stream.read())

    thread = threading.Thread(target=read)
    text = "σ" * 200_000
    with monkeypatch.context() as patch, open(writer, "w", encoding="utf-8") as stream:
        patch.setattr(sys, "stdout", stream)
        with outputs.standard_streams():
            threading.Timer(0.05, thread.start).start()
            print(text)
            assert outputs.failure() is None
    thread.join(10)
    assert got == [text + "\n"]


class Endless(io.StringIO):
    """A standard input that never ends, as that of ``yes``."""

    def __iter__(self):
        return iter(lambda: "b\n", None)


def test_a_conversation_ends_with_its_reader(monkeypatch, folder, tmp_path, capsys):
    monkeypatch.setattr(sys, "stdin", Endless())
    with standard_output("ended", (), folder) as out, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        assert main(["step", "bsp", "--steps", "1", "--player", str(tmp_path / "p.html")]) == 141
    assert (tmp_path / "p.html").exists()


@pytest.mark.parametrize(("text", "code", "line"), [
    ("raise SystemExit('no licence')", 2, "SystemExit: no licence (mine.py, line 1)"), ("raise SystemExit", 2, "SystemExit:"),
    ("import sys\ndef mine(*given): sys.exit(0)", 2, "sys.exit(0); expected a return or an error (mine.py, line 2)"),
    ("raise KeyboardInterrupt", 130, "refsgd: interrupted; all processes ended\n")])
def test_a_module_that_exits_is_an_error_of_the_command(text, code, line, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(f"{text}\n")
    assert main(["run", f"{tmp_path}/mine.py:mine", *shlex.split(SMALL)]) == code
    assert line in capsys.readouterr().err


@pytest.mark.parametrize("error", [SystemExit(0), KeyError("x"), TypeError("no number"), LookupError("two\nlines"), MemoryError("8 GiB"), UserWarning("so")])
def test_every_error_of_a_call_is_one_line(error, monkeypatch, capsys):
    error.add_note("of\nthe user")
    monkeypatch.setattr("refsgd.cli.run.carry_out", lambda _: exec("raise error", {"error": error}))
    assert main(["run", "bsp", *shlex.split(SMALL)]) == 1
    said = capsys.readouterr().err
    assert " ".join(str(error).split()) in said and said.count("\n") == 1


# -- strict JSON --------------------------------------------------------------------------------------------


def loose(text):
    """The lines that write JSON in which NaN may stand."""
    calls = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and ast.unparse(n.func) in ("json.dumps", "json.dump")]
    return [n.lineno for n in calls if "allow_nan=False" not in map(ast.unparse, n.keywords)]


def test_every_writer_of_json_is_strict():
    assert loose("import json\njson.dumps(x)\njson.dump(x, f, allow_nan=True)\njson.dumps(x, allow_nan=False)") == [2, 3]
    found = {str(path): lines for room in ("refsgd", "benchmarks", "docs", "tutorials") for path in (ROOT / room).rglob("*.py")
             if "json.dump" in (text := path.read_text(encoding="utf-8")) and (lines := loose(text))}
    assert found == {}


def test_numbers_that_are_not_finite_have_a_form():
    value = {"a": [float("nan"), (1.0, -float("inf"))], "b": float("inf")}
    assert json.loads(json_text(value), parse_constant=pytest.fail) == {"a": [None, [1.0, "-inf"]], "b": "inf"}
    assert infinities({"staleness": "inf", "rule": "information"}) == {"staleness": float("inf"), "rule": "information"}


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("command", ["run ssp {} --staleness inf --json", "run ssp {} --staleness inf --trace", "run ssp {} --staleness inf --player",
                                     "compare --runtime simulator --algorithms ssp --staleness inf {} --plot x.png --json",
                                     "predict ssp {} --staleness inf --json", "run ssp {} --staleness inf --record"])
def test_what_is_infinite_in_a_run_is_strict_json_in_its_files(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(command.replace("{}", SMALL)), "file"]) == 0
    text = Path("file").read_text(encoding="utf-8")
    if "--player" not in command:
        lines = text.splitlines()
        for part in [line.rpartition(" ")[0] for line in lines] if "--record" in command else [text]:
            json.loads(part, parse_constant=pytest.fail)
    if "--record" in command:
        assert main(["replay", "file"]) == 0 and "ssp staleness=inf" in capsys.readouterr().out
