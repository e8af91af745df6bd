"""What is claimed of Sandblaster L-BFGS: Dean et al., NIPS 2012, section 4.2."""

import inspect
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.parts import Fetch, Model
from refsgd.algorithms.server import portions as handed_out
from refsgd.algorithms.server import sandblaster, vector_shards
from refsgd.algorithms.server.portions import Begin, Crew, Portion
from refsgd.algorithms.server.vector_shards import G, P
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Died, Recv, Send
from refsgd.experiment.prepare import prepare
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem
from refsgd.runtimes.explorer import Counterexample, walk
from refsgd.runtimes.processes import local as processes
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Received, Sent
from tests.strategies import machines, seeds

ROWS = 30
DATA = np.random.default_rng(5).standard_normal((ROWS, 4)) * [1, 2, 5, 0.3]
LABELS = np.sign(DATA @ [1, -1, 0.2, 3] + np.random.default_rng(6).standard_normal(ROWS))
FAST = Machine(compute="fixed(1)")
STEEPEST = SGD(1.0)


def logistic(portions):
    """Regularised logistic regression in float64, its rows dealt to portions: not quadratic, portions of
    unequal size."""
    def part(x, rows, signs):
        margin = signs * (rows @ x)
        return -(signs / (1 + np.exp(margin))) @ rows / len(rows) + 0.05 * x

    return Problem(np.zeros(4), lambda x, rank, t: part(x, DATA[t::portions], LABELS[t::portions]),
                   lambda x: 0.0, images=lambda rank, t: len(range(t, ROWS, portions)))


def lbfgs(gradient, x, steps, m):
    """One process, whole vectors: Nocedal and Wright, algorithms 7.4 and 7.5, with the slopes' line
    search; all x."""
    pairs, g, xs = [], gradient(x), [x]
    for _ in range(steps):
        q, alphas = g, []
        for s, y in reversed(pairs):
            alphas.append(s @ q / (y @ s))
            q = q - alphas[-1] * y
        r = q * (pairs[-1][0] @ pairs[-1][1] / (pairs[-1][1] @ pairs[-1][1])) if pairs else q
        for (s, y), alpha in zip(pairs, reversed(alphas)):
            r = r + s * (alpha - y @ r / (y @ s))
        p, a = -r, 1.0
        if not p @ g < 0:
            break
        while p @ gradient(x + a * p) > -(p @ g) / 2:
            a /= 2
        new = gradient(x + a * p)
        if a * p @ (new - g) > 1e-10 * ((new - g) @ (new - g)):
            pairs = ([*pairs, (a * p, new - g)])[-m:] if m else []
        x, g = x + a * p, new
        xs.append(x)
    return xs


def reference(steps, m):
    return lbfgs(lambda x: logistic(1).gradient(x, 0, 0), np.zeros(4), steps, m)[-1]


def run(workers=3, steps=6, servers=2, portions=7, history=3, machine=FAST, seed=0):
    return simulate(sandblaster.sandblaster(logistic(portions), workers, steps, STEEPEST, servers, portions=portions,
                                            history=history), machine, seed)


def test_an_evaluation_begins_on_every_shard_in_order_before_a_portion_is_given_away():
    program = handed_out.evaluate(["server0", "server1"], Crew(["worker0"]), 3, 1)
    assert [program.send(None) for _ in range(2)] == [Send("server0", Begin(3)), Send("server1", Begin(3))]
    assert program.send(None) == Recv(Begin, src="server0")
    assert program.send(("server0", Begin(3))) == Recv(Begin, src="server1")
    assert program.send(("server1", Begin(3))) == Send("worker0", Portion(3, 0))


def test_who_has_died_gets_no_portion_any_more():
    crew = Crew(["worker0", "worker1"])
    program = crew.report()
    assert next(program) == Recv(Portion, Died)
    with pytest.raises(StopIteration):
        program.send(("worker0", Died("worker0")))
    assert crew.living == crew.idle == ["worker1"]


def test_a_worker_fetches_the_vector_of_its_evaluation_once():
    program = handed_out.worker("coordinator", ["server0"], logistic(7))
    program.send(None)
    assert program.send(("coordinator", Portion(3, 5))) == Send("server0", Fetch(3))
    program.send(None)
    compute = program.send(("server0", Model(np.ones(4), 3)))
    assert np.array_equal(compute.args[0], np.ones(4)) and compute.args[1:] == (0, 5)


