"""What people read of a comparison and of formulas: whole names at every width, honest signs, no ranking
of processes that are off."""

import contextlib
import re
from dataclasses import replace

import pytest
from rich.console import Console

import refsgd
from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.display.tables import comparison_table, prediction_lines, sentences, sweep_table
from refsgd.experiment.sweep import sweep
from refsgd.theory import Prediction, predict
from refsgd.trace.metrics import measure

MACHINE = Machine(compute="lognormal(0.015,0.5)", latency=0.001, bandwidth=2e6)
NAMES = ("bsp", "asp", "ssp", "staleness-aware", "backup-workers")
WIDTHS = (80, 90, 100, 120)
pytestmark = pytest.mark.usefixtures("few_draws_throughout")


def slowed(result, factor, overrun=0.0):
    """The same as if it had been measured on OS processes, each iteration longer by a factor."""
    m = result.measured
    return replace(result, runtime="processes",
                   measured={**m, "seconds": m["seconds"] * factor, "overrun_ratio": overrun,
                                                          "seconds_per_iteration": m[
                                                              "seconds_per_iteration"] * factor})


def as_processes(comparison, factor, overrun=0.0):
    return replace(comparison, runtime="processes",
                   rows=[replace(row, measured=slowed(row.simulated, factor, overrun))
                         for row in comparison.rows])


@pytest.fixture(scope="module")
def several():
    return as_processes(refsgd.compare(NAMES, runtime="simulator", epochs=1, machine=MACHINE,
                                       options={"ssp": {"staleness": 3}}), 1.01)


@pytest.fixture(scope="module")
def alone():
    return refsgd.compare("bsp", runtime="simulator", epochs=1, machine=MACHINE)


def printed(table, width):
    console = Console(width=width, markup=False)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_row_of_a_comparison_has_its_name_whole_and_no_cell_is_cut(several, width):
    lines = printed(comparison_table(several, width), width)
    assert max(map(len, lines)) <= width and not any("…" in line for line in lines)
    for name in ("bsp", "asp", "ssp staleness=3", "staleness-aware", "backup-workers"):
        assert len([line for line in lines if re.match(rf" *{name} +predicted ", line)]) == 1, name
    head = " ".join(lines[2:4])
    assert all(word in head for word in ("accuracy", "iteration", "idle", "staleness"))
    assert "Δ time" in head if width == 120 else "MB" not in head
    caption = " ".join(" ".join(lines[-5:]).split())
    assert ("Δ time: time per iteration against the line above" in caption) == (
        "Δ time" in head) and "residual" not in " ".join(lines)


def test_the_widest_table_has_every_column(several):
    lines = printed(comparison_table(several, 160), 160)
    assert all(word in " ".join(lines[:4]) for word in ("images/s", "Δ time", "max", "MB", "memory"))
    most = max(several.rows[0].predicted[f"memory_{role}"]["value"] for role in ("worker", "server"))
    assert next(line for line in lines if "predicted" in line).endswith(f" ~{most / 1e6:.2f}")


def test_signs_say_which_side_a_bound_is_and_what_was_drawn(several):
    """SSP's staleness cannot exceed its bound; the time of a barrier on a link is a mean of draws, with
    its error."""
    def row(step):
        found = replace(several.rows[0],
                        predicted={"seconds_per_iteration": step.to_json(), "idle_ratio": idle.to_json()})
        return next(line for line in printed(comparison_table(replace(several, rows=[found]), 120), 120)
                    if "predicted" in line)

    idle = Prediction(0.4642, "1", "numerical", {"standard error": 0.0007})
    assert "≥20.00 " in row(Prediction(0.02, "s", "bound", bound="lower")) and "≤20.00 " in row(
        Prediction(0.02, "s", "bound", bound="upper"))
    assert " ~20.00 " in row(Prediction(0.02, "s", "approximation")) and " 20.00 " in row(
        Prediction(0.02, "s", "exact"))
    drawn = row(Prediction(0.02, "s", "numerical", {"standard error": 0.00004}))
    assert "20.00±0.04" in drawn and "46.4±0.1%" in drawn
    assert "∞" in row(Prediction(float("inf"), "s", "approximation"))


def test_one_algorithm_alone_is_not_compared_with_itself(alone):
    said = " ".join(sentences(alone))
    assert "those of" not in said and "first" not in said and said.count("idle") == 1
    assert re.search(r"Workers of bsp are idle \d+% of the time, mostly \w+\.",
                     said) and re.search(r"bsp reaches \d+% test accuracy after", said)


def test_several_algorithms_are_ranked_where_their_processes_are_near(several):
    said = " ".join(sentences(several))
    assert "first" in said and "those of" in said and "No ranking" not in said


def test_processes_that_are_far_off_are_not_ranked_but_explained_in_one_sentence(several):
    said = sentences(as_processes(several, 3.0, 2.5))
    (why,) = [line for line in said if "No ranking" in line]
    assert "+200%" in why and "gradients took 250.0% longer than the emulated durations" in why
    assert not any(word in " ".join(said) for word in ("first,", "idle", "at most (", "processes are +"))


