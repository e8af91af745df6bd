"""What docs/server-link.md says and its pictures show: BSP through servers' links, in the library's
simulator."""

import re
from pathlib import Path

import pytest

from benchmarks.server_link import period, run
from refsgd.cluster.distributions import Distribution
from refsgd.theory.phenomena import iteration

DOCS = Path(__file__).parent.parent.parent / "docs"
T, W, ALPHA = 1.0, 0.3, 0.04


def answered(trace, count):
    """When the first `count` messages have all reached their workers."""
    return sorted(t.arrival for t in trace.transits if t.src.startswith("server"))[count - 1]


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_textbook_holds_for_the_first_iteration_only(n):
    """2 n transfers until all have the first model; from then on n + 1 from update to update."""
    trace = run(n, 4, transfer=W, latency=ALPHA)
    assert answered(trace, n) == pytest.approx(T + 2 * ALPHA + 2 * n * W, rel=1e-9)
    assert period(trace, 4)[1:] == pytest.approx([T + 2 * ALPHA + (n + 1) * W] * 3, rel=1e-9)
    assert n == 1 or period(trace, 4)[-1] < (T + 2 * ALPHA + 2 * n * W) * (1 - 1e-3)


@pytest.mark.parametrize("n,k", [(1, 1), (4, 2), (8, 4), (5, 3), (6, 6), (3, 7)])
def test_servers_in_index_order(n, k):
    trace = run(n, 6, transfer=W, servers=k, latency=ALPHA)
    assert period(trace, 6)[1:] == pytest.approx([T + 2 * ALPHA + (n / k + 1) * W] * 5, rel=1e-9)


@pytest.mark.parametrize("n,k", [(4, 2), (8, 4), (8, 5), (5, 3), (6, 6), (7, 1)])
def test_rotation_wins_the_first_iteration_and_loses_the_others(n, k):
    """min(2 n/K, (n-1)/K + 2) w in the long run; the formula of index order would be noticed wherever it
    differs."""
    rotated, index = (run(n, 14, transfer=W, servers=k, rotated=r, latency=ALPHA) for r in (True, False))
    assert answered(rotated, n * k) == pytest.approx(T + 2 * ALPHA + 2 * n / k * W, rel=1e-9)
    assert answered(index, n * k) == pytest.approx(T + 2 * ALPHA + ((2 * n - 1) / k + 1) * W, rel=1e-9)
    slow, quick = min(2 * n / k, (n - 1) / k + 2), n / k + 1
    assert period(rotated, 14)[-1] == pytest.approx(T + 2 * ALPHA + slow * W, rel=1e-9)
    assert slow >= quick - 1e-12 and (k == 1 or n == k or slow > quick)


def test_the_picture_of_random_times_lies_between_its_limits():
    """n = 1 to 12, exponential T, w = T/4: strictly between the limits from two workers on, and below the
    textbook."""
    law = Distribution.parse("exponential(1)")
    for n in range(2, 13):
        p = iteration.bsp([law] * n, transfer=0.25)
        assert p.lower < p.value < p.upper < iteration.mean_of_maximum([law] * n) + 2 * n * 0.25


def test_the_page_names_tests_and_pictures_that_exist():
    text = (DOCS / "server-link.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(named) >= 5
    assert not [f for f, test in named if f"def {test}(" not in (DOCS.parent / "tests" / f).read_text()]
    assert len(re.findall(r"images/server-link-\w+\.svg", text)) == 3
