"""The table: every algorithm has its figures, they agree with each other, bad settings are refused by
name."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.theory import ALGORITHMS, DomainError, Prediction, predict
from refsgd.theory.phenomena import collectives
from refsgd.theory.phenomena.pipeline import Pipeline
from refsgd.trace.metrics import PREDICTED
from tests.draws import few_draws

ALWAYS = ["seconds_per_iteration", "images_per_second", "seconds", "updates"]
MACHINE = Machine(compute="fixed(0.02)")
PARALLEL = sorted(name.replace("_", "-") for name in ALGORITHMS if name != "sequential")
STAGED = ("gpipe", "pipedream")
machines = st.builds(
    Machine,
    compute=st.sampled_from(["fixed(0.02)", "exponential(0.02)", "gamma(0.02,4)", "straggler(0.02,0.1,5)"]),
    latency=st.sampled_from([0.0, 0.001]), bandwidth=st.sampled_from([math.inf, 4e6]),
    update=st.sampled_from([None, "fixed(0.001)"]),
    speeds=st.sampled_from([(), (1, 2)]), colocated=st.booleans())


def batch_of(name, n, b):
    """b examples for each worker, or for all stages together, which are equal."""
    return {"batch": [b] + [0] * (n - 1), "pipeline": Pipeline((1 / n,) * n, (4000.0,) * (n - 1), True, ((b,),))
            } if name in STAGED else {"batch": b}


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("name", PARALLEL)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_algorithm_has_its_figures(name, n):
    if name == "backup-workers" and n == 1:
        return
    machine = Machine(compute="exponential(0.02)", latency=0.001, bandwidth=1e7, update=0.0005)
    out = predict(name, machine, workers=n, servers=1, nbytes=40_000, steps=40, **batch_of(name, n, 16))
    assert {*out, *out.open} >= {*ALWAYS}
    for key in {*ALWAYS} & {*out}:
        p = out[key]
        assert isinstance(p, Prediction) and math.isfinite(p.value) and p.value >= 0
        assert p.formula and p.source
        json.dumps(p.to_json(), allow_nan=False)
    images = {"backup-workers": n - 1, **dict.fromkeys(STAGED, 1)}.get(name, n) * 16 * 40
    if {"seconds", "images_per_second"} <= {*out}:
        assert out["images_per_second"].value == pytest.approx(images / out["seconds"].value)
    if "idle_by_cause" in out:
        assert sum(out["idle_by_cause"].terms.values()) == pytest.approx(out["idle_ratio"].value, abs=1e-9)


@given(name=st.sampled_from(PARALLEL), machine=machines, n=st.integers(2, 5), k=st.integers(1, 3),
       steps=st.integers(0, 12))
def test_figures_agree_with_each_other(name, machine, n, k, steps):
    with few_draws():
        out = predict(name, machine, workers=n, servers=k, nbytes=12_000, steps=steps, **batch_of(name, n, 4))
    assert {*out, *out.open} >= {*ALWAYS} - ({"images_per_second"} if not steps else set())
    part = 1 / n if name in STAGED else 1
    for key, least in (("seconds_per_iteration", 1), ("seconds", steps)):
        if key in out:
            slack = 0.1 if name == "backup-workers" else 0.3 if machine.speeds else 0.9
            assert out[key].value + 4 * out[key].error >= least * 0.02 * part * slack
    if "idle_ratio" in out:
        assert 0 <= out["idle_ratio"].value < 1
    if "idle_by_cause" in out:
        assert all(v >= 0 for v in out["idle_by_cause"].terms.values())
    if "lead_max" in out:
        most = n * steps if name == "ringleader" else steps  # whose fast workers compute more gradients
        assert out["clock_gap_max"].value <= out["lead_max"].value <= most
    for p in out.values():
        assert p.lower is None or p.value >= p.lower * (1 - 1e-6) - 6 * p.terms.get(
            "standard error", 0) or p.kind == "approximation"


@pytest.mark.usefixtures("few_draws")
@pytest.mark.parametrize("name,options",
                         [*((name, {}) for name in PARALLEL), ("ssp", {"staleness": 0}),
                          ("ssp", {"staleness": 0, "refresh": "lazy"}),
                                          ("ssp", {"staleness": 2, "refresh": "eager"}),
                                          ("dssp", {"lower": 0, "upper": 0}), ("easgd", {"mode": "sync"})])
def test_a_mean_of_draws_is_never_called_exact(name, options):
    """It has a standard error, which every figure made of it has too; what has none is no mean of draws."""
    random, network = Machine(compute="gamma(0.02,4)"), {"latency": 0.001, "bandwidth": 4e6}
    for machine in (random, random.with_(**network), random.with_(**network, colocated=True),
                    Machine(compute="fixed(0.02)", **network)):
        out = predict(name, machine, workers=4, nbytes=12_000, steps=12, options=options, **batch_of(name, 4, 4))
        for key, p in out.items():
            assert p.kind in ("approximation",
                              "bound") or (p.kind == "numerical") == (
                                  p.terms.get("standard error", 0.0) > 0), (key, p)
        if (run := out.get("seconds")) is None or "images_per_second" in out.open:
            continue
        images = out["images_per_second"]
        assert images.kind == run.kind
        assert images.error / images.value == pytest.approx(run.error / run.value)


@pytest.mark.parametrize("name", ["allreduce", "local-sgd", "backup-workers", "ssp", "downpour", "dpsgd"])
def test_fixed_times_are_not_drawn(name):
    """Nor is rounding taken for a standard error, also of unequal workers."""
    machine = Machine(compute="fixed(0.2)", latency=0.01, bandwidth=1e6, speeds=(1, 1, 1, 0.2))
    out = predict(name, machine, workers=4, nbytes=4000, steps=100)
    assert out and not [key for key, p in out.items() if p.error or p.kind == "numerical"]


def test_the_barrier_on_a_link_is_a_mean_of_draws_and_without_a_link_a_quadrature():
    machine = Machine(compute="exponential(0.02)", latency=0.001)
    for bandwidth, kind in ((4e6, "numerical"), (math.inf, "exact")):
        out = predict("bsp", machine.with_(bandwidth=bandwidth), workers=4, nbytes=12_000, batch=4, steps=12)
        assert {out[key].kind for key in (*ALWAYS[:3], "idle_ratio")} == {kind} and out[
            "bytes_sent"].kind == "exact"


def test_bytes_of_the_message_protocol():
    """2 M per worker and iteration through servers; 2 (n-1) M in all for a ring; 2 M per period for EASGD."""
    machine = Machine(compute="fixed(0.02)")
    sizes = {"workers": 4, "nbytes": 1000, "steps": 10}
    expected = {"bsp": 80_000, "asp": 80_000, "ssp": 80_000, "allreduce": 60_000, "independent": 0}
    for name, value in expected.items():
        assert predict(name, machine, **sizes)["bytes_sent"].value == value
    assert predict("easgd", machine, **sizes, options={"period": 5})["bytes_sent"].value == 8 * 1000 * 2
    assert predict("ssp", machine, **sizes, options={"refresh": "eager"})["bytes_sent"].value == 80_000
    lazy = predict("ssp", machine, **sizes, options={"refresh": "lazy", "staleness": 4})
    assert "bytes_sent" in lazy.open and "updates" in lazy
    assert predict("gosgd", machine, **sizes, options={"p": 0.5})["bytes_sent"].value == 20_160
    assert predict("local-sgd", machine, **sizes, options={"period": 5})["bytes_sent"].value == 12_000


def test_updates_count_one_server():
    machine = Machine(compute="fixed(0.02)")
    for name, value in {"bsp": 10, "asp": 40, "ssp": 40, "softsync": 20, "allreduce": 10}.items():
        options = {"splitting": 2} if name == "softsync" else {}
        assert predict(name, machine, workers=4, steps=10, options=options)["updates"].value == value


def test_the_lattice_of_limits():
    """n = 1: all are sequential; SSP without a bound is ASP; local SGD with period 1 is allreduce."""
    alone = Machine(compute="exponential(0.02)", update=0.001)
    one = predict("sequential", alone, workers=1, steps=10)["seconds_per_iteration"].value
    for name in ("bsp", "asp", "ssp", "allreduce", "independent", "local-sgd", "gosgd", "dpsgd",
                 "pair-averaging"):
        assert predict(name, alone, workers=1,
                       steps=10)["seconds_per_iteration"].value == pytest.approx(one, rel=2e-3), name
    machine = Machine(compute="exponential(0.02)", latency=0.001, bandwidth=4e6)
    sizes = {"workers": 4, "nbytes": 4000, "steps": 50}
    asp, free = predict("asp", machine, **sizes), predict("ssp", machine, **sizes,
                                                          options={"staleness": math.inf})
    assert free["seconds_per_iteration"].value == asp["seconds_per_iteration"].value
    every = predict("local-sgd", machine, **sizes, options={"period": 1})["seconds_per_iteration"].value
    assert every == pytest.approx(predict("allreduce", machine, **sizes)["seconds_per_iteration"].value)
    tight = predict("ssp", machine, **sizes, options={"staleness": 0})["seconds_per_iteration"].value
    assert tight == pytest.approx(predict("bsp", machine, **sizes)["seconds_per_iteration"].value)


def test_a_graph_without_a_formula_has_no_figures():
    for name in ("dpsgd", "sgp", "adpsgd"):
        assert predict(name, MACHINE, workers=6, steps=5, options={"graph": "torus"}) == {}


def test_names_with_underscores_are_the_same():
    machine = Machine(compute="fixed(0.02)")
    assert predict("local_sgd", machine, workers=2,
                   steps=8)["seconds"] == predict("local-sgd", machine, workers=2, steps=8)["seconds"]


def test_prediction():
    with pytest.raises(ValueError, match="lower or upper"):
        Prediction(1.0, "s", "bound")
    p = Prediction(math.inf, "s", "bound", {"a": math.inf, "b": 2.0}, units={"b": "1"}, bound="upper",
                   lower=0.0)
    assert p.to_json() == {"value": None, "unit": "s", "kind": "bound", "terms": {"a": None, "b": 2.0},
                           "formula": "", "source": "",
                           "assumptions": "", "units": {"b": "1"}, "bound": "upper", "lower": 0.0}
    assert float(p) == math.inf and p.binding == "a"
    for kind, error in (("exact", 0.1), ("numerical", 0.0)):
        with pytest.raises(ValueError,
                           match=f"kind '{kind}' with standard error {error:g}; expected numerical with one, "
                                 "exact without"):
            Prediction(1.0, "s", kind, {"standard error": error})
    assert Prediction(1.0, "s", "numerical", {"standard error": 0.1}).binding == ""


@pytest.mark.parametrize("name,machine,sizes,assumption", [
    ("bsp", Machine(), {"workers": 2}, "compute is not stated"),
    ("bsp", MACHINE, {"workers": 0}, "workers 0"),
    ("bsp", MACHINE, {"workers": 2, "servers": 0}, "servers 0"),
    ("bsp", MACHINE, {"workers": 2, "nbytes": -1}, "nbytes -1"),
    ("bsp", MACHINE, {"workers": 2, "steps": -1}, "steps -1"),
    ("mystery", MACHINE, {"workers": 2}, "expected one of"),
    ("sequential", MACHINE, {"workers": 2}, "assumes 1"),
    ("ssp", MACHINE, {"workers": 2, "options": {"staleness": -1}}, "staleness -1"),
    ("ssp", MACHINE, {"workers": 2, "options": {"refresh": "often"}}, "fresh, lazy or eager"),
    ("allreduce", MACHINE, {"workers": 2, "options": {"collective": "telepathy"}}, "expected one of"),
    ("softsync", MACHINE, {"workers": 2, "options": {"splitting": 3}}, "at most n"),
    ("gosgd", MACHINE, {"workers": 2, "options": {"p": 1.5}}, "between 0 and 1"),
    ("dssp", MACHINE, {"workers": 2, "options": {"lower": 3, "upper": 1}}, "lower <= upper"),
    ("easgd", MACHINE, {"workers": 2, "options": {"period": 0}}, "period 0"),
])
def test_domain(name, machine, sizes, assumption):
    with pytest.raises(DomainError, match=assumption):
        predict(name, machine, **sizes)


@given(name=st.sampled_from(PARALLEL), machine=machines, n=st.integers(1, 5), k=st.integers(1, 3),
       steps=st.integers(0, 3), half=st.booleans(),
       graph=st.sampled_from(["", "torus", "ring"]))
def test_every_absent_figure_has_its_reason(name, machine, n, k, steps, half, graph):
    machine = machine.with_(duplex="half" if half else "full")
    options = {"graph": graph} if graph and name in ("dpsgd", "sgp", "adpsgd") else {}
    with few_draws():
        out = predict(name, machine, workers=n, servers=k, nbytes=12_000, steps=steps, options=options,
                      **batch_of(name, n, 1))
    assert set(out) | set(out.missing) == set(PREDICTED) and not set(out) & set(out.missing)
    assert out.open <= set(out.missing)
    assert all(len(reason) > 10 for reason in out.missing.values())


def test_reasons_are_plain():
    half = Machine(compute="fixed(0.02)", bandwidth=1e6, duplex="half")
    assert "shared by several nodes or both directions" in predict("adpsgd", half, workers=4, nbytes=4000).missing["seconds"]
    many = predict("bsp", half, workers=256, servers=64, nbytes=4000)
    assert "messages meet on links" in many.missing["seconds"] and "seconds" in many.open and "updates" in many
    crowd = Machine(compute="fixed(0.02)", hosts="2x4", cores=2)
    assert "4 programs of one host that share 2 cores" in predict("asp", crowd, workers=8).missing["seconds"]
    assert "'torus'" in predict("dpsgd", MACHINE, workers=6, options={"graph": "torus"}).missing["seconds"]
    backup = predict("backup-workers", MACHINE, workers=4, steps=5)
    assert "discarded" in backup.missing["idle_by_cause"]


@pytest.mark.usefixtures("few_draws")
def test_the_command_says_why(capsys, tmp_path):
    """As a table, as JSON, and in one line where there is no figure at all."""
    assert main(["predict", "asp", "--compute", "exponential(0.02)", "--latency", "0.001", "--json",
                 "-"]) == 0
    assert "others may make any number of updates" in json.loads(capsys.readouterr().out)["absent"]["staleness_max"]
    assert main(["predict", "backup-workers", "--colocated"]) == 0
    table = " ".join(capsys.readouterr().out.split())
    assert "discarded" in table
    half = tmp_path / "half.json"
    half.write_text(json.dumps(Machine(compute="fixed(0.02)", bandwidth=1e6, duplex="half").to_json()))
    assert main(["predict", "adpsgd", "--machine", str(half)]) == 0
    assert "simulated" in capsys.readouterr().out
    assert main(["predict", "adpsgd", "--compute", "none"]) == 2
    assert "no formula covers adpsgd on an unpaced machine" in capsys.readouterr().err


@pytest.mark.parametrize("steps", [40, 46, 100])
def test_what_post_local_sgd_is_predicted_agrees_with_itself(steps):
    """A run that ends before the switch never sees the later iteration; that of one that continues is the mean
    of both, and it says which."""
    machine = Machine(compute="fixed(0.02)", latency=0.002, bandwidth=5e7)
    told = {"steps": steps, "net": "shapes:100000", "data": "none", "machine": machine}
    found, run = refsgd.predict("post-local", **told), refsgd.run("post-local", **told).measured
    each, sent = found["seconds_per_iteration"], found["bytes_per_iteration"].value
    assert found["seconds"].value == pytest.approx(run["seconds"]) and found["bytes_sent"].value == run["bytes_sent"]
    assert steps * sent == pytest.approx(run["bytes_sent"])
    assert steps * each.value == pytest.approx(run["seconds"], rel=1e-9 if steps <= 46 else 0.01)  # a shorter round ends it
    assert ("before the switch 0.044 s, then 0.023 s" in each.assumptions) == (steps > 46)


@pytest.mark.parametrize("switch", [15, 60])
def test_rounds_that_are_not_evaluated_continue_at_the_pace_of_their_kind(switch, monkeypatch):
    """Those of eight steps were taken to be as short as the first ones, of one step, or as the mean of both."""
    told = {"workers": 3, "steps": 303, "net": "shapes:1200", "data": "none", "switch": switch,
            "machine": Machine(compute="exponential(0.02)", latency=0.002)}
    whole = refsgd.predict("post-local", **told)["seconds"].value
    monkeypatch.setattr(collectives, "STEPS", 100)  # 25 rounds
    assert refsgd.predict("post-local", **told)["seconds"].value == pytest.approx(whole, rel=0.03)


def test_a_shorter_last_round_is_no_measure_of_those_that_are_not_evaluated(monkeypatch):
    """38 rounds of eight steps and one of a single step, of which eleven and that one are evaluated."""
    told = {"workers": 3, "steps": 305, "period": 8, "net": "shapes:1200", "data": "none",
            "machine": Machine(compute="exponential(0.02)", latency=0.002)}
    whole = refsgd.predict("local-sgd", **told)["seconds"].value
    monkeypatch.setattr(collectives, "STEPS", 48)
    assert refsgd.predict("local-sgd", **told)["seconds"].value == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize("name,n", [("sgp", 3_000), ("bsp", 1_000_000)])
def test_more_workers_than_are_evaluated_have_no_figures_and_a_reason(name, n):
    found = predict(name, MACHINE.with_(compute="exponential(0.02)"), workers=n, nbytes=4000, steps=9)
    assert found == {} and f"not for {n}" in found.missing["seconds"]


@pytest.mark.slow
def test_simulated_on_request(capsys):
    """The mean of real simulated runs, said to be so, within their standard errors of an exact formula; also
    where no formula covers the run."""
    told = {"data": "none", "net": "shapes:1000", "workers": 4, "steps": 40,
            "machine": Machine(compute="exponential(0.02)")}
    seen, known = refsgd.predict("bsp", kind="simulated", **told), refsgd.predict("bsp", **told)
    assert set(seen) == {*PREDICTED, "memory_worker", "memory_server"}
    assert {seen[name].kind for name in PREDICTED} == {"simulated"}
    assert abs(seen["seconds"].value - known["seconds"].value) <= 6 * seen["seconds"].error
    assert seen["bytes_sent"].value == known["bytes_sent"].value and not seen["bytes_sent"].error
    assert refsgd.predict("dgc", kind="simulated", **{**told, "data": "quadratic", "net": None})["updates"].value == 40
    with pytest.raises(refsgd.experiment.prepare.Usage, match="expected formulas or simulated"):
        refsgd.predict("bsp", kind="guessed", **told)
    assert main(["predict", "dpsgd", "--graph", "torus", "--kind", "simulated", "--workers", "6", "--steps", "5",
                 "--net", "shapes:100", "--data", "none"]) == 0
    assert "(simulated)" in capsys.readouterr().out


def test_peers_that_ask_update_at_their_own_speed():
    """The updates of all peers were taken to be as long as the slowest one's."""
    machine = Machine(compute="fixed(0.02)", update="fixed(0.004)", speeds=(0.5, 1, 2))
    told = {"workers": 3, "steps": 50, "net": "shapes:1000", "data": "none", "machine": machine}
    found = refsgd.predict("pair-averaging", **told)["seconds_per_iteration"]
    assert found.value == pytest.approx(3 / (3.5 / 0.024)) and found.kind == "exact"
    assert refsgd.run("pair-averaging", **told).measured["seconds_per_iteration"] == pytest.approx(found.value)


