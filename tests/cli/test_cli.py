"""The command line: JSON, files, and one clear line for every mistake."""

import io
import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import fields
from pathlib import Path

import numpy as np
import psutil
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE, COMPARED
from refsgd.cli import main, parsed
from refsgd.cluster.distributions import FAMILIES
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import PRESETS
from refsgd.experiment.arguments import options_of
from refsgd.experiment.computer.calibrate import Calibration, Point
from refsgd.experiment.options.architectures import ARCHITECTURES
from refsgd.experiment.result import Result
from refsgd.trace.metrics import METRICS

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
SMALL = ["--data", "quadratic", "--steps", "5", "--quiet"]


def refuse(capsys, *arguments):
    """Run the command line; its exit code and the one line that it wrote, but for that on kernels, which
    a first run compiles."""
    code = main(list(arguments))
    out, err = capsys.readouterr()
    err = "".join(line for line in err.splitlines(keepends=True)
                  if not line.startswith("refsgd: compiling kernels"))
    assert out == "" and err.count("\n") == 1, (out, err)
    return code, err


@pytest.mark.parametrize(("arguments", "expected"), [
    (["run", "sgdd"], "sgdd"),
    (["run", "spp"], "did you mean ssp?"),
    (["compare", "bsp,asp"], "bsp,asp: expected algorithms separated by commas, after --algorithms"),
    (["race", "bsp", "asp"], "asp: expected algorithms separated by commas, as one word"),
    (["run"], "no algorithm; expected one of those that refsgd list shows"),
    (["rnu", "ssp"], "did you mean run?"),
    (["race", "--algorithms", "bsp,asp"], "race has no option --algorithms; expected what follows it without --algorithms"),
    (["explore", "ssp", "--workers", "0"], "workers 0; expected at least 1"),
    (["explore", "ssp", "--servers", "0"], "servers 0; expected at least 1"),
    (["predict", "bsp", "--against", "asp"], "--against asp without a sweep; expected --sweep"),
    (["advise", "--parameters", "1000", "--flops", "1e6", "--rate", "-1"],
     "rate -1 FLOP/s; expected a finite number > 0"),
    (["run", "bsp", *SMALL, "--workers", "0"], "workers 0; expected at least 1"),
    (["run", "bsp", *SMALL, "--servers", "0"], "servers 0; expected at least 1"),
    (["run", "bsp", *SMALL, "--latency", "-1"], "latency -1; expected a time >= 0"),
    (["run", "bsp", *SMALL, "--latency", "-5ms"], "latency -5ms; expected a time >= 0"),
    (["run", "bsp", *SMALL, "--bandwidth", "10"],
     "bandwidth 10 is 10 bytes/s; expected at least 1kB/s: did you mean 10Gbps?"),
    (["run", "bsp", *SMALL, "--bandwidth", "10B/s"],
     "bandwidth 10B/s is 10 bytes/s; expected at least 1kB/s\n"),
    (["advise", "--parameters", "1000", "--compute", "1", "--memory", "16"],
     "16 is 16 bytes; expected at least 1MB: did you mean 16GB?"),
    (["advise", "--parameters", "1000", "--flops", "1e6", "--rate", "5Gbps"],
     "'5Gbps' not understood; expected FLOP/s, such as 5e12 or 5TFLOPS"),
    (["run", "bsp", *SMALL, "--slow", "3=0"],
     "worker 3 at speed 0; expected a finite speed > 0, such as 3=0.5 for half speed"),
    (["advise", "--parameters", "1000", "--compute", "1", "--workers", "16", "--speeds", "0.5"],
     "speeds 0.5 for 1 worker in a run with 16"),
    (["run", "bsp", *SMALL, "--bandwidth", "0"], "bandwidth 0.0 bytes/s; expected"),
    (["run", "bsp", *SMALL, "--compute", "exponental(1)"], "distribution 'exponental' is unknown"),
    (["run", "bsp", *SMALL, "--compute", "pareto(0.02,0.5)"], "index > 1, otherwise there is no mean"),
    (["run", "bsp", *SMALL, "--speeds", "1,x"],
     "speeds '1,x'; expected numbers separated by commas, e.g. 1,1,4 or 15x1,0.5"),
    (["run", "bsp", *SMALL, "--speeds", "1,2"],
     "speeds 1,2 for 2 workers in a run with 4; expected a speed for each, such as 1,2,1,1, or workers 2"),
    (["compare", "--speeds", "1,2,3,4,5"], "for 5 workers in a run with 4"),
    (["predict", "sequential", "--speeds", "1,2"], "for 2 workers in a run with 4"),
    (["run", "bsp", "--data", "digitz"], "data 'digitz' is unknown; expected one of digits"),
    (["run", "bsp", "--data", "none"], "none with --net shapes:P"),
    (["data", "digits"], "data 'digits' cannot be fetched; expected one of mnist"),
    (["run", "bsp", "--net", "shapes:-5"], "net 'shapes:-5'; expected shapes: and a number of parameters"),
    (["predict", "bsp", "--sweep", "workers=32:1"],
     "goes down; expected the smaller end first, e.g. workers=1:32"),
    (["predict", "bsp", "--sweep", "workers=1:inf"], "sweep 'workers=1:inf' not understood"),
    (["predict", "bsp", "--sweep", "workers=4:4"], "sweep 'workers=4:4' not understood"),
    (["run", "bsp", *SMALL, "--lr", "nan"], "learning rate nan; expected"),
    (["run", "bsp", *SMALL, "--momentum", "1"], "momentum 1.0; expected"),
    (["run", "bsp", *SMALL, "--schedule", "linear"], "schedule 'linear' not understood"),
    (["run", "bsp", *SMALL, "--epochs", "1"], "expected one of the two"),
    (["run", "bsp", *SMALL, "--seed", "-1"], "seed -1; expected"),
    (["run", "bsp", "--steps", "-5"], "steps -5; expected"),
    (["run", "ssp", *SMALL, "--staleness", "-1"], "staleness -1; expected"),
    (["run", "bsp", *SMALL, "--aggregation", "median"], "median"),
    (["run", "bsp", *SMALL, "--runtime", "cloud"], "cloud"),
    (["run", "bsp", "--net", "huge"], "net 'huge' is unknown; expected one of tiny"),
    (["run", "bsp", "--net", "shallow"], "data digits has images of shape (8, 8, 1)"),
    (["run", "bsp", "--batch", "0"], "batch 0; expected"),
    (["run", "bsp", *SMALL, "--plot", "x.bmp"], "expected a name that ends in .png"),
    (["run", "bsp", *SMALL, "--json", "nowhere/x.json"], "no folder nowhere"),
    (["compare", "--algorithms", "bsp,nope"], "algorithm 'nope' is unknown"),
    (["predict", "bsp", "--compute", "none"], "no formula covers"),
    (["ssp"], "ssp is an algorithm; did you mean: refsgd run ssp"),
    (["AD-PSGD", "--workers", "4"], "adpsgd is an algorithm; did you mean: refsgd run adpsgd"),
    (["run", "ssp", *SMALL, "--stalness", "3"],
     "run ssp has no option --stalness; did you mean --staleness?"),
    (["run", "bsp", *SMALL, "--staleness=3"],
     "run bsp has no option --staleness; approximate, consgd, dynsgd, ssp have it"),
    (["run", "bsp", *SMALL, "--stalness", "3"],
     "run bsp has no option --stalness; did you mean --staleness? approximate, consgd, dynsgd, ssp have it"),
    (["compare", "--algoritms", "bsp"], "compare has no option --algoritms; did you mean --algorithms?"),
    (["run", "bsp", "-x"], "run bsp has no option -x; see refsgd run bsp --help"),
    (["run", "bsp", "--net", "resnet-50"],
     "or shapes:P for a shape-only net of P parameters; did you mean resnet50?"),
    (["advise", "--net", "bert", "--rate", "1e12"], "vgg16, or --parameters and --flops"),
    (["run", "bsp", "--data", "Fashion_MNIST"], "did you mean fashion-mnist?"),
    (["run", "bsp", "--epochs", "0"], "epochs 0.0; expected a number > 0 (steps may be 0)"),
])
def test_wrong_use_is_one_line_and_exit_code_2(capsys, arguments, expected):
    code, line = refuse(capsys, *arguments)
    assert code == 2 and expected in line and line.startswith("refsgd: ")


