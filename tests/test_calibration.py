"""Measuring this machine, presets, and machine files."""

import json
from collections import namedtuple

import psutil
import pytest

import refsgd
from refsgd.calibration import Others, calibrate
from refsgd.cli import main
from refsgd.machine import PRESETS, load_machine


@pytest.fixture(scope="module")
def measured():
    return calibrate("tiny", 16, batches=(4, 64))


def test_what_is_measured_is_plausible(measured):
    times = {b: mean for b, (mean, _) in measured.gradients.items()}
    assert sorted(times) == [4, 16, 64] and 1e-6 < times[4] < times[64] < 1
    for latency, bandwidth in measured.transports.values():
        assert 1e-6 < latency < 0.05 and 10e6 < bandwidth < 100e9
    assert measured.machine.compute.mean == pytest.approx(times[16]) and 0 < measured.update < 0.1


def test_its_file_is_a_machine(measured, tmp_path, capsys):
    path = tmp_path / "machine.json"
    path.write_text(measured.to_json())
    assert load_machine(str(path)) == measured.machine
    assert main(["predict", "bsp", "--machine", str(path), "--latency", "0.5", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["seconds_per_iteration"]["value"] > 1


def test_others_are_all_processes_but_this_one_and_its_children(monkeypatch):
    """In 10 s all processes computed for 15 s, this one for 3 s and its children for 4 s: others kept 0.8 cores busy."""
    every, own = namedtuple("every", "user nice system idle iowait"), namedtuple("own", "user system children_user children_system iowait")
    monkeypatch.setattr(psutil, "cpu_times", iter([every(100, 5, 7, 1000, 9), every(110, 8, 9, 1005, 99)]).__next__)
    times = iter([own(1, 1, 1, 1, 0), own(3, 2, 4, 2, 50)])
    monkeypatch.setattr(psutil, "Process", lambda: namedtuple("process", "cpu_times")(lambda: next(times)))
    monkeypatch.setattr("time.perf_counter", iter([20.0, 30.0]).__next__)
    assert Others().cores() == pytest.approx(0.8)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_predict(name):
    machine = load_machine(name)
    if machine.compute is None:
        machine = machine.with_(compute="fixed(0.1)")
    predicted = refsgd.predict("bsp", net="phantom:25557032", data="none", workers=4, steps=10, machine=machine)
    assert predicted["seconds_per_iteration"].value > machine.compute.mean


@pytest.mark.parametrize(("text", "expected"), [("{", "expected JSON"), ("[]", "expected an object"), ('{"ram": 1}', "unknown keys")])
def test_a_wrong_machine_file_is_named(text, expected, tmp_path):
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=expected):
        load_machine(str(path))
    with pytest.raises(ValueError, match="neither a file nor a preset"):
        load_machine("nowhere")
