"""The class report at its quick sizes: batches, devices, crossings, unequal machines."""

import pytest

from refsgd.studies.pani2020 import crossing

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(quick):
    return quick("pani2020")


def test_every_verdict(study):
    found = {claim.says: claim.verdict for part in study.parts if part.key not in ("deeper", "here") for claim in part.claims}
    assert found.pop("that order holds for every batch up to 8192") == "does not hold"  # in the model two devices pay from some batch on
    assert {v for v in found.values() if v != "not testable"} == {"holds", "holds in shape"}
    assert sum(v == "not testable" for v in found.values()) == 4


def test_the_larger_net_crosses_earlier():
    assert crossing("resnet18") < crossing("shallow")


def test_formula_and_simulation_agree(study):
    for part in ("devices", "unequal"):
        for line in study.part(part).lines:
            assert line.simulated == pytest.approx(line.formula, rel=0.02), line.what
