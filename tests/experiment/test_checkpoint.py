"""Stop and resume equals never stopped, bit for bit; what is damaged is refused; what was recorded until
a crash replays."""

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
from refsgd.cluster.machine import Machine
from refsgd.experiment.prepare import Usage
from refsgd.runtimes.errors import ReplayError
from refsgd.runtimes.journal import line
from refsgd.runtimes.journal import read as read_record
from refsgd.trace import Crashed, Marked
from tests.marks import mostly_slow

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
QUICK = Machine(compute="exponential(0.003)", latency=0.0005, bandwidth=50e6)
SYNCHRONOUS = ("sequential", "bsp", "allreduce", "dgc", "independent", "local-sgd", "post-local", "diloco",
               "eager-diloco", "streaming-diloco", "noloco", "dpsgd", "sgp", "gpipe", "pipedream", "zero", "sandblaster",
               "strads")


def arguments(name, **more):
    data = "integers" if name == "hogwild" else "quadratic"
    momentum = {} if name in ("hogwild", "approximate", "sandblaster") else {"momentum": 0.5}
    return {"data": data, "workers": 3, "steps": 30, "lr": 0.05, "machine": QUICK} | momentum | more


#: of each kind one; continuous integration takes all
KINDS = ("bsp", "ssp", "easgd", "approximate", "gosgd", "dgc", "hogwild")


def cut(folder, share, name="record"):
    """A run that was stopped: its record ends after this share of its bytes."""
    path = folder / name
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


@pytest.mark.parametrize("name",
                         [name if name in KINDS else pytest.param(name, marks=pytest.mark.slow)
                          for name in CATALOGUE])
def test_resumed_is_never_stopped_in_virtual_time(name, tmp_path):
    """Parameters, schedule, times, bytes and staleness of every algorithm; the record is whole again."""
    plain = refsgd.run(name, checkpoint=tmp_path, **arguments(name))
    whole = (tmp_path / "record").read_bytes()
    cut(tmp_path, 0.6)
    resumed = refsgd.run(name, resume=tmp_path, checkpoint=tmp_path)
    assert resumed.parameters_sha256 == plain.parameters_sha256
    assert resumed.schedule_sha256 == plain.schedule_sha256
    assert resumed.measured == plain.measured and str(resumed.history) == str(plain.history)
    assert (tmp_path / "record").read_bytes() == whole and [p.name for p in tmp_path.iterdir()] == ["record"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "runtime"), [("bsp", "processes"), ("allreduce", "tcp")])
def test_resumed_is_never_stopped_in_processes(name, runtime, tmp_path):
    """The synchronous algorithms end with the simulator's bits, stopped or not, twice too."""
    plain = refsgd.run(name, **arguments(name))
    whole = refsgd.run(name, runtime=runtime, checkpoint=tmp_path, **arguments(name))
    for share in (0.3, 0.8):
        cut(tmp_path, share)
        resumed = refsgd.run(name, runtime=runtime, resume=tmp_path, checkpoint=tmp_path)
        assert plain.parameters_sha256 == whole.parameters_sha256 == resumed.parameters_sha256
        assert resumed.measured["bytes_sent_by_node"] == plain.measured["bytes_sent_by_node"]
    assert [p.name for p in tmp_path.iterdir()] == ["record"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CATALOGUE)
def test_every_algorithm_resumes_in_processes(name, tmp_path):
    """The synchronous ones to the same bits; the others to the end, and the record of both parts replays
    to their bits."""
    plain = refsgd.run(name, **arguments(name))
    refsgd.run(name, runtime="processes", checkpoint=tmp_path, **arguments(name))
    cut(tmp_path, 0.6)
    resumed = refsgd.run(name, runtime="processes", resume=tmp_path, checkpoint=tmp_path)
    assert resumed.measured["messages"] > 0 or name in ("sequential", "independent", "hogwild")
    if name in SYNCHRONOUS:
        assert resumed.parameters_sha256 == plain.parameters_sha256
    assert refsgd.replay(tmp_path / "record").parameters_sha256 == resumed.parameters_sha256


