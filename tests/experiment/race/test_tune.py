"""Tuning: which rates are tried, which is chosen, and that the rule is the same for all."""

import math

import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.experiment.race.target import Heat
from refsgd.experiment.race.tune import CUT, WIDEST, chosen, start_of, tuning

ROOT2 = math.sqrt(2)


def tuned(seconds, start=0.32, seeds=(0, 1), most=1000.0, rates=()):
    """The rates tried and all that was asked for, of an algorithm that takes `seconds(rate)`; its gradients
    are a hundred times as many, and a run ends where it may compute no more."""
    program, asked, heats = tuning(start, seeds, most, rates), [], None
    while True:
        try:
            batch = program.send(heats)
        except StopIteration as stop:
            return stop.value, asked
        asked += batch
        heats = [Heat(*((seconds(a.rate), 100 * seconds(a.rate)) if 100 * seconds(a.rate) <= a.most
                        else (math.inf, math.inf)), [], "") for a in batch]


def valley(best, cliff=1e9):
    return lambda rate: math.inf if rate > cliff else 1 + abs(math.log2(rate / best))


def test_a_start_in_the_middle_needs_five_rates():
    tried, asked = tuned(valley(0.32))
    assert sorted(tried) == pytest.approx([0.16, 0.32 / ROOT2, 0.32, 0.32 * ROOT2, 0.64])
    assert len(asked) == 2 * len(tried) and chosen(tried) == 0.32


@pytest.mark.parametrize("best", [0.01, 0.04, 1.28, 10.24])
def test_the_grid_is_widened_until_the_best_is_inside(best):
    tried, _ = tuned(valley(best))
    assert chosen(tried) == pytest.approx(best) and min(tried) < best < max(tried)


def test_an_algorithm_that_never_arrives_ends():
    tried, _ = tuned(lambda rate: math.inf)
    assert set(tried.values()) == {math.inf} and len(tried) == 2 * WIDEST + 1
    assert chosen(tried) == 0.32 == next(iter(tried))


def test_the_smallest_rate_near_the_best_is_chosen():
    """Next to a cliff the best of two seeds is 4 % faster, and never arrives with others."""
    assert chosen({0.16: 1.4, 0.32: 0.9, 0.64: 0.865}) == 0.32
    assert chosen({0.16: 1.4, 0.32: 0.96, 0.64: 0.865}) == 0.64


def test_a_run_is_cut_off_at_a_multiple_of_the_best():
    _, asked = tuned(valley(0.32))
    assert [a.most for a in asked[:2]] == [1000, 1000] and not asked[0].cut
    assert all(a.most == CUT * 100 and a.cut for a in asked[2:])


def test_given_rates_replace_the_grid():
    tried, asked = tuned(valley(0.2), rates=(0.1, 0.2, 0.4))
    assert sorted(tried) == [0.1, 0.2, 0.4] and len(asked) == 6
    assert sorted(tuned(valley(0.2), rates=(0.1,))[0]) == [0.1]


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_start_is_on_the_grid(name):
    facts = facts_of(CATALOGUE[name])
    for workers in (1, 2, 8):
        start = start_of(facts, workers, getattr(CATALOGUE[name], "__kwdefaults__", None) or {}, True)
        assert math.log2(start / 0.01) == pytest.approx(round(math.log2(start / 0.01)))
    assert start_of(facts_of(CATALOGUE["asp"]), 8, {}, True) == 0.08
    assert start_of(facts_of(CATALOGUE["bsp"]), 8, {}, False) == 0.16
