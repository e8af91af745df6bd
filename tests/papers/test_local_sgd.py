"""What is claimed of local SGD (Stich 2019), post-local SGD (Lin et al. 2020) and DiLoCo (Douillard et
al. 2023)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.averaging import diloco, local_sgd, post_local
from refsgd.algorithms.averaging.local_sgd import mean_move
from refsgd.algorithms.averaging.outer import outer_step
from refsgd.algorithms.baselines import independent, sequential
from refsgd.algorithms.replica import peers
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Node
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.trace.waiting import waiting_by_cause
from tests.strategies import machines, seeds

MACHINE = Machine(compute="exponential(1)", latency=0.1, bandwidth=500.0)
FOREVER = 10**9


def final(deployment, seed=0):
    return final_parameters(simulate(deployment, MACHINE, seed))


def replicas(run):
    """x of every peer after each of its iterations, shape (steps, n, d); for at most 64 steps."""
    xs = {name: [e.values["x"] for e in run.trace.marks("update") if e.node == name]
          for name in run.trace.nodes}
    return np.array(list(xs.values())).swapaxes(0, 1)


def ragged(problem):
    """Shares of 1 to 4 images."""
    return Problem(problem.x0, problem.gradient, problem.loss, images=lambda rank, t: 1 + (rank + t) % 4)


def curved(workers, seed=0):
    """Not quadratic, and with another curvature for every worker: on a shared quadratic wrong variants
    coincide."""
    a = np.random.default_rng(seed).uniform(0.5, 2.0, (workers, 6))
    c = np.random.default_rng(seed + 1).standard_normal((workers, 6))
    return Problem(np.ones(6), lambda x, rank, t: a[rank] * np.tanh(x - c[rank]), lambda x: 0.0)


# -- local SGD -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_with_period_1_it_is_bsp_bit_for_bit(workers, momentum):
    """Also with momentum that is never averaged, since everything is linear in the gradients."""
    problem, sgd = integer_gradients(workers=workers), SGD(0.25, momentum)
    assert np.array_equal(final(local_sgd.local_sgd(problem, workers, 8, sgd, period=1)),
                          final(bsp.bsp(problem, workers, 8, sgd)))


def test_with_period_1_and_unequal_shares_it_is_bsp_because_the_mean_is_over_images():
    """McMahan et al. 2017: replicas weigh by their images."""
    problem, sgd = ragged(curved(3)), SGD(0.25)
    synchronous = final(bsp.bsp(problem, 3, 10, sgd))
    assert np.allclose(final(local_sgd.local_sgd(problem, 3, 10, sgd, period=1)), synchronous, rtol=1e-12)
    unweighted = Problem(problem.x0, problem.gradient, problem.loss)
    assert not np.allclose(final(local_sgd.local_sgd(unweighted, 3, 10, sgd, period=1)), synchronous,
                           rtol=1e-3), "WRONG: mean of means"


def test_with_period_above_1_it_is_not_bsp():
    problem, sgd = curved(3), SGD(0.25)
    assert not np.allclose(final(local_sgd.local_sgd(problem, 3, 10, sgd, period=2)),
                           final(bsp.bsp(problem, 3, 10, sgd)), rtol=1e-6)


@pytest.mark.parametrize("period", [0, FOREVER])
def test_without_averages_it_is_independent_sgd_bit_for_bit_until_the_end(period):
    """Zinkevich et al. 2010: one-shot averaging."""
    problem, sgd = quadratic(workers=3, noise=1.0), SGD(0.1, 0.9, 0.01)
    once = simulate(local_sgd.local_sgd(problem, 3, 20, sgd, period=period), MACHINE)
    alone = simulate(independent.independent(problem, 3, 20, sgd), MACHINE)
    assert np.array_equal(replicas(once), replicas(alone))
    assert once.trace.messages == 2 * 3 * 2, "one all-reduce"
    assert np.allclose(once.values["peer0"], final_parameters(alone), rtol=1e-6)


def test_one_peer_is_sequential_sgd_bit_for_bit():
    problem, sgd = quadratic(workers=1, noise=1.0), SGD(0.1, 0.9, 0.01)
    assert np.array_equal(final(local_sgd.local_sgd(problem, 1, 20, sgd, period=3)),
                          final(sequential.sequential(problem, 1, 20, sgd)))


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 9),
       period=st.integers(0, 5))
def test_replicas_agree_at_the_end_and_bytes_are_those_of_the_averages(machine, seed, workers, steps, period):
    problem, sgd = ragged(quadratic(d=3, workers=workers, noise=1.0)), SGD(0.1, 0.9)
    run = simulate(local_sgd.local_sgd(problem, workers, steps, sgd, period=period), machine, seed)
    reference = simulate(local_sgd.local_sgd(problem, workers, steps, sgd, period=period), MACHINE)
    assert all(np.array_equal(x, reference.values["peer0"])
               for x in run.values.values()), "on every peer, under any schedule"
    rounds = -(-steps // (period or max(1, steps)))
    assert sum(run.trace.bytes_sent.values()) == rounds * 2 * (
        workers - 1) * 4 * 3, "2 (n-1)/n M per peer and round"
    assert run.trace.clock_gap <= max(0, (period or steps) - 1)
    assert all(tau == 0 for _, tau in run.trace.staleness)


def test_the_clock_gap_reaches_h_minus_1():
    machine = Machine(compute="fixed(1)", speeds=(0.05, 1, 1))
    assert simulate(local_sgd.local_sgd(integer_gradients(), 3, 24, SGD(0.1), period=6),
                    machine).trace.clock_gap == 5


def test_the_mean_moves_by_the_mean_gradient_whatever_the_period():
    """Stich 2019, the virtual sequence: xbar_t+1 = xbar_t - lr mean_i g_i(x_i_t)."""
    problem = curved(4)
    xs = replicas(simulate(local_sgd.local_sgd(problem, 4, 12, SGD(0.25), period=5), MACHINE))
    after = xs.copy()
    after[4::5] = xs[4::5].mean(axis=1, keepdims=True)  # averaged at the end of a round
    for t in range(11):
        g = np.mean([problem.gradient(after[t, i], i, t + 1) for i in range(4)], axis=0)
        assert np.allclose(xs[t + 1].mean(axis=0), after[t].mean(axis=0) - 0.25 * g, rtol=1e-12)


def test_replicas_stay_within_the_bound_of_stich():
    """Stich 2019, lemma 3.3: mean |x_i - xbar|^2 <= 4 lr^2 H^2 G^2 for gradients bounded by G."""
    for period in (1, 3, 8):
        problem = integer_gradients(d=4, workers=4)
        xs = replicas(simulate(local_sgd.local_sgd(problem, 4, 32, SGD(0.125), period=period), MACHINE))
        spread = np.mean(np.sum((xs - xs.mean(axis=1, keepdims=True)) ** 2, axis=2), axis=1)
        assert np.all(spread <= 4 * 0.125**2 * period**2 * (4 * 9**2))


def test_replicas_that_did_not_move_come_back_bit_for_bit():
    problem = Problem(np.float32([0.1, -1 / 3, 1e-30]), lambda x, rank, t: 0 * x, lambda x: 0.0)
    for deploy in (local_sgd.local_sgd, post_local.post_local, diloco.diloco):
        assert all(np.array_equal(x, problem.x0)
                   for x in simulate(deploy(problem, 3, 20, SGD(0.1))).values.values())


class AdaGrad(SGD):
    """An optimiser that is not linear in the gradients."""

    def step(self, x, v, g, t):
        v = v + g * g
        return x - x.dtype.type(self.lr) * g / np.sqrt(v + x.dtype.type(1e-6)), v


def test_averaging_replicas_is_not_averaging_gradients_for_an_adaptive_optimiser():
    problem, sgd = curved(3), AdaGrad(0.25)
    assert not np.allclose(final(local_sgd.local_sgd(problem, 3, 5, sgd, period=1)),
                           final(bsp.bsp(problem, 3, 5, sgd)), rtol=1e-3)


def forgetful_peer(replica, names, problem, steps, averages):
    """WRONG: starts each round with a new optimiser, so that momentum never lasts longer than H steps."""
    for t in range(steps):
        if t == 0 or averages(t - 1):
            start, replica.v = replica.x, replica.sgd.start(replica.x)
        g = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)
        if averages(t) or t == steps - 1:
            move = yield from mean_move(replica.rank, names, replica.x - start, [1] * len(names))
            replica.x = start + move
    return replica.x


def fixed_start_peer(replica, names, problem, steps, averages):
    """WRONG: always measures from x0, but adds to where it is: every round's move is counted again."""
    for t in range(steps):
        g = yield Compute(problem.gradient, replica.x, replica.rank, t)
        yield from replica.apply(g, t)
        if averages(t) or t == steps - 1:
            move = yield from mean_move(replica.rank, names, replica.x - problem.x0, [1] * len(names))
            replica.x = replica.x + move
    return replica.x


