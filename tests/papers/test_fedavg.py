"""What is claimed of FedAvg (McMahan et al., AISTATS 2017) and of FedProx (Li et al., MLSys 2020)."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.averaging import local_sgd
from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.federated import fedavg
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.experiment.arguments import Usage
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.theory import predict
from tests.drift import fixed_point
from tests.strategies import machines, seeds
from tests.watching import FREE, LOCKSTEP, RANDOM, constant, curved, final, ragged
from tests.wrong import wrong_deployment

RULE = SGD(0.1, 0.9, 0.01, StepDecay(3, 0.5))


def pulled(curvatures, optima):
    """f_i(x) = a_i/2 (x - c_i)^2 in float64, without noise."""
    a, c = np.asarray(curvatures, float), np.asarray(optima, float)
    return Problem(np.zeros(1), lambda x, rank, t: a[rank] * (x - c[rank]), lambda x: 0.0)


def still(workers=4):
    """No gradient, and entries that rounding would change."""
    return Problem(np.float32([0.1, -1 / 3, 1e-30]), lambda x, rank, t: 0 * x, lambda x: 0.0,
                   images=lambda rank, t: 1 + rank)


# -- limits ----------------------------------------------------------------------------------------------------


def hold_local(deploy, machine, seed, workers, steps, period, problem=ragged):
    ours = final(deploy(problem(workers), workers, steps, RULE, period=period), machine, seed)
    theirs = final(local_sgd.local_sgd(problem(workers), workers, steps, RULE, period=period))
    if workers <= 2:
        assert np.array_equal(ours, theirs), "the same bits"
    assert np.allclose(ours, theirs, rtol=1e-5, atol=1e-6), "a ring adds in other orders"


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 9), period=st.integers(1, 5))
def test_with_all_clients_it_is_local_sgd(machine, seed, workers, steps, period):
    """With momentum, weight decay, a schedule and unequal shares, under any schedule."""
    hold_local(fedavg.fedavg, machine, seed, workers, steps, period)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6))
def test_with_rounds_of_one_step_it_is_bsp(machine, seed, workers, steps):
    problem = curved(workers=workers)
    assert np.allclose(final(fedavg.fedavg(problem, workers, steps, RULE, period=1), machine, seed),
                       final(bsp.bsp(problem, workers, steps, RULE)), rtol=1e-5, atol=1e-6)


@given(seed=seeds, steps=st.integers(0, 9), period=st.integers(1, 5))
def test_one_client_is_sequential_sgd_bit_for_bit(seed, steps, period):
    problem = curved(workers=1)
    assert np.array_equal(final(fedavg.fedavg(problem, 1, steps, RULE, period=period), RANDOM, seed),
                          final(sequential.sequential(problem, 1, steps, RULE)))


@given(seed=seeds, mu=st.floats(0, 9), sampled=st.integers(1, 3))
def test_the_proximal_term_is_nothing_in_the_first_step_of_a_round(seed, mu, sampled):
    """FedProx with H = 1 is FedAvg, bit for bit, at any mu."""
    both = [final(fedavg.fedavg(curved(workers=3), 3, 6, RULE, period=1, sampled=sampled, mu=each), RANDOM, seed)
            for each in (mu, 0.0)]
    assert np.array_equal(*both)


def test_a_strong_proximal_term_freezes_the_model():
    moved = [abs(final(fedavg.fedavg(pulled([1, 2], [1, 3]), 2, 64, SGD(0.5 / mu), period=32, mu=mu), LOCKSTEP)[0])
             for mu in (1.0, 1e2, 1e4)]
    assert moved[0] > 10 * moved[1] > 100 * moved[2]


# -- rounds of some clients ------------------------------------------------------------------------------------


def hold_still(deploy, **options):
    assert np.array_equal(final(deploy(still(), 4, 9, SGD(0.1), period=2, **options)), still().x0)


@pytest.mark.parametrize("sampled", [1, 2, 3, 4])
def test_without_gradients_every_bit_stays(sampled):
    hold_still(fedavg.fedavg, sampled=sampled)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 9), period=st.integers(1, 4), sampled=st.integers(1, 5))
def test_each_round_has_m_fresh_models_and_nobody_else_sends(machine, seed, workers, steps, period, sampled):
    sampled = min(sampled, workers)
    run = simulate(fedavg.fedavg(integer_gradients(d=3, workers=workers), workers, steps, SGD(0.25), period=period, sampled=sampled),
                   machine, seed)
    ledger(run)
    updates, rounds = run.trace.marks("update"), -(-steps // period)
    assert [e.values["version"] for e in updates] == list(range(rounds))
    for e in updates:
        ranks = [int(w.removeprefix("worker")) for w, _ in e.values["reads"]]
        assert len(ranks) == sampled and ranks == sorted(set(ranks)), "different ones, in their order"
    assert all(tau == 0 for _, tau in run.trace.staleness)
    assert sum(run.trace.bytes_sent.values()) == 2 * sampled * 4 * 3 * rounds
    assert sum(run.trace.iterations.values()) == sampled * steps


def one_round(sampled, deploy=fedavg.fedavg):
    """x after one round, of every draw."""
    found = {}
    problem = constant(lambda rank, t: 2.0**rank, d=1)
    report = explore(lambda: deploy(problem, 4, 1, SGD(0.5), period=1, sampled=sampled),
                     observe=lambda run: found.setdefault(run.trace.marks("update")[0].values["reads"], float(final_parameters(run)[0])))
    assert report.complete
    return found


@pytest.mark.parametrize("sampled", [1, 2, 3])
def test_the_mean_over_all_draws_is_full_participation(sampled):
    """And the variance is that of a sample without replacement; 'explore' has every draw."""
    found = one_round(sampled)
    assert len(found) == math.comb(4, sampled) == len({tuple(reads) for reads in found})
    (whole,) = one_round(4).values()
    assert np.mean([*found.values()]) == pytest.approx(whole)
    moves = [-0.5 * 2.0**rank for rank in range(4)]
    assert np.var([*found.values()]) == pytest.approx((4 - sampled) / (3 * sampled) * np.var(moves))


def test_every_schedule_of_a_small_case():
    for sampled in (1, 2):
        report = explore(lambda m=sampled: fedavg.fedavg(integer_gradients(d=2, workers=2), 2, 2, SGD(0.25), period=1, sampled=m), ledger)
        assert report.complete and report.runs > 1


# -- partial work ----------------------------------------------------------------------------------------------


def hold_partial(deploy):
    """Two clients of a round of three steps that move by 1 each: every pair of steps, weighted by its examples."""
    found = set()

    def observe(run):
        ledger(run)
        (round_,), steps = run.trace.marks("update"), run.trace.iterations
        a, b = steps["worker0"], steps["worker1"]
        assert round_.values["images"] == a + b and {w for w, _ in round_.values["reads"]} == {"worker0", "worker1"}
        assert final_parameters(run)[0] == pytest.approx((a * a + b * b) / (a + b), rel=1e-6)
        found.add((a, b))
    assert explore(lambda: deploy(constant(lambda rank, t: -1.0, d=1), 2, 3, SGD(1.0), period=3, partial=True), observe).complete
    assert found == {(a, b) for a in (1, 2, 3) for b in (1, 2, 3)}


def test_partial_work_is_averaged_and_not_dropped():
    hold_partial(fedavg.fedavg)


@pytest.mark.parametrize(("right", "wrong"), [
    ("yield Send(server, Trained(x, examples, job.version))",  # dropped
     "yield Send(server, Trained(x if done == job.steps else job.x, examples, job.version))"),
    ("examples += problem.images(rank, t)", "examples = sum(problem.images(rank, s) for s in range(job.steps))"),
    ("range(1, job.steps + 1)", "range(2, job.steps + 1)"),
])
def test_wrong_partial_work_is_caught(right, wrong):
    with pytest.raises(AssertionError):
        hold_partial(wrong_deployment(fedavg.fedavg, right, wrong))


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), steps=st.integers(0, 6), sampled=st.integers(1, 3), mu=st.sampled_from([0.0, 0.5]))
def test_a_part_of_one_step_is_the_step(machine, seed, workers, steps, sampled, mu):
    """With H = 1 `partial` changes no bit."""
    both = [final(fedavg.fedavg(ragged(workers), workers, steps, RULE, period=1, sampled=min(sampled, workers), mu=mu, partial=each),
                  machine, seed) if steps else 0 for each in (True, False)]
    assert np.array_equal(*both)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "sampled", "period"), [(2, 2, 3), (4, 4, 5), (6, 3, 8), (8, 8, 2), (3, 1, 7)])
def test_a_round_of_partial_work_waits_for_the_most_steps(workers, sampled, period):
    """E[max] = H - sum_(k<H) (k/H)^m steps, each of 1 s; bytes and updates are those of whole rounds."""
    options = {"period": period, "sampled": sampled, "partial": True}
    machine, steps = Machine(compute="fixed(1)"), 2000 * period
    trace = simulate(fedavg.fedavg(quadratic(d=1, workers=workers), workers, steps, SGD(0.0), **options), machine, observe=1).trace
    most = period - sum((k / period) ** sampled for k in range(period))
    assert trace.seconds / 2000 == pytest.approx(most, rel=0.03)
    p = predict("fedavg", machine, workers=workers, nbytes=4, steps=steps, options=options)
    assert "seconds" in p.open and p["bytes_sent"].value == sum(trace.bytes_sent.values())
    assert p["updates"].value == 2000 == trace.updates["server0"]


# -- times and fixed points ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "sampled", "period", "law", "bandwidth"), [
    (3, 3, 4, "fixed(1)", 100.0), (5, 2, 3, "fixed(0.5)", 200.0), (6, 1, 7, "fixed(2)", 50.0),
    (4, 4, 5, "exponential(1)", math.inf), (7, 3, 2, "lognormal(1,0.4)", 400.0)])
def test_predictions(workers, sampled, period, law, bandwidth):
    """To rounding at fixed times; within 2 %, the noise of 30 runs, at others."""
    machine = Machine(compute=law, latency=0.05, bandwidth=bandwidth, update="fixed(0.1)")
    options = {"period": period, "sampled": sampled}
    p = predict("fedavg", machine, workers=workers, nbytes=40, steps=40, options=options)
    runs = [simulate(fedavg.fedavg(quadratic(workers=workers), workers, 40, SGD(0.1), **options), machine, seed).trace
            for seed in range(1 if law.startswith("fixed") else 30)]
    assert p["seconds"].value == pytest.approx(np.mean([trace.seconds for trace in runs]), rel=0.02 if len(runs) > 1 else 1e-9)
    assert p["updates"].value == -(-40 // period) == runs[0].updates["server0"]
    assert p["bytes_sent"].value == sum(runs[0].bytes_sent.values())
    if law.startswith("fixed"):
        assert p["seconds"].kind == "exact"


@pytest.mark.slow
def test_a_round_of_some_waits_for_the_slowest_of_them():
    """E[max] of m of n fixed times, drawn without replacement: sum_k T_(k) C(k-1, m-1) / C(n, m)."""
    times = np.array([1.0, 2.0, 3.0, 5.0, 8.0])
    machine = Machine(compute="fixed(1)", speeds=tuple(1 / times))
    for sampled in (1, 2, 4):
        expected = sum(t * math.comb(k, sampled - 1) for k, t in enumerate(times)) / math.comb(5, sampled)
        assert expected == pytest.approx(np.mean([max(each) for each in combinations(times, sampled)]))
        trace = simulate(fedavg.fedavg(quadratic(d=1, workers=5), 5, 4000, SGD(0.0), period=1, sampled=sampled), machine, observe=1).trace
        assert trace.seconds / 4000 == pytest.approx(expected, rel=0.03)


DRIFTS = [((1, 3), (0, 1), 0.1, 5, 0.0), ((0.5, 1, 4), (2, -1, 0.5), 0.2, 20, 0.0), ((1, 1, 6), (0, 3, 1), 0.05, 3, 0.7),
          ((2, 0.1), (-1, 4), 0.3, 11, 2.0), ((1, 2, 3, 4), (1, 0, 0, -2), 0.4, 2, 0.0)]


@pytest.mark.parametrize(("curvatures", "optima", "rate", "period", "mu"), DRIFTS)
def test_the_fixed_point_of_clients_that_drift(curvatures, optima, rate, period, mu):
    n, problem = len(curvatures), pulled(curvatures, optima)
    expected = fixed_point(curvatures, optima, rate, period, mu)
    assert final(fedavg.fedavg(problem, n, 400 * period, SGD(rate), period=period, mu=mu), LOCKSTEP)[0] == pytest.approx(expected, rel=1e-6)
    if not mu:
        assert final(local_sgd.local_sgd(problem, n, 400 * period, SGD(rate), period=period), LOCKSTEP)[0] == pytest.approx(expected, rel=1e-6)


def test_drift_is_between_the_optimum_and_the_mean_of_the_optima():
    a, c = (1.0, 3.0), (0.0, 1.0)
    optimum, mean = 0.75, 0.5
    assert fixed_point(a, c, 0.1, 1) == pytest.approx(optimum) and fixed_point(a, c, 0.1, 999) == pytest.approx(mean)
    by_period = [fixed_point(a, c, 0.1, h) for h in (1, 2, 5, 20, 99)]
    by_mu = [fixed_point(a, c, 0.001, 9999, mu) for mu in (0, 0.1, 1, 10, 1000)]
    assert by_period == sorted(by_period, reverse=True) and by_mu == sorted(by_mu)
    assert by_mu[-1] == pytest.approx(optimum, rel=1e-3)


@pytest.mark.parametrize(("rate", "mu", "stable"), [(0.66, 0.0, True), (0.67, 0.0, False), (0.39, 2.0, True), (0.41, 2.0, False)])
def test_clients_are_stable_up_to_a_rate(rate, mu, stable):
    """lr (max a + mu) < 2."""
    x = final(fedavg.fedavg(pulled([3, 3], [1, 2]), 2, 2000, SGD(rate), period=500, mu=mu), LOCKSTEP)
    assert (abs(x[0]) < 2) == stable


# -- wrong ones ------------------------------------------------------------------------------------------------


def test_weights_over_all_clients_are_caught():
    """WRONG: sum over the drawn of n_k/N y_k, with N of all: the model shrinks."""
    wrong = wrong_deployment(fedavg.fedavg, "return models[0].x if len(models) == 1 else x + mean_move(x, models, images), state",
                             "return sum(y.x for y in models) / np.float32(4), state")
    with pytest.raises(AssertionError):
        hold_still(wrong, sampled=2)


@pytest.mark.parametrize(("right", "wrong"), [
    ("Work(shard.x, shard.version, t, min(period, steps - t))", "Work(shard.x, shard.version, 0, min(period, steps - t))"),  # batches
    ("Work(shard.x, shard.version, t, min(period, steps - t))", "Work(shard.x, shard.version, t, period)"),  # the last round
    ("[trained.examples for _, trained in answers]", "[1] * sampled"),  # a mean of means
    ("x, examples = job.x, 0", "x, v, examples = job.x, sgd.start(x), 0")])  # a velocity of each round
def test_a_wrong_round_is_caught(right, wrong):
    with pytest.raises(AssertionError):
        hold_local(wrong_deployment(fedavg.fedavg, right, wrong), FREE, 0, 3, 8, 3)


@pytest.mark.parametrize("wrong", ["g = g + np.float32(mu) * (job.x - x)", "x = x + np.float32(mu) * (x - job.x)", "pass"])
def test_a_wrong_proximal_term_is_caught(wrong):
    """WRONG: the other sign, added to the model, or forgotten by the clients: then it is FedAvg in silence."""
    deploy = wrong_deployment(fedavg.fedavg, "g = g + np.float32(mu) * (x - job.x)", wrong)
    x = final(deploy(pulled([1, 1, 6], [0, 3, 1]), 3, 1200, SGD(0.05), period=3, mu=0.7), LOCKSTEP)[0]
    assert x != pytest.approx(fixed_point([1, 1, 6], [0, 3, 1], 0.05, 3, 0.7), rel=1e-4)


def test_a_draw_that_leaves_clients_out_is_caught():
    wrong = wrong_deployment(fedavg.fedavg, "left.remove((yield Choose(left)))", "left.remove((yield Choose(left[:2])))")
    assert len(one_round(2, wrong)) < math.comb(4, 2)


@pytest.mark.parametrize("options", [{"sampled": 0}, {"sampled": 5}, {"mu": -1.0}, {"mu": math.inf}, {"period": 0}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="expected"):
        fedavg.fedavg(curved(), 4, 1, SGD(0.1), **options)


@pytest.mark.parametrize(("name", "options"), [("fedavg", {"mu": 1.0}), ("fedavg", {"partial": True}), ("fedasync", {"mu": 1.0})])
def test_what_only_later_steps_of_a_job_feel_is_refused_where_there_are_none(name, options):
    with pytest.raises(Usage, match=f"changes nothing of {name} here; expected period > 1$"):
        refsgd.run(name, data="quadratic", workers=2, steps=2, period=1, **options)
