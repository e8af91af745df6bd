"""Algorithms compared with public implementations and with their papers: the page says what is computed here again."""

import pytest

from benchmarks import agreement
from benchmarks.agreement import BOUNDED, COMPARISONS, Figures

PAGE = agreement.PAGE.read_text()
SLOW = {"k-async", "softsync"}  # thousands of updates


def ident(comparison):
    return f"{comparison.algorithms}: {comparison.what[:40]}"


@pytest.mark.parametrize("comparison", [pytest.param(each, id=ident(each), marks=[pytest.mark.slow] * (each.algorithms in SLOW))
                                        for each in COMPARISONS])
def test_both_sides_agree_and_the_page_says_so(comparison):
    if comparison.needs:
        pytest.importorskip(comparison.needs, reason=f"{comparison.needs} is what this line is compared with")
    assert agreement.line(comparison) in PAGE.splitlines()


@pytest.mark.parametrize("threshold", BOUNDED)
def test_ringmaster_keeps_the_bound_of_its_paper(threshold):
    assert agreement.bound_line(threshold) in PAGE.splitlines()


def test_the_page_has_nothing_else():
    """No line of its tables is typed by hand."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| algorithm", "| $R$"))]
    assert len(rows) == len(COMPARISONS) + len(BOUNDED)
    assert len({each.algorithms for each in COMPARISONS}) >= 10


def test_a_disagreement_is_noticed():
    assert Figures([1, 2], [1, 2.2]).difference == pytest.approx(0.1)
    wrong = COMPARISONS[0]._replace(compute=lambda: Figures([1.0], [1.0001]))
    with pytest.raises(AssertionError, match="diloco, the model before each"):
        agreement.line(wrong)


def test_an_outer_step_of_the_other_form_is_noticed():
    pytest.importorskip("torch", reason="torch is what this is compared with")
    assert agreement.outer("nesterov", 0.7, 0.9).difference < 1e-5
    both = [agreement.outer(form, 0.7, 0.9) for form in ("nesterov", "heavy-ball")]
    assert Figures(both[0].theirs, both[1].ours).difference > 0.1