def test_an_asynchronous_run_continues_from_its_record(tmp_path):
    """A real ASP run, resumed, repeats what was recorded, and its own record replays to the same bits."""
    refsgd.run("asp", runtime="processes", checkpoint=tmp_path / "c", **arguments("asp"))
    cut(tmp_path / "c", 0.6)
    before = read_record(tmp_path / "c" / "record").steps
    resumed = refsgd.run("asp", runtime="processes", resume=tmp_path / "c", record=tmp_path / "resumed")
    assert refsgd.replay(tmp_path / "resumed").parameters_sha256 == resumed.parameters_sha256
    after = read_record(tmp_path / "resumed").steps
    assert all(after[node][: len(rows)] == rows for node, rows in before.items())
    assert resumed.measured["updates"] == 90


def test_a_resumed_run_that_does_not_continue_would_show(tmp_path, monkeypatch):
    """The wrong variant, which forgets what is under way, stands still."""
    refsgd.run("bsp", runtime="processes", checkpoint=tmp_path, **arguments("bsp"))
    lines = (tmp_path / "record").read_bytes().splitlines(keepends=True)
    last = max(k for k, text in enumerate(lines[: len(lines) // 2]) if b'"s"' in text)
    (tmp_path / "record").write_bytes(b"".join(lines[: last + 1]))
    monkeypatch.setattr("refsgd.runtimes.replay.Replayer.envelopes", lambda self, node: [])
    with pytest.raises(RuntimeError, match="deadlock"):
        refsgd.run("bsp", runtime="processes", resume=tmp_path)


# -- faults and deaths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["simulator", "processes"])
def test_a_fault_that_stopped_the_run_is_not_repeated(runtime, tmp_path):
    """The killed worker lives again, and the run ends as one without the fault; one that is still to come
    still comes."""
    plain = refsgd.run("bsp", **arguments("bsp"))
    faults = ["kill worker 1 at step 10", "kill worker 2 at step 20"]
    with pytest.raises(RuntimeError, match="worker1"):
        refsgd.run("bsp", runtime=runtime, checkpoint=tmp_path, faults=faults, **arguments("bsp"))
    with pytest.raises(RuntimeError, match="worker2"):
        refsgd.run("bsp", runtime=runtime, resume=tmp_path, checkpoint=tmp_path)
    found = refsgd.run("bsp", runtime=runtime, resume=tmp_path, checkpoint=tmp_path)
    assert found.parameters_sha256 == plain.parameters_sha256 and not found.trace.dead


@pytest.mark.parametrize(("runtime", "share"), mostly_slow(
    [(runtime, share) for runtime in ("simulator", "processes", "tcp") for share in (0.2, 0.9)],
    ("simulator", 0.2), ("simulator", 0.9), ("processes", 0.2), ("tcp", 0.9)))
def test_the_dead_stay_dead_where_the_others_continue(runtime, share, tmp_path):
    """Before and after the death, once."""
    fault = {"faults": ["kill worker 1 at step 10", "slow worker 0 at step 5 by 2"], "on_death": "continue"}
    whole = refsgd.run("asp", runtime=runtime, checkpoint=tmp_path, **fault, **arguments("asp"))
    cut(tmp_path, share)
    found = refsgd.run("asp", runtime=runtime, resume=tmp_path, checkpoint=tmp_path)
    assert list(found.trace.dead) == ["worker1"] and len(found.trace.of(Crashed)) == 1
    assert found.measured["updates"] == whole.measured["updates"] == 70
    assert refsgd.replay(tmp_path / "record").parameters_sha256 == found.parameters_sha256
    if runtime == "simulator":
        assert found.measured == whole.measured


@pytest.mark.parametrize(("runtime", "on_death"), mostly_slow(
    [(runtime, policy) for runtime in ("simulator", "processes") for policy in ("shrink", "restart")],
    ("simulator", "restart"), ("processes", "shrink")))
def test_attempts_are_repeated_and_the_last_one_continues(runtime, on_death, tmp_path):
    """A record for each attempt; stopped in the first, in the second, and after a death that the launcher
    did not survive."""
    fault = {"faults": ["kill worker 1 at step 10"], "on_death": on_death}
    whole = refsgd.run("bsp", runtime=runtime, checkpoint=tmp_path, **fault, **arguments("bsp"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["record", "record-1"]
    for name, share in (("record-1", 0.5), ("record", 1.0), ("record", 0.4)):
        if name == "record":
            (tmp_path / "record-1").unlink()
        cut(tmp_path, share, name)
        found = refsgd.run("bsp", runtime=runtime, resume=tmp_path, checkpoint=tmp_path)
        assert found.parameters_sha256 == whole.parameters_sha256 and len(found.trace.of(Crashed)) == 1
        assert sorted(p.name for p in tmp_path.iterdir()) == ["record", "record-1"]


def test_other_faults_are_refused(tmp_path):
    """What is planned is in the record; the same may be said again."""
    fault = {"faults": ["slow worker 1 at step 3 by 2"], "on_death": "continue"}
    refsgd.run("asp", checkpoint=tmp_path, **fault, **arguments("asp"))
    assert refsgd.run("asp", resume=tmp_path, **fault).measured["updates"] == 90
    with pytest.raises(Usage, match="was made with slow worker 1 at step 3 by 2; expected the same faults"):
        refsgd.run("asp", resume=tmp_path, faults=["kill worker 1 at step 3"])
    with pytest.raises(Usage, match="was made with on_death continue, not restart"):
        refsgd.run("asp", resume=tmp_path, on_death="restart")


# -- files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    refsgd.run("bsp", checkpoint=tmp_path, **arguments("bsp", steps=45))
    cut(tmp_path, 0.7)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The records of a short run in both runtimes."""
    found = {}
    for runtime in ("simulator", "processes"):
        path = tmp_path_factory.mktemp(runtime)
        refsgd.run("bsp", runtime=runtime, checkpoint=path, **arguments("bsp", steps=5))
        found[runtime] = (path / "record").read_bytes()
    return found


@pytest.mark.parametrize(("damage", "says"), [
    (lambda data: data.replace(b'"c"', b'"s"', 1), "line was altered"),
    (lambda data: data.replace(b'"lr":0.05', b'"lr":0.06', 1), "altered in its first line"),
    (lambda data: data[:10], "not a record"),
    (lambda data: b"", "not a record"),
])
@pytest.mark.parametrize("runtime", ["simulator", "processes"])
def test_a_damaged_record_is_refused(tmp_path, whole, damage, says, runtime, capsys):
    """By name, in one line."""
    from refsgd.cli import main

    path = tmp_path / "record"
    path.write_bytes(damage(whole[runtime]))
    assert main(["run", "bsp", "--runtime", runtime, "--resume", str(tmp_path), "--quiet"]) == 1
    said = capsys.readouterr().err
    assert says in said and str(path) in said and said.count("\n") == 1


def test_programs_that_do_not_repeat_the_record_are_refused(folder, monkeypatch):
    """As of another version of the library, in virtual time and among processes."""
    path = folder / "record"
    rows = path.read_bytes().splitlines()
    at = next(k for k, row in enumerate(rows) if row.startswith(b'["worker1",0,"c"'))
    value = json.loads(rows[at].rpartition(b" ")[0])
    value[3] += 1.0
    rows[at] = line(value).rstrip()
    path.write_bytes(b"\n".join(rows))
    with pytest.raises(ReplayError, match=rf"{path}: worker1, step 0: recorded .* but the program gives .*; "
                                          "expected the same library version"):
        refsgd.run("bsp", resume=folder)


def test_a_full_disk_ends_the_run_and_leaves_what_is_there(folder, monkeypatch):
    """While the earlier part is written again the record stays; later it keeps what was written."""
    before, write = (folder / "record").read_bytes(), os.write
    for room in (10_000, 40_000):
        left = [room]

        def full(fd, data):
            left[0] -= len(data)
            if left[0] < 0:
                raise OSError(28, "No space left on device")
            return write(fd, data)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(RuntimeError, match=r"record could not be written \(No space left on device\); "
                                                   "expected more free space"):
                refsgd.run("bsp", resume=folder, checkpoint=folder)
        assert (folder / "record").read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    found = refsgd.run("bsp", resume=folder, checkpoint=folder)
    assert found.parameters_sha256 == refsgd.run("bsp", **arguments("bsp", steps=45)).parameters_sha256
    assert [p.name for p in folder.iterdir()] == ["record"]


@pytest.mark.parametrize("place", ["/proc/nope", "/dev/null/nope", "file/nope"])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(place, tmp_path, capsys, monkeypatch):
    """In one line that says what to do."""
    from refsgd.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr("refsgd.experiment.run.perform", lambda *rest: pytest.fail("it ran"))
    assert main(["run", "bsp", "--data", "quadratic", "--steps", "5", "--quiet", "--checkpoint", place]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"refsgd: checkpoint {place} is not writable (") and said.count(
        "\n") == 1 and "expected a folder" in said


def test_another_run_is_not_overwritten(folder):
    """A folder that holds a run takes another one only if that continues it."""
    before = (folder / "record").read_bytes()
    with pytest.raises(Usage, match="holds the record of a run; expected also --resume"):
        refsgd.run("bsp", checkpoint=folder, **arguments("bsp"))
    assert (folder / "record").read_bytes() == before


def test_a_record_that_cannot_be_written_is_one_line(capsys):
    """Nowhere to begin, or a disk that is full."""
    from refsgd.cli import main

    command = ["run", "bsp", "--data", "quadratic", "--steps", "5", "--quiet", "--record"]
    assert main([*command, "/proc/nope"]) == 2
    assert capsys.readouterr().err == "refsgd: the record /proc/nope cannot be written (No such file or directory); expected the name of a file that you may write\n"
    assert main([*command, "/dev/full"]) == 1
    assert capsys.readouterr().err == "refsgd: the record /dev/full could not be written (No space left on device); expected more free space\n"


def test_only_the_same_run_continues(folder):
    """Another algorithm, runtime or argument is refused; the same one said again is not."""
    with pytest.raises(Usage, match="is of bsp; expected a record of asp"):
        refsgd.run("asp", resume=folder)
    with pytest.raises(Usage, match="made with lr 0.05, not 0.1"):
        refsgd.run("bsp", resume=folder, lr=0.1)
    with pytest.raises(Usage, match="by the runtime simulator"):
        refsgd.run("bsp", resume=folder, runtime="processes")
    with pytest.raises(Usage, match="resume with your own problem, which no record describes"):
        refsgd.run("bsp", refsgd.Problem(np.ones(2, np.float32), lambda x, rank, t: x, lambda x: 0.0), resume=folder)
    with pytest.raises(Usage, match="no record at"):
        refsgd.run("bsp", resume=folder / "nowhere")
    assert refsgd.run("bsp", resume=folder, lr=0.05, steps=45).measured["updates"] == 45


# -- signals and crashes ------------------------------------------------------------------------------------


def started(*options, steps=100_000):
    command = [sys.executable, "-m", "refsgd", "run", "bsp", "--data", "quadratic", "--steps", str(steps),
               "--workers", "2",
               "--runtime", "processes", "--compute", "fixed(0.002)", "--quiet", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            # a shell's background jobs ignore Ctrl-C, and so do their children
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def until(happened, seconds=20.0):
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "not within its deadline"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("end", mostly_slow([signal.SIGKILL, signal.SIGINT], signal.SIGINT))
def test_a_run_that_was_stopped_at_any_time_can_be_resumed(end, tmp_path):
    """Ctrl-C, or kill -9; a signal that asks for a checkpoint disturbs nobody."""
    record = tmp_path / "record"
    process = started("--checkpoint", str(tmp_path), steps=300)
    try:
        until(lambda: record.exists() and record.stat().st_size > 20_000)
        process.send_signal(signal.SIGUSR1)
        seen = record.stat().st_size
        until(lambda: record.stat().st_size > seen + 5_000)  # it has gone on
        process.send_signal(end)
        said = process.communicate()[1]
    finally:
        process.kill()
        process.communicate()
    busy = ("refsgd: warning: a gradient takes", "refsgd: warning: real computing overran")
    told = [text for text in said.splitlines() if not text.startswith(busy)]
    assert end != signal.SIGINT or told == ["refsgd: interrupted; all processes ended"]  # and that the machine is busy
    # its children end too
    until(lambda: (size := record.stat().st_size) and not time.sleep(0.3) and record.stat().st_size == size)
    assert read_record(record).end is None
    found = refsgd.run("bsp", runtime="processes", resume=tmp_path, checkpoint=tmp_path)
    assert found.parameters_sha256 == refsgd.replay(record).parameters_sha256
    assert found.measured["updates"] == 300 and read_record(record).end


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
    # its children end too
    until(lambda: (size := record.stat().st_size) and not time.sleep(0.3) and record.stat().st_size == size)
    found = read_record(record)
    assert found.end is None and found.size > 200
    assert main(["replay", str(record)]) == 0
    said = capsys.readouterr().out
    assert f"of {found.size} steps" in said and "crashed" in said
    updates = sum(isinstance(step, Marked) for step in found.steps["server0"])
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
