"""Intervals, and which algorithms are told apart."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.experiment.race.standing import interval, letters, separated


@pytest.mark.parametrize("n,low,high,coverage", [(3, 1, 3, 0.75), (5, 1, 5, 0.9375), (7, 2, 6, 0.875),
                                                 (9, 2, 8, 0.9609375)])
def test_intervals_are_order_statistics(n, low, high, coverage):
    found = interval(list(range(n, 0, -1)))
    assert found == (low, high, coverage)


def test_an_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    draws = rng.exponential(size=(4000, 7))
    hits = np.mean([low <= math.log(2) <= high for low, high, _ in map(interval, draws.tolist())])
    assert hits == pytest.approx(0.875, abs=4 * math.sqrt(0.875 * 0.125 / 4000))
    wrong = np.mean([draw[0] <= math.log(2) <= draw[1] for draw in np.sort(draws).tolist()])
    assert wrong < 0.5


def test_runs_that_never_arrive_count():
    assert interval([1, 2, 3, 4, 5, math.inf, math.inf])[:2] == (2, math.inf)
    assert separated([1] * 7, [math.inf] * 7) and not separated([math.inf] * 7, [math.inf] * 7)


@pytest.mark.parametrize("sd", [0.11, 0.27])
def test_two_copies_of_one_law_are_rarely_told_apart(sd):
    """200 races; without pairing by seed, 4 of 7 wins would be enough in most of them."""
    rng = np.random.default_rng(7)
    races = [np.exp(sd * rng.standard_normal((2, 7))) for _ in range(200)]
    assert sum(separated(*race.tolist()) for race in races) <= 10
    wrong = sum(abs(np.log(race).mean(1) @ [1, -1]) > 0.5 * sd for race in races)
    assert wrong > 10
    assert all(separated(*(race * [[1], [3 if sd < 0.2 else 9]]).tolist()) for race in races)


@given(st.lists(st.booleans(), min_size=15, max_size=15), st.integers(0, 6))
def test_two_have_a_letter_in_common_exactly_if_they_are_not_told_apart(flags, count):
    names = list(range(count))
    apart = dict(zip(combinations(range(6), 2), flags))
    found = letters(names, lambda a, b: apart[min(a, b), max(a, b)])
    assert set(found) == set(names) and all(found.values())
    for a, b in combinations(names, 2):
        assert (not set(found[a]) & set(found[b])) == apart[a, b]


def test_no_letter_comes_again_after_z():
    """Forty names, each told apart from all but its two neighbours."""
    names = list(range(40))
    found = letters(names, lambda a, b: abs(a - b) > 1)
    assert len(set("".join(found.values()))) == 39
    for a, b in combinations(names, 2):
        assert bool(set(found[a]) & set(found[b])) == (b - a <= 1)