def test_the_overrun_of_gradients_is_the_workers_not_that_of_a_servers_short_updates(several):
    run = next(row.simulated for row in several.rows if row.algorithm == "asp")
    late = {"server": {"drawn": 0.001, "overrun": 0.018, "overrun_ratio": 18.0, "slipped": 0.0}}
    for worker, ratio in zip(run.trace.workers, (0.25, 0.5, 0.5, 0.75), strict=True):
        late[worker] = {"drawn": 2.0, "overrun": 2.0 * ratio, "overrun_ratio": ratio, "slipped": 0.0}
    trace = replace(run.trace, lateness=late)
    measured = {**measure(trace), "seconds_per_iteration": 3 * run.measured["seconds_per_iteration"]}
    row = next(row for row in several.rows if row.algorithm == "asp")
    said = " ".join(
        sentences(
            replace(several,
                    rows=[
                        replace(row,
                                measured=replace(run, runtime="processes", trace=trace,
                                                 measured=measured))])))
    assert "gradients took 50.0% longer" in said


def ended(row, accuracy, updates, staleness):
    """A row whose run ended with that test accuracy after that many updates of such staleness."""
    run = row.simulated
    measured = {**run.measured, "updates": updates, "staleness_mean": float(staleness),
                "staleness_max": staleness}
    return replace(row,
                   simulated=replace(run, accuracy={"test": accuracy, "train": accuracy}, measured=measured),
                   measured=None)


def test_an_asynchronous_algorithm_that_ends_higher_is_said_to_make_more_updates(several):
    bsp, asp = several.rows[:2]
    fewer = ended(bsp, 0.94, 100, 0)
    said = " ".join(sentences(replace(several, runtime="simulator", rows=[fewer, ended(asp, 0.975, 400, 3)])))
    assert "asp ends with 97.5% test accuracy and bsp with 94.0%" in said and "4 times as many updates" in said
    for row in (ended(asp, 0.96, 400, 3), ended(asp, 0.975, 100, 3),
                replace(ended(asp, 0.975, 400, 3), simulated=None)):
        assert "times as many updates" not in " ".join(
            sentences(replace(several, runtime="simulator", rows=[fewer, row])))


def test_the_harder_case_blames_the_learning_rate_where_every_push_is_an_update(several):
    bsp, asp = several.rows[:2]
    barrier = ended(bsp, 0.9, 50, 0)

    def said(*rows):
        return " ".join(
            sentences(replace(several, runtime="simulator", rows=[],
                              hard=replace(several, rows=[barrier, *rows]))))

    behind = said(ended(asp, 0.08, 400, 7))
    assert "bsp ends with 90% test accuracy and asp with 8%" in behind and "The learning rate is one cause for asp" in behind and "lr/8" in behind
    assert "one cause for asp" in said(replace(asp, simulated=None, measured=None,
                                               failed="loss inf at step 3"))
    # near; behind with no more updates: the shards
    for row in (ended(asp, 0.85, 400, 7), ended(asp, 0.3, 50, 7)):
        assert "learning rate" not in said(row)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["bsp", "ssp", "approximate", "allreduce"])
def test_predictions_fit_and_break_no_word(name, width):
    found = predict(name, MACHINE, workers=4, nbytes=40_000, batch=16, steps=40)
    lines = prediction_lines(found, {"staleness_max": "because " * 20}, width)
    assert max(map(len, lines)) <= width
    for key, p in found.items():
        assert [line for line in lines if line.startswith(key + " ")], key
        assert set(p.formula.split()) <= set(" ".join(lines).split())
    assert [line for line in lines if line.startswith("bytes_sent ") and " bytes" in line]
    assert ("; s the slack" in " ".join(lines)) == (name == "ssp")
    if name == "approximate":
        assert [line for line in lines
                if re.match(r"seconds_per_iteration +≥[\d.]+ ± [\de.-]+ s  \(lower bound\)", line)]
    if name == "bsp":
        assert [line for line in lines
                if re.match(r"seconds_per_iteration +[\d.]+ ± [\de.-]+ s  \(numerical\)", line)]


@pytest.fixture(scope="module")
def swept():
    return sweep(["bsp", "asp", "ssp"], "workers", tuple(range(1, 17)), machine=MACHINE, data="quadratic",
                 steps=10)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_sweep_has_a_row_for_each_algorithm_and_ends_at_a_value_that_fits(swept, width):
    lines = printed(sweep_table(swept, width), width)
    assert max(map(len, lines)) <= width and not any("…" in line
                                                     for line in lines) and "[images/s]" in lines[0]
    assert all(any(re.match(f" *{name} ", line) for line in lines) for name in swept.curves)
    (head,) = [line.split() for line in lines if "workers" in line]
    assert head[1] == "1" and 5 <= len(head) - 1 <= 16


@pytest.mark.parametrize("arguments",
                         [["list"], ["doctor"], ["data"],
                          ["run", "bsp", "--data", "quadratic", "--steps", "5"],
                                       ["predict", "asp"], ["predict", "asp", "--sweep", "workers=1:9"]])
def test_what_commands_print_keeps_within_the_terminal(arguments, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        main(arguments)
    lines = capsys.readouterr().out.splitlines()
    assert lines and max(len(line.rstrip()) for line in lines) <= 80
    monkeypatch.delenv("COLUMNS")
    with contextlib.suppress(SystemExit):
        main(arguments)
    assert not any("…" in line for line in capsys.readouterr().out.splitlines())


def test_a_summary_names_the_rate_of_the_whole_run_where_workers_end_at_different_times():
    """Without messages to wait for, two workers at full speed end in half the time of the third."""
    machine = Machine(compute=0.02, latency=0.0001, bandwidth=1e9, speeds=(1.0, 1.0, 0.5))
    result = refsgd.run("gosgd", data="quadratic", batch="40,40,20", workers=3, steps=20, p=0.1, machine=machine)
    assert result.measured["images_per_second"] == pytest.approx(20 * 100 / (20 * 0.04))
    assert "24.00 ms an iteration, 2500 images/s\n" in result.summary()
