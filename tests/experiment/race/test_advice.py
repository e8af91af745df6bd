"""Advice with the passes of a race."""

import math
from dataclasses import replace

import pytest

import refsgd
from refsgd.cli import main
from refsgd.experiment.advice.advise import advise, same
from refsgd.experiment.advice.candidates import CANDIDATES, Candidate
from refsgd.experiment.arguments import Usage

MACHINE = refsgd.Machine(compute="fixed(0.2)", latency=20e-6, bandwidth=1.25e9)


@pytest.fixture(scope="module")
def digits():
    return refsgd.Race.load("digits")


def advice(race, workers=8):
    few = [c for c in CANDIDATES if c.algorithm in ("allreduce", "bsp", "asp", "local-sgd", "gosgd", "dgc")]
    return advise(MACHINE, parameters=25_557_032, workers=workers, candidates=few, race=race, budget=20_000)


def test_seconds_to_the_target_are_passes_times_seconds_of_a_pass(digits):
    found, passes = advice(digits), {row.label: row.passes for row in digits.rows}
    for s in found.strategies:
        if s.candidate.algorithm in ("bsp", "asp", "gosgd"):
            assert s.passes == passes[s.candidate.algorithm]
            assert s.to_target == s.passes * s.seconds
    first = min((s for s in found.strategies if math.isfinite(s.to_target)), key=lambda s: s.to_target)
    assert f"{first.name} is first" in found.recommendation and first in found.tries
    assert "not your net" in found.recommendation


def test_kinds_are_compared_by_the_race_alone(digits):
    """A strategy that needs four times the passes is no longer first."""
    first = min((s for s in advice(digits).strategies if math.isfinite(s.to_target)), key=lambda s: s.to_target)
    slow = [replace(row, heats=[heat._replace(gradients=9 * heat.gradients) for heat in row.heats])
            if row.label == first.candidate.algorithm else row for row in digits.rows]
    assert f"{first.name} is first" not in advice(replace(digits, rows=slow)).recommendation


def test_without_a_race_advice_says_what_a_pass_cannot():
    found = advice(None)
    assert "do not order strategies of different kinds" in found.unknown[0]
    assert all(math.isnan(s.passes) for s in found.strategies) and "is first" not in found.recommendation


def test_only_the_same_options_have_the_same_passes(digits):
    row, = (row for row in digits.rows if row.label == "allreduce")
    assert same(Candidate("allreduce", {"collective": "hierarchical"}), row)
    assert same(Candidate("allreduce", {"overlap": "backward", "bucket": 25_000_000}), row)
    assert not same(Candidate("allreduce", {"compress": "powersgd:4"}), row)
    assert not same(Candidate("bsp", {}), row)
    assert not same(Candidate("allreduce", {}, accumulate=4), row)  # a quarter of the updates
    local, = (row for row in digits.rows if row.label == "local-sgd")
    assert same(Candidate("local-sgd", {"period": 8}), local)
    assert not same(Candidate("local-sgd", {"period": 4}), local)


def test_a_race_of_another_size_is_refused(digits):
    with pytest.raises(Usage, match="a race of 8 workers for 32"):
        advice(digits, 32)
    assert advice(digits, 16).recommendation


def test_the_command_shows_two_more_columns(capsys):
    command = ["advise", "--parameters", "1e6", "--compute", "10ms", "--workers", "8", "--bandwidth", "1Gbps",
               "--budget", "20000"]
    assert main([*command, "--race", "digits"]) == 0
    shown = capsys.readouterr().out
    assert "to target" in shown and "passes" in shown
    assert main(command) == 0
    assert "to target" not in capsys.readouterr().out
    assert main([*command, "--race", "nothing.json"]) == 2
    assert "nothing.json" in capsys.readouterr().err
