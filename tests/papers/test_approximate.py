"""What is claimed of approximate synchronous parallel (Gaia: Hsieh et al., NSDI 2017)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.server import approximate, asp
from refsgd.algorithms.server.approximate import Significant
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Returned, Sent
from tests.strategies import machines, seeds
from tests.watching import LOCKSTEP, RANDOM, constant, curved, final, moments, recorded
from tests.wrong import wrong_deployment

thresholds = st.sampled_from([0.0, 0.01, 0.3, 2.0, 1e6])


def sent(deployment, machine=RANDOM, seed=0):
    """(sender, message) of everything that crosses between the data centres."""
    out = []
    for _ in moments(deployment, lambda node, effect, answer: out.append((node, effect.body))
                     if isinstance(effect, Send) and isinstance(effect.body, Significant) else None, machine,
                     seed):
        pass
    return out


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6), threshold=thresholds)
def test_after_the_last_flush_both_copies_hold_every_gradient(machine, seed, workers, steps, threshold):
    """Integers and a power of two, so exact; half of the result is read from each copy."""
    problem, seen = recorded(integer_gradients(d=5, workers=workers))
    run = simulate(approximate.approximate(problem, workers, steps, SGD(0.25), threshold=threshold), machine,
                   seed)
    assert np.array_equal(final_parameters(run),
                          problem.x0 - np.float32(0.25) * sum((g for *_, g in seen), np.zeros(5, np.float32)))
    assert len(seen) == workers * steps
    taus = [tau for _, tau in run.trace.staleness]
    assert len(taus) == len(seen) * min(2, workers) and min(taus, default=0) >= 0


def ledger_error(deployment, workers, machine, seed):
    """Largest |unsent + sent - own changes| of a server, and |copy - x0 - own changes - received|, over
    all moments."""
    own, out, into, worst = {}, {}, {}, 0.0

    def told(node, effect, answer):
        if isinstance(effect, Send) and isinstance(effect.body, Significant):
            out[node] = out.get(node, 0) + np.bincount(effect.body.entries, effect.body.change, minlength=6)
        elif isinstance(effect, Recv) and node.startswith("server") and isinstance(answer[1], Significant):
            into[node] = into.get(node, 0) + np.bincount(answer[1].entries, answer[1].change, minlength=6)
        elif isinstance(effect, Compute) and effect.fn.__name__ == "step":
            own[node] = own.get(node, 0) + (answer[0] - effect.args[0])

    for nodes in moments(deployment, told, machine, seed):
        for name, server in nodes.items():
            if name.startswith("server") and "unsent" in server.local and isinstance(server.effect, Recv):
                mine = own.get(name, np.zeros(6))
                worst = max(worst, np.max(np.abs(server.local["unsent"] + out.get(name, 0) - mine)))
                worst = max(worst, np.max(np.abs(server.local["x"] - mine - into.get(name, 0))))
    return worst


@given(machine=machines, seed=seeds, workers=st.integers(2, 5), threshold=thresholds,
       momentum=st.sampled_from([0.0, 0.9]))
def test_sent_and_unsent_are_all_own_changes_at_every_moment(machine, seed, workers, threshold, momentum):
    """And a copy is its own changes and what it has received."""
    problem = curved(workers=workers, dtype=np.float64)
    assert ledger_error(approximate.approximate(problem, workers, 5, SGD(0.1, momentum), threshold=threshold),
                        workers, machine, seed) < 1e-12


def with_filter(monkeypatch, wrong):
    right = approximate.filtered
    monkeypatch.setattr("refsgd.algorithms.server.approximate.filtered",
                        lambda x, unsent, limit: wrong(right, x, unsent, limit))


def test_a_filter_that_forgets_is_caught(monkeypatch):
    """WRONG: what is not significant is not worth keeping."""
    with_filter(monkeypatch,
                lambda right, x, unsent, limit: (right(x, unsent, limit)[0], np.zeros_like(unsent)))
    problem = curved(workers=3, dtype=np.float64)
    assert ledger_error(approximate.approximate(problem, 3, 5, SGD(0.1), threshold=0.3), 3, RANDOM, 0) > 1e-3


def test_an_entry_is_significant_by_its_own_value_and_any_change_of_a_zero_is():
    x, unsent = np.array([10, 1, 0, 0, -2], np.float32), np.array([0.5, 0.5, 1e-9, 0, 0.3], np.float32)
    entries, rest = approximate.filtered(x, unsent, 0.1)
    assert entries.tolist() == [1, 2, 4] and entries.dtype == np.int32
    assert np.array_equal(rest, np.array([0.5, 0, 0, 0, 0], np.float32))


@given(st.lists(st.tuples(st.floats(-3, 3, width=32), st.floats(-3, 3, width=32)), max_size=8),
       st.sampled_from([0.0, 0.01, 1.0, 1e6]))
def test_what_stays_is_small_and_what_goes_is_whole(pairs, limit):
    """|unsent| <= limit |x| after each scan."""
    x, unsent = (np.array([p[i] for p in pairs], np.float32) for i in (0, 1))
    entries, rest = approximate.filtered(x, unsent, limit)
    assert np.all(np.abs(rest) <= np.float32(limit) * np.abs(x))
    whole = rest.copy()
    whole[entries] += unsent[entries]
    assert np.array_equal(whole, unsent)


def hold_filter(deploy, threshold, workers=5, steps=5):
    """What is sent after own push number p (from 0) of a centre of m workers: entries that have changed
    by more than v / sqrt(1 + p // m), at last all."""
    x, old, unsent, done = {}, {}, {}, {}
    members = {"server0": workers // 2, "server1": workers - workers // 2}

    def told(node, effect, answer):
        if isinstance(effect, Compute) and effect.kind == "update":
            old[node], x[node] = effect.args[0], answer[0] if isinstance(answer, tuple) else answer
        elif isinstance(effect, Send) and isinstance(effect.body, Significant):
            push, m = done.get(node, 0), members[node]
            done[node] = push + 1
            waits = unsent.get(node, np.zeros(6, np.float32)) + (x[node] - old[node])
            limit = 0.0 if push == m * steps - 1 else threshold / np.sqrt(1 + push // m)
            goes = np.abs(waits) > np.float32(limit) * np.abs(x[node])
            assert effect.body.entries.tolist() == np.flatnonzero(goes).tolist() and np.array_equal(
                effect.body.change, waits[goes])
            unsent[node] = np.where(goes, np.float32(0), waits)

    problem = Problem(np.full(6, 2, np.float32), curved(workers=workers).gradient, lambda x: 0.0)
    for _ in moments(deploy(problem, workers, steps, SGD(0.1, 0.5), threshold=threshold), told, RANDOM, 0):
        pass
    assert done == {node: m * steps for node, m in members.items()}


@pytest.mark.parametrize("threshold", [0.0, 0.03, 0.1, 0.5])
def test_what_is_sent_are_the_entries_above_the_limit_of_that_iteration(threshold):
    hold_filter(approximate.approximate, threshold)


@pytest.mark.parametrize("right, wrong", [
    ("(done - 1) // per_iteration", "done // per_iteration"),
    ("(done - 1) // per_iteration", "version // per_iteration"), ("** 0.5 if", "if"),
    ("filtered(x, unsent, limit)", "filtered(old, unsent, limit)"), ("unsent = rest", "pass"),
    ("if done < pushes else", "if done <= pushes else"),
])
def test_another_filter_is_caught(right, wrong):
    with pytest.raises(AssertionError):
        for threshold in (0.03, 0.1, 0.5):
            hold_filter(wrong_deployment(approximate.approximate, right, wrong), threshold)


def test_small_changes_add_up_until_they_are_significant():
    """Each step moves 8 by 1/8, 1.6 %: with a limit of 5 % / sqrt(t) it takes several pushes, not for
    ever."""
    problem = constant(lambda rank, t: -1.0, d=2)
    deployment = approximate.approximate(type(problem)(np.full(2, 8, np.float32), problem.gradient,
                                                       problem.loss), 2, 12, SGD(0.125), threshold=0.05)
    sizes = [len(body.entries) for node, body in sent(deployment) if node == "server0"]
    assert sizes[0] == 0 and sizes[-1] == 2 and 1 < sum(map(bool, sizes)) < 12


def test_the_threshold_falls_as_one_over_the_root_of_the_iteration():
    """Of a value of about 1, 0.9 % is kept at the first iteration and sent at the second, where the limit is
    1 % / sqrt(2).

    Iterations are counted, not pushes: the second worker's push of the first iteration sends nothing.
    """
    changes = [0.009, 0.0, -0.0025, 0.0, 0.0]  # the second one is below 1 % / sqrt(5) until the flush
    problem = constant(lambda rank, t: -changes[t] if rank == 0 else 0.0, d=1)
    deployment = approximate.approximate(type(problem)(np.ones(1, np.float32), problem.gradient,
                                                       problem.loss), 4, 5, SGD(1.0), threshold=0.01)
    sizes = [len(body.entries) for node, body in sent(deployment, LOCKSTEP) if node == "server0"]
    assert sizes == [0, 0, 1, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("workers", [2, 5])
def test_threshold_zero_sends_every_change_and_a_huge_one_only_the_flush(workers):
    problem = curved(workers=workers)
    everything = sent(approximate.approximate(problem, workers, 6, SGD(0.1), threshold=0.0))
    assert all(len(body.entries) == 6 for _, body in everything) and len(everything) == workers * 6
    nonzero = type(problem)(np.ones(6, np.float32), problem.gradient, problem.loss)
    isolated = [len(body.entries)
                for _, body in sent(approximate.approximate(nonzero, workers, 6, SGD(0.1), threshold=1e9))]
    assert sum(isolated) == 2 * 6, "each server once, at its last push"


def test_bytes_are_8_an_entry_and_fall_with_the_threshold():
    problem = curved(d=50)
    crossing = []
    for threshold in (0.0, 0.01, 0.1, 1.0):
        trace = simulate(approximate.approximate(problem, 4, 30, SGD(0.02), threshold=threshold),
                         RANDOM).trace
        between = [e.nbytes for e in trace.of(Sent) if e.message == "Significant"]
        crossing.append(sum(between))
        assert all(b % 8 == 0 for b in between) and len(between) == 4 * 30
        assert sum(trace.bytes_sent.values()) == 2 * 4 * 30 * 200 + crossing[-1]
    assert crossing == sorted(crossing,
                              reverse=True) and crossing[0] == 4 * 30 * 400 and crossing[-1] < 0.5 * crossing[
                                  0]


@given(machine=machines, seed=seeds, steps=st.integers(0, 6), threshold=thresholds)
def test_one_worker_is_sequential_sgd_bit_for_bit(machine, seed, steps, threshold):
    problem, sgd = curved(workers=1), SGD(0.1, 0.9, 0.01)
    assert np.array_equal(final(approximate.approximate(problem, 1, steps, sgd, threshold=threshold), machine,
                                seed),
                          final(sequential.sequential(problem, 1, steps, sgd)))


def test_a_server_steps_by_its_own_schedule():
    """It counts own pushes: 1 + 1 + 1/2 + 1/2 at each, whatever has come from the other."""
    run = simulate(approximate.approximate(constant(lambda rank, t: 1.0), 2, 4,
                                           SGD(0.5, schedule=StepDecay(2, 0.5)), threshold=0.0), RANDOM)
    assert np.array_equal(final_parameters(run), np.full(2, -0.5 * 2 * 3, np.float32))


def test_a_worker_never_waits_for_the_other_data_centre():
    """Its server answers before the other one has heard: the other's link may be as slow as it likes."""
    slow = Machine(compute="fixed(1)", speeds=(1, 1, 0.001, 0.001))
    trace = simulate(approximate.approximate(curved(), 4, 10, SGD(0.1)), slow).trace
    ends = {e.node: e.time for e in trace.of(Returned)}
    assert ends["worker0"] == ends["worker1"] == 10 and ends["worker2"] == 10_000


def test_staleness_counts_the_pushes_that_a_reader_did_not_know_of():
    """A copy's version counts own and remote pushes; equal fixed times give n - 1, as ASP, once all have
    come."""
    run = simulate(approximate.approximate(curved(), 4, 8, SGD(0.1), threshold=0.0),
                   Machine(compute="fixed(1)"))
    plain = simulate(asp.asp(curved(), 4, 8, SGD(0.1)), Machine(compute="fixed(1)"))
    assert max(tau for _, tau in run.trace.staleness) <= 2 * max(tau for _, tau in plain.trace.staleness)
    assert np.mean([tau for _, tau in run.trace.staleness]) == pytest.approx(3, abs=1)


def test_every_schedule_of_two_workers_ends_with_every_gradient():
    problem = constant(lambda rank, t: 1.0 + rank)

    def check(run):
        assert np.array_equal(final_parameters(run), np.full(2, -0.25 * 2 * 3, np.float32))
        assert min(tau for _, tau in run.trace.staleness) >= 0

    assert explore(lambda: approximate.approximate(problem, 2, 2, SGD(0.25), threshold=0.5), check).complete


def test_without_the_flush_a_copy_lacks_what_was_never_significant(monkeypatch):
    """WRONG: a last push that is filtered like any other."""
    with_filter(monkeypatch, lambda right, x, unsent, limit: right(x, unsent, limit or 10.0))
    problem, seen = recorded(integer_gradients(workers=2))
    offset = type(problem)(np.full(8, 64, np.float32), problem.gradient, problem.loss)
    x = final(approximate.approximate(offset, 2, 5, SGD(0.25), threshold=10.0))
    assert not np.array_equal(x, offset.x0 - np.float32(0.25) * sum(g for *_, g in seen))


@pytest.mark.parametrize("threshold", [-0.1, float("inf"), float("nan")])
def test_a_wrong_threshold_is_named(threshold):
    with pytest.raises(ValueError, match="expected"):
        approximate.approximate(curved(), 4, 1, SGD(0.1), threshold=threshold)
