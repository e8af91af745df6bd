"""What is claimed of AD-PSGD: Lian et al., ICML 2018, algorithm 1 and section 3."""

from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.gossip import adpsgd, pair_averaging
from refsgd.algorithms.gossip.adpsgd import Answer, Ask
from refsgd.algorithms.gossip.graphs import GRAPHS
from refsgd.algorithms.replica import Replica, peers
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Choose, Compute, Died, Mark, Node, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Received, Returned
from tests.ledger import Ledger, object_of
from tests.strategies import machines, seeds

MACHINE = Machine(compute="exponential(1)", latency=0.1, bandwidth=500.0, update="exponential(0.5)")
ONE = np.ones(2, np.float32)


def close(a, b):
    return np.allclose(a, b, rtol=1e-11, atol=1e-11)


# -- the pseudo-code -------------------------------------------------------------------------------------------


def test_an_active_peer_sends_before_it_computes_and_applies_the_gradient_to_the_average():
    """Algorithm 1: the gradient is of the replica that was read, the update starts from the averaged one."""
    replica = Replica(1, ONE, SGD(0.5))
    program = adpsgd.train(replica, ["peer0"], quadratic(d=2), 1)
    assert program.send(None) == Choose(["peer0"])
    send = program.send("peer0")
    assert send.to == "peer0" and np.array_equal(send.body.x, ONE)
    compute = program.send(None)
    assert isinstance(compute, Compute) and compute.args[0] is replica.x
    assert program.send(2 * ONE) == Recv(Answer, Died, src="peer0")
    mark = program.send(("peer0", Answer(5 * ONE)))
    assert np.array_equal(replica.x, 4 * ONE)
    assert mark.values["reads"] == (("peer1", mark.values["version"]),), "an average is no update"


def test_a_passive_peer_applies_the_gradient_to_what_averaging_has_made_of_its_replica():
    replica = Replica(0, ONE, SGD(1.0))
    train, respond = adpsgd.train(replica, [], quadratic(d=2), 1), adpsgd.respond(replica)
    assert isinstance(train.send(None), Compute) and respond.send(None) == Recv(Ask)
    answer = respond.send(("peer1", Ask(3 * ONE)))
    assert np.array_equal(answer.body.x,
                          2 * ONE) and answer.body.x is replica.x, "both sides become the average at once"
    assert respond.send(None) == Recv(Ask)
    assert isinstance(train.send(ONE), Mark) and np.array_equal(replica.x, ONE)


def test_averaging_costs_no_time_while_it_is_faster_than_computing():
    """Section 3: communication and computing run in parallel; an iteration takes the longer of both."""
    problem = integer_gradients(workers=4)
    for latency, seconds in ((0.4, 10.0), (0.5, 10.0), (0.8, 16.0)):
        trace = simulate(adpsgd.adpsgd(problem, 4, 10, SGD(0.1)),
                         Machine(compute="fixed(1)", latency=latency)).trace
        assert trace.seconds == pytest.approx(seconds), "10 iterations of max(1, 2 latencies)"


def test_a_slow_peer_holds_nobody_up():
    """The point of the paper: with one peer ten times slower the others run at their own pace."""
    machine = Machine(compute="fixed(1)", latency=0.01, speeds=(0.1,))
    trace = simulate(adpsgd.adpsgd(integer_gradients(), 4, 20, SGD(0.1)), machine).trace
    ends = {e.node: e.time for e in trace.of(Returned) if e.program == 0}
    assert ends["peer0"] == pytest.approx(200) and max(ends[p]
                                                       for p in ("peer1", "peer2", "peer3")) == pytest.approx(
                                                           20)


# -- limits ----------------------------------------------------------------------------------------------------


def test_one_peer_is_sequential_sgd_bit_for_bit():
    problem, sgd = quadratic(workers=1, noise=1.0), SGD(0.1, 0.9, 0.01)
    run = simulate(adpsgd.adpsgd(problem, 1, 20, sgd), MACHINE)
    assert np.array_equal(final_parameters(run),
                          final_parameters(simulate(sequential.sequential(problem, 1, 20, sgd), MACHINE)))
    assert run.trace.messages == 0


def test_equal_replicas_without_gradients_stay_the_same_bits():
    problem = Problem(np.float32([0.1, -1 / 3, 1e-30]), lambda x, rank, t: 0 * x, lambda x: 0.0)
    run = simulate(adpsgd.adpsgd(problem, 5, 20, SGD(0.1)), MACHINE)
    assert all(np.array_equal(replica.x, problem.x0) for replica in run.values.values())


# -- conservation ----------------------------------------------------------------------------------------------


def settled(replicas, ledger):
    """Every peer's replica, where an answer under way already counts for the active peer that it is for."""
    x = {name: replica.x for name, replica in replicas.items()}
    x |= {to: body.x for to, body in ledger.messages(Answer)}
    return x