@pytest.mark.parametrize("arguments", [[], ["help"], ["help", "run"], ["help", "run", "SSP"]])
def test_no_command_and_help_show_the_help(capsys, arguments):
    assert main(arguments) == 0
    shown, error = capsys.readouterr()
    assert main([*arguments[1:], "--help"]) == 0
    assert shown == capsys.readouterr().out and "usage: refsgd" in shown and error == ""


@pytest.mark.parametrize("command", ["run", "predict"])
def test_an_algorithm_is_known_in_any_case_and_with_or_without_hyphens(capsys, command):
    found = []
    for name in ("staleness-aware", "StalenessAware", "STALENESS_AWARE"):
        assert main([command, name, *SMALL, "--json", "-"]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("given", "warns"), [
    ("run bsp --steps 2 --batch 4 --compute 20ms", True), ("run bsp --steps 2 --batch 256 --json -", True),
    ("predict bsp --batch 8 --compute exponential(1s)", True), ("predict bsp --sweep batch=16,32 --json -", True),
    ("compare --algorithms bsp --runtime simulator --no-hard --epochs 0.1 --batch 64 --json -", True),
    ("run bsp --steps 2 --compute 20ms", False), ("run bsp --steps 2 --batch 16 --compute 20ms", False),
    ("run bsp --steps 2 --batch 4 --compute device(1GFLOPS)", False), ("run bsp --steps 2 --batch 4 --compute none", False),
    ("predict bsp --compute 20ms", False), ("predict bsp --sweep workers=2,4 --json -", False),
    ("predict bsp --net shapes:resnet50@224 --data none --batch 32 --machine das5-ethernet", False)])
