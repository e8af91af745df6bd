"""Batches of unequal workers: read, shared by speed, weighted, kept by records and restarts, and measured."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd import Machine
from refsgd.cli import main
from refsgd.experiment.options.batches import batches_of, shares
from refsgd.experiment.prepare import Usage, prepare
from refsgd.problems import quadratic
from refsgd.runtimes.journal import read

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
FIXED = Machine(compute="fixed(10ms)")
PANI = FIXED.with_(speeds=(20, 1))


@pytest.mark.parametrize("batch, workers, found", [
    (16, 3, 16), ("16", 3, 16), ((20, 1), 2, [20, 1]), ("20,1", 2, [20, 1]), ("3x8,2", 4, [8, 8, 8, 2]),
    ("5,5", 2, 5), (np.int64(4), 2, 4), ("auto:21", 2, [14, 7]), ("auto:20", 1, 20)])
def test_batches_are_read(batch, workers, found):
    assert batches_of(batch, workers, Machine(speeds=(2, 1)[:workers])) == found


@pytest.mark.parametrize("batch, says", [
    ("20;1", "batch '20;1'; expected images for each worker, such as 20,1 or 15x20,1, or auto:21"),
    ("auto:x", "batch 'auto:x'; expected images"), ("auto", "batch 'auto'; expected images"),
    ("2.5,1", "batch '2.5,1'; expected images"), ("20,0", "batch 0; expected at least 1"),
    ("auto:0", "batch 0; expected at least 1"), (0, "batch 0; expected at least 1"),
    ((20, 1.5), "batch 1.5 of type float; expected a whole number"),
    ("20,1,1", "batch 20,1,1 for 3 workers in a run with 2; expected one for each, or auto:22, which divides"),
    ("auto:21:4", "bounds '4'; expected least..most"), ("auto:21:11..", "2 shares of 11 to inf, whose sum is 21"),
    ("auto:9", "leaves no image for worker 1, whose speed is 1 of 21 in total; expected at least auto:21, auto:9:1.. or a machine")])
def test_what_is_no_batch_is_refused(batch, says):
    with pytest.raises(Usage, match=says):
        batches_of(batch, 2, PANI)


def test_gradients_of_no_time_have_a_speed_only_if_they_are_alike():
    assert batches_of("auto:21", 2, PANI.with_(compute=0)) == [20, 1]
    with pytest.raises(Usage, match=r"fixed\(0\) gives worker 1 no finite speed; expected a mean time > 0 for each"):
        batches_of("auto:21", 2, FIXED.with_(compute="20ms; 0"))


speeds = st.lists(st.floats(0.05, 50), min_size=1, max_size=8)


@given(speeds, st.integers(1, 3000))
def test_shares_by_speed_sum_to_the_whole_grow_with_speed_and_leave_nobody_out(speeds, total):
    machine = Machine(speeds=tuple(speeds))
    try:
        found = shares(f"auto:{total}", len(speeds), machine)
    except Usage as refused:  # the batch that it names is large enough
        found = shares(str(refused).split("at least ")[1].split(",")[0], len(speeds), machine)
    else:
        assert sum(found) == total
    assert min(found) >= 1
    for i, s in enumerate(speeds):
        assert abs(found[i] - sum(found) * s / sum(speeds)) < 1 + 1e-9
        assert all(found[i] >= found[j] for j, other in enumerate(speeds) if s > other)


def test_one_worker_for_all_takes_the_sum():
    for batch in ("20,1", "auto:21", 21):
        assert prepare("sequential", workers=2, machine=PANI, batch=batch, data="digits").batches == [21]


@pytest.mark.parametrize("name", ["bsp", "allreduce"])
def test_twenty_to_one_learns_what_one_worker_learns_with_the_whole_batch(name):
    """Pani et al., section VI; the epoch's short last batch, dealt in proportion, included."""
    one = refsgd.run("sequential", batch=21, epochs=2, net="softmax", machine=FIXED)
    two = refsgd.run(name, workers=2, batch="auto:21", epochs=2, net="softmax", machine=PANI)
    assert two.steps == one.steps == 138 and two.accuracy == one.accuracy
    assert np.allclose(two.parameters, one.parameters, atol=1e-5)
    assert [row[2] for row in two.history] == [row[2] for row in one.history]  # images at each version
    assert two.problem["batch"] == 10.5 and two.problem["batches"] == [20, 1]
    assert "batches 20,1" in two.summary()


