"""What is claimed of the K-family (Dutta et al., AISTATS 2018) and of Rennala SGD (Tyurin and Richtarik, NeurIPS 2023)."""

import inspect
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.server import asp, backup_workers, bsp, k_async, k_sync, rennala, softsync
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.theory import predict
from tests.strategies import machines, seeds
from tests.watching import FREE, LOCKSTEP, RANDOM, constant, curved, final, ragged, steady
from tests.wrong import wrong_deployment

FAMILY = (k_async.k_async, k_sync.k_sync, rennala.rennala)
RULE = SGD(0.1, 0.9, 0.01, StepDecay(3, 0.5))


def k_batch_async(problem, workers, steps, sgd, gradients):
    """The fourth of the family, which the catalogue has as softsync."""
    return k_async.of_one_server(problem, workers, steps, sgd, gradients, math.inf, repeat=True)


def same(one, other, machine, seed):
    """Whether two deployments have the same bits, the same schedule and the same staleness."""
    a, b = simulate(one, machine, seed), simulate(other, machine, seed)
    return (np.array_equal(final_parameters(a), final_parameters(b)) and a.trace.seconds == b.trace.seconds
            and a.trace.staleness == b.trace.staleness)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6))
def test_the_bridge_from_asp_to_bsp(machine, seed, workers, steps):
    """K = 1 is ASP and K = n is BSP, bit for bit, with momentum, weight decay and a schedule."""
    problem, arguments = curved(workers=workers), (workers, steps, RULE)
    assert same(k_async.k_async(problem, *arguments, gradients=1), asp.asp(problem, *arguments), machine, seed)
    assert same(k_batch_async(problem, *arguments, gradients=1), asp.asp(problem, *arguments), machine, seed)
    for method in (k_async.k_async, k_sync.k_sync):
        assert same(method(problem, *arguments, gradients=workers), bsp.bsp(problem, *arguments), machine, seed)
    assert same(k_sync.k_sync(problem, *arguments, gradients=1), rennala.rennala(problem, *arguments, gradients=1), machine, seed)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), split=st.integers(1, 5), steps=st.integers(0, 6))
def test_with_answers_at_once_it_is_softsync(machine, seed, workers, split, steps):
    split, problem = min(split, workers), ragged(workers)
    assert same(k_batch_async(problem, workers, steps, RULE, workers // split),
                softsync.softsync(problem, workers, steps, RULE, splitting=split), machine, seed)


@pytest.mark.parametrize("seed", range(3))
def test_rennala_of_n_is_not_bsp(seed):
    """A fast worker counts twice where a slow one is late."""
    problem = curved()
    for other in (k_batch_async(problem, 4, 12, SGD(0.1), 4), rennala.rennala(problem, 4, 12, SGD(0.1))):
        assert not same(other, bsp.bsp(problem, 4, 12, SGD(0.1)), RANDOM, seed)


def test_k_sync_is_backup_workers_until_the_ends():
    """They read the same, where a gradient does not depend on its step; a late worker's steps differ."""
    problem = constant(lambda rank, t: 1.0 + rank)
    ours, theirs = (simulate(deployment, FREE, 2).trace for deployment in (
        k_sync.k_sync(problem, 5, 60, SGD(0.1), gradients=3), backup_workers.backup_workers(problem, 5, 60, SGD(0.1), backups=2)))
    ours, theirs = ([e.values["reads"] for e in trace.marks("update")] for trace in (ours, theirs))
    assert ours[:30] == theirs[:30] and len(theirs) == 60 < len(ours)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), size=st.integers(1, 5), steps=st.integers(0, 7),
       method=st.sampled_from(FAMILY))
def test_every_gradient_is_used_or_dropped_and_sums_are_in_worker_order(machine, seed, workers, size, steps, method):
    size = min(size, workers)
    run = simulate(method(integer_gradients(d=7, workers=workers), workers, steps, SGD(0.25), gradients=size), machine, seed)
    ledger(run)
    trace = run.trace
    updates = [e.values["reads"] for e in trace.marks("update")]
    assert sum(map(len, updates)) + len(trace.marks("drop")) == workers * steps
    ranks = [[int(w.removeprefix("worker")) for w, _ in reads] for reads in updates]
    assert all(each == sorted(each) for each in ranks)
    if method is not rennala.rennala:
        assert all(len(set(each)) == len(each) for each in ranks), "at most one gradient of a worker"
    if method is not k_async.k_async:
        assert all(tau == 0 for _, tau in trace.staleness), "only gradients at the current model"
    else:
        assert not trace.marks("drop")


@pytest.mark.slow
@pytest.mark.parametrize("speeds", [(), (3, 1, 1, 0.5, 1, 1)])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_update_makes_the_reads_of_the_others_older(size, speeds):
    """Sum of staleness + ages outstanding = (n - K) x updates, at any speeds, while all workers go on."""
    trace = simulate(k_async.k_async(integer_gradients(d=1, workers=6), 6, 2000, SGD(0.0), gradients=size),
                     FREE.with_(speeds=speeds), 1, observe=1).trace
    _, updates, _ = steady(trace)
    read, total = dict.fromkeys(trace.workers, 0), 0
    for e in updates:
        for w, version in e.values["reads"]:
            total += e.values["version"] - version
            read[w] = e.values["version"] + 1
    # a worker of an update reads the model after it
    assert total + sum(len(updates) - version for version in read.values()) == (6 - size) * len(updates)


