"""What is claimed of gossip SGD with sum weights: Blot et al., arXiv:1611.09726, and its weights under
any schedule."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import independent, sequential
from refsgd.algorithms.gossip import gosgd
from refsgd.algorithms.gossip.gosgd import Share, Weighted, process_messages
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, ranks
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.simulator import simulate
from tests.ledger import Ledger, object_of, with_bodies
from tests.strategies import machines, seeds

MACHINE = Machine(compute="exponential(1)", latency=0.1, bandwidth=500.0)
ONE = np.ones(2, np.float32)


def close(a, b):
    return np.allclose(a, b, rtol=1e-11, atol=1e-11)


# -- the pseudo-code -------------------------------------------------------------------------------------------


def test_a_message_is_merged_with_the_old_weight_in_the_numerator():
    """ProcessMessages: x <- (a x + a_s x_s) / (a + a_s), then a <- a + a_s."""
    replica = Weighted(0, ONE, SGD(1.0), 0.25, queue=[Share(5 * ONE, np.float64(0.75))])
    process_messages(replica)
    assert np.array_equal(replica.x, 4 * ONE) and replica.weight == 1.0 and not replica.queue


def test_a_push_moves_half_of_the_weight_and_waits_for_nobody():
    """PushMessage: a <- a / 2, send (x, a); the paper's peers never block."""
    problem, replica = quadratic(d=2, workers=2), Weighted(0, ONE, SGD(0.0), 0.5)
    program = gosgd.train(replica, ["peer1"], problem, 1, p=1.0)
    effect = program.send(None)
    while isinstance(effect, Compute | Mark):
        effect = program.send(effect.fn(*effect.args) if isinstance(effect, Compute) else None)
    assert effect.options == (None, "peer1") and effect.p == (0.0, 1.0)
    send = program.send("peer1")
    assert send.to == "peer1" and send.body.weight == replica.weight == 0.25
    assert program.send(None) == Mark("clock", t=0)


def test_nobody_waits_whatever_the_network():
    problem = integer_gradients(workers=4)
    slow = MACHINE.with_(latency=50.0, bandwidth=1.0)
    gossiping = simulate(gosgd.gosgd(problem, 4, 20, SGD(0.1), p=1.0), slow, 3).trace
    alone = simulate(independent.independent(problem, 4, 20, SGD(0.1)), slow, 3).trace
    assert gossiping.seconds == alone.seconds


def test_order_of_queued_messages_does_not_matter_and_they_can_be_coalesced():
    """A convex combination is associative: two messages equal one with their weighted mean and summed
    weight."""
    x, y, z = np.random.default_rng(0).standard_normal((3, 5))
    results = []
    for queue in ([Share(y, np.float64(0.25)), Share(z, np.float64(0.5))],
                  [Share(z, np.float64(0.5)), Share(y, np.float64(0.25))],
                  [Share((0.25 * y + 0.5 * z) / 0.75, np.float64(0.75))]):
        replica = Weighted(0, x, SGD(1.0), 0.125, queue=list(queue))
        process_messages(replica)
        results.append(replica.x)
    assert close(results[0], results[1]) and close(results[0], results[2])


def test_messages_per_iteration_are_p_on_average():
    """Each of 4 x 500 iterations pushes with probability p: within four standard deviations of a binomial
    count."""
    for p in (0.01, 0.1, 0.5):
        run = simulate(gosgd.gosgd(integer_gradients(), 4, 500, SGD(0.0), p=p), MACHINE, observe=1)
        assert abs(run.trace.messages - 2000 * p) < 4 * np.sqrt(2000 * p * (1 - p))


# -- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_pushes_it_is_independent_sgd_bit_for_bit(momentum):
    problem, sgd = quadratic(workers=4, noise=1.0), SGD(0.1, momentum, 0.01)
    gossip = simulate(gosgd.gosgd(problem, 4, 20, sgd, p=0), MACHINE)
    alone = simulate(independent.independent(problem, 4, 20, sgd), MACHINE)
    assert all(np.array_equal(gossip.values[node].x, alone.values[node]) for node in alone.values)
    assert gossip.trace.messages == 0 and gossip.trace.seconds == alone.trace.seconds


