"""What is claimed of SCAFFOLD (Karimireddy et al., ICML 2020)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.federated import fedavg, scaffold
from refsgd.algorithms.federated.clients import Trained, Work
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.effects import Send
from refsgd.problems import integer_gradients, quadratic
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.theory import predict
from tests.drift import fixed_point
from tests.papers.test_fedavg import DRIFTS, pulled
from tests.strategies import machines, seeds
from tests.watching import LOCKSTEP, RANDOM, curved, final, moments
from tests.wrong import wrong_deployment

RULE = SGD(0.1, 0.9, 0.01, StepDecay(3, 0.5))
PLAIN = SGD(0.1)
CHANGE = "control = control + trained.control / np.float32(len(clients))"


def hold_bsp(deploy, sgd, machine=RANDOM, seed=0, workers=4, steps=6):
    problem = curved(workers=workers)
    assert np.allclose(final(deploy(problem, workers, steps, sgd, period=1), machine, seed),
                       final(bsp.bsp(problem, workers, steps, sgd)), rtol=1e-5, atol=1e-5)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6))
def test_with_all_clients_and_rounds_of_one_step_it_is_bsp(machine, seed, workers, steps):
    """Also with momentum: the mean of the velocities is the velocity of the mean."""
    hold_bsp(scaffold.scaffold, RULE, machine, seed, workers, steps)


@given(seed=seeds, steps=st.integers(0, 9), period=st.integers(1, 4), sampled=st.integers(1, 3))
def test_without_its_correction_it_is_fedavg_bit_for_bit(seed, steps, period, sampled):
    frozen = wrong_deployment(scaffold.scaffold, "job.x, job.control - own, np", "job.x, 0 * own, np")
    both = [final(deploy(curved(workers=3), 3, steps, RULE, period=period, sampled=sampled), RANDOM, seed)
            for deploy in (frozen, fedavg.fedavg)]
    assert np.array_equal(*both)


def hold_mean(deploy, sampled, sgd=PLAIN, seed=0):
    """At each work that is sent out c is the mean of the four c_i, and these are what option II computes."""
    own, jobs, found = dict.fromkeys(range(4), 0.0), {}, []  # c_i since the start, by rank

    def told(node, effect, answer):
        if isinstance(effect, Send) and isinstance(effect.body, Work):
            found.append((effect.body.control, sum(own.values()) / 4))
            jobs[effect.to] = effect.body
        elif isinstance(effect, Send) and isinstance(effect.body, Trained):
            rank, job = int(node.removeprefix("worker")), jobs[node]
            before, own[rank] = own[rank], own[rank] + effect.body.control
            moved = (job.x - effect.body.x) / (job.steps * np.float32(sgd.lr))
            assert sgd.momentum or np.allclose(own[rank], before - job.control + moved, atol=1e-4), "option II"

    problem = curved()
    problem.x0[:] = 1.0
    for programs in moments(deploy(problem, 4, 15, sgd, period=3, sampled=sampled), told, RANDOM, seed):
        if not any(isinstance(own[rank], np.ndarray) for rank in range(4)):
            start = np.mean([programs[f"worker{rank}"].local["own"] for rank in range(4)], axis=0)
    assert found and all(np.allclose(c, start + mean, atol=1e-5) for c, mean in found)


@given(seed=seeds, sampled=st.integers(1, 4), momentum=st.sampled_from([0.0, 0.9]))
def test_the_server_has_the_mean_of_all_clients_gradients(seed, sampled, momentum):
    """Under any draw; and c_i is what option II computes, where there is no momentum."""
    hold_mean(scaffold.scaffold, sampled, SGD(0.1, momentum), seed)


def hold_optimum(deploy, sampled=None, sgd=PLAIN):
    for curvatures, optima, _, period, _ in DRIFTS:
        n, problem = len(curvatures), pulled(curvatures, optima)
        x = final(deploy(problem, n, 600 * period, sgd, period=period, sampled=sampled), LOCKSTEP)[0]
        assert x == pytest.approx(np.average(optima, weights=curvatures), abs=1e-6)


@pytest.mark.parametrize(("sampled", "momentum"), [(None, 0.0), (1, 0.0), pytest.param(None, 0.5, marks=pytest.mark.slow)])
def test_the_fixed_point_is_the_optimum_for_every_h(sampled, momentum):
    """Where FedAvg's is not."""
    hold_optimum(scaffold.scaffold, sampled, SGD(0.05 if momentum else 0.1, momentum))
    with pytest.raises(AssertionError):
        hold_optimum(fedavg.fedavg, sampled)


