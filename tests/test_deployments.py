"""How often a run builds its deployment: once, and fork copies it; reading its nodes builds none."""

import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import declare, facts_of
from refsgd.experiment.prepare import prepare
from refsgd.testing import explore_algorithm

HOSTS = refsgd.Machine(compute="fixed(0.01)", hosts=[["peer0", "peer1"], ["peer2", "peer3"]])
SMALL = {"data": "quadratic", "workers": 4, "steps": 6}


@pytest.fixture
def counted(tmp_path):
    """ASP and all-reduce that count their calls in a file, in whichever process they happen."""
    calls = tmp_path / "calls"
    calls.touch()

    def note():
        with calls.open("a") as file:
            file.write("x")

    @declare(CATALOGUE["asp"].facts)
    def asp(problem, workers, steps, sgd, servers=1, rotated=False):
        note()
        return CATALOGUE["asp"](problem, workers, steps, sgd, servers, rotated)

    @declare(facts_of(CATALOGUE["bsp"]))
    def bsp(problem, workers, steps, sgd, servers=1, rotated=False):
        note()
        return CATALOGUE["bsp"](problem, workers, steps, sgd, servers, rotated)

    @declare(CATALOGUE["allreduce"].facts)
    def allreduce(problem, workers, steps, sgd, *, hosts=(), collective: str = "ring"):
        note()
        return CATALOGUE["allreduce"](problem, workers, steps, sgd, hosts=hosts, collective=collective)

    return lambda: len(calls.read_text()), {"asp": asp, "bsp": bsp, "allreduce": allreduce}


@pytest.mark.parametrize("runtime", ["simulator", "processes", "tcp"])
@pytest.mark.parametrize("options", [{}, {"faults": ["kill worker 2 at step 3"], "on_death": "continue"}])
def test_a_run_builds_one_deployment(counted, runtime, options):
    calls, algorithms = counted
    refsgd.run(algorithms["asp"], runtime=runtime, servers=2, **SMALL, **options)
    assert calls() == 1


@pytest.mark.parametrize("runtime", ["simulator", "processes"])
@pytest.mark.parametrize(("on_death", "most"), [("restart", 2), ("shrink", 3)])
def test_each_attempt_after_a_death_builds_one_more(counted, runtime, on_death, most):
    """Under shrink, another tells before the run whether one worker fewer fits the options."""
    calls, algorithms = counted
    refsgd.run(algorithms["bsp"], runtime=runtime, faults=["kill worker 2 at step 3"], on_death=on_death, **SMALL)
    assert calls() == most


def test_the_nodes_of_a_machine_with_hosts_are_known_before_their_hosts(counted):
    """An algorithm that takes hosts is called without them, and then with them."""
    calls, algorithms = counted
    refsgd.run(algorithms["allreduce"], machine=HOSTS, **SMALL)
    assert calls() == 2


def test_predictions_and_flags_that_change_nothing_build_no_other(counted):
    calls, algorithms = counted
    experiment = prepare(algorithms["asp"], machine=refsgd.Machine(compute="fixed(0.01)", latency=0.001),
                         stated=("latency",), **SMALL)
    assert experiment.predictions() and calls() == 1


def test_step_and_explore_build_one_for_each_schedule(counted):
    calls, algorithms = counted
    refsgd.Stepper(algorithms["asp"], workers=2, steps=2)
    assert calls() == 1
    report = explore_algorithm(algorithms["asp"], workers=2, steps=1)
    assert calls() == 1 + int(report.partition(" schedules")[0].split()[-1])


def test_a_deployment_is_given_to_one_run_only():
    experiment = prepare("asp", **SMALL)
    first, second = experiment.deploy(), experiment.deploy()
    assert first.keys() == second.keys() == experiment.nodes.keys()
    assert all(first[node].main is not second[node].main for node in first)
