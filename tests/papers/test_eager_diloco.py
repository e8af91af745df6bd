"""What is claimed of eager and delayed DiLoCo (Kale, Douillard and Donchev 2025)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.averaging import diloco, eager_diloco, local_sgd
from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.explorer import explore, walk
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.theory import predict
from tests.strategies import machines, seeds
from tests.watching import RANDOM, curved, final, ragged, recorded
from tests.wrong import wrong_deployment

MODES = "eager", "delayed", "whole"
COCOD = {"period": 3, "outer_lr": 1.0, "outer_momentum": 0.0, "mode": "whole"}


def deployed(problem, workers, steps, sgd, deploy=eager_diloco.eager_diloco, **options):
    return deploy(problem, workers, steps, sgd, **{"period": 3, "outer_lr": 0.5, "outer_momentum": 0.0, **options})


def rounds_of(problem, workers, steps, lr, machine=RANDOM, seed=0, **options):
    """Starts and moves (round, peer, d) of a run of plain SGD, weights of the moves (round, peer), and what the
    peers return."""
    problem, seen = recorded(problem)
    run = simulate(deployed(problem, workers, steps, SGD(lr), **options), machine, seed)
    before = {(rank, t): (x, x - x.dtype.type(lr) * g) for rank, t, x, g in seen}
    first = range(0, steps, 3)
    starts = np.array([[before[i, t][0] for i in range(workers)] for t in first])
    ends = np.array([[before[i, min(t + 3, steps) - 1][1] for i in range(workers)] for t in first])
    images = np.array([[sum(problem.images(i, s) for s in range(t, min(t + 3, steps))) for i in range(workers)]
                       for t in first], float)
    return starts, ends - starts, images / images.sum(axis=1, keepdims=True), np.array(list(run.values.values()))


def check_telescoping(mode, **options):
    """Without outer momentum a peer has all means of the rounds before, and of its last move its own share, all, or
    nothing."""
    problem = ragged(3, dtype=np.float64)
    for steps in (2, 3, 6, 13):
        starts, moves, share, ends = rounds_of(problem, 3, steps, 0.125, mode=mode, **options)
        means = np.einsum("rn,rnd->rd", share, moves)
        for r in range(1, len(starts)):
            own = moves[r - 1] * {"eager": share[r - 1, :, None], "whole": 1, "delayed": 0}[mode]
            assert np.allclose(starts[r], problem.x0 + 0.5 * (means[:r - 1].sum(axis=0) + own), rtol=1e-12, atol=1e-14)
        assert np.allclose(ends, problem.x0 + 0.5 * means.sum(axis=0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_every_move_is_applied_exactly_once(mode):
    check_telescoping(mode)


@pytest.mark.parametrize(("right", "wrong"), [
    ("direction + (mean - applied.popleft())", "direction + mean + 0 * applied.popleft()"),  # 1 + 1/n times
    ("own = number(share[replica.rank]) * move / number(whole)", "own = move"),  # n times at once
    ("own = number(share[replica.rank]) * move / number(whole)", "own = move / number(len(names))"),  # as if equal
    ("(0 if last else 1)", "1"),  # the last mean is lost
    ("(0 if last else 1)", "0"),  # DiLoCo, which waits
])
def test_wrong_sums_are_caught(right, wrong):
    with pytest.raises(AssertionError):
        check_telescoping("eager", deploy=wrong_deployment(eager_diloco.eager_diloco, right, wrong))


@pytest.mark.parametrize(("right", "wrong"), [
    ('"whole": move}', '"whole": own}'),  # eager
    ("applied.append(direction)", "applied.append(own)"),  # of the move only the share is taken back
    ("(0 if last else 1)", "1"),
])
def test_wrong_sums_of_whole_moves_are_caught(right, wrong):
    with pytest.raises(AssertionError):
        check_telescoping("whole", deploy=wrong_deployment(eager_diloco.eager_diloco, right, wrong))


@pytest.mark.parametrize("mode", MODES)
def test_with_momentum_it_is_the_recursion_by_hand(mode):
    """Each peer has a velocity of its own, into which means go as they are applied."""
    problem, n, lr, mu = curved(dtype=np.float64), 4, 0.125, 0.8
    x, u, late = np.zeros((n, 6)), np.zeros((n, 6)), np.zeros((n, 6))
    for r in range(5):
        end = x.copy()
        for t in range(3 * r, 3 * r + 3):
            end -= lr * np.array([problem.gradient(end[i], i, t) for i in range(n)])
        move = end - x
        own = move * {"eager": 1 / n, "whole": 1, "delayed": 0}[mode]
        direction, late = own + late, move.mean(axis=0) - own
        direction = direction + late * (r == 4)
        u = mu * u + direction
        x = x + 0.5 * (direction + mu * u)
    run = simulate(deployed(problem, n, 15, SGD(lr), outer_momentum=mu, mode=mode), RANDOM)
    assert np.allclose(np.array([run.values[f"peer{i}"] for i in range(n)]), x, rtol=1e-12)


# -- CoCoD-SGD: the whole move at once, outer rate 1 ------------------------------------------------------------


def test_whole_moves_are_cocod_sgd():
    """Its authors' rule: the mean of the starts a round ago, and the own move since then."""
    problem, n, lr = curved(dtype=np.float64), 4, 0.125
    x = start = anchor = np.zeros((n, 6))
    for r in range(5):
        for t in range(3 * r, 3 * r + 3):
            x = x - lr * np.array([problem.gradient(x[i], i, t) for i in range(n)])
        x = start = anchor + (x - start)
        anchor = np.broadcast_to(start.mean(axis=0), start.shape)  # on its way during the next round
    run = simulate(deployed(problem, n, 15, SGD(lr), **COCOD), RANDOM)
    assert all(np.allclose(found, anchor[0], rtol=1e-12) for found in run.values.values())


