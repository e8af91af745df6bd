"""What is claimed of scheduled model parallelism: Lee et al., NIPS 2014 (STRADS), and Xing et al., KDD
2015 (Petuum)."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.server import schedules
from refsgd.algorithms.server.blocks import chances, independent, round_robin
from refsgd.algorithms.server.schedules import lasso, soft
from refsgd.cluster.machine import Machine
from refsgd.effects import Choose
from refsgd.experiment.result import final_parameters
from refsgd.runtimes.simulator import simulate
from tests.strategies import machines, seeds
from tests.wrong import changed

RNG = np.random.default_rng(3)


def unit(a):
    return a / np.linalg.norm(a, axis=0)


SPARSE = unit(RNG.standard_normal((40, 24)))  # a few coordinates matter
TARGET = SPARSE @ np.where(np.arange(24) % 6 == 0, 5.0, 0)
CORRELATED = unit(np.ones((20, 8)) + 0.2 * RNG.standard_normal((20, 8)))  # every pair of columns: above 0.8
# columns without a common row, of exact numbers
DISJOINT = np.kron(np.eye(6), np.array([[0.5], [-0.5], [0.5], [0.5]]))


def objective(a, b, x, penalty=0.1):
    return 0.5 * np.sum((b - a @ x) ** 2) + penalty * np.sum(np.abs(x))


def one_at_a_time(a, b, penalty, blocks):
    """Sequential coordinate descent over the coordinates of the blocks, in order."""
    x = np.zeros(a.shape[1])
    for j in [j for block in blocks for j in block]:
        x[j] = soft(x[j] + a[:, j] @ (b - a @ x), penalty)
    return x


def run(a, b, steps, workers=3, machine=None, seed=0, penalty=0.1, **options):
    return simulate(lasso(a, b, penalty, workers, steps, **options), machine, seed)


def blocks_of(result):
    """What was updated in each step, read from the changes of x."""
    xs = [np.zeros(0)] + [e.values["x"] for e in result.trace.marks("update")]
    return [np.flatnonzero(after != (before if before.size else 0 * after)).tolist()
            for before, after in zip(xs, xs[1:])]


# -- round-robin -----------------------------------------------------------------------------------------------


@given(d=st.integers(1, 30), width=st.integers(1, 30), sweep=st.integers(0, 3))
def test_round_robin_updates_each_coordinate_once_in_a_sweep(d, width, sweep):
    length = -(-d // width)
    swept = [j for t in range(sweep * length, (sweep + 1) * length) for j in round_robin(t, d, width)]
    assert swept == list(range(d))


@given(machine=machines, seed=seeds, workers=st.integers(1, 5))
def test_one_coordinate_at_a_time_is_sequential_coordinate_descent(machine, seed, workers):
    """Whatever rows a worker holds: sums over workers in another order than one product, in float64."""
    found = final_parameters(run(SPARSE, TARGET, 30, workers, machine, seed, policy="round-robin", width=1))
    expected = one_at_a_time(SPARSE, TARGET, 0.1, [round_robin(t, 24, 1) for t in range(30)])
    assert np.allclose(found, expected, rtol=0, atol=1e-12)


def test_an_update_that_is_committed_twice_is_caught(monkeypatch):
    """WRONG: one worker applies each change to its residual twice, as after a message that was sent again."""
    right = schedules.worker

    def twice(rows, b, steps):
        program, value = right(rows, b, steps), None
        while True:
            try:
                effect = program.send(value)
            except StopIteration:
                return
            value = yield effect
            if isinstance(value, tuple) and isinstance(value[1], schedules.Commit):
                value = value[0], value[1]._replace(delta=2 * value[1].delta)

    monkeypatch.setattr(schedules, "worker", twice)
    expected = one_at_a_time(SPARSE, TARGET, 0.1, [round_robin(t, 24, 1) for t in range(30)])
    assert not np.allclose(final_parameters(run(SPARSE, TARGET, 30, policy="round-robin", width=1)), expected,
                           rtol=0, atol=1e-3)


def hold_minimum(step):
    """A step goes to the minimum of (x - v)^2 / 2 + penalty |x|, which is 0 wherever |v| is below the
    penalty."""
    grid = np.arange(-300, 301) / 100
    for penalty in (0.0, 0.25, 1.0):
        for v in np.arange(-8, 9) / 4:
            best = grid[np.argmin((grid - v) ** 2 / 2 + penalty * np.abs(grid))]
            assert step(np.array([v]), penalty) == pytest.approx([best]), f"v {v}, penalty {penalty}"


def test_a_step_goes_to_the_minimum_along_its_coordinate():
    hold_minimum(soft)
    x = final_parameters(run(SPARSE, 0.1 * TARGET, 240, policy="round-robin", width=1))
    assert np.array_equal(x == 0,
                          np.abs(
                              SPARSE.T @ (0.1 * TARGET
                                          - SPARSE @ x) + x) <= 0.1), "0 wherever the penalty outweighs the slope"
    assert np.any(x == 0) and np.any(x)


@pytest.mark.parametrize("right, wrong",
                         [("np.maximum(np.abs(v) - penalty, 0)", "(np.abs(v) - penalty)"),
                          ("np.abs(v) - penalty", "np.abs(v) + penalty"),
                                          ("np.sign(v) * np", "np")])
def test_another_step_is_caught(right, wrong):
    """WRONG: without the clamp, a small v is thrown to the other side of 0."""
    with pytest.raises(AssertionError, match="penalty"):
        hold_minimum(changed(schedules, right, wrong).soft)


# -- dependencies ----------------------------------------------------------------------------------------------


def hold_independence(choose, candidates, gram, rho):
    kept = choose(candidates, gram, rho)
    assert all(abs(gram[j, k]) < rho for j in kept for k in kept if j != k), "no conflicting pair"
    assert kept == sorted(kept,
                          key=candidates.index) and kept[:1] == candidates[
                              :1], "in the order drawn, the first always"
    for j in set(candidates) - set(kept):
        assert any(abs(gram[j, k]) >= rho for k in kept), "nobody is left out without a reason"


def against_the_last_only(candidates, gram, rho):
    """WRONG: compares with the candidate kept last instead of with all."""
    kept = []
    for j in candidates:
        if not kept or abs(gram[j, kept[-1]]) < rho:
            kept.append(j)
    return kept


def signed(candidates, gram, rho):
    """WRONG: forgets the absolute value; opposite columns conflict as much as equal ones."""
    kept = []
    for j in candidates:
        if all(gram[j, k] < rho for k in kept):
            kept.append(j)
    return kept


@given(order=st.permutations(range(24)), count=st.integers(0, 24), rho=st.floats(0, 1))
def test_a_block_has_no_conflicting_pair(order, count, rho):
    """Section 3.3: |a_j . a_k| < rho for every pair that is updated together."""
    hold_independence(independent, order[:count], SPARSE.T @ SPARSE, rho)


@pytest.mark.parametrize("wrong", [against_the_last_only, signed])
def test_a_wrong_check_is_caught(wrong):
    gram = SPARSE.T @ SPARSE
    with pytest.raises(AssertionError, match="no conflicting pair"):
        for shift in range(24):
            hold_independence(wrong, [*range(shift, 24), *range(shift)], gram, 0.15)


def test_rho_0_is_serial_and_rho_inf_unrestricted():
    gram = CORRELATED.T @ CORRELATED
    assert independent([5, 1, 2], gram, 0.0) == [5] and independent([5, 1, 2], gram, np.inf) == [5, 1, 2]


def test_with_orthogonal_columns_a_block_does_what_its_coordinates_do_one_after_another():
    """Bit for bit; numbers are multiples of 1/16, so that a library's order of additions does not matter."""
    b = RNG.integers(-16, 17, 24) / 8
    together, alone = (
        final_parameters(run(DISJOINT, b, 12 // width, 2, policy="round-robin", width=width, penalty=0.125))
        for width in (3, 1))
    assert np.array_equal(together, alone) and np.any(alone)


def test_correlated_columns_diverge_together_and_converge_when_conflicts_are_left_out():
    """Eight nearly equal columns: each takes the whole step, and together eight times too much."""
    b = CORRELATED @ np.ones(8)
    start = objective(CORRELATED, b, np.zeros(8))
    free = run(CORRELATED, b, 30, policy="random", width=8, rho=np.inf)
    aware = run(CORRELATED, b, 30, policy="random", width=8, rho=0.5)
    assert objective(CORRELATED, b, final_parameters(free)) > 1e6 * start
    assert objective(CORRELATED, b, final_parameters(aware)) < 0.1 * start
    assert all(len(block) <= 1 for block in blocks_of(aware))


# -- priorities ------------------------------------------------------------------------------------------------


def test_every_coordinate_has_a_chance_proportional_to_its_change_plus_eps():
    p = chances(np.array([0.0, -3.0, 1.0]), 0.5)
    assert p == pytest.approx([0.5 / 5.5, 3.5 / 5.5, 1.5 / 5.5]) and sum(p) == pytest.approx(1)


def test_random_draws_have_equal_chances_whatever_has_changed():
    program = schedules.scheduler(["worker0"], np.eye(4), 0.1, 2, "random", 1, np.inf, 1e-3)
    for _ in range(2):
        choose = program.send(None)
        assert choose == Choose([0, 1, 2, 3], [0.25] * 4)
        program.send(2)
        program.send(None)
        update = program.send(("worker0", schedules.Partial(np.array([5.0]))))
        program.send(update.fn(*update.args))
        program.send(None)


def test_workers_mark_every_step():
    trace = run(SPARSE, TARGET, 5).trace
    assert [[e.values["t"] for e in trace.marks("clock") if e.node == f"worker{i}"]
            for i in range(3)] == [list(range(5))] * 3
    assert [(e.values["part"], e.values["version"]) for e in trace.marks("update")] == [(0, t) for t in range(5)]


def test_draws_follow_these_chances():
    """A chi-squared test with 4,000 first draws of one step: rejected by chance in one of 10,000 seeds."""
    from scipy import stats

    program = schedules.scheduler(["worker0"], np.eye(4), 0.1, 1, "random", 1, 1.0, 1e-3)
    assert program.send(None).p == pytest.approx([0.25] * 4)
    choose = Choose(list(range(4)), chances(np.array([0.0, 1.0, 2.0, 0.1]), 0.1))

    def draws():
        seen = Counter()
        for _ in range(4000):
            seen[(yield choose)] += 1
        return seen

    seen = simulate({"peer0": schedules.Node(draws())}, seed=1).values["peer0"]
    expected = 4000 * np.array(choose.p)
    assert stats.chisquare([seen[j] for j in range(4)], expected).pvalue > 1e-4 and min(seen.values()) > 0


def test_a_converged_coordinate_is_drawn_at_the_rate_of_eps():
    """Coordinates that do not move any more have probability eps over the sum; without eps they were
    never seen again."""
    p = chances(np.array([1.0, 0.0, 0.0]), 0.01)
    assert p[1] == p[2] == pytest.approx(0.01 / 1.03)


def test_priority_needs_fewer_steps_than_round_robin_where_few_coordinates_matter():
    """Prioritised Lasso converges faster: here the mean objective over five seeds after 160 single
    updates."""
    wide = unit(np.random.default_rng(8).standard_normal((60, 80)))
    b = wide @ np.where(np.arange(80) % 20 == 19, 5.0, 0)

    def after(policy, steps=160):
        return np.mean(
            [objective(wide, b,
                       final_parameters(run(wide, b, steps, seed=s, policy=policy, width=1, penalty=0.5)),
                       0.5)
                        for s in range(5)])

    assert after("priority") < after("round-robin")


# -- the protocol ----------------------------------------------------------------------------------------------


def test_bytes_and_messages():
    trace = run(SPARSE, TARGET, 6, 3, Machine(compute="fixed(1)"), policy="round-robin", width=4).trace
    assert trace.messages == 6 * 3 * 3 and sum(trace.bytes_sent.values()) == 6 * 3 * (4 + 8 + 12) * 4
    assert trace.seconds == 6


@pytest.mark.parametrize("options",
                         [{"policy": "alphabetical"}, {"width": 0}, {"width": 25}, {"rho": -1.0},
                          {"eps": 0.0}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="expected"):
        lasso(SPARSE, TARGET, 0.1, 2, 1, **options)


@pytest.mark.parametrize("a, penalty, words", [
    (SPARSE, -0.1, "penalty -0.1; expected a finite number >= 0"),
    (SPARSE, float("nan"), "penalty nan; expected"),
    (SPARSE, float("inf"), "penalty inf; expected"),
    (2 * SPARSE, 0.1, "columns of norms 2 to 2; expected norm 1"),
    (SPARSE * np.linspace(1, 1.5, 24), 0.1, "columns of norms 1 to 1.5; expected norm 1")])
def test_a_problem_that_the_steps_do_not_fit_is_refused_in_one_line(a, penalty, words):
    with pytest.raises(ValueError, match=words) as refused:
        lasso(a, TARGET, penalty, 2, 1)
    assert "\n" not in str(refused.value)


def test_without_a_penalty_and_in_float32_it_runs():
    """Columns that have norm 1 to float32's rounding are good enough."""
    lasso(SPARSE.astype(np.float32), TARGET, 0.0, 2, 1)
