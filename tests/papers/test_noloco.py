"""What is claimed of NoLoCo (Kolehmainen et al. 2025)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.averaging import diloco, noloco
from refsgd.algorithms.averaging.noloco import partner
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.errors import Deadlock
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.faults import Fault
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.theory import predict
from refsgd.trace import Sent
from tests.strategies import machines, seeds
from tests.watching import RANDOM, constant, curved, ragged, recorded
from tests.wrong import wrong_deployment

PAIRS = "circle", "random"
H = 3


def deployed(problem, workers, steps, sgd, deploy=noloco.noloco, **options):
    return deploy(problem, workers, steps, sgd, **{"period": H, "outer_lr": 0.5, "outer_momentum": 0.5, **options})


def ends(*args, machine=RANDOM, seed=0, **options):
    """What the peers return, (n, d)."""
    values = simulate(deployed(*args, **options), machine, seed).values
    return np.array([values[f"peer{i}"] for i in range(len(values))])


def moves_of(problem, workers, steps, lr, **options):
    """Starts, moves and weights of the moves, (round, peer, ...), and what the peers return, of a run of plain SGD."""
    problem, seen = recorded(problem)
    last = ends(problem, workers, steps, SGD(lr), **options)
    x = {(rank, t): (x, x - lr * g) for rank, t, x, g in seen}
    first = range(0, steps, H)
    starts = np.array([[x[i, t][0] for i in range(workers)] for t in first])
    moves = np.array([[x[i, min(t + H, steps) - 1][1] for i in range(workers)] for t in first]) - starts
    images = np.array([[sum(problem.images(i, s) for s in range(t, min(t + H, steps))) for i in range(workers)]
                       for t in first], float)
    return starts, moves, images / images.sum(axis=1, keepdims=True), last


# -- pairs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("n", range(1, 13))
def test_each_peer_is_in_one_pair_or_alone_in_each_round(n, pairs):
    for r in range(3 * n):
        others = [partner(i, n, r, pairs) for i in range(n)]
        assert [others[j] for j in others] == list(range(n)) and sum(j == i for i, j in enumerate(others)) == n % 2


@pytest.mark.parametrize("n", range(2, 13))
def test_in_a_circle_all_meet_in_n_minus_1_rounds(n):
    met = {(i, partner(i, n, r, "circle")) for r in range(n - 1 + n % 2) for i in range(n)}
    assert {(i, j) for i, j in met if i != j} == {(i, j) for i in range(n) for j in range(n) if i != j}


def test_random_pairs_are_uniform():
    """Each of the three matchings of four peers, each pair of six."""
    counts = np.bincount([partner(0, 4, r, "random") for r in range(3000)], minlength=4)[1:]
    assert abs(counts - 1000).max() < 130  # five standard deviations
    met = np.bincount([partner(5, 6, r, "random") for r in range(3000)], minlength=6)[:5]
    assert abs(met - 600).max() < 110


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("workers", [2, 4, 5])
def test_messages_go_to_partners_only_and_have_the_size_of_the_model(workers, pairs):
    trace = simulate(deployed(curved(workers=workers), workers, 13, SGD(0.1), pairs=pairs), RANDOM).trace
    sent = [(e.node, e.to) for e in trace.of(Sent) if e.node != e.to]
    wanted = [(f"peer{i}", f"peer{j}") for r in range(5) for i in range(workers) if (j := partner(i, workers, r, pairs)) != i]
    assert sorted(sent) == sorted(wanted) and sum(trace.bytes_sent.values()) == 4 * 6 * len(wanted)


# -- identities ------------------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, workers=st.integers(1, 2), steps=st.integers(0, 9), momentum=st.sampled_from([0.0, 0.8]),
       pull=st.sampled_from([0.0, 1.0]), pairs=st.sampled_from(PAIRS))
def test_two_peers_are_the_slowmo_form_of_diloco(machine, seed, workers, steps, momentum, pull, pairs):
    """And one alone: their starts stay equal, up to rounding, and with them nothing is pulled."""
    problem, sgd = ragged(workers), SGD(0.1, 0.9, 0.01)
    ours = ends(problem, workers, steps, sgd, outer_momentum=momentum, pull=pull, pairs=pairs, machine=machine, seed=seed)
    theirs = simulate(diloco.diloco(problem, workers, steps, sgd, period=H, outer_lr=0.5, outer_momentum=momentum,
                                    form="heavy-ball"), machine, seed).values["peer0"]
    assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def check_mean(deploy=noloco.noloco, momentum=0.75, **options):
    """The mean of the starts takes the outer steps of heavy-ball DiLoCo along the mean of the same moves."""
    for workers, pairs in ((4, "circle"), (5, "circle"), (6, "random"), (3, "random")):
        problem = ragged(workers, dtype=np.float64)
        for steps in (H, 4 * H, 5 * H + 1):
            starts, moves, share, last = moves_of(problem, workers, steps, 0.125, deploy=deploy, pairs=pairs,
                                                  outer_momentum=momentum, **options)
            x, u = problem.x0, np.zeros(6)
            for r, mean in enumerate(np.einsum("rn,rnd->rd", share, moves)):
                assert np.allclose(starts[r].mean(axis=0), x, rtol=1e-12, atol=1e-14)
                u = momentum * u + 0.5 * mean
                x = x + u
            assert np.allclose(last.mean(axis=0), x, rtol=1e-12, atol=1e-14)
            assert workers < 3 or steps == H or np.ptp(starts[1], axis=0).max() > 1e-3, "and they are not equal"


@pytest.mark.parametrize("pull", [0.0, 0.5, 1.0])
def test_the_mean_of_starts_follows_heavy_ball_diloco_whatever_the_pairs(pull):
    check_mean(pull=pull)


def check_by_hand(deploy=noloco.noloco, workers=(2, 4, 5)):
    """The rule with both starts and both moves at hand."""
    lr, a, b, g = 0.125, 0.75, 0.5, 1.25
    for n in workers:
        for pairs in PAIRS:
            problem = ragged(n, dtype=np.float64)
            start, d = np.zeros((n, 6)), np.zeros((n, 6))
            for r in range(5):
                x, to = start.copy(), min(H * r + H, 13)
                for t in range(H * r, to):
                    x -= lr * np.array([problem.gradient(x[i], i, t) for i in range(n)])
                images = np.array([sum(problem.images(i, t) for t in range(H * r, to)) for i in range(n)])
                move = (x - start) * (n * images / images.sum())[:, None]
                others = [partner(i, n, r, pairs) for i in range(n)]
                d = a * d + b / 2 * (move + move[others]) - g / 2 * (start - start[others])
                start = start + d
            found = ends(problem, n, 13, SGD(lr), deploy=deploy, outer_momentum=a, outer_lr=b, pull=g, pairs=pairs)
            assert np.allclose(found, start, rtol=1e-11, atol=1e-13)


def test_it_is_the_rule_by_hand():
    check_by_hand()


@pytest.mark.parametrize(("right", "wrong"), [
    ("number(pull) * start - move)", "number(pull) * start + move)"),  # the outer gradient has the other sign
    ("Offer(move + number(pull) * start)", "Offer(move + number(pull) * problem.x0)"),  # the partner has an old copy
    ("Offer(move + number(pull) * start)", "Offer(move + number(pull) * replica.x)"),  # the start has moved
    ("outer_lr * n * share[replica.rank] / whole", "outer_lr"),  # the plain mean of unequal shares
    ("- move)) / 2", "- move))"),  # both, not their mean
])
def test_wrong_sums_do_not_keep_the_mean(right, wrong):
    with pytest.raises(AssertionError):
        check_mean(wrong_deployment(noloco.noloco, right, wrong))


@pytest.mark.parametrize(("right", "wrong"), [
    ("yield Send(j, Offer", "pull = -abs(pull); yield Send(j, Offer"),  # pushes apart
    ("since = start, t + 1", "since = replica.x, t + 1"),  # continues from the end of the round
])
def test_wrong_rules_are_caught_though_starts_may_keep_their_mean(right, wrong):
    with pytest.raises(AssertionError):
        check_by_hand(wrong_deployment(noloco.noloco, right, wrong))


@pytest.mark.parametrize("pairs", PAIRS)
def test_without_momentum_and_with_full_rates_it_is_averaging_of_pairs(pairs):
    """x_i <- (x_i + x_j)/2, not of the starts but of what they have become."""
    problem, n = curved(dtype=np.float64), 4
    x = np.zeros((n, 6))
    for r in range(4):
        for t in range(H * r, H * r + H):
            x = x - 0.125 * np.array([problem.gradient(x[i], i, t) for i in range(n)])
        x = (x + x[[partner(i, n, r, pairs) for i in range(n)]]) / 2
    full = {"outer_lr": 1.0, "outer_momentum": 0.0, "pull": 1.0}
    assert np.allclose(ends(problem, n, 4 * H, SGD(0.125), pairs=pairs, **full), x, rtol=1e-12)


# -- how starts stay together ----------------------------------------------------------------------------------


def spread(workers, rounds, **options):
    """Variance of the starts over the peers after each round; only the first round moves them, in d directions."""
    noise = np.random.default_rng(7).standard_normal((workers, 50))
    problem = Problem(np.zeros(50), lambda x, rank, t: noise[rank] * (t == 0), lambda x: 0.0)
    starts = moves_of(problem, workers, H * rounds, 1.0, machine=Machine(compute="fixed(1)"), **options)[0]
    return starts.var(axis=1).sum(axis=1)[1:]


def second_moments(n, a, g):
    """The map of (V, C, D), the second moments of (phi, phi d, d), under uniformly random pairs and no moves."""
    q = n / (n - 1) / 2

    def after(v, c, d):
        d = a * a * d + g * g * q * v - 2 * a * g * q * c
        c = a * c - g * q * v
        return v + 2 * c + d, c + d, d

    return np.array([after(*unit) for unit in np.eye(3)]).T


def limit(n, a):
    return 2 * (1 - a * a) / (1 + a * (1 - n / (n - 1)))


def matchings(peers):
    if not peers:
        yield []
    for j in peers[1:]:
        yield from ([(peers[0], j), *rest] for rest in matchings([k for k in peers[1:] if k != j]))


@pytest.mark.parametrize(("n", "a", "g"), [(4, 0.5, 1.0), (4, 0.9, 0.3), (6, 0.6, 0.9), (6, 0.0, 1.5)])
def test_second_moments_are_those_over_all_pairings(n, a, g):
    """The mean over every perfect matching of the whole covariance of starts and velocities."""
    one, maps = np.eye(n), []
    for pairs in matchings(list(range(n))):
        apart = np.zeros((n, n))
        for i, j in pairs:
            apart[[i, j], [i, j]], apart[[i, j], [j, i]] = 0.5, -0.5
        step = np.block([[one - g * apart, a * one], [-g * apart, a * one]])
        maps.append(np.kron(step, step))
    covariance, moments = np.zeros((2 * n, 2 * n)), np.array([1.0, 0.0, 0.0])
    covariance[:n, :n] = one - 1 / n
    for _ in range(6):
        covariance = (np.mean(maps, axis=0) @ covariance.ravel()).reshape(2 * n, 2 * n)
        moments = second_moments(n, a, g) @ moments
        blocks = covariance[:n, :n], covariance[:n, n:], covariance[n:, n:]
        assert np.allclose([np.trace(block) / (n - 1) for block in blocks], moments, rtol=1e-12)


@pytest.mark.parametrize("n", [4, 6, 8, 32])
def test_the_limit_of_the_pull_is_where_second_moments_grow(n):
    for a in (0.0, 0.3, 0.5, 0.9):
        radius = [max(abs(np.linalg.eigvals(second_moments(n, a, share * limit(n, a))))) for share in (0.001, 0.5, 0.99, 1, 1.01)]
        assert max(radius[:3]) < 1 < radius[4] and radius[3] == pytest.approx(1)
    assert limit(10**9, 0.5) == pytest.approx(1.5) and limit(10**9, 0.9) == pytest.approx(0.38)


@pytest.mark.parametrize(("n", "a"), [(16, 0.5), pytest.param(32, 0.5, marks=pytest.mark.slow), pytest.param(24, 0.0, marks=pytest.mark.slow)])
def test_starts_stay_together_up_to_the_limit(n, a):
    found = {share: spread(n, 250, outer_momentum=a, pull=share * limit(n, a), pairs="random") for share in (0.9, 1.1)}
    assert found[0.9][-1] < 1e-6 * found[0.9][0] and found[1.1][-1] > 1e4 * found[1.1][0]


def growth(n, a, g):
    """Of distances between starts and between velocities, in one turn of a circle."""
    turn = np.kron(np.eye(2), np.eye(n) - 1 / n)
    for r in range(n - 1 + n % 2):
        pulled = g / 2 * (np.eye(n) - np.eye(n)[[partner(i, n, r, "circle") for i in range(n)]])
        turn = np.block([[np.eye(n) - pulled, a * np.eye(n)], [-pulled, a * np.eye(n)]]) @ turn
    return max(abs(np.linalg.eigvals(turn)))


@pytest.mark.parametrize(("n", "a", "most"), [(4, 0.5, 2.33), (5, 0.5, 0.59), (6, 0.5, 1.25), (7, 0.5, 0.46), (8, 0.5, 0.83), (16, 0.5, 0.45),
                                              (5, 0.0, 2.0), (8, 0.0, 2.0)])
def test_in_a_circle_the_limit_is_another(n, a, most):
    assert growth(n, a, 0.98 * most) < 1 < growth(n, a, 1.02 * most)
    v = spread(n, 60, outer_momentum=a, pull=1.0, pairs="circle")
    assert (v[-1] < 0.1 * v[0]) == (most > 1) and (v[-1] > 10 * v[0]) == (most < 1)


def test_without_momentum_the_variance_halves_in_each_round():
    v = spread(64, 8, outer_momentum=0.0, pull=1.0, pairs="random")
    assert v[1:] / v[:-1] == pytest.approx([1 - 64 / 63 / 2] * 6, abs=0.08)


def test_without_a_pull_starts_never_come_together():
    v = spread(6, 40, outer_momentum=0.5, pull=0.0)
    assert np.all(np.diff(v) >= -1e-12) and v[-1] > 3 * v[0], "the velocities only coast"
    assert spread(6, 40, outer_momentum=0.5, pull=1.0)[-1] < 1e-4 * v[0]


# -- schedules, deaths and times -------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 10), pairs=st.sampled_from(PAIRS))
def test_the_schedule_changes_nothing(machine, seed, workers, steps, pairs):
    problem, sgd = ragged(workers), SGD(0.1, 0.9)
    x, reference = (ends(problem, workers, steps, sgd, pairs=pairs, machine=m, seed=s) for m, s in ((machine, seed), (RANDOM, 0)))
    assert np.array_equal(x, reference) and x.dtype == np.float32


def small(steps, deploy=noloco.noloco, workers=3, **options):
    return deployed(integer_gradients(d=2, workers=workers), workers, steps, SGD(0.25), deploy, period=1, **options)


def test_all_schedules_are_one():
    """Each receives from a named peer only, so schedules differ in the order of independent actions alone."""
    report = explore(lambda: small(4), ledger, observe=lambda run: tuple(run.values["peer1"]))
    assert report.complete and report.runs == 1 and len(report.finals) == 1


def test_partners_that_disagree_wait_forever():
    asymmetric = wrong_deployment(noloco.noloco, "other = (number - rank) % seats if", "other = (number + rank) % seats if")
    with pytest.raises(Deadlock, match="peer0 at .* waits for Recv"):
        simulate(small(3, asymmetric, 5, pairs="circle"), RANDOM)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("step", range(7))
def test_the_partners_of_a_dead_peer_sit_out_their_rounds(step, pairs):
    run = simulate(deployed(curved(workers=4), 4, 13, SGD(0.1), pairs=pairs), RANDOM,
                   faults=[Fault("kill", "peer2", step)], on_death="continue")
    assert run.values.keys() == {"peer0", "peer1", "peer3"} and all(np.isfinite(x).all() for x in run.values.values())
    sent = [(e.node, e.to) for e in run.trace.of(Sent) if e.node != e.to]
    for i in (0, 1, 3):
        others = [partner(i, 4, r, pairs) for r in range(5)]
        assert [to for node, to in sent if node == f"peer{i}" and to != "peer2"] == [f"peer{j}" for j in others if j != 2]
        answered = [r for r, j in enumerate(others) if j == 2 and r < step // H]
        assert sent.count((f"peer{i}", "peer2")) <= len(answered) + 1, "who knows of a death sends no more"


SETTINGS = [(2, 2, 0.1, 6.0, None), (4, 8, 0.5, 2.0, 0.25), (6, 1, 0.0, 0.9, None), (10, 3, 0.3, 7.5, 0.5), (8, 4, 2.0, 0.0, 1.5)]


@pytest.mark.parametrize(("workers", "period", "latency", "transfer", "update"), SETTINGS)
@pytest.mark.parametrize("pairs", PAIRS)
def test_a_round_ends_with_one_message_whatever_n(workers, period, latency, transfer, update, pairs):
    """H T + L + M/B, exactly, with an even number of peers."""
    machine = Machine(compute="fixed(1)", latency=latency, bandwidth=240 / transfer if transfer else float("inf"), update=update)
    for steps in (1, period, 7 * period, 7 * period + 1):
        p = predict("noloco", machine, workers=workers, steps=steps, nbytes=240, options={"period": period, "pairs": pairs})
        trace = simulate(deployed(quadratic(d=60, workers=workers), workers, steps, SGD(0.1), period=period, pairs=pairs), machine).trace
        assert p["seconds"].kind == "exact" and p["seconds"].value == pytest.approx(trace.seconds, rel=1e-9)
        assert p["idle_ratio"].value == pytest.approx(trace.idle_ratio, abs=1e-9)
        assert p["bytes_sent"].value == sum(trace.bytes_sent.values())
    u = update or 0.0
    assert p["seconds_per_iteration"].value * period == pytest.approx(period * (1 + u) + u + latency + transfer)


def test_who_has_sat_out_is_early_and_its_next_partner_does_not_wait():
    """Three peers: in the second round peer 1 finds the message of peer 0 there already, and saves a second."""
    machine = Machine(compute="fixed(2)", latency=1)
    assert [partner(i, 3, 0, "circle") for i in range(3)] == [0, 2, 1] and partner(0, 3, 1, "circle") == 1
    trace = simulate(deployed(quadratic(workers=3), 3, 2, SGD(0.1), period=1, pairs="circle"), machine).trace
    assert {e.node: e.time for e in trace.marks("clock") if e.values["t"] == 0} == {"peer0": 2, "peer1": 3, "peer2": 3}
    assert {e.node: e.time for e in trace.marks("clock") if e.values["t"] == 1} == {"peer0": 6, "peer1": 5, "peer2": 5}
    found = predict("noloco", machine, workers=3, steps=2, nbytes=40, options={"period": 1})
    assert "seconds" not in found and found["bytes_sent"].value == sum(trace.bytes_sent.values())


def test_a_peer_waits_for_its_partner_not_for_the_slowest():
    """In one round each pair ends with its own slower peer; those of DiLoCo end together."""
    machine = Machine(compute="fixed(1)", speeds=(1, 1, 1, 0.1))
    ours, theirs = (simulate(deploy(quadratic(workers=4), 4, H, SGD(0.1), period=H), machine).trace
                    for deploy in (noloco.noloco, diloco.diloco))
    assert sorted(round(e.time) for e in ours.marks("clock") if e.values["t"] == H - 1) == [3, 3, 30, 30]
    assert {round(e.time) for e in theirs.marks("clock") if e.values["t"] == H - 1} == {30}


@pytest.mark.parametrize("options", [{"pairs": "ring"}, {"pull": -1.0}, {"pull": float("nan")}, {"outer_lr": 0.0},
                                     {"outer_momentum": 1.0}, {"period": 0}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} .*expected"):
        deployed(constant(lambda rank, t: 0.0), 4, 1, SGD(0.1), **options)