def test_a_center_is_as_slow_as_its_own_workers():
    """All centres were as fast as the first one, unless speeds told them apart."""
    machine = Machine(compute=("fixed(0.02)",) * 3 + ("fixed(0.1)",))
    found = refsgd.predict("approximate", workers=4, steps=10, machine=machine, ahead=math.inf)["seconds"]
    assert found.value == pytest.approx(1.0)


def test_a_gradient_that_is_held_takes_no_update():
    """A lone worker of Rennala paid for an update with each gradient."""
    told = {"workers": 1, "gradients": 4, "steps": 100, "net": "shapes:1000", "data": "none",
            "machine": Machine(compute="fixed(0.02)", update="fixed(0.005)")}
    found = refsgd.predict("rennala", **told)["seconds"]
    assert (found.kind, found.value) == ("simulated", pytest.approx(100 * 0.02 + 25 * 0.005))


def test_the_last_of_random_updates_ends_the_run():
    """Peers were taken to update in the mean time: 20 + 5 ms."""
    machine = Machine(compute="fixed(0.02)", update="exponential(0.005)")
    found = {n: predict("pair-averaging", machine, workers=n, nbytes=4000, steps=1)["seconds"] for n in (1, 4)}
    assert (found[1].kind, found[1].value) == ("exact", pytest.approx(0.025))
    assert (found[4].kind, found[4].value) == ("approximation", pytest.approx(0.02 + 0.005 * 25 / 12, rel=0.01))


