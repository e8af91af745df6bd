"""Stop and resume equals never stopped, bit for bit; what is damaged is refused; what was recorded until a crash replays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.checkpoint import CheckpointError, files, newest, read
from refsgd.effects import Compute, Node
from refsgd.experiment import Usage
from refsgd.machine import Machine
from refsgd.runtimes.journal import read as read_record
from refsgd.runtimes.replay import ReplayError
from refsgd.runtimes.snapshot import Constants, Mismatch, StandIns, look, restore

QUICK = Machine(compute="exponential(0.003)", latency=0.0005, bandwidth=50e6)
SYNCHRONOUS = ("sequential", "bsp", "allreduce", "dgc", "independent", "local-sgd", "post-local", "diloco", "dpsgd", "sgp")


def arguments(name, **more):
    data = "integers" if name == "hogwild" else "quadratic"
    momentum = {} if name in ("hogwild", "approximate") else {"momentum": 0.5}
    return {"data": data, "workers": 3, "steps": 30, "lr": 0.05, "machine": QUICK} | momentum | more


#: of each kind one; continuous integration takes all
KINDS = ("bsp", "ssp", "easgd", "approximate", "gosgd", "dgc", "hogwild")


@pytest.mark.parametrize("name", [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in CATALOGUE])
def test_resumed_is_never_stopped_in_virtual_time(name, tmp_path):
    """Parameters, schedule, times, bytes and staleness of every algorithm."""
    plain = refsgd.run(name, **arguments(name))
    whole = refsgd.run(name, checkpoint=tmp_path, checkpoint_every=0.11, **arguments(name))
    resumed = refsgd.run(name, resume=tmp_path)
    assert newest(tmp_path).header["iterations"] >= 22 and len(files(tmp_path)) == 2
    for result in (whole, resumed):
        assert result.parameters_sha256 == plain.parameters_sha256
        assert result.schedule_sha256 == plain.schedule_sha256
        assert result.measured == plain.measured


@pytest.mark.parametrize(("name", "runtime"), [("bsp", "processes"), ("allreduce", "tcp")])
def test_resumed_is_never_stopped_in_processes(name, runtime, tmp_path):
    """The synchronous algorithms end with the simulator's bits, stopped or not."""
    plain = refsgd.run(name, **arguments(name))
    whole = refsgd.run(name, runtime=runtime, checkpoint=tmp_path, checkpoint_every=0.11, **arguments(name))
    resumed = refsgd.run(name, runtime=runtime, resume=tmp_path)
    assert plain.parameters_sha256 == whole.parameters_sha256 == resumed.parameters_sha256
    assert resumed.measured["bytes_sent"] == plain.measured["bytes_sent"] and not list(tmp_path.glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOGUE)
def test_every_algorithm_resumes_in_processes(name, tmp_path):
    """The synchronous ones to the same bits; the others to the end, and the record of both parts replays to their bits."""
    plain = refsgd.run(name, **arguments(name))
    refsgd.run(name, runtime="processes", checkpoint=tmp_path / "c", checkpoint_every=0.11, **arguments(name))
    resumed = refsgd.run(name, runtime="processes", resume=tmp_path / "c", record=tmp_path / "record")
    assert resumed.measured["messages"] > 0 or name in ("sequential", "independent", "hogwild")
    if name in SYNCHRONOUS:
        assert resumed.parameters_sha256 == plain.parameters_sha256
    assert refsgd.replay(tmp_path / "record").parameters_sha256 == resumed.parameters_sha256


def test_an_asynchronous_run_goes_on_under_its_recorded_schedule(tmp_path):
    """A real ASP run, resumed: its record, earlier events first, replays to the same bits."""
    whole = refsgd.run("asp", runtime="processes", checkpoint=tmp_path / "c", checkpoint_every=0.11, record=tmp_path / "whole", **arguments("asp"))
    resumed = refsgd.run("asp", runtime="processes", resume=tmp_path / "c", record=tmp_path / "resumed")
    assert refsgd.replay(tmp_path / "whole").parameters_sha256 == whole.parameters_sha256
    assert refsgd.replay(tmp_path / "resumed").parameters_sha256 == resumed.parameters_sha256
    before, first, second = newest(tmp_path / "c").steps, read_record(tmp_path / "whole").steps, read_record(tmp_path / "resumed").steps
    assert all(first[node][: len(before[node])] == before[node] == second[node][: len(before[node])] for node in before)


# -- how it works, and how it would go wrong ---------------------------------------------------------------


def test_resuming_computes_next_to_nothing(tmp_path, monkeypatch):
    """One gradient and one update stand in for all that the run had computed before."""
    computed = []
    once = StandIns.__call__
    monkeypatch.setattr(StandIns, "__call__", lambda self, effect: (once(self, effect), computed.append(self.computed))[0])
    refsgd.run("bsp", checkpoint=tmp_path, checkpoint_every=0.11, **arguments("bsp"))
    refsgd.run("bsp", resume=tmp_path)
    assert len(computed) > 80 and max(computed) <= 3


