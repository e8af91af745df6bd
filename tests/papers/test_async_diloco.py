"""What is claimed of asynchronous DiLoCo: delayed Nesterov and dynamic local updates (Liu et al. 2024)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.averaging import diloco
from refsgd.algorithms.federated import async_diloco, fedbuff
from refsgd.algorithms.federated.clients import Trained, Work
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.effects import Recv, Send
from refsgd.problems import Problem, integer_gradients
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.theory import predict
from tests.papers.test_fedavg import still
from tests.strategies import machines, seeds
from tests.watching import FREE, LOCKSTEP, RANDOM, curved, final, moments
from tests.wrong import wrong_deployment

OURS = async_diloco.async_diloco
RULE = SGD(0.1, 0.9, 0.01, StepDecay(3, 0.5))


# -- limits ----------------------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 9), period=st.integers(1, 4), size=st.integers(1, 7),
       rate=st.floats(0.01, 2), spread=st.floats(0, 1), rule=st.sampled_from(["delayed", "vanilla"]))
def test_without_outer_momentum_it_is_fedbuff_bit_for_bit(machine, seed, workers, steps, period, size, rate, spread, rule):
    problem = curved(workers=workers)
    ours = OURS(problem, workers, steps, RULE, period=period, buffer=size, outer_lr=rate, outer_momentum=0.0, spread=spread, rule=rule)
    theirs = fedbuff.fedbuff(problem, workers, steps, RULE, period=period, buffer=1, outer_lr=rate / size, weight="constant")
    assert np.array_equal(final(ours, machine, seed), final(theirs, machine, seed))


def hold_diloco(deploy, steps, period, **options):
    problem, outer = curved(workers=1), {"outer_lr": 0.6, "outer_momentum": 0.8}
    assert np.array_equal(final(deploy(problem, 1, steps, RULE, period=period, **outer, **options)),
                          final(diloco.diloco(problem, 1, steps, RULE, period=period, **outer)))


@given(steps=st.integers(0, 9), period=st.integers(1, 4), spread=st.floats(0, 1), rule=st.sampled_from(["delayed", "vanilla"]), dylu=st.booleans())
def test_one_client_is_diloco_bit_for_bit(steps, period, spread, rule, dylu):
    hold_diloco(OURS, steps, period, spread=spread, rule=rule, dylu=dylu)


def test_clients_in_lockstep_are_not_diloco():
    """A client reads the model after its own move: only the last has read what all peers of DiLoCo read."""
    problem, outer = curved(), {"outer_lr": 0.6, "outer_momentum": 0.8}
    first, second = (np.abs(np.subtract(*(final(deploy(problem, 4, steps, SGD(0.1), period=1, **outer), LOCKSTEP)
                                          for deploy in (OURS, diloco.diloco)))).max() for steps in (1, 2))
    assert first < 1e-6, "all began the first round at the same point"
    assert second > 0.01


# -- the outer steps -------------------------------------------------------------------------------------------


def followed(deploy, seed, workers=4, steps=9, machine=RANDOM, **options):
    """The models of the server before and after each move, and the moves."""
    jobs, moves = {}, []

    def told(node, effect, answer):
        if isinstance(effect, Send) and isinstance(effect.body, Work):
            jobs[effect.to] = effect.body
        elif isinstance(effect, Recv) and node == "server0" and isinstance(answer[1], Trained):
            moves.append(answer[1].x - jobs[answer[0]].x)

    problem, models = curved(workers=workers, dtype=np.float64), []
    for programs in moments(deploy(problem, workers, steps, SGD(0.1), period=2, **options), told, machine, seed):
        shard = programs["server0"].local.get("shard")
        if shard is not None and len(models) <= shard.version:
            models.append(shard.x)
    return np.array(models), np.array(moves)


def hold_sums(deploy, seed, size, spread, rate=0.6, beta=0.8):
    """Over N aligned moves x changes by eps (mean d + beta ((N-1) c m_old + (1 - (N-1) c) m_new))."""
    models, moves = followed(deploy, seed, buffer=size, spread=spread, outer_lr=rate, outer_momentum=beta)
    assert len(models) == 1 + len(moves) == 21
    old, c = np.zeros(6), spread / size
    for k in range(0, len(moves) - size + 1, size):
        mean = moves[k:k + size].mean(axis=0)
        new = beta * old + mean
        for j in range(k, k + size - 1):  # the velocity stays as it was
            assert np.allclose(models[j + 1] - models[j], rate * (c * beta * old + moves[j] / size), atol=1e-12)
        change = rate * (mean + beta * ((size - 1) * c * old + (1 - (size - 1) * c) * new))
        assert np.allclose(models[k + size] - models[k], change, atol=1e-12)
        old = new


@given(seed=seeds, size=st.integers(1, 7), spread=st.sampled_from([0.0, 0.25, 1.0]))
def test_n_moves_are_one_step_along_their_mean_and_the_velocity(seed, size, spread):
    """Without `spread`, c = 0, exactly one step of Nesterov's."""
    hold_sums(OURS, seed, size, spread)


