"""The IPDPS 2021 study at its quick sizes: orders of accuracy, speed-ups, waiting, techniques."""

import pytest

from refsgd.studies.ko2021 import _ordered


def test_an_order_is_judged_by_intervals_only():
    rows = {("a", 4): [0.9, 0.91, 0.9], ("b", 4): [0.8, 0.81, 0.8]}
    assert _ordered("", rows, ("a", "b"), [4]).verdict == "holds in shape"
    assert _ordered("", rows, ("b", "a"), [4]).verdict == "does not hold"
    near = {("a", 4): [0.9, 0.8, 0.85], ("b", 4): [0.84, 0.88, 0.86]}
    assert _ordered("", near, ("a", "b"), [4]).verdict == "not testable"


@pytest.fixture(scope="module")
def study(quick):
    return quick("ko2021")


@pytest.mark.slow
def test_table_3(study):
    found = {claim.says: claim.verdict for claim in study.part("table3").claims}
    for says in ("BSP, ASP and AD-PSGD hardly depend on the number of workers", "SSP with s = 10, EASGD and GoSGD fall with the number of workers",
                 "communicating now and then costs accuracy (F1)", "ASP is above SSP with s = 3, and that above s = 10"):
        assert found[says] == "holds in shape"
    # with fresh reads SSP does not lose: the paper's order needs cached parameters
    assert found["bounding staleness costs accuracy: SSP is below unbounded ASP"] == "does not hold"


@pytest.mark.slow
def test_speed_ups(study):
    found = {claim.says: claim.verdict for claim in study.part("scalability").claims}
    assert found.pop("ASP always has the worst speed-up") == "does not hold"
    assert set(found.values()) == {"holds in shape", "not testable"}


@pytest.mark.slow
def test_waiting_and_techniques(study):
    assert {c.verdict for p in ("waiting", "techniques", "sensitivity") for c in study.part(p).claims} == {"holds in shape", "not testable"}