def test_forgetting_the_contents_would_show(tmp_path, monkeypatch):
    """The wrong variant, which resumes with the stand-ins' contents, gives other bits."""
    plain = refsgd.run("bsp", checkpoint=tmp_path, checkpoint_every=0.11, **arguments("bsp"))
    monkeypatch.setattr("refsgd.resumable.restore", lambda *rest: None)
    assert refsgd.run("bsp", resume=tmp_path).parameters_sha256 != plain.parameters_sha256


def adaptive(decide):
    """A program that decides by the contents of an array what it does next."""
    x, big = np.zeros(2, np.float32), 0
    for t in range(10):
        g = yield Compute(np.add, x, np.float32(t - 3))
        if decide:
            big += int(g.sum() < -8)
        x = g
    return x


def advanced(steps, evaluate, decide=True):
    program = adaptive(decide)
    constants, effect = Constants([program]), next(program)
    for _ in range(steps):
        effect = program.send(evaluate(effect))
    return program, effect, constants


def test_programs_that_decide_by_contents_are_noticed():
    """A count of small sums differs under stand-ins, so everything is computed again; without it all is restored."""
    for decide in (False, True):
        real, effect, constants = advanced(7, lambda e: e.fn(*e.args), decide)
        saved = look((real, effect), constants)
        copied = saved._replace(arrays=[a.copy() for a in saved.arrays])
        other, pending, fresh = advanced(7, StandIns(), decide)
        if decide:
            with pytest.raises(Mismatch):
                restore((other, pending), fresh, copied)
        else:
            restore((other, pending), fresh, copied)
            assert np.array_equal(other.gi_frame.f_locals["x"], real.gi_frame.f_locals["x"]) and real.gi_frame.f_locals["x"][0] == 0


def test_what_programs_are_given_is_never_written_to():
    """The starting point, seen where another array was saved, is a mismatch and keeps its contents."""
    x0 = np.ones(3, np.float32)

    def program(x):
        yield Compute(abs, x)

    one, saved = program(x0), look([x0 + 1], Constants([]))
    with pytest.raises(Mismatch, match="an array of the start"):
        restore([x0], Constants([one]), saved)
    assert x0.tolist() == [1, 1, 1] and Node(one).main is one


# -- files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    refsgd.run("bsp", checkpoint=tmp_path, checkpoint_every=0.1, **arguments("bsp", steps=45))
    return tmp_path


@pytest.mark.parametrize(("damage", "says"), [
    (lambda data: data[:-100], "torn"),
    (lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], "altered"),
    (lambda data: data.replace(b'"c"', b'"s"', 1), "altered"),
    (lambda data: data.replace(b'"lr":0.05', b'"lr":0.06', 1), "first line is damaged"),
    (lambda data: data[:10], "no checkpoint"),
    (lambda data: b"", "no checkpoint"),
])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_offered(folder, damage, says, capsys):
    """By name, with the command to type; that command works."""
    from refsgd.cli import main

    before, last = files(folder)
    last.write_bytes(damage(last.read_bytes()))
    assert main(["run", "bsp", "--resume", str(folder), "--quiet"]) == 1
    said = capsys.readouterr().err
    assert says in said and str(last) in said and f"--resume {before}" in said and said.count("\n") == 1
    assert refsgd.run("bsp", resume=before).parameters_sha256 == refsgd.run("bsp", **arguments("bsp", steps=45)).parameters_sha256
    before.write_bytes(b"")
    with pytest.raises(CheckpointError, match="there is no whole one before it"):
        newest(folder)


def test_any_changed_byte_is_noticed(folder):
    """A checkpoint is read as it was written, or not at all."""
    data, rng, path = files(folder)[-1].read_bytes(), np.random.default_rng(0), folder / "checkpoint-000009"
    for at in rng.integers(0, len(data), 40):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1:])
        with pytest.raises(CheckpointError):
            read(path)


def test_a_checkpoint_is_never_half_written(folder, monkeypatch):
    """A full disk in the middle of writing leaves the earlier ones and nothing else."""
    names = sorted(p.name for p in folder.iterdir())
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(CheckpointError, match=r"checkpoint-000004 could not be written \(No space left on device\); expected .* free space"):
        refsgd.run("bsp", checkpoint=folder, checkpoint_every=0.1, **arguments("bsp", steps=45))
    assert sorted(p.name for p in folder.iterdir()) == names


@pytest.mark.parametrize("place", ["/proc/nope", "/dev/null/nope", "file/nope"])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(place, tmp_path, capsys, monkeypatch):
    """In one line that says what to do."""
    from refsgd.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr("refsgd.resumable.perform", lambda *rest: pytest.fail("it ran"))
    assert main(["run", "bsp", "--data", "quadratic", "--steps", "5", "--quiet", "--checkpoint", place]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"refsgd: checkpoint {place}: nothing can be written there (") and said.count("\n") == 1 and "expected a folder" in said