def test_one_step_of_backup_workers_is_one_step():
    """It was evaluated as half of two: a worker that is late in the first one begins the second one late."""
    found = predict("backup-workers", Machine(compute="exponential(1)"), workers=2, nbytes=4000, steps=1)
    assert abs(found["seconds"].value - 1.5) <= 4 * found["seconds"].error  # of the later of two
    assert found["bytes_sent"].value == 2 * 2 * 4000


def test_updates_of_one_round_are_not_one_update():
    """SSP without slack took as long as BSP, with one update for the gradients of all workers."""
    machine = Machine(compute="fixed(0.02)", update="fixed(0.005)")
    told = {"workers": 4, "staleness": 0, "steps": 10, "net": "shapes:1000", "data": "none", "machine": machine}
    found = refsgd.predict("ssp", **told)["seconds"]
    assert (found.kind, found.value) == ("simulated", pytest.approx(10 * (0.02 + 4 * 0.005)))


def test_a_collective_ends_with_the_update_of_the_slowest():
    """The root's all-reduce took the update for as fast as at speed 1."""
    machine = Machine(compute="fixed(0.02)", update="fixed(0.03)", speeds=(1, 0.5))
    assert predict("allreduce", machine, workers=2, nbytes=4000, steps=7, options={"collective": "root"})[
        "seconds"].value == pytest.approx(7 * 0.1)


def test_all_who_ask_the_hub_of_a_star_meet_there():
    """Their load on its link was taken for that of one; five transfers take longer than a gradient."""
    machine = Machine(compute="fixed(0.02)", bandwidth=8e5)
    assert "seconds" in predict("adpsgd", machine, workers=6, nbytes=4800, steps=7, options={"graph": "star"}).open
