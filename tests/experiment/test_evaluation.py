"""Evaluation after a run: its end always, parameters along the way as often as is asked."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from refsgd import Machine, Result, compare, replay, run
from refsgd.display import plots
from refsgd.display.tables import comparison_table, sentences
from refsgd.experiment.prepare import Experiment
from refsgd.experiment.result import parameters_sha256
from refsgd.problems import classification, quadratic
from refsgd.problems.data import synthetic
from refsgd.problems.nn.layers import BatchNorm, Flatten, Linear
from refsgd.problems.nn.net import Net
from refsgd.trace import Added, Marked
from tests.paced import as_simulated, slipped

SPEEDS = (1, 1, 1, 0.25)
COMMON = quadratic(workers=1)  # without noise, and with one minimum for all workers
SMALL = {"data": "digits", "net": "softmax", "workers": 2, "steps": 30}


def test_evaluations_change_only_how_many_rows_the_history_has():
    usual, seldom, never = (run("asp", **SMALL, evaluations=evaluations) for evaluations in (20, 4, 0))
    assert len(never.history) == 1 < len(seldom.history) <= 5 < len(usual.history) <= 21
    assert usual.history[-1] == seldom.history[-1] == never.history[-1]
    assert {tuple(row) for row in seldom.history} <= {tuple(row) for row in usual.history}
    assert usual.accuracy == never.accuracy and usual.loss == never.loss and usual.parameters_sha256 == never.parameters_sha256


def test_a_problem_is_evaluated_no_more_often_than_is_said():
    """Each evaluation is one loss; the end is one more, and so is the check of your own problem."""
    problem, seen = quadratic(workers=2), []
    counted = replace(problem, loss=lambda x: seen.append(x) or problem.loss(x))
    for evaluations, most in ((0, 2), (7, 9)):
        seen.clear()
        run("bsp", counted, workers=2, steps=40, evaluations=evaluations)
        assert 1 <= len(seen) <= most


@pytest.mark.parametrize("look", [
    lambda result: result.predicted["seconds"], lambda result: result.to_json(), lambda result: list(result.predicted)])
def test_a_run_is_predicted_once_and_when_somebody_asks(look, monkeypatch):
    """A prediction may take a second; the run, its summary and its table of measurements do not wait for it."""
    asked, right = [], Experiment.predictions
    monkeypatch.setattr(Experiment, "predictions", lambda self: asked.append(self.name) or right(self))
    result = run("ssp", data="quadratic", workers=2, steps=4)
    assert result.summary() and not asked
    for _ in range(2):
        look(result)
    assert asked == ["ssp"] and Result.from_json(result.to_json()).predicted == result.predicted != {}


@pytest.mark.parametrize("evaluations", [-1, 2.5, None])
def test_wrong_numbers_of_evaluations_are_refused(evaluations):
    with pytest.raises(ValueError, match="evaluations .*; expected .*at least 0"):
        run("asp", **SMALL, evaluations=evaluations)


def test_parameters_too_large_for_float32_have_a_hash_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parameters_sha256(np.array([1e300])) == parameters_sha256(np.array([np.inf], np.float32))


def seconds_to(result, share):
    """When the loss has fallen to a share of its first value, between two rows along an exponential."""
    rows, goal = result.history, share * COMMON.loss(COMMON.x0)
    i = next(i for i, row in enumerate(rows) if row[3] <= goal)
    (a, *_, high, _), (b, *_, low, _) = rows[i - 1: i + 1]
    return a + (b - a) * np.log(high / goal) / np.log(high / low)


def uneven(algorithm, speeds=SPEEDS, runtime="simulator", **options):
    machine = Machine(compute="fixed(0.01)", latency=1e-5, bandwidth=1e9, speeds=speeds)
    return run(algorithm, COMMON, workers=4, steps=40, lr=0.05, machine=machine,
               evaluations=64, runtime=runtime, **options)


@pytest.mark.parametrize("share", [0.5, 0.25, 0.1])
@pytest.mark.parametrize("algorithm", ["gosgd", "adpsgd", "independent"])
def test_one_slow_worker_costs_replicas_no_more_than_its_gradients(algorithm, share):
    """The model at a moment has the newest replica of each worker: it learns at the rate of all gradients.  Replicas
    of equal iterations, which exist together only when the slowest has computed its own, are 3.2 times too late."""
    passes = seconds_to(uneven("bsp", speeds=()), share) * 4 / sum(SPEEDS)
    assert seconds_to(uneven(algorithm), share) == pytest.approx(passes, rel=0.25)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.filterwarnings("ignore:real computing overran")
def test_the_time_to_a_loss_is_that_of_processes_and_of_their_record(tmp_path):
    virtual, real = uneven("gosgd"), uneven("gosgd", runtime="processes")
    # a peer that waits for a late one is as late as both
    assert as_simulated(seconds_to(real, 0.25), seconds_to(virtual, 0.25), slipped(real.trace), rel=0.15)
    written = run("gosgd", data="quadratic", workers=4, steps=40, runtime="processes", record=tmp_path / "r",
                  machine=Machine(compute="fixed(0.005)", latency=1e-5, speeds=SPEEDS))
    assert str(replay(tmp_path / "r").history) == str(written.history)


def last(marks, seconds):
    return max((e for e in marks if e.time <= seconds), key=lambda e: e.time, default=None)


@pytest.mark.parametrize(("algorithm", "options"), [
    ("bsp", {"servers": 3}), ("asp", {"servers": 3}), ("easgd", {}), ("allreduce", {}), ("local-sgd", {}),
    ("hogwild", {}), ("zero", {}), ("sandblaster", {"servers": 2}), ("approximate", {"servers": 2})])
def test_each_row_is_of_the_newest_that_each_node_had(algorithm, options):
    """With updates and images at that moment; the last row is the end of the run."""
    problem = quadratic()
    result = run(algorithm, problem, workers=4, steps=16, lr=0.05, evaluations=12, **options,
                 machine=Machine(compute="lognormal(0.01,0.5)", latency=1e-4, bandwidth=1e6, speeds=SPEEDS))
    trace, rows = result.trace, result.history
    assert min(6, rows[-1][1]) <= len(rows) <= 13 and rows[-1][3] == result.loss and rows[-1][0] == trace.seconds
    assert np.diff([0] + [row[0] for row in rows]).max() < 0.35 * trace.seconds
    marks = [[e for e in trace.marks("update") if e.node == n] for n in trace.nodes if n in trace.updates]
    servers = not trace.is_worker(marks[0][0].node)
    for seconds, updates, images, loss, _ in rows[:-1]:
        newest, counts = [last(each, seconds) for each in marks], [sum(e.time <= seconds for e in each) for each in marks]
        if servers:
            x = np.concatenate([e.values["x"] for e in newest])
        elif algorithm == "zero":  # a shard is a part of each layer
            x = np.concatenate([part for layer in zip(*(e.values["x"] for e in newest)) for part in layer])
        elif trace.of(Added):
            x = last(trace.marks("update"), seconds).values["x"]
        else:
            x = np.mean([e.values["x"] if e else problem.x0 for e in newest], axis=0)
        assert loss == pytest.approx(problem.loss(x), rel=1e-5)
        assert updates == max(counts) if servers else updates == sum(counts) // (4 if algorithm == "zero" else 1)
        applied = [sum(e.values.get("images", 0) for e in trace.of(Marked, n) if e.time <= seconds) for n in trace.nodes]
        together = algorithm != "easgd" and (servers or algorithm == "zero")  # each part has all gradients
        assert images == (max(applied) if together else sum(applied))


@pytest.mark.parametrize(("train", "partial", "held", "norm", "samples"), [
    (2000, {}, 0, False, {}),
    (2001, {}, 0, False, {"train": "the first 2000 of 2001 training images"}),
    (400, {"train": "400 of 900 training images", "test": "the first 50 of 90 test images"}, 0, False,
     {"train": "400 of 900 training images", "test": "the first 50 of 90 test images"}),
    (1000, {}, 0.1, False, {"validation": "100 of 1000 training images, held back"}),
    (500, {}, 0, True, {}),
    (501, {}, 0, True, {"batch norm's statistics": "the first 500 of 501 training images"})])
def test_a_figure_of_a_sample_says_so_wherever_it_is_shown(train, partial, held, norm, samples):
    data = replace(synthetic((4, 4, 1), train=train, test=50), partial=partial).hold_back(held)
    net = Net("net", [Flatten(), *[BatchNorm()] * norm, Linear(10)], (4, 4, 1))
    problem = classification(data, net, 2, 20)
    arguments = {"workers": 2, "steps": 4, "lr": 0.01, "machine": Machine(compute="fixed(0.01)")}
    result = run("bsp", problem, **arguments)
    assert Result.from_json(result.to_json()).problem["samples"] == samples
    for text in samples.values():
        assert result.summary().count(text) == 1
    compared = compare(["bsp", "asp"], problem=problem, runtime="simulator", **arguments)
    caption = str(comparison_table(compared).caption)
    assert all(caption.count(text) == 1 for text in samples.values())
    shown = [plots.accuracy_against_time({"bsp": result}).get_ylabel(), " ".join(sentences(compared))]
    assert [samples.get("test", "") in text and ("(the first" in text) == ("test" in samples) for text in shown] == [True] * 2
    for part in ("train", "test") if not samples else ():
        images, labels = getattr(data, f"{part}_images"), getattr(data, f"{part}_labels")
        assert problem.accuracy(problem.x0, part) == net.loss_and_accuracy(problem.x0, images, labels, data.train_images)[1]
