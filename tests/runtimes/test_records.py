"""Record files that were cut short, torn or altered: what was recorded until then replays, and nothing is
taken for what it is not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import zlib
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import accumulate

import pytest

import refsgd
from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.effects import roles
from refsgd.experiment.evaluation import evaluate
from refsgd.experiment.execution.resume import Records
from refsgd.experiment.prepare import Usage, prepare
from refsgd.experiment.run import RunOptions, records_of, resumed
from refsgd.runtimes.errors import ReplayError, RunFailed
from refsgd.runtimes.journal import line, read
from refsgd.runtimes.processes import local as processes
from refsgd.runtimes.processes import shared
from refsgd.runtimes.programs import add_to
from refsgd.runtimes.replay import replay_beginning
from refsgd.trace import Crashed
from tests.experiment.test_checkpoint import arguments, cut, started, until

pytestmark = pytest.mark.usefixtures("few_draws_throughout")


@contextmanager
def recording(experiment, runtime, path):
    """The journal of one attempt of an experiment."""
    header = {"algorithm": experiment.name, "arguments": experiment.arguments, "runtime": runtime}
    with closing(Records(header, runtime, path)) as records:
        records.begin(0, roles(experiment.deploy()), {})
        yield records.journals[0]


SMALL = {"data": "quadratic", "workers": 3, "lr": 0.05, "machine": Machine()}


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A whole one, of real processes."""
    path = tmp_path_factory.mktemp("record") / "asp"
    refsgd.run("asp", runtime="processes", record=path, steps=4, **SMALL)
    return path.read_bytes()


def count(record):
    return sum(map(len, record.steps.values()))


@pytest.mark.slow
def test_a_record_cut_at_any_byte_of_its_last_lines_replays_what_is_there(record, tmp_path):
    """Every whole line counts, also one that lacks nothing but its end, and no torn one does."""
    path, lines = tmp_path / "cut", record.splitlines(keepends=True)
    factory = prepare("asp", steps=4, **SMALL).deploy
    begin, replayed, ends = len(record) - sum(map(len, lines[-6:])), {}, list(accumulate(map(len, lines)))
    for size in range(begin, len(record)):
        path.write_bytes(record[:size])
        found = read(path)
        # the last one is the end, the first one the header
        whole = sum(end - 1 <= size for end in ends)
        assert count(found) == min(whole,
                                   len(lines) - 1) - 1 and (found.end is not None) == (whole == len(lines))
        if count(found) not in replayed:
            replayed[count(found)] = found.steps
            assert 0 < replay_beginning(factory, found.steps)[1] <= count(found)
        assert found.steps == replayed[count(found)]
    for size in (begin, begin + 5, len(record) - 3):
        path.write_bytes(record[:size])
        with pytest.warns(UserWarning,
                          match=r"the record ends early \(no end line\): it was cut off, or the run crashed; "
                                r"this replays \d+ of \d+ steps"):
            refsgd.replay(path)


def test_a_record_without_a_step_fails_and_says_that_it_was_cut(record, tmp_path, capsys):
    """Only its first line is left: exit code 1; with a step more it is 0."""
    path, lines = tmp_path / "cut", record.splitlines(keepends=True)
    path.write_bytes(lines[0])
    assert main(["replay", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"refsgd: {path}: the record ends early (no end line): it was cut off, or the run crashed; "
                                       "none of its 0 steps can be replayed, expected at least one\n")
    path.write_bytes(b"".join(lines[:-1]))
    assert main(["replay", str(path)]) == 0
    assert f"or the run crashed; this replays {len(lines) - 2} of {len(lines) - 2} steps" in " ".join(
        capsys.readouterr().out.split())


def test_a_record_cut_in_its_first_line_is_none(record, tmp_path):
    """There is nothing to replay."""
    path, first = tmp_path / "cut", record.index(b"\n")
    for size in range(first):
        path.write_bytes(record[:size])
        with pytest.raises(ReplayError, match="not a record"):
            read(path)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80])
