"""Measuring this machine, presets, and machine files."""

import json
import time
import warnings
from collections import namedtuple
from functools import partial

import numpy as np
import psutil
import pytest

import refsgd
from refsgd.cli import main
from refsgd.cluster.devices import Device
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.links import Link, Overhead
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import PRESETS, load_machine, load_timed
from refsgd.experiment.advice.advise import Candidate, advise
from refsgd.experiment.arguments import Usage
from refsgd.experiment.computer.calibrate import Calibration, Point, calibrate, fitted, others, timed
from refsgd.experiment.computer.inside import (
    Pace,
    codec_price,
    crowding,
    ends,
    noise,
    pace,
    problem_of,
    run,
    update_price,
    with_messages,
)
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.trace import Computed

pytestmark = pytest.mark.usefixtures("few_draws_throughout")


@pytest.fixture(scope="module")
def measured():
    """At a fifth of the usual length: nothing is asked of its precision."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("refsgd.experiment.computer.calibrate.SECONDS", 0.01)
        return calibrate(("tiny",), batches=(1, 4, 16, 64))


@pytest.mark.slow
def test_what_is_measured_is_plausible(measured):
    times = {p.batch: p.seconds for p in measured.points}
    assert sorted(times) == [1, 4, 16, 64] and 1e-6 < times[1] < times[64] < 1
    for channel in measured.transports.values():
        assert 0 <= channel.latency < 0.05 and channel.overhead.seconds(40_000) < 0.05
    device = measured.device
    assert 1e8 < device.rate < 1e12 and 0 <= device.overhead < 0.01 and 0 < measured.update < 0.1
    assert device.noise.family == "empirical" and device.noise.mean == pytest.approx(1)
    assert measured.machine.crowding[0] == 1 and measured.machine.hosts == "cyclic:1"
    assert {r.algorithm for r in measured.runs if r.fitted} >= {"bsp", "allreduce"}
    assert [r.algorithm for r in measured.runs if not r.fitted] == ["dpsgd", "ssp"]
    assert all(r.predicted > 0 for r in measured.runs)
    text = measured.summary()
    for point in measured.points:  # a line for each, with its residual
        assert f"{measured.residual(point):+.1%} off" in text
    for r in measured.runs:
        assert f"simulated {r.predicted * 1e3:.3f} ms, {r.error:+.1%}" in text


POINTS = [Point(net, batch, batch * flops, nbytes, 0.0, 0.02) for net, flops, nbytes in (
    ("a", 2e6, 40_000), ("b", 15e6, 2_000_000)) for batch in (1, 2, 8, 32, 128)]


@pytest.mark.parametrize("device", [Device(5e10, 1e-4, 4e9), Device(5e10, 1e-4), Device(5e10, 0.0, 4e9)])
def test_a_fit_finds_the_device_whose_times_they_are(device):
    found = fitted([p._replace(seconds=device.seconds(p.work, p.nbytes)) for p in POINTS])
    assert (found.rate, found.overhead) == pytest.approx((device.rate, device.overhead), rel=1e-9, abs=1e-9)
    assert 1 / found.memory == pytest.approx(1 / device.memory, abs=1e-15)


def test_one_net_alone_does_not_tell_parameters_from_overhead():
    """Both are the same at every batch: the overhead has both, and the other net's time is wrong."""
    device = Device(5e10, 1e-4, 4e9)
    points = [p._replace(seconds=device.seconds(p.work, p.nbytes)) for p in POINTS]
    found = fitted(points[:5])
    assert found.memory == float("inf")
    assert found.seconds(points[2].work, points[2].nbytes) == pytest.approx(points[2].seconds)
    assert found.seconds(points[5].work, points[5].nbytes) != pytest.approx(points[5].seconds, rel=0.15)


def test_a_net_that_does_not_fit_is_named(capsys, monkeypatch):
    device = Device(5e10, 1e-4, 4e9)
    slow = {"a": 1.0, "b": 1.6}
    points = [p._replace(seconds=device.seconds(p.work, p.nbytes) * slow[p.net]) for p in POINTS]
    found = Calibration(Machine(compute=fitted(points)), tuple(points), {},
                        {"nets": ["a", "b"], "processor": "x", "cores": 2})
    assert "one rate does not fit these nets: " in found.summary()
    assert "calibrate with your own net alone (--net A)" in found.summary()


