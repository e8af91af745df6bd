"""Jia et al., Fig. 4, as a run: which layer each message carries, what hides, what a worker waits for."""

import pytest

from benchmarks.studies import Lab
from benchmarks.studies.jia2020 import WAY, figure4, three_layers
from benchmarks.studies.looks import layer_by_layer, waits
from benchmarks.studies.report import picture


@pytest.mark.parametrize("algorithm", ["bsp", "asp"])
def test_only_the_first_layer_is_waited_for(algorithm):
    """Its push and pull, in each of the three iterations that follow another."""
    found = waits(three_layers(algorithm), "worker0")
    assert found[0] == pytest.approx([2 * WAY] * 3, abs=1e-12)
    assert found[1] == found[2] == pytest.approx([0.0] * 3, abs=1e-12)


def test_a_message_carries_a_layer_while_the_next_one_is_computed():
    """To the last digit: layer 3's push begins with the backward pass of layer 2."""
    bars = layer_by_layer(three_layers("bsp"), "worker0", 0.105, 0.315)
    for layer, start in ((3, 0.05), (2, 0.07), (1, 0.09)):
        assert bars[f"push: layer {layer}"][0] == pytest.approx((start, start + WAY), abs=1e-12)
        assert bars[f"pull: layer {layer}"][0] == pytest.approx((start + WAY, start + 2 * WAY), abs=1e-12)
    assert bars["backward: layer 2"][0] == pytest.approx((0.05, 0.07), abs=1e-12)
    assert bars["waits: idle"] == [pytest.approx(bar, abs=1e-12) for bar in ((0.09, 0.105), (0.195, 0.21))]


def test_a_link_that_hides_too_little_is_noticed():
    """Above a backward pass the other layers' exchanges delay the first one's."""
    assert waits(three_layers("bsp", way=5 * WAY), "worker0")[0][0] > 1.2 * 2 * 5 * WAY


def test_the_figure_s_claims_hold_in_a_run_and_its_timeline_is_drawn():
    part = figure4(Lab(quick=True))
    assert [claim.verdict for claim in part.claims] == ["holds"] * 3
    waited = [line for line in part.lines if line.what.startswith("wait")]
    assert [line.processes for line in waited] == pytest.approx([line.simulated for line in waited], abs=0.1)
    timeline, _ = picture(part).axes
    assert [text.get_text() for text in timeline.get_yticklabels()] == ["forward", "backward", "push", "pull",
                                                                        "waits"]
