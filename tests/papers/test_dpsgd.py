"""What is claimed of D-PSGD: Lian et al., NIPS 2017, algorithm 1, and of its adapt-then-combine form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import independent, sequential
from refsgd.algorithms.gossip import dpsgd
from refsgd.algorithms.gossip.dpsgd import Model
from refsgd.algorithms.gossip.graphs import graph_of, metropolis, spectral_gap
from refsgd.algorithms.replica import Replica, peers
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Node, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.simulator import simulate
from tests.strategies import machines, seeds

MACHINE = Machine(compute="exponential(1)", latency=0.1, bandwidth=500.0)
GRAPHS = ["ring", "torus", "complete", "exponential", "star"]
orders = pytest.mark.parametrize("order", ["cta", "atc"])


def curved(workers):
    """Not quadratic, and with another curvature for every worker."""
    a = np.random.default_rng(0).uniform(0.5, 2.0, (workers, 6))
    c = np.random.default_rng(1).standard_normal((workers, 6))
    return Problem(np.ones(6), lambda x, rank, t: a[rank] * np.tanh(x - c[rank]), lambda x: 0.0)


def replicas(run):
    """x of every peer after each iteration, shape (steps, n, d); for at most 64 steps."""
    xs = {name: [e.values["x"] for e in run.trace.marks("update") if e.node == name]
          for name in run.trace.nodes}
    return np.array(list(xs.values())).swapaxes(0, 1)


def rows(workers, W, order, problem, steps, sgd):
    """Deploy with any matrix."""
    program = dpsgd.combine_then_adapt if order == "cta" else dpsgd.adapt_then_combine
    names = peers(workers)
    return {
        me: Node(program(Replica(i, problem.x0, sgd), names,
                         {j: float(W[i][j]) for j in range(workers) if W[i][j] or i == j}, problem, steps))
            for i, me in enumerate(names)}


# -- the pseudo-code -------------------------------------------------------------------------------------------


def test_the_gradient_is_of_the_own_replica_and_is_applied_to_the_average():
    """Algorithm 1: gradient at x_i, average of the neighbourhood, step from the average."""
    problem, names = quadratic(d=2, workers=2), peers(2)
    replica = Replica(0, problem.x0, SGD(1.0))
    program = dpsgd.combine_then_adapt(replica, names, {0: 0.5, 1: 0.5}, problem, 1)
    send = program.send(None)
    assert isinstance(send, Send) and np.array_equal(send.body.x, problem.x0)
    compute = program.send(None)
    assert isinstance(compute, Compute) and compute.args[0] is problem.x0, "while the replicas travel"
    program.send(np.float32([1, 2]))
    update = program.send(("peer1", Model(np.float32([8, 8]))))
    assert np.array_equal(update.fn(*update.args)[0], [3, 2]), "(0 + 8) / 2 - gradient"


@orders
def test_a_replica_reads_itself_as_it_was_after_the_iteration_before(order):
    trace = simulate(dpsgd.dpsgd(quadratic(workers=3), 3, 4, SGD(0.1), order=order), MACHINE).trace
    for name in trace.nodes:
        found = [(e.values["version"], e.values["reads"], e.values["t"]) for e in trace.marks("update")
                 if e.node == name]
        assert found == [(t, ((name, t),), t) for t in range(4)]


def test_combining_first_hides_the_network_behind_the_gradient():
    """An iteration takes max(compute, latency) with cta, and their sum with atc."""
    problem, machine = integer_gradients(workers=4), Machine(compute="fixed(1)", latency=0.75)
    seconds = [simulate(dpsgd.dpsgd(problem, 4, 8, SGD(0.1), order=order), machine).trace.seconds
               for order in ("cta", "atc")]
    assert seconds == [8.0, 14.0]


@pytest.mark.parametrize("order, gap", [("cta", 3), ("atc", 2)])
def test_a_straggler_is_felt_as_far_as_the_graph_is_wide(order, gap):
    """On a ring of 6 the farthest peer is 3 away; cta sends before it computes, so each hop may be one
    iteration."""
    machine = Machine(compute="fixed(1)", speeds=(0.05,))
    assert simulate(dpsgd.dpsgd(integer_gradients(workers=6), 6, 12, SGD(0.1), order=order),
                    machine).trace.clock_gap == gap


def test_replicas_are_added_in_rank_order_so_that_all_of_a_complete_graph_hold_the_same_bits():
    for x in replicas(
        simulate(dpsgd.dpsgd(quadratic(d=64, workers=5), 5, 4, SGD(0.1), graph="complete", order="atc"),
                 MACHINE)):
        assert (x == x[0]).all()


# -- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 4])
def test_on_the_complete_graph_adapt_then_combine_is_bsp_bit_for_bit_and_combine_then_adapt_is_not(workers):
    problem, sgd = integer_gradients(workers=workers), SGD(0.25)
    synchronous = final_parameters(simulate(bsp.bsp(problem, workers, 8, sgd)))
    atc, cta = (simulate(dpsgd.dpsgd(problem, workers, 8, sgd, graph="complete", order=order))
                for order in ("atc", "cta"))
    assert all(np.array_equal(x, synchronous) for x in atc.values.values())
    assert len(
        {x.tobytes() for x in cta.values.values()}) == workers, "replicas differ by their own last gradient"
    assert not np.array_equal(final_parameters(cta),
                              synchronous), "and so the next gradients are taken elsewhere"


@orders
def test_with_the_identity_as_w_it_is_independent_sgd_bit_for_bit(order):
    problem, sgd = quadratic(workers=3, noise=1.0), SGD(0.1, 0.9, 0.01)
    run = simulate(rows(3, np.eye(3), order, problem, 20, sgd), MACHINE)
    alone = simulate(independent.independent(problem, 3, 20, sgd), MACHINE)
    assert all(np.array_equal(run.values[name], alone.values[name]) for name in peers(3))


@orders
def test_one_peer_is_sequential_sgd_bit_for_bit(order):
    problem, sgd = quadratic(workers=1, noise=1.0), SGD(0.1, 0.9, 0.01)
    run = simulate(dpsgd.dpsgd(problem, 1, 20, sgd, order=order), MACHINE)
    assert np.array_equal(final_parameters(run),
                          final_parameters(simulate(sequential.sequential(problem, 1, 20, sgd))))


@orders
@pytest.mark.parametrize("graph", GRAPHS)
def test_equal_replicas_without_gradients_stay_the_same_bits(graph, order):
    problem = Problem(np.float32([0.1, -1 / 3, 1e-30]), lambda x, rank, t: 0 * x, lambda x: 0.0)
    run = simulate(dpsgd.dpsgd(problem, 6, 5, SGD(0.1), graph=graph, order=order), MACHINE)
    assert all(np.array_equal(x, problem.x0) for x in run.values.values())


# -- what averaging with neighbours does -----------------------------------------------------------------------


@orders
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_mean_moves_by_the_mean_gradient_on_any_graph(graph, order):
    """W is doubly stochastic: xbar_t+1 = xbar_t - lr mean_i g_i(x_i_t), in both orders."""
    problem = curved(6)
    xs = replicas(simulate(dpsgd.dpsgd(problem, 6, 12, SGD(0.25), graph=graph, order=order), MACHINE))
    for t in range(11):
        g = np.mean([problem.gradient(xs[t, i], i, t + 1) for i in range(6)], axis=0)
        assert np.allclose(xs[t + 1].mean(axis=0), xs[t].mean(axis=0) - 0.25 * g, rtol=1e-6, atol=1e-6)


def deviations(W, steps=40):
    """|X - Xbar| after each step where only the first one has gradients."""
    n = len(W)
    inner = quadratic(d=8, workers=n, dtype=np.float64)
    problem = Problem(inner.x0, lambda x, rank, t: inner.gradient(x, rank, t) * (t == 0), inner.loss)
    xs = replicas(simulate(rows(n, W, "cta", problem, steps, SGD(1.0))))
    return np.linalg.norm(xs - xs.mean(axis=1, keepdims=True), axis=(1, 2))


@pytest.mark.parametrize("graph, workers",
                         [("ring", 6), ("ring", 9), ("torus", 9), ("star", 5), ("exponential", 6)])
def test_replicas_agree_at_the_rate_of_the_spectral_gap(graph, workers):
    """Each round shrinks the deviation by at least the second eigenvalue of W, and in the long run by
    exactly that."""
    W = metropolis(graph_of(graph, workers))
    left = deviations(W)
    left = left[: np.argmax(left < 1e-5 * left[0]) or None]  # weights are float32
    contraction = 1 - spectral_gap(W)
    assert np.all(left[1:] <= left[:-1] * contraction * (1 + 1e-4))
    assert left[-1] / left[-2] == pytest.approx(contraction, rel=0.02)
    if graph == "ring":
        assert contraction == pytest.approx(1 / 3 + 2 / 3 * np.cos(2 * np.pi / workers))


@given(machine=machines, seed=seeds, workers=st.integers(1, 6), steps=st.integers(0, 6),
       graph=st.sampled_from(GRAPHS),
       order=st.sampled_from(["cta", "atc"]))
def test_no_schedule_changes_a_bit_and_bytes_are_m_per_edge_and_direction(
    machine, seed, workers, steps, graph, order):
    problem, sgd = quadratic(d=3, workers=workers, noise=1.0), SGD(0.1, 0.9)
    deployment = [dpsgd.dpsgd(problem, workers, steps, sgd, graph=graph, order=order) for _ in range(2)]
    run, reference = simulate(deployment[0], machine, seed), simulate(deployment[1], MACHINE)
    assert all(np.array_equal(run.values[name], reference.values[name]) for name in peers(workers))
    for i, name in enumerate(peers(workers)):
        assert run.trace.bytes_sent[name] == steps * len(graph_of(graph, workers)[i]) * 4 * 3
    assert all(tau == 0 for _, tau in run.trace.staleness)
    assert all(x.dtype == np.float32 for x in run.values.values())


# -- wrong programs --------------------------------------------------------------------------------------------


def test_weights_by_the_own_degree_on_an_irregular_graph_are_caught():
    """WRONG: 1 / (deg_i + 1) for oneself and each neighbour, right on a ring; on a star columns do not
    sum to 1."""
    near = graph_of("star", 6)
    W = [[1 / (len(near[i]) + 1) if j == i or j in near[i] else 0.0 for j in range(6)] for i in range(6)]
    problem = curved(6)
    xs = replicas(simulate(rows(6, W, "cta", problem, 5, SGD(0.25))))
    g = np.mean([problem.gradient(xs[0, i], i, 1) for i in range(6)], axis=0)
    assert not np.allclose(xs[1].mean(axis=0), xs[0].mean(axis=0) - 0.25 * g, rtol=1e-3)


def forgets_itself(replica, names, weights, problem, steps):
    """WRONG: the mean of the neighbours alone; W_ii = 0 makes the two sides of an even ring swap forever."""
    others = {j: 1 / (len(weights) - 1) for j in weights if j != replica.rank}
    for t in range(steps):
        for j in others:
            yield Send(names[j], Model(replica.x))
        g = yield Compute(problem.gradient, replica.x, replica.rank, t)
        replica.x = yield from dpsgd.average(replica, names, others)
        yield from replica.apply(g, t)
    return replica.x


def test_a_peer_that_does_not_count_itself_never_agrees(monkeypatch):
    monkeypatch.setattr(dpsgd, "combine_then_adapt", forgets_itself)
    left = deviations(metropolis(graph_of("ring", 6)), 60)
    assert left[-1] > 0.1 * left[0]


def gradient_after_mixing(replica, names, weights, problem, steps):
    """WRONG: averages first and then takes the gradient at the average, which is D-PSGD with an idle
    network."""
    for t in range(steps):
        for j in weights:
            if j != replica.rank:
                yield Send(names[j], Model(replica.x))
        replica.x = yield from dpsgd.average(replica, names, weights)
        g = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)
    return replica.x


def test_a_gradient_at_the_average_is_caught(monkeypatch):
    monkeypatch.setattr(dpsgd, "combine_then_adapt", gradient_after_mixing)
    with pytest.raises(AssertionError):
        test_the_mean_moves_by_the_mean_gradient_on_any_graph("ring", "cta")


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match="order 'both'; expected cta or atc"):
        dpsgd.dpsgd(integer_gradients(), 4, 1, SGD(0.1), order="both")
    with pytest.raises(ValueError, match="graph 'moebius'; expected one of ring"):
        dpsgd.dpsgd(integer_gradients(), 4, 1, SGD(0.1), graph="moebius")