@pytest.mark.parametrize("wrong, momentum", [(forgetful_peer, 0.5), (fixed_start_peer, 0.0)])
def test_a_wrong_round_is_caught_by_the_limit_of_bsp(monkeypatch, wrong, momentum):
    problem, sgd = integer_gradients(workers=4), SGD(0.25, momentum)
    monkeypatch.setattr(local_sgd, "peer", wrong)
    assert not np.array_equal(final(local_sgd.local_sgd(problem, 4, 8, sgd, period=1)),
                              final(bsp.bsp(problem, 4, 8, sgd)))


@pytest.mark.parametrize("period", [-1, 2.5, float("nan"), float("inf")])
def test_a_wrong_period_is_named(period):
    for deploy in (local_sgd.local_sgd, post_local.post_local, diloco.diloco):
        with pytest.raises(ValueError, match="period .*expected a whole number"):
            deploy(integer_gradients(), 4, 1, SGD(0.1), period=period)


# -- post-local SGD --------------------------------------------------------------------------------------------


def test_with_an_endless_first_phase_it_is_bsp_and_without_one_it_is_local_sgd():
    problem, sgd = integer_gradients(workers=4), SGD(0.25, 0.5)
    deploy = post_local.post_local
    assert np.array_equal(final(deploy(problem, 4, 8, sgd, period=4, switch=FOREVER)),
                          final(bsp.bsp(problem, 4, 8, sgd)))
    problem = quadratic(workers=3, noise=1.0)
    assert np.array_equal(final(deploy(problem, 3, 20, sgd, period=4, switch=0)),
                          final(local_sgd.local_sgd(problem, 3, 20, sgd, period=4)))


