"""What is claimed of scheduled model parallelism: Lee et al., NIPS 2014 (STRADS), and Xing et al., KDD
2015 (Petuum)."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.server import bsp, strads
from refsgd.algorithms.server.blocks import between, chances, independent, round_robin
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Choose
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients, quadratic, regression
from refsgd.problems.regression import generated, sparse
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Chosen
from tests.strategies import machines, seeds
from tests.wrong import changed

RNG = np.random.default_rng(3)


def unit(a):
    return a / np.linalg.norm(a, axis=0)


SPARSE = unit(RNG.standard_normal((40, 24)))  # a few coordinates matter
TARGET = SPARSE @ np.where(np.arange(24) % 6 == 0, 5.0, 0)
CORRELATED = unit(np.ones((20, 8)) + 0.2 * RNG.standard_normal((20, 8)))  # every pair of columns: above 0.8
DISJOINT = np.kron(np.eye(4), np.array([[0.5], [-0.5], [0.5], [0.5]]))  # exact, without a common row


def objective(a, b, x, penalty=0.1):
    return 0.5 * np.sum((b - a @ x) ** 2) + penalty * np.sum(np.abs(x))


def soft(v, penalty):
    return np.sign(v) * np.maximum(np.abs(v) - penalty, 0)


def one_at_a_time(a, b, penalty, blocks):
    """Sequential coordinate descent over the coordinates of the blocks, in order."""
    x = np.zeros(a.shape[1])
    for j in [j for block in blocks for j in block]:
        x[j] = soft(x[j] + a[:, j] @ (b - a @ x), penalty)
    return x


def lasso(a, b, penalty, workers=1):
    """|b - A x|^2 / 2 + penalty |x|_1 for columns of norm 1: as a mean over N rows, with all times sqrt N."""
    root = np.sqrt(len(b))
    return sparse("lasso", root * a, root * b, penalty, workers)


def run(a, b, steps, workers=3, machine=None, seed=0, penalty=0.1, deploy=strads.strads, **options):
    return simulate(deploy(lasso(a, b, penalty, workers), workers, steps, SGD(0.1), **options), machine, seed)


def blocks_of(result):
    """What was updated in each step, read from the changes of x."""
    xs = [np.zeros(0)] + [e.values["x"] for e in result.trace.marks("update")]
    return [np.flatnonzero(after != (before if before.size else 0 * after)).tolist()
            for before, after in pairwise(xs)]


# -- fixed -----------------------------------------------------------------------------------------------------


@given(d=st.integers(1, 30), width=st.integers(1, 30), sweep=st.integers(0, 3))
def test_fixed_updates_each_coordinate_once_in_a_sweep(d, width, sweep):
    length = -(-d // width)
    swept = [j for t in range(sweep * length, (sweep + 1) * length) for j in round_robin(t, d, width)]
    assert swept == list(range(d))


@given(machine=machines, seed=seeds, workers=st.integers(1, 5))
def test_one_coordinate_at_a_time_is_sequential_coordinate_descent(machine, seed, workers):
    """Whatever rows a worker holds: sums over workers in another order than one product, in float64."""
    found = final_parameters(run(SPARSE, TARGET, 30, workers, machine, seed, policy="fixed", width=1))
    expected = one_at_a_time(SPARSE, TARGET, 0.1, [round_robin(t, 24, 1) for t in range(30)])
    assert np.allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("right", "wrong"), [
    ("x = put(x, parts, task.values)", "pass"),  # a copy that never follows
    ("known.rows(rank)", "1 + rank"),  # rows that do not count by their number
    ("mean_gradient([p.grad for p in partials]", "mean_gradient([p.grad for p in partials[:1] * 3]")])
def test_wrong_partial_updates_are_caught(right, wrong):
    expected = one_at_a_time(SPARSE, TARGET, 0.1, [round_robin(t, 24, 1) for t in range(30)])
    found = final_parameters(run(SPARSE, TARGET, 30, deploy=changed(strads, right, wrong).strads, width=1))
    assert not np.allclose(found, expected, rtol=0, atol=1e-6)


def hold_minimum(kind):
    """A step goes to the minimum of (x - v)^2 / 2 + penalty |x|, which is 0 wherever |v| is below the
    penalty."""
    grid = np.arange(-300, 301) / 100
    for penalty in (0.0, 0.25, 1.0):
        for v in np.arange(-8, 9) / 4:
            best = grid[np.argmin((grid - v) ** 2 / 2 + penalty * np.abs(grid))]
            found = kind(None, None, None, 2.0, 2 * penalty).minimum(np.array([1.0]), np.array([2 - 2 * v]))
            assert found == pytest.approx([best]), f"v {v}, penalty {penalty}"


def test_a_step_goes_to_the_minimum_along_its_coordinate():
    hold_minimum(regression.Coordinates)
    x = final_parameters(run(SPARSE, 0.1 * TARGET, 240, width=1))
    assert np.array_equal(x == 0, np.abs(SPARSE.T @ (0.1 * TARGET - SPARSE @ x) + x) <= 0.1), (
        "0 wherever the penalty outweighs the slope")
    assert np.any(x == 0) and np.any(x)


@pytest.mark.parametrize("right, wrong", [
    ("np.maximum(np.abs(v) - self.penalty / self.curvature, 0)", "(np.abs(v) - self.penalty / self.curvature)"),
    ("np.abs(v) - self.penalty", "np.abs(v) + self.penalty"), ("np.sign(v) * np", "np"),
    ("x - slope / self.curvature", "x - slope"), ("self.penalty / self.curvature", "self.penalty")])
def test_another_step_is_caught(right, wrong):
    """WRONG: without the clamp, a small v is thrown to the other side of 0."""
    with pytest.raises(AssertionError, match="penalty"):
        hold_minimum(changed(regression, right, wrong).Coordinates)


# -- problems without minima: nets, and all others ----------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_one_block_is_bsp(momentum):
    """Bit for bit."""
    problem, sgd = quadratic(d=7, workers=3, noise=1.0), SGD(0.1, momentum, 0.01)
    found, expected = (final_parameters(simulate(deployment)) for deployment in (
        strads.strads(problem, 3, 9, sgd, blocks=1), bsp.bsp(problem, 3, 9, sgd)))
    assert np.array_equal(found, expected)


def test_only_scheduled_blocks_move():
    """Each step is one of BSP in its own blocks, at the x that all steps before have left."""
    problem = integer_gradients(d=8, workers=2)
    result = simulate(strads.strads(problem, 2, 5, SGD(0.25), blocks=4, width=1))
    x = problem.x0
    for t, mark in enumerate(result.trace.marks("update")):
        part, before = slice(2 * (t % 4), 2 * (t % 4) + 2), x.copy()
        x = before.copy()
        x[part] -= np.float32(0.125) * (problem.gradient(before, 0, t) + problem.gradient(before, 1, t))[part]
        assert np.array_equal(mark.values["x"], x)


def test_what_correlations_decide_is_refused_where_none_are_known():
    with pytest.raises(ValueError, match="policy dependency-aware with data whose correlations are not known; "
                                         "expected data lasso or logistic, or policy fixed or prioritised"):
        strads.strads(quadratic(workers=2), 2, 3, SGD(0.1), policy="dependency-aware")
    with pytest.raises(ValueError, match="momentum 0.5, weight decay 0.0 with steps to the minimum"):
        strads.strads(generated("lasso", 2, 4), 2, 3, SGD(0.1, 0.5))


# -- generated data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lasso", "logistic"])
def test_slopes_and_gradients_are_those_of_the_loss(kind):
    """By differences, of the mean over all workers' rows; a batch of all rows has the same gradient."""
    problem, rng = generated(f"{kind}:21,5,0.3", 2, 11), np.random.default_rng(1)
    x, known, h = rng.standard_normal(5), problem.coordinates, 1e-6
    slope = sum(known.rows(i) * known.slope(x, i, np.arange(5)) for i in range(2)) / 21
    parts = [(problem.images(i, 0), problem.gradient(x, i, 0)) for i in range(2)]
    assert sum(b for b, _ in parts) == 21
    expected = [(problem.loss(x + h * e) - problem.loss(x - h * e)) / (2 * h) for e in np.eye(5)]
    assert slope + known.penalty * np.sign(x) == pytest.approx(expected, abs=1e-5)
    assert sum(b * g for b, g in parts) / 21 == pytest.approx(expected, abs=1e-5)
    assert known.slope(x, 1, np.array([3, 0])) == pytest.approx(known.slope(x, 1, np.arange(5))[[3, 0]])