def test_a_batch_that_times_do_not_follow_is_warned_of_once(given, warns, capsys):
    assert main([*given.split(), *(["--net", "softmax"] if "--net" not in given else [])]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(said) == warns and all("times in seconds do not follow the batch; --compute 'device(" in line
                                      for line in said)


def test_zero_steps_are_a_run(capsys):
    assert main(["run", "bsp", "--data", "quadratic", "--steps", "0", "--quiet", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["measured"]["updates"] == 0


def test_help_and_list_name_every_law(capsys):
    for arguments in (["run", "bsp", "--help"], ["advise", "--help"], ["list"]):
        assert main(arguments) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert all(f"{name}(" in shown for name in (*FAMILIES, "empirical")), arguments


@pytest.mark.parametrize("command", [["run", "bsp", "--data", "quadratic"],
                                     ["compare", "--algorithms", "bsp,asp", "--runtime", "simulator",
                                      "--data", "quadratic"]])
def test_a_long_run_is_announced_in_a_pipe_too_and_a_short_one_is_not(capsys, tmp_path, monkeypatch, command):
    monkeypatch.setattr("refsgd.experiment.computer.limits.gradient_seconds", lambda problem: (0.5, 0.5))
    monkeypatch.chdir(tmp_path)
    for steps, announced in ((2, False), (40, True)):
        for quiet in ([], ["--quiet"]):
            assert main([*command, "--steps", str(steps), "--json", "-", *quiet]) == 0
            lines = capsys.readouterr().err.splitlines()
            runs, about = (1, "80 s") if command[0] == "run" else (2, "3 min")
            text = (
                f"refsgd: {'the run' if runs == 1 else '2 runs'} will take about {about}: a gradient takes "
                "500 ms here")
            assert lines == ([text] if announced and not quiet else [])


@pytest.mark.parametrize(("text", "expected"),
                         [("def f(: pass", "SyntaxError"), ("f = absent", "NameError: name 'absent'")])
def test_a_module_that_does_not_run_is_one_line(capsys, tmp_path, text, expected):
    mine = tmp_path / "mine.py"
    mine.write_text(text)
    code, line = refuse(capsys, "check", f"{mine}:f")
    assert code == 2 and expected in line and "expected a module that can be imported" in line


def test_a_result_that_could_not_be_written_is_refused_before_anything_runs(capsys, tmp_path, monkeypatch):
    code, line = refuse(capsys, "run", "bsp", *SMALL, "--json", str(tmp_path))
    assert code == 2 and "it is a folder; expected a file's name" in line

    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write anywhere
    code, line = refuse(capsys, "run", "bsp", *SMALL, "--json", str(tmp_path / "x.json"))
    assert code == 2 and f"the folder {tmp_path} is not writable" in line and not list(tmp_path.iterdir())


def test_step_goes_on_until_a_worker_is_held_back(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("u block\nw\nu nothing\nq\n"))
    assert main(["step", "ssp", "--staleness", "0"]) == 0
    out = capsys.readouterr().out
    assert "* server0 holds worker0 back, to keep the bound\n" in out and "worker0 waits: server0 holds the answer to Push#0 back" in out
    assert "waiting {worker0}" not in out  # variables on request: `w server0`
    assert "no event 'nothing' happens in this run; expected one of block" in out


def test_missing_and_damaged_data_is_one_line_and_exit_code_1(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("REFSGD_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, line = refuse(capsys, "run", "bsp", "--data", "mnist", "--quiet")
    assert code == 1 and "mnist: no files in" in line and "REFSGD_DATA" in line
    (tmp_path / "mnist").mkdir()
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
                 "t10k-labels-idx1-ubyte.gz"):
        (tmp_path / "mnist" / name).write_bytes(b"\x1f\x8b\x08\x00cut short")
    code, line = refuse(capsys, "run", "bsp", "--data", "mnist", "--quiet")
    assert code == 1 and "train-images" in line


def test_a_diverging_run_is_one_line_and_writes_nothing(capsys, tmp_path):
    target = tmp_path / "out.json"
    code, line = refuse(capsys, "run", "asp", "--lr", "1e6", "--epochs", "1", "--json", str(target),
                        "--quiet")
    assert code == 1 and "loss is" in line and "worker" in line and "step" in line and "lower the learning rate" in line
    assert list(tmp_path.iterdir()) == []


def test_nan_in_the_starting_point_is_refused():
    problem = refsgd.problems.quadratic()
    object.__setattr__(problem, "x0", np.full(10, np.nan, np.float32))
    with pytest.raises(ValueError, match="NaN"):
        refsgd.run("bsp", problem, steps=1)


def test_json_goes_to_standard_output_alone_and_reads_back(capsys):
    assert main(["run", "ssp", *SMALL, "--staleness", "inf", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    def strictly(constant):
        raise AssertionError(f"{constant} is no JSON")

    data = json.loads(out, parse_constant=strictly)
    assert err == "" and data["format"] == 2 and data["options"] == {"staleness": "inf"}
    back = Result.from_json(out)
    assert back.options == {"staleness": float("inf")} and json.loads(back.to_json()) == data
    assert {*data["measured"]} == {name for name, metric in METRICS.items() if metric.of}
    assert {"value", "kind", "terms", "formula"} <= set(data["predicted"]["seconds_per_iteration"])


def test_json_without_a_loss_is_strict_json_too(capsys):
    assert main(["run", "bsp", "--net", "shapes:1000", "--data", "none", "--steps", "2", "--json", "-"]) == 0
    out = capsys.readouterr().out
    assert "NaN" not in out and json.loads(out)["loss"] is None and np.isnan(Result.from_json(out).loss)


def test_an_output_leaves_links_pipes_and_devices_what_they_are(tmp_path, capsys):
    """A link's file gets the new contents, a pipe's reader the bytes; os.replace() would put a file in
    their places."""
    real, link, pipe = tmp_path / "real.json", tmp_path / "link.json", tmp_path / "pipe"
    real.write_text("old")
    link.symlink_to(real)
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    for path in (link, pipe):
        assert main(["run", "bsp", *SMALL, "--json", str(path)]) == 0
    reader.join(10)
    assert link.is_symlink() and json.loads(real.read_text()) == json.loads(got[0]) and stat.S_ISFIFO(
        pipe.stat().st_mode)
    assert main(["run", "bsp", *SMALL, "--json", os.devnull]) == 0 and stat.S_ISCHR(
        os.stat(os.devnull).st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.json", "pipe", "real.json"]


@pytest.mark.parametrize("command",
                         [["calibrate", "--output", "nowhere/m.json"], ["calibrate", "--output", "."]])
def test_what_takes_long_looks_first_where_it_may_write(capsys, monkeypatch, command):
    monkeypatch.setattr("refsgd.experiment.computer.calibrate.calibrate",
                        lambda *rest: pytest.fail("it measured first"))
    code, line = refuse(capsys, *command)
    assert code == 2 and "cannot write" in line


@pytest.mark.parametrize("command", [["compare"], ["predict", "bsp", "--sweep", "workers=1:3"]])
def test_a_picture_that_nobody_named_is_looked_for_a_place_too(capsys, monkeypatch, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    # root may write anywhere
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).resolve() != tmp_path.resolve())
    code, line = refuse(capsys, *command)
    assert code == 2 and "the folder . is not writable" in line


@pytest.mark.parametrize("text", ["", "{}", '{"format": 3}', '{"format": 2}', '{"format": 1}'])
def test_a_wrong_result_file_is_refused(text):
    with pytest.raises(ValueError, match="expected"):
        Result.from_json(text)


def test_run_writes_picture_and_perfetto_trace(tmp_path, capsys):
    assert main(["run", "ssp", "--epochs", "0.3", "--servers", "2", "--quiet", "--plot",
                 str(tmp_path / "p.png"),
                 "--trace", str(tmp_path / "t.json"), "--json", str(tmp_path / "r.json")]) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} >= {"worker0", "worker3", "server0",
                                                                     "server1"}
    arrows = [e for e in events if e["ph"] in "sf"]
    assert len(arrows) > 10 and {e["ph"] for e in arrows} == {"s", "f"}
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.png", "r.json", "t.json"]


@pytest.mark.slow
def test_compare_in_the_simulator(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--runtime", "simulator", "--epochs", "0.1"]) == 0
    data = json.loads((tmp_path / "refsgd-compare.json").read_text())
    assert [row["algorithm"] for row in data["rows"]] == list(COMPARED)
    assert [row["algorithm"] for row in data["hard"]["rows"]] == list(COMPARED) and data["hard"][
        "runtime"] == "simulator"
    assert (tmp_path / "refsgd-compare.png").stat().st_size > 20_000
    out = capsys.readouterr().out
    assert "predicted" in out and "straggling" in out


def test_an_algorithm_that_diverges_does_not_end_the_comparison():
    comparison = refsgd.compare(["bsp", "asp"], runtime="simulator", epochs=1, options={"asp": {"lr": 1e6}})
    bsp, asp = comparison.rows
    assert bsp.simulated.accuracy and asp.simulated is None and "lower the learning rate" in asp.failed
    assert json.loads(comparison.to_json())["rows"][1]["failed"] == asp.failed


def test_options_that_may_be_none_are_numbers(capsys):
    assert main(["run", "easgd", *SMALL, "--alpha", "0.2", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["options"] == {"alpha": 0.2}
    assert main(["run", "staleness-aware", *SMALL, "--splitting", "2"]) == 0


def test_an_exploration_names_a_server_only_where_there_is_one_and_counts_in_the_singular(capsys):
    assert main(["explore", "bsp", "--workers", "1", "--steps", "1"]) == 0
    said = capsys.readouterr().out
    assert "bsp, 1 worker, 1 step: 1 schedule (all of them), 1 state\n" in said and "lead at a server: 0 clocks;" in said
    assert main(["explore", "allreduce", "--steps", "1"]) == 0
    said = capsys.readouterr().out
    assert "lead" not in said and "server" not in said and " 2 workers, 1 step: " in said


def test_the_predicted_updates_are_of_a_server_only_where_there_is_one(capsys):
    for name, whose in (("bsp", "updates of one server"), ("gosgd", "updates of each worker")):
        assert main(["predict", name]) == 0
        assert re.search(rf"^updates .*\n +formula +{whose}$", capsys.readouterr().out, re.M)


def test_explore_and_replay_and_check(capsys, tmp_path):
    assert main(["explore", "ssp", "--staleness", "1", "--workers", "2"]) == 0
    assert "schedules (all of them)" in capsys.readouterr().out
    path = tmp_path / "record.json"
    assert main(["run", "asp", *SMALL, "--runtime", "processes", "--compute", "exponential(0.004)",
                 "--record", str(path)]) == 0
    assert main(["replay", str(path)]) == 0 and "the same bits as recorded" in capsys.readouterr().out
    path.write_text(path.read_text().replace('"lr":0.15', '"lr":0.25'))
    assert main(["replay", str(path)]) == 1 and "altered in its first line" in capsys.readouterr().err
    assert main(["check", "asp", "--no-processes"]) == 0
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from refsgd.algorithms.server.asp import asp\ndef broken(problem, workers, steps, sgd):\n    return "
        "{}[0]\n")
    assert main(["check", f"{mine}:asp", "--no-processes"]) == 0
    assert main(["check", f"{mine}:broken", "--no-processes"]) == 1 and "KeyError" in capsys.readouterr().out
    assert main(["check", f"{mine}:absent"]) == 2 and main(["check", "nowhere"]) == 2 and main(
        ["replay", "nowhere"]) == 2


def test_predict_and_list(capsys):
    assert main(["predict", "bsp", "--compute", "exponential(0.02)", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds_per_iteration"]["value"] == pytest.approx(
        0.02 * 25 / 12)
    assert main(["predict", "ssp"]) == 0 and "seconds_per_iteration" in capsys.readouterr().out and main(
        ["list"]) == 0
    out = capsys.readouterr().out
    assert "lognormal(mean,cv)" in out
    named = re.findall(r"^  ([a-z][\w-]*  *)[^ ].*",
                       out.partition("nets\n")[0] + out.partition("machines\n")[2].partition("distributions ")[0],
                       re.M)
    assert len(named) == len({*CATALOGUE, *PRESETS, *ARCHITECTURES}) and len(set(map(len, named))) == 1 and len(
        max(map(str.rstrip, named), key=len)) + 1 == len(named[0])


def test_speeds_for_each_worker_are_taken(capsys):
    assert main(["run", "bsp", *SMALL, "--speeds", "1,2,1,1"]) == 0
    assert main(["run", "sequential", *SMALL, "--speeds", "2"]) == 0
    capsys.readouterr()
    # the sweep says how many there are
    assert main(["predict", "bsp", "--speeds", "1,2", "--sweep", "workers=1:4", "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["values"]) == 4


@pytest.mark.parametrize("text", ["{}", "two\nlines\n", "", '{"record": 2}\n'])
def test_what_is_no_record_cannot_be_replayed(capsys, tmp_path, text):
    path = tmp_path / "run.json"
    path.write_text(text)
    code, line = refuse(capsys, "replay", str(path))
    assert code == 1 and "not a record" in line and "run it again with --record" in line


@pytest.mark.parametrize(("others", "excess", "said"), [
    (0.0, 0.02, []), (1.5, 0.02, ["other processes used 1.5 of 2 cores"]),
    (0.0, 1.1, ["the mean time of equal gradients exceeded their median by 110%"]),
    (1.5, 1.1, ["1.5 of 2 cores and the mean time of equal gradients"])])
def test_a_calibration_of_a_busy_machine_is_doubted_in_one_line(capsys, monkeypatch, others, excess, said):
    describe = {"nets": ["tiny", "mlp"], "processor": "x", "cores": 2}
    found = Calibration(Machine(compute="device(1e9)"), (Point("tiny", 1, 1e6, 4000, 0.001, 0.0),), {}, describe, others, excess)
    monkeypatch.setattr("refsgd.experiment.computer.calibrate.calibrate", lambda *options: found)
    assert main(["calibrate", "--output", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["measured"] == describe and err.count("\n") == len(said)
    assert all(text in err and "expected an idle one: end other work, then calibrate again" in err
               for text in said)


def test_a_killed_worker_ends_the_run_and_leaves_nothing():
    command = [sys.executable, "-m", "refsgd", "run", "bsp", "--data", "quadratic", "--steps", "100000",
               "--runtime", "processes",
               "--compute", "fixed(0.02)", "--quiet"]
    shared = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 20
        children = []
        while len(children) < 5 and time.monotonic() < deadline:
            children = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.05)
        time.sleep(0.5)
        victim = children[2]
        victim.send_signal(signal.SIGKILL)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "worker2" in err and "SIGKILL" in err and str(victim.pid) in err and out == ""
    assert not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]
    assert (set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()) <= shared


def test_a_machine_survives_its_json():
    machine = Machine(compute="lognormal(0.02,0.5)", update=0.001, speeds=(1, 2), colocated=True)
    assert Machine.from_json(json.loads(json.dumps(machine.to_json()))) == machine
    with pytest.raises(ValueError, match="unknown keys"):
        Machine.from_json({"ram": 1})


def test_a_planned_death_is_named_as_planned_and_stands_in_the_summary(capsys):
    planned = ["--data", "quadratic", "--steps", "6", "--quiet", "--compute", "5ms", "--fault",
               "kill worker 2 at step 3"]
    assert main(["run", "asp", *planned, "--runtime", "processes"]) == 1
    error = capsys.readouterr().err
    assert "worker2 (pid " in error and "was killed by SIGKILL (as planned: kill worker2 at step 3): " in error and "by hand" not in error
    assert main(["run", "asp", *planned, "--on-death", "continue"]) == 0
    assert re.search(r"^deaths     worker2 at 0\.0\d+ s$", capsys.readouterr().out, re.MULTILINE)


def test_a_player_is_announced_with_what_it_shows(capsys, tmp_path):
    page = tmp_path / "page.html"
    for steps, shown in ((200, 500), (2, None)):
        assert main(["run", "bsp", "--data", "quadratic", "--steps", str(steps), "--quiet", "--player",
                     str(page)]) == 0
        found = re.search(rf"^player: {re.escape(str(page))}, events 1 to (\d+) of (\d+)$",
                          capsys.readouterr().out, re.MULTILINE)
        assert found and int(found[1]) == (shown or int(found[2])) and int(found[2]) >= int(found[1])


def test_the_summary_of_a_net_in_name_only_says_so(capsys):
    assert main(["run", "bsp", "--net", "shapes:1000", "--data", "none", "--steps", "3", "--quiet"]) == 0
    assert "parameters none (a shape-only net), schedule " in capsys.readouterr().out


def test_no_option_of_an_algorithm_is_an_option_of_its_machine_or_run():
    """Else the parser of a command fails."""
    for name, function in CATALOGUE.items():
        for command in ("run", "predict", "step", "explore"):
            parsed([command, name])
        assert not {f.name for f in fields(Machine)} & options_of(function).keys(), function


def test_a_quiet_command_leaves_the_loggers_of_its_process_as_they_were(capsys):
    """A notebook that calls `main` still hears of refused connections afterwards."""
    log = logging.getLogger("refsgd.tcp")
    level = log.level
    assert main(["run", "bsp", *SMALL]) == 0
    assert main(["run", "no-such", "--quiet"]) == 2
    assert log.level == level
