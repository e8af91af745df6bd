"""What is claimed of FedBuff (Nguyen et al., AISTATS 2022) and of FedAsync (Xie et al. 2019)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.federated import any_time, fedasync, fedbuff
from refsgd.algorithms.federated.clients import Trained, Work
from refsgd.algorithms.server import asp, softsync
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.theory import predict
from tests.drift import largest_step
from tests.papers.test_fedavg import pulled, still
from tests.strategies import machines, seeds
from tests.watching import FREE, LOCKSTEP, RANDOM, curved, final, moments
from tests.wrong import wrong_deployment

BOTH = (fedbuff.fedbuff, fedasync.fedasync)
PLAIN = {"weight": "constant", "period": 1}


def reads(trace):
    return [e.values["reads"] for e in trace.marks("update")]


# -- limits ----------------------------------------------------------------------------------------------------


def hold_softsync(deploy, seed, workers, steps, size):
    problem, sgd = curved(workers=workers), SGD(0.1)
    a = simulate(deploy(problem, workers, steps, sgd, buffer=size, **PLAIN), FREE, seed)
    b = simulate(softsync.softsync(problem, workers, steps, sgd, splitting=workers // size), FREE, seed)
    assert reads(a.trace) == reads(b.trace) and np.allclose(final_parameters(a), final_parameters(b), rtol=1e-4, atol=1e-5)


@given(seed=seeds, workers=st.sampled_from([1, 2, 4, 6]), steps=st.integers(0, 8), size=st.sampled_from([1, 2]))
def test_with_jobs_of_one_step_it_is_softsync_to_the_end(seed, workers, steps, size):
    """The same reads; with c = K = 1 it is ASP."""
    hold_softsync(fedbuff.fedbuff, seed, workers, steps, min(size, workers))


@given(seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 8))
def test_with_k_1_and_jobs_of_one_step_it_is_asp(seed, workers, steps):
    problem = curved(workers=workers)
    a, b = (simulate(deployment, FREE, seed) for deployment in (
        fedbuff.fedbuff(problem, workers, steps, SGD(0.1), buffer=1, **PLAIN), asp.asp(problem, workers, steps, SGD(0.1))))
    assert reads(a.trace) == reads(b.trace) and np.allclose(final_parameters(a), final_parameters(b), rtol=1e-4, atol=1e-5)


@given(seed=seeds, steps=st.integers(0, 8), period=st.integers(1, 3), momentum=st.sampled_from([0.0, 0.9]))
def test_one_client_is_sequential_sgd(seed, steps, period, momentum):
    """FedAsync with full mixing bit for bit; FedBuff to rounding, because it adds a difference."""
    problem, sgd = curved(workers=1), SGD(0.1, momentum, 0.01)
    alone = final(sequential.sequential(problem, 1, steps, sgd))
    assert np.array_equal(final(fedasync.fedasync(problem, 1, steps, sgd, period=period, mixing=1.0), RANDOM, seed), alone)
    assert np.allclose(final(fedbuff.fedbuff(problem, 1, steps, sgd, period=period), RANDOM, seed), alone, rtol=1e-5, atol=1e-6)


def test_fedbuff_with_one_client_has_not_always_the_bits_of_sequential_sgd():
    problem = Problem(np.float32([0.08]), lambda x, rank, t: np.float32([0.33]), lambda x: 0.0)
    alone = final(sequential.sequential(problem, 1, 1, SGD(1.0)))
    assert final(fedbuff.fedbuff(problem, 1, 1, SGD(1.0), period=1)) == pytest.approx(alone) and not np.array_equal(
        final(fedbuff.fedbuff(problem, 1, 1, SGD(1.0), period=1)), alone)


@pytest.mark.parametrize("workers", [1, 4])
def test_fedbuff_with_k_1_is_not_fedasync(workers):
    """They agree only at staleness 0: one adds the client's move, the other goes to its model."""
    problem, options = curved(workers=workers), {"weight": "constant", "period": 2}
    a, b = (simulate(deployment, RANDOM) for deployment in (
        fedbuff.fedbuff(problem, workers, 12, SGD(0.1), buffer=1, **options),
        fedasync.fedasync(problem, workers, 12, SGD(0.1), mixing=1.0, **options)))
    assert reads(a.trace) == reads(b.trace)
    a, b = (np.array([e.values["x"] for e in run.trace.marks("update")]) for run in (a, b))
    assert np.abs(a - b).max() < 1e-5 if workers == 1 else np.abs(a - b).max() > 0.3