def conserve(deployment, machine, seed, lr):
    """Run, and hold the sum of all replicas against the gradients that were applied, at every yield."""
    replicas = {name: object_of(node) for name, node in deployment.items()}
    gradients = {}
    expected = sum(replica.x for replica in replicas.values())

    def answered(name, effect, value):
        if isinstance(effect, Compute) and effect.kind == "gradient":
            gradients[name] = value

    def asked(name, effect):
        nonlocal expected
        if isinstance(effect, Mark) and effect.name == "update":
            expected = expected - lr * gradients[name]

    def check(ledger):
        assert close(sum(settled(replicas, ledger).values()),
                     expected), "the sum moves by -lr g and by nothing else"

    run = simulate(Ledger(deployment, check, asked, answered).deployment, machine, seed)
    assert close(sum(replica.x for replica in run.values.values()), expected)
    return run


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6))
def test_the_mean_moves_only_by_gradients_and_nobody_waits_for_ever(machine, seed, workers, steps):
    problem = quadratic(d=5, workers=workers, noise=1.0, dtype=np.float64)
    trace = conserve(adpsgd.adpsgd(problem, workers, steps, SGD(0.25)), machine, seed, lr=0.25).trace
    active = [f"peer{i}" for i in range(workers) if i % 2]
    assert all(count == steps for count in trace.updates.values())
    assert sum(trace.bytes_sent.values()) == len(active) * steps * 2 * 8 * 5, "M there and M back"
    assert not any(tau for _, tau in trace.staleness), "only its own gradients update a replica"


def test_a_slow_passive_peer_is_averaged_many_times_while_it_computes():
    """One that is ten times slower than its five active neighbours: fifty times, and its gradient misses no
    update of its replica."""
    machine = Machine(compute="fixed(1)", speeds=(0.1,), latency=0.01)
    trace = simulate(adpsgd.adpsgd(integer_gradients(workers=6), 6, 20, SGD(0.01), graph="star"), machine,
                     observe=1).trace
    asked, ends = [e.time for e in trace.of(Received, "peer0")], [e.time for e in trace.marks("update")
                                                                  if e.node == "peer0"]
    served = [sum(a < at <= b for at in asked) for a, b in pairwise([0.0, *ends])]
    assert served[:2] == [50, 50] and not any(served[2:]), "until the others have finished their 20 steps"
    assert {tau for _, tau in trace.staleness} == {0}


def test_averaging_never_increases_the_disagreement():
    """A doubly stochastic matrix is a contraction: gradients at t = 0 only, then the spread can only
    shrink."""
    inner = quadratic(d=5, workers=5, dtype=np.float64)
    problem = Problem(inner.x0, lambda x, rank, t: inner.gradient(x, rank, t) * (t == 0), inner.loss)
    deployment = adpsgd.adpsgd(problem, 5, 30, SGD(0.5))
    replicas = {name: object_of(node) for name, node in deployment.items()}
    applied, spread = [], []

    def asked(name, effect):
        applied.extend([name] if isinstance(effect, Mark) and effect.values.get("t") == 0
                       and effect.name == "update" else [])

    def check(ledger):
        x = np.array(list(settled(replicas, ledger).values()))
        spread.extend([np.sum((x - x.mean(axis=0)) ** 2)] if len(applied) == 5 else [])

    simulate(Ledger(deployment, check, asked).deployment, MACHINE)
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(spread)) and spread[-1] < 0.1 * spread[0]


# -- wrong programs --------------------------------------------------------------------------------------------


def priced_respond(replica):
    """WRONG: the average is computed as an effect, so that a gradient can be applied before it is
    written, and lost."""
    while True:
        i, ask = yield Recv(Ask)
        average = yield Compute(lambda a, b: (a + b) / 2, replica.x, ask.x, kind="update")
        replica.x = average
        yield Send(i, Answer(average))


def one_sided_respond(replica):
    """WRONG: the asked peer answers and keeps its own replica, as in pair averaging."""
    while True:
        i, ask = yield Recv(Ask)
        yield Send(i, Answer((replica.x + ask.x) / 2))


def symmetric_respond(replica):
    """WRONG: each side is sent the other's replica and both average, the passive one before it answers."""
    while True:
        i, ask = yield Recv(Ask)
        replica.x = (replica.x + ask.x) / 2
        yield Send(i, Answer((replica.x + ask.x) / 2))


@pytest.mark.parametrize("wrong", [priced_respond, one_sided_respond, symmetric_respond])
def test_an_average_that_is_not_one_atomic_step_on_both_sides_is_caught(monkeypatch, wrong):
    monkeypatch.setattr(adpsgd, "respond", wrong)
    problem = quadratic(d=5, workers=4, noise=1.0, dtype=np.float64)
    with pytest.raises(AssertionError, match="by nothing else"):
        conserve(adpsgd.adpsgd(problem, 4, 20, SGD(0.25)), MACHINE, 0, lr=0.25)


