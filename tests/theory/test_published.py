"""The papers' figures: within a quarter of the prediction, or a reason is given; calibrated on one node
alone."""

import pytest

from benchmarks.published import (
    ALONE,
    GRAUR,
    Figure,
    alone,
    calibrated,
    figures,
    implemented,
    latency_sweep,
    served,
    shares,
)
from refsgd.theory import DomainError


@pytest.fixture(scope="module")
def every():
    """All figures; not at import, as some are simulated."""
    return figures()


@pytest.mark.slow
def test_within_a_quarter_or_with_a_reason(every):
    assert [f for f in every if (abs(f.error) <= 0.25) != (f.reason == "")] == []


@pytest.mark.slow
def test_a_wrong_model_is_noticed(every):
    """Twice the transfers would miss most of Ethernet's forward passes."""
    forward = [f for f in every if f.what.startswith("Ethernet, forward") and f.unit == "s/batch"]
    doubled = [Figure(f.source, f.what, f.quoted, 2 * f.predicted, f.unit, f.model) for f in forward]
    assert all(abs(f.error) <= 0.25 for f in forward) and all(abs(f.error) > 0.25 for f in doubled)


def test_half_duplex_meets_the_ceiling_and_both_ends_of_it():
    """About 20 images/s at batch 32, 1.5 s per batch on 16 nodes, 111.5 images/s at batch 256 on 32 nodes."""
    assert 32 / served("Ethernet", 32, 10_000, "half") == pytest.approx(20, rel=0.03)
    assert served("Ethernet", 32, 16, "half") == pytest.approx(1.5, rel=0.03)
    assert 256 / served("Ethernet", 256, 32, "half") == pytest.approx(111.5, rel=0.03)


@pytest.mark.slow
def test_the_implementation_s_terms_meet_more_figures(every):
    """Two more of 45, and of the thesis' 40 nodes all but the smallest batch's."""
    thesis = [f for f in every if f.source == GRAUR]
    met = [f for f in thesis if f.implemented is not None and abs(f.implemented / f.quoted - 1) <= 0.25]
    assert len(met) > sum(abs(f.error) <= 0.25 for f in thesis)
    assert {f.what for f in thesis if "40 nodes" in f.what
            and f not in met} == {"InfiniBand, training, batch 8, 40 nodes"}
    assert implemented("F+B", "Ethernet", 256, 1) == alone("F+B", 256)


def test_one_node_is_its_own_calibration():
    assert served("Ethernet", 8, 1, "half") == ALONE["F+B", "Ethernet", 8]


def test_unequal_machines_and_latency():
    """1/21 of a batch for a machine 20 times slower; 69 % idle at 200 ms, calibrated at 10 ms (10 %)."""
    assert shares([20, 1])[1] == pytest.approx(1 / 21)
    k = calibrated(0.010, 0.10)
    assert [round(latency_sweep(a, k), 3) for a in (0.01, 0.1, 0.2)] == [0.1, 0.526, 0.69]
    for call, assumption in ((lambda: shares([1, 0]), "speeds > 0"),
                             (lambda: calibrated(0.0, 0.5), "latency > 0")):
        with pytest.raises(DomainError, match=assumption):
            call()
