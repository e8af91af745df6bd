"""Checkpoints: the share of time and the best period, against failures drawn one by one."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cli import main
from refsgd.theory.phenomena.checkpoints import checkpoints
from refsgd.theory.prediction import DomainError


def lived(cost, mean, period, segments, rng):
    """The share of time that goes into training until so many periods are saved, with drawn failures."""
    time = 0.0
    for _ in range(segments):
        start = 0.0  # of reading the last checkpoint: the first attempt need not
        while True:
            failure = rng.exponential(mean)
            if failure >= start + period + cost:
                time += start + period + cost
                break
            time, start = time + failure, cost
    return segments * period / time


@pytest.mark.parametrize(("cost", "mean", "period"), [(1.0, 10.0, 4.0), (3.0, 10.0, 0.0), (0.1, 50.0, 0.0)])
def test_drawn_failures_leave_the_share_that_the_formula_says(cost, mean, period):
    said = checkpoints(cost, 4 * mean, 4, period)
    rng = np.random.default_rng(0)
    found = [lived(cost, mean, said.terms["period"], 4000, rng) for _ in range(8)]
    half = 3 * np.std(found, ddof=1) / np.sqrt(len(found))
    assert said.value == pytest.approx(np.mean(found), abs=half) and half < 0.01


@given(st.floats(1e-3, 1.0), st.floats(2.0, 1e4), st.floats(1.02, 3.0))
def test_no_other_period_leaves_more(cost, mean, factor):
    best = checkpoints(cost, mean)
    for other in (factor, 1 / factor):
        assert checkpoints(cost, mean, period=other * best.terms["period"]).value < best.value


def test_where_a_checkpoint_is_short_youngs_period_is_the_best():
    terms = checkpoints(1.0, 1e6).terms
    assert terms["period"] == pytest.approx(terms["Young's period"], rel=2e-3)


def test_thousands_of_nodes_leave_less():
    shares = [checkpoints(300.0, 3.15e7, n).value for n in (1, 100, 5000)]
    assert shares == sorted(shares, reverse=True) and shares[1] > 0.9 and shares[2] < 0.75


def test_no_times_are_refused():
    for wrong in ((0.0, 1.0), (1.0, 0.0), (1.0, 1.0, 0), (1.0, 1.0, 1, -1.0)):
        with pytest.raises(DomainError, match="assumes times > 0 and a node"):
            checkpoints(*wrong)


def test_advice_says_how_often_to_save(tmp_path, capsys):
    small = ["advise", "--parameters", "1000000", "--compute", "0.1", "--workers", "4", "--budget", "2000"]
    assert main([*small, "--mtbf", "100", "--disk", "1MB/s", "--optimiser", "adam", "--json", str(tmp_path / "a")]) == 0
    found = json.loads((tmp_path / "a").read_text())["checkpoints"]
    assert found["value"] == checkpoints(12.0, 360_000.0, 4).value  # parameters and two vectors of state
    assert "ends the run every 25 h" in " ".join(capsys.readouterr().out.split())
    assert main([*small, "--mtbf", "0"]) == 2