def overwriting_train(replica, passive, problem, steps):
    """WRONG: the new x is made of the x that the gradient was read at; what was averaged meanwhile is
    overwritten."""
    for t in range(steps):
        x = replica.x
        if passive:
            j = yield Choose(passive)
            yield Send(j, Ask(x))
            x = (yield Recv(Answer, src=j))[1].x
            replica.x = x
        g = yield Compute(problem.gradient, x, replica.rank, t)
        replica.x = x - np.float32(replica.sgd.lr) * g
        yield from replica.mark(t, replica.x)
    return replica


def test_an_update_that_overwrites_averages_is_caught(monkeypatch):
    monkeypatch.setattr(adpsgd, "train", overwriting_train)
    problem = quadratic(d=5, workers=4, noise=1.0, dtype=np.float64)
    with pytest.raises(AssertionError, match="by nothing else"):
        conserve(adpsgd.adpsgd(problem, 4, 20, SGD(0.25)), MACHINE, 0, lr=0.25)


# -- waiting in circles ----------------------------------------------------------------------------------------


class Locked(NamedTuple):
    """Why a symmetric peer cannot answer: its own replica is on its way to somebody else."""

    replica: Replica
    asking: list  # not empty while the own average is under way
    parked: list  # who asked meanwhile


def symmetric_train(neighbours, lock, problem, steps):
    """WRONG: every peer is active, and one that waits for its average answers nobody: its x is spoken for."""
    replica = lock.replica
    for t in range(steps):
        j = yield Choose(neighbours)
        lock.asking.append(j)
        yield Send(j, Ask(replica.x))
        g = yield Compute(problem.gradient, replica.x, replica.rank, t)
        _, answer = yield Recv(Answer, src=j)
        lock.asking.clear()
        replica.x = answer.x - np.float32(replica.sgd.lr) * g
        while lock.parked:
            i, x = lock.parked.pop(0)
            replica.x = (replica.x + x) / 2
            yield Send(i, Answer(replica.x))
    return replica


def symmetric_answers(lock):
    """The responder of a symmetric peer."""
    while True:
        i, ask = yield Recv(Ask)
        if lock.asking:
            lock.parked.append((i, ask.x))
        else:
            lock.replica.x = (lock.replica.x + ask.x) / 2
            yield Send(i, Answer(lock.replica.x))


def odd_cycle(steps=1):
    """Three peers in a ring, all active."""
    problem, names = integer_gradients(d=2, workers=3), peers(3)
    deployment = {}
    for i, me in enumerate(names):
        lock = Locked(Replica(i, problem.x0, SGD(0.25)), [], [])
        others = [name for name in names if name != me]
        deployment[me] = Node(symmetric_train(others, lock, problem, steps), [symmetric_answers(lock)])
    return deployment


def test_the_symmetric_variant_deadlocks_on_an_odd_cycle():
    """Section 3: A waits for B, B for C, C for A; that is why the graph is bipartite."""
    outcomes = []
    for seed in range(20):
        try:
            simulate(odd_cycle(3), Machine(compute="exponential(1)", latency=0.2), seed)
            outcomes.append("ended")
        except Deadlock:
            outcomes.append("deadlock")
    assert "deadlock" in outcomes


@pytest.mark.parametrize("graph, workers", [("ring", 3), ("ring", 5), ("complete", 4)])
def test_a_graph_that_is_not_bipartite_is_refused_in_one_line(graph, workers):
    with pytest.raises(ValueError, match="expected a bipartite graph") as refusal:
        adpsgd.adpsgd(integer_gradients(workers=workers), workers, 1, SGD(0.1), graph=graph)
    assert "\n" not in str(refusal.value)


def test_pair_averaging_is_not_adpsgd():
    """The one-sided variant that is announced under this name does not keep the mean."""
    problem = quadratic(d=5, workers=4, noise=1.0, dtype=np.float64)
    with pytest.raises(AssertionError, match="by nothing else"):
        conserve(pair_averaging.pair_averaging(problem, 4, 20, SGD(0.25)), MACHINE, 0, lr=0.25)


def test_an_unknown_graph_is_answered_with_graphs_that_are_accepted():
    problem = integer_gradients(workers=4)
    with pytest.raises(ValueError) as refusal:
        adpsgd.adpsgd(problem, 4, 1, SGD(0.1), graph="circle")
    assert str(
        refusal.value) == "graph 'circle'; expected one of bipartite, star, ring or bipartite-ring (even n), torus (even sides)"
    accepted = []
    for graph in GRAPHS:
        with suppress(ValueError):
            assert adpsgd.adpsgd(problem, 4, 1, SGD(0.1), graph=graph)
            accepted.append(graph)
    assert set(accepted) == {"bipartite", "star", "ring", "bipartite-ring", "torus"}
