"""What is claimed of Ako: Watcharapichat et al., SoCC 2016."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.baselines import independent, sequential
from refsgd.algorithms.gossip import ako
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from tests.strategies import machines, seeds

MACHINE = Machine(compute="exponential(1)", latency=0.1, bandwidth=500.0)
EXACT = SGD(0.25)  # with integers, sums are exact in any order


def sent(program):
    """The messages of a peer's program in turn."""
    effect = program.send(None)
    try:
        while True:
            if isinstance(effect, Send):
                yield effect
            effect = program.send(effect.fn(*effect.args) if isinstance(effect, Compute) else None)
    except StopIteration:
        pass


def powers(d=8):
    """A problem whose gradient of iteration t is 2^t everywhere, so that a sum says what is in it."""
    return Problem(np.zeros(d), lambda x, rank, t: np.full(d, 2.0**t), lambda x: 0.0)


# -- the exchange ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 4])
def test_iteration_t_sends_the_sum_of_p_gradients_of_partition_t_mod_p(p):
    """To all others; the last iteration sends what nobody has yet, in all partitions."""
    steps, (me, *_) = 9, ako.ako(powers(), 3, 9, SGD(0.0), partitions=p).values()
    messages = list(sent(me.main))
    assert [m.to for m in messages] == ["peer1", "peer2"] * (steps - 1 + p)
    for t, message in enumerate(messages[0:2 * (steps - 1):2]):
        assert message.body.number == t % p and message.body.g.size == 8 // p
        assert set(message.body.g) == {sum(2.0**s for s in range(max(t - p + 1, 0), t + 1))}
    for message in messages[2 * (steps - 1)::2]:
        last = max((t for t in range(steps - 1) if t % p == message.body.number), default=-1)
        assert set(message.body.g) == {sum(2.0**s for s in range(last + 1, steps))}


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 7), p=st.integers(1, 6))
def test_every_gradient_reaches_every_replica_exactly_once(machine, seed, workers, steps, p):
    taken = []
    problem = integer_gradients(d=5, workers=workers)
    counted = replace(problem, gradient=lambda x, rank, t: taken.append(problem.gradient(x, rank, t)) or taken[-1])
    run = simulate(ako.ako(counted, workers, steps, EXACT, partitions=p), machine, seed)
    total = problem.x0 - np.float32(0.25) * sum(taken, np.zeros(5, np.float32))
    assert all(np.array_equal(replica.x, total) for replica in run.values.values())
    assert not any(np.any(replica.received) or np.any(np.concatenate(replica.unsent)) for replica in run.values.values()
                   if steps)
    assert run.trace.messages == workers * (workers - 1) * (steps - 1 + p if steps else 0)


def test_schedules_of_two_peers_end_with_equal_replicas():
    """The first two hundred: there are more than two thousand of one iteration in two partitions."""
    problem = integer_gradients(d=2, workers=2)

    def equal(run):
        one, other = (replica.x for replica in run.values.values())
        assert np.array_equal(one, other)

    assert explore(lambda: ako.ako(problem, 2, 1, EXACT, partitions=2), equal, max_runs=200).runs == 200


def test_nobody_waits_whatever_the_network():
    problem = integer_gradients(workers=4)
    slow = MACHINE.with_(latency=50.0, bandwidth=1.0)
    exchanging = simulate(ako.ako(problem, 4, 20, SGD(0.1)), slow, 3).trace
    alone = simulate(independent.independent(problem, 4, 20, SGD(0.1)), slow, 3).trace
    assert exchanging.seconds == alone.seconds


@pytest.mark.parametrize(("steps", "p"), [(1, 4), (9, 4), (8, 3), (12, 1), (5, 7)])
def test_bytes_are_those_of_the_formula(steps, p):
    """n (n - 1) times the partitions' bytes; a p-th of all-to-all as long as the last iteration is one of
    many."""
    result = refsgd.run("ako", data="integers", workers=3, steps=steps, partitions=p, lr=0.125)
    assert result.measured["bytes_sent"] == result.predicted["bytes_sent"]["value"]
    assert result.predicted["bytes_sent"]["kind"] == "exact"


# -- limits ----------------------------------------------------------------------------------------------------


def test_one_peer_is_sequential_sgd():
    problem, sgd = quadratic(workers=1, noise=1.0), SGD(0.1, 0.9)
    run = simulate(ako.ako(problem, 1, 20, sgd), MACHINE)
    reference = simulate(sequential.sequential(problem, 1, 20, sgd), MACHINE)
    assert np.array_equal(final_parameters(run), final_parameters(reference)) and run.trace.messages == 0


def test_more_partitions_than_parameters_are_empty_messages():
    run = simulate(ako.ako(integer_gradients(d=2, workers=2), 2, 5, EXACT, partitions=6), MACHINE)
    one, other = (replica.x for replica in run.values.values())
    assert np.array_equal(one, other)


def test_no_partition_is_refused():
    with pytest.raises(ValueError, match="partitions 0; expected at least 1"):
        ako.ako(quadratic(workers=2), 2, 5, SGD(0.1), partitions=0)


# -- wrong programs --------------------------------------------------------------------------------------------


def forgetful(replica, others, problem, steps):
    """WRONG: the partition of the last gradient alone, so that (p-1)/p of each gradient never leave their peer."""
    for t in range(steps):
        g = yield Compute(problem.gradient, replica.x, replica.rank, t)
        k = t % len(replica.parts)
        for other in others:
            yield Send(other, ako.Partition(g[replica.parts[k]], k))
        yield from replica.apply(g + replica.take(), t)
        yield Mark("clock", t=t)
    return replica


def test_a_peer_that_sends_parts_of_its_last_gradient_only_is_caught(monkeypatch):
    monkeypatch.setattr(ako, "train", forgetful)
    with pytest.raises(AssertionError):
        test_iteration_t_sends_the_sum_of_p_gradients_of_partition_t_mod_p(2)
    with pytest.raises(AssertionError):
        test_schedules_of_two_peers_end_with_equal_replicas()
