"""What a run and a prediction say of an exchange: the fullest server's bytes over the mean of all."""

import json

import pytest

import refsgd
from refsgd.cli import main

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
VGG = {"data": "none", "net": "shapes:vgg16@224", "workers": 4, "servers": 4, "steps": 1,
       "machine": refsgd.Machine(compute="fixed(1)", bandwidth=1e9)}


@pytest.mark.parametrize(("layout", "balance", "expected"), [
    # fc6 has 102,764,544 of 138,357,544 parameters; in turn, its server also holds four layers of features
    ("layers", "size", 4 * 102_764_544 / 138_357_544), ("layers", "robin", 3.0573), ("chunks:4000000", "robin", 1.0115),
    ("chunks:4000000", "size", 1.00097)])
def test_the_server_with_fc6_holds_three_times_the_mean_and_chunks_cure_it(layout, balance, expected):
    found = refsgd.predict("bsp", layout=layout, balance=balance, **VGG)["largest_server"]
    assert found.kind == "exact" and found.value == pytest.approx(expected, abs=1e-4)


def test_runs_and_predictions_report_the_fullest_server(capsys):
    how = {"data": "digits", "steps": 2, "workers": 2, "servers": 2, "layout": "layers"}
    found = refsgd.run("asp", **how)
    sent = [found.measured["bytes_sent_by_node"][node] for node in found.trace.nodes if node.startswith("server")]
    homes = [int(node[6:].split(".")[0]) for node in found.trace.nodes if node.startswith("server")]
    held = [sum(b for b, k in zip(sent, homes, strict=True) if k == server) for server in range(2)]
    assert found.measured["largest_server"] == pytest.approx(2 * max(held) / sum(held))
    assert found.predicted["largest_server"]["value"] == found.measured["largest_server"]
    assert f"; the fullest server holds {found.measured['largest_server']:.2f} times the mean" in found.summary()
    assert refsgd.Result.from_json(found.to_json()).measured == json.loads(found.to_json())["measured"]
    for kind in ("formulas", "simulated"):
        assert main(["predict", "asp", "--layout", "layers", "--servers", "2", "--steps", "2", "--kind", kind]) == 0
        assert "largest_server" in capsys.readouterr().out
    equal = refsgd.run("asp", **{**how, "layout": "equal"})
    assert "largest_server" not in {**equal.measured, **equal.predicted} and "fullest" not in equal.summary()