def averaged_after(run):
    """The iterations at whose end peer0 took part in an all-reduce."""
    events = [e for e in run.trace.events if e.node == "peer0" and e.program == 0]
    ends = [i for i, e in enumerate(events) if e.kind == "mark" and e.name == "clock"]
    return [events[b].values["t"] for a, b in zip([0, *ends], ends)
            if any(e.kind == "send" for e in events[a:b])]


def test_it_averages_after_every_step_and_later_after_every_h_steps_counted_from_the_switch():
    run = simulate(post_local.post_local(integer_gradients(), 4, 16, SGD(0.25), period=4, switch=5), MACHINE)
    assert averaged_after(run) == [0, 1, 2, 3, 4, 8, 12, 15]
    wrong = [t for t in range(16) if t < 5 or (t + 1) % 4 == 0]
    assert wrong != averaged_after(run), "WRONG: counting from 0 makes the first local round 3 steps long"


def test_before_the_switch_every_bit_is_that_of_synchronous_sgd():
    problem, sgd = curved(3), SGD(0.25, 0.9)
    first = replicas(simulate(post_local.post_local(problem, 3, 16, sgd, period=4, switch=7), MACHINE))
    always = replicas(simulate(local_sgd.local_sgd(problem, 3, 16, sgd, period=1), MACHINE))
    assert np.array_equal(first[:8], always[:8]) and not np.array_equal(first[8:], always[8:])


# -- DiLoCo ----------------------------------------------------------------------------------------------------


def test_with_outer_momentum_0_and_rate_1_it_is_local_sgd_bit_for_bit():
    problem, sgd = ragged(quadratic(workers=3, noise=1.0)), SGD(0.1, 0.9, 0.01)
    a = simulate(diloco.diloco(problem, 3, 20, sgd, period=3, outer_lr=1.0, outer_momentum=0.0), MACHINE)
    b = simulate(local_sgd.local_sgd(problem, 3, 20, sgd, period=3), MACHINE)
    assert np.array_equal(replicas(a),
                          replicas(b)) and np.array_equal(final_parameters(a), final_parameters(b))


@pytest.mark.parametrize("outer_lr, outer_momentum", [(1.0, 0.9), (0.7, 0.9), (0.5, 0.0)])
def test_with_rounds_of_one_step_it_is_synchronous_sgd_with_nesterov_momentum(outer_lr, outer_momentum):
    """Algorithm 1 with H = 1: the outer gradient is lr times the mean gradient, and the outer optimiser
    is Nesterov's."""
    problem, lr = curved(4), 0.25
    x, v = problem.x0, np.zeros(6)
    for t in range(12):
        g = np.float32(lr) * np.mean([problem.gradient(x, i, t) for i in range(4)], axis=0)
        v = outer_momentum * v + g  # torch.optim.SGD(nesterov=True)
        x = x - outer_lr * (g + outer_momentum * v)
    run = simulate(diloco.diloco(problem, 4, 12, SGD(lr), period=1, outer_lr=outer_lr,
                                 outer_momentum=outer_momentum), MACHINE)
    assert np.allclose(final_parameters(run), x, rtol=1e-12)


def test_slowmo_with_rounds_of_one_step_is_synchronous_sgd_with_heavy_ball_momentum():
    """Wang et al.: H = 1 and an outer rate of 1; the sign is that of a descent."""
    problem, lr, beta = curved(4), 0.25, 0.6
    x, v = problem.x0, np.zeros(6)
    for t in range(12):
        v = beta * v + np.mean([problem.gradient(x, i, t) for i in range(4)], axis=0)
        x = x - np.float32(lr) * v
    slow = diloco.diloco(problem, 4, 12, SGD(lr), period=1, outer_lr=1.0, outer_momentum=beta, form="heavy-ball")
    assert np.allclose(final_parameters(simulate(slow, MACHINE)), x, rtol=1e-5)
    assert np.allclose(final(bsp.bsp(problem, 4, 12, SGD(lr, beta))), x, rtol=1e-5)


