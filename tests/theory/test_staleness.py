"""Staleness: the pathwise identity on drawn schedules, the geometric law, ends of runs, batched and
delayed reads."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.cluster.distributions import Distribution
from refsgd.theory import DomainError
from refsgd.theory.phenomena import staleness


def ledger(order, n, read_at_once=True):
    """Ages of the updates of `order` (worker ids in order of application), and of the reads left at the
    end."""
    read, ages = [0] * n, []
    for version, i in enumerate(order):
        ages.append(version - read[i])
        read[i] = version + 1 if read_at_once else version
    return ages, [len(order) - r for r in read]


def asynchronous(laws, steps, seed, exchange=0.0):
    """Order of updates when each worker makes `steps` iterations without waiting."""
    rng = np.random.default_rng(seed)
    heap = [(law.sample(rng, 1)[0], i) for i, law in enumerate(laws)]
    heapq.heapify(heap)
    left, order = [steps] * len(laws), []
    while heap:
        at, i = heapq.heappop(heap)
        order.append(i)
        left[i] -= 1
        if left[i]:
            heapq.heappush(heap, (at + exchange + laws[i].sample(rng, 1)[0], i))
    return order


@given(n=st.integers(1, 6), order=st.lists(st.integers(0, 5), max_size=80))
def test_the_identity_holds_on_every_schedule(n, order):
    order = [i % n for i in order]
    ages, outstanding = ledger(order, n)
    assert sum(ages) + sum(outstanding) == (n - 1) * len(order) + 0


@given(order=st.lists(st.integers(0, 3), min_size=20, max_size=80))
def test_a_read_before_the_own_update_breaks_it(order):
    """Reading the version before the worker's own update (a slip of one) counts every own update as stale."""
    ages, outstanding = ledger(order, 4, read_at_once=False)
    assert sum(ages) + sum(outstanding) != 3 * len(order)


def test_of_worker_weights_to_n_minus_1():
    rates = [1.0, 2.0, 7.0]
    taus = [p.value for p in staleness.asp_of_worker(rates)]
    assert sum(r * t for r, t in zip(rates, taus, strict=True)) / sum(rates) == pytest.approx(2)
    order = asynchronous([Distribution.parse("fixed(1)").scaled(1 / r) for r in rates], 4000, 0)[:5500]
    ages, _ = ledger(order, 3)
    for i in range(3):
        mine = [a for a, j in zip(ages, order, strict=True) if j == i]
        assert np.mean(mine) == pytest.approx(taus[i], rel=0.02)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_geometric_law(n):
    """Goodness of fit of 4,000 ages, every n-th of them to be nearly independent; level 1e-4."""
    from scipy import stats

    ages, _ = ledger(asynchronous([Distribution.parse("exponential(1)")] * n, 4000, 5)[: 4000 * n // 2], n)
    sample = np.array(ages[50::n])
    top = int(3 * n)
    seen = [np.sum(sample == j) for j in range(top)] + [np.sum(sample >= top)]
    p = [staleness.geometric(n, j) for j in range(top)]
    expected = np.array([*p, 1 - sum(p)]) * len(sample)
    assert stats.chisquare(seen, expected).pvalue > 1e-4
    assert sum(staleness.geometric(n, j) * j for j in range(2000)) == pytest.approx(n - 1)


@pytest.mark.parametrize("n,steps", [(2, 1), (2, 7), (5, 30)])
def test_ends_of_exponential_runs(n, steps):
    """(n-1)(1 - C(2N, N)/4^N): mean over 1,500 runs within 4.5 standard errors."""
    law = Distribution.parse("exponential(1)")
    means = [np.mean(ledger(asynchronous([law] * n, steps, seed), n)[0]) for seed in range(1500)]
    p = staleness.asp_run([law] * n, steps)
    assert p.kind == "exact"
    assert abs(np.mean(means) - p.value) <= 4.5 * np.std(means) / math.sqrt(1500) + 1e-12


@pytest.mark.parametrize("n,steps", [(1, 5), (4, 1), (4, 90)])
def test_fixed_times_come_in_turn(n, steps):
    ages, _ = ledger(asynchronous([Distribution.parse("fixed(1)")] * n, steps, 0), n)
    assert np.mean(ages) == pytest.approx(staleness.asp_run([Distribution.parse("fixed(1)")] * n, steps).value)
    assert max(ages) == n - 1


@pytest.mark.parametrize("texts",
                         [["uniform(0.5,1.5)"] * 4, ["gamma(1,4)"] * 3,
                          ["exponential(1)", "exponential(0.5)", "fixed(1)"]])
def test_ends_of_other_runs(texts):
    laws, steps = [Distribution.parse(t) for t in texts], 60
    means = [np.mean(ledger(asynchronous(laws, steps, seed, 0.2), len(laws))[0]) for seed in range(200)]
    p = staleness.asp_run(laws, steps, [0.2] * len(laws))
    assert p.kind == "approximation" and p.value == pytest.approx(np.mean(means), rel=0.01)
    assert p.lower <= p.value <= p.upper


@given(n=st.integers(1, 8), steps=st.integers(1, 50), e=st.floats(0, 3),
       texts=st.lists(st.sampled_from(["fixed(1)", "exponential(2)", "gamma(0.3,2)", "pareto(1,1.5)"]),
                      min_size=1, max_size=3))
def test_a_run_stays_between_0_and_n_minus_1(n, steps, e, texts):
    laws = [Distribution.parse(texts[i % len(texts)]) for i in range(n)]
    p = staleness.asp_run(laws, steps, [e] * n)
    assert -1e-9 <= p.value <= n - 1 + 1e-9


def test_largest():
    """Expected largest of independent geometric draws, by sampling."""
    rng = np.random.default_rng(1)
    draws = rng.geometric(1 / 4, (4000, 200)) - 1
    assert staleness.geometric_maximum(4, 200).value == pytest.approx(draws.max(axis=1).mean(), rel=0.01)
    assert staleness.geometric_maximum(1, 200).value == 0


def test_limits():
    assert staleness.ssp_bound(4, math.inf, 10).value == 30


@pytest.mark.parametrize("call,assumption", [
    (lambda: staleness.asp_of_worker([1.0, 0.0]), "positive rate"),
])
def test_domain(call, assumption):
    with pytest.raises(DomainError, match=assumption):
        call()