def test_a_shard_marks_each_vector_that_a_gradient_has_led_to():
    result = run(servers=1)
    marks = [e.values for e in result.trace.marks("update")]
    assert [m["version"] for m in marks] == list(range(result.values["coordinator"] - 1))
    assert all(len(m["reads"]) == 7 and {v for _, v in m["reads"]} == {m["version"]} for m in marks)
    assert np.array_equal(marks[-1]["x"], final_parameters(result))
    assert {(e.node, e.values["part"])
            for e in run(servers=2).trace.marks("update")} == {("server0", 0), ("server1", 1)}


def test_a_slope_uphill_of_exactly_half_is_accepted():
    """From 0 along -g = 1 the gradient 1.5 x - 1 becomes 1/2."""
    problem = Problem(np.zeros(1), lambda x, rank, t: 1.5 * x - 1, lambda x: 0.0)
    result = simulate(sandblaster.sandblaster(problem, 1, 1, STEEPEST, portions=1), FAST)
    assert result.values["coordinator"] == 2 and final_parameters(result) == 1


# -- equality --------------------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), servers=st.integers(1, 5),
       portions=st.integers(1, 9), history=st.integers(0, 4))
def test_it_is_single_process_lbfgs_for_any_workers_portions_and_shards(
    machine, seed, workers, servers, portions, history):
    """To the order of additions: 6 steps in float64, whose conditioning may lose a few digits of 1e-16."""
    found = final_parameters(run(workers, 6, servers, portions, history, machine, seed))
    assert np.allclose(found, reference(6, history), rtol=0, atol=1e-9)


@pytest.fixture(scope="module")
def alone():
    """The parameters that one worker finds."""
    return final_parameters(run(1))


@given(machine=machines, seed=seeds, workers=st.integers(1, 4))
def test_who_computes_what_and_how_often_changes_no_bit(alone, machine, seed, workers):
    assert np.array_equal(final_parameters(run(workers, machine=machine, seed=seed)), alone)


def test_processes_agree_with_the_simulator_bit_for_bit():
    real = processes.run(lambda: sandblaster.sandblaster(logistic(7), 3, 4, STEEPEST, 2, portions=7, history=3),
                         Machine(compute="fixed(0.003)"), 0, transport="shm")
    assert np.array_equal(final_parameters(real), final_parameters(run(steps=4)))


def test_it_converges_far_faster_than_gradient_descent():
    """history = 0 is gradient descent with the same line search."""
    def rest(history):
        return np.linalg.norm(logistic(1).gradient(final_parameters(run(2, 15, 1, 4, history)), 0, 0))

    assert rest(5) < 0.01 * rest(0)


# -- portions --------------------------------------------------------------------------------------------------


STRAGGLER = Machine(compute="fixed(1)", speeds=(1, 1, 0.02))


def test_each_portion_counts_once_even_when_it_was_computed_twice():
    """Near the end outstanding portions are handed out again; the second answer is dropped by every shard."""
    result = run(workers=3, machine=STRAGGLER)
    computed = sum(result.trace.iterations.values())
    evaluations = result.values["coordinator"]
    dropped = [e for e in result.trace.marks("drop")
               if e.node == "server0" and e.values["reason"] == "counted already"]
    assert computed - len(dropped) == 7 * evaluations and len(dropped) > 0
    assert np.array_equal(final_parameters(result), final_parameters(run(1)))


def test_a_straggler_does_not_set_the_pace():
    """Section 4.2: a worker fifty times slower would cost fifty seconds in each evaluation if its portion
    were waited for."""
    result = run(workers=3, machine=STRAGGLER)
    begun = [e.time for e in result.trace.marks("update") if e.node == "server0"]
    assert max(np.diff(begun)) <= 5, "7 portions, and one again, by two workers: four rounds"


def test_fast_workers_take_more_portions():
    counts = run(workers=2, portions=9, machine=Machine(compute="fixed(1)", speeds=(4, 1))).trace.iterations
    assert counts["worker0"] > 2 * counts["worker1"]


# -- the coordinator -------------------------------------------------------------------------------------------


def counted(d, history, steps=6):
    """Bytes and messages out of and into the coordinator for a problem of d parameters, in which no line
    search halves."""
    problem = Problem(np.ones(d), lambda x, rank, t: x * np.linspace(0.5, 1.2, d), lambda x: 0.0)
    trace = simulate(sandblaster.sandblaster(problem, 2, steps, STEEPEST, portions=4, history=history), FAST).trace
    into = [e for e in trace.of(Sent) if e.to == "coordinator"]
    return trace.bytes_sent["coordinator"] + sum(e.nbytes
                                                 for e in into), len(trace.of(Sent, "coordinator"))


