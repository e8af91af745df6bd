"""Runs on this computer as it is: predicted by a described machine, measured without pace, warm-up left out."""
import pytest

import refsgd
from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.display.tables import sentences
from refsgd.trace.metrics import METRICS, measure

WARMING = Machine(compute="1", loads="worker0: 5@0, 1@25; worker1: 5@0, 1@25", latency="10ms")
STEADY = WARMING.with_(loads=())


@pytest.mark.parametrize("algorithm", ["bsp", "allreduce", "asp", "local-sgd period=1"])
def test_warmup_steps_are_left_out_of_rates_and_shares(algorithm):
    name, _, option = algorithm.partition(" ")
    given = dict([option.split("=")]) if option else {}
    given = {key: int(value) for key, value in given.items()}
    found = [refsgd.run(name, data="quadratic", workers=2, steps=40, machine=machine, warmup_steps=k, **given).measured
             for machine, k in ((WARMING, 0), (WARMING, 8), (STEADY, 8))]
    whole, warm, steady = found
    for metric in ("seconds_per_iteration", "images_per_second", "idle_ratio"):
        assert warm[metric] == pytest.approx(steady[metric], rel=0.02)
        assert whole[metric] != pytest.approx(steady[metric], rel=0.1)
    assert sum(warm["idle_by_cause"].values()) == pytest.approx(warm["idle_ratio"])
    for total in ("seconds", "updates", "bytes_sent"):
        assert warm[total] == whole[total]


@pytest.mark.parametrize(("algorithm", "more"), [
    ("allreduce", {"overlap": "backward"}), ("bsp", {"overlap": "both", "layout": "layers"}), ("zero", {"stage": 3}),
    ("zero", {"stage": 2}), ("gpipe", {"stages": 2}), ("pipedream", {"stages": 2})])
def test_warmup_may_end_within_gradients_in_pieces(algorithm, more):
    given = {"net": "mlp", "workers": 2, "steps": 30, "machine": Machine(compute="20ms", latency="1ms"), **more}
    whole, warm = (refsgd.run(algorithm, warmup_steps=k, **given) for k in (0, 6))
    for metric in ("seconds_per_iteration", "idle_ratio"):
        assert warm.measured[metric] == pytest.approx(whole.measured[metric], rel=0.1, abs=0.02)
    after = whole.trace.after(6)
    assert sum(after.iterations.values()) <= sum(whole.trace.iterations.values()) - 6
    assert all(0 <= e.start <= e.time <= after.seconds for e in after.gradients)


@pytest.mark.parametrize("more", [{"algorithm": "bsp"}, {"algorithm": "allreduce", "overlap": "backward"}, {"algorithm": "zero"}])
def test_the_last_gradient_that_is_left_out_does_not_count(more):
    """Without an exchange every iteration takes 10 ms; WRONG: one more of them in a shorter time."""
    trace = refsgd.run(net="mlp", workers=2, steps=8, machine=Machine(compute="10ms"), evaluations=0, **more).trace
    for steps in range(8):
        warm = trace.after(steps)
        assert set(warm.iterations.values()) == {8 - steps} and warm.iteration_rate == pytest.approx(200)


def test_without_warmup_nothing_changes():
    trace = refsgd.run("ssp", data="quadratic", workers=3, steps=9, machine=WARMING.with_(loads=())).trace
    assert measure(trace, 0) == measure(trace)
    assert {name for name, metric in METRICS.items() if metric.of} == set(measure(trace, 2))


def test_a_worker_that_died_while_warming_up_is_not_idle_afterwards():
    found = refsgd.run("asp", data="quadratic", workers=3, steps=30, machine=STEADY, warmup_steps=5,
                       faults=["kill worker 2 at step 2"], on_death="continue").measured
    alone = refsgd.run("asp", data="quadratic", workers=2, steps=30, machine=STEADY, warmup_steps=5).measured
    assert found["idle_ratio"] == pytest.approx(alone["idle_ratio"], rel=0.05)


def test_unpaced_processes_are_predicted_by_the_machine():
    machine = Machine(compute="10", overhead="1")
    found = refsgd.run("bsp", data="quadratic", workers=2, steps=5, machine=machine, runtime="processes", unpaced=True)
    assert found.measured["seconds"] < 5 < 50 < found.predicted["seconds"]["value"] and found.machine == machine
    row, = refsgd.compare("bsp", data="quadratic", workers=2, steps=5, machine=machine, unpaced=True).rows
    assert row.measured.measured["seconds"] < 5 < row.simulated.measured["seconds"]


@pytest.mark.parametrize(("flags", "expected"), [
    (["--unpaced"], "unpaced with runtime simulator"),
    (["--warmup-steps", "4"], "warmup_steps 4 of 4 steps; expected fewer"),
    (["--warmup-steps", "-1"], "warmup_steps -1")])
def test_what_cannot_be_is_refused(flags, expected, capsys):
    assert main(["run", "bsp", "--data", "quadratic", "--steps", "4", *flags]) == 2
    line = capsys.readouterr().err
    assert expected in line and line.count("\n") == 1


def test_sentences_of_an_unpaced_comparison_blame_the_calibration():
    machine = Machine(compute="0.1")
    found = refsgd.compare(["bsp", "asp"], data="quadratic", workers=2, steps=5, machine=machine, unpaced=True)
    text = " ".join(sentences(found))
    assert "No ranking" in text and "unpaced, this computer was not as fast as the machine describes" in text


@pytest.mark.parametrize(("given", "expected"), [
    ({"unpaced": True, "runtime": "simulator"}, "unpaced with runtime simulator"),
    ({"warmup_steps": 4, "runtime": "simulator"}, "warmup_steps 4 of 4 steps; expected fewer"),
    ({"warmup_steps": -1, "runtime": "simulator"}, "warmup_steps -1")])
def test_a_comparison_refuses_the_same(given, expected):
    with pytest.raises(ValueError, match=expected):
        refsgd.compare(["bsp"], data="quadratic", steps=4, **given)


def test_waits_are_explained_where_messages_take_next_to_no_time():
    """Peers that wait for each other within rounding form a circle, which WRONG tracing follows for ever."""
    machine = Machine(compute="exponential(0.1)", latency=0, bandwidth=1e15)
    found = refsgd.run("zero", net="tiny", data="digits", workers=4, steps=2, stage=2, machine=machine, evaluations=0).measured
    assert sum(found["idle_by_cause"].values()) == pytest.approx(found["idle_ratio"])