# -- what happens to the work ----------------------------------------------------------------------------------


def worked(deploy, seed, **options):
    """The last model of a run of four clients, and for each model that came: what was read, the model, its staleness."""
    jobs, seen, version = {}, [], 0

    def told(node, effect, answer):
        nonlocal version
        if isinstance(effect, Send) and isinstance(effect.body, Work):
            jobs[effect.to], version = effect.body, effect.body.version
        elif isinstance(effect, Recv) and node == "server0" and isinstance(answer[1], Trained):
            seen.append((jobs[answer[0]].x, answer[1].x, answer[0], jobs[answer[0]].version))

    *_, programs = moments(deploy(curved(), 4, 9, SGD(0.1), period=2, **options), told, RANDOM, seed)
    return programs["server0"].value, seen


@given(seed=seeds, size=st.integers(1, 7), concurrency=st.integers(1, 4), rate=st.sampled_from([0.5, 1.0]))
def test_fedbuff_keeps_all_work(seed, size, concurrency, rate):
    """x = x0 + rate/K times the sum of all moves, each with its weight; the last update may have fewer than K."""
    x, seen = worked(fedbuff.fedbuff, seed, buffer=size, concurrency=concurrency, outer_lr=rate)
    total = np.zeros(6)
    for k in range(0, len(seen), size):
        moves = [(y - read) / math.sqrt(1 + k // size - version) for read, y, _, version in seen[k:k + size]]
        total += rate * np.mean(moves, axis=0)
    assert len(seen) == 4 * 5 and np.allclose(x, total, atol=1e-5)


@given(seed=seeds, mixing=st.sampled_from([0.3, 1.0]), weight=st.sampled_from(["constant", "polynomial", "hinge"]))
def test_fedasync_stays_among_the_models_that_came(seed, mixing, weight):
    """Its model is a weighted mean of the start and of clients' models."""
    x, seen = worked(fedasync.fedasync, seed, mixing=mixing, weight=weight)
    models = np.array([np.zeros(6), *(y for _, y, _, _ in seen)])
    assert (models.min(axis=0) - 1e-6 <= x).all() and (x <= models.max(axis=0) + 1e-6).all()


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 7), period=st.integers(1, 4), size=st.integers(1, 4),
       concurrency=st.integers(1, 5))
def test_all_steps_are_done_by_at_most_c_clients_at_a_time(machine, seed, workers, steps, period, size, concurrency):
    run = simulate(fedbuff.fedbuff(integer_gradients(d=3, workers=workers), workers, steps, SGD(0.25), period=period, buffer=size,
                                   concurrency=min(concurrency, workers)), machine, seed)
    ledger(run)
    jobs = workers * -(-steps // period)
    found = reads(run.trace)
    assert [len(each) for each in found] == [size] * (jobs // size) + [jobs % size] * (jobs % size > 0)
    assert all([*each] == sorted(each, key=lambda pair: int(pair[0].removeprefix("worker"))) for each in found), "in worker order"
    assert [*run.trace.iterations.values()] == [steps] * workers or not steps
    assert sum(run.trace.bytes_sent.values()) == 2 * 4 * 3 * jobs
    out = 0
    for e in run.trace.events:
        out += getattr(e, "message", "") == "Work" and e.kind == "send"
        out -= getattr(e, "message", "") == "Trained" and e.kind == "receive"
        assert out <= concurrency


@pytest.mark.parametrize("deploy", BOTH)
def test_without_gradients_every_bit_stays(deploy):
    assert np.array_equal(final(deploy(still(), 4, 9, SGD(0.1), period=2)), still().x0)


# -- staleness and stability -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "concurrency", "size", "speeds"), [
    (6, 6, 1, ()), (6, 3, 1, ()), (8, 5, 2, ()), (5, 5, 3, (4, 1, 1, 1, 0.5)), (7, 2, 4, (3, 1, 1, 1, 1, 1, 1))])
