"""Gaia's claims for a wide-area network, on six sites: 1.8 to 53.5 times as fast as synchronising across it, 0.94
to 1.40 times as long as on a LAN."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import gaia

LAN, WAN, BEST = "BSP on one LAN", "BSP across six sites", "Gaia, threshold 100%"
PAGE = Path(gaia.__file__).parent.parent / "docs" / "algorithms" / "approximate.md"


def hold(found):
    """Of each seed, against BSP across the sites; of an iteration and in accuracy, against the LAN.  The time to an
    accuracy is not within 1.40 of the LAN's here, as the page says."""
    assert all(1.8 <= ratio <= 53.5 for ratio in gaia.ratios(found, WAN, BEST))
    mean = {name: {key: np.mean([run[key] for run in found[name]]) for key in ("iteration", "accuracy")}
            for name in (LAN, BEST)}
    assert 0.94 <= mean[BEST]["iteration"] / mean[LAN]["iteration"] <= 1.40
    assert mean[BEST]["accuracy"] >= mean[LAN]["accuracy"] - 0.015


def test_five_seeds_and_the_page_that_shows_them():
    found = gaia.load()
    assert found.keys() == gaia.RUNS.keys() and all(len(runs) == 5 for runs in found.values())
    hold(found)
    page = [line.strip() for line in PAGE.read_text().splitlines()]
    assert [line for line in gaia.table(found).splitlines() if line not in page] == []
    with pytest.raises(AssertionError):
        hold({**found, BEST: found[WAN]})


@pytest.mark.slow
def test_a_seed_again():
    """BSP's accuracy does not depend on the network, so that its run on the LAN is enough."""
    stored = gaia.load()
    for name in (LAN, BEST):
        now, then = gaia.trained(name, 0), stored[name][0]
        assert now["iteration"] == pytest.approx(then["iteration"], rel=0.03)
        assert now["seconds"] == pytest.approx(then["seconds"], rel=0.5)
        assert now["accuracy"] == pytest.approx(then["accuracy"], abs=0.03)