def test_twenty_to_one_takes_20_of_21_of_the_fast_nodes_time_and_equal_shares_ten_times_as_long():
    """Pani et al., section VI, on devices, whose time follows the batch; 34 whole steps of the 34.2 of an epoch."""
    pair = Machine(compute="device(1GFLOPS)", speeds=(20, 1))
    alone = refsgd.run("sequential", batch=42, steps=34, machine=pair.with_(speeds=(20,)))
    split, equal = (refsgd.run("bsp", workers=2, batch=b, steps=34, machine=pair) for b in ("auto:42", 21))
    assert split.problem["batches"] == [40, 2] and "batches" not in equal.problem
    assert split.measured["seconds"] == pytest.approx(alone.measured["seconds"] * 20 / 21, rel=1e-12)
    assert equal.measured["seconds"] == pytest.approx(alone.measured["seconds"] * 10, rel=1e-12)
    assert split.accuracy == equal.accuracy == alone.accuracy
    assert split.measured["idle_ratio"] == pytest.approx(0, abs=1e-12)
    for run in (split, equal, alone):
        assert run.predicted["seconds"]["kind"] == "exact"
        assert run.predicted["seconds"]["value"] == pytest.approx(run.measured["seconds"], rel=1e-12)
    images = 42 / split.measured["seconds_per_iteration"]
    assert split.measured["images_per_second"] == pytest.approx(images)


@pytest.mark.slow
def test_processes_take_as_long_as_batches_by_speed_do():
    pair = Machine(compute="device(10MFLOPS)", speeds=(20, 1))
    given = {"workers": 2, "batch": "auto:42", "steps": 12, "machine": pair}
    simulated, real = refsgd.run("bsp", **given), refsgd.run("bsp", runtime="processes", **given)
    assert real.parameters_sha256 == simulated.parameters_sha256
    assert real.measured["seconds"] == pytest.approx(simulated.measured["seconds"], rel=0.05)


def test_images_per_second_count_each_workers_own():
    synchronous = refsgd.run("bsp", workers=2, batch="20,1", data="quadratic", steps=40, machine=FIXED)
    assert synchronous.measured["images_per_second"] == pytest.approx(21 / 0.01)
    assert synchronous.predicted["images_per_second"]["value"] == pytest.approx(21 / 0.01)
    free = {"workers": 2, "batch": "20,1", "data": "quadratic", "steps": 40, "machine": PANI}  # at 20 times the pace
    assert refsgd.run("asp", **free).measured["images_per_second"] == pytest.approx(21 / 0.01)
    assert refsgd.predict("asp", kind="simulated", **free)["images_per_second"].value == pytest.approx(21 / 0.01)
    assert refsgd.predict("asp", **free)["images_per_second"].value == pytest.approx(21 / 0.01)


def test_equal_batches_are_one_batch():
    many, one = (refsgd.run("bsp", workers=2, batch=b, data="digits", steps=5) for b in ("auto:32", 16))
    assert many.to_json() == one.to_json() and "batches" not in one.problem


def test_a_problem_of_ones_own_says_its_batches_itself():
    own = replace(quadratic(d=4, workers=2), images=lambda rank, t: (20, 1)[rank], describe={})
    found = refsgd.run("bsp", own, workers=2, steps=10, machine=FIXED)
    assert found.problem["batches"] == [20, 1] and found.measured["images_per_second"] == pytest.approx(2100)
    with pytest.raises(Usage, match=r"batch 20,1 with your own problem; expected its images\(rank, t\)"):
        refsgd.run("bsp", own, workers=2, steps=10, batch="20,1")
    with pytest.raises(Usage, match=r'describe\["batches"\] has 3 numbers; expected one for each of 2 workers'):
        refsgd.run("bsp", replace(own, describe={"batches": [1, 2, 3]}), workers=2, steps=1)


def test_a_record_keeps_the_batches_and_replays(tmp_path):
    place = tmp_path / "record"
    run = refsgd.run("bsp", workers=2, batch="auto:21", steps=6, machine=PANI, record=place)
    assert read(place).header["arguments"]["batch"] == [20, 1]
    assert refsgd.replay(place).parameters_sha256 == run.parameters_sha256


