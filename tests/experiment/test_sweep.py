"""Sweeps of the formulas, and the explanation of residuals."""

import json
import weakref
from dataclasses import replace

import numpy as np
import psutil
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.adaptive import Adam
from refsgd.algorithms.gossip.ako import Accumulating
from refsgd.algorithms.sgd import SGD
from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.display.tables import comparison_table, explain, residual
from refsgd.experiment import sweep as module
from refsgd.experiment.sweep import crossings, parse_range, sweep
from refsgd.problems import quadratic

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
FAST = Machine(compute="fixed(0.1)", latency=0.001, bandwidth=1e8)


def test_ranges():
    assert parse_range("workers=1:4") == ("workers", (1.0, 2.0, 3.0, 4.0))
    assert parse_range("workers=2:16:7") == ("workers", (2.0, 9.0, 16.0))
    assert parse_range("bandwidth=1e6,1e8") == ("bandwidth", (1e6, 1e8))
    _, values = parse_range("latency=0.001:1")
    assert len(values) == 25 and values[0] == 0.001 and values[-1] == pytest.approx(1)
    for wrong in ("workers", "workers=4:1", "workers=1:4:0", "colour=1:2", "workers=a:b"):
        with pytest.raises(ValueError, match="expected"):
            parse_range(wrong)


