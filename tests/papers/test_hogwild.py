"""What is claimed of Hogwild!, and what happens without atomic additions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.sgd import SGD
from refsgd.algorithms.shared_memory import hogwild
from refsgd.cluster.machine import Machine
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, quadratic
from refsgd.runtimes.explorer import Counterexample, explore
from refsgd.runtimes.processes import local as processes
from refsgd.runtimes.simulator import simulate
from refsgd.theory.predict import predict
from refsgd.trace import Added, Loaded, Marked, Trace
from refsgd.trace.waiting import waiting_by_cause
from tests.paced import as_simulated, slipped
from tests.strategies import machines, seeds


def unit_gradients(workers):
    """Worker i's gradient is the unit vector i: with rate 1 the vector counts steps, whatever the order."""
    return Problem(np.zeros(workers, np.float32), lambda x, rank, t: np.eye(workers, dtype=np.float32)[rank],
                   lambda x: 0.0)


def same_component():
    """Every worker adds to the same component: collisions matter."""
    return Problem(np.zeros(1, np.float32), lambda x, rank, t: np.ones(1, np.float32), lambda x: 0.0)


def counted(workers, steps):
    def check(run):
        assert final_parameters(run)[0] == -workers * steps, "an addition was lost"
    return check


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), parts=st.integers(1, 5))
def test_atomic_additions_lose_nothing(machine, seed, workers, parts):
    """Recht et al. 2011, section 2: the final vector is x_0 plus all steps, in any order."""
    run = simulate(hogwild.hogwild(unit_gradients(workers), workers, 4, SGD(1.0), parts=parts), machine, seed)
    assert np.array_equal(final_parameters(run), np.full(workers, -4, np.float32))


def test_no_schedule_loses_an_atomic_addition():
    report = explore(lambda: hogwild.hogwild(same_component(), 2, 2, SGD(1.0), parts=1), counted(2, 2))
    assert report.complete and report.states > 20


def test_without_atomics_the_explorer_finds_the_lost_update():
    with pytest.raises(Counterexample, match="an addition was lost") as found:
        explore(lambda: hogwild.hogwild(same_component(), 2, 1, SGD(1.0), parts=1, atomic=False),
                counted(2, 1))
    assert len(found.value.schedule) <= 12


def test_without_atomics_updates_are_lost_in_virtual_time_when_an_addition_takes_time():
    machine = Machine(compute="exponential(1)", update="fixed(0.5)")
    lost = simulate(hogwild.hogwild(same_component(), 4, 20, SGD(1.0), parts=1, atomic=False), machine)
    kept = simulate(hogwild.hogwild(same_component(), 4, 20, SGD(1.0), parts=1), machine)
    assert final_parameters(kept)[0] == -80 < final_parameters(lost)[0]


@given(machine=machines, seed=seeds, atomic=st.booleans())
def test_one_worker_is_sequential_sgd(machine, seed, atomic):
    problem, sgd = quadratic(d=7, workers=1, noise=1.0), SGD(0.1, weight_decay=0.01)
    run = simulate(hogwild.hogwild(problem, 1, 5, sgd, atomic=atomic), machine, seed)
    assert np.array_equal(final_parameters(run),
                          final_parameters(simulate(sequential.sequential(problem, 1, 5, sgd))))


def test_a_read_vector_can_be_torn_across_parts_but_not_within_one():
    seen = []

    def gradient(x, rank, t):
        seen.append(x.copy())
        return np.ones(4, np.float32)

    def look(run):
        for x in seen:
            assert x[0] == x[1] and x[2] == x[3], "torn within a part"
        seen.clear()

    problem = Problem(np.zeros(4, np.float32), gradient, lambda x: 0.0)
    explore(lambda: hogwild.hogwild(problem, 2, 1, SGD(1.0), parts=2), look)
    torn = set()
    explore(lambda: hogwild.hogwild(problem, 2, 1, SGD(1.0), parts=2),
            lambda run: torn.update(x[0] != x[2] for x in seen))
    assert torn == {True, False}


@pytest.mark.parametrize("runtime", ["processes", "tcp"])
def test_real_processes_share_the_vector_and_replay(runtime, tmp_path):
    problem_free = {"workers": 3, "steps": 20, "data": "integers", "lr": 0.25,
                    "machine": Machine(compute="exponential(0.003)")}
    result = refsgd.run("hogwild", runtime=runtime, record=tmp_path / "r.json", **problem_free)
    assert result.measured["messages"] == 0 and result.measured["updates"] == 20
    assert refsgd.replay(tmp_path / "r.json").parameters_sha256 == result.parameters_sha256


def test_momentum_is_refused():
    with pytest.raises(ValueError, match="momentum 0.9; expected 0"):
        hogwild.hogwild(quadratic(), 2, 1, SGD(0.1, 0.9))


@pytest.mark.parametrize("parts", [1, 3, 8, 30])
def test_a_step_takes_the_time_of_an_update_however_many_parts_it_is_added_in(parts):
    """A part takes its share of an update, an empty one nothing."""
    machine = Machine(compute="fixed(0.02)", update="fixed(0.001)")
    trace = simulate(hogwild.hogwild(quadratic(d=10, workers=4), 4, 10, SGD(0.1), parts=parts), machine).trace
    assert trace.seconds == pytest.approx(10 * (0.02 + 0.001))
    waits = {cause: share for cause, share in waiting_by_cause(trace).items() if share > 1e-9}
    assert waits == {"update": pytest.approx(0.001 / 0.021)}
    predicted = predict("hogwild", machine, workers=4, nbytes=40, steps=10, options={"parts": parts})
    assert predicted["seconds"].kind == "exact" and predicted["seconds"].value == pytest.approx(trace.seconds)


