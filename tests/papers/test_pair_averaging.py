"""What is claimed of pull-gossip: Jin et al., arXiv:1611.04581; and how it differs from AD-PSGD."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.gossip import adpsgd, pair_averaging
from refsgd.algorithms.gossip.pair_averaging import Model, Pull
from refsgd.algorithms.replica import peers
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Choose, Compute, Mark, Node, Poll, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.simulator import simulate
from tests.strategies import machines, seeds

MACHINE = Machine(compute="exponential(1)", latency=0.1, bandwidth=500.0)


def test_one_peer_is_sequential_sgd_bit_for_bit():
    problem, sgd = quadratic(workers=1, noise=1.0), SGD(0.1, 0.9, 0.01)
    run = simulate(pair_averaging.pair_averaging(problem, 1, 20, sgd), MACHINE)
    assert np.array_equal(final_parameters(run),
                          final_parameters(simulate(sequential.sequential(problem, 1, 20, sgd))))


def test_equal_replicas_without_gradients_stay_the_same_bits():
    problem = Problem(np.float32([0.1, -1 / 3, 1e-30]), lambda x, rank, t: 0 * x, lambda x: 0.0)
    run = simulate(pair_averaging.pair_averaging(problem, 3, 20, SGD(0.1)), MACHINE)
    assert all(np.array_equal(x, problem.x0) for x in run.values.values())


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6))
def test_nobody_blocks_anybody_and_each_iteration_moves_m_bytes(machine, seed, workers, steps):
    """All peers ask and all answer, on the complete graph with its odd cycles, and still every run ends."""
    trace = simulate(pair_averaging.pair_averaging(quadratic(d=5, workers=workers), workers, steps, SGD(0.1)),
                     machine, seed).trace
    assert all(count == steps for count in trace.updates.values())
    assert sum(trace.bytes_sent.values()) == (workers > 1) * workers * steps * 4 * 5
    assert not any(tau for _, tau in trace.staleness), "only its own gradients update a replica"


def first_gradients(deploy, n=4, steps=60, seed=0):
    """Final replicas where only the first iteration has gradients, and the mean that they began with."""
    inner = quadratic(d=3, workers=n, dtype=np.float64)
    problem = Problem(inner.x0, lambda x, rank, t: inner.gradient(x, rank, t) * (t == 0), inner.loss)
    run = simulate(deploy(problem, n, steps, SGD(1.0)), Machine(compute="exponential(1)"), seed)
    return (np.array([getattr(value, "x", value) for value in run.values.values()]),
            -np.mean([inner.gradient(inner.x0, i, 0) for i in range(n)], axis=0))


def test_replicas_agree_but_on_another_point_than_the_mean():
    """Row-stochastic, not column-stochastic: consensus without conservation, on average over runs
    unbiased."""
    ends = []
    for seed in range(40):
        xs, mean = first_gradients(pair_averaging.pair_averaging, seed=seed)
        assert np.allclose(xs, xs[0], atol=1e-4), "they agree"
        assert not np.allclose(xs[0], mean, atol=1e-2), "but not on the mean"
        ends.append(xs[0])
    error = np.std(ends, axis=0, ddof=1) / np.sqrt(40)
    assert np.all(np.abs(np.mean(ends, axis=0) - mean) < 5 * error), "nobody is favoured"
    xs, mean = first_gradients(adpsgd.adpsgd)
    assert np.allclose(xs, mean, atol=1e-4), "AD-PSGD keeps the mean"


def served_between_steps(rank, names, problem, steps, sgd):
    """WRONG: one program does both, and answers pulls only between its own steps."""
    x, others = problem.x0, [name for name in names if name != names[rank]]
    for t in range(steps):
        while hit := (yield Poll(Pull)):
            yield Send(hit[0], Model(x))
        j = yield Choose(others)
        yield Send(j, Pull())
        g = yield Compute(problem.gradient, x, rank, t)
        _, theirs = yield Recv(Model, src=j)
        x = (x + theirs.x) / 2 - np.float32(sgd.lr) * g
        yield Mark("clock", t=t)
    return x


def test_without_a_responder_of_their_own_peers_wait_for_each_other():
    names, problem = peers(3), integer_gradients(workers=3)
    with pytest.raises(Deadlock, match="waits for Recv"):
        simulate({me: Node(served_between_steps(i, names, problem, 5, SGD(0.1)))
                  for i, me in enumerate(names)}, MACHINE)


def adopting_train(replica, others, problem, steps):
    """WRONG: takes over the other's replica instead of the mean; its own learning is lost with every pull."""
    for t in range(steps):
        j = yield Choose(others)
        yield Send(j, Pull())
        g = yield Compute(problem.gradient, replica.x, replica.rank, t)
        _, theirs = yield Recv(Model, src=j)
        replica.x = theirs.x - np.float32(replica.sgd.lr) * g
    return replica.x


def test_a_peer_that_adopts_instead_of_averaging_is_caught(monkeypatch):
    """Averages of pairs are strictly between; a copied replica is one of the points that the peers began
    with."""
    def is_an_original(xs):
        originals = -np.array([quadratic(d=3, workers=4, dtype=np.float64).gradient(np.zeros(3), i, 0)
                               for i in range(4)])
        return any(np.allclose(xs[0], x) for x in originals)

    assert not is_an_original(first_gradients(pair_averaging.pair_averaging)[0])
    monkeypatch.setattr(pair_averaging, "train", adopting_train)
    assert is_an_original(first_gradients(pair_averaging.pair_averaging)[0])