def test_algorithms_of_one_name_have_a_curve_each(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("from refsgd.algorithms import CATALOGUE\n\n\ndef bsp(*given):\n    return CATALOGUE['bsp'](*given)\n")
    monkeypatch.chdir(tmp_path)
    found = sweep(["bsp", "mine.py:bsp"], "workers", [1, 2], machine=FAST, steps=10)
    assert {name: len(curve) for name, curve in found.curves.items()} == {"bsp": 2, "mine.py:bsp": 2}
    with pytest.raises(ValueError, match="bsp appears twice"):
        sweep(["bsp", "asp", "BSP"], "workers", [1, 2])


def test_an_algorithms_own_options_hold_in_a_sweep(capsys):
    """Of one algorithm alone: beside others it would not be clear whose they are."""
    curves = []
    for staleness in ("0", "7"):
        assert main(["predict", "ssp", "--staleness", staleness, "--sweep", "workers=3,4", "--json",
                     "-"]) == 0
        curves.append(json.loads(capsys.readouterr().out)["curves"]["ssp"])
    assert all(slow < 0.9 * fast for slow, fast in zip(*curves, strict=True))
    assert main(["predict", "ssp", "--staleness", "7", "--against", "asp", "--sweep", "workers=3,4"]) == 2
    assert "expected no options of a single algorithm" in capsys.readouterr().err


def test_crossings_are_found_by_interpolation_and_equal_stretches_are_none():
    curves = {"a": [1.0, 2.0, 3.0], "b": [3.0, 2.5, 1.0], "c": [1.0, 2.0, 3.0]}
    found = crossings((1, 2, 3), curves)
    assert [(a, b) for a, b, _ in found] == [("a", "b"), ("b", "c")] and found[0][2] == pytest.approx(2.2)


def test_a_server_saturates_and_a_ring_does_not():
    found = sweep(["bsp", "allreduce"], "workers", (2, 8, 32), machine=FAST, net="shapes:2500000",
                  data="none", steps=10)
    bsp, ring = found.curves["bsp"], found.curves["allreduce"]
    assert bsp[2] < 2 * bsp[1] < 4 * bsp[0] and ring[2] > 2.5 * ring[1]


def test_predict_sweep_writes_a_picture_and_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where pictures without a path go
    picture = tmp_path / "s.png"
    assert main(["predict", "bsp", "--against", "asp", "--sweep", "workers=1:6", "--plot", str(picture)]) == 0
    assert picture.stat().st_size > 10_000
    assert "has teeth" in " ".join(capsys.readouterr().out.split())  # 1,437 digits, in batches of 16
    assert main(["predict", "bsp", "--data", "quadratic", "--sweep", "workers=2,4"]) == 0
    assert "has teeth" not in capsys.readouterr().out
    assert main(["predict", "bsp", "--sweep", "latency=0.001,0.1", "--metric", "idle_ratio", "--json",
                 "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["curves"]["bsp"][0] < data["curves"]["bsp"][1] and not data["toothed"]
    assert main(["predict", "bsp", "--sweep", "workers=1:3", "--metric", "colour"]) == 2
    assert main(["predict", "bsp", "--data", "quadratic", "--sweep", "workers=2,4", "--against", "ringleader,strads",
                 "--metric", "staleness_max", "--json", str(tmp_path / "s.json")]) == 0
    assert "- of strads: " in capsys.readouterr().out


def test_a_large_residual_is_explained_by_the_draws():
    machine = Machine(compute="lognormal(0.02,2)")
    row = refsgd.compare(["asp"], runtime="simulator", data="quadratic", steps=60, machine=machine,
                         seed=3).rows[0]
    assert abs(residual(row, "predicted")) > 0.03
    assert "draws of this seed" in explain(row)[0] or "iterations are few" in explain(row)[0]
    assert "Δ time" in [c.header
                        for c in comparison_table(refsgd.Comparison(machine, "simulator", 0, [row])).columns]


def test_what_waiting_is_more_or_less_than_predicted_is_said_in_words():
    """SSP's slack: the simulation against a formula whose slack, and so whose iteration, is 5 ms longer."""
    machine = refsgd.Machine(compute="exponential(0.02)", latency=0.001)
    (row,) = refsgd.compare(["ssp"], runtime="simulator", data="quadratic", steps=300, machine=machine,
                            options={"ssp": {"staleness": 1}}).rows
    seconds = row.simulated.measured["seconds_per_iteration"]
    spent = {cause: share * seconds for cause, share in row.simulated.measured["idle_by_cause"].items()}
    for more, words in ((0.005, "5.00 ms an iteration less"), (-0.005, "5.00 ms an iteration more")):
        formula = {"value": seconds + more, "terms": spent | {"slack": spent["slack"] + more}}
        said = explain(replace(row, predicted={"seconds_per_iteration": formula}))
        assert [words in line and "waiting (slack: the answer is held back to keep the bound) takes" in line
                and "than the formula says" in line for line in said] == [True]


def test_a_run_too_short_for_its_long_run_is_said_to_be_one():
    """Twelve steps of streaming DiLoCo, which ends with an exchange."""
    machine = refsgd.Machine(compute="fixed(0.02)", latency=0.001, bandwidth=1e6)
    (row,) = refsgd.compare(["streaming-diloco"], runtime="simulator", data="quadratic", steps=12, machine=machine).rows
    assert residual(row, "predicted") > 0.03
    (said,) = explain(row)
    assert "of a long run, and this run began differently: its total time is +0.0% off the formula's" in said


def test_an_exact_prediction_has_no_residual_to_explain():
    row = refsgd.compare(["bsp"], runtime="simulator", data="quadratic", steps=60, machine=FAST).rows[0]
    assert explain(row) == [] and abs(residual(row, "predicted")) < 0.01


@pytest.mark.parametrize(("quantity", "values", "said"), [
    ("workers", (0, 1), "workers 0; expected at least 1"),
    ("servers", (0,), "servers 0; expected at least 1"),
    ("batch", (-1,), "batch -1; expected at least 1"),
    ("staleness", (-1,), "staleness -1; expected at least 0"),
    ("workers", (1, 2.5), "workers 2.5; expected whole numbers, at least 1"),
    ("workers", (float("nan"),), "workers nan; expected whole"),
    ("staleness", (float("inf"),), "staleness inf; expected whole"),
    ("workers", ("a",), "workers 'a' of type str; expected a number"),
    ("latency", (-1,), "latency -1 s; expected a finite"),
    ("bandwidth", (1e6, 0), "bandwidth 0 bytes/s; expected a number of bytes/s > 0"),
    ("wrkers", (1,), "sweep over 'wrkers'; expected one of workers")])
def test_a_value_outside_its_range_is_refused_not_left_out(quantity, values, said):
    with pytest.raises(refsgd.experiment.prepare.Usage, match=said):
        sweep(["ssp"], quantity, values, machine=FAST, data="quadratic", steps=10)


def test_a_sweep_from_zero_workers_is_wrong_use(capsys):
    assert main(["predict", "bsp", "--sweep", "workers=0:3"]) == 2
    assert capsys.readouterr().err == "refsgd: workers 0; expected at least 1\n"


def test_why_no_point_has_a_figure_is_said():
    with pytest.raises(refsgd.experiment.prepare.Usage, match="net 'foo' is unknown"):
        sweep(["bsp"], "workers", (1, 2), machine=FAST, net="foo", steps=10)


def test_a_lone_name_is_one_algorithm():
    assert list(sweep("bsp", "workers", (1, 2), machine=FAST, data="quadratic", steps=10).curves) == ["bsp"]
    found = refsgd.compare("bsp", runtime="simulator", data="quadratic", steps=2, machine=FAST)
    assert [row.algorithm for row in found.rows] == ["bsp"]
    assert [row.algorithm for row in refsgd.compare(CATALOGUE["asp"], runtime="simulator", data="quadratic",
                                                    steps=2, machine=FAST).rows] == ["asp"]


@pytest.mark.parametrize("given", ["downpour adagrad=on push_every=2", "bsp layout=layers priority=on", "ssp staleness=inf"])
def test_a_label_can_be_given_again(given):
    told = {"data": "digits", "net": "softmax", "steps": 3, "workers": 2, "runtime": "simulator"}
    (first,) = refsgd.compare([given], **told).rows
    (again,) = refsgd.compare([first.label], **told).rows
    assert again.label == first.label and again.simulated.parameters_sha256 == first.simulated.parameters_sha256


def test_options_of_an_unknown_algorithm_are_refused():
    with pytest.raises(refsgd.experiment.prepare.Usage,
                       match="options of 'sssp', which is unknown; expected some of ssp; did you mean ssp?"):
        refsgd.compare(["ssp"], runtime="simulator", data="quadratic", steps=2,
                       options={"sssp": {"staleness": 1}})
    found = refsgd.compare(["bsp"], runtime="simulator", data="quadratic", steps=2, machine=FAST,
                           options={"ssp": {"staleness": 1}})
    assert found.rows[0].options == {}


def test_the_harder_case_needs_data_that_can_be_dealt_out_anew():
    with pytest.raises(refsgd.experiment.prepare.Usage,
                       match="hard with your own problem; expected data and net"):
        refsgd.compare(["bsp"], problem=quadratic(), runtime="simulator", steps=2, machine=FAST, hard=True)


def test_a_sweep_keeps_the_parameters_of_one_point_only(monkeypatch):
    made, alive = [], []

    def kept(*given, **told):
        alive.append(sum(each() is not None for each in made))
        e = module_prepare(*given, **told)
        made.append(weakref.ref(e.problem.x0))
        return e

    module_prepare = module.prepare
    monkeypatch.setattr(module, "prepare", kept)
    sweep(["allreduce", "bsp"], "bandwidth", np.geomspace(1e6, 1e9, 8), machine=FAST, data="digits", steps=3)
    assert len(alive) == 16 and max(alive) <= 2, alive


@pytest.mark.parametrize("rule", [SGD(0.1), Adam(0.1)])
def test_a_prediction_makes_no_replica_as_the_state_of_a_rule_takes_no_memory_before_an_update(rule):
    def grown(start):
        before = psutil.Process().memory_info().rss
        state = start(x)
        return psutil.Process().memory_info().rss - before, state

    x = np.ones(25_000_000, np.float32)
    assert grown(lambda x: Accumulating(0, x, rule, (slice(0, x.size),)))[0] < 0.1 * x.nbytes  # Ako's replica
    assert grown(rule.start)[0] < 0.1 * x.nbytes < 0.9 * x.nbytes < grown(np.zeros_like)[0]
