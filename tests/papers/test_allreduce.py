"""What is claimed of all-reduce SGD (Goyal et al. 2017; Sergeev and Del Balso 2018)."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.allreduce import allreduce
from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.collectives import ALLREDUCE
from refsgd.effects import Compute, Mark, Node
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Computed
from tests.strategies import machines, seeds

every = pytest.mark.parametrize("collective", [*ALLREDUCE])
drawn = st.sampled_from([*ALLREDUCE])
MOMENTUM = SGD(0.1, momentum=0.9, weight_decay=0.01)
CALM = Machine(compute="fixed(1)")


def ragged(problem: Problem) -> Problem:
    """Shares of 0 to 3 images; a gradient of an empty share is zero."""
    def images(rank, t):
        return (rank + t) % 4

    return Problem(problem.x0,
                   lambda x, rank, t: problem.gradient(x, rank, t) * np.float32(images(rank, t) > 0),
                   problem.loss,
                   images=images)


def replicas(run):
    return [run.values[peer] for peer in run.trace.nodes]


@given(machine=machines, seed=seeds, collective=drawn, workers=st.integers(1, 6), steps=st.integers(0, 6))
def test_all_peers_hold_the_same_bits_after_every_step_whatever_the_schedule(
    machine, seed, collective, workers, steps):
    problem = ragged(quadratic(d=11, workers=workers, noise=1.0))
    run = simulate(allreduce.allreduce(problem, workers, steps, MOMENTUM, collective=collective), machine,
                   seed)
    calm = simulate(allreduce.allreduce(problem, workers, steps, MOMENTUM, collective=collective), CALM)
    assert all(np.array_equal(x, replicas(calm)[0]) for x in replicas(run))
    by_step = {}
    for mark in run.trace.marks("update"):
        by_step.setdefault(mark.values["t"], set()).add(mark.values["x"].tobytes())
    assert len(by_step) == steps and all(len(seen) == 1 for seen in by_step.values())
    assert run.trace.clock_gap == 0 and run.trace.lead <= 1
    assert all(tau == 0 for _, tau in run.trace.staleness) and len(run.trace.staleness) == workers * steps


@every
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_it_is_bsp_to_rounding_and_bit_for_bit_on_integers(collective, workers):
    """Section 3 of Goyal et al.: the mean over the whole minibatch, which is what a server would compute."""
    integers, rule = integer_gradients(d=9, workers=workers), SGD(0.25)
    for problem, sgd, exact in ((integers, rule, True),
                                (ragged(quadratic(d=9, workers=workers, noise=1.0)), MOMENTUM, False)):
        server = final_parameters(simulate(bsp.bsp(problem, workers, 12, sgd), CALM))
        ours = final_parameters(
            simulate(allreduce.allreduce(problem, workers, 12, sgd, collective=collective), CALM))
        assert np.array_equal(ours, server) if exact else np.allclose(ours, server, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("collective", ["root", "pscpu"])
@pytest.mark.parametrize("workers", [1, 3, 4, 7])
def test_what_adds_in_rank_order_is_bsp_bit_for_bit(collective, workers):
    problem = ragged(quadratic(d=20, workers=workers, noise=1.0))
    server = final_parameters(simulate(bsp.bsp(problem, workers, 20, MOMENTUM, servers=2), CALM))
    ours = simulate(allreduce.allreduce(problem, workers, 20, MOMENTUM, collective=collective), CALM)
    assert all(np.array_equal(x, server) for x in replicas(ours))


@every
def test_one_peer_is_sequential_sgd_and_sends_nothing(collective):
    problem = quadratic(d=9, workers=1, noise=1.0)
    run = simulate(allreduce.allreduce(problem, 1, 10, MOMENTUM, collective=collective))
    assert np.array_equal(final_parameters(run),
                          final_parameters(simulate(sequential.sequential(problem, 1, 10, MOMENTUM))))
    assert run.trace.messages == 0


def test_the_mean_weighs_images_not_peers():
    """Peer 0 has 1 image of gradient 0, peer 1 has 3 of gradient 4, peer 2 has none: the mean is 3, not
    4/3 or 2."""
    images = [1, 3, 0]
    problem = Problem(np.zeros(2, np.float32), lambda x, rank, t: np.full(2, 4.0 * (rank == 1), np.float32),
                      lambda x: 0.0,
                      images=lambda rank, t: images[rank])
    for x in replicas(simulate(allreduce.allreduce(problem, 3, 1, SGD(1.0)))):
        assert np.array_equal(x, [-3.0, -3.0])


def test_a_step_without_images_changes_nothing():
    problem = Problem(np.ones(2, np.float32), lambda x, rank, t: np.zeros(2, np.float32), lambda x: 0.0,
                      images=lambda rank, t: 0)
    assert np.array_equal(final_parameters(simulate(allreduce.allreduce(problem, 3, 4, SGD(1.0)))),
                          problem.x0)


def test_momentum_is_replicated():
    """Section 3: v = 0.5 v + g everywhere; from gradients of 1: steps of 1, 1.5, 1.75."""
    problem = Problem(np.zeros(1, np.float32), lambda x, rank, t: np.full(1, float(2 * rank), np.float32),
                      lambda x: 0.0)
    run = simulate(allreduce.allreduce(problem, 2, 3, SGD(1.0, momentum=0.5)))
    for peer in run.trace.nodes:
        steps = [float(mark.values["x"][0]) for mark in run.trace.marks("update") if mark.node == peer]
        assert steps == [-1.0, -2.5, -4.25]


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_bytes_of_a_peer_hardly_depend_on_their_number(workers):
    """Ring: 2 (n-1)/n M out of each peer and iteration, in 2 (n-1) messages."""
    d, steps = 24, 5
    trace = simulate(allreduce.allreduce(quadratic(d=d, workers=workers), workers, steps, SGD(0.1))).trace
    assert set(trace.bytes_sent.values()) == {round(2 * (workers - 1) / workers * 4 * d * steps)}
    assert trace.messages == steps * workers * 2 * (workers - 1)


def test_an_iteration_of_equal_peers_is_computing_ring_and_update():
    """T + 2 (n-1) (alpha + m beta) + (n-1) m gamma + u in every iteration."""
    n, d, steps = 4, 16, 6
    machine = Machine(compute="fixed(10)", latency=0.5, bandwidth=100, update="fixed(0.25)", reduction=0.01)
    trace = simulate(allreduce.allreduce(quadratic(d=d, workers=n), n, steps, SGD(0.1)), machine).trace
    assert trace.seconds == pytest.approx(steps * (10 + 6 * (0.5 + 16 / 100) + 3 * 16 * 0.01 + 0.25),
                                          rel=1e-12)


def period(collective, n, alpha, w, gamma):
    """Seconds of an iteration after the first twenty; T = 1, a vector takes w seconds on a link and gamma
    to reduce."""
    d = 16 * n
    machine = Machine(compute="fixed(1)", latency=alpha, bandwidth=4 * d / w, reduction=gamma / (4 * d))
    trace = simulate(allreduce.allreduce(quadratic(d=d, workers=n), n, 40, SGD(0.0), collective=collective),
                     machine, observe=1).trace
    times = [e.time for e in trace.marks("update") if e.node == "peer0"]
    return (times[-1] - times[19]) / 20


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("alpha", [0.01, 0.3])
def test_collectives_that_release_all_at_once_keep_the_peers_in_step(n, alpha):
    """Then every iteration is as the first one; a root's answers leave one by one, so pushes come back
    staggered, as in BSP."""
    w, c, share = 1.0, 0.25, (n - 1) / n
    assert period("ring", n, alpha, w, c) == pytest.approx(1 + 2 * (n - 1) * (alpha + w / n) + share * c)
    assert period("pscpu", n, alpha, w, c) == pytest.approx(1 + 2 * alpha + share * (2 * w + c))
    if n & (n - 1) == 0:
        rounds = n.bit_length() - 1
        assert period("recursive-doubling", n, alpha, w, c) == pytest.approx(1 + rounds * (alpha + w + c))
        assert period("halving-doubling", n, alpha, w,
                      c) == pytest.approx(1 + 2 * rounds * alpha + share * (2 * w + c))
    assert period("root", n, alpha, w, c) == pytest.approx(1 + 2 * alpha + n * w + (n - 1) * c)


@pytest.mark.slow  # quickly: that of BSP
def test_an_iteration_waits_for_the_slowest_of_n():
    """E[max of 4 exponentials] = 25/12, within four standard errors; of 3 it is 11/6, of 5 137/60."""
    steps = 1200
    run = simulate(allreduce.allreduce(integer_gradients(d=4), 4, steps, SGD(0.0)),
                   Machine(compute="exponential(1)"), seed=1, observe=1)
    seen, error = run.trace.seconds / steps, np.sqrt(sum(1 / k**2 for k in range(1, 5)) / steps)
    assert abs(seen - 25 / 12) <= 4 * error < min(abs(seen - 11 / 6), abs(seen - 137 / 60))


def mean_of_means(rank, group, problem, steps, sgd):
    """WRONG: sums unweighted gradients and divides by n, as is right for equal shares only."""
    x, v = problem.x0, sgd.start(problem.x0)
    for t in range(steps):
        g = yield Compute(problem.gradient, x, rank, t)
        total = yield from ALLREDUCE["ring"](rank, group, g)
        x, v = yield Compute(sgd.step, x, v, total / np.float32(len(group)), t, kind="update")
        yield Mark("clock", t=t)
    return x


def test_a_mean_of_means_is_caught_by_ragged_shares_and_by_nothing_else():
    group = ["peer0", "peer1", "peer2", "peer3"]
    for problem, caught in ((integer_gradients(workers=4), False),
                            (ragged(integer_gradients(workers=4)), True)):
        wrong = simulate(
            {p: Node(mean_of_means(i, group, problem, 8, SGD(0.25))) for i, p in enumerate(group)})
        right = simulate(bsp.bsp(problem, 4, 8, SGD(0.25)))
        assert np.allclose(final_parameters(wrong), final_parameters(right)) != caught


def test_wrong_arguments_are_refused_in_one_line():
    with pytest.raises(ValueError, match="collective 'telepathy'; expected one of ring, rings"):
        allreduce.allreduce(quadratic(), 2, 1, SGD(0.1), collective="telepathy")
    with pytest.raises(ValueError, match="workers 0; expected at least 1"):
        allreduce.allreduce(quadratic(), 0, 1, SGD(0.1))


def test_rings_are_two_by_default():
    """The messages are those of two rings, not of one or of three."""
    def messages(**how):
        return simulate(allreduce.allreduce(quadratic(d=30), 4, 2, SGD(0.1), collective="rings", **how)).trace.messages

    assert len({messages(rings=n) for n in (1, 2, 3)}) == 3 and messages() == messages(rings=2)


@pytest.mark.parametrize("collective", ["ring", "root", "rings"])
def test_one_session_computes_the_gradients_in_turn_and_changes_nothing_else(collective):
    """Graur, 2.5.2: a controller's one session does the work of all workers, so images per second do not scale."""
    what = {"collective": collective, "workers": 4, "steps": 6, "machine": Machine(compute="fixed(0.1)"), "seed": 3}
    each, one = (refsgd.run("allreduce", session=session, **what) for session in ("each", "one"))
    assert one.parameters_sha256 == each.parameters_sha256
    assert one.measured["bytes_sent"] == each.measured["bytes_sent"]  # a turn has no payload
    assert one.measured["messages"] == each.measured["messages"] + 6 * 3
    assert one.measured["seconds"] == pytest.approx(4 * each.measured["seconds"])
    spans = sorted((e.start, e.time) for e in one.trace.of(Computed) if e.work == "gradient")
    assert all(end <= start + 1e-12 for (_, end), (start, _) in itertools.pairwise(spans))


def test_one_session_without_a_wait_for_the_turn_would_be_noticed():
    spans = sorted((e.start, e.time) for e in refsgd.run(
        "allreduce", workers=4, steps=2, machine=Machine(compute="fixed(0.1)")).trace.of(Computed) if e.work == "gradient")
    assert any(end > start + 1e-12 for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.parametrize(("options", "says"), [
    ({"session": "two"}, "session 'two'"), ({"session": "one", "overlap": "backward"}, "with overlap backward")])
def test_sessions_that_cannot_be_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        refsgd.run("allreduce", **options)