@pytest.mark.parametrize(("flags", "expected"), [
    (["--net", "tiny,nonet"], "net 'nonet' is unknown"), (["--batches", "1,2,3"], "batches 1,2,3; expected four"),
    (["--batches", "1,2,3,x"], "expected four numbers"), (["--batches", "0,1,2,3"], "expected four numbers")])
def test_what_cannot_be_calibrated_is_refused(flags, expected, capsys):
    assert main(["calibrate", *flags, "--output", "-"]) == 2
    line = capsys.readouterr().err
    assert expected in line and line.count("\n") == 1


TRUE = Machine(compute="1ms", update="20us", updating=1e-10, hosts="cyclic:1", cores=4, crowding=(1, 1.1),
               inside=Link(30e-6), overhead=Overhead(40e-6, 1e-10))


def simulated(algorithm, machine=TRUE, workers=2):
    problem = problem_of("tiny", 8, workers)
    return perform(prepare(algorithm, problem, workers=workers, steps=60, machine=machine), "simulator", observe=0).trace


@pytest.mark.slow
def test_what_runs_show_of_messages_is_found_again():
    """The latency is read from the traces; overheads that make the runs as slow are fitted."""
    traces = [simulated(algorithm) for algorithm in ("bsp", "allreduce")]
    paces = [Pace(name, "tiny", 8, 2, pace(trace)) for name, trace in zip(("bsp", "allreduce"), traces)]
    # a simulated message leaves after the sender's overhead, a real one within it: 70 us from hand to hand
    # the fitted machine's own gradients are wrong for the short net, which has a distribution
    found = with_messages(TRUE.with_(overhead=None, inside=None, compute="3ms"), traces, paces, TRUE.compute).with_(compute="1ms")
    again = [pace(simulated(p.algorithm, found)) for p in paces]
    assert again == pytest.approx([p.seconds for p in paces], rel=0.01)


def test_a_fit_without_overhead_is_caught():
    assert pace(simulated("bsp", TRUE.with_(overhead=None))) < 0.95 * pace(simulated("bsp"))


def test_the_pace_of_a_run_leaves_out_its_beginning():
    slow = TRUE.with_(loads="worker0: 9@0, 1@0.02; worker1: 9@0, 1@0.02")
    assert pace(simulated("bsp", slow)) == pytest.approx(pace(simulated("bsp")), rel=1e-3)


def test_prices_of_updates_are_found_again():
    """Of x, the state of the update rule and a gradient of each worker: 3 M and 4 M bytes."""
    d, free = problem_of("tiny", 8, 1).x0.nbytes, TRUE.with_(overhead=None)
    found = update_price([(simulated("sequential", free, 1), 3 * d), (simulated("bsp", free), 4 * d)])
    assert found == (pytest.approx(20e-6), pytest.approx(1e-10))


def test_the_price_of_coding_is_found_again():
    d = problem_of("tiny", 8, 2).x0.size
    assert codec_price(simulated("dgc", TRUE.with_(codec=3e-9)), d, TRUE.crowding) == pytest.approx(3e-9)


@pytest.mark.slow
def test_the_printed_update_is_what_a_simulated_one_takes(measured):
    took = next(e.time - e.start for e in simulated("sequential", measured.machine, 1).of(Computed) if e.work == "update")
    assert measured.update == pytest.approx(took)


def test_noise_keeps_mean_and_tail():
    drawn = np.random.default_rng(0).lognormal(size=5000)
    found = noise([drawn, 3 * drawn])
    assert found.mean == pytest.approx(1) and len(found.parameters) == 64
    assert found.parameters[-1] == pytest.approx(np.sort(drawn)[-78:].mean() / drawn.mean(), rel=0.05)


def test_crowding_between_what_was_measured():
    assert crowding([(1, 1.0), (2, 1.2), (4, 1.1)]) == (1.0, 1.2, 1.2, 1.2)
    assert crowding([(1, 2.0)]) == (1.0,)


def test_real_messages_keep_their_senders():
    keeps, way = ends(run("bsp", problem_of("tiny", 8, 2), 2, 30))
    assert 0 < keeps < 0.01 and 0 <= way < 0.01