def test_the_mean_of_cocod_has_no_delay_as_that_of_local_sgd():
    """The mean of the starts moves by the mean move of the round, with equal shares."""
    starts, moves, _, ends = rounds_of(curved(workers=3, dtype=np.float64), 3, 15, 0.125, **COCOD)
    mean = starts.mean(axis=1)
    assert np.allclose([*mean[1:], ends[0]], mean + moves.mean(axis=1), rtol=1e-11)
    theirs = final(local_sgd.local_sgd(curved(workers=3), 3, 15, SGD(0.125), period=3))
    assert not np.allclose(ends[0], theirs, rtol=1e-3), "whose moves are others"


@given(machine=machines, seed=seeds, steps=st.integers(0, 9))
def test_cocod_of_one_peer_is_sequential(machine, seed, steps):
    problem, sgd = curved(workers=1), SGD(0.1, 0.9, 0.01)
    ours = final(deployed(problem, 1, steps, sgd, **COCOD), machine, seed)
    assert np.allclose(ours, final(sequential.sequential(problem, 1, steps, sgd)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("mode", "limit"), [("whole", 1), ("eager", 3), ("delayed", 99)])
def test_replicas_part_where_an_own_move_overshoots(mode, limit):
    """Of b x they add their share at once, so that the distances of replicas change by -b, or -b/n for three."""
    noise = np.array([[1.0], [2.0], [-3.0]])  # of the first step; later the minimum is common
    for b in (0.5, 0.95, 1.05, 1.5):
        problem, seen = recorded(Problem(np.zeros(1), lambda x, rank, t: noise[rank] if t == 0 else x, lambda x: 0.0))
        simulate(deployed(problem, 3, 41, SGD(1.0), period=1, outer_lr=b, mode=mode), RANDOM)
        apart = [np.ptp([x for _, t, x, _ in seen if t == k]) for k in (1, 2, 40)]
        if mode == "delayed":
            assert apart == [0, 0, 0]
        else:
            assert apart[1] == pytest.approx(apart[0] * b / limit) and (apart[2] < apart[0]) == (b < limit)


# -- one peer, one round ---------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, steps=st.integers(0, 9), momentum=st.sampled_from([0.0, 0.9]),
       mode=st.sampled_from(["eager", "whole"]))