@pytest.mark.parametrize("kind", ["lasso", "logistic"])
def test_a_coordinate_step_never_raises_the_loss(kind):
    """So the curvature is at least the second derivative along a coordinate; 1 is exact, and 1/4 a bound."""
    found = simulate(strads.strads(generated(f"{kind}:60,12,0.4", 2, 16), 2, 40, SGD(0.1), width=1))
    problem = generated(f"{kind}:60,12,0.4", 2, 16)
    losses = [problem.loss(e.values["x"]) for e in found.trace.marks("update")]
    assert all(later <= before + 1e-6 for before, later in pairwise(losses)) and losses[-1] < 0.9 * losses[0]


def test_columns_have_the_correlation_that_is_asked_for():
    between_all = generated("lasso:4000,6,0.5", 1, 16).coordinates.correlation
    assert between_all[np.triu_indices(6, 1)] == pytest.approx(np.full(15, 0.5), abs=0.06)
    assert np.diag(between_all) == pytest.approx(np.ones(6), abs=1e-5)


def test_the_three_policies_are_runs():
    """As a command gives them: correlated columns that are updated together diverge, those of the other
    policies converge; the defaults train a net."""
    common = {"workers": 2, "data": "lasso:80,20,0.9", "steps": 25, "evaluations": 0}
    loss = {policy: refsgd.run("strads", policy=policy, **common).loss
            for policy in ("fixed", "dependency-aware", "prioritised")}
    assert loss["fixed"] > 1e6 > 2 > max(loss["dependency-aware"], loss["prioritised"])
    found = refsgd.run("strads", data="digits", net="softmax", workers=2, epochs=1)
    assert found.accuracy["test"] > 0.5


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
    """Serial descent in the order drawn: bit for bit where sums are exact, of one worker anywhere."""
    gram = CORRELATED.T @ CORRELATED
    assert independent([5, 1, 2], gram, 0.0) == [5] and independent([5, 1, 2], gram, np.inf) == [5, 1, 2]
    b = RNG.integers(-16, 17, 16) / 8
    found = run(DISJOINT, b, 9, 2, policy="dependency-aware", width=3, rho=0.0, penalty=0.125)
    order = [[e.option] for e in found.trace.of(Chosen)][::3]  # of three that are drawn, the first is kept
    assert len(order) == 9
    assert np.array_equal(final_parameters(found), one_at_a_time(DISJOINT, b, 0.125, order))