def test_fedavg_drifts_where_scaffold_does_not():
    drifted = [abs(fixed_point((1, 3), (0, 1), 0.1, period) - 0.75) for period in (1, 10, 50)]
    assert drifted[0] < 1e-12 and drifted == sorted(drifted) and drifted[-1] > 0.2


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), steps=st.integers(0, 7), period=st.integers(1, 4), sampled=st.integers(1, 4))
def test_it_sends_twice_the_bytes_of_fedavg(machine, seed, workers, steps, period, sampled):
    sent = []
    for deploy in (scaffold.scaffold, fedavg.fedavg):
        run = simulate(deploy(integer_gradients(d=3, workers=workers), workers, steps, SGD(0.25), period=period,
                              sampled=min(sampled, workers)), machine, seed)
        ledger(run)
        sent.append(sum(run.trace.bytes_sent.values()))
        assert all(tau == 0 for _, tau in run.trace.staleness)
    assert sent[0] == 2 * sent[1]


@pytest.mark.parametrize(("workers", "sampled", "period", "law", "bandwidth"), [
    (3, 3, 4, "fixed(1)", 100.0), (5, 2, 3, "fixed(0.5)", 200.0), (6, 1, 7, "fixed(2)", 50.0),
    (4, 4, 5, "exponential(1)", math.inf), (8, 4, 1, "fixed(0.2)", 1000.0)])
def test_predictions(workers, sampled, period, law, bandwidth):
    """Those of FedAvg with messages of 2 M; within 2 %, the noise of 30 runs, at random times."""
    machine = Machine(compute=law, latency=0.05, bandwidth=bandwidth)
    options = {"period": period, "sampled": sampled}
    p = predict("scaffold", machine, workers=workers, nbytes=40, steps=40, options=options)
    runs = [simulate(scaffold.scaffold(quadratic(workers=workers), workers, 40, SGD(0.1), **options), machine, seed).trace
            for seed in range(1 if law.startswith("fixed") else 30)]
    assert p["seconds"].value == pytest.approx(np.mean([trace.seconds for trace in runs]), rel=0.02 if len(runs) > 1 else 1e-9)
    assert p["bytes_sent"].value == sum(runs[0].bytes_sent.values())


def test_every_schedule_of_a_small_case():
    for sampled in (1, 2):
        report = explore(lambda m=sampled: scaffold.scaffold(integer_gradients(d=2, workers=2), 2, 2, SGD(0.25), period=1, sampled=m), ledger)
        assert report.complete and report.runs > 1


# -- wrong ones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "wrong"), [
    (CHANGE, CHANGE.replace("len(clients)", "1")),  # a sum in place of a mean
    (CHANGE, CHANGE.replace("len(clients)", "len(answers)")),  # the drawn ones' mean
    ("np.zeros_like(problem.x0)", "problem.x0")])  # c_i begins at the parameters
def test_a_wrong_mean_is_caught(right, wrong):
    with pytest.raises(AssertionError), np.errstate(all="ignore"):
        hold_mean(wrong_deployment(scaffold.scaffold, right, wrong), 2)


@pytest.mark.parametrize("sampled", [2, 4])
def test_c_and_all_c_i_at_the_parameters_is_wrong_until_everyone_has_taken_part(sampled):
    """WRONG, as in a public baseline: c is the mean of all c_i all the same, but some of these are no gradients."""
    wrong = wrong_deployment(scaffold.scaffold, "np.zeros_like(problem.x0)", "problem.x0")
    other = wrong_deployment(scaffold.scaffold, "np.zeros_like(shard.x)", "shard.x")
    wrong.__globals__["server"] = other.__globals__["server"]
    hold_mean(wrong, sampled)
    problem = curved()
    problem.x0[:] = 1.0
    ends = [final(deploy(problem, 4, 12, SGD(0.1), period=3, sampled=sampled)) for deploy in (scaffold.scaffold, wrong)]
    assert np.allclose(*ends, atol=1e-5) == (sampled == 4)


@pytest.mark.parametrize("wrong", ["g - shift", "g + job.control", "g"])
def test_a_wrong_correction_is_caught(wrong):
    with pytest.raises(AssertionError), np.errstate(all="ignore"):
        hold_optimum(wrong_deployment(scaffold.scaffold, "g + shift", wrong))


def test_the_formula_of_the_paper_is_no_mean_gradient_with_momentum():
    """WRONG with momentum: c_i from the move; without momentum it is the same."""
    formula = wrong_deployment(scaffold.scaffold, "mean = total / np.float32(job.steps)",
                               "mean = own - job.control + (job.x - x) / np.float32(job.steps * sgd.lr)")
    hold_optimum(formula)
    problem, rule = curved(), SGD(0.05, 0.9)
    ours, theirs = (final(deploy(problem, 4, 60, rule, period=5, sampled=2)) for deploy in (scaffold.scaffold, formula))
    assert np.abs(ours).max() < 3 and not np.allclose(ours, theirs, atol=0.1)


@pytest.mark.parametrize("options", [{"sampled": 0}, {"sampled": 5}, {"period": 0}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="expected"):
        scaffold.scaffold(curved(), 4, 1, SGD(0.1), **options)
