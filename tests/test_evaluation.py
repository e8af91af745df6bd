"""What is looked at after a run: its end always, parameters along the way as often as is asked."""

from dataclasses import replace

import pytest

from refsgd import run
from refsgd.problems import quadratic

SMALL = {"data": "digits", "net": "softmax", "workers": 2, "steps": 30}


def test_looks_change_only_how_many_rows_the_history_has():
    usual, seldom, never = (run("asp", **SMALL, looks=looks) for looks in (20, 4, 0))
    assert len(never.history) == 1 < len(seldom.history) <= 5 < len(usual.history) <= 21
    assert usual.history[-1] == seldom.history[-1] == never.history[-1]
    assert {tuple(row) for row in seldom.history} <= {tuple(row) for row in usual.history}
    assert usual.accuracy == never.accuracy and usual.loss == never.loss and usual.parameters_sha256 == never.parameters_sha256


def test_a_problem_is_looked_at_no_more_often_than_is_said():
    """Each look is one loss; the end is one more, and so is the check of a problem of one's own."""
    problem, seen = quadratic(workers=2), []
    counted = replace(problem, loss=lambda x: seen.append(x) or problem.loss(x))
    for looks, most in ((0, 2), (7, 9)):
        seen.clear()
        run("bsp", counted, workers=2, steps=40, looks=looks)
        assert 1 <= len(seen) <= most


@pytest.mark.parametrize("looks", [-1, 2.5, None])
def test_wrong_numbers_of_looks_are_refused(looks):
    with pytest.raises(ValueError, match="looks .*; expected .*at least 0"):
        run("asp", **SMALL, looks=looks)