def test_one_peer_is_diloco_bit_for_bit(machine, seed, steps, momentum, mode):
    problem, sgd = curved(workers=1), SGD(0.1, 0.9, 0.01)
    ours, theirs = (simulate(deployed(problem, 1, steps, sgd, deploy, outer_momentum=momentum, **more), machine, seed)
                    for deploy, more in ((eager_diloco.eager_diloco, {"mode": mode}), (diloco.diloco, {})))
    assert np.array_equal(ours.values["peer0"], theirs.values["peer0"])


def test_a_run_of_one_round_is_diloco_and_a_longer_one_is_not():
    problem, sgd = ragged(), SGD(0.1, 0.9, 0.01)
    for steps, alike in ((3, True), (2, True), (4, False), (9, False)):
        theirs = final(deployed(problem, 4, steps, sgd, diloco.diloco, outer_momentum=0.9))
        late = final(deployed(problem, 4, steps, sgd, outer_momentum=0.9, mode="delayed"))
        assert np.array_equal(late, theirs) == alike
        assert np.allclose(final(deployed(problem, 4, steps, sgd, outer_momentum=0.9)), theirs, rtol=1e-5) == alike


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), steps=st.integers(0, 10), mode=st.sampled_from(MODES))
def test_the_schedule_changes_nothing(machine, seed, workers, steps, mode):
    problem, sgd = ragged(workers), SGD(0.1, 0.9)
    run, reference = (simulate(deployed(problem, workers, steps, sgd, outer_momentum=0.9, mode=mode), m, s)
                      for m, s in ((machine, seed), (RANDOM, 0)))
    assert all(np.array_equal(x, reference.values[name]) for name, x in run.values.items())
    assert sum(run.trace.bytes_sent.values()) == -(-steps // 3) * 2 * (workers - 1) * 4 * 6
    assert all(x.dtype == np.float32 for x in run.values.values())
    assert run.trace.clock_gap <= 5 and run.trace.lead <= 6
    if mode == "delayed":  # one model
        assert all(np.array_equal(x, run.values["peer0"]) for x in run.values.values())


def test_the_bound_of_the_clock_gap_is_met():
    """A peer ends the next round while the slowest still takes its outer step."""
    machine = Machine(compute="fixed(1)", update="fixed(1)", speeds=(0.1, 1))
    for h in (1, 2, 3):
        trace = simulate(deployed(quadratic(workers=2), 2, 30, SGD(0.1), period=h), machine).trace
        found = predict("eager-diloco", machine, workers=2, nbytes=40, steps=30, options={"period": h})
        assert (trace.clock_gap, trace.lead) == (2 * h - 1, 2 * h)
        assert (found["clock_gap_max"].value, found["lead_max"].value) == (2 * h - 1, 2 * h)


def small(steps, mode="eager"):
    return deployed(integer_gradients(d=2, workers=2), 2, steps, SGD(0.25), period=1, mode=mode)


@pytest.mark.slow
def test_every_schedule_of_a_round():
    report = explore(lambda: small(1), ledger, observe=lambda run: tuple(run.values["peer1"]))
    assert report.complete and report.runs > 1 and len(report.finals) == 1


@pytest.mark.parametrize("mode", MODES)
def test_schedules_of_three_rounds(mode):
    """Two programs of a node make too many for all of them."""
    finals = set()

    def check(run):
        ledger(run)
        finals.add(tuple(run.values["peer1"]))

    walk(lambda: small(3, mode), check, runs=200)
    assert len(finals) == 1


def distance(deploy, workers, b, momentum=0.0, rounds=400, **options):
    """From the minimum at 0, where a peer alone goes 7/16 of the way in a round."""
    problem = Problem(np.ones(1), lambda x, rank, t: x, lambda x: 0.0)
    return abs(final(deployed(problem, workers, 2 * rounds, SGD(0.25), deploy, period=2, outer_lr=b * 16 / 7,
                              outer_momentum=momentum, **options), Machine(compute="fixed(1)"))[0])


LIMITS = [(eager_diloco.eager_diloco, n, {"mode": "eager"}, n / (n - 1)) for n in (2, 3)] + [
    pytest.param(eager_diloco.eager_diloco, n, {"mode": "eager"}, n / (n - 1), marks=pytest.mark.slow) for n in (5, 8)] + [
    (eager_diloco.eager_diloco, 3, {"mode": "delayed"}, 1.0), (eager_diloco.eager_diloco, 3, {"mode": "whole"}, 2.0), (diloco.diloco, 3, {}, 2.0)]


@pytest.mark.parametrize(("deploy", "workers", "options", "limit"), LIMITS)
def test_stable_up_to_the_closed_form(deploy, workers, options, limit):
    """The mean has the roots of l^2 - l (1 - b/n) + b (1 - 1/n): two peers lose nothing, many lose half."""
    assert distance(deploy, workers, 0.95 * limit, **options) < 1e-3
    assert distance(deploy, workers, 1.05 * limit, **options) > 1e3


@pytest.mark.parametrize(("workers", "momentum"), [(2, 0.5), (2, 0.9), (1, 0.9), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((4, 0.9), (7, 0.3)))])
def test_momentum_makes_it_lose_more(workers, momentum):
    """The roots with Nesterov's momentum, of which only the limits of n = 1 and of many peers are simple."""
    def radius(b, w):
        return max(abs(np.roots([1, -(1 + momentum) * (1 - b * w), momentum + b * ((1 + momentum) * (1 - w) - momentum * w),
                                 -b * momentum * (1 - w)])))

    def limit(w):
        return next(b for b in np.arange(0.001, 3, 0.001) if radius(b, w) > 1)

    m = momentum
    assert limit(1.0) == pytest.approx(2 * (1 + m) / (1 + 2 * m), abs=0.002)
    assert limit(0.0) == pytest.approx((((1 - m * m)**2 + 4 * m * m * (1 - m))**0.5 - (1 - m * m)) / (2 * m * m), abs=0.002)
    b = limit(1 / workers)
    assert distance(eager_diloco.eager_diloco, workers, 0.9 * b, momentum) < 0.1
    assert distance(eager_diloco.eager_diloco, workers, 1.1 * b, momentum) > 10