def test_a_resumed_run_keeps_the_batches(tmp_path):
    given = {"workers": 2, "machine": PANI, "steps": 30}
    whole = refsgd.run("asp", batch="auto:21", checkpoint=tmp_path, **given)
    record = tmp_path / "record"
    lines = record.read_bytes().splitlines(keepends=True)
    record.write_bytes(b"".join(lines[: len(lines) // 2]))
    assert refsgd.run("asp", resume=tmp_path).parameters_sha256 == whole.parameters_sha256
    record.write_bytes(b"".join(lines[: len(lines) // 2]))
    with pytest.raises(Usage, match=r"was made with batch \[20, 1\], not \[19, 2\]"):
        refsgd.run("asp", resume=tmp_path, batch="19,2")


@pytest.mark.parametrize("runtime", ["simulator", "processes"])
def test_survivors_keep_their_batches_and_weights(runtime):
    """After the death of worker 1 worker 0 and worker 2 go on with the mean over their 12 + 4 images."""
    machine = Machine(compute="fixed(5ms)")
    found = refsgd.run("bsp", workers=3, batch="12,6,4", data="integers", lr=0.25, steps=12, machine=machine,
                       runtime=runtime, faults=["kill worker 1 at step 4"], on_death="shrink")
    problem, x = prepare("bsp", workers=3, batch="12,6,4", data="integers", steps=1).problem, 0
    x = problem.x0
    for t in range(12):
        alive = (0, 1, 2) if t < 4 else (0, 2)
        weights = [problem.images(i, t) for i in alive]
        g = sum(np.float32(b) * problem.gradient(x, i, t) for b, i in zip(weights, alive))
        x = x - np.float32(0.25) * (g / np.float32(sum(weights)))
    assert np.array_equal(found.parameters, x)


def test_processes_compute_what_the_simulator_does():
    given = {"workers": 2, "batch": "20,1", "steps": 8, "net": "softmax"}
    assert refsgd.run("bsp", runtime="processes", **given, machine=Machine()).parameters_sha256 == refsgd.run(
        "bsp", **given).parameters_sha256


def test_the_command_line_takes_batches_everywhere(capsys, tmp_path):
    common = ["--workers", "2", "--batch", "20,1", "--data", "quadratic", "--steps", "3"]
    for command in (["run", "bsp", "--quiet"], ["predict", "bsp"],
                    ["compare", "--algorithms", "sequential,bsp", "--runtime", "simulator", "--quiet", "--plot",
                     str(tmp_path / "c.png")]):
        assert main([*command, *common, "--json", str(tmp_path / "out.json")]) == 0
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    for row in rows:  # one worker takes 21 images a step, two take 20 and 1
        step = row["simulated"]["seconds_per_iteration"]
        assert row["simulated"]["images_per_second"] == pytest.approx(21 / step, rel=1e-3)
    assert main(["explore", "bsp", "--workers", "2", "--batch", "3,1"]) == 0
    assert "different results: 1" in capsys.readouterr().out
    assert main(["run", "bsp", "--batch", "20,1,1", "--workers", "2"]) == 2
    assert "for 3 workers in a run with 2" in capsys.readouterr().err


@pytest.mark.parametrize("also", ["asp", "sequential", "sandblaster"])
def test_the_hard_panel_has_a_batch_for_each_of_its_own_workers(also):
    """Also if the last of the algorithms takes the sum."""
    found = refsgd.compare(["bsp", also], runtime="simulator", hard=True, workers=2, batch="20,1", net="softmax", steps=3)
    assert found.hard.results["bsp"].problem["batch"] == 10 and found.hard.results["bsp"].workers == 8


def test_a_stepped_case_weighs():
    stepper = refsgd.Stepper("bsp", workers=2, steps=1, batch="3,1").run()
    assert "batches 3,1" in stepper.name
    plain = refsgd.Stepper("bsp", workers=2, steps=1).run()
    assert not np.array_equal(stepper.world.values["server0"], plain.world.values["server0"])


def test_a_sweep_shares_anew_for_each_number_of_workers():
    from refsgd.experiment.sweep import sweep

    found = sweep("bsp", "workers", (1, 2, 4), batch="auto:24", machine=FIXED, data="none", net="shapes:1000")
    assert found.curves["bsp"] == pytest.approx([2400] * 3)