def test_one_peer_is_sequential_sgd_and_has_nobody_to_push_to():
    problem, sgd = quadratic(workers=1, noise=1.0), SGD(0.1, 0.9)
    run = simulate(gosgd.gosgd(problem, 1, 20, sgd, p=1.0), MACHINE)
    assert np.array_equal(final_parameters(run),
                          final_parameters(simulate(sequential.sequential(problem, 1, 20, sgd), MACHINE)))
    assert run.trace.messages == 0


def test_equal_replicas_without_gradients_stay_the_same_bits():
    problem = Problem(np.float32([0.1, -1 / 3, 1e-30]), lambda x, rank, t: 0 * x, lambda x: 0.0)
    run = simulate(gosgd.gosgd(problem, 3, 20, SGD(0.1), p=0.7), MACHINE)
    assert all(np.array_equal(replica.x, problem.x0) for replica in run.values.values())


def test_a_weight_never_underflows():
    """A peer that is left alone and pushes 3000 times would get to 2^-3001 = 0, and two such peers to 0/0."""
    deployment = gosgd.gosgd(quadratic(d=2, workers=2), 2, 3000, SGD(0.01), p=1.0)
    replicas = [object_of(node) for node in deployment.values()]
    least = []
    ledger = Ledger(deployment, lambda _: least.append(min(r.weight for r in replicas)))
    run = simulate(ledger.deployment, Machine(compute="fixed(1)", latency=1e5), observe=1)
    assert 0 < min(least) < 1e-150
    assert sum(replica.weight for replica in run.values.values()) == 1.0


# -- conservation ----------------------------------------------------------------------------------------------


def conserve(deployment, machine, seed, exact=False):
    """Run, and hold the sum of weights and the sum of a x against what gradients did, at every yield.

    Replicas, their queues and messages under way count; the sum of a x moves by a_i (new - old) at peer i's
    update.
    """
    replicas = {name: object_of(node) for name, node in deployment.items()}
    expected = sum(r.weight * r.x for r in replicas.values())

    def check(ledger):
        held = [Share(r.x, r.weight) for r in replicas.values()]
        queued = [share for r in replicas.values() for share in r.queue]
        flying = [share for _, share in ledger.messages()]
        everything = held + queued + flying
        total = sum(float(weight) for _, weight in everything)
        assert total == 1.0 if exact else total == pytest.approx(1.0, abs=1e-12), "the weights sum to 1"
        assert all(0 < weight <= 1 + 1e-12 for _, weight in everything)
        assert close(sum(float(weight) * x for x, weight in everything),
                     expected), "pushes and merges move nothing"

    def answered(name, effect, value):
        nonlocal expected
        if isinstance(effect, Compute) and effect.kind == "update":
            expected = expected + replicas[name].weight * (value[0] - effect.args[0])

    run = simulate(Ledger(deployment, check, answered=answered).deployment, machine, seed)
    assert sum(r.weight for r in run.values.values()) == pytest.approx(1.0), "nothing is left on the way"
    assert close(sum(r.weight * r.x for r in run.values.values()), expected)
    assert not any(r.queue for r in run.values.values())
    return run


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6),
       p=st.sampled_from([0.0, 0.3, 1.0]))
def test_weight_and_weighted_sum_are_conserved_with_messages_in_flight(machine, seed, workers, steps, p):
    problem = quadratic(d=5, workers=workers, noise=1.0, dtype=np.float64)
    deployment = gosgd.gosgd(problem, workers, steps, SGD(0.25, 0.5), p=p)
    run = conserve(deployment, machine, seed, exact=workers in (1, 2, 4))
    trace = run.trace
    assert sum(trace.bytes_sent.values()) == trace.messages * (8 * 5 + 8)
    assert all(count == steps for count in trace.iterations.values())
    assert all(tau == 0 for _, tau in trace.staleness), "a peer merges only between two gradients"


def test_float32_parameters_stay_float32_and_a_push_is_m_plus_8_bytes():
    run = simulate(gosgd.gosgd(quadratic(d=5, workers=3), 3, 10, SGD(0.1), p=1.0), MACHINE)
    assert all(r.x.dtype == np.float32 for r in run.values.values())
    assert sum(run.trace.bytes_sent.values()) == 30 * (4 * 5 + 8)


