"""What is claimed of stochastic gradient push: Assran et al., ICML 2019, algorithm 1, and of push-sum
below it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.gossip import sgp
from refsgd.algorithms.gossip.graphs import graph_of, one_peer_exponential
from refsgd.algorithms.gossip.sgp import Part
from refsgd.algorithms.replica import Replica, peers
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Sent
from tests.ledger import Ledger, with_bodies
from tests.strategies import machines, seeds
from tests.wrong import wrong_deployment

MACHINE = Machine(compute="exponential(1)", latency=0.1, bandwidth=500.0)
GRAPHS = ["one-peer-exponential", "ring", "complete", "star", "torus"]


def once(workers, d=8):
    """Gradients in the first iteration only: what follows is averaging; x0 moves to the workers' centres."""
    inner = quadratic(d=d, workers=workers, dtype=np.float64)
    return Problem(inner.x0, lambda x, rank, t: inner.gradient(x, rank, t) * (t == 0), inner.loss)


def replicas(run):
    """z of every peer after each iteration, shape (steps, n, d); for at most 64 steps."""
    xs = {name: [e.values["x"] for e in run.trace.marks("update") if e.node == name]
          for name in run.trace.nodes}
    return np.array(list(xs.values())).swapaxes(0, 1)


# -- the pseudo-code -------------------------------------------------------------------------------------------


def test_the_gradient_is_of_the_model_and_is_applied_to_the_numerator():
    """Algorithm 1: gradient at z = x / w, update of x; then equal parts of x and w to oneself and the
    out-neighbours."""
    problem, names = quadratic(d=2, workers=2), peers(2)
    replica = Replica(0, problem.x0, SGD(1.0))
    program = sgp.peer(replica, names, problem, 2, lambda t: [[1], []] if t == 0 else [[], []])
    compute = program.send(None)
    update = program.send(np.float32([-2, -4]))
    assert np.array_equal(compute.args[0], problem.x0) and np.array_equal(update.fn(*update.args)[0], [2, 4])
    send = program.send(update.fn(*update.args))
    assert send.to == "peer1" and np.array_equal(send.body.x, [1, 2]) and send.body.weight == np.float32(0.5)
    mark = program.send(None)  # nobody sends to peer0
    assert np.array_equal(mark.values["x"], [2, 4]), "half of the numerator over half of the weight"
    program.send(None)
    compute = program.send(None)
    assert isinstance(compute, Compute) and np.array_equal(compute.args[0], [2, 4])


def hold_hops(deploy, workers, steps=7):
    """On the one-peer exponential graph peer i sends to i + 2^k, k = 0, 1, ... in turn."""
    hops = [2**k for k in range(workers) if 2**k < workers]
    trace = simulate(deploy(quadratic(workers=workers), workers, steps, SGD(0.1)), MACHINE).trace
    for i in range(workers):
        assert [e.to for e in trace.of(Sent, f"peer{i}")] == [
            f"peer{(i + hops[t % len(hops)]) % workers}" for t in range(steps)]


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8])
def test_hops_double_in_turn_from_one_on(workers):
    hold_hops(sgp.sgp, workers)


def test_hops_in_another_order_are_caught():
    """WRONG: begins with the second hop; it averages as fast."""
    with pytest.raises(AssertionError):
        hold_hops(wrong_deployment(sgp.sgp, "one_peer_exponential(workers, t) if",
                                   "one_peer_exponential(workers, t + 1) if"), 4)


def test_parts_are_added_in_rank_order_so_that_all_of_a_complete_graph_hold_the_same_bits():
    for x in replicas(simulate(sgp.sgp(quadratic(d=64, workers=5), 5, 4, SGD(0.1), graph="complete"),
                               MACHINE)):
        assert (x == x[0]).all()


def test_weights_are_added_in_rank_order_too():
    """Two of 2^-24 are lost one by one in an addition to 1, and not if they are added first."""
    problem = quadratic(d=2, workers=3)
    replica = Replica(2, problem.x0, SGD(1.0))
    program = sgp.peer(replica, peers(3), problem, 1, lambda t: [[2], [2], []])
    program.send(None)
    update = program.send(np.float32([-1, -1]))
    program.send(update.fn(*update.args))
    for i in range(2):
        mark = program.send((f"peer{i}", Part(np.zeros(2, np.float32), np.float32(2**-24))))
    assert np.array_equal(mark.values["x"], np.ones(2, np.float32) / np.float32(1 + 2**-23))