@pytest.mark.parametrize(("workers", "period", "latency", "transfer", "update"), [
    (3, 2, 0.1, 6.0, None), (4, 8, 0.5, 2.0, None), (6, 1, 0.0, 0.9, None), (5, 3, 0.3, 7.5, 0.25), (2, 4, 2.0, 0.0, 1.5)])
def test_a_round_lasts_as_long_as_computing_or_the_exchange(workers, period, latency, transfer, update):
    """max(H T, e) and not their sum, exactly; the first round has nothing to wait for, and the last one waits."""
    problem = quadratic(d=60, workers=workers)
    machine = Machine(compute="fixed(1)", latency=latency, bandwidth=240 / transfer if transfer else float("inf"), update=update)
    for steps in (1, period, 7 * period, 7 * period + 1):
        p = predict("eager-diloco", machine, workers=workers, steps=steps, nbytes=240, options={"period": period})
        trace = simulate(deployed(problem, workers, steps, SGD(0.1), period=period), machine).trace
        assert p["seconds"].kind == "exact" and p["seconds"].value == pytest.approx(trace.seconds, rel=1e-9)
        assert p["idle_ratio"].value == pytest.approx(trace.idle_ratio, abs=1e-9)
        assert p["bytes_sent"].value == sum(trace.bytes_sent.values())
    e = 2 * (workers - 1) * (latency + transfer / workers)
    u = update or 0.0
    assert p["seconds_per_iteration"].value * period == pytest.approx(max(period * (1 + u) + u, e))


@pytest.mark.parametrize("options", [{"mode": "late"}, {"outer_lr": 0.0}, {"outer_momentum": 1.0}, {"period": 0}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} .*expected"):
        deployed(integer_gradients(), 4, 1, SGD(0.1), **options)
