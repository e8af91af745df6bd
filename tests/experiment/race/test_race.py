"""Whole races, small ones: fairness, files, resumption, other machines."""

import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.experiment.arguments import Usage
from refsgd.experiment.race import runs
from refsgd.experiment.race.entries import Interrupted
from refsgd.experiment.race.race import Entrant, race
from tests.experiment.race.test_target import bowl
from tests.marks import mostly_long

FIXED = refsgd.Machine(compute="fixed(0.01)", latency=0.001, bandwidth=50e6)
DRAWN = refsgd.Machine(compute="lognormal(0.015,0.3)", latency=0.001, bandwidth=50e6)


def small(algorithms=("bsp", "asp"), **more):
    given = {"target": "loss=0.8", "seeds": 3, "tuning": 1, "workers": 4, "machine": DRAWN, "rates": [0.08, 0.2]}
    return race(list(algorithms), **{**given, **more})


@pytest.fixture(scope="module")
def whole():
    return small(seeds=6)


def test_two_names_of_one_algorithm_get_the_same_row():
    found = small(["bsp", "bsp aggregation=mean"])
    one, other = ({**vars(row), "label": "", "arguments": {}} for row in found.rows)
    assert one == other and found.letters["bsp"] == found.letters["bsp aggregation=mean"]


@pytest.mark.slow
def test_a_permutation_of_the_algorithms_changes_nothing():
    names = ["bsp", "asp", "gosgd"]
    assert len({small(order, rates=[0.2]).to_json() for order in (names, names[::-1])}) == 1


@pytest.mark.slow
def test_several_processes_make_the_same_race():
    assert small(jobs=2).to_json() == small().to_json()


def test_the_rules_are_the_same_for_all(monkeypatch):
    """Asserted on all runs of a race: seeds, evaluations and limits, and that no seed is used twice."""
    made = []
    run = Entrant.run

    def noted(self, asked):
        made.append((self.label, asked, self.every / self.per_pass, self.most / self.per_pass))
        return run(self, asked)

    monkeypatch.setattr(Entrant, "run", noted)
    found = small(["bsp", "asp"], tuning=2, rates=None, target="loss=1")
    assert not set(found.seeds) & set(found.tuning)
    rate = {row.label: row.rate for row in found.rows}
    for label in rate:
        mine = [asked for name, asked, *_ in made if name == label]
        by_rate = {r: [a.seed for a in mine if a.rate == r] for r in {a.rate for a in mine}}
        assert all(seeds == found.tuning for r, seeds in by_rate.items() if r != rate[label])
        assert by_rate[rate[label]] == [*found.tuning, *found.seeds]
        assert {a.most for a in mine if a.seed in found.seeds} == {max(a.most for a in mine)}
    assert {most for *_, most in made} == {10.0}
    assert max(every for *_, every, _ in made) < 0.15


@pytest.mark.slow
def test_a_file_has_the_whole_race(tmp_path, whole):
    path = tmp_path / "race.json"
    path.write_text(whole.to_json())
    again = refsgd.Race.load(path)
    assert again.to_json() == whole.to_json() and again.letters == whole.letters
    assert json.loads(whole.to_json())["rows"][0]["seconds"] == whole.rows[0].seconds


@pytest.mark.parametrize("text,said", [("{", "not JSON"), ("{}", "not a race of format 1"), ("[]", "not a race"),
                                       ('{"format": 1, "race": "loss=1"}', "machine is missing")])
def test_another_file_is_refused(tmp_path, text, said):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(Usage, match=said):
        refsgd.Race.load(path)


SHARED = ("bsp", "local-sgd period=4", "dpsgd", "allreduce", "sgp", "bsp servers=2")


@pytest.mark.slow
@pytest.mark.parametrize("machine", [FIXED, DRAWN], ids=["fixed", "drawn"])
def test_where_parameters_are_the_same_another_machine_is_exact(machine):
    slow = machine.with_(speeds=(1, 1, 1, 0.25), bandwidth=5e6)
    here, there = small(SHARED, machine=machine, rates=[0.2]), small(SHARED, machine=slow, rates=[0.2])
    moved = {row.label: row for row in here.on(slow).rows}
    for row in there.rows:
        assert moved[row.label].how == "exact"
        assert moved[row.label].heats == row.heats, row.label
    assert {row.label: row.seconds for row in here.rows} != {row.label: row.seconds for row in there.rows}


