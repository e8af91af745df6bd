"""A reader's own algorithm, named by its file: every command, records, checkpoints, and options that it cannot
honour."""

import functools
import inspect
import io
import json
import re
import sys
from pathlib import Path

import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import EXCHANGE, REPLICAS, Facts, declare
from refsgd.cli import main
from refsgd.effects import Compute, Node
from refsgd.experiment.prepare import prepare
from refsgd.problems import quadratic
from refsgd.runtimes.errors import ReplayError
from refsgd.runtimes.fork import can_fork
from refsgd.runtimes.journal import line, value_of
from refsgd.testing import check, explore_algorithm
from refsgd.theory import ALGORITHMS, Figures
from tests.catalogue import taking

MINE = '''\
from refsgd.algorithms.parts import Model, Push, deploy, names, worker
from refsgd.effects import Compute, Mark, Node, Recv, Send


def server(workers, x, steps, sgd):
    v = sgd.start(x)
    for version in range(len(workers) * steps):
        w, push = yield Recv(Push)
        x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
        yield Mark("update", part=0, version=version, reads=((w, push.version),), x=x)
        yield Send(w, Model(x, version + 1))
    return x


def pipedream(problem, workers, steps, sgd, *, rate=1.0):
    """Asynchronous SGD with a factor on its rate, under the name of another algorithm."""
    if rate <= 0:
        raise ValueError(f"rate {rate}; expected > 0")
    ws, (s,) = names(workers, 1)
    nodes = {w: Node(worker(i, [s], problem, steps)) for i, w in enumerate(ws)}
    sgd = type(sgd)(sgd.lr * rate)
    return nodes | {s: Node(server(ws, problem.x0, steps, sgd), role="server")}


def shared(problem, workers, steps, sgd, servers=1):
    def answering(shard, workers):
        for _ in range(len(workers) * steps):
            w, push = yield from shard.recv(Push)
            yield from shard.apply(w, push)
            yield Send(w, Model(shard.x, shard.version))
        return shard.x

    return deploy(problem, workers, steps, sgd, servers, False, answering, survives=False)
'''
NAME = "mine.py:pipedream"
SMALL = ["--data", "quadratic", "--workers", "2", "--steps", "3", "--quiet"]


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    """The file, in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    return Path("mine.py")


@pytest.mark.parametrize("command", [
    ["run", NAME, *SMALL, "--rate", "0.5"],
    *(pytest.param(["run", NAME, *SMALL, "--rate", "0.5", "--runtime", runtime, "--compute", "none"],
                   marks=pytest.mark.skipif(not can_fork(), reason="needs fork")) for runtime in ("processes", "tcp")),
    ["compare", "--algorithms", f"bsp; {NAME} rate=0.5", *SMALL, "--runtime", "simulator", "--no-hard"],
    ["predict", NAME, *SMALL, "--kind", "simulated", "--rate", "0.5"],
    ["explore", NAME, "--workers", "2", "--steps", "1", "--rate", "0.5"],
    ["step", NAME, "--rate", "0.5"],
    ["run", "mine:pipedream", *SMALL, "--rate", "0.5"],
    ["run", NAME, "--help"]], ids=lambda command: " ".join(command[:2]))
def test_every_command_takes_a_file_and_the_functions_options(command, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("r\n"))
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "pipedream" in out and ("rate=0.5" in out or command[0] in ("predict", "explore") or "--rate RATE" in out)


def test_python_takes_the_same_text(tmp_path):
    given = {"data": "quadratic", "workers": 2, "steps": 3}
    assert refsgd.run(NAME, **given).algorithm == "pipedream"
    assert list(refsgd.compare([NAME + " rate=2", "asp"], runtime="simulator", **given).results) == [
        "pipedream rate=2", "asp"]
    assert refsgd.Stepper(NAME).name.startswith("pipedream") and "pipedream, 2" in explore_algorithm(NAME, steps=1)


def test_a_file_imports_what_lies_beside_it(tmp_path, monkeypatch):
    (tmp_path / "beside_mine.py").write_text(MINE)
    (tmp_path / "using.py").write_text("from beside_mine import pipedream as using\n")
    monkeypatch.setattr("sys.path", [*sys.path])
    assert refsgd.run(f"{tmp_path}/using.py:using", data="quadratic", workers=2, steps=3).algorithm == "pipedream"


def test_an_own_function_with_a_name_of_the_catalogue_gets_none_of_its_formulas():
    figures = refsgd.predict(NAME, data="quadratic", workers=2, steps=3)
    assert not figures and "there is no formula for pipedream" in figures.missing["seconds"]
    assert refsgd.predict(CATALOGUE["bsp"], data="quadratic") == refsgd.predict("bsp", data="quadratic")


def test_a_formula_whose_option_the_function_calls_otherwise_is_refused_and_a_formula_of_its_own_is_taken():
    def renamed(problem, workers, steps, sgd, *, tau=8):
        return CATALOGUE["local-sgd"](problem, workers, steps, sgd, period=tau)

    given = {"data": "quadratic", "workers": 4, "steps": 4, "tau": 2}
    declare(REPLICAS, formula="local_sgd")(renamed)
    for command in (refsgd.predict, functools.partial(refsgd.compare, runtime="simulator")):
        with pytest.raises(ValueError, match="^formula local_sgd of renamed reads option period, found tau; expected an "
                                             "option of this name, or a formula of your own$"):
            command(renamed, **given)

    def fixed(c):
        return Figures({"updates": ALGORITHMS["local_sgd"](c.with_options(period=c.options["tau"]))["bytes_sent"]})

    declare(REPLICAS, formula=fixed)(renamed)
    found, twice = refsgd.predict(renamed, **given), refsgd.predict("local-sgd", data="quadratic", steps=4, period=2)
    assert found["updates"] == twice["bytes_sent"] and found["bytes_sent"].kind == "simulated"
    assert {"seconds", "images_per_second"} <= {*found}
    assert [f.held for f in check(renamed, tau=2, processes=False) if f.name == "formulas"] == [False]


@pytest.mark.parametrize(("option", "commands"), [
    ("momentum", ("run", "predict", "explore", "step", "check")), ("record", ("run",)), ("page", ("explore",)),
    ("seconds", ("check",))])
def test_an_own_option_with_the_name_of_one_of_a_run_is_refused(option, commands, mine, capsys):
    mine.write_text(MINE.replace("rate", option).replace("sgd.lr * ", ""))
    for command in commands:
        assert main([command, NAME, "--quiet"] if command == "run" else [command, NAME]) != 0
        assert re.search(f"option {option} of pipedream is also one of (a run|refsgd {command}); expected another name",
                         " ".join("".join(capsys.readouterr()).split()))
    if "run" in commands:
        with pytest.raises(ValueError, match=f"^option {option} of pipedream is also one of a run"):
            refsgd.run(NAME, data="quadratic", **{option: 0.9})


@pytest.mark.parametrize(("facts", "said"), [
    ({"updates": 5}, "updates of mine is 5; expected Callable[[int, int, Options], int | None]"),
    ({"updates": lambda workers, steps, options: options["nope"]}, "updates of mine raises KeyError('nope'); expected"),
    ({"needs": lambda options: {}}, "needs of mine raises TypeError("),
    ({"gate": lambda options: 3}, "gate of mine gives 3; expected Callable[[Options], tuple[float, float]] | None"),
    ({"holds": "banana"}, "holds of mine is 'banana'; expected Literal['replica', "),
    ({"share": "banana"}, "share of mine is 'banana'; expected Literal['worker', 'replica', 'all']"),
    ({"timeless": "no"}, "timeless of mine is 'no'; expected bool"),
    ({"takes": ("banana",)}, "takes of mine names banana; expected only layout, "),
    ({"because": {"banana": "no"}}, "because of mine names banana; expected only layout, "),
    ({"recursion": "puhses"}, "recursion of mine is 'puhses'; expected mean, replicas, pushes, "),
    ({"given": ("servers",)}, "given of mine names servers; expected only ()")])
def test_a_wrong_fact_is_refused_where_it_is_declared(facts, said):
    def mine(problem, workers, steps, sgd, *, rate=1.0): ...

    with pytest.raises(ValueError, match=f"^fact {re.escape(said)}"):
        declare(REPLICAS, **facts)(mine)
    with pytest.raises(ValueError, match=f"^fact {re.escape(said)}"):
        declare(lambda options: Facts(**facts))(mine)


@pytest.mark.parametrize("command", ["run", "check", "explore"])
def test_only_functions_are_algorithms(command, mine, capsys):
    mine.write_text(MINE + "import functools\npart = functools.partial(pipedream, rate=2.0)\n")
    assert main([command, "mine.py:part"]) == 2
    assert "an algorithm of type partial; expected a function f(problem" in capsys.readouterr().err


def test_an_algorithm_that_reads_an_inner_product_is_simulated_with_contents_and_refused_without():
    def lazy(problem, workers, steps, sgd):
        def peer():
            g = yield Compute(problem.gradient, problem.x0, 0, 0)
            return problem.x0 - g * (float(g @ g) > 1)

        return {"worker0": Node(peer())}

    found = refsgd.predict(lazy, kind="simulated", data="quadratic", workers=1)
    assert "the given problem" in found["seconds"].formula
    with pytest.raises(ValueError, match="^lazy reads the entries of its vectors, and net shapes:1000 has none"):
        refsgd.run(lazy, data="none", net="shapes:1000", workers=1)


@pytest.mark.parametrize(("text", "said"), [
    ("mine.py", "expected FILE.py:FUNCTION, e.g. mine.py:my_algorithm"),
    ("mine.py:absent", "mine.py has no function 'absent'"),
    ("absent.py:f", "cannot import absent.py"),
    ("wrong.py:f", "NameError: name 'nowhere' is not defined (wrong.py, line 2)"),
    (NAME, "rate -1.0; expected > 0 (mine.py, line 18)")])
def test_errors_name_the_file_and_its_line(text, said, capsys):
    Path("wrong.py").write_text("\nf = nowhere\n")
    assert main(["run", text, *SMALL, *(["--rate=-1"] if text == NAME else [])]) == 2
    assert said.replace("-1.0", "-1") in capsys.readouterr().err


def test_explore_shows_the_schedule_that_fails_and_no_traceback(capsys):
    Path("wrong.py").write_text("from refsgd.effects import Node, Recv\n"
                                "def f(problem, workers, steps, sgd):\n"
                                "    def wait():\n"
                                "        yield Recv(int)\n"
                                "    return {'worker0': Node(wait())}\n")
    assert main(["explore", "wrong.py:f"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("refsgd: deadlock: worker0 waits: no int has arrived") and "wrong.py:4" in said
    assert "Traceback" not in said


def test_a_record_and_a_checkpoint_of_a_file_are_repeated_bit_for_bit(mine, capsys):
    given = {"data": "quadratic", "workers": 2, "steps": 6, "rate": 0.5}
    result = refsgd.run(NAME, record="run.record", checkpoint="saved", **given)
    assert refsgd.replay("run.record").parameters_sha256 == result.parameters_sha256
    assert refsgd.run(NAME, resume="saved").parameters_sha256 == result.parameters_sha256

    kept = mine.read_text()
    mine.write_text(kept.replace("rate <= 0", "rate < 0") + "\nraise SystemExit('this file was run')\n")
    with pytest.raises(ReplayError, match="run.record: line 1: the text of mine.py:pipedream has SHA-256 "
                                          "[0-9a-f]{16}, recorded [0-9a-f]{16}; expected the file as it was"):
        refsgd.replay("run.record")
    mine.unlink()
    assert main(["replay", "run.record"]) == 1
    assert "cannot read mine.py (No such file or directory)" in capsys.readouterr().err


def test_a_record_runs_no_other_file_than_the_one_whose_hash_it_has(mine):
    refsgd.run("asp", data="quadratic", workers=2, steps=3, record="run.record")
    first, *rest = Path("run.record").read_bytes().splitlines(keepends=True)
    for algorithm, more in ((NAME, {}), ("mine:pipedream", {}), (NAME, {"source": 3}), ("asp", {"source": "3" * 64})):
        header = value_of(first[:-1]) | {"algorithm": algorithm} | more
        Path("run.record").write_bytes(line(header) + b"".join(rest[:-1]))
        mine.write_text("raise SystemExit('this file was run')")
        with pytest.raises(ReplayError, match="line 1: (the text of|a record of mine:pipedream, a module)"):
            refsgd.replay("run.record")


def test_a_function_without_a_name_is_replayed_in_memory():
    with pytest.raises(ValueError, match=r"in memory: refsgd.runtimes.replay.replay\(factory, record"):
        refsgd.run(lambda problem, workers, steps, sgd: CATALOGUE["asp"](problem, workers, steps, sgd),
                   data="quadratic", steps=3, record="run.record")


@pytest.mark.parametrize(("options", "why"), [
    (["--servers", "2"], "servers 2 with pipedream, whose function does not take their number"),
    (["--layout", "layers"], "layout layers with pipedream: its programs fail with it"),
    (["--compress", "fp16"], "compress fp16 with pipedream: its programs fail with it"),
    (["--overlap", "backward", "--bucket", "9"], "bucket 9 with pipedream: its programs do not use it")])
def test_options_that_an_own_function_cannot_honour_are_refused_in_one_line(options, why, capsys):
    assert main(["run", NAME, *SMALL, *options]) == 2
    said, = capsys.readouterr().err.splitlines()
    assert why in said
    if "--bucket" not in options:
        assert main(["run", "mine.py:shared", *SMALL, *options]) == 0


#: an exchange in which each option says something
SAID = {"layout": {"layout": "layers"}, "balance": {"layout": "layers", "balance": "size"},
        "priority": {"layout": "layers", "priority": True}, "overlap": {"overlap": "backward"},
        "bucket": {"overlap": "backward", "bucket": 100}, "compress": {"compress": "topk:0.5"},
        "feedback": {"compress": "topk:0.5", "feedback": False}}


@pytest.mark.parametrize("option", EXCHANGE)
def test_a_trial_run_finds_who_honours_an_option(option):
    """The catalogue's algorithms, given as a reader's own, against the table; workers of `approximate` overlap,
    though its servers would filter parts."""
    honoured = set()
    for name, function in CATALOGUE.items():
        own = functools.wraps(function)(lambda *args, function=function, **options: function(*args, **options))
        del own.facts  # which `wraps` has copied
        workers = 1 if name == "sequential" else 4
        assert list(inspect.signature(own).parameters) == list(inspect.signature(function).parameters)
        try:
            prepare(own, quadratic(workers=workers), workers=workers, steps=2, **SAID[option])
            honoured.add(name)
        except ValueError as error:
            assert f"with {own.__name__}" in str(error)
    assert honoured - {"approximate"} == set(taking(option))


def test_the_json_of_a_run_has_the_functions_name(capsys):
    assert main(["run", NAME, *SMALL, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"] == "pipedream"