# -- push-sum --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_one_peer_exponential_averages_exactly_after_log2_n_steps(k):
    """Section 3 of the paper: after k steps each peer of n = 2^k holds the mean of all, and not before."""
    xs = replicas(simulate(sgp.sgp(once(2**k), 2**k, k, SGD(1.0)), MACHINE))
    mean = -np.mean([once(2**k).gradient(np.zeros(8), i, 0) for i in range(2**k)], axis=0)
    assert np.allclose(xs[k - 1], mean, rtol=1e-12)
    assert k == 1 or not np.allclose(xs[k - 2], mean, rtol=1e-2)


@pytest.mark.parametrize("graph, workers, gap",
                         [("one-peer-exponential", 2, 0), ("one-peer-exponential", 6, 2),
                          ("one-peer-exponential", 8, 2), ("ring", 6, 2),
                                                 ("star", 5, 1)])
def test_a_straggler_is_felt_as_soon_as_everybody_has_heard_of_it(graph, workers, gap):
    """Parts of step t are of gradients of step t: who has heard of everybody in k steps is at most k - 1
    ahead, and so far they get."""
    machine = Machine(compute="fixed(1)", speeds=(1,) * (workers - 1) + (0.05,))
    assert simulate(sgp.sgp(integer_gradients(workers=workers), workers, 12, SGD(0.1), graph=graph),
                    machine).trace.clock_gap == gap


@pytest.mark.parametrize("workers", [3, 5, 6, 7])
def test_it_is_not_exact_after_a_cycle_for_other_numbers_of_peers(workers):
    steps = (workers - 1).bit_length()
    xs = replicas(simulate(sgp.sgp(once(workers), workers, steps, SGD(1.0)), MACHINE))
    assert not np.allclose(xs[-1], xs[-1][0], rtol=1e-2)


@pytest.mark.parametrize("graph", GRAPHS)
def test_models_agree_on_the_true_mean_on_any_graph(graph):
    """Push-sum: z -> the mean of what the peers began with, also where degrees differ."""
    problem = once(6)
    xs = replicas(simulate(sgp.sgp(problem, 6, 60, SGD(1.0), graph=graph), MACHINE))
    mean = -np.mean([problem.gradient(problem.x0, i, 0) for i in range(6)], axis=0)
    assert np.allclose(xs[-1], mean, rtol=1e-6, atol=1e-6)


def conserve(deployment, machine, seed, workers, lr):
    """Run with books of every peer's (x, w), kept from its messages alone, and hold the program's models
    against them."""
    names = peers(workers)
    x, w, least = dict.fromkeys(names), dict.fromkeys(names, 1.0), [1.0]
    moved = total = None

    def asked(name, effect):
        if isinstance(effect, Compute) and effect.kind == "gradient":
            if x[name] is None:
                x[name] = effect.args[0]
            assert np.allclose(effect.args[0], x[name] / w[name], rtol=1e-9,
                               atol=1e-9), "the gradient is at z = x / w"
        if isinstance(effect, Send):
            x[name], w[name] = x[name] - effect.body.x, w[name] - float(effect.body.weight)
        if isinstance(effect, Mark) and effect.name == "update":
            assert np.allclose(effect.values["x"], x[name] / w[name], rtol=1e-9,
                               atol=1e-9), "what is kept is what was not sent"

    def answered(name, effect, value):
        nonlocal moved
        if isinstance(effect, Compute) and effect.kind == "gradient":
            x[name] = x[name] - lr * value
            moved = lr * value + (0 if moved is None else moved)
        if isinstance(effect, Recv):
            x[name], w[name] = x[name] + value[1].x, w[name] + float(value[1].weight)

    def check(ledger):
        flying = [body for _, body in ledger.messages(Part)]
        assert sum(w.values()) + sum(float(part.weight)
                                     for part in flying) == pytest.approx(workers), "sum of w = n"
        least.append(min(w.values()))

    run = simulate(Ledger(deployment, check, asked, answered).deployment, machine, seed)
    assert min(least) > 0
    if moved is not None:
        total = sum(float(w[name]) * z for name, z in run.values.items())
        assert np.allclose(total, -moved, rtol=1e-9, atol=1e-9), "sum of x = sum of x0 - lr sum of g"
    return run, w


