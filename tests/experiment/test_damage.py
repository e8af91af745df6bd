"""Files whose fields are wrong under valid checksums: one line names file and field, or nothing changes;
never a traceback, never another result.

Two kinds of forgery: *unsealed*, one line changed with its own checksum (a file that somebody edited), and
*sealed*, with the digest of the whole file, too (one that another version wrote).  A sealed file with a value
of the right kind is another run, and may have another result.
"""

from __future__ import annotations

import hashlib
import json
import signal
import tracemalloc

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import refsgd
from refsgd.cli import main
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import load_machine
from refsgd.experiment.prepare import Usage
from refsgd.experiment.result import Result
from refsgd.runtimes.errors import ReplayError
from refsgd.runtimes.journal import line

QUICK = Machine(compute="exponential(0.003)", latency=0.0005, bandwidth=50e6)
RUN = {"workers": 3, "steps": 5, "lr": 0.05, "machine": QUICK}
DATA = {"hogwild": "integers"}
VALUES = [None, True, -1, 0, 10**9, 10**400, -1e300, 1e300, float("nan"), float("inf"), "", "x", [], {}, [1],
          {"a": 1}]
pytestmark = [pytest.mark.filterwarnings("ignore:.*or the run crashed", "ignore::RuntimeWarning"),
              pytest.mark.usefixtures("few_draws_throughout")]


