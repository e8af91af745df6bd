"""A system that cannot fork: comparisons are simulated, and processes that somebody asks for are refused
in one line."""

from __future__ import annotations

import builtins
import json
import multiprocessing

import pytest

import refsgd
from refsgd.cli import main
from refsgd.runtimes.errors import RunFailed
from refsgd.runtimes.fork import can_fork

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
REFUSED = "OS processes need fork, which this system does not support: use WSL, or --runtime simulator"
SIMULATED = "OS processes need fork, which this system does not support: simulated instead"
SMALL = {"data": "quadratic", "steps": 4}
COMPARE = ["compare", "--algorithms", "bsp,asp", "--data", "quadratic", "--steps", "4", "--json", "-"]


@pytest.fixture(autouse=True)
def no_fork(monkeypatch):
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    monkeypatch.delenv("REFSGD_WITHOUT_FORK", raising=False)


def test_compare_simulates_and_says_so(capsys):
    """Exit code 0, one line on standard error, and a comparison that calls itself simulated."""
    assert main(COMPARE) == 0
    said = capsys.readouterr()
    assert said.err == f"refsgd: warning: {SIMULATED}\n"
    data = json.loads(said.out)
    assert data["runtime"] == "simulator" and all(row["simulated"] and row["measured"] is None
                                                  for row in data["rows"])
    with pytest.warns(RuntimeWarning, match=SIMULATED):
        assert refsgd.compare("bsp", **SMALL).runtime == "simulator"


@pytest.mark.parametrize("runtime", ["processes", "tcp"])
def test_processes_that_are_asked_for_are_refused_before_anything_runs(runtime, capsys, monkeypatch):
    """In one line, by every command and in Python."""
    monkeypatch.setattr("refsgd.runtimes.simulator.Simulator.run", lambda *rest: pytest.fail("it ran"))
    for command in (COMPARE, ["run", "bsp", *COMPARE[3:]]):
        assert main([*command, "--runtime", runtime]) == 1
        assert capsys.readouterr() == ("", f"refsgd: {REFUSED}\n")
    for do in (refsgd.run, refsgd.compare):
        with pytest.raises(RunFailed, match=REFUSED):
            do("bsp", runtime=runtime, **SMALL)


def test_a_variable_lets_the_simulator_stand_in_for_processes(monkeypatch):
    """As in a notebook that asks for them: the same bits, a warning, and a result that says where it ran."""
    monkeypatch.setenv("REFSGD_WITHOUT_FORK", "simulator")
    with pytest.warns(RuntimeWarning, match=SIMULATED):
        found = refsgd.run("bsp", runtime="processes", **SMALL)
    assert found.runtime == "simulator" and found.parameters_sha256 == refsgd.run(
        "bsp", **SMALL).parameters_sha256


def test_a_notebook_that_asks_for_processes_continues_with_the_simulator(monkeypatch):
    """So that all cells of a tutorial run; the warning is the one line that says so."""
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    with pytest.warns(RuntimeWarning, match=SIMULATED) as said:
        found = refsgd.run("bsp", runtime="processes", **SMALL)
    assert found.runtime == "simulator" and len(said) == 1


def test_a_browser_cannot_fork_although_its_python_lists_fork(monkeypatch):
    """Pyodide's `multiprocessing` names the start method; the call would fail."""
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["forkserver", "fork", "spawn"])
    assert can_fork()
    monkeypatch.setattr("sys.platform", "emscripten")
    assert not can_fork()


def test_check_leaves_processes_out_with_a_note(capsys):
    """A correct algorithm is none the worse for it."""
    assert main(["check", "bsp"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "FAIL" not in out and "note processes: left out: OS processes need fork, which this system does not support" in out


def test_calibrate_is_refused_with_what_it_can_do_instead(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate"]) == 1
    assert "use WSL, or describe the machine by --compute, --latency and --bandwidth" in capsys.readouterr().err and not list(tmp_path.iterdir())