@given(machine=machines, seed=seeds, workers=st.integers(1, 6), steps=st.integers(0, 6),
       graph=st.sampled_from(GRAPHS))
def test_weights_sum_to_n_and_numerators_move_only_by_gradients(machine, seed, workers, steps, graph):
    problem = quadratic(d=3, workers=workers, noise=1.0, dtype=np.float64)
    run, _ = conserve(sgp.sgp(problem, workers, steps, SGD(0.25), graph=graph), machine, seed, workers, 0.25)
    reference = simulate(sgp.sgp(problem, workers, steps, SGD(0.25), graph=graph), MACHINE)
    assert all(np.array_equal(run.values[name], reference.values[name])
               for name in peers(workers)), "under any schedule"
    for i, name in enumerate(peers(workers)):
        near = [one_peer_exponential(workers, t)[i] if graph not in ("ring", "complete", "star", "torus")
                else graph_of(graph, workers)[i] for t in range(steps)]
        assert run.trace.bytes_sent[name] == sum(map(len, near)) * (8 * 3 + 8), "x and w in one message"


def test_where_everybody_hears_as_much_as_he_says_all_weights_are_1():
    for graph in ("one-peer-exponential", "ring", "torus"):
        _, w = conserve(sgp.sgp(quadratic(d=3, workers=6, dtype=np.float64), 6, 9, SGD(0.25), graph=graph),
                        MACHINE, 0, 6, 0.25)
        assert list(w.values()) == pytest.approx([1.0] * 6)
    _, w = conserve(sgp.sgp(quadratic(d=3, workers=6, dtype=np.float64), 6, 9, SGD(0.25), graph="star"),
                    MACHINE, 0, 6, 0.25)
    assert max(w.values()) > 2, "the hub of a star is told more than it says"


def test_float32_models_stay_float32_and_a_message_is_m_plus_4_bytes():
    run = simulate(sgp.sgp(quadratic(d=3, workers=4), 4, 5, SGD(0.1)), MACHINE)
    assert all(x.dtype == np.float32 for x in run.values.values())
    assert sum(run.trace.bytes_sent.values()) == 4 * 5 * (4 * 3 + 4)


def run_with_losses(starts, weight_only):
    """Models after two lost messages of peer1, where peers began at `starts`; what was lost."""
    problem, lost = Problem(0 * starts[0], lambda x, rank, t: -starts[rank] * (t == 0), lambda x: 0.0), []

    def lossy(name, to, body):
        if name != "peer1" or len(lost) == 2:
            return body
        lost.append(body)
        return Part(body.x if weight_only else 0 * body.x, 0 * body.weight)

    run = simulate(with_bodies(sgp.sgp(problem, len(starts), 30, SGD(1.0)), lossy), MACHINE)
    return np.array(list(run.values.values())), lost


def test_a_lost_message_biases_the_mean_by_exactly_what_was_lost_and_losing_half_of_one_is_worse():
    """x and w travel together: lost together, a model is still a weighted mean of models; lost alone, it
    is none."""
    starts = np.random.default_rng(0).standard_normal((4, 3))
    models, lost = run_with_losses(starts, weight_only=False)
    short = (starts.sum(axis=0) - sum(part.x for part in lost)) / (4 - sum(part.weight for part in lost))
    assert np.allclose(models, short) and not np.allclose(short, starts.mean(axis=0), rtol=1e-2)
    same = np.ones((4, 3))
    models, lost = run_with_losses(same, weight_only=False)
    assert np.allclose(models, 1), "a mean of equal models is that model"
    models, lost = run_with_losses(same, weight_only=True)
    assert np.allclose(models,
                       4 / (4 - sum(part.weight for part in lost))), "not so when only the weight is lost"