@given(seed=seeds, size=st.integers(1, 7))
def test_vanilla_is_a_step_of_nesterov_at_every_move(seed, size):
    """At 1/N of the rate; the same as N = 1 at that rate."""
    models, moves = followed(OURS, seed, buffer=size, outer_lr=0.6, outer_momentum=0.8, rule="vanilla")
    u = np.zeros(6)
    for k, move in enumerate(moves):
        u = 0.8 * u + move
        assert np.allclose(models[k + 1] - models[k], 0.6 / size * (0.8 * u + move), atol=1e-12)
    again, _ = followed(OURS, seed, buffer=1, outer_lr=0.6 / size, outer_momentum=0.8)
    assert np.array_equal(models, again)


def test_in_the_long_run_both_rules_weigh_a_move_alike():
    """Moves of 1: x gains eps/(1 - beta) in N of them."""
    problem = Problem(np.zeros(1), lambda x, rank, t: -np.ones(1), lambda x: 0.0)
    for rule in ("delayed", "vanilla"):
        x, y = (final(OURS(problem, 4, steps, SGD(1.0), period=1, rule=rule), LOCKSTEP)[0] for steps in (200, 201))
        assert y - x == pytest.approx(0.7 / (1 - 0.9), rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"rule": "vanilla"}, {"dylu": True}, {"spread": 1.0}])
def test_without_gradients_every_bit_stays(options):
    assert np.array_equal(final(OURS(still(), 4, 9, SGD(0.1), period=2, **options)), still().x0)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 7), period=st.integers(1, 4), dylu=st.booleans())
