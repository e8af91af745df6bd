"""What is claimed of Downpour SGD (Dean et al., NIPS 2012, section 4.1)."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.server import asp, downpour
from refsgd.algorithms.server.downpour import Accrued
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.effects import Node, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.processes import local as processes
from refsgd.runtimes.simulator import simulate
from tests.marks import mostly_slow
from tests.strategies import machines, seeds
from tests.watching import FREE, LOCKSTEP, RANDOM, constant, curved, final, moments, recorded
from tests.wrong import wrong_deployment

periods = {"push_every": st.integers(1, 4), "fetch_every": st.integers(1, 4)}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_periods_of_one_are_asp_bit_for_bit(seed, momentum):
    """A fetch right behind its push reads what ASP's answer holds; where bytes take no time nothing comes
    between the two."""
    problem, sgd, machine = curved(), SGD(0.1, momentum,
                                          0.01), Machine(compute="exponential(1)", latency=0.2,
                                                         update="fixed(0.1)")
    pulled, answered = (simulate(deploy(problem, 4, 15, sgd), machine, seed)
                        for deploy in (downpour.downpour, asp.asp))
    assert np.array_equal(final_parameters(pulled), final_parameters(answered))
    assert pulled.trace.staleness == answered.trace.staleness


def test_longer_periods_are_not_asp():
    for options in ({"push_every": 2}, {"fetch_every": 2}):
        assert not np.array_equal(final(downpour.downpour(curved(), 4, 15, SGD(0.1), **options)),
                                  final(asp.asp(curved(), 4, 15, SGD(0.1))))


@given(machine=machines, seed=seeds, servers=st.integers(1, 3), steps=st.integers(0, 8))
def test_one_worker_is_sequential_sgd_bit_for_bit(machine, seed, servers, steps):
    problem, sgd = curved(workers=1), SGD(0.1, 0.9, 0.01)
    alone = final(sequential.sequential(problem, 1, steps, sgd))
    assert np.array_equal(final(downpour.downpour(problem, 1, steps, sgd, servers), machine, seed), alone)


def windows(problem, steps, push_every):
    """Gradients in each push of one worker, read off unit gradients."""
    sizes = []
    deployment = downpour.downpour(problem, 1, steps, SGD(0.1), push_every=push_every, fetch_every=3)
    for _ in moments(deployment, lambda node, effect, answer: sizes.append(float(effect.body.grad[0]))
                     if isinstance(effect, Send) and isinstance(effect.body, Accrued) else None, FREE, 0):
        pass
    return sizes


def test_the_first_window_has_one_gradient_and_the_last_what_is_left():
    """The client pushes when step mod n_push = 0, so at step 0.  Off by one, and wrong: windows of 4, 4,
    2."""
    unit = constant(lambda rank, t: 1.0)
    assert windows(unit, 10, 4) == [1, 4, 4, 1]
    assert windows(unit, 9, 4) == [1, 4, 4]
    assert windows(unit, 3, 1) == [1, 1, 1]
    assert windows(unit, 1, 5) == [1]


@given(machine=machines, seed=seeds, servers=st.integers(1, 3), steps=st.integers(0, 9),
       workers=st.integers(1, 4), **periods)
def test_every_gradient_reaches_the_servers_once(machine, seed, servers, steps, workers, push_every,
                                                 fetch_every):
    """Sum of pushed = sum of computed; integers, so exact in any order."""
    problem, seen = recorded(integer_gradients(d=5, workers=workers))
    deployment = downpour.downpour(problem, workers, steps, SGD(0.25), servers, push_every=push_every,
                                   fetch_every=fetch_every)
    run = simulate(deployment, machine, seed)
    assert len(seen) == workers * steps and len(run.trace.staleness) == servers * len(seen)
    assert min((tau for _, tau in run.trace.staleness), default=0) >= 0
    assert np.array_equal(final_parameters(run),
                          problem.x0 - np.float32(0.25) * sum((g for *_, g in seen), np.zeros(5, np.float32)))


def forgetful(program):
    """WRONG: a worker that pushes its last gradient and forgets what it has accrued."""
    answer, last = None, None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration as stop:
            return stop.value
        if isinstance(effect, Send) and isinstance(effect.body, Accrued):
            object.__setattr__(effect, "body", effect.body._replace(grad=last))
        answer = yield effect
        last = answer if type(answer) is np.ndarray else last


def test_a_lost_accrual_is_caught():
    problem, seen = recorded(integer_gradients(d=5, workers=2))
    wrong = dict(downpour.downpour(problem, 2, 8, SGD(0.25), push_every=3))
    wrong = {name: Node(forgetful(node.main)) if name != "server0" else node for name, node in wrong.items()}
    assert not np.array_equal(final(wrong), problem.x0 - np.float32(0.25) * sum(g for *_, g in seen))


@given(machine=machines, seed=seeds, fetch_every=st.integers(1, 4))
def test_between_fetches_the_local_copy_steps_alone(machine, seed, fetch_every):
    """x = fetched - lr sum of local gradients since; the schedule counts the servers' updates, n for each
    push."""
    problem, seen = recorded(curved())
    sgd = SGD(0.1, schedule=StepDecay(12, 0.5))
    simulate(downpour.downpour(problem, 4, 9, sgd, 2, push_every=2, fetch_every=fetch_every), machine, seed)
    mine = {(rank, t): (x, g) for rank, t, x, g in seen}
    for (rank, t), (x, _) in mine.items():
        if t % fetch_every:
            before, g = mine[rank, t - 1]
            assert np.array_equal(x, before - sgd.rate(4 * (t // 2)) * g)


@pytest.mark.parametrize("push_every", [1, 2, 3, 5])
def test_the_local_copy_and_the_servers_step_at_one_rate(push_every):
    """Dean et al., algorithm 7.1: one alpha.  A lone worker's own steps are those of the servers,
    whatever the schedule."""
    run = simulate(downpour.downpour(curved(workers=1), 1, 11, SGD(0.1, schedule=StepDecay(1, 0.7)),
                                     push_every=push_every, fetch_every=100))
    assert np.allclose(run.values["worker0"], run.values["server0"], rtol=1e-5)


def test_adagrad_divides_by_the_root_of_all_squares():
    """Rate of an entry: lr / sqrt(sum of its squared pushes); an entry that never moved stays, without
    0/0."""
    sgd, x, squares = SGD(0.5), np.zeros(3, np.float32), np.zeros(3, np.float32)
    x, squares = downpour.adagrad_step(sgd, x, squares, np.array([3, -4, 0], np.float32), 0)
    assert np.array_equal(x, np.array([-0.5, 0.5, 0], np.float32))  # the first step is lr, whatever the scale
    x, grown = downpour.adagrad_step(sgd, x, squares, np.array([4, 0, 0], np.float32), 1)
    assert np.allclose(x, [-0.5 - 0.5 * 4 / 5, 0.5, 0]) and np.all(grown >= squares) and x.dtype == np.float32


def adagrad_with_decay(deploy, steps=6, lr=0.1, decay=0.3):
    """One worker, and the rule in float64: what is decayed is part of the gradient, so its squares count
    as well."""
    x, squares, problem = np.zeros(6), np.zeros(6), curved(workers=1)
    for t in range(steps):
        a = np.float64(problem.gradient(np.float32(x), 0, t)) + decay * x
        squares += a**2
        x = x - lr * a / np.sqrt(squares)
    return final(deploy(problem, 1, steps, SGD(lr, 0.0, decay), adagrad=True)), x


def test_adagrad_decays_weights_as_part_of_the_gradient():
    found, expected = adagrad_with_decay(downpour.downpour)
    assert np.allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("wrong", ["a", "a + np.float32(sgd.weight_decay)"])
def test_adagrad_with_another_decay_is_caught(wrong):
    found, expected = adagrad_with_decay(
        wrong_deployment(downpour.downpour, "a = a + np.float32(sgd.weight_decay) * x", f"a = {wrong}"))
    assert not np.allclose(found, expected, rtol=0, atol=1e-3)


@given(machine=machines, seed=seeds, servers=st.integers(1, 3))
def test_adagrad_lives_with_the_slices(machine, seed, servers):
    problem = curved(workers=1)
    whole = final(downpour.downpour(problem, 1, 8, SGD(0.1), adagrad=True), LOCKSTEP)
    assert np.array_equal(final(downpour.downpour(problem, 1, 8, SGD(0.1), servers, adagrad=True), machine,
                                seed), whole)


@pytest.mark.parametrize("workers, servers, steps, push, fetch",
                         [(1, 1, 5, 1, 1), (4, 3, 10, 4, 3), (3, 9, 7, 2, 5), (2, 1, 0, 3, 2)])
def test_bytes_are_a_model_per_push_and_per_fetch(workers, servers, steps, push, fetch):
    # windows that end at 0, push, ...; the rest
    pushes = -(-steps // push) + (steps > 1 and (steps - 1) % push > 0)
    fetches = -(-steps // fetch)
    trace = simulate(downpour.downpour(curved(workers=workers), workers, steps, SGD(0.1), servers,
                                       push_every=push, fetch_every=fetch), RANDOM).trace
    assert sum(trace.bytes_sent.values()) == workers * 24 * (pushes + fetches)
    assert trace.messages == workers * servers * (pushes + 2 * fetches)
    assert all(count == workers * pushes for count in trace.updates.values())


@pytest.mark.parametrize("every", mostly_slow([1, 2, 4], 2))
def test_staleness_grows_with_the_period_of_fetching(every):
    """Mean (n - 1)(f + 1)/2 + (f - 1)/2 pushes, own ones counted, for equal workers; within 4 % at 4,000
    pushes."""
    n = 4
    run = simulate(downpour.downpour(integer_gradients(d=1), n, 1000, SGD(0.0), fetch_every=every), FREE,
                   observe=1)
    taus = [tau for _, tau in run.trace.staleness]
    assert np.mean(taus) == pytest.approx((n - 1) * (every + 1) / 2 + (every - 1) / 2, rel=0.04)


def test_every_schedule_of_two_workers_loses_nothing():
    problem = constant(lambda rank, t: 1.0 + rank)

    def check(run):
        assert np.array_equal(final_parameters(run), np.full(2, -0.25 * 2 * 3, np.float32))

    for options in ({}, {"push_every": 2, "fetch_every": 2}):
        assert explore(lambda: downpour.downpour(problem, 2, 2, SGD(0.25), **options), check).complete


@pytest.mark.parametrize("momentum, options",
                         [(0, {"push_every": 0}), (0, {"fetch_every": 0}), (0.9, {"adagrad": True})])
def test_wrong_options_are_named(momentum, options):
    with pytest.raises(ValueError, match="expected"):
        downpour.downpour(curved(), 4, 1, SGD(0.1, momentum), **options)


# -- replicas in stages: section 4.1 with model parallelism -----------------------------------------------------


def one_hot(replicas, steps, copies=6):
    """A gradient that is 1 where the number of the replica and the step says, in each of some copies."""
    def gradient(x, rank, t):
        return np.tile(np.eye(replicas * steps, dtype=np.float32)[rank * steps + t], copies)

    return Problem(np.zeros(copies * replicas * steps, np.float32), gradient, lambda x: 0.0)


def hold_the_ledger_of_stages(deploy, stages, replicas, servers, steps, machine=RANDOM, seed=0, **periods):
    """Each stage of each replica pushes its part of every gradient once."""
    problem = one_hot(replicas, steps)
    run = simulate(deploy(problem, stages * replicas, steps, SGD(1.0), servers, stages=stages, **periods), machine, seed)
    assert np.array_equal(final_parameters(run), -np.ones(problem.x0.size))
    reads = Counter(w for e in run.trace.marks("update") for w, _ in e.values["reads"])
    assert reads == dict.fromkeys(run.trace.workers, steps * servers)
    return run


@given(machine=machines, seed=seeds, stages=st.integers(2, 3), replicas=st.integers(1, 3),
       servers=st.integers(1, 3), steps=st.integers(1, 5), **periods)
@settings(max_examples=25)
def test_each_stage_of_a_replica_pushes_its_part_of_every_gradient_once(
        machine, seed, stages, replicas, servers, steps, push_every, fetch_every):
    hold_the_ledger_of_stages(downpour.downpour, stages, replicas, servers, steps, machine, seed,
                              push_every=push_every, fetch_every=fetch_every)


@pytest.mark.parametrize("right, wrong", [
    ("own[me.k],", "own[0],"),  # WRONG: all stages talk to the servers of the first
    ("messages * replicas", "messages * workers"),  # WRONG: the servers wait for every node
    ("micro_batches(me.rank, t, micro)", "micro_batches(0, t, micro)"),  # WRONG: all replicas take one batch
])
def test_stages_with_wrong_servers_or_batches_are_caught(right, wrong):
    with pytest.raises((AssertionError, Deadlock, ValueError)):
        hold_the_ledger_of_stages(wrong_deployment(downpour.downpour, right, wrong), 2, 2, 1, 3)


@given(machine=machines, seed=seeds, stages=st.integers(2, 3), servers=st.integers(1, 2), micro=st.integers(1, 2))
@settings(max_examples=15)
def test_one_replica_in_stages_is_sequential_sgd(machine, seed, stages, servers, micro):
    problem, sgd = curved(), SGD(0.1, 0.9, 0.01)
    run = simulate(downpour.downpour(problem, stages, 6, sgd, servers, stages=stages, micro=micro), machine, seed)
    alone = simulate(sequential.sequential(problem, 1, 6, sgd))
    assert np.array_equal(final_parameters(run), final_parameters(alone))


def test_stages_of_a_replica_may_work_with_versions_of_different_age():
    """Section 4.1: no parameters of one moment, since each stage fetches by itself."""
    run = hold_the_ledger_of_stages(downpour.downpour, 2, 3, 1, 8)
    reads = [[read for e in run.trace.marks("update") for w, read in e.values["reads"] if w == f"stage{k}.0"]
             for k in range(2)]
    assert len(reads[0]) == 8 and reads[0] != reads[1]


def test_bytes_of_stages_are_a_model_per_push_and_fetch_and_what_crosses_the_cut():
    problem = one_hot(2, 4)
    trace = simulate(downpour.downpour(problem, 4, 4, SGD(1.0), 2, stages=2, push_every=2, fetch_every=3)).trace
    stage, _ = problem.split(2)
    assert sum(trace.bytes_sent.values()) == 2 * ((3 + 2) * 4 * problem.x0.size + 4 * 2 * 4 * stage.x0.size)


def test_every_schedule_of_two_replicas_in_two_stages_loses_nothing():
    problem = one_hot(2, 1)
    finals = set()
    explore(lambda: downpour.downpour(problem, 4, 1, SGD(1.0), stages=2),
            lambda run: finals.add(final_parameters(run).tobytes()), max_runs=60)
    assert finals == {(-np.ones(problem.x0.size, np.float32)).tobytes()}


def test_stages_end_with_the_same_bits_as_processes():
    """Gradients that are the same in any schedule, each of its own entries."""
    deploy = partial(downpour.downpour, one_hot(2, 3), 4, 3, SGD(0.25), 2, stages=2, fetch_every=9)
    real, virtual = processes.run(deploy, Machine(compute="fixed(0.003)"), 0, transport="shm"), simulate(deploy())
    assert real.trace.messages == virtual.trace.messages
    assert np.array_equal(final_parameters(real), final_parameters(virtual)) and np.all(final_parameters(real) == -0.25)


@pytest.mark.parametrize("options, message", [
    ({"stages": 3, "workers": 4}, "^stages 3 on 4 workers; expected a divisor of 4"), ({"micro": 2}, "^micro 2 with stages 1; exp"),
    ({"stages": 2, "layout": "layers"}, "^layout layers with downpour: each of its stages sends the gradient of its layers whole"),
    ({"stages": 2, "on_death": "continue"}, "^on_death continue with downpour: a worker has the only copy of its stage"),
    ({"stages": 2, "micro": 0}, "^micro 0 with stages 2; expected at least 1")])
def test_what_replicas_in_stages_do_not_take_is_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=message):
        refsgd.run("downpour", steps=1, **options)


@pytest.mark.usefixtures("few_draws")
def test_stages_have_no_formula_and_are_simulated():
    assert refsgd.predict("downpour", stages=2)["seconds"].kind == "simulated"
    found = refsgd.predict("downpour", stages=2, steps=3, kind="simulated", net="shapes:tiny", data="none")
    assert found["seconds"].value > 0
