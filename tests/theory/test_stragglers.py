"""Order statistics: closed forms, quadrature against sums over atoms and against sampling, domain."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cluster.distributions import Distribution, survival
from refsgd.theory import DomainError
from refsgd.theory.phenomena import stragglers as s

LAWS = ["fixed(2)", "exponential(1)", "shifted(1,0.9)", "uniform(1,3)", "lognormal(1,0.5)", "lognormal(1,5)",
        "gamma(1,4)",
        "gamma(1,0.05)", "gamma(1,1000)", "normal(1,0.001)", "normal(1,1)", "pareto(1,3)", "pareto(1,1.2)",
        "straggler(1,0.1,10)"]

laws = st.sampled_from([Distribution.parse(text) for text in LAWS] + [Distribution("empirical", (0.5, 1.0, 1.0, 4.0))])


@pytest.mark.parametrize("text", LAWS)
def test_the_integral_of_one_gives_the_mean(text):
    law = Distribution.parse(text)
    value = s.integrate_survival([law], lambda t: survival(law, t))
    assert value == pytest.approx(law.mean, rel=1e-7)


@pytest.mark.parametrize("n", [2, 5, 100])
def test_quadrature_reproduces_the_closed_forms(n):
    for text in ("exponential(0.3)", "shifted(1,0.4)", "uniform(1,3)"):
        law = Distribution.parse(text)
        with np.errstate(divide="ignore"):
            integral = s.integrate_survival([law],
                                            lambda t, law=law: -np.expm1(n * np.log1p(-survival(law, t))))
        assert s.mean_of_maximum([law] * n) == pytest.approx(integral, rel=1e-9)
    assert s.mean_of_maximum([Distribution.parse("exponential(2)")] * n) == pytest.approx(
        2 * sum(1 / k for k in range(1, n + 1)))


@pytest.mark.parametrize("text", [t for t in LAWS if t != "pareto(1,1.2)"])
def test_sampling_agrees(text):
    """|mean of 40,000 maxima - E[max]| within 4.5 standard errors; the j-th smallest too (2e-4: rare
    atoms)."""
    law, rng = Distribution.parse(text), np.random.default_rng(7)
    draws = np.sort(law.sample(rng, 200_000).reshape(-1, 5), axis=1)
    for j in (1, 3, 5):
        column = draws[:, j - 1]
        error = column.std() / math.sqrt(len(column))
        assert abs(column.mean() - s.mean_of_order([law] * 5, j)) <= 4.5 * error + 2e-4


def test_discrete_laws_are_exact():
    """Empirical, straggler and fixed times: a sum over all outcomes."""
    straggler, fixed = Distribution.parse("straggler(1,0.2,3)"), Distribution.parse("fixed(1.1)")
    empirical = Distribution("empirical", (0.5, 1.0, 4.0))
    fast = 1 / (0.8 + 0.6)
    outcomes = {straggler: [(fast, 0.8), (3 * fast, 0.2)], fixed: [(1.1, 1.0)],
                empirical: [(0.5, 1 / 3), (1.0, 1 / 3), (4.0, 1 / 3)]}

    def exact(times, j):
        return sum(math.prod(p for _, p in combo) * sorted(t for t, _ in combo)[j - 1]
                   for combo in itertools.product(*(outcomes[law] for law in times)))

    mix = [straggler, fixed, empirical, straggler]
    assert s.mean_of_maximum(mix) == pytest.approx(exact(mix, 4), rel=1e-12)
    for law in outcomes:
        for j in range(1, 5):
            assert s.mean_of_order([law] * 4, j) == pytest.approx(exact([law] * 4, j), rel=1e-12)
    assert s.mean_of_maximum([Distribution.parse("fixed(1)"), Distribution.parse("fixed(3)")]) == 3.0


def test_unequal_exponentials():
    """E[max] of two: 1/a + 1/b - 1/(a+b); a fixed time beside an exponential: E[max(T, x)] = x + exp(-x)."""
    a, b = Distribution.parse("exponential(1)"), Distribution.parse("exponential(0.25)")
    assert s.mean_of_maximum([a, b]) == pytest.approx(1 + 0.25 - 1 / (1 + 4), rel=1e-10)
    assert s.mean_of_maximum([a, Distribution.parse("fixed(0.7)")]) == pytest.approx(0.7 + math.exp(-0.7), rel=1e-10)


def hold_the_order(law, n, orders):
    """They sum to n E[T], grow with j, and E[T] <= E[max] <= n E[T]."""
    assert sum(orders) == pytest.approx(n * law.mean, rel=1e-6)
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(orders))
    assert law.mean * (1 - 1e-9) <= orders[-1] <= n * law.mean * (1 + 1e-9)


@given(law=laws, n=st.integers(1, 12))
def test_order_statistics_add_up(law, n):
    hold_the_order(law, n, [s.mean_of_order([law] * n, j) for j in range(1, n + 1)])


@pytest.mark.parametrize("n", [1, 3, 12])
def test_a_believable_wrong_maximum_is_caught(n):
    """n E[T] / 2."""
    law = Distribution.parse("exponential(1)")
    orders = [s.mean_of_order([law] * n, j) for j in range(1, n)]
    with pytest.raises(AssertionError):
        hold_the_order(law, n, [*orders, n * law.mean / 2])



def test_the_sum_law():
    """Erlang for exponential times; the mean and variance of the sum for any."""
    assert s.sum_of(Distribution.parse("exponential(2)"), 3) == (Distribution("gamma", (6.0, 3.0)), True)
    assert s.sum_of(Distribution.parse("gamma(1,2)"),
                     4)[0].variance == pytest.approx(4 * Distribution.parse("gamma(1,2)").variance)
    law, exact = s.sum_of(Distribution.parse("uniform(1,3)"), 6)
    assert (law.mean, law.variance, exact) == (pytest.approx(12), pytest.approx(6 / 3), False)
    assert s.sum_of(Distribution.parse("pareto(1,1.5)"), 2) == (Distribution.parse("pareto(2,1.5)"), False)


@pytest.mark.parametrize("call,assumption", [
    (lambda: s.mean_of_maximum([]), "at least one"),
    (lambda: s.mean_of_order([Distribution.parse("fixed(1)")] * 3, 4), "1 <= j <= n"),
    (lambda: s.sum_of(Distribution.parse("fixed(1)"), 0), "whole number"),
])
def test_domain(call, assumption):
    with pytest.raises(DomainError, match=assumption):
        call()