def test_elsewhere_passes_are_taken_over(whole):
    moved = whole.on(DRAWN.slow_motion(3))
    asp, = (row for row in moved.rows if row.label == "asp")
    before, = (row for row in whole.rows if row.label == "asp")
    assert asp.how == "predicted" and asp.passes == before.passes
    assert asp.seconds == pytest.approx(3 * before.predicted) and moved.trained == whole.machine
    again = moved.on(DRAWN)
    assert [row.label for row in again.rows] == [row.label for row in moved.rows]


def test_a_log_spares_the_runs_that_it_has(tmp_path, monkeypatch, whole):
    log = tmp_path / "runs.jsonl"
    assert small(seeds=6, resume=str(log)).to_json() == whole.to_json()
    lines = log.read_text().splitlines()
    kept = lines[:len(lines) // 2]
    log.write_text("\n".join(kept) + "\n" + lines[-1][:20])  # cut off in the middle of a line
    count, run = [0], Entrant.run

    def counted(self, asked):
        count[0] += 1
        return run(self, asked)

    monkeypatch.setattr(Entrant, "run", counted)
    assert small(seeds=6, resume=str(log)).to_json() == whole.to_json()
    assert count[0] == len(lines) - len(kept) and log.read_text().splitlines() == lines
    for text in ("no race\n{}\n", "no race"):
        log.write_text(text)
        with pytest.raises(Usage, match="line 1"):
            small(resume=str(log))
        assert log.read_text() == text


@pytest.mark.slow
def test_another_race_does_not_take_the_runs_of_a_log(tmp_path):
    log = tmp_path / "runs.jsonl"
    small(resume=str(log), rates=[0.2])
    one = len(log.read_text().splitlines())
    small(resume=str(log), rates=[0.2], momentum=0.5)
    assert len(log.read_text().splitlines()) == 2 * one


def test_a_log_tells_the_options_of_one_algorithm_apart(tmp_path):
    log = tmp_path / "runs.jsonl"
    for momentum in (0.0, 0.5):
        small(["bsp"], resume=str(log), rates=[0.2], options={"bsp": {"momentum": momentum}})
    assert log.read_text().count("momentum=0.5") == log.read_text().count("momentum=0.0") > 0


OWN = "from refsgd.algorithms.server.asp import asp\n\n\ndef mine(problem, workers, steps, sgd):\n    return asp(problem, workers, steps, sgd)\n"


def test_a_log_has_no_runs_of_a_file_that_has_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "runs.jsonl"
    counts = []
    for text in (OWN, OWN, OWN + "# changed\n"):
        (tmp_path / "mine.py").write_text(text)
        small(["mine.py:mine"], resume="runs.jsonl", rates=[0.08])
        counts.append(len(log.read_text().splitlines()))
    assert counts[0] == counts[1] < counts[2]
    with pytest.raises(Usage, match="no log can name"):
        small(["bsp"], problem=bowl(4), target="loss=1", resume=str(log))


def test_an_interrupted_race_has_what_is_complete(monkeypatch):
    seen = []

    def progress(text, share):
        seen.append(share)
        if text.startswith("asp") and "seed 1" in text:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stop:
        small(["bsp", "asp"], rates=[0.2], progress=progress)
    assert [row.label for row in stop.value.race.rows] == ["bsp"]
    assert seen == sorted(seen)


def test_a_problem_of_your_own_races_but_stays_here():
    problem = bowl(4)
    found = race(["bsp", "asp"], problem=problem, target="loss=1", seeds=3, tuning=1, workers=4, machine=DRAWN)
    assert all(row.reached == 3 for row in found.rows) and not found.references
    with pytest.raises(Usage, match="of your own"):
        found.on(FIXED)


@pytest.mark.parametrize("data,target", [("quadratic", "loss=6"), ("lasso", "loss=0.6"),
                                         ("quadratic:0.1,1,4,0.01", "loss=0.2")])
def test_data_without_images_race(data, target):
    found = small(["bsp", "asp"], data=data, target=target, rates=None)
    assert all(math.isfinite(heat.points[0].value) for row in found.rows for heat in row.heats)
    assert bool(found.references) == (data == "lasso")


def test_the_reference_is_sequential_sgd_with_the_batch_of_a_worker():
    beside = small(["sequential", "bsp"], batch=32)
    row, = (row for row in beside.rows if row.label == "sequential")
    alone = small(["sequential"], batch=32, workers=1)
    assert row.heats == alone.rows[0].heats
    times = 4 / 0.015
    assert beside.references["linear speed-up of sequential SGD"] == pytest.approx(
        row.passes * row.per_pass / times)


@pytest.mark.parametrize("rule", [{"warmup": 60}, {"schedule": "step(20,0.5)"}, {"start": "start.npy"}])
def test_the_reference_has_the_training_of_the_others(rule, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("start.npy", refsgd.run("bsp", steps=3, lr=0.1).parameters)
    assert small(["bsp"], **rule).references == small(["bsp", "sequential"], **rule).references


def test_no_run_that_arrives_is_an_answer():
    found = small(["bsp"], target="loss=0.001", passes=0.5)
    assert found.rows[0].seconds == math.inf and found.rows[0].reached == 0
    assert json.loads(found.to_json())["rows"][0]["seconds"] == "inf"


@pytest.mark.parametrize("more,said", [
    ({"lr": 0.1}, "tunes the rate"), ({"seeds": 2}, "at least 3"), ({"seeds": 100}, "at most 99"),
    ({"tuning": 0}, "at least 1"), ({"tuning": 10}, "at most 9"), ({"rates": []}, "at least one"),
    ({"rates": [-1.0]}, "all > 0"), ({"cadence": 0}, r"\(0, 1\]"), ({"passes": 0}, "> 0"),
    ({"runtime": "processes"}, "measure"), ({"epochs": 3}, "passes"), ({"seed": 3}, "seeds"),
    ({"target": "validation=0.9"}, "--validation SHARE"), ({"net": "shapes:1000", "data": "none"}, "cannot learn"),
    ({"target": "loss=5"}, "met before the first step"), ({"machine": refsgd.Machine()}, "compute times"),
    ({"budget": 0.001}, "--budget"), ({"schedule": "cosine"}, "length of a run")])
def test_what_a_race_refuses(more, said):
    with pytest.raises(Usage, match=said):
        small(**more)


@pytest.mark.parametrize("name", ["sandblaster", "strads"])
def test_algorithms_whose_steps_have_no_rate_are_refused(name):
    with pytest.raises(Usage, match="in a race"):
        small([name])


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_long(
    [name for name in CATALOGUE if name not in ("sandblaster", "strads")], "ssp", "easgd", "zero", "adpsgd", "hogwild", "gpipe", "ako"))
def test_every_other_algorithm_races(name):
    options = {"stages": 4} if name in ("gpipe", "pipedream") else {}
    found = race([name], target="loss=0.5", seeds=3, tuning=1, workers=4, machine=DRAWN, jobs=2,
                 options={name: options})
    assert found.rows[0].reached == 3


def test_validation_accuracy_is_a_target():
    found = small(["bsp"], target="validation=0.7", validation=0.1)
    assert found.rows[0].reached == 3


@pytest.mark.slow
def test_ctrl_c_on_the_command_line_prints_what_is_complete(tmp_path):
    """No process of the pool is left, and the exit code is 130."""
    child = subprocess.Popen(
        [sys.executable, "-m", "refsgd", "race", "sequential,bsp,gosgd", "--target", "loss=0.2", "--seeds", "99",
         "--budget", "1e6", "--resume", str(tmp_path / "log")], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))  # a job in the background ignores it
    deadline = time.monotonic() + 300
    log = tmp_path / "log"
    while not (log.exists() and len(log.read_text().splitlines()) > 12) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=300)
    assert child.returncode == 130 and "interrupted" in said, (child.returncode, said)
    with pytest.raises(ProcessLookupError):  # its last processes are perhaps just ending
        while time.monotonic() < deadline + 60:
            os.killpg(child.pid, 0)
            time.sleep(0.05)


def test_a_process_that_is_killed_ends_the_race_with_an_error():
    def run(number, asked):
        os.kill(os.getpid(), signal.SIGKILL)

    def program():
        yield [runs.Asked(0.1, 0, 1.0, False)]

    with pytest.raises(RuntimeError, match="killed"):
        runs.carried_out([program()], ["bsp"], run, runs.Log(None, ""), 2, lambda *a: None, lambda *a: None)


@pytest.mark.long
def test_the_default_race_is_short_and_its_estimate_right():
    """Within 180 s of processor time; every default algorithm arrives with all seeds, at a rate inside its grid."""
    said, before = [], [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found = race(jobs=2, say=said.append)
    after = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    took = sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(before, after))
    estimate = float(re.search(r"about (\d+) s", said[0])[1])
    assert took < 180 and 2 / 3 < estimate / took < 4 / 3, (took, estimate)
    for row in found.rows:
        assert row.reached == 7 and min(row.tried) < row.rate < max(row.tried), row.label