SETTINGS = [(4, 2), (6, 3), (8, 3), (8, 5), (12, 10)]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "size"), SETTINGS)
@pytest.mark.parametrize("name", ["k-async", "k-sync", "rennala"])
def test_predictions_of_long_runs(name, workers, size):
    """Within 2 % until the first worker ends; at the end of a run, which formulas leave out, fewer are left."""
    method = dict(zip(("k-async", "k-sync", "rennala"), FAMILY, strict=True))[name]
    p = predict(name, FREE, workers=workers, steps=4000, nbytes=4, options={"gradients": size})
    trace = simulate(method(integer_gradients(d=1, workers=workers), workers, 4000, SGD(0.0), gradients=size), FREE, 1,
                     observe=1).trace
    end, updates, dropped = steady(trace)
    computed = sum(len(e.values["reads"]) for e in updates) + len(dropped)
    tau = [e.values["version"] - version for e in updates for _, version in e.values["reads"]]
    assert p["seconds_per_iteration"].value == pytest.approx(workers * end / computed, rel=0.02)
    assert workers * 4000 / p["updates"].value == pytest.approx(computed / len(updates), rel=0.02)
    assert p["staleness_mean"].value == pytest.approx(np.mean(tau), rel=0.02)
    assert p["bytes_sent"].value == sum(trace.bytes_sent.values())


@pytest.mark.parametrize("method", FAMILY)
def test_every_schedule_of_a_small_case(method):
    """No deadlock at the end, where fewer than K workers have a gradient left."""
    for workers, steps, size in ((3, 1, 2), (2, 2, 2), (2, 2, 1)):
        report = explore(lambda n=workers, t=steps, k=size: method(integer_gradients(d=2, workers=n), n, t, SGD(0.25), gradients=k),
                         ledger)
        assert report.complete and report.runs > 1


# -- AdaSync -----------------------------------------------------------------------------------------------------


def falling(noise=0.3, **of):
    """A loss that falls from 45 to about 0; its workers have one quadratic."""
    q = quadratic(d=10, workers=1, noise=noise, **of)
    return Problem(q.x0 + q.x0.dtype.type(3), q.gradient, q.loss)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6), method=st.sampled_from(FAMILY))
def test_without_adaptation_or_a_loss_that_falls_k_is_fixed_bit_for_bit(machine, seed, workers, steps, method):
    """A K of n stays BSP in K-async and K-sync, whatever the loss does."""
    problem, size = curved(workers=workers), (workers + 1) // 2
    flat = Problem(problem.x0, problem.gradient, lambda x: 1.0)
    for how, interval in ((problem, math.inf), (problem, workers * steps + 1), (flat, 1)):
        assert same(method(how, workers, steps, RULE, gradients=size, interval=interval),
                    method(problem, workers, steps, RULE, gradients=size), machine, seed)
    if method is not rennala.rennala:
        assert same(method(falling(), workers, steps, RULE, gradients=workers, interval=1), bsp.bsp(falling(), workers, steps, RULE),
                    machine, seed)


def hold_sizes(deploy, first, interval, **of):
    """K of all updates but those of the end are the rule's, from the losses that the run had; K never falls."""
    problem = falling(**of)
    run = simulate(deploy(problem, 6, 40, SGD(0.1), gradients=first, interval=interval), FREE, observe=10**9)
    ledger(run)
    _, updates, _ = steady(run.trace)
    size, repeats = first, inspect.getmodule(deploy).__name__.endswith("rennala")
    for u, e in enumerate(updates[:-1], 1):
        assert len(e.values["reads"]) == (size if repeats else min(size, 6)), u
        if u % interval == 0:
            left = min(1.0, problem.loss(e.values["x"]) / problem.loss(problem.x0))
            size = max(size, math.ceil(first / math.sqrt(left)))
    assert size > first