# -- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 4])
def test_on_the_complete_graph_it_is_bsp_bit_for_bit(workers):
    """P = 11'/n."""
    problem, sgd = integer_gradients(workers=workers), SGD(0.25)
    synchronous = final_parameters(simulate(bsp.bsp(problem, workers, 8, sgd)))
    assert all(np.array_equal(x, synchronous)
               for x in simulate(sgp.sgp(problem, workers, 8, sgd, graph="complete")).values.values())


def test_one_peer_is_sequential_sgd_bit_for_bit():
    problem, sgd = quadratic(workers=1, noise=1.0), SGD(0.1, 0.9, 0.01)
    run = simulate(sgp.sgp(problem, 1, 20, sgd), MACHINE)
    assert np.array_equal(final_parameters(run),
                          final_parameters(simulate(sequential.sequential(problem, 1, 20, sgd))))


@pytest.mark.parametrize("workers", [2, 3, 4, 6])
def test_equal_models_without_gradients_stay_the_same_bits(workers):
    """Halving is exact, so one message per step keeps every bit; thirds would not."""
    problem = Problem(np.float32([0.1, -1 / 3, 1e-30]), lambda x, rank, t: 0 * x, lambda x: 0.0)
    assert all(np.array_equal(x, problem.x0)
               for x in simulate(sgp.sgp(problem, workers, 9, SGD(0.1)), MACHINE).values.values())


# -- wrong programs --------------------------------------------------------------------------------------------


def wrong_peer(gradient_at_numerator=False, weight_stays=False, keeps_all=False, scales_step=False):
    """SGP with one thing wrong."""
    def peer(replica, names, problem, steps, out):
        rank, x, w = replica.rank, replica.x, 1.0
        for t in range(steps):
            at = x if gradient_at_numerator else x / w
            g = yield Compute(problem.gradient, at, rank, t)
            x = x - np.float32(replica.sgd.lr) * (w if scales_step else 1.0) * g
            to = out(t)
            part = Part(x / (len(to[rank]) + 1), np.float64(w / (len(to[rank]) + 1)))
            for j in to[rank]:
                yield Send(names[j], part)
            x, w = (x, w) if keeps_all else part
            for j in range(len(names)):
                if rank in to[j]:
                    _, (dx, dw) = yield Recv(Part, src=names[j])
                    x, w = x + dx, w + dw
            w = 1.0 if weight_stays else w
            yield Mark("update", part=0, version=t, reads=(), t=t, x=x / w)
        return x / w
    return peer


@pytest.mark.parametrize("wrong", [
    {"gradient_at_numerator": True},  # WRONG: gradient at x; the same on regular graphs, where every w is 1
    {"weight_stays": True},  # WRONG: plain averaging of parts, as if rows summed to 1 too
    {"keeps_all": True},  # WRONG: sends parts and forgets to give them away
    {"scales_step": True},  # WRONG: the step is scaled by w, so that z instead of x moves by -lr g
])
def test_a_wrong_push_is_caught_where_degrees_differ(monkeypatch, wrong):
    problem = quadratic(d=3, workers=5, noise=1.0, dtype=np.float64)
    monkeypatch.setattr(sgp, "peer", wrong_peer())
    conserve(sgp.sgp(problem, 5, 9, SGD(0.25), graph="star"), MACHINE, 0, 5, 0.25)
    monkeypatch.setattr(sgp, "peer", wrong_peer(**wrong))
    with pytest.raises(AssertionError):
        conserve(sgp.sgp(problem, 5, 9, SGD(0.25), graph="star"), MACHINE, 0, 5, 0.25)


def test_an_unknown_graph_is_named():
    with pytest.raises(ValueError, match="graph 'exponential-growth'; expected one of"):
        sgp.sgp(integer_gradients(), 4, 1, SGD(0.1), graph="exponential-growth")


def test_an_unknown_graph_is_answered_with_all_that_are_known():
    with pytest.raises(ValueError,
                       match="graph 'circle'; expected one of one-peer-exponential, ring, torus, complete, "
                             "exponential, bipartite"):
        sgp.sgp(quadratic(workers=4), 4, 1, SGD(0.1), graph="circle")
