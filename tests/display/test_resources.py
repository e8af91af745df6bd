"""Pictures of what processes use over time: heights are read back from the axes."""

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import refsgd
from refsgd.cli import main
from refsgd.display import plots

pytestmark = pytest.mark.usefixtures("few_draws_throughout")


def test_resources_are_drawn_by_process():
    samples = [[0.1, 0.5, 20_000_000, 0, 0], [0.2, 1.0, 30_000_000, 0, 2_000_000]]
    result = refsgd.run("bsp", data="quadratic", steps=2)
    with pytest.raises(ValueError, match="was not watched"):
        plots.resources(result, Figure().subplots())
    result.measured["resources"] = {"worker0": {"samples": samples}, "launcher": {"samples": samples}}
    for what, expected in (("processor", [0.5, 1.0]), ("memory", [20, 30]), ("written", [0, 20])):
        ax = plots.resources(result, Figure().subplots(), what)
        assert [list(line.get_ydata()) for line in ax.lines] == [pytest.approx(expected)] * 2


def test_traffic_and_growth_are_drawn_beside_what_is_predicted():
    """A line for each process that sends, by second; growth with a dotted line at the prediction."""
    columns = ["time", "cpu", "rss", "read", "written", "grown", "bytes_sent", "bytes_received", "messages_sent",
               "messages_received"]
    samples = [[0.5, 0, 1, 0, 0, 1_000_000, 2_000_000, 0, 4, 0], [1.0, 0, 1, 0, 0, 3_000_000, 5_000_000, 0, 5, 0]]
    result = refsgd.run("bsp", data="quadratic", steps=2)
    result.measured["resources"] = {
        "worker0": {"columns": columns, "samples": samples, "predicted": 4e6, "role": "worker"},
        "launcher": {"columns": columns, "samples": [[0.5, *[0] * 9]], "predicted": None, "role": "launcher"}}
    for what, expected in (("sent", [4, 6]), ("messages", [8, 2]), ("received", None)):
        drawn = [list(line.get_ydata()) for line in plots.resources(result, Figure().subplots(), what).lines]
        assert drawn == ([pytest.approx(expected)] if expected else [])
    grown, predicted, _ = plots.resources(result, Figure().subplots(), "growth").lines
    assert list(grown.get_ydata()) == [1, 3] and set(predicted.get_ydata()) == {4}
    panels = plots.resources_figure({"bsp": result, "again": result}).axes
    assert len(panels) == 10 and list(panels[7].lines[0].get_ydata()) == [4, 6]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["processes", "simulator"])
def test_compare_watches_every_row(runtime, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--algorithms", "bsp,allreduce", "--data", "quadratic", "--workers", "2", "--steps",
                 "20", "--compute", "10ms", "--runtime", runtime, "--monitor", "20ms", "--plot", "it.png"]) == 0
    rows = json.loads(Path("refsgd-compare.json").read_text())["rows"]
    what = "measured" if runtime == "processes" else "simulated"
    servers = [sum(u["role"] == "server" for u in row[what]["resources"].values()) for row in rows]
    assert servers == [1, 0] and Path("it-resources.png").stat().st_size > 10_000
    assert "it.png and it-resources.png" in capsys.readouterr().out