def test_the_coordinator_sees_scalars_whose_number_does_not_depend_on_the_parameters():
    assert counted(d=64, history=2) == counted(d=6400, history=2)


def test_an_iteration_costs_the_coordinator_about_four_commands_per_pair():
    """Two loops of a dot and a combination for each pair, in each shard: 8 bytes for a dot, 16 for a
    combination."""
    (_, one), (_, three) = counted(64, 1, 12), counted(64, 3, 12)
    # Step t has min(t, m) pairs: the sums over 12 steps are 11 and 30.
    assert three - one == 4 * (30 - 11)


def test_no_vector_passes_through_the_coordinator():
    trace = run().trace
    assert all(e.message in ("Dot", "Combine", "Begin", "Portion", "Stop")
               for e in trace.of(Sent, "coordinator"))
    assert {e.message for e in trace.of(Received, "coordinator")} == {"Scalar", "Begin", "Portion"}


# -- as a command ----------------------------------------------------------------------------------------------

COMMAND = {"data": "digits", "net": "softmax", "workers": 4, "steps": 12}


def test_on_digits_it_ends_below_sgd_after_as_many_passes_and_as_accurate():
    """12 steps of L-BFGS, each a pass over the data or a little more, against 12 epochs of what BSP at its defaults
    does, steps with 64 images."""
    found = refsgd.run("sandblaster", evaluations=0, batch=64, **COMMAND)
    sgd = refsgd.run("sequential", evaluations=0, batch=64, **{**COMMAND, "steps": None}, epochs=12)
    passes = found.measured["images_per_second"] * found.measured["seconds"] / 1437
    assert found.loss < sgd.loss and found.accuracy["test"] >= sgd.accuracy["test"] and 12 < passes < 18


def test_portions_are_the_batches_of_one_epoch_whatever_the_workers():
    """ceil(1437 / 100) = 15 of them; the defaults give 20 steps; bits depend on neither workers nor shards."""
    found = {n: refsgd.run("sandblaster", data="digits", net="softmax", workers=n, batch=100, steps=2, servers=n)
             for n in (1, 3)}
    assert len({run.parameters_sha256 for run in found.values()}) == 1
    assert len(found[1].trace.gradients) == 15 * found[1].trace.marks("update")[-1].values["version"] + 30
    assert prepare("sandblaster", batch=100).steps == 20 and prepare("sandblaster", epochs=7.4).steps == 7


def test_a_straggler_hardly_holds_a_step_up():
    """One of four workers takes a hundred times as long: 23 rounds of portions become a third more and a
    portion; BSP waits for it in every iteration."""
    even = refsgd.Machine(compute="fixed(0.01)")
    alike, slow = (refsgd.run("sandblaster", evaluations=0, machine=machine, **COMMAND)
                   for machine in (even, even.with_(speeds=(1, 1, 1, 0.01))))
    assert slow.parameters_sha256 == alike.parameters_sha256

    def pace(run):
        return np.median(np.diff([e.time for e in run.trace.marks("update")]))

    assert pace(alike) == pytest.approx(0.23) or pace(alike) == pytest.approx(0.24)
    assert pace(slow) <= pace(alike) * 4 / 3 + 0.03


@pytest.mark.filterwarnings("ignore:fault .* will not happen where each step is one gradient")
def test_portions_of_a_dead_worker_are_computed_by_others_with_the_same_bits():
    given = {"evaluations": 0, **COMMAND, "steps": 3}
    plain = refsgd.run("sandblaster", **given)
    for died in (["kill worker 1 at step 30"], ["kill worker 0 at step 0", "kill worker 2 at step 41"]):
        found = refsgd.run("sandblaster", faults=died, on_death="continue", **given)
        assert found.parameters_sha256 == plain.parameters_sha256 and len(found.trace.dead) == len(died)
    with pytest.raises(ValueError, match="no worker has a share of its own; expected stop or continue"):
        refsgd.run("sandblaster", faults=died, on_death="shrink", **given)


def test_without_history_it_is_gradient_descent_with_the_rate_and_its_schedule():
    """Two steps on |x|^2 / 2: x becomes (1 - lr) x, then (1 - lr / 2) of that; weight decay adds to the slope."""
    problem = Problem(np.ones(3), lambda x, rank, t: x, lambda x: 0.0)
    for decay in (0.0, 1.0):
        found = refsgd.run("sandblaster", problem, workers=2, steps=2, portions=3, history=0, lr=0.25,
                           schedule="step(1,0.5)", weight_decay=decay)
        assert np.array_equal(found.parameters, [(1 - 0.25 * (1 + decay)) * (1 - 0.125 * (1 + decay))] * 3)
    with pytest.raises(ValueError, match="momentum 0.5 with L-BFGS, which computes a direction of its own; expected 0"):
        refsgd.run("sandblaster", problem, workers=2, momentum=0.5)