def test_a_record_that_cannot_be_written_is_one_line(capsys):
    """Nowhere to begin, or a disk that is full."""
    from refsgd.cli import main

    command = ["run", "bsp", "--data", "quadratic", "--steps", "5", "--quiet", "--record"]
    assert main([*command, "/proc/nope"]) == 2
    assert capsys.readouterr().err == "refsgd: the record /proc/nope cannot be written (No such file or directory); expected a place for a file\n"
    assert main([*command, "/dev/full"]) == 1
    assert capsys.readouterr().err == "refsgd: the record /dev/full could not be written (No space left on device); expected more free space\n"


def test_only_the_same_run_goes_on(folder):
    """Another algorithm, runtime or argument is refused; the same one said again is not."""
    with pytest.raises(Usage, match="is of bsp; expected one of asp"):
        refsgd.run("asp", resume=folder)
    with pytest.raises(Usage, match="made with lr 0.05, and 0.1 is asked for"):
        refsgd.run("bsp", resume=folder, lr=0.1)
    with pytest.raises(Usage, match="by the runtime simulator"):
        refsgd.run("bsp", resume=folder, runtime="processes")
    with pytest.raises(Usage, match="no checkpoint at"):
        refsgd.run("bsp", resume=folder / "nowhere")
    assert refsgd.run("bsp", resume=folder, lr=0.05, steps=45).measured["updates"] == 45


# -- signals and crashes ------------------------------------------------------------------------------------


def started(*options):
    command = [sys.executable, "-m", "refsgd", "run", "bsp", "--data", "quadratic", "--steps", "100000", "--workers", "2",
               "--runtime", "processes", "--compute", "fixed(0.002)", "--quiet", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(happened, seconds=20.0):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "not within its deadline"
        time.sleep(0.02)


def test_a_signal_asks_for_a_checkpoint(tmp_path):
    """SIGUSR1, while the processes run; a killed run goes on from there."""
    folder, record = tmp_path / "c", tmp_path / "record"
    process = started("--checkpoint", str(folder), "--checkpoint-every", "0", "--record", str(record))
    try:
        until(lambda: record.exists() and record.stat().st_size > 20_000)
        process.send_signal(signal.SIGUSR1)
        until(lambda: files(folder))
        seen = record.stat().st_size
        until(lambda: record.stat().st_size > seen + 5_000)  # it has gone on
    finally:
        process.kill()
        process.communicate()
    assert newest(folder).header["iterations"] > 5


def test_what_was_recorded_until_a_crash_replays(tmp_path, capsys):
    """The launcher is killed: the record's beginning replays, and says how much of it."""
    from refsgd.cli import main

    record = tmp_path / "record"
    process = started("--record", str(record))
    try:
        until(lambda: record.exists() and record.stat().st_size > 30_000)
    finally:
        process.kill()
        process.communicate()
    until(lambda: (size := record.stat().st_size) and not time.sleep(0.3) and record.stat().st_size == size)  # its children end too
    found = read_record(record)
    assert found.end is None and found.size > 200
    assert main(["replay", str(record)]) == 0
    said = capsys.readouterr().out
    assert f"of {found.size} steps" in said and "crashed" in said
    updates = sum(step[1] == "m" for step in found.steps["server0"])
    assert updates - 2 <= refsgd_replayed(record).measured["updates"] <= updates


def refsgd_replayed(record):
    with pytest.warns(UserWarning, match="crashed"):
        return refsgd.replay(record)


def test_a_torn_line_is_passed_over_and_an_altered_one_named(tmp_path):
    """A crash tears the last line only; anything else has been altered."""
    path = tmp_path / "record"
    whole = refsgd.run("asp", record=path, **arguments("asp"))
    data = path.read_bytes()
    half = data[: len(data) // 2]
    path.write_bytes(half)
    assert 0 < refsgd_replayed(path).measured["updates"] < whole.measured["updates"]
    path.write_bytes(data.replace(b'"c"', b'"s"', 1))
    with pytest.raises(ReplayError, match=r"line \d+: .*checksum differs"):
        refsgd.replay(path)
    path.write_bytes(data.replace(b'"lr":0.05', b'"lr":0.06', 1))
    with pytest.raises(ReplayError, match="altered in its first line"):
        refsgd.replay(path)
    for other in (b"", b"[]", b'{"record": 1}\n', b"hello\n"):
        path.write_bytes(other)
        with pytest.raises(ReplayError, match="expected"):
            refsgd.replay(path)


def test_a_record_is_read_in_a_few_lines_of_plain_python(tmp_path):
    """As docs/records.md says."""
    path = tmp_path / "record"
    result = refsgd.run("asp", record=path, **arguments("asp"))
    header, end, steps = {}, {}, {}
    with open(path) as file:
        for row in file:
            text, check = row.rstrip("\n").rsplit(" ", 1)
            assert int(check, 16) == zlib.crc32(text.encode())
            value = json.loads(text)
            if isinstance(value, dict):
                header, end = header or value, value.get("end")
            else:
                steps.setdefault(value[0], []).append(value[1:])
    assert header["algorithm"] == "asp" and end["parameters_sha256"] == result.parameters_sha256
    assert sum(step[1] == "r" for step in steps["server0"]) == result.measured["updates"]
