"""The benchmark of unpaced machines: its page is made of its figures, and what it says of them is right."""
import json

import pytest

from benchmarks.unpaced import PAGE, RESULTS, Line, page, summary


def line(algorithm, measured, predicted, idle=0.1, predicted_idle=0.1):
    return Line(algorithm, "tiny", 64, 2, measured, predicted, idle, predicted_idle)


def test_the_page_is_made_of_the_results():
    assert PAGE.read_text() == page(json.loads(RESULTS.read_text()))


def test_errors_and_orders_are_counted():
    lines = [line("a", 1.0, 1.1), line("b", 1.05, 1.0, 0.3, 0.2), line("c", 2.0, 1.0), line("d", 3.0, 2.4)]
    found = summary(lines)
    assert found["median"] == pytest.approx((0.1 + 0.2) / 2) and found["worst"] == pytest.approx(0.5)
    assert found["pairs"] == 5  # a and b differ by less than a tenth
    assert found["ordered"] == pytest.approx(3 / 5)  # c is predicted as fast as b, and faster than a


def test_pairs_of_different_nets_are_not_compared():
    assert summary([line("a", 1.0, 1.0), line("b", 5.0, 0.1)._replace(net="shallow")])["pairs"] == 0
