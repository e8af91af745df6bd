"""Evaluation after a run: its end always, parameters along the way as often as is asked."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from refsgd import Result, run
from refsgd.experiment.prepare import Experiment
from refsgd.experiment.result import parameters_sha256
from refsgd.problems import quadratic

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


def test_the_earlier_name_still_works_and_warns():
    """`looks`, for one release."""
    with pytest.warns(FutureWarning, match="looks is now called evaluations"):
        assert len(run("asp", **SMALL, looks=0).history) == 1


def test_parameters_too_large_for_float32_have_a_hash_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parameters_sha256(np.array([1e300])) == parameters_sha256(np.array([np.inf], np.float32))
