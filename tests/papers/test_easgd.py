"""What is claimed of elastic averaging SGD (Zhang, Choromanska and LeCun, NIPS 2015)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.averaging import easgd
from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.parts import Shard
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Node, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from tests.strategies import machines, seeds
from tests.watching import FREE, LOCKSTEP, RANDOM, constant, curved, final, moments


def paper(problem, steps, sgd, period, alpha, post_elastic=False):
    """Algorithm 2 for one worker, line by line; with `post_elastic` the gradient is taken where the
    exchange left x."""
    x = center = problem.x0
    v = np.zeros_like(x)
    mu, lr, alpha = np.float32(sgd.momentum), np.float32(sgd.lr), np.float32(alpha)
    for t in range(steps):
        saved = x
        if t % period == 0:
            x = saved - alpha * (saved - center)
            center = center + alpha * (saved - center)
        z = (x if post_elastic else saved) + mu * v
        v = mu * v - lr * (problem.gradient(z, 0, t) + np.float32(sgd.weight_decay) * z)
        x = x + v
    return x, center


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("period", [1, 3])
def test_one_worker_follows_algorithms_1_and_2_line_by_line(momentum, period):
    """Algorithm 2 (EAMSGD); without momentum it is algorithm 1."""
    problem, sgd = curved(workers=1), SGD(0.1, momentum, weight_decay=0.5)
    run = simulate(easgd.easgd(problem, 1, 20, sgd, 3, period=period, alpha=0.3), RANDOM)
    x, center = paper(problem, 20, sgd, period, 0.3)
    assert np.allclose(run.values["worker0"], x, rtol=1e-5, atol=1e-6)
    assert np.allclose(final_parameters(run), center, rtol=1e-5, atol=1e-6)


def test_the_gradient_is_taken_before_the_exchange_not_after_it():
    """WRONG, yet in more than one library: algorithm 1 saves x first and takes the gradient there."""
    problem, sgd = curved(workers=1), SGD(0.1)
    run = simulate(easgd.easgd(problem, 1, 20, sgd, period=1, alpha=0.3), RANDOM)
    assert not np.allclose(run.values["worker0"], paper(problem, 20, sgd, 1, 0.3, post_elastic=True)[0],
                           rtol=1e-3)


@pytest.mark.parametrize("workers", [2, 5])
def test_sync_is_the_synchronous_rule(workers):
    """Section 3: all right-hand sides at time t; centre = (1 - beta) centre + beta mean(x_i), beta = n
    alpha."""
    problem, alpha = curved(workers=workers, dtype=np.float64), 0.9 / workers
    xs, center = [problem.x0] * workers, problem.x0
    for t in range(12):
        xs, center = ([x - 0.1 * problem.gradient(x, i, t) - alpha * (x - center) for i, x in enumerate(xs)],
                      0.1 * center + 0.9 * np.mean(xs, axis=0))
    run = simulate(easgd.easgd(problem, workers, 12, SGD(0.1), period=1, mode="sync"), RANDOM)
    assert np.allclose(final_parameters(run), center, rtol=1e-5)  # alpha and the rate are float32
    assert all(np.allclose(run.values[f"worker{i}"], xs[i], rtol=1e-5) for i in range(workers))


@given(machine=machines, seed=seeds, servers=st.integers(1, 3), steps=st.integers(0, 7),
       period=st.integers(1, 3))
def test_sync_depends_neither_on_the_schedule_nor_on_the_servers(machine, seed, servers, steps, period):
    problem, sgd = curved(), SGD(0.1, 0.5)
    reference = final(easgd.easgd(problem, 4, steps, sgd, period=period, mode="sync"), LOCKSTEP)
    run = simulate(easgd.easgd(problem, 4, steps, sgd, servers, period=period, mode="sync"), machine, seed)
    assert np.array_equal(final_parameters(run), reference)
    assert all(tau == 0 for _, tau in run.trace.staleness)


def imbalance(deployment, problem, workers, machine, seed):
    """Largest change of sum x_i + centre + forces under way - steps, over all moments of a run."""
    under_way, received, steps, worst = [], [], [np.zeros_like(problem.x0)], 0.0

    def told(node, effect, answer):
        if isinstance(effect, Send) and isinstance(effect.body, easgd.Elastic):
            under_way.append(effect.body.force)
        elif isinstance(effect, Recv) and isinstance(answer[1], easgd.Elastic):
            received.append(answer[1].force)
        elif isinstance(effect, Compute) and effect.fn is easgd.nesterov:
            steps.append(answer[1])

    for nodes in moments(deployment, told, machine, seed):
        if any(isinstance(p.effect, Send) for p in nodes.values()):
            continue  # in the middle of an exchange
        server = nodes["server0"]
        if not isinstance(server.effect, Compute) and received:  # applied
            under_way[:] = [e for e in under_way if all(e is not r for r in received)]
            received.clear()
        replicas = sum(nodes[f"worker{i}"].local["x"] for i in range(workers)
                       if "x" in nodes[f"worker{i}"].local)
        center = server.local["center"].x if server.effect is not None else server.value
        total = replicas + center + sum(under_way, np.zeros_like(problem.x0)) - sum(steps)
        worst = max(worst, float(np.max(np.abs(total - (workers + 1) * problem.x0))))
    return worst


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), period=st.integers(1, 3),
       alpha=st.sampled_from([0.1, 0.5, 1.0]),
       momentum=st.sampled_from([0.0, 0.9]))
def test_an_exchange_conserves_the_sum_of_replicas_and_centre_with_forces_under_way(
    machine, seed, workers, period, alpha, momentum):
    """Section 3: the same vector is taken from the replica and added to the centre, however old the
    centre that it was computed from."""
    problem = curved(workers=workers, dtype=np.float64)
    deployment = easgd.easgd(problem, workers, 6, SGD(0.1, momentum), period=period, alpha=alpha)
    assert imbalance(deployment, problem, workers, machine, seed) < 1e-10


def two_sided_server(center, exchanges, alpha):
    """WRONG: takes the force from its own present centre, "because that one is newer"; the worker has
    used another."""
    seen = [center.x]
    while center.version < exchanges:
        w, message = yield Recv(easgd.Fetch, easgd.Elastic)
        if isinstance(message, easgd.Fetch):
            yield Send(w, easgd.Model(center.x, center.version))
        else:
            force = message.force + alpha * (seen[message.version] - center.x)
            center.x = yield Compute(easgd.add, center.x, force, kind="update")
            seen.append(center.x)
            yield from center.mark(((w, message.version),), images=0)
    return center.x


def test_a_force_from_another_centre_on_each_side_is_caught():
    problem = curved(workers=3, dtype=np.float64)
    wrong = dict(easgd.easgd(problem, 3, 6, SGD(0.1), period=1, alpha=0.3))
    wrong["server0"] = Node(two_sided_server(Shard(0, problem.x0, SGD(0.1)), 18, 0.3), role="server")
    assert imbalance(wrong, problem, 3, RANDOM, 0) > 1e-3


def test_every_schedule_of_two_workers_conserves_the_sum():
    problem, told = integer_gradients(d=2, workers=2), []

    def gradient(x, rank, t):
        return np.full(2, 1 + rank, np.float32)

    def check(run):
        total = final_parameters(run) + run.values["worker0"] + run.values["worker1"]
        assert np.array_equal(total, np.full(2, -0.25 * 2 * 3, np.float32))
        told.append(run.trace.staleness)

    constant_problem = Problem(problem.x0, gradient, problem.loss)
    report = explore(lambda: easgd.easgd(constant_problem, 2, 2, SGD(0.25), period=1, alpha=0.5), check)
    assert report.complete and any(tau for taus in told for _, tau in taus)
    sync = explore(lambda: easgd.easgd(curved(workers=2), 2, 2, SGD(0.25), period=1, mode="sync"),
                   observe=lambda run: final_parameters(run).tobytes())
    assert sync.complete and len(sync.finals) == 1


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("options", [{"alpha": 0.0, "period": 2}, {"period": 1000}])
def test_without_force_workers_are_independent_and_the_centre_never_moves(mode, options):
    """alpha = 0, or a period beyond the run: its only exchange, at t = 0, is of equal vectors."""
    problem, sgd = curved(), SGD(0.1)
    run = simulate(easgd.easgd(problem, 4, 15, sgd, mode=mode, **options), RANDOM)
    assert np.array_equal(final_parameters(run), problem.x0)
    for i in range(4):
        alone = Problem(problem.x0, lambda x, rank, t, i=i: problem.gradient(x, i, t), problem.loss)
        assert np.array_equal(run.values[f"worker{i}"], final(sequential.sequential(alone, 1, 15, sgd)))


def after_a_kick(alpha, steps, workers=1, mode="async", machine=FREE):
    """Replica 0 and centre where only the first gradient of worker 0 is not zero (it moves to -1)."""
    problem = constant(lambda rank, t: float(rank == 0 and t == 0), d=1)
    run = simulate(easgd.easgd(problem, workers, steps, SGD(1.0), period=1, alpha=alpha, mode=mode), machine)
    return float(run.values["worker0"][0]), float(final_parameters(run)[0])


def test_one_half_moves_both_to_the_middle_and_one_swaps_them():
    """Distance after an exchange with a fresh centre: |1 - 2 alpha| times that before."""
    assert after_a_kick(0.5, 2) == (-0.5, -0.5)
    assert after_a_kick(1.0, 2) == (0.0, -1.0)
    assert after_a_kick(1.0, 3) == (-1.0, 0.0)
    x, center = after_a_kick(0.25, 2)
    assert abs(x - center) == 0.5


@pytest.mark.parametrize("mode, machine, workers, limit",
                         [("async", FREE, 1, 1), ("async", FREE, 3, 1), ("sync", FREE, 3, 0.5),
                          ("async", LOCKSTEP, 3, 0.5)])
def test_exchanges_alone_are_stable_up_to_a_limit(mode, machine, workers, limit):
    """With a fresh centre: alpha < 1; if all fetch the same one, alpha (n + 1) < 2, in async as well."""
    def distance(alpha, steps):
        x, center = after_a_kick(alpha, steps, workers, mode, machine)
        return abs(x - center)

    assert distance(0.98 * limit, 400) < 0.5 * distance(0.98 * limit, 10)
    assert distance(1.05 * limit, 400) > 2 * distance(1.05 * limit, 10)


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("workers, servers, steps, period",
                         [(1, 1, 5, 2), (4, 1, 9, 4), (3, 5, 6, 1), (2, 2, 0, 3)])
def test_bytes_are_a_model_down_and_a_force_up_per_exchange(mode, workers, servers, steps, period):
    """Momentum never travels."""
    exchanges = workers * -(-steps // period)
    for momentum in (0.0, 0.9):
        trace = simulate(easgd.easgd(curved(workers=workers), workers, steps, SGD(0.1, momentum), servers,
                                     period=period, mode=mode), RANDOM).trace
        assert sum(trace.bytes_sent.values()) == 2 * exchanges * 24
        assert trace.messages == 3 * exchanges * servers
        assert all(count == exchanges // (workers if mode == "sync" else 1)
                   for count in trace.updates.values())


@pytest.mark.parametrize("period", [1, 2, 4])
def test_sync_bounds_the_clocks_to_two_periods_and_async_does_not(period):
    """The next centre is shown when all forces of this one are in: a round ahead of a worker that has
    begun its own, as SSP with slack 1."""
    machine = Machine(compute="fixed(1)", speeds=(0.02,))
    sync, free = (
        simulate(easgd.easgd(integer_gradients(workers=3), 3, 40, SGD(0.1), period=period, mode=mode),
                 machine).trace for mode in ("sync", "async"))
    assert sync.clock_gap == 2 * period - 1 and sync.lead == 2 * period
    assert free.clock_gap > 2 * period


def test_a_longer_period_waits_less():
    seconds = [simulate(easgd.easgd(curved(), 4, 48, SGD(0.0), period=p), RANDOM).trace.seconds
               for p in (1, 4, 16)]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("options",
                         [{"period": 0}, {"alpha": -0.1}, {"alpha": float("inf")}, {"alpha": float("nan")},
                          {"mode": "fast"}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="expected"):
        easgd.easgd(curved(), 4, 1, SGD(0.1), **options)