@pytest.mark.parametrize("outer_lr", [1.0, 0.5])
def test_without_outer_momentum_both_forms_are_the_same_bits(outer_lr):
    problem, sgd = ragged(quadratic(workers=3, noise=1.0)), SGD(0.1, 0.9, 0.01)
    assert np.array_equal(*(final(diloco.diloco(problem, 3, 20, sgd, period=3, outer_lr=outer_lr, outer_momentum=0.0, form=form))
                            for form in ("nesterov", "heavy-ball")))


def heavy_ball(start, u, move, lr, momentum, form):
    """WRONG: Polyak's momentum where the paper has Nesterov's; the gradient of now is not looked ahead."""
    return outer_step(start, u, move, lr, momentum, "heavy-ball")


def from_the_mean(start, u, move, lr, momentum, form):
    """WRONG: first adopts the mean of the replicas, as local SGD does, and then steps from there."""
    return outer_step(start + move, u, move, lr, momentum, form)


def ascending(start, u, move, lr, momentum, form):
    """WRONG: takes the move for a gradient, of which a descent subtracts."""
    return outer_step(start, u, -move, lr, momentum, form)


@pytest.mark.parametrize("wrong", [heavy_ball, from_the_mean, ascending])
def test_a_wrong_outer_step_is_caught(monkeypatch, wrong):
    monkeypatch.setattr(diloco, "outer_step", wrong)
    with pytest.raises(AssertionError):
        test_with_rounds_of_one_step_it_is_synchronous_sgd_with_nesterov_momentum(0.7, 0.9)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 9),
       period=st.integers(1, 5))
def test_every_peer_takes_the_same_outer_step_under_any_schedule(machine, seed, workers, steps, period):
    problem, sgd = ragged(quadratic(d=3, workers=workers, noise=1.0)), SGD(0.1, 0.9)
    run = simulate(diloco.diloco(problem, workers, steps, sgd, period=period), machine, seed)
    reference = final(diloco.diloco(problem, workers, steps, sgd, period=period))
    assert all(np.array_equal(x, reference) for x in run.values.values())
    assert sum(run.trace.bytes_sent.values()) == -(-steps // period) * 2 * (workers - 1) * 4 * 3
    assert all(x.dtype == np.float32 for x in run.values.values())


@pytest.mark.parametrize("options",
                         [{"outer_lr": 0.0}, {"outer_lr": float("inf")}, {"outer_momentum": 1.0},
                          {"outer_momentum": -0.1}])
def test_wrong_outer_options_are_named(options):
    with pytest.raises(ValueError, match="expected a"):
        diloco.diloco(integer_gradients(), 4, 1, SGD(0.1), **options)
    with pytest.raises(ValueError, match="switch -1"):
        post_local.post_local(integer_gradients(), 4, 1, SGD(0.1), switch=-1)


# -- independent SGD -------------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6))
def test_independent_peers_are_sequential_learners_of_their_own_shares(machine, seed, workers, steps):
    """Mann et al. 2009, section 3: each learner sees its part of the data and nobody else."""
    problem, sgd = quadratic(workers=workers, noise=1.0), SGD(0.1, 0.9, 0.01)
    run = simulate(independent.independent(problem, workers, steps, sgd), machine, seed)
    for rank, name in enumerate(peers(workers)):
        own = Problem(problem.x0, lambda x, _, t, rank=rank: problem.gradient(x, rank, t), problem.loss)
        assert np.array_equal(run.values[name], final(sequential.sequential(own, 1, steps, sgd)))
    assert run.trace.messages == 0 and not any(v for k, v in waiting_by_cause(run.trace).items()
                                               if k not in ("update", "straggling"))


def first_share(problem, steps, sgd):
    """WRONG: every peer trains on the share of rank 0, which looks like progress and wastes all but one."""
    x, v = problem.x0, sgd.start(problem.x0)
    for t in range(steps):
        g = yield Compute(problem.gradient, x, 0, t)
        x, v = sgd.step(x, v, g, t)
        yield Mark("clock", t=t)
    return x


def test_peers_that_all_take_the_same_share_are_caught():
    problem = quadratic(workers=3)
    run = simulate({me: Node(first_share(problem, 10, SGD(0.1))) for me in peers(3)}, MACHINE)
    right = simulate(independent.independent(problem, 3, 10, SGD(0.1)), MACHINE)
    assert not np.allclose(run.values["peer2"], right.values["peer2"])