def test_a_lost_message_takes_its_weight_and_its_share_of_the_mean_with_it():
    """Links that lose messages leave the sum of weights short by exactly the lost ones, and the consensus
    biased."""
    lost = []

    def lossy(name, to, share):
        if len(lost) < 3 and name == "peer1":
            lost.append(share)
            return share._replace(weight=np.float64(0))
        return share

    problem = quadratic(d=5, workers=4, noise=1.0, dtype=np.float64)
    moved = np.zeros(5)
    deployment = gosgd.gosgd(problem, 4, 10, SGD(0.25), p=1.0)
    replicas = {name: object_of(node) for name, node in deployment.items()}

    def answered(name, effect, value):
        nonlocal moved
        if isinstance(effect, Compute) and effect.kind == "update":
            moved = moved + replicas[name].weight * (value[0] - effect.args[0])

    run = simulate(Ledger(with_bodies(deployment, lossy), lambda _: None, answered=answered).deployment,
                   MACHINE)
    assert sum(r.weight for r in run.values.values()) == 1 - sum(float(share.weight) for share in lost)
    assert close(sum(r.weight * r.x for r in run.values.values()),
                 moved - sum(float(s.weight) * s.x for s in lost))


# -- wrong programs --------------------------------------------------------------------------------------------


def new_weight_in_the_numerator(replica):
    """WRONG: the two lines of the merge are exchanged, so that the peer's own replica counts with its new
    weight."""
    for x, weight in replica.queue:
        replica.weight = replica.weight + weight
        replica.x = (replica.weight * replica.x + weight * x) / (replica.weight + weight)
    replica.queue = []


def plain_average(replica):
    """WRONG: gossip as one first writes it down, x = (x + x_s) / 2, while the weights are kept beside it."""
    for x, weight in replica.queue:
        replica.x, replica.weight = (replica.x + x) / 2, replica.weight + weight
    replica.queue = []


def forgets_the_queue(replica):
    """WRONG: takes only the newest message, as from a one-place buffer; older ones and their weight are
    lost."""
    for x, weight in replica.queue[-1:]:
        replica.x = replica.x + (x - replica.x) * (weight / (replica.weight + weight))
        replica.weight += weight
    replica.queue = []


@pytest.mark.parametrize("wrong, broken",
                         [(new_weight_in_the_numerator, "move nothing"), (plain_average, "move nothing"),
                                           (forgets_the_queue, "sum to 1")])
def test_a_wrong_merge_is_caught(monkeypatch, wrong, broken):
    monkeypatch.setattr(gosgd, "process_messages", wrong)
    problem = quadratic(d=5, workers=4, noise=1.0, dtype=np.float64)
    with pytest.raises(AssertionError, match=broken):
        conserve(gosgd.gosgd(problem, 4, 20, SGD(0.25), p=1.0), MACHINE, 0)


def test_a_run_that_ends_with_the_last_iteration_loses_weight(monkeypatch):
    """WRONG: no merge at the end; what came after a peer's last iteration is lost with its weight."""
    def listen(replica):
        while True:
            _, share = yield gosgd.Recv(Share)
            replica.queue.append(share)

    monkeypatch.setattr(gosgd, "listen", listen)
    with pytest.raises(AssertionError, match="left on the way"):
        conserve(gosgd.gosgd(quadratic(d=5, workers=4, dtype=np.float64), 4, 5, SGD(0.25), p=1.0), MACHINE, 0)


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_a_wrong_probability_is_named(p):
    with pytest.raises(ValueError, match="expected a probability"):
        gosgd.gosgd(integer_gradients(), 4, 1, SGD(0.1), p=p)


def test_peers_have_the_ranks_of_their_names_and_share_a_weight_of_1():
    """A rank is the share of the data, and the place on the machine."""
    deployment = gosgd.gosgd(quadratic(workers=4), 4, 3, SGD(0.1))
    replicas = [inspect.getgeneratorlocals(node.main)["replica"] for node in deployment.values()]
    assert ranks(deployment) == {f"peer{i}": i for i in range(4)} and [r.rank for r in replicas] == [0, 1, 2, 3]
    assert [r.weight for r in replicas] == [0.25] * 4
