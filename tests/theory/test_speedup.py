"""Reference lines of races."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.theory.phenomena.speedup import linear, noise_scale, optimal_order

TIMES = st.lists(st.floats(0.01, 10), min_size=1, max_size=6)


@given(TIMES, st.floats(1, 100), st.floats(0, 200))
def test_the_optimal_order_is_the_best_minibatch(times, least, critical):
    """Brute force: m workers share a minibatch of m x 16 images, S_min (1 + B_c / B) times."""
    quick, batch = sorted(times), 16
    each = [least * (1 + critical / (m * batch)) * m / sum(1 / t for t in quick[:m])
            for m in range(1, len(quick) + 1)]
    assert optimal_order(least, critical, batch, times) == pytest.approx(min(each))
    assert optimal_order(least, critical, batch, times) <= each[0] * (1 + 1e-9)


@given(st.floats(1, 100), st.floats(0, 500))
def test_two_batches_give_the_noise_scale(least, critical):
    found = noise_scale(16, least * (1 + critical / 16), 128, least * (1 + critical / 128))
    assert found == pytest.approx((least, critical), rel=1e-6, abs=1e-6)


def test_linear_speed_up_is_shared_work():
    assert linear(70, [0.015] * 8) == pytest.approx(70 * 0.015 / 8)
    assert linear(10, [1, 1, 2]) == pytest.approx(4)
