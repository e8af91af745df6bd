"""What is claimed of deep gradient compression between peers: Lin et al., ICLR 2018."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.allreduce import allreduce, dgc, mean
from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.codecs import DGC, Residual, kept
from refsgd.algorithms.exchange import Exchange
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.problems.layers import equal
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Sent
from tests.strategies import machines, seeds


def ragged(workers, seed=0):
    """A non-quadratic problem in float64 whose shares differ in size from peer to peer and step to step."""
    base = quadratic(d=6, workers=workers, noise=1.0, seed=seed, dtype=np.float64)
    return Problem(base.x0, lambda x, rank, t: base.gradient(np.tanh(x), rank, t), base.loss,
                   images=lambda rank, t: 1 + (3 * rank + t) % 4)


def all_equal(run):
    values = list(run.values.values())
    assert all(np.array_equal(values[0], x) for x in values), "all replicas are the same bits"
    return values[0]


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6),
       ratio=st.sampled_from([0.01, 0.3, 1.0]),
       masking=st.booleans())
def test_replicas_are_identical_and_eight_bytes_an_entry_are_sent_whatever_the_schedule(
    machine, seed, workers, steps, ratio, masking):
    def deploy():
        return dgc.dgc(quadratic(d=10, workers=workers, noise=1.0), workers, steps, SGD(0.1, 0.9, 0.01),
                       ratio=ratio, masking=masking)

    run = simulate(deploy(), machine, seed)
    assert np.array_equal(all_equal(run), all_equal(simulate(deploy())))
    assert sum(run.trace.bytes_sent.values()) == steps * workers * (workers - 1) * 8 * kept(10, ratio)
    assert run.trace.messages == steps * workers * (workers - 1)
    assert run.trace.clock_gap == 0


def test_every_schedule_of_two_peers_ends_with_the_same_bits():
    finals = set()
    report = explore(lambda: dgc.dgc(integer_gradients(d=3, workers=2), 2, 2, SGD(0.125, 0.5)),
                     lambda run: finals.add(all_equal(run).tobytes()))
    assert report.complete and len(finals) == 1


@given(workers=st.integers(1, 5), momentum=st.sampled_from([0.0, 0.9]))
def test_at_ratio_1_without_masking_it_is_allreduce_sgd_with_momentum(workers, momentum):
    """To the rounding of sums in another order, also where shares are ragged: each gradient is weighted
    before it accumulates."""
    sgd = SGD(0.1, momentum, 0.01)
    dense = simulate(allreduce.allreduce(ragged(workers), workers, 12, sgd)).values["peer0"]
    sent = simulate(dgc.dgc(ragged(workers), workers, 12, sgd, ratio=1.0, masking=False)).values["peer0"]
    # Both run in float64, but weights and rates are float32 numbers: 12 steps of relative errors of 6e-8.
    assert np.allclose(sent, dense, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_and_bit_for_bit_where_sums_are_exact(workers):
    problem, sgd = integer_gradients(workers=workers), SGD(0.25, 0.5)
    dense = all_equal(simulate(allreduce.allreduce(problem, workers, 8, sgd)))
    assert np.array_equal(all_equal(simulate(dgc.dgc(problem, workers, 8, sgd, ratio=1.0, masking=False))),
                          dense)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_at_ratio_1_with_masking_the_momentum_is_gone(workers):
    """The trap: it is all-reduce SGD without momentum, and not the one with it."""
    problem = integer_gradients(workers=workers)
    masked = all_equal(simulate(dgc.dgc(problem, workers, 8, SGD(0.25, 0.5), ratio=1.0)))
    assert np.array_equal(masked, all_equal(simulate(allreduce.allreduce(problem, workers, 8, SGD(0.25)))))
    assert not np.array_equal(masked,
                              all_equal(simulate(allreduce.allreduce(problem, workers, 8, SGD(0.25, 0.5)))))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_peer_with_everything_sent_is_sequential_sgd_bit_for_bit(momentum):
    problem, sgd = quadratic(workers=1, noise=1.0), SGD(0.1, momentum, 0.01)
    reference = final_parameters(simulate(sequential.sequential(problem, 1, 12, sgd)))
    assert np.array_equal(final_parameters(simulate(dgc.dgc(problem, 1, 12, sgd, ratio=1.0, masking=False))),
                          reference)


def hold_ledger(problem, workers, steps, ratio, compress=DGC.encode):
    """Without momentum: x_0 - x_T is the rate times what was sent; with the residuals it is the sum of
    all gradients."""
    computed, read = [], problem.gradient

    def gradient(x, rank, t):
        computed.append(read(x, rank, t))
        return computed[-1]

    watched = Problem(problem.x0, gradient, problem.loss)
    residuals = []

    def watch(rule, state, g, key):
        sent, after = compress(rule, state, g, key)
        residuals.append(after.r)
        return sent, after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DGC, "encode", watch)
        run = simulate(dgc.dgc(watched, workers, steps, SGD(0.25), ratio=ratio))
    moved = (problem.x0 - all_equal(run)) / 0.25
    owed = sum(residuals[-workers:])  # in virtual time all peers compress step t before any compresses t + 1
    assert np.array_equal(moved + owed,
                          sum(computed) / workers), "what moved x and what is still owed sum to all gradients"


def test_every_gradient_is_applied_or_in_a_residual():
    hold_ledger(integer_gradients(d=8, workers=4), 4, 9, 0.2)


def test_every_entry_is_heard_in_the_end():
    """Peers keep to a quadratic whose minimum all share, a single entry of twenty at a time."""
    problem = quadratic(d=20, workers=1)
    run = simulate(dgc.dgc(problem, 3, 400, SGD(0.05, 0.5), ratio=0.05))
    assert problem.loss(all_equal(run)) < 1e-3 * problem.loss(problem.x0)


# -- wrong programs --------------------------------------------------------------------------------------------


def test_a_sum_of_only_the_others_is_caught(monkeypatch):
    """WRONG: a peer forgets its own entries; then replicas differ."""
    original = mean.gather

    def forgetful(rank, group, mine):
        messages = yield from original(rank, group, mine)
        return [m for i, m in enumerate(messages) if i != rank]

    monkeypatch.setattr(mean, "gather", forgetful)
    with pytest.raises(AssertionError, match="same bits"):
        all_equal(simulate(dgc.dgc(integer_gradients(), 3, 4, SGD(0.25))))


def test_adding_in_the_order_of_arrival_is_caught(monkeypatch):
    """WRONG: floating-point sums then depend on the network, and peers hold different bits."""
    def by_arrival(rank, group, mine):
        for to in group:
            if to != group[rank]:
                yield Send(to, mean.Coded(mine))
        messages = [mine]
        for _ in group[1:]:
            messages.append((yield Recv(mean.Coded))[1].message)
        return messages

    monkeypatch.setattr(mean, "gather", by_arrival)
    with pytest.raises(AssertionError, match="same bits"):
        all_equal(simulate(dgc.dgc(quadratic(d=50, workers=4, noise=1.0), 4, 1, SGD(0.1), ratio=1.0)))


def test_a_residual_that_is_thrown_away_is_caught():
    """WRONG: entries that are not sent are dropped; it converges nevertheless, on the largest entries
    first."""
    encode = DGC.encode

    def forgetful(rule, state, g, key):
        sent, after = encode(rule, state, g, key)
        return sent, Residual(after.u, 0 * after.r)

    with pytest.raises(AssertionError, match="still owed"):
        hold_ledger(integer_gradients(d=8, workers=4), 4, 9, 0.2, forgetful)


def test_mean_of_means_is_caught_where_shares_are_ragged(monkeypatch):
    """WRONG: every peer's gradient counts the same, however few images it saw."""
    dense = simulate(allreduce.allreduce(ragged(3), 3, 12, SGD(0.1))).values["peer0"]
    assert np.allclose(simulate(dgc.dgc(ragged(3), 3, 12, SGD(0.1), ratio=1.0)).values["peer0"], dense)
    monkeypatch.setattr(mean, "weights", lambda images: ([1] * len(images), len(images)))
    assert not np.allclose(simulate(dgc.dgc(ragged(3), 3, 12, SGD(0.1), ratio=1.0)).values["peer0"], dense)


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.5, float("nan")])
def test_a_wrong_ratio_is_named(ratio):
    with pytest.raises(ValueError, match="expected a share"):
        dgc.dgc(integer_gradients(), 4, 1, SGD(0.1), ratio=ratio)


def test_time_of_an_iteration_at_fixed_times():
    """One latency, and 8 k (n - 1) bytes by each link."""
    machine = Machine(compute="fixed(1)", latency=0.25, bandwidth=100.0)
    run = simulate(dgc.dgc(quadratic(d=100, workers=4), 4, 3, SGD(0.1), ratio=0.05), machine)
    assert run.trace.seconds == pytest.approx(3 * (1 + 0.25 + 3 * 8 * 5 / 100))


@pytest.mark.parametrize(("bucket", "messages"), [(0, 3), (20, 2), (10**6, 1)])
def test_buckets_are_those_of_the_exchange(bucket, messages):
    """Three layers of 4 entries; a message for each bucket, of ceil(4 k / 4) entries: without overlap one for all."""
    problem = replace(quadratic(d=12, workers=2), layers=equal(12, quadratic(d=12, workers=2).gradient, 3))
    for overlap, count in (("backward", messages), ("none", 1)):
        how = replace(problem, exchange=Exchange(overlap=overlap, bucket=bucket if overlap != "none" else 0))
        run = simulate(dgc.dgc(how, 2, 4, SGD(0.1), ratio=0.25))
        assert len([e for e in run.trace.of(Sent) if e.message == "Coded"]) == 4 * 2 * count