def test_blocks_of_several_coordinates_conflict_by_their_largest_correlation():
    c = np.array([[1, 0.1, -0.7], [0.1, 1, 0.2], [-0.7, 0.2, 1]])
    assert between(c, [slice(0, 2), slice(2, 3)]).tolist() == [[1, 0.7], [0.7, 1]]


def test_with_orthogonal_columns_a_block_does_what_its_coordinates_do_one_after_another():
    """Bit for bit; numbers are multiples of 1/16, so that a library's order of additions does not matter."""
    b = RNG.integers(-16, 17, 16) / 8
    together, alone = (
        final_parameters(run(DISJOINT, b, 12 // width, 2, policy="fixed", width=width, penalty=0.125))
        for width in (3, 1))
    assert np.array_equal(together, alone) and np.any(alone)


def test_correlated_columns_diverge_together_and_converge_when_conflicts_are_left_out():
    """Eight nearly equal columns: each takes the whole step, and together eight times too much."""
    b = CORRELATED @ np.ones(8)
    start = objective(CORRELATED, b, np.zeros(8))
    free = run(CORRELATED, b, 30, policy="dependency-aware", width=8, rho=np.inf)
    aware = run(CORRELATED, b, 30, policy="dependency-aware", width=8, rho=0.5)
    assert objective(CORRELATED, b, final_parameters(free)) > 1e6 * start
    assert objective(CORRELATED, b, final_parameters(aware)) < 0.1 * start
    assert all(len(block) <= 1 for block in blocks_of(aware))


# -- priorities ------------------------------------------------------------------------------------------------


def test_every_coordinate_has_a_chance_proportional_to_its_change_plus_eps():
    p = chances(np.array([0.0, -3.0, 1.0]), 0.5)
    assert p == pytest.approx([0.5 / 5.5, 3.5 / 5.5, 1.5 / 5.5]) and sum(p) == pytest.approx(1)


def test_random_draws_have_equal_chances_whatever_has_changed():
    program = strads.scheduler(["worker0"], quadratic(d=4), [slice(k, k + 1) for k in range(4)], SGD(0.1), 2,
                               "dependency-aware", 1, np.eye(4), np.inf, 1e-3)
    for _ in range(2):
        choose = program.send(None)
        assert choose == Choose([0, 1, 2, 3], [0.25] * 4)
        program.send(2)
        program.send(None)
        update = program.send(("worker0", strads.Partial(np.array([5.0]), 1)))
        program.send(update.fn(*update.args))


def test_workers_mark_every_step():
    trace = run(SPARSE, TARGET, 5).trace
    assert [[e.values["t"] for e in trace.marks("clock") if e.node == f"worker{i}"]
            for i in range(3)] == [list(range(5))] * 3
    assert [(e.values["part"], e.values["version"]) for e in trace.marks("update")] == [(0, t) for t in range(5)]


def test_draws_follow_these_chances():
    """A chi-squared test with 4,000 first draws of one step: rejected by chance in one of 10,000 seeds."""
    from scipy import stats

    choose = Choose(list(range(4)), chances(np.array([0.0, 1.0, 2.0, 0.1]), 0.1))

    def draws():
        seen = Counter()
        for _ in range(4000):
            seen[(yield choose)] += 1
        return seen

    seen = simulate({"peer0": strads.Node(draws())}, seed=1).values["peer0"]
    expected = 4000 * np.array(choose.p)
    assert stats.chisquare([seen[j] for j in range(4)], expected).pvalue > 1e-4 and min(seen.values()) > 0


def test_a_converged_coordinate_is_drawn_at_the_rate_of_eps():
    """Coordinates that do not move any more have probability eps over the sum; without eps they were
    never seen again."""
    p = chances(np.array([1.0, 0.0, 0.0]), 0.01)
    assert p[1] == p[2] == pytest.approx(0.01 / 1.03)


def test_prioritised_needs_fewer_steps_than_fixed_where_few_coordinates_matter():
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

    assert after("prioritised") < after("fixed")


# -- the protocol ----------------------------------------------------------------------------------------------


def test_bytes_and_messages():
    """Blocks of 4 float64 up and down, and their 4-byte numbers down; values of the last step by themselves."""
    trace = run(SPARSE, TARGET, 6, 3, Machine(compute="fixed(1)"), width=4).trace
    assert trace.messages == (2 * 6 + 1) * 3 and sum(trace.bytes_sent.values()) == 3 * 6 * 4 * (8 + 4 + 8)
    assert trace.seconds == 6


@pytest.mark.parametrize("options",
                         [{"policy": "alphabetical"}, {"width": 0}, {"width": 25}, {"rho": -1.0}, {"eps": 0.0},
                          {"blocks": 0}, {"blocks": 25}, {"blocks": 3, "width": 4}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="expected"):
        run(SPARSE, TARGET, 1, **options)


@pytest.mark.parametrize("a, penalty, words", [
    (SPARSE, -0.1, "penalty -0.1; expected a finite number >= 0"),
    (SPARSE, float("nan"), "penalty nan; expected"),
    (SPARSE, float("inf"), "penalty inf; expected"),
    (2 * SPARSE, 0.1, "columns of mean square 4 to 4; expected 1"),
    (SPARSE * np.linspace(1, 1.5, 24), 0.1, "columns of mean square 1 to 2.25; expected 1")])
def test_a_problem_that_the_steps_do_not_fit_is_refused_in_one_line(a, penalty, words):
    with pytest.raises(ValueError, match=words) as refused:
        lasso(a, TARGET, penalty)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["lasso:", "lasso:200,50,0", "logistic:9,3,0.5"])
def test_data_are_generated_as_they_are_named(text):
    assert generated(text, 2, 4).describe["data"] == text


@pytest.mark.parametrize("text", ["lasso:200", "lasso:0,5,0", "lasso:20,0,0", "lasso:20.5,5,0", "lasso:20,5,1",
                                  "lasso:20,5,-0.1", "logistic:a,b,c", "lasso:20,5,nan"])
def test_data_that_are_named_wrongly_are_refused(text):
    with pytest.raises(refsgd.experiment.prepare.Usage, match=r"expected l\w+:samples,features,correlation"):
        refsgd.run("strads", data=text, steps=1)


def test_fewer_rows_than_workers_are_refused_and_a_diverged_run_ends_in_one_line():
    with pytest.raises(ValueError, match="3 rows for 4 workers; expected at least one for each"):
        generated("lasso:3,2,0", 4, 1)
    with pytest.raises(Exception, match="use policy dependency-aware with rho below"):
        refsgd.run("strads", data="lasso:80,20,0.9", workers=2, steps=200)