def test_all_clients_work_until_they_have_done_their_steps(machine, seed, workers, steps, period, dylu):
    run = simulate(OURS(integer_gradients(d=3, workers=workers), workers, steps, SGD(0.25), period=period, dylu=dylu), machine, seed)
    ledger(run)
    updates = run.trace.marks("update")
    assert all(len(e.values["reads"]) == 1 for e in updates)
    assert [*run.trace.iterations.values()] == [steps] * workers or not steps
    assert sum(run.trace.bytes_sent.values()) == 2 * 4 * 3 * len(updates)
    assert len(updates) >= workers * -(-steps // period) and (dylu or len(updates) == workers * -(-steps // period))


# -- stability -------------------------------------------------------------------------------------------------


def growth(n, b, beta, rule):
    """By how much n moves of clients that take turns stretch the newest n models, the velocity and the sum of moves."""
    whole = e = np.eye(n + 2)
    for k in range(n):
        move, u, total = -e[n - 1], e[n], e[n + 1]  # what was read n - 1 moves ago
        if rule == "vanilla":
            u, total = beta * u + move, 0 * total
            ahead = beta * u
        else:
            total, ahead = total + move, 0 * move
            if k == n - 1:
                u, total = beta * u + total / n, 0 * total
                ahead = n * beta * u
        whole = np.array([e[0] + b / n * (move + ahead), *e[:n - 1], u, total]) @ whole
    return max(abs(np.linalg.eigvals(whole)))


def largest(n, beta, rule):
    """Up to which b, the outer rate times 1 - (1 - lr a)^H, this converges."""
    low, high = 0.0, 4.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if growth(n, middle, beta, rule) < 1 else (low, middle)
    return low


def far(workers, b, beta, rule, deploy=OURS, rounds=600, **options):
    """How far the model is from the optimum of clients that take turns, and go all the way in a job of one step."""
    problem = Problem(np.ones(1), lambda x, rank, t: x, lambda x: 0.0)
    with np.errstate(all="ignore"):
        return abs(final(deploy(problem, workers, rounds, SGD(1.0), period=1, outer_lr=b, outer_momentum=beta, rule=rule, **options), LOCKSTEP)[0])


@pytest.mark.parametrize(("workers", "beta"), [(1, 0.9), (2, 0.5), (3, 0.9), (4, 0.9), (6, 0.3)])
@pytest.mark.parametrize("rule", ["delayed", "vanilla"])
def test_it_converges_up_to_the_rate_at_which_its_recursion_does(workers, beta, rule):
    limit = largest(workers, beta, rule)
    assert far(workers, 0.95 * limit, beta, rule) < 0.1
    assert not far(workers, 1.05 * limit, beta, rule) < 10


def test_delayed_nesterov_is_stable_at_four_times_the_rate_of_vanilla():
    """DiLoCo's limit is 2 (1 + beta)/(1 + 2 beta); what the page says of four clients."""
    assert largest(1, 0.9, "delayed") == pytest.approx(largest(1, 0.9, "vanilla")) == pytest.approx(3.8 / 2.8)
    assert largest(4, 0.9, "delayed") == pytest.approx(0.76, abs=0.005) and largest(4, 0.9, "vanilla") == pytest.approx(0.1855, abs=0.0005)
    assert largest(4, 0.0, "delayed") == pytest.approx(4 * 2 * math.sin(math.pi / 14)), "FedBuff's, for moves of 1/4"
    for n in (2, 3, 8):
        assert largest(n, 0.9, "delayed") > 2 * largest(n, 0.9, "vanilla")


# -- dynamic local updates -------------------------------------------------------------------------------------


def jobs(deploy, speeds, period, steps, **options):
    """A run in which jobs take their time only, until the fastest ends: the lengths of each client's jobs, and staleness."""
    lengths, problem = {f"worker{i}": [] for i in range(len(speeds))}, Problem(np.zeros(1), lambda x, rank, t: 0 * x, lambda x: 0.0)
    run = simulate(deploy(problem, len(speeds), steps, SGD(0.1), period=period, **options), LOCKSTEP.with_(speeds=speeds))
    ends = steps / max(speeds)
    updates = [e for e in run.trace.marks("update") if e.time < ends]
    for e in updates:
        lengths[e.values["reads"][0][0]].append(e.values["images"])
    return lengths, [e.values["version"] - version for e in updates for _, version in e.values["reads"]]


def hold_equal(deploy):
    lengths, _ = jobs(deploy, (1, 1, 1, 1), 5, 100, dylu=True)
    assert {h for each in lengths.values() for h in each} == {5}


def test_clients_of_equal_speeds_take_h_steps_each():
    hold_equal(OURS)


SPEEDS = [((1, 0.5, 0.1), 20), ((1, 0.8, 0.4, 0.2), 25), ((2, 2, 1), 6), ((1, 0.25, 0.75, 0.5, 1), 8), ((3, 1), 9)]


@pytest.mark.parametrize(("speeds", "period"), SPEEDS)
def test_in_the_end_all_jobs_take_as_long_and_staleness_is_n_minus_1(speeds, period):
    """Exactly, if H v/max v is whole: after H^2 steps of the fastest the server's counts are near enough.  Without DyLU
    a slow client's move is as stale as the others are faster."""
    most, n = max(speeds), len(speeds)
    lengths, stale = jobs(OURS, speeds, period, 20 * period**2, dylu=True)
    for v, each in zip(speeds, lengths.values(), strict=True):
        assert set(each[len(each) // 2:]) == {round(period * v / most)}
    assert set(stale[len(stale) // 2:]) == {n - 1}
    _, stale = jobs(OURS, speeds, period, 20 * period**2)
    slow = min(speeds)
    others = [v / slow for v in sorted(speeds)[1:]]
    assert sum(math.floor(v) for v in others) <= max(stale) <= sum(math.floor(v) + 1 for v in others)
    assert np.mean(stale) == pytest.approx(n - 1, rel=0.02)


def test_where_steps_are_not_whole_a_client_may_push_twice_in_a_job_of_another():
    """Jobs of 15 steps in place of 15.2 are shorter than those of the fastest."""
    lengths, stale = jobs(OURS, (1, 0.76, 0.4, 0.2), 20, 8000, dylu=True)
    assert {h for each in lengths.values() for h in each[len(each) // 2:]} == {20, 15, 8, 4}
    assert max(stale[len(stale) // 2:]) == 4 and np.mean(stale) == pytest.approx(3, rel=0.01)


# -- predictions, schedules, deaths ----------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "period", "law"), [
    (4, 3, "exponential(1)"), (6, 8, "exponential(1)"), (3, 2, "fixed(1)"), (8, 5, "lognormal(1,0.5)"), (2, 7, "exponential(1)")])
def test_predictions(workers, period, law):
    """The staleness within 3 %."""
    p = predict("async_diloco", Machine(compute=law), workers=workers, nbytes=4, steps=400, options={"period": period})
    runs = [simulate(OURS(integer_gradients(d=1, workers=workers), workers, 400, SGD(0.0), period=period), Machine(compute=law), seed).trace
            for seed in range(6)]
    assert p["updates"].value == runs[0].updates["server0"] and p["bytes_sent"].value == sum(runs[0].bytes_sent.values())
    assert p["staleness_mean"].value == pytest.approx(np.mean([tau for trace in runs for _, tau in trace.staleness]), rel=0.03)


def test_what_dylu_sends_is_left_to_a_simulation():
    p = predict("async_diloco", FREE, workers=3, nbytes=4, steps=40, options={"period": 4, "dylu": True})
    assert {"updates", "bytes_sent", "bytes_per_iteration", "staleness_mean"} <= p.open


def test_every_schedule_of_a_small_case():
    for options in ({}, {"dylu": True, "period": 2}):
        report = explore(lambda o=options: OURS(integer_gradients(d=2, workers=2), 2, 3, SGD(0.25), **{"period": 1, **o}), ledger)
        assert report.complete and report.runs > 1


def test_the_others_go_on_when_a_client_has_died():
    result = refsgd.run("async-diloco", data="quadratic", workers=4, steps=8, period=2, lr=0.05, dylu=True,
                        machine=Machine(compute="exponential(1)"), on_death="continue", faults=["kill worker 1 at step 3"])
    assert {w: n for w, n in result.trace.iterations.items() if w != "worker1"} == {"worker0": 8, "worker2": 8, "worker3": 8}


# -- wrong ones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "wrong"), [
    ("if count == size:", "if True:"),  # a velocity of every move
    ("total / number(size)", "total"), ("rate=lr / n", "rate=lr / n**2"),  # divided by N once too seldom, or twice
    ("u = number(momentum) * u + total / number(size)\n        total,", "total,"),  # the velocity never changes
    ("total, count, share = total + move, count + 1, spread", "total, count, share = total, count + 1, spread"),
    ("np.zeros_like(x), 0, size - (size - 1) * spread", "total, 0, size - (size - 1) * spread"),  # moves count again
    ("size - (size - 1) * spread", "size"), ("models[0].x - reads[0]", "models[0].x - x")])
def test_a_wrong_step_is_caught(right, wrong):
    with pytest.raises(AssertionError):
        hold_sums(wrong_deployment(OURS, right, wrong), 0, 3, 0.5)


def test_a_velocity_of_half_the_moves_is_caught():
    """WRONG: the last of the N moves comes too late for the mean."""
    with pytest.raises(AssertionError):
        hold_sums(wrong_deployment(OURS, "total / number(size)", "(total - move) / number(size)"), 0, 3, 0.0)


def test_lengths_by_steps_under_way_are_caught():
    """WRONG: by what was given to clients, not by what they have done."""
    wrong = wrong_deployment(OURS, "h = length(period, done[w], max(done.values()))",
                             "h = length(period, done[w], max(done[v] + (jobs[v].steps if v in jobs else 0) for v in done))")
    with pytest.raises(AssertionError):
        hold_equal(wrong)


@pytest.mark.parametrize("options", [{"period": 0}, {"buffer": 0}, {"outer_lr": 0.0}, {"outer_momentum": 1.0}, {"spread": 1.5}, {"rule": "nesterov"}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="expected"):
        OURS(curved(), 4, 1, SGD(0.1), **options)