def test_what_no_formula_predicts_has_a_reason():
    assert "how many evaluations a line search takes" in refsgd.predict("sandblaster").missing["seconds"]
    simulated = refsgd.predict("sandblaster", kind="simulated", **{**COMMAND, "steps": 2})
    assert simulated["staleness_max"].value == 0 and simulated["seconds"].value > 0


def test_the_length_of_a_run_counts_portions():
    assert prepare("sandblaster", workers=4, steps=3, batch=100).gradients == 4 * 15 / 4


# -- wrong programs --------------------------------------------------------------------------------------------


def wrong_shard(*exchanges):
    """The shard's program with some expressions exchanged."""
    source = inspect.getsource(vector_shards.parameter_shard)
    for right, wrong in exchanges:
        assert right in source
        source = source.replace(right, wrong)
    space = dict(vars(vector_shards))
    exec(source, space)
    return space["parameter_shard"]


def hold_in_random_schedules(runs=150, steps=2):
    def at_end(result):
        assert np.allclose(final_parameters(result), reference(steps, 1), rtol=0,
                           atol=1e-9), "not the result of one process"

    walk(lambda: sandblaster.sandblaster(logistic(3), 3, steps, STEEPEST, portions=3, history=1), at_end, runs=runs)


@pytest.mark.slow
def test_drawn_schedules_end_at_the_result_of_one_process():
    hold_in_random_schedules()


@pytest.mark.slow
@pytest.mark.parametrize("exchanges", [
    # WRONG: counts answers instead of portions; a second copy takes the place of a portion that is then never
    # awaited.
    [(" and portion not in pieces", ""), ("pieces[portion] = src", "pieces[len(pieces)] = src")],
    # WRONG: a straggler's piece of an earlier evaluation counts in this one.
    [("at == evaluation and ", "")],
    # WRONG: obeys at once, also while portions are missing; the slope is then that of an older gradient.
    [("[] if collecting else [Begin, Dot, Combine]", "[Begin, Dot, Combine]")],
])
def test_a_shard_that_counts_a_duplicate_or_obeys_too_early_is_caught(monkeypatch, exchanges):
    monkeypatch.setattr(sandblaster, "parameter_shard", wrong_shard(*exchanges))
    with pytest.raises(Counterexample):
        hold_in_random_schedules(3000)


def oldest_first(shards, pairs, rate):
    """WRONG: the first loop runs from the oldest pair to the newest."""
    yield from sandblaster.combine(shards, P, -1, G)
    alpha = {}
    for s, sy, _ in pairs:
        alpha[s] = (yield from sandblaster.dot(shards, s, P)) / sy
        yield from sandblaster.combine(shards, P, 1, P, -alpha[s], s + 1)
    if pairs:
        yield from sandblaster.combine(shards, P, pairs[-1][1] / pairs[-1][2], P)
    for s, sy, _ in pairs:
        beta = (yield from sandblaster.dot(shards, s + 1, P)) / sy
        yield from sandblaster.combine(shards, P, 1, P, alpha[s] - beta, s)


def test_loops_in_the_wrong_order_are_caught(monkeypatch):
    monkeypatch.setattr(sandblaster, "direct", oldest_first)
    assert not np.allclose(final_parameters(run()), reference(6, 3), rtol=0, atol=1e-9)


@pytest.mark.parametrize("options", [{"portions": 0}, {"history": -1}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="expected at least 1 portion"):
        sandblaster.sandblaster(logistic(1), 1, 1, STEEPEST, **options)


@pytest.mark.parametrize("history", [1, 3])
def test_a_pair_of_negative_curvature_is_dropped(history):
    """Where the function is concave <s, y> is negative, and a direction with that pair might go uphill."""
    def slope(x):
        return 0.1 * np.sin(3 * x)

    x0 = np.array([0.95, 1.0, -0.9])
    problem = Problem(x0, lambda x, rank, t: slope(x), lambda x: 0.0)
    xs = lbfgs(slope, x0, 9, history)
    curvature = [(b - a) @ (slope(b) - slope(a)) for a, b in pairwise(xs)]
    assert min(curvature) < 0 < max(curvature)
    found = final_parameters(simulate(sandblaster.sandblaster(problem, 2, 9, STEEPEST, portions=1, history=history), FAST))
    assert np.allclose(found, xs[-1], rtol=0, atol=1e-9)
