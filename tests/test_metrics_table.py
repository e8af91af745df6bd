"""One table says which metrics a result has, in which units and words, and how a trace gives them."""

import json

import pytest
from matplotlib.figure import Figure

import refsgd
from refsgd.cli import main
from refsgd.display import plots
from refsgd.experiment.result import Result
from refsgd.experiment.sweep import sweep
from refsgd.trace.metrics import METRICS, PREDICTED, measure

UNITS = {"s", "images/s", "updates", "bytes", "messages", "1", "gradients", "iterations", ""}


@pytest.fixture(scope="module")
def result():
    machine = refsgd.Machine(compute="exponential(0.02)", latency=0.001)
    return refsgd.run("ssp", data="quadratic", workers=3, servers=2, steps=30, machine=machine)


def as_format_1(result):
    """The result as the first format had it: some metrics in objects, bytes by node."""
    data = json.loads(result.to_json())
    m = data["measured"]
    nested = {"staleness": {"mean": m.pop("staleness_mean"), "max": m.pop("staleness_max"),
                            "histogram": m.pop("staleness_histogram"), "unit": "updates"},
              "clock_gap": {"max": m.pop("clock_gap_max")}, "lead": {"max": m.pop("lead_max")}}
    return {**data, "format": 1, "measured": {**m, "bytes_sent": m.pop("bytes_sent_by_node"), **nested}}


def test_each_metric_has_a_unit_and_words():
    for name, metric in METRICS.items():
        assert metric.name == name and metric.unit in UNITS and metric.label and metric.meaning
        assert not metric.meaning.endswith(".") and (metric.unit == "") == (name in ("not_finite", "resources"))


def test_a_result_has_each_metric_of_a_trace_flat_under_its_name(result):
    assert result.measured == measure(result.trace)
    for name, value in result.measured.items():
        assert isinstance(value, dict) == bool(METRICS[name].by), name
    assert result.measured["bytes_sent"] == sum(result.measured["bytes_sent_by_node"].values())
    assert result.measured["idle_ratio"] == pytest.approx(sum(result.measured["idle_by_cause"].values()))
    ages = {int(tau): count for tau, count in result.measured["staleness_histogram"].items()}
    assert result.measured["staleness_mean"] == pytest.approx(
        sum(tau * count for tau, count in ages.items()) / sum(ages.values()))
    assert result.measured["staleness_max"] == max(ages)


@pytest.mark.parametrize("kind", ["formulas", "simulated"])
def test_predictions_have_names_and_units_of_the_table(result, kind):
    found = refsgd.predict("ssp", data="quadratic", workers=3, servers=2, steps=30, layout="layers",
                           machine=result.machine, kind=kind)
    assert {name for name in METRICS if METRICS[name].predicted == "formula"} == {*PREDICTED} >= {*found} - {
        name for name in METRICS if METRICS[name].predicted == "sizes"}
    assert {name: p.unit for name, p in found.items()} == {name: METRICS[name].unit for name in found}


def test_the_first_format_is_still_read(result):
    old = as_format_1(result)
    back = Result.from_json(json.dumps(old))
    assert back.measured == result.measured and back.summary() == Result.from_json(result.to_json()).summary()
    assert json.loads(back.to_json()) == json.loads(result.to_json())


@pytest.mark.parametrize("name, value, says", [
    ("staleness", None, "measured.staleness_mean is missing"),
    ("clock_gap", {"max": "much"}, "measured.clock_gap_max is 'much'; expected a number"),
    ("bytes_sent", 7, "measured.bytes_sent is missing"), ("idle_ratio", [], "measured.idle_ratio is"),
    (None, 3, "measured is 3; expected an object"), (None, None, "measured is None")])
def test_a_damaged_file_of_the_first_format_is_refused_by_its_field(result, name, value, says):
    old = as_format_1(result)
    old["measured"] = {**old["measured"], name: value} if name else value
    with pytest.raises(ValueError, match=says) as refused:
        Result.from_json(json.dumps(old))
    assert "\n" not in str(refused.value)


def test_an_unknown_metric_is_refused_with_the_names_of_the_table(result):
    with pytest.raises(ValueError, match=r"metric 'idel_ratio' is unknown; expected one of .*lead_max.*; did you mean "
                       "idle_ratio"):
        sweep("bsp", "workers", [1, 2], metric="idel_ratio")
    with pytest.raises(ValueError, match=r"metric 'speed'; expected one of seconds_per_iteration, .*lead_max"):
        plots.predicted_against_measured({"ssp": result}, Figure().subplots(), "speed")


def test_list_names_what_can_be_predicted(capsys):
    assert main(["list"]) == 0
    said = capsys.readouterr().out.partition("metrics (")[2]
    assert [line.split()[0] for line in said.splitlines()[1:] if line[2] != " "] == [
        name for name, metric in METRICS.items() if metric.predicted]


def test_phases_of_a_server_by_hand():
    """A gradient of 1 s, an update of 0.25 s, 100 bytes a part: two latencies and transfers."""
    machine = refsgd.Machine(compute="1", update="0.25", latency="10ms", bandwidth=1e4)
    found = refsgd.run("asp", net="shapes:250", data="none", workers=1, steps=5, machine=machine).measured["phase_seconds"]
    assert found == pytest.approx({"gradient": 1.0, "update": 0.25, "push": 0.11, "pull": 0.11})


def test_the_forward_pass_counts_apart_where_gradients_have_pieces():
    machine = refsgd.Machine(compute="0.3", latency="10ms")
    found = refsgd.run("allreduce", net="mlp", workers=2, steps=3, overlap="backward",
                       machine=machine).measured["phase_seconds"]
    assert found["forward"] == pytest.approx(0.1, rel=0.01) and found["gradient"] == pytest.approx(0.3, rel=0.01)
    assert found["exchange"] >= 0.01 and "push" not in found