def test_the_mean_staleness_is_c_minus_1_over_k_at_any_speeds(workers, concurrency, size, speeds):
    """Within 2 % while all clients have steps left."""
    trace = simulate(fedbuff.fedbuff(integer_gradients(d=1, workers=workers), workers, 6000, SGD(0.0), period=2, buffer=size,
                                     concurrency=concurrency), FREE.with_(speeds=speeds), 1, observe=1).trace
    updates = trace.marks("update")
    tau = [e.values["version"] - version for e in updates[:len(updates) // 3] for _, version in e.values["reads"]]
    assert np.mean(tau) == pytest.approx((concurrency - 1) / size, rel=0.02)


@pytest.mark.parametrize(("workers", "size", "period", "law"), [
    (4, 1, 3, "exponential(1)"), (3, 3, 2, "fixed(1)"), (2, 1, 7, "exponential(1)"),
    *(pytest.param(*each, marks=pytest.mark.slow) for each in ((6, 2, 8, "exponential(1)"), (8, 4, 5, "lognormal(1,0.5)")))])
def test_predictions(workers, size, period, law):
    """The staleness within 3 %."""
    machine = Machine(compute=law)
    p = predict("fedbuff", machine, workers=workers, nbytes=4, steps=400, options={"period": period, "buffer": size})
    runs = [simulate(fedbuff.fedbuff(integer_gradients(d=1, workers=workers), workers, 400, SGD(0.0), period=period, buffer=size),
                     machine, seed).trace for seed in range(6)]
    assert p["updates"].value == runs[0].updates["server0"] and p["bytes_sent"].value == sum(runs[0].bytes_sent.values())
    assert p["staleness_mean"].value == pytest.approx(np.mean([tau for trace in runs for _, tau in trace.staleness]), rel=0.03)


def far(deploy, workers, period, lr, jobs, **options):
    """How far the model is from the optimum of clients that take turns, so that the delay is n - 1."""
    problem = pulled([1.0] * workers, [1.0] * workers)
    x = final(deploy(problem, workers, jobs * period, SGD(lr), period=period, weight="constant", **options), LOCKSTEP)
    return abs(float(x[0]) - 1)


@pytest.mark.parametrize(("workers", "period", "lr"), [(2, 1, 0.9), (3, 2, 0.4), (4, 5, 0.2), (6, 3, 0.5), (9, 1, 0.7)])
def test_fedbuff_converges_up_to_a_rate_and_fedasync_at_every_delay(workers, period, lr):
    limit = largest_step(workers - 1) / (1 - (1 - lr)**period)
    with np.errstate(all="ignore"):
        below, above = (far(fedbuff.fedbuff, workers, period, lr, 1500 // workers, buffer=1, outer_lr=limit * part) for part in (0.93, 1.07))
    assert below < 0.1 and not above < 10
    assert all(far(fedasync.fedasync, workers, period, lr, 200, mixing=mixing) < 1e-3 for mixing in (0.5, 1.0))


def test_full_moves_of_clients_at_their_optima_swing_from_a_delay_of_one():
    assert largest_step(1) == pytest.approx(1.0) and largest_step(0) == 2.0 and largest_step(2) < 1


def test_eight_clients_whose_moves_are_too_large_converge_once_four_are_averaged():
    """H = 40 steps at 0.05, rate 0.5: 0.44 of the distance, above the limit of 0.21 at a delay of 7."""
    assert 2 * largest_step(7) < 0.5 * (1 - 0.95**40)
    with np.errstate(all="ignore"):
        assert not far(fedbuff.fedbuff, 8, 40, 0.05, 60, buffer=1, outer_lr=0.5) < 100
    assert far(fedbuff.fedbuff, 8, 40, 0.05, 60, buffer=4, outer_lr=0.5) < 1e-3
    assert far(fedasync.fedasync, 8, 40, 0.05, 60, mixing=0.5) < 1e-3


def test_weights_fall_with_staleness():
    assert [any_time.weighted(tau, "constant") for tau in (0, 9)] == [1, 1]
    assert [any_time.weighted(tau, "polynomial") for tau in (0, 3, 8)] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [any_time.weighted(tau, "hinge") for tau in (0, 4, 5, 6)] == pytest.approx([1, 1, 1 / 11, 1 / 21])


@pytest.mark.parametrize("deploy", BOTH)
def test_every_schedule_of_a_small_case(deploy):
    for steps, concurrency in ((2, 1), (2, 2)):
        report = explore(lambda c=concurrency, t=steps: deploy(integer_gradients(d=2, workers=2), 2, t, SGD(0.25), period=1, concurrency=c),
                         ledger)
        assert report.complete and report.runs > 1


@pytest.mark.parametrize("concurrency", [2, 4])
def test_the_server_asks_others_when_a_client_has_died(concurrency):
    result = refsgd.run("fedbuff", data="quadratic", workers=4, steps=8, period=2, concurrency=concurrency, lr=0.05,
                        machine=Machine(compute="exponential(1)"), on_death="continue", faults=["kill worker 1 at step 3"])
    assert {w: n for w, n in result.trace.iterations.items() if w != "worker1"} == {"worker0": 8, "worker2": 8, "worker3": 8}


# -- wrong ones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "wrong"), [
    ("(y.x - read)", "(y.x - x)"),  # the direction of FedAsync
    ("if len(kept) == size or (kept and not jobs and not ready):", "if len(kept) == size:"),  # the last moves are lost
    ("message, job.x, rate", "message, 0 * job.x, rate")])
def test_a_wrong_move_is_caught(right, wrong):
    with pytest.raises(AssertionError):
        hold_softsync(wrong_deployment(fedbuff.fedbuff, right, wrong), 0, 5, 7, 2)


@pytest.mark.parametrize("wrong", ["1.0", "rate * weighted(done[w], weight)", "rate * weighted(shard.version, weight)"])
def test_wrong_weights_are_caught(wrong):
    """WRONG: none; by the client's steps; by the age of the model."""
    deploy = wrong_deployment(fedbuff.fedbuff, "rate * weighted(shard.version - message.version, weight)", wrong)
    right, found = (worked(each, 3, buffer=2)[0] for each in (fedbuff.fedbuff, deploy))
    assert not np.allclose(right, found, atol=1e-4)


def test_sums_in_the_order_of_arrival_are_caught():
    wrong = wrong_deployment(fedbuff.fedbuff, "kept.sort(", "sorted(kept, ")
    trace = simulate(wrong(curved(), 4, 9, SGD(0.1), period=2, buffer=3), RANDOM).trace
    assert any([*each] != sorted(each) for each in reads(trace))


def test_a_fedasync_that_adds_moves_is_caught():
    """WRONG: then it is FedBuff, and diverges at a delay."""
    with np.errstate(all="ignore"):
        wrong = wrong_deployment(fedasync.fedasync, "np.float32(rate) * (y - x)", "np.float32(rate) * (y - reads[0])")
        assert not far(wrong, 8, 40, 0.05, 60, mixing=0.5) < 100


@pytest.mark.parametrize(("deploy", "options"), [
    (fedbuff.fedbuff, {"buffer": 0}), (fedbuff.fedbuff, {"outer_lr": 0.0}), *[(each, {"concurrency": 5}) for each in BOTH],
    *[(each, {"period": 0}) for each in BOTH], *[(each, {"weight": "linear"}) for each in BOTH],
    (fedasync.fedasync, {"mixing": 1.1}), (fedasync.fedasync, {"mixing": 0.0})])
def test_wrong_options_are_named(deploy, options):
    with pytest.raises(ValueError, match="expected"):
        deploy(curved(), 4, 1, SGD(0.1), **options)
