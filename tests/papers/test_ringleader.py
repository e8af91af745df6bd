"""What is claimed of Ringleader ASGD (Maranjyan and Richtarik, ICLR 2026)."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.server import asp, bsp, ringleader
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.theory import predict
from refsgd.trace import Computed
from tests.strategies import machines, seeds
from tests.watching import FREE, LOCKSTEP, RANDOM, constant, curved, final, recorded
from tests.wrong import wrong_deployment

UNEVEN = Machine(compute="exponential(1)", speeds=(8, 1, 1, 1))


def rounds(trace, n):
    """The reads of the updates of each round."""
    reads = [e.values["reads"] for e in trace.marks("update")]
    return [[read for of_one in reads[i:i + n] for read in of_one] for i in range(0, len(reads), n)]


def hold_rounds(run, n):
    """A worker gets one new model in a round, so that its gradients of a round are of one model; no gradient that
    is in use, at any update, has missed more than 2 n - 2; none is lost."""
    ledger(run)
    last = dict.fromkeys(run.trace.workers, 0)
    for number, reads in enumerate(rounds(run.trace, n)):
        assert len(set(reads)) == len({w for w, _ in reads}) == n, "one model of each worker"
        for w, version in set(reads):
            assert version == last[w] == 0 if not number else (number - 1) * n < version <= number * n
        at = min((number + 1) * n, run.trace.updates["server0"]) - 1
        assert all(at - version <= 2 * n - 2 for _, version in reads)
    assert {e.values["reason"] for e in run.trace.marks("drop")} <= {"end"}


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 9))
def test_one_update_and_one_new_model_per_worker_and_round(machine, seed, workers, steps):
    hold_rounds(simulate(ringleader.ringleader(integer_gradients(d=4, workers=workers), workers, steps, SGD(0.25)),
                         machine, seed), workers)


@given(machine=machines, seed=seeds, workers=st.sampled_from([1, 2, 4]), steps=st.integers(0, 9))
def test_every_update_has_the_same_weight_for_each_worker(machine, seed, workers, steps):
    """Whatever the speeds: with gradients that only the worker decides, each update is their mean."""
    run = simulate(ringleader.ringleader(constant(lambda rank, t: 4.0**rank), workers, steps, SGD(0.25)), machine, seed)
    mean = sum(4.0**rank for rank in range(workers)) / workers
    assert np.allclose(final_parameters(run), -0.25 * mean * run.trace.updates.get("server0", 0), rtol=1e-5)


def test_a_delay_of_2n_minus_2_is_reached():
    """By a worker that is the first to get its model in one round and the last to cause its update in the next."""
    found = set()
    explore(lambda: ringleader.ringleader(integer_gradients(d=2, workers=2), 2, 3, SGD(0.25)),
            lambda run: found.update(tau for _, tau in run.trace.staleness))
    assert max(found) == 2
    tau = [tau for seed in range(20) for _, tau in simulate(ringleader.ringleader(
        integer_gradients(d=2, workers=4), 4, 50, SGD(0.25)), FREE, seed).trace.staleness]
    assert max(tau) == 6


@given(seed=seeds, steps=st.integers(0, 6))
def test_one_worker_is_sequential(seed, steps):
    problem, sgd = curved(workers=1), SGD(0.1, 0.9, 0.01, StepDecay(3, 0.5))
    assert np.array_equal(final(ringleader.ringleader(problem, 1, steps, sgd), RANDOM, seed),
                          final(sequential.sequential(problem, 1, steps, sgd)))


def test_equal_speeds_are_not_bsp():
    """Who has no new model computes a second gradient at the old one."""
    problem, (ours, theirs) = curved(), (simulate(deploy(curved(), 4, 6, SGD(0.1)), LOCKSTEP) for deploy in (
        ringleader.ringleader, bsp.bsp))
    assert problem.loss(final_parameters(ours)) != problem.loss(final_parameters(theirs))
    assert max(tau for _, tau in ours.trace.staleness) > 0


def pulled(a, c):
    """f_i = a_i/2 (x - c_i)^2."""
    return Problem(np.zeros(1), lambda x, rank, t: a[rank] * (x - c[rank]), lambda x: 0.0)


FOUR = [((8, 1, 1, 1), (1, 1, 1, 1), (3, 0, 0, 1)), ((1, 2, 3, 4), (1, 2, 1, 0.5), (1, -1, 2, 4)),
        ((0.1, 1, 1), (2, 1, 1), (-3, 1, 2)), ((5, 1), (0.5, 1), (2, -2)), ((1, 1, 1, 1, 20), (1, 1, 2, 2, 1), (1, 2, 3, 4, -5))]


@pytest.mark.slow
@pytest.mark.parametrize(("speeds", "a", "c"), FOUR)
def test_the_fixed_point_does_not_depend_on_speeds(speeds, a, c):
    """Ringleader ends at the minimum of the mean, ASP where fast workers weigh more, up to the rate."""
    machine, n = Machine(compute="exponential(1)", speeds=speeds), len(speeds)
    r, a, c = map(np.array, (speeds, a, c))
    fair, fast = (a * c).sum() / a.sum(), (r * a * c).sum() / (r * a).sum()
    ours = simulate(ringleader.ringleader(pulled(a, c), n, 4000, SGD(0.01)), machine)
    assert final_parameters(ours)[0] == pytest.approx(fair, abs=0.001)
    problem, seen = recorded(pulled(a, c))
    simulate(asp.asp(problem, n, 10000, SGD(0.002)), machine)
    x = [x[0] for rank, _, x, _ in seen if rank == r.argmax()]  # when the fastest has ended, the others are alone
    assert np.mean(x[len(x) // 2:]) == pytest.approx(fast, abs=0.05)
    assert abs(fair - fast) > 0.3


@given(seed=seeds, speeds=st.lists(st.floats(0.05, 5), min_size=2, max_size=6), steps=st.integers(1, 20))
def test_a_round_takes_at_most_two_gradients_of_the_slowest(seed, speeds, steps):
    """At fixed times; not so n updates of two rounds, which have the last of one and the first of the next."""
    n = len(speeds)
    trace = simulate(ringleader.ringleader(integer_gradients(d=1, workers=n), n, steps, SGD(0.0)),
                     Machine(compute="fixed(1)", speeds=tuple(speeds)), seed).trace
    ends = [0.0, *(e.time for e in trace.marks("update"))][::n]
    assert all(b - a <= 2 / min(speeds) + 1e-9 for a, b in itertools.pairwise(ends))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [FREE, LOCKSTEP])
def test_the_rate_is_that_of_bsp_over_n(machine):
    """On a quadratic of curvature 1 BSP is stable below 2, Ringleader of 16 below about 2/16."""
    problem = Problem(np.ones(1), lambda x, rank, t: x, lambda x: 0.0)
    small, large = (abs(final(ringleader.ringleader(problem, 16, 300, SGD(rate / 16)), machine)[0]) for rate in (1.9, 2.3))
    assert small < 1 < large


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 5, 8, 12])
def test_predictions_of_equal_exponential_workers(workers):
    """Updates within 2 % of a long run; seconds within four standard errors, given the mean of the drawn times."""
    runs = [simulate(ringleader.ringleader(integer_gradients(d=1, workers=workers), workers, 500, SGD(0.0)), FREE, seed).trace
            for seed in range(8)]
    p = predict("ringleader", FREE, workers=workers, steps=500, nbytes=4)
    assert p["updates"].value == pytest.approx(np.mean([t.updates["server0"] for t in runs]), rel=0.02)
    end = np.array([t.seconds - sum(e.time - e.start for e in t.of(Computed) if e.work == "gradient") / workers for t in runs])
    assert abs(end.mean() + 500 - p["seconds"].value) < 4 * end.std(ddof=1) / len(runs)**0.5
    assert max(tau for t in runs for _, tau in t.staleness) <= p["staleness_max"].value
    assert {sum(t.bytes_sent.values()) for t in runs} == {p["bytes_sent"].value}


def test_every_schedule_of_a_small_case():
    for workers, steps in ((2, 1), (2, 2), (2, 3), (3, 1)):
        report = explore(lambda n=workers, t=steps: ringleader.ringleader(integer_gradients(d=2, workers=n), n, t, SGD(0.25)),
                         lambda run, n=workers: hold_rounds(run, n))
        assert report.complete and report.runs > 1


# -- wrong ones ------------------------------------------------------------------------------------------------


def caught(wrong):
    """Whether what is claimed above fails on four workers."""
    deploy = wrong_deployment(ringleader.ringleader, *wrong)
    run = simulate(deploy(constant(lambda rank, t: 4.0**rank), 4, 40, SGD(0.25)), UNEVEN)
    if not np.allclose(final_parameters(run), -0.25 * 85 / 4 * run.trace.updates["server0"], rtol=1e-5):
        return "weights"
    try:
        hold_rounds(run, 4)
    except AssertionError as error:
        return str(error).splitlines()[0]
    return ""


@pytest.mark.parametrize(("right", "wrong", "by"), [
    # averaged over gradients, not over workers
    ("[table[v]._replace(examples=1) for", "[table[v] for", "weights"),
    # a worker's newest gradient replaces its older ones, which are lost
    ("if old := kept.get(w):", "if False:", "applied exactly once"),
    # table without rounds: a gradient that has had its update stays in it for ever
    ("table, early, done = early, {}, set()", "done = set()", "applied exactly once"),
    # a gradient of the next round counts in this one
    ("keep(early if w in done else table, w, message)", "keep(table, w, message)", "applied exactly once"),
    # an early worker gets the newest model, as in the authors' code
    ("yield Send(w, given[w])", "yield Send(w, Model(shard.x, shard.version))", "one model")])
def test_wrong_ones_are_caught(right, wrong, by):
    assert by in caught((right, wrong))