@pytest.mark.alone
def test_real_processes_take_that_time_too():
    """Steps so long that a late wake-up of a busy machine is a small share of one."""
    machine = Machine(compute="fixed(0.1)", update="fixed(0.05)")
    real = processes.run(lambda: hogwild.hogwild(quadratic(d=10, workers=4), 4, 4, SGD(0.1), parts=30),
                         machine, 0, transport="shm").trace
    assert as_simulated(real.seconds, 4 * 0.15, slipped(real))


@pytest.mark.parametrize("parts", [0, -2, 100_001])
def test_a_vector_in_no_parts_is_named(parts):
    with pytest.raises(ValueError, match=f"^parts {parts}; expected 1 to 100000$"):
        hogwild.hogwild(unit_gradients(2), 2, 1, SGD(1.0), parts=parts)


@pytest.mark.parametrize("runtime", ["simulator", "processes"])
@pytest.mark.parametrize("update", [None, "fixed(0.004)"])
def test_every_update_has_a_number_and_staleness_keeps_its_identity(runtime, update):
    """In virtual time each worker reads right after its own update, so the staleness of all updates, with what is
    outstanding at the end, is (n - 1) x updates: also where additions take time and others come in between."""
    machine = Machine(compute="exponential(0.004)", update=update)
    trace = refsgd.run("hogwild", runtime=runtime, workers=4, steps=10, data="integers", lr=0.25, machine=machine,
                       parts=3).trace
    marks = trace.marks("update")
    assert sorted(e.values["version"] for e in marks) == list(range(40))
    ends = {w: next(i for i, e in reversed(list(enumerate(marks))) if e.node == w) for w in trace.workers}
    outstanding = sum(39 - marks[at].values["version"] for at in ends.values())
    total = sum(tau for _, tau in trace.staleness) + outstanding
    assert total == 3 * 40 if runtime == "simulator" else 0 < total <= 3 * 40


@pytest.mark.parametrize(("compute", "update", "kind"), [("fixed(1)", None, "exact"), ("fixed(1)", "fixed(0.3)", "exact"),
    ("fixed(1)", "exponential(0.3)", "approximation"), ("exponential(1)", "fixed(0.3)", "approximation")])
def test_the_mean_staleness_has_a_formula_also_if_additions_take_time(compute, update, kind):
    machine = Machine(compute=compute, update=update)
    traces = [simulate(hogwild.hogwild(quadratic(d=8, workers=4), 4, 20, SGD(0.1), parts=3), machine, seed).trace
              for seed in range(20)]
    found = predict("hogwild", machine, workers=4, nbytes=32, steps=20)["staleness_mean"]
    assert found.kind == kind and found.value == pytest.approx(
        np.mean([tau for trace in traces for _, tau in trace.staleness]), rel=1e-9 if kind == "exact" else 0.015)


def test_updates_are_numbered_by_tickets_and_not_by_clocks():
    """Worker 1 adds first and is heard of last; it has read before worker 0 has added, worker 0 after it."""
    events = [Loaded(0.1, "worker1", 0, 0, 0), Loaded(0.3, "worker0", 0, 0, 2), Added(0.4, "worker0", 0, 0, 3),
              Marked(0.5, "worker0", 0, "update", {}), Added(0.6, "worker1", 0, 0, 1),
              Marked(0.7, "worker1", 0, "update", {})]
    trace = Trace(events, ["worker0", "worker1"], 1.0)
    assert [(e.node, e.values) for e in trace.marks("update")] == [
        ("worker0", {"version": 1, "reads": (("worker0", 1),)}),
        ("worker1", {"version": 0, "reads": (("worker1", 0),)})]


def test_a_look_at_an_unfinished_trace_changes_no_number():
    """Worker 0 adds first and marks last; only a program that counts keeps what it has said."""
    def numbers(looks, **own):
        events = [Loaded(0.1, "worker0", 0, 0, 0), Loaded(0.1, "worker1", 0, 0, 1), Added(0.2, "worker0", 0, 0, 2),
                  Added(0.3, "worker1", 0, 0, 3), Marked(0.4, "worker1", 0, "update", {**own}),
                  Marked(0.5, "worker0", 0, "update", {})]
        for length in looks:
            Trace(events[:length], ["worker0", "worker1"], 1.0)
        return {e.node: e.values["version"] for e in Trace(events, ["worker0", "worker1"], 1.0).marks("update")}

    assert numbers([]) == numbers([5]) == {"worker0": 0, "worker1": 1}
    assert numbers([5], version=7, reads=()) == {"worker0": 0, "worker1": 7}


def test_every_node_names_the_cell_that_it_shares_with_all():
    """The vector: what real processes must place in shared memory."""
    nodes = hogwild.hogwild(unit_gradients(2), 2, 1, SGD(1.0)).values()
    cells = [list(map(id, node.cells)) for node in nodes]
    assert cells[0] == cells[1] and len(set(cells[0])) == 1 and len(cells) == 2