def fuzz(examples):
    return settings(max_examples=examples, deadline=None,
                    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(autouse=True)
def no_hang():
    """Everything here takes seconds; what hangs is ended, and fails."""
    before = signal.signal(signal.SIGALRM, lambda *rest: pytest.fail("it hangs"))
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def places(value, at=()):
    """Everything in a JSON value, by its way there."""
    yield at
    for key, part in value.items() if isinstance(value,
                                                 dict) else enumerate(value) if isinstance(
                                                     value, list) else ():
        yield from places(part, (*at, key))


def leaves(value):
    """The values in a JSON value that hold no others."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return [value] if parts is None else [leaf for part in parts for leaf in leaves(part)]


@st.composite
def changed(draw, value):
    """The value with one field gone, of another kind, in a list, longer, huge or negative."""
    value = json.loads(json.dumps(value))
    *way, last = draw(st.sampled_from([at for at in places(value) if at]))
    holder = value
    for key in way:
        holder = holder[key]
    how = draw(st.sampled_from(["delete", "replace", "wrap", "lengthen"]))
    if how == "delete":
        del holder[last]
    elif how == "lengthen" and isinstance(holder[last], list):
        holder[last].append(draw(st.sampled_from(VALUES)))
    else:
        holder[last] = [holder[last]] if how == "wrap" else draw(st.sampled_from(VALUES))
    return value


def value_of(row):
    return json.loads(row.rpartition(b" ")[0])


def written(path, rows, sealed):
    """A record of these values; sealed: its end says what stands before it."""
    lines = [line(row).rstrip(b"\n") for row in rows]
    if sealed and isinstance(rows[-1], dict) and isinstance(rows[-1].get("end"), dict):
        lines[-1] = line(
            {"end": rows[-1]["end"] | {"sha256": hashlib.sha256(b"\n".join(lines[:-1])).hexdigest()}}).rstrip(
                b"\n")
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def is_one_line(error, path):
    return str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 1000


# -- records -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["asp", "hogwild", "gosgd", "processes"])
def record(request, tmp_path_factory):
    """A file to forge, the values of its lines, and what it replays to: receives, shared memory, polls
    and choices, real processes with a death."""
    path, name = tmp_path_factory.mktemp("records") / "record", request.param
    death = {"runtime": "processes", "faults": ["kill worker 1 at step 2"],
             "on_death": "continue"} if name == "processes" else {}
    name = "asp" if death else name
    refsgd.run(name, record=path, data=DATA.get(name, "quadratic"), **death, **RUN)
    return path.with_name("forged"), [value_of(row) for row in path.read_bytes().splitlines()], refsgd.replay(
        path).to_json()


@pytest.mark.slow
@fuzz(100)
@given(data=st.data())
def test_a_changed_field_of_a_record_is_refused_or_changes_nothing(record, data):
    """In any line; the header and the end are as often drawn as all steps together."""
    path, rows, good = record
    sealed, whole = data.draw(st.booleans()), data.draw(st.integers(0, 9)) > 0
    rows = rows if whole else rows[: 2 * len(rows) // 3]
    at = data.draw(st.one_of(st.just(0), st.just(len(rows) - 1), st.integers(0, len(rows) - 1)))
    written(path, [*rows[:at], data.draw(changed(rows[at])), *rows[at + 1 :]], sealed)
    try:
        found = refsgd.replay(path).to_json()
    except ReplayError as error:
        assert is_one_line(error, path)
    else:
        assert sealed or not whole or found == good


def with_(*way, to):
    """A function that sets a field of a JSON value."""
    def change(value):
        for key in way[:-1]:
            value = value[key]
        value[way[-1]] = to
    return change


def without(*way):
    def change(value):
        for key in way[:-1]:
            value = value[key]
        del value[way[-1]]
    return change


def step_of(rows, letter):
    return next(k for k, row in enumerate(rows) if isinstance(row, list) and row[2] == letter)


WRONG = [  # the line (by its place or its step's letter), what is changed there, what is said
    (0, without("nodes"),
     "line 1: nodes is missing; expected an object with algorithm, arguments, runtime, nodes"),
    (0, with_("arguments", to=[]), r"line 1: arguments is \[\]; expected an object with workers"),
    (0, with_("arguments", "lr", to=None), "line 1: lr None of type NoneType; expected a number"),
    (0, with_("arguments", "steps", to=-1),
     "line 1: steps -1; expected at least 0"),
    (0, with_("arguments", "workers", to=10**9),
     "line 1: arguments.workers is 1000000000; expected no more than the 4 nodes"),
    (0, with_("arguments", "servers", to=10**9),
     "line 1: arguments.servers is 1000000000; expected no more than the 4 nodes"),
    (0, with_("arguments", "machine", "latency", to=-1), "line 1: latency -1 s; expected"),
    (0, with_("nodes", 0, to=None), r"line 1: nodes\[0\] is None; expected text"),
    (-1, without("end", "seconds"), r"line \d+: end.seconds is missing"),
    (-1, with_("end", to=[1]), r"line \d+: end is \[1\]; expected an object with parameters_sha256, seconds"),
    ("c", with_(3, to=None), r"line \d+: time is None; expected a number of seconds, at least 0"),
    ("c", with_(2, to="z"), r"line \d+: letter is 'z'; expected c or s"),
    ("c", with_(1, to=-1), r"line \d+: program is -1; expected a whole number, at least 0"),
    ("c", with_(1, to=7), r"worker\d, step 0: recorded program 7; the node has 1"),
    ("c", with_(0, to="nobody"), r"line \d+: node is 'nobody'; expected worker0 or worker1"),
    ("c", without(4), r"line \d+: it is \[.*\]; expected a list of node, program, letter, time, start"),
    ("r", with_(4, to=["worker0"]), r"line \d+: src is \['worker0'\]; expected text"),
    ("r", with_(5, to=10**9),
     r"worker0, step 2: waits for message .*, which is never sent; the record is damaged"),
]


@pytest.fixture(scope="module")
def asp(tmp_path_factory):
    path = tmp_path_factory.mktemp("asp") / "record"
    refsgd.run("asp", record=path, data="quadratic", **RUN)
    return path.with_name("forged"), [value_of(row) for row in path.read_bytes().splitlines()]


@pytest.mark.parametrize(("where", "change", "says"), WRONG)
def test_a_record_is_refused_by_line_and_field(asp, where, change, says, capsys):
    """With exit code 1, and the same by Python."""
    path, rows = asp
    rows = json.loads(json.dumps(rows))
    change(rows[step_of(rows, where) if isinstance(where, str) else where])
    written(path, rows, sealed=True)
    with pytest.raises(ReplayError, match=says):
        refsgd.replay(path)
    assert main(["replay", str(path)]) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"refsgd: {path}") and said.err.count("\n") == 1 and not said.out


def test_a_line_that_was_changed_added_or_removed_is_noticed(asp):
    """Also where its values are of the right kinds: the end knows all lines before it."""
    path, rows = asp
    later = json.loads(json.dumps(rows[1]))
    later[3] += 1.0
    faster = json.loads(json.dumps(rows[0]))
    faster["arguments"]["machine"]["latency"] = 0.0
    for forged in ([rows[0], later, *rows[2:]], [faster, *rows[1:]], [*rows[:-2], rows[-1]],
                   [*rows[:-1], rows[-2], rows[-1]]):
        with pytest.raises(ReplayError, match=r"line \d+: end.sha256 is not that of the lines before it"):
            refsgd.replay(written(path, forged, sealed=False))


def test_a_machine_slower_than_any_replays(asp):
    """The prediction beside it once raised OverflowError."""
    path, rows = asp
    slow = json.loads(json.dumps(rows[0]))
    slow["arguments"]["machine"]["latency"] = 1e300
    assert refsgd.replay(written(path, [slow, *rows[1:]], sealed=True)).trace.latency == 1e300
    slow["arguments"]["machine"]["compute"]["parameters"] = [1e300]
    assert refsgd.replay(written(path, [slow, *rows[1:]], sealed=True)).trace.latency == 1e300


def test_a_number_of_an_access_that_nobody_made_takes_no_time(tmp_path):
    """A number beyond all others once stood for a list as long."""
    path = tmp_path / "record"
    refsgd.run("hogwild", record=path, data="integers", **RUN)
    rows = [value_of(row) for row in path.read_bytes().splitlines()]
    rows[step_of(rows, "l")][4] = 10**15
    with pytest.raises(ReplayError, match="waits for access 0 to shared memory, which is never made"):
        refsgd.replay(written(path, rows, sealed=True))


@pytest.mark.parametrize(("servers", "reason"), [(10**4, "with {}: it has no servers; expected 1"),
                                                 (10**9, "; expected at most 10000")])
@pytest.mark.parametrize("name", ["hogwild", "gosgd"])
def test_a_number_of_servers_that_an_algorithm_lacks_takes_no_memory(tmp_path, name, servers, reason):
    """A billion of them once stood for a list as long, of gigabytes."""
    path = tmp_path / "record"
    refsgd.run(name, record=path, data="integers", **RUN)
    rows = [value_of(row) for row in path.read_bytes().splitlines()]
    rows[0]["arguments"]["servers"] = servers
    tracemalloc.start()
    with pytest.raises(ReplayError, match=f"line 1: servers {servers} ?{reason.format(name)}$"):
        refsgd.replay(written(path, rows, sealed=True))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24


# -- checkpoints ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["simulator", "hogwild", "processes"])
def checkpoint(request, tmp_path_factory):
    """A file to forge, the values of its lines, how to continue from it, and to what that leads."""
    folder, cells = tmp_path_factory.mktemp("checkpoints"), request.param == "hogwild"
    name, runtime = ("hogwild" if cells else "bsp"), ("processes" if request.param == "processes"
                                                      else "simulator")
    refsgd.run(name, runtime=runtime, checkpoint=folder, data=DATA.get(name, "quadratic"), **RUN | {"steps": 8})
    path = folder / "record"
    rows = [value_of(row) for row in path.read_bytes().splitlines()]

    def resume(path):
        found = refsgd.run(name, runtime=runtime, resume=path)
        return found.parameters_sha256 if runtime == "processes" else found.to_json()

    return folder / "forged", rows[: 2 * len(rows) // 3], resume, resume(path)


@pytest.mark.slow
@fuzz(30)
@given(data=st.data())
def test_a_changed_field_of_a_checkpoint_is_refused_or_changes_nothing(checkpoint, data):
    """In its first line, or in a step: in virtual time all must be repeated.  Among processes a number of
    the right kind is a step of another run."""
    path, rows, resume, good = checkpoint
    at = data.draw(st.one_of(st.just(0), st.integers(0, len(rows) - 1)))
    forged = data.draw(changed(rows[at]))
    # A lawful run of a billion steps, or over links with as many seconds, is no damage and never ends.
    assume(at > 0 or all(not isinstance(number, int | float) or not number > 1e8
                         for number in leaves(forged.get("arguments"))))
    written(path, [*rows[:at], forged, *rows[at + 1 :]], sealed=False)
    try:
        found = resume(path)
    except (ReplayError, Usage) as error:
        assert is_one_line(error, path)
    else:
        assert at == 0 or found == good


def test_a_policy_that_a_checkpoint_does_not_know_is_named_with_its_file(checkpoint):
    path, rows, resume, _ = checkpoint
    written(path, [{**rows[0], "on_death": "haunt"}, *rows[1:]], sealed=False)
    with pytest.raises(ReplayError, match="forged, line 1: on_death 'haunt'; expected one of stop"):
        resume(path)


# -- results and machines ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    return refsgd.run("ssp", epochs=0.1, workers=3, machine=QUICK)


@fuzz(200)
@given(data=st.data())
def test_a_changed_field_of_a_result_is_refused_or_can_be_shown(result, data):
    """A result has no checksum: what has the right kinds is read."""
    text = json.dumps(data.draw(changed(json.loads(result.to_json()))))
    try:
        found = Result.from_json(text)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert found.summary() and json.loads(found.to_json())


def test_a_result_is_refused_by_its_field(result):
    """And infinity comes back as it was."""
    value = json.loads(result.to_json())
    wrong = {"loss": ([], r'loss is \[\]; expected a number, null, "inf" or "-inf"'),
             "history": ([[1]], r"history\[0\] is \[1\]; expected a list of")}
    for part in ({"samples": None}, {"samples": {"test": 1}}, {"batches": 8}, {"batches": [None]}):
        with pytest.raises(ValueError, match=r"result: problem is .*; expected an object, in which samples"):
            Result.from_json(json.dumps(value | {"problem": value["problem"] | part}))
    for name, (other, says) in wrong.items():
        with pytest.raises(ValueError, match=f"result: {says}"):
            Result.from_json(json.dumps(value | {name: other}))
    assert Result.from_json(json.dumps(value | {"loss": "inf"})).loss == float("inf")


@fuzz(200)
@given(data=st.data())
def test_a_changed_field_of_a_machine_file_is_refused_or_is_a_machine(tmp_path, data):
    machine = QUICK.with_(update="fixed(0.001)", speeds=(1, 2, 0.5)).to_json()
    path = tmp_path / "machine.json"
    path.write_text(
        json.dumps(data.draw(changed({"machine": machine} if data.draw(st.booleans()) else machine))))
    try:
        assert str(load_machine(str(path)))
    except ValueError as error:
        assert is_one_line(error, path)
