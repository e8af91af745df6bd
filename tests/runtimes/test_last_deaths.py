"""Deaths after which nobody can go on: the same verdict in every runtime, and a resumed run brings back who
died last."""

from __future__ import annotations

import pytest

import refsgd
from refsgd.cluster.machine import Machine
from refsgd.runtimes.errors import RunFailed
from refsgd.trace import Crashed

MACHINE = Machine(compute="fixed(0.01)", latency=0.001)
RUNTIMES = ["simulator", "processes"]


def run(name, runtime, *faults, **more):
    data = {"data": "quadratic", "steps": 6, "workers": 1 if name == "sequential" else 2, "machine": MACHINE}
    return refsgd.run(name, runtime=runtime, faults=faults, **data | more)


def kills(name):
    """All workers at once or one after the other."""
    if name == "sequential":
        return ["kill worker 0 at step 2"]
    role = "worker" if name in ("bsp", "hogwild") else "peer"
    return [f"kill {role} 0 at step 2", f"kill {role} 1 at step {2 if name == 'allreduce' else 3}"]


def ends(result):
    """The last iteration of each node that lives to the end."""
    return {e.node: e.values["t"] for e in result.trace.marks("clock") if e.node not in result.trace.dead}


@pytest.mark.filterwarnings("ignore:real computing overran")
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("name", "on_death"), [
    ("gosgd", "continue"), ("independent", "shrink"), ("adpsgd", "continue"), ("hogwild", "continue"),
    ("sequential", "restart"), ("sequential", "continue"), ("allreduce", "restart"), ("bsp", "shrink")])
def test_where_nobody_is_left_the_run_has_failed_and_the_last_one_lives_again(name, on_death, runtime, tmp_path):
    """In virtual time bit for bit as if the last death had not been."""
    faults = kills(name)
    with pytest.raises(RunFailed, match=r"no (node|worker) is left to continue"):
        run(name, runtime, *faults, on_death=on_death, checkpoint=tmp_path)
    found = refsgd.run(name, runtime=runtime, resume=tmp_path, checkpoint=tmp_path)
    assert len(found.trace.of(Crashed)) == len(faults) - 1
    assert ends(found) == dict.fromkeys({*found.trace.workers} - {*found.trace.dead}, 5)
    if runtime == "simulator":
        expected = run(name, runtime, *faults[:-1], on_death=on_death if len(faults) > 1 else "stop")
        assert found.parameters_sha256 == expected.parameters_sha256
    again = refsgd.run(name, runtime=runtime, resume=tmp_path)
    assert again.parameters_sha256 == found.parameters_sha256


@pytest.mark.filterwarnings("ignore:real computing overran")
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(("name", "on_death", "more"), [
    ("asp", "continue", {}), ("bsp", "restart", {"servers": 2}), ("bsp", "shrink", {"colocate": True}),
    ("downpour", "shrink", {}), ("strads", "restart", {})])
def test_a_server_that_died_lives_again(name, on_death, more, runtime, tmp_path):
    """Under every policy as under `stop`: nothing is lost, although a worker had died before."""
    if more.pop("colocate", False):
        more |= {"servers": 2, "machine": Machine(compute="fixed(0.01)", latency=0.001, colocated=True)}
    fault = "kill server 1 at step 4" if more.get("servers") == 2 else "kill server 0 at step 4"
    with pytest.raises(RunFailed, match=r"(server|worker)\d .*; the parameters died with it, so no node can continue$"):
        run(name, runtime, fault, on_death=on_death, checkpoint=tmp_path, **more)
    found = refsgd.run(name, runtime=runtime, resume=tmp_path, checkpoint=tmp_path)
    assert not found.trace.of(Crashed)
    if runtime == "simulator" or name in ("bsp", "strads"):
        assert found.parameters_sha256 == run(name, "simulator", **more).parameters_sha256
    assert refsgd.replay(tmp_path / "record").parameters_sha256 == found.parameters_sha256


def test_a_server_that_died_in_a_later_attempt_lives_again(tmp_path):
    """The death of the worker before it, which the run survived, stays; its plan counts from the first one's names."""
    faults = ["kill worker 0 at step 2", "kill server 0 at step 4"]
    with pytest.raises(RunFailed, match="the parameters died with it"):
        run("bsp", "simulator", *faults, on_death="shrink", workers=3, checkpoint=tmp_path)
    found = refsgd.run("bsp", resume=tmp_path, checkpoint=tmp_path)
    expected = run("bsp", "simulator", faults[0], on_death="shrink", workers=3)
    assert found.parameters_sha256 == expected.parameters_sha256 and [*found.trace.dead] == ["worker0"]
    assert found.measured == expected.measured


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", ["downpour", "easgd"])
def test_a_run_whose_server_died_is_no_success(name, runtime):
    """Not even at its last update, for which no worker waits."""
    last = run(name, "simulator").measured["updates"] - 1
    for servers in (1, 2) if runtime == "simulator" else (1,):
        with pytest.raises(RunFailed, match="the parameters died with it"):
            run(name, runtime, f"kill server 0 at step {last}", on_death="continue", servers=servers)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:real computing overran")
def test_those_who_die_while_a_run_is_halted_are_restarted_with_it():
    """Two at once: the second death is known when the first has halted the run.

    The third is slow: on a busy machine it would otherwise have made all its steps before it is halted, and
    nothing would be left for the others.
    """
    found = run("independent", "processes", "kill peer 0 at step 2", "kill peer 1 at step 2", workers=3,
                on_death="restart", machine=MACHINE.with_(speeds=(1, 1, 0.05)))
    assert ends(found) == dict.fromkeys(["peer0", "peer1", "peer2"], 5)
    assert {e.node for e in found.trace.of(Crashed)} == {"peer0", "peer1"}