@pytest.mark.parametrize("method", FAMILY)
@pytest.mark.parametrize(("first", "interval"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_k_rises_as_the_loss_falls_and_never_falls(method, first, interval):
    hold_sizes(method, first, interval)
    hold_sizes(method, first, interval, noise=8.0)  # the loss goes up and down


@pytest.mark.parametrize("method", FAMILY)
def test_every_schedule_of_a_k_that_rises(method):
    for workers, steps in ((2, 2), (3, 1)):
        assert explore(lambda n=workers, t=steps: method(falling(noise=0.0, dtype=np.float64), n, t, SGD(0.5), gradients=1, interval=1),
                       ledger).complete


def test_formulas_say_what_does_not_depend_on_the_loss():
    options = {"gradients": 2, "interval": 1}
    for name in ("k-async", "k-sync", "rennala"):
        p = predict(name, FREE, workers=4, steps=100, nbytes=4, options=options)
        assert "updates" in p.open and p["bytes_sent"].value == 4 * 100 * 2 * 4
    assert predict("k-sync", FREE, workers=4, steps=9, options=options)["staleness_max"].value == 0
    assert predict("rennala", FREE, workers=4, steps=9, options=options)["seconds"].value == predict(
        "asp", FREE, workers=4, steps=9)["seconds"].value
    assert "updates" in predict("rennala", FREE, workers=1, steps=9, options=options).open
    assert "staleness_mean" in predict("k-async", FREE, workers=4, steps=9, options={"gradients": 1, "interval": 1}).open


@pytest.mark.parametrize("scale", [1e-3, 1e-2])
def test_the_rule_minimises_the_bound_where_an_update_takes_k_gradients(scale):
    """2 F E[T(K)]/(rate t) + rate L s2/K: E[T] = K/n (K-batch-async), up to a constant (Rennala), has K as 1/sqrt(F).  Of
    exponential times with E[T] = H_n - H_(n-K) it is K^2/(n - K) that goes as 1/F: K rises less near n."""
    k = np.linspace(1, 15.9, 200_000)
    for loss in (1.0, 0.25):
        batch = k[(loss * k / 16 + scale / k).argmin()]
        assert batch == pytest.approx(max(1, math.sqrt(16 * scale / loss)), rel=1e-3)
        some = k[(loss * np.log(16 / (16 - k)) + 16 * scale / k).argmin()]
        assert some == 1 or some**2 / (16 - some) == pytest.approx(16 * scale / loss, rel=1e-2)


@pytest.mark.parametrize(("right", "wrong"), [
    ("return max(number, math.ceil(first / math.sqrt(left)))", "return math.ceil(first / math.sqrt(left))"),  # K falls again
    ("math.ceil(first / math.sqrt(left))", "math.ceil(number / math.sqrt(left))"),  # of the current K
    ("math.ceil(first / math.sqrt(left))", "math.ceil(first / left)"),
    ("math.ceil(first / math.sqrt(left))", "math.ceil(first * math.sqrt(left))"),  # AdaComm's
])
def test_a_wrong_rule_of_adasync_is_caught(right, wrong):
    deploy = wrong_deployment(k_async.k_async, right, wrong)
    with pytest.raises(AssertionError):
        hold_sizes(deploy, 1, 1)
        hold_sizes(deploy, 1, 1, noise=8.0)


@pytest.mark.parametrize("interval", [0, 1.5, math.nan])
def test_a_wrong_interval_is_named(interval):
    with pytest.raises(ValueError, match="interval"):
        k_sync.k_sync(curved(), 4, 1, SGD(0.1), interval=interval)


# -- wrong ones ------------------------------------------------------------------------------------------------


def test_a_k_async_that_answers_at_once_is_caught():
    """WRONG: it is softsync; K = n is not BSP, and the mean staleness is (n - 1)/K."""
    wrong = wrong_deployment(k_async.k_async, "if repeat or not kept:", "if True:")
    problem = curved()
    assert not same(wrong(problem, 4, 6, SGD(0.1), gradients=4), bsp.bsp(problem, 4, 6, SGD(0.1)), RANDOM, 0)


def test_a_wait_for_k_that_will_never_come_is_caught():
    """WRONG: at the end of the run the last worker waits for ever."""
    wrong = wrong_deployment(k_async.k_async, "if len(kept) == size or (kept and not more):", "if len(kept) == size:")
    with pytest.raises(Exception, match="deadlock"):
        explore(lambda: wrong(integer_gradients(d=2, workers=3), 3, 1, SGD(0.25), gradients=2), ledger)


def test_sums_in_the_order_of_arrival_are_caught():
    """WRONG: K = n is BSP only if sums have one order."""
    wrong = wrong_deployment(k_async.k_async, "kept.sort(", "sorted(kept, ")
    problem = curved()
    assert any(not same(wrong(problem, 4, 6, SGD(0.1), gradients=4), bsp.bsp(problem, 4, 6, SGD(0.1)), RANDOM, seed)
               for seed in range(3))


def test_a_rennala_that_takes_old_gradients_is_caught():
    wrong = wrong_deployment(k_async.k_async, "if fresh and message.version < shard.version:", "if False:")
    trace = simulate(wrong(curved(), 4, 12, SGD(0.1), gradients=2), RANDOM).trace
    assert max(tau for _, tau in trace.staleness) > 0


@pytest.mark.parametrize(("method", "size"), [(k_async.k_async, 5), (k_sync.k_sync, 0), (rennala.rennala, 0)])
def test_a_wrong_number_is_named(method, size):
    with pytest.raises(ValueError, match="expected"):
        method(curved(), 4, 1, SGD(0.1), gradients=size)


def test_more_gradients_than_workers_are_possible_in_rennala():
    run = simulate(rennala.rennala(curved(), 2, 6, SGD(0.1), gradients=3), Machine(compute="fixed(1)", speeds=(5, 1)))
    assert {len(e.values["reads"]) for e in run.trace.marks("update")} <= {1, 2, 3}
    assert np.isfinite(final(rennala.rennala(curved(), 2, 6, SGD(0.1), gradients=3), LOCKSTEP)).all()
