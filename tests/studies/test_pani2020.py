"""The class report at its quick sizes: batches, devices, crossings, unequal machines."""

import pytest

from benchmarks.studies.pani2020 import IMAGES, crossing
from refsgd.problems.data import load

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(quick):
    return quick("pani2020")


def test_every_verdict(study):
    found = {claim.says: claim.verdict for part in study.parts if part.key not in ("deeper", "here")
             for claim in part.claims}
    # in the model two devices pay from some batch on
    for says in ("that order holds for every batch up to 8192",
                 "the larger net's time hardly changes at every batch",
                 "the classification error decreases with the batch size",
                 "an RTX 2080 Ti is 20 times as fast as a GTX 1660 Ti", "SparkNet is asynchronous"):
        assert found.pop(says) == "does not hold"
    assert found.pop("a doubled run time at batch 512") in ("does not hold", "holds")  # timed beside other tests
    assert set(found.values()) == {"holds", "holds in shape"}


def test_small_batches_have_one_verdict_for_each_statement(study):
    found = {claim.says: claim.verdict for claim in study.part("deeper").claims}
    assert found["training at small batches gives NaN"] == "holds in shape"  # of raw scores
    assert found["the loss is less negative, the larger the batch"] == "holds in shape"
    assert found["small batches over-fit"] == "does not hold"  # the difference grows with the batch
    assert [c.says for c in study.claims if "NaN" in c.says] == ["training at small batches gives NaN"]


def test_the_pass_is_as_long_as_the_data():
    assert IMAGES["digits"] == len(load("digits").train_labels)


def step(study, batch, slow):
    """Simulated seconds of a step with this many images on the slow machine."""
    (line,) = (line for line in study.part("unequal").lines if line.what.startswith(f"batch {batch}, {slow} to"))
    return line.simulated


def test_by_speed_a_step_takes_20_of_21_parts_of_the_fast_devices_time_and_with_equal_shares_ten_times(study):
    alone = step(study, 462, 0)
    assert step(study, 462, 22) == pytest.approx(20 / 21 * alone, rel=1e-12)
    assert step(study, 462, 231) == pytest.approx(10 * alone, rel=1e-12)


def test_a_slow_machine_pays_only_above_its_smallest_batch(study):
    assert [step(study, b, 0) / step(study, b, slow) for b, slow in ((32, 32), (512, 32), (1024, 49))] == (
        pytest.approx([1 / 20, 512 / 640, 1024 / 980], rel=1e-12))


def test_the_larger_net_crosses_earlier():
    assert crossing("resnet18") < crossing("shallow")


def test_formula_and_simulation_agree(study):
    for part in ("devices", "local", "unequal"):
        for line in study.part(part).lines:
            if line.processes is not None:
                continue
            assert line.simulated == pytest.approx(line.formula, rel=0.02), line.what
