"""What is claimed of staleness-aware SGD (Zhang et al., IJCAI 2016; Odena, arXiv:1601.04033)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.parts import Push
from refsgd.algorithms.server import asp, softsync, staleness_aware
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from tests.strategies import machines, seeds
from tests.watching import FREE, LOCKSTEP, RANDOM, constant, curved, final, recorded
from tests.wrong import wrong_deployment

EMPTY = (np.zeros(2, np.float32), np.zeros(2, np.float32), np.ones(2, np.float32))
ONES = np.ones(2, np.float32)


def moved_by_unit_gradients(run, k=0):
    """How far slice k must have moved, in units of lr, by what the trace says of tau: sum over updates of
    (1/c) sum of 1/max(1, tau)."""
    updates = [e.values for e in run.trace.marks("update") if e.values["part"] == k]
    return sum(np.mean([1 / max(1, e["version"] - read) for _, read in e["reads"]]) for e in updates)


def divisor(tau, version=100, rule="zhang"):
    push, _ = staleness_aware.divided(Push(ONES, 1, version - tau), version, EMPTY, rule, 4)
    return 1 / float(push.grad[0])


def test_the_rate_falls_with_staleness_and_is_never_raised():
    """lr / tau for tau >= 1, else lr."""
    assert [divisor(tau) for tau in range(5)] == pytest.approx([1, 1, 2, 3, 4])
    rates = [1 / divisor(tau) for tau in range(30)]
    assert rates == sorted(rates, reverse=True) and max(rates) == 1


@given(seed=seeds, steps=st.integers(0, 8), servers=st.integers(1, 3), momentum=st.sampled_from([0.0, 0.9]))
def test_staleness_of_at_most_one_is_asp_bit_for_bit(seed, steps, servers, momentum):
    """Two workers in lockstep: tau is 0 once and then 1."""
    problem, sgd = curved(workers=2), SGD(0.1, momentum, 0.01)
    run = simulate(staleness_aware.staleness_aware(problem, 2, steps, sgd, servers), LOCKSTEP, seed)
    assert max((tau for _, tau in run.trace.staleness), default=0) <= 1
    assert np.array_equal(final_parameters(run),
                          final(asp.asp(problem, 2, steps, sgd, servers), LOCKSTEP, seed))


def test_mishchenkos_rate_falls_from_a_staleness_of_n_on():
    """lr n / tau for tau > n, else lr: four workers; no gradient is enlarged."""
    assert [divisor(tau, rule="mishchenko") for tau in (0, 1, 4, 5, 8, 40)] == pytest.approx([1, 1, 1, 1.25, 2, 10])


@given(seed=seeds, workers=st.integers(1, 5), momentum=st.sampled_from([0.0, 0.9]))
def test_mishchenkos_rule_is_asp_bit_for_bit_where_staleness_is_at_most_n(seed, workers, momentum):
    """In lockstep it is n - 1."""
    problem, sgd = curved(workers=workers), SGD(0.1, momentum, 0.01)
    assert np.array_equal(final(staleness_aware.staleness_aware(problem, workers, 6, sgd, rule="mishchenko"), LOCKSTEP, seed),
                          final(asp.asp(problem, workers, 6, sgd), LOCKSTEP, seed))


@pytest.mark.slow
@pytest.mark.parametrize("workers, mean", [(4, 0.898), (16, 0.863), (64, 0.854)])
def test_mishchenkos_mean_weight_of_equal_exponential_workers(workers, mean):
    """Staleness is geometric, so it is sum_j (1/n)(1 - 1/n)^j min(1, n/j), which tends to 1 - 1/e + E1(1) = 0.8515."""
    by_formula = sum((1 - 1 / workers)**j / workers * min(1, workers / max(j, 1)) for j in range(40 * workers))
    run = simulate(staleness_aware.staleness_aware(constant(lambda rank, t: 1.0), workers, 20_000 // workers, SGD(0.0),
                                                   rule="mishchenko"), FREE, observe=1)
    weights = [min(1, workers / max(tau, 1)) for _, tau in run.trace.staleness]
    assert by_formula == pytest.approx(mean, abs=5e-4) and np.mean(weights) == pytest.approx(mean, rel=0.01)


def test_a_rule_that_enlarges_young_gradients_is_caught():
    """WRONG: tau / n without a least divisor of 1."""
    wrong = wrong_deployment(staleness_aware.staleness_aware, "max(1, late / workers", "max(1e-3, late / workers")
    problem = curved(workers=4)
    assert not np.array_equal(final(wrong(problem, 4, 6, SGD(0.01), rule="mishchenko"), LOCKSTEP),
                              final(asp.asp(problem, 4, 6, SGD(0.01)), LOCKSTEP))


@given(machine=machines, seed=seeds, workers=st.integers(1, 5))
def test_it_is_softsync_where_staleness_stays_below_two(machine, seed, workers):
    """On top of n-softsync, whatever c."""
    problem, sgd = curved(workers=workers), SGD(0.1, 0.9)
    soft, aware = (simulate(deploy(problem, workers, 6, sgd, splitting=1), machine, seed)
                   for deploy in (softsync.softsync, staleness_aware.staleness_aware))
    assert soft.trace.staleness == aware.trace.staleness, "the schedule is the same"
    fresh = max(tau for _, tau in soft.trace.staleness) <= 1
    assert np.array_equal(final_parameters(soft), final_parameters(aware)) or not fresh


def test_a_constant_staleness_is_the_rate_divided_by_it():
    """Five workers in lockstep: tau = 0, 1, 2, 3 and then always 4."""
    tail = constant(lambda rank, t: float(t > 0))
    run = simulate(staleness_aware.staleness_aware(tail, 5, 9, SGD(0.5)), LOCKSTEP)
    assert {tau for _, tau in run.trace.staleness[5:]} == {4}
    assert np.allclose(final_parameters(run), -0.5 / 4 * 5 * 8)


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), split=st.integers(1, 4),
       servers=st.integers(1, 2))
def test_each_gradient_has_its_own_rate_before_the_mean(machine, seed, workers, split, servers):
    """w = w - (1/c) sum of eta_l g_l, with eta_l = lr / tau_l."""
    split = min(split, workers)
    unit = constant(lambda rank, t: 1.0)
    run = simulate(staleness_aware.staleness_aware(unit, workers, 6, SGD(0.5), servers, splitting=split),
                   machine, seed)
    for k in range(servers):
        assert final_parameters(run)[k] == pytest.approx(-0.5 * moved_by_unit_gradients(run, k), rel=1e-5)


def test_one_over_tau_plus_one_is_caught(monkeypatch):
    """WRONG, yet in use: r / (tau + 1), which halves the rate of a gradient that missed a single update."""
    def halved(push, version, moments, rule, workers):
        return push._replace(grad=push.grad / np.float32(version - push.version + 1)), moments

    monkeypatch.setattr(staleness_aware, "divided", halved)
    for machine in (LOCKSTEP, RANDOM):
        run = simulate(staleness_aware.staleness_aware(constant(lambda rank, t: 1.0), 2, 6, SGD(0.5)),
                       machine)
        assert final_parameters(run)[0] != pytest.approx(-0.5 * moved_by_unit_gradients(run), rel=1e-2)


def test_one_rate_for_a_whole_update_is_caught():
    """WRONG: divides the mean by the mean staleness."""
    pushes = [Push(ONES, 1, 10), Push(5 * ONES, 1, 6)]
    right = staleness_aware.update(SGD(1.0), 0 * ONES, (0 * ONES, EMPTY), pushes, 10, "zhang", 4)[0]
    assert np.allclose(right, -(1 + 5 / 4) / 2)
    assert not np.allclose(right, -3 / np.mean([1, 4]))


def test_a_mean_over_images_weighs_the_divided_gradients():
    pushes = [Push(ONES, 3, 10), Push(4 * ONES, 1, 8)]
    assert np.allclose(staleness_aware.update(SGD(1.0), 0 * ONES, (0 * ONES, EMPTY), pushes, 10, "zhang", 4)[0],
                       -(3 * 1 + 1 * 2) / 4)


@given(machine=machines, seed=seeds, steps=st.integers(0, 6), servers=st.integers(1, 3))
def test_one_worker_is_sequential_sgd_bit_for_bit(machine, seed, steps, servers):
    problem, sgd = curved(workers=1), SGD(0.1, 0.9, 0.01)
    aware = staleness_aware.staleness_aware(problem, 1, steps, sgd, servers)
    assert np.array_equal(final(aware, machine, seed), final(sequential.sequential(problem, 1, steps, sgd)))


def test_odena_divides_by_the_deviation_of_each_parameter():
    """s follows sqrt(E[g^2] - E[g]^2): a noisy parameter gets a smaller rate than a steady one, and tau
    divides as well."""
    moments, rng = EMPTY, np.random.default_rng(0)
    for t in range(200):
        _, moments = staleness_aware.divided(Push(np.array([1, 1 + 2 * rng.standard_normal()], np.float32),
                                                     1, t), t, moments, "odena", 4)
    assert moments[2][0] < 0.05 and moments[2][1] == pytest.approx(2, abs=0.8)
    fresh, stale = (staleness_aware.divided(Push(ONES, 1, 10 - tau), 10, moments, "odena", 4)[0].grad
                    for tau in (1, 3))
    assert np.allclose(fresh, 3 * stale) and fresh[0] > 10 * fresh[1]


def odena_by_hand(deploy, workers=3, steps=5, lr=0.01):
    """Algorithm 1 of Odena in float64, from who read which version; s is that of the gradient that it
    divides."""
    problem, seen = recorded(curved(workers=workers))
    run = simulate(deploy(problem, workers, steps, SGD(lr), rule="odena"), RANDOM)
    gradients = {(f"worker{rank}", t): np.float64(g) for rank, t, _, g in seen}
    x, m1, m2, s, done = np.float64(problem.x0), 0.0, 0.0, 1.0, dict.fromkeys(run.trace.workers, 0)
    for e in run.trace.marks("update"):
        (w, read), = e.values["reads"]
        g = gradients[w, done[w]]
        done[w] += 1
        m1, m2 = 0.9 * m1 + 0.1 * g, 0.9 * m2 + 0.1 * g**2
        s = 0.9 * s + 0.1 * np.sqrt(m2 - m1**2 + 1e-8)
        x = x - lr * g / (s * max(1, e.values["version"] - read))
    return final_parameters(run), x


def test_odena_is_his_algorithm():
    found, expected = odena_by_hand(staleness_aware.staleness_aware)
    assert np.allclose(found, expected, rtol=0, atol=1e-6)


def test_the_deviation_of_no_noise_is_1e_4():
    """The root is of a variance plus 1e-8, so that a parameter without any gradient for a while is not
    divided by zero."""
    moments, zero = EMPTY, 0 * ONES
    for t in range(300):
        push, moments = staleness_aware.divided(Push(zero, 1, t), t, moments, "odena", 4)
    assert moments[2] == pytest.approx([1e-4, 1e-4], rel=1e-3) and np.all(push.grad == 0)


@pytest.mark.parametrize("right, wrong", [
    ("grad=g / (s * tau)", "grad=g / (moments[2] * tau)"),  # the deviation before this gradient
    ("new * g * g", "new * g"), ("m2 - m1 * m1", "m2"), ("np.ones_like(shard.x)", "np.zeros_like(shard.x)"),
    ("grad=g / (s * tau)", "grad=g / s"),
])
def test_another_rule_is_caught(right, wrong):
    found, expected = odena_by_hand(wrong_deployment(staleness_aware.staleness_aware, right, wrong))
    assert not np.allclose(found, expected, rtol=0, atol=1e-4)


@given(machine=machines, seed=seeds, servers=st.integers(1, 3))
def test_odena_stays_finite_and_float32(machine, seed, servers):
    x = final(staleness_aware.staleness_aware(curved(), 4, 6, SGD(0.001), servers, rule="odena"), machine,
              seed)
    assert np.all(np.isfinite(x)) and x.dtype == np.float32


def test_an_old_gradient_harms_less_than_in_asp():
    """A quadratic at a rate where constant staleness 7 makes ASP diverge (2 sin(pi/30) = 0.209 is its
    limit)."""
    steep = Problem(np.ones(1, np.float32), lambda x, rank, t: x, lambda x: float(x[0] ** 2))
    sizes = [abs(float(final(deploy(steep, 8, 60, SGD(0.3)), LOCKSTEP)[0]))
             for deploy in (asp.asp, staleness_aware.staleness_aware)]
    assert sizes[0] > 10 and sizes[1] < 1e-3


def test_bytes_are_those_of_asp():
    for machine in (RANDOM, Machine(compute="fixed(1)")):
        a, b = (simulate(deploy(curved(), 4, 5, SGD(0.1), 2), machine).trace.bytes_sent
                for deploy in (asp.asp, staleness_aware.staleness_aware))
        assert a == b and sum(a.values()) == 2 * 4 * 5 * 24


def test_every_schedule_of_three_workers_gives_no_larger_step_than_asp():
    unit = constant(lambda rank, t: 1.0)

    def check(run):
        taus = [tau for _, tau in run.trace.staleness]
        assert final_parameters(run)[0] == pytest.approx(-sum(1 / max(1, tau) for tau in taus)) and min(
            taus) >= 0
        assert final_parameters(run)[0] >= -6

    report = explore(lambda: staleness_aware.staleness_aware(unit, 3, 2, SGD(1.0)), check, max_runs=3000)
    assert report.runs > 10


@pytest.mark.parametrize("options", [{"splitting": 0}, {"splitting": 5}, {"rule": "adam"}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="expected"):
        staleness_aware.staleness_aware(curved(), 4, 1, SGD(0.1), **options)
