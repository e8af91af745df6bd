"""What is claimed of delay-compensated asynchronous SGD (Zheng et al., ICML 2017)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.parts import Model, Push
from refsgd.algorithms.server import asp, dc_asgd
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from tests.strategies import machines, seeds
from tests.watching import LOCKSTEP, RANDOM, curved, final, recorded

sizes = {"workers": st.integers(1, 5), "servers": st.integers(1, 3), "steps": st.integers(0, 6)}


@given(machine=machines, seed=seeds, momentum=st.sampled_from([0.0, 0.9]), **sizes)
def test_without_compensation_it_is_asp_bit_for_bit(machine, seed, momentum, workers, servers, steps):
    problem, sgd = curved(workers=workers), SGD(0.1, momentum, 0.01)
    delayed, plain = (simulate(deployment, machine, seed) for deployment in (
        dc_asgd.dc_asgd(problem, workers, steps, sgd, servers, compensation=0.0),
        asp.asp(problem, workers, steps, sgd, servers)))
    assert np.array_equal(final_parameters(delayed), final_parameters(plain))
    assert delayed.trace.bytes_sent == plain.trace.bytes_sent and delayed.trace.staleness == plain.trace.staleness


@pytest.mark.parametrize("adaptive", [False, True])
def test_with_compensation_it_is_not_asp(adaptive):
    assert not np.array_equal(final(dc_asgd.dc_asgd(curved(), 4, 12, SGD(0.1), adaptive=adaptive)),
                              final(asp.asp(curved(), 4, 12, SGD(0.1))))


@given(machine=machines, seed=seeds, servers=st.integers(1, 3), steps=st.integers(0, 6),
       adaptive=st.booleans())
def test_one_worker_is_never_corrected(machine, seed, servers, steps, adaptive):
    """Without staleness x is the backup: sequential SGD bit for bit, at any lambda."""
    problem, sgd = curved(workers=1), SGD(0.1, 0.9, 0.01)
    alone = dc_asgd.dc_asgd(problem, 1, steps, sgd, servers, compensation=5.0, adaptive=adaptive)
    assert np.array_equal(final(alone, machine, seed), final(sequential.sequential(problem, 1, steps, sgd)))


def replayed(run, problem, lr, compensation, shared=False, adaptive=False):
    """Algorithm 2 from who read which version and who came when; `shared`: one backup, the model before
    the last update."""
    versions, clock, m = [problem.x0], dict.fromkeys(run.trace.workers, 0), 0 * problem.x0
    for (w, read) in [pair for e in run.trace.marks("update") for pair in e.values["reads"]]:
        g = problem.gradient(versions[read], int(w.removeprefix("worker")), clock[w])
        clock[w] += 1
        x, backup = versions[-1], versions[max(0, len(versions) - 2)] if shared else versions[read]
        m = np.float32(0.95) * m + np.float32(0.05) * g * g
        factor = np.float32(compensation) / (np.sqrt(m + np.float32(1e-7)) if adaptive else 1)
        versions.append(x - np.float32(lr) * (g + factor * g * g * (x - backup)))
    return versions[-1]


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), steps=st.integers(0, 6),
       adaptive=st.booleans())
def test_each_worker_has_its_own_backup_the_model_that_it_read(machine, seed, workers, steps, adaptive):
    problem = curved(workers=workers)
    run = simulate(dc_asgd.dc_asgd(problem, workers, steps, SGD(0.1), compensation=0.5, adaptive=adaptive),
                   machine, seed)
    assert np.array_equal(final_parameters(run), replayed(run, problem, 0.1, 0.5, adaptive=adaptive))


def shared_backup_server(x, pushes, sgd, compensation):
    """WRONG, yet in use: one backup, overwritten at every update, so the drift is that of the last update
    alone."""
    state, previous = (sgd.start(x), np.zeros_like(x)), x
    for version in range(pushes):
        w, push = yield Recv(Push)
        old = x
        x, state = yield Compute(dc_asgd.update, sgd, x, state, push.grad, previous, version, compensation,
                                 False, kind="update")
        yield Mark("update", part=0, version=version, reads=((w, push.version),), x=x)
        previous = old
        yield Send(w, Model(x, version + 1))
    return x


def with_shared_backup(problem, workers, steps):
    return dict(dc_asgd.dc_asgd(problem, workers, steps, SGD(0.1))) | {
        "server0": Node(shared_backup_server(problem.x0, workers * steps, SGD(0.1), 0.5), role="server")}


def test_three_workers_show_a_shared_backup():
    problem = curved(workers=3)
    wrong = simulate(with_shared_backup(problem, 3, 5), LOCKSTEP)
    assert np.array_equal(final_parameters(wrong), replayed(wrong, problem, 0.1, 0.5, shared=True))
    assert not np.array_equal(final_parameters(wrong), replayed(wrong, problem, 0.1, 0.5))


def test_two_workers_in_lockstep_do_not_show_it():
    """Each push misses exactly one update, which is the drift since the worker's own read: why a test needs
    three."""
    problem = curved(workers=2)
    wrong = simulate(with_shared_backup(problem, 2, 5), LOCKSTEP)
    assert np.array_equal(final_parameters(wrong), replayed(wrong, problem, 0.1, 0.5))


def test_where_the_square_of_the_gradient_is_the_hessian_the_correction_is_first_order_exact():
    """g = -1/x has g' = 1/x^2 = g^2, so lambda = 1 leaves an error of second order in the drift, an old
    gradient one of first."""
    def errors(drift):
        backup = np.array([2.0])
        fresh, old = -1 / (backup + drift), -1 / backup
        new, _ = dc_asgd.compensated(old, np.array([drift]), np.zeros(1), 1.0, False)
        return float(np.abs(new - fresh)[0]), float(np.abs(old - fresh)[0])

    (a, old_a), (b, old_b) = errors(0.1), errors(0.05)
    assert a / b == pytest.approx(4, rel=0.1) and old_a / old_b == pytest.approx(2, rel=0.1)
    assert a < 0.1 * old_a
    negative, _ = dc_asgd.compensated(-1 / np.array([2.0]), np.array([-0.1]), np.zeros(1), 1.0, False)
    assert abs(negative[0] + 1 / 1.9) < 0.1 * old_a, "the drift is x - backup, not backup - x"


def test_adaptive_divides_lambda_by_the_root_of_a_moving_average():
    """DC-ASGD-a: m = 0.95 m + 0.05 g^2, lambda / sqrt(m): scaling a gradient by c scales its correction
    by c, not by c^2."""
    drift = np.ones(1, np.float32)
    for adaptive, power in ((False, 2), (True, 1)):
        corrections = []
        for scale in (1.0, 10.0):
            g = np.array([scale], np.float32)
            new, m = dc_asgd.compensated(g, drift, np.zeros(1, np.float32), 2.0, adaptive)
            corrections.append(float(new[0] - scale))
            assert not adaptive or m[0] == pytest.approx(0.05 * scale**2)
        assert corrections[1] / corrections[0] == pytest.approx(10**power, rel=1e-3)


def test_a_moving_average_of_zero_is_no_division_by_zero():
    """The root is of m + 1e-7: of a first gradient of 1e-4, whose square is far below that, the
    correction is 2 g^2 / sqrt(1.005e-7)."""
    for first, expected in ((1e-4, 1e-4 + 2e-8 / np.sqrt(1.005e-7)), (0.0, 0.0)):
        g, _ = dc_asgd.compensated(np.full(1, first, np.float32), np.ones(1, np.float32),
                                   np.zeros(1, np.float32), 2.0, True)
        assert g == pytest.approx([expected], rel=1e-4)


@given(machine=machines, seed=seeds, adaptive=st.booleans(), **sizes)
def test_every_gradient_is_applied_once_and_stays_float32(machine, seed, adaptive, workers, servers, steps):
    problem, seen = recorded(curved(workers=workers))
    run = simulate(dc_asgd.dc_asgd(problem, workers, steps, SGD(0.05), servers, adaptive=adaptive), machine,
                   seed)
    assert final_parameters(run).dtype == np.float32
    assert len(seen) == workers * steps and all(count == len(seen) for count in run.trace.updates.values())
    assert sum(run.trace.bytes_sent.values()) == 2 * len(seen) * 24


def test_it_comes_closer_to_the_fresh_gradients_than_asp():
    """In lockstep each gradient misses 7 others: from x = 3 the old ones overshoot, the compensated ones
    less."""
    steep = Problem(np.full(1, 3.0, np.float32), lambda x, rank, t: np.sinh(x) / np.cosh(x) * x,
                    lambda x: float(x[0] ** 2))
    fresh = final(sequential.sequential(steep, 1, 40, SGD(0.02)))
    compensated, old = (final(deployment, LOCKSTEP) for deployment in (
        dc_asgd.dc_asgd(steep, 8, 5, SGD(0.02), compensation=0.04), asp.asp(steep, 8, 5, SGD(0.02))))
    assert abs(compensated - fresh) < abs(old - fresh)


@pytest.mark.parametrize("workers", [2, 3])
def test_every_schedule_of_a_small_case_follows_algorithm_2(workers):
    problem = curved(workers=workers)

    def check(run):
        assert np.array_equal(final_parameters(run), replayed(run, problem, 0.1, 0.5))

    assert explore(lambda: dc_asgd.dc_asgd(problem, workers, 2, SGD(0.1), compensation=0.5), check).complete
    with pytest.raises(AssertionError):
        explore(lambda: with_shared_backup(problem, workers, 2), check)


@pytest.mark.parametrize("compensation", [-1.0, float("inf"), float("nan")])
def test_a_wrong_compensation_is_named(compensation):
    with pytest.raises(ValueError, match="expected"):
        dc_asgd.dc_asgd(curved(), 4, 1, SGD(0.1), compensation=compensation)


@pytest.mark.parametrize("adaptive, lambda0", [(False, 0.04), (True, 2.0)])
def test_the_default_lambda_is_the_papers_for_the_variant(adaptive, lambda0):
    """Zheng et al., section 6: 0.04 for DC-ASGD-c, 2 for DC-ASGD-a; those of the other variant give other
    parameters."""
    found, same, other = (final(dc_asgd.dc_asgd(curved(), 4, 6, SGD(0.1), adaptive=adaptive, **options),
                                RANDOM) for options in (
        {}, {"compensation": lambda0}, {"compensation": 2.04 - lambda0}))
    assert np.array_equal(found, same) and not np.array_equal(found, other)