def test_a_byte_that_is_flipped_is_found_or_changes_nothing(record, tmp_path, mask):
    """Any byte of the first, the middle and the last lines, the ends of lines among them."""
    path, lines = tmp_path / "flipped", record.splitlines(keepends=True)
    path.write_bytes(record)
    good, refused = read(path), 0
    middle = sum(map(len, lines[: len(lines) // 2]))
    for at in [*range(len(lines[0]) + 200), *range(middle, middle + 200),
               *range(len(record) - 400, len(record))]:
        path.write_bytes(record[:at] + bytes([record[at] ^ mask]) + record[at + 1 :])
        try:
            assert read(path) == good, at
        except ReplayError:
            refused += 1
    assert refused > 400




def test_a_line_torn_by_a_death_in_the_middle_is_passed_over(tmp_path):
    """SIGKILL ends a write at the border of a page; the others, who go on, append behind what there is of
    it."""
    path, problem = tmp_path / "record", prepare("asp", steps=12, **SMALL)

    def gradient(x, rank, t):
        if (rank, t) == (1, 5):
            os.kill(os.getpid(), signal.SIGKILL)
        return problem.problem.gradient(x, rank, t)

    with recording(problem, "processes", path) as journal:
        run = processes.run(replace(problem, problem=replace(problem.problem, gradient=gradient)).deploy,
                            on_death="continue", journal=journal)
        expected = evaluate(problem, "processes", run).parameters_sha256
        journal.finish(run.trace, expected)
    good, data = read(path), path.read_bytes()
    rows = data.splitlines(keepends=True)
    last = max(k for k, row in enumerate(rows) if row.startswith(b'["worker1"') and b',"x",' not in row)
    torn = line(["worker1", 0, "m", 1.0])
    for size in range(len(torn) - 1):
        path.write_bytes(b"".join([*rows[: last + 1], torn[:size], *rows[last + 1 :]]))
        assert read(path) == good, size
    # it lacks nothing but its end, and counts: the end knows of no such line
    path.write_bytes(b"".join([*rows[: last + 1], torn[:-1], *rows[last + 1 :]]))
    with pytest.raises(ReplayError, match=r"end\.sha256 is not that of the lines before it"):
        read(path)
    # two deaths, one behind the other
    path.write_bytes(b"".join([*rows[: last + 1], torn[: len(torn) // 2], torn[:3], *rows[last + 1 :]]))
    assert read(path) == good and refsgd.replay(path).parameters_sha256 == expected


def test_what_was_altered_is_no_torn_line(record, tmp_path):
    """Between two lines something else than an end, a line without its beginning, and one that the
    checksum of another ends."""
    path, rows = tmp_path / "altered", record.splitlines(keepends=True)
    for wrong in (rows[3][:-1] + b"," + rows[4], rows[3][7:] + rows[4],
                  rows[3][:-9] + b"%08x\n" % zlib.crc32(rows[4]), b"x" + rows[3]):
        path.write_bytes(b"".join([*rows[:3], wrong, *rows[5:]]))
        with pytest.raises(ReplayError, match=r"line 4: the line was altered"):
            read(path)


@pytest.mark.long
def test_records_of_runs_that_are_killed_at_any_time_replay(tmp_path):
    """The launcher, and all with it, sixty times."""
    for k in range(60):
        path = tmp_path / f"record{k}"
        pid = os.fork()
        if not pid:
            try:
                refsgd.run("ssp", runtime="processes", record=path, steps=100_000, **SMALL)
            finally:
                os._exit(1)
        end = time.monotonic() + 20
        while not (path.exists() and path.stat().st_size > 20_000) and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(0.001 * k)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        time.sleep(0.05)
        with pytest.warns(UserWarning, match=r"or the run crashed"):
            assert refsgd.replay(path).measured["updates"] > 0


HOGWILD = {"data": "quadratic", "workers": 3, "steps": 12, "lr": 0.05}


def test_hogwild_without_atomic_additions_replays_in_virtual_time(tmp_path):
    """Additions are lost, and the same ones in the replay: the record says how many accesses came before
    each began."""
    arguments = HOGWILD | {"machine": Machine(compute="exponential(0.01)", update="fixed(0.004)")}
    found = refsgd.run("hogwild", record=tmp_path / "record", atomic=False, **arguments)
    assert found.parameters_sha256 != refsgd.run("hogwild", atomic=True, **arguments).parameters_sha256
    assert refsgd.replay(tmp_path / "record").parameters_sha256 == found.parameters_sha256


def test_hogwild_without_atomic_additions_is_not_recorded_among_processes(tmp_path):
    """Their memory has no order that could be written down: the run ends at the first addition, in one
    line."""
    with pytest.raises(RunFailed,
                       match=r"ReplayError: additions without a lock have no order that could be "
                             r"recorded; expected hogwild --atomic$"):
        refsgd.run("hogwild", runtime="processes", record=tmp_path / "record", atomic=False,
                   machine=Machine(), **HOGWILD)


def die_once(rank, *, after):
    """A function that kills worker `rank` at its call number `after`, counted in its own process."""
    count = [0]

    def look(node):
        count[0] += node == f"worker{rank}"
        if count[0] == after and node == f"worker{rank}":
            os.kill(os.getpid(), signal.SIGKILL)

    return look


@pytest.mark.parametrize("after", [1, 4, 5, 13, 20])
def test_an_access_that_its_process_did_not_live_to_record_is_made_up_for(tmp_path, after):
    """The dead worker had added, or read, and others have seen it; its program stands at that effect in
    the replay, too."""
    path, experiment, look = tmp_path / "record", prepare("hogwild", machine=Machine(),
                                                          **HOGWILD), die_once(1, after=after)
    with recording(experiment, "processes", path) as journal:

        def tell(event):
            if event.kind in ("load", "add"):
                look(event.node)
            journal(event)

        run = processes.run(experiment.deploy, on_death="continue", journal=tell)
        journal.finish(run.trace, evaluate(experiment, "processes", run).parameters_sha256)
    assert refsgd.replay(path).trace.of(Crashed)  # and it has compared the parameters' bits


def test_a_death_in_the_middle_of_an_addition_leaves_nothing_of_it(tmp_path, monkeypatch):
    """A slice is half written when worker 1 is killed with the lock in its hand: the next one undoes it,
    and nobody waits."""
    path, experiment, look = tmp_path / "record", prepare("hogwild", machine=Machine(),
                                                          **HOGWILD), die_once(1, after=11)

    def half(effect, seen):
        part = effect.cell.x[effect.cell.cut[effect.part]]
        kept, part[:] = part.copy(), 100
        look(multiprocessing.current_process().name)
        part[:] = kept
        add_to(effect, seen)

    monkeypatch.setattr(shared, "add_to", half)
    with recording(experiment, "processes", path) as journal:
        run = processes.run(experiment.deploy, on_death="continue", journal=journal)
        journal.finish(run.trace, evaluate(experiment, "processes", run).parameters_sha256)
    assert len(run.trace.of(Crashed)) == 1
    monkeypatch.undo()
    assert refsgd.replay(path).trace.of(Crashed)


# -- whose the files are ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [
    ({"record": "r"}, {"record": "r"}),
    ({"checkpoint": "c"}, {"checkpoint": "c"}),
    ({"checkpoint": "c"}, {"record": "c/.record"}),
    ({"checkpoint": "c", "resume": "c"}, {"checkpoint": "c", "resume": "c"})])
def test_a_file_that_another_run_writes_is_refused_and_left_alone(first, second, tmp_path, monkeypatch):
    """In one line; what has ended belongs to nobody."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("refsgd.runtimes.journal.DYING", 0.0)
    few = arguments("bsp", steps=5)
    if "resume" in first:
        refsgd.run("bsp", checkpoint="c", **few)
        cut(tmp_path / "c", 0.7)
    options, start = RunOptions.of("bsp", None, few | first), ()
    experiment = prepare("bsp", **few)
    if "resume" in first:
        options, experiment, start = resumed(options, "c")
    with closing(records_of(options, experiment, start)) as records:
        records.begin(0, roles(experiment.deploy()), {}, moved=False)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(Usage, match=r"another run is writing it\); expected"):
            refsgd.run("bsp", **few | second)
        assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert refsgd.run("bsp", **few | second).measured["updates"] == 5


def test_a_record_that_somebody_removes_costs_no_result(tmp_path):
    """Its end is written to what the run has open."""
    path, experiment = tmp_path / "record", prepare("asp", steps=4, **SMALL)
    with recording(experiment, "processes", path) as journal:
        run = processes.run(experiment.deploy, journal=journal)
        path.unlink()
        journal.finish(run.trace, "0" * 64)


def test_of_two_commands_with_one_record_the_second_is_refused(tmp_path, capsys):
    """At once, also while the first one's processes are ending."""
    record = tmp_path / "record"
    process = started("--record", str(record))
    try:
        until(lambda: record.exists() and record.stat().st_size > 5_000)
        assert main(["run", "bsp", "--data", "quadratic", "--steps", "5", "--record", str(record)]) == 2
        assert capsys.readouterr() == ("", f"refsgd: the record {record} cannot be written (another run is writing it); "
                                           "expected the name of a file that you may write\n")
        seen = record.stat().st_size
        until(lambda: record.stat().st_size > seen)
    finally:
        process.kill()
        process.communicate()
    assert main(["run", "bsp", "--data", "quadratic", "--steps", "5", "--record", str(record)]) == 0
    assert main(["replay", str(record)]) == 0