@pytest.mark.slow
def test_its_file_is_a_machine(measured, tmp_path, capsys):
    path = tmp_path / "machine.json"
    path.write_text(measured.to_json())
    assert load_machine(str(path)) == measured.machine
    assert main(["predict", "bsp", "--machine", str(path), "--inside", "0.5,inf", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds_per_iteration"]["value"] > 1
    assert capsys.readouterr().err == ""


def test_a_machine_file_of_before_still_reads(tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps({
        "machine": {"compute": {"family": "lognormal", "parameters": [0.02, 0.1]}, "latency": 1e-4,
                    "bandwidth": 1e9, "update": {"family": "fixed", "parameters": [0.001]}, "reduction": 0.0,
                    "speeds": [], "colocated": False, "cores": None, "duplex": "full"},
        "net": {"net": "tiny", "batch": 16, "parameters": 9930}, "update": 0.001,
        "gradients": {"16": {"mean": 0.02, "sd": 0.002}}, "transports": {}}))
    machine, timed = load_timed(str(path))
    assert machine == Machine("lognormal(0.02,0.1)", "0.1ms", "1GB/s", "1ms") and timed == ("tiny", 16)


def test_others_are_all_processes_but_this_one_and_its_children(monkeypatch):
    """In 10 s all processes computed for 15 s, this one for 3 s and its children for 4 s: others kept 0.8
    cores busy."""
    every, own = namedtuple("every",
                            "user nice system idle iowait"), namedtuple(
                                "own", "user system children_user children_system iowait")
    monkeypatch.setattr(psutil, "cpu_times",
                        iter([every(100, 5, 7, 1000, 9), every(110, 8, 9, 1005, 99)]).__next__)
    times = iter([own(1, 1, 1, 1, 0), own(3, 2, 4, 2, 50)])
    monkeypatch.setattr(psutil, "Process", lambda: namedtuple("process", "cpu_times")(lambda: next(times)))
    monkeypatch.setattr("time.perf_counter", iter([20.0, 30.0]).__next__)
    (began, before), (now, after) = others(), others()
    assert (after - before) / (now - began) == pytest.approx(0.8)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_predict(name):
    machine = load_machine(name)
    if machine.compute is None:
        machine = machine.with_(compute="fixed(0.1)")
    kind = "simulated" if machine.hosts or machine.groups else "formulas"
    predicted = refsgd.predict("bsp", net="shapes:25557032", data="none", workers=4, steps=10,
                               machine=machine, kind=kind)
    assert predicted["seconds_per_iteration"].value > machine.compute.mean


WRONG = [
    ("{", "expected JSON"),
    ("[]", "expected an object"),
    ("\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte; expected JSON"),
    ('{"ram": 1}', "unknown keys ['ram'] of a machine; expected some of ['bandwidth', "),
    ('{"machine": 3}', "machine 3 of type int; expected an object with some of ['bandwidth', "),
    ('{"machine": null}', "machine None of type NoneType; expected an object"),
    ('{"latency": "a"}',
     "latency 'a' not understood; expected seconds, or a number with s, ms, us or ns, such as 20ms"),
    ('{"latency": null}', "latency None of type NoneType; expected a finite number"),
    ('{"latency": true}', "latency True of type bool; expected a finite number"),
    ('{"latency": NaN}', "latency nan s; expected a finite number"),
    ('{"bandwidth": "5e7 bytes"}',
     "bandwidth '5e7 bytes' not understood; expected bytes/s, such as 1.25e9 or 1.25GB/s, or bits/s, such as "
     "10Gbps"),
    ('{"bandwidth": [5e7]}', "bandwidth [50000000.0] of type list; expected a number of bytes/s > 0"),
    ('{"reduction": "x"}', "reduction 'x' of type str; expected a finite number of s/byte >= 0"),
    ('{"cores": "2"}', "cores '2' of type str; expected a whole number, at least 1, or None"),
    ('{"cores": 1.5}', "cores 1.5 of type float; expected a whole number"),
    ('{"cores": true}', "cores True of type bool; expected a whole number"),
    ('{"cores": 0}', "cores 0; expected at least 1, or None"),
    ('{"colocated": "no"}', "colocated 'no' of type str; expected True or False"),
    ('{"duplex": 3}', "duplex 3; expected full or half"),
    ('{"speeds": 3}', "speeds 3; expected finite numbers > 0, such as (1, 1, 4)"),
    ('{"speeds": "1,2,0x1"}', "speeds '1,2,0x1'; expected numbers separated by commas"),
    ('{"speeds": [1, "2"]}', "speeds [1, '2']; expected finite numbers > 0"),
    ('{"compute": true}',
     "compute True of type bool; expected a distribution such as 'exponential(0.02)', a number of seconds, or None"),
    ('{"compute": [1, "x"]}', "compute of worker 1: distribution 'x' not understood; expected e.g."),
    ('{"compute": {"rate": 0}}', "compute: rate 0 of a device; expected a finite number > 0"),
    ('{"compute": {"rate": 1, "speed": 2}}', "compute: keys ['speed'] of a device; expected some of rate, "),
    ('{"loads": {"worker0": "2"}}', "load 'worker0: 2'; expected a node and factors from seconds on"),
    ('{"server_speeds": [0]}', "server_speeds [0]; expected finite numbers > 0"),
    ('{"compute": -1}', "compute: distribution fixed(-1) is outside its domain"),
    ('{"update": "x"}', "update: distribution 'x' not understood; expected e.g. exponential(0.02)"),
    ('{"compute": {"family": "fixed"}}',
     "compute {'family': 'fixed'}; expected a family and a list of its parameters, such as "),
    ('{"compute": {"family": "fixed", "parameters": ["a"]}}',
     "compute: distribution of family 'fixed' and parameters ('a',); expected a name and a tuple"),
    ('{"compute": {"family": ["x"], "parameters": [1]}}',
     "compute: distribution of family ['x'] and parameters (1,); expected a name"),
]


@pytest.mark.parametrize(("text", "expected"), WRONG)
def test_a_wrong_machine_file_is_one_line_that_names_it_and_its_key(text, expected, tmp_path, capsys):
    path = tmp_path / "m.json"
    path.write_bytes(text.encode("latin-1"))
    assert main(["run", "bsp", "--data", "quadratic", "--steps", "3", "--machine", str(path)]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"refsgd: machine file {path}") and expected in line and line.count("\n") == 1


def test_what_is_neither_a_machine_file_nor_a_preset_is_refused():
    with pytest.raises(ValueError, match="neither a file nor a preset"):
        load_machine("nowhere")


@pytest.mark.parametrize(("field", "expected"), [
    ({"latency": "0.1m"}, "latency '0.1m' not understood; expected seconds"),
    ({"latency": True}, "latency True of type bool"),
    ({"bandwidth": None}, "bandwidth None of type NoneType"),
    ({"cores": True}, "cores True of type bool; expected"),
    ({"colocated": 1}, "colocated 1 of type int; expected True or False"),
    ({"compute": (0.1, [1])}, "compute of worker 1 [1] of type list; expected a distribution")])
def test_a_machine_of_wrong_kinds_is_refused_in_python(field, expected):
    with pytest.raises(ValueError) as error:
        Machine(**field)
    assert expected in str(error.value)


def test_a_machine_takes_numbers_of_any_kind():
    found = Machine(compute=np.float32(0.5), latency=0, bandwidth=np.int64(1000), update=0,
                    speeds=np.array([1, 2]), cores=np.int64(2))
    assert (found.compute, found.update, found.speeds) == (Distribution("fixed", (0.5,)), None,
                                                           (1.0, 2.0)) and found.speed(1) == 2
    assert Machine(speeds=(1 + i for i in range(2))) == Machine(speeds=[1, 2]) and Machine(
        update="fixed(0)").update == Distribution("fixed", (0.0,))


def test_waits_for_a_core_do_not_count_as_computing():
    assert np.median(timed(lambda: time.sleep(0.02), 0.1)) < 0.01


def test_in_slow_motion_the_same_happens_only_later():
    machine = Machine(compute="lognormal(1ms,0.5)", latency="0.1ms", bandwidth="10MB/s", update="0.1ms",
                      reduction=1e-9)
    fast, slow = (refsgd.run("asp", data="quadratic", workers=3, steps=30, lr=0.05, machine=m)
                  for m in (machine, machine.slow_motion(10)))
    assert fast.parameters_sha256 == slow.parameters_sha256 and fast.measured["staleness_histogram"] == slow.measured[
        "staleness_histogram"]
    assert slow.measured["seconds"] == pytest.approx(10 * fast.measured["seconds"])
    assert slow.measured["idle_ratio"] == pytest.approx(fast.measured["idle_ratio"])
    for factor in (0, -1, float("inf"), True, "2"):
        with pytest.raises(ValueError,
                           match="expected a finite number > 0, such as 10 for ten times as slow"):
            machine.slow_motion(factor)


def test_a_machine_whose_pace_the_cores_cannot_keep_is_refused_and_its_slow_motion_is_run(
    monkeypatch, capsys, tmp_path):
    """As after `refsgd calibrate`: gradients last as long as their computing, and there are more workers
    than cores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("refsgd.experiment.computer.limits.usable_cores", lambda: 2)
    monkeypatch.setattr("refsgd.experiment.computer.limits.gradient_seconds", lambda problem: (0.0006, 0.0006))
    machine = Machine(compute="lognormal(0.6ms,0.1)", latency="50us")
    (tmp_path / "machine.json").write_text(json.dumps({"machine": machine.to_json()}))
    expected = ("a gradient takes 0.6 ms here with 4 workers on 2 cores; the machine asks for 0.6 ms, "
                "which leaves room for 0.24 ms of real work: use --slow-motion 4")
    what = {"data": "quadratic", "steps": 3, "workers": 4, "machine": machine}
    for act in (refsgd.run, refsgd.compare):
        with pytest.raises(Usage) as error:
            act("bsp", runtime="processes", **what)
        assert expected in str(error.value)
        act("bsp", runtime="simulator", **what)
    arguments = ["--data", "quadratic", "--steps", "3", "--machine", "machine.json", "--json", "-", "--quiet"]
    for command in (["run", "bsp", "--runtime", "processes"], ["compare", "--algorithms", "bsp"]):
        assert main([*command, *arguments]) == 2 and expected in capsys.readouterr().err
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "real computing overran its drawn times")  # on a busy machine
            warnings.filterwarnings("error", "mean compute time|.*leaves room for")
            assert main([*command, *arguments, "--slow-motion", "4"]) == 0
        assert json.loads(capsys.readouterr().out)["machine"]["compute"]["parameters"][0] == pytest.approx(
            0.0024)


@pytest.mark.parametrize(("flags", "found"), [
    ("predict bsp --net resnet18:4 --batch 16", "for tiny at batch 16, not resnet18:4 at batch 16"),
    ("run bsp --steps 1 --batch 128", "tiny at batch 128"),
    ("predict bsp --net shapes:1000 --data none --batch 32", "shapes:1000 at batch 32"),
    ("advise --parameters 1000",
     "not your model at batch 32; give the time of one such gradient with --compute DIST or --rate "
     "FLOP/S"),
    ("advise --net tiny --image 8,8,1 --batch 64 --rate 1e9", ""),
    ("predict bsp --batch 128 --compute 20ms", ""), ("predict bsp", ""),
    ("predict bsp --net shapes:1000 --data none", ""), ("run bsp --data quadratic --steps 1", "")])
def test_times_of_another_net_or_batch_are_said_to_be(flags, found, tmp_path, capsys, monkeypatch):
    """One line, unless --compute or --rate gives the time, or the net is shape-only."""
    ring = [Candidate("allreduce", {"collective": "ring"})]
    monkeypatch.setattr("refsgd.experiment.advice.advise.advise", partial(advise, candidates=ring))
    path = tmp_path / "m.json"
    machine = Machine(compute="fixed(0.1)").to_json()
    path.write_text(json.dumps({"machine": machine, "net": {"net": "tiny", "batch": 16}}))
    assert main([*flags.split(), "--machine", str(path), "--workers", "2"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "gradient times" in line]
    assert len(said) == bool(found) and found in "".join(said)


def test_a_preset_says_whose_times_it_has(capsys):
    flags = ["predict", "bsp", "--net", "shapes:1000", "--data", "none", "--machine", "das5-ethernet",
             "--batch"]
    assert main(
        [*flags,
         "64"]) == 0 and "machine das5-ethernet: its gradient times are for resnet50 at batch 32" in capsys.readouterr().err
    assert main([*flags, "32"]) == 0 and capsys.readouterr().err == ""
    assert main(["advise", "--parameters", "1000", "--machine", "das5-ethernet", "--batch", "64"]) == 0
    assert capsys.readouterr().err.count("gradient times are for") == 1
