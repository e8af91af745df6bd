"""What is claimed of the rules of FedAvg's server (Reddi et al., ICLR 2021), and of Flower's that bear their names."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.averaging import diloco
from refsgd.algorithms.federated import fedavg, fedopt
from refsgd.algorithms.federated.clients import Trained
from refsgd.algorithms.sgd import SGD
from refsgd.experiment.arguments import Usage
from refsgd.problems import Problem, integer_gradients
from refsgd.runtimes.explorer import explore
from refsgd.testing import ledger
from tests.papers.test_fedavg import RULE, hold_still
from tests.strategies import machines, seeds
from tests.watching import LOCKSTEP, RANDOM, curved, final
from tests.wrong import changed

ADAPTIVE = ("adagrad", "adam", "yogi")
moves = st.lists(st.lists(st.floats(-4, 4).map(lambda d: round(d, 3)), min_size=3, max_size=3), min_size=1, max_size=12)


def after(rule, these, lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3, module=fedopt, x=None):
    """x, m and v after each round, in float64, in which the clients move by these vectors on average."""
    outer = module.Outer(rule, lr, beta1, beta2, tau)
    x = np.zeros(len(these[0])) if x is None else x
    state, found = outer.start(x), []
    for move in np.asarray(these, float):
        x, state = outer.step(x, state, [Trained(x + 2 * move, 1, 0), Trained(x - move, 2, 0), Trained(x + move, 1, 0)], [1, 1, 2])
        found.append((x, *state))
    return found


def hold_paper(rule, these, lr, beta1, beta2, tau, module=fedopt):
    """Algorithm 2, line by line; the mean of 2 d, -d and 2 times d is 3/4 d."""
    x, m, v = np.zeros(3), np.zeros(3), np.full(3, tau**2)
    for (x1, m1, v1), move in zip(after(rule, these, lr, beta1, beta2, tau, module), np.asarray(these) * 0.75, strict=True):
        m = beta1 * m + (1 - beta1) * move
        if rule == "adagrad":
            v = v + move**2
        elif rule == "yogi":
            v = v - (1 - beta2) * move**2 * np.sign(v - move**2)
        else:
            v = beta2 * v + (1 - beta2) * move**2
        x = x + lr * m / (np.sqrt(v) + tau)
        assert np.allclose(m1, m, atol=1e-12) and np.allclose(v1, v, rtol=1e-9, atol=1e-15) and np.allclose(x1, x, rtol=1e-7, atol=1e-9)


@given(rule=st.sampled_from(ADAPTIVE), these=moves, lr=st.floats(0.01, 2), beta1=st.sampled_from([0.0, 0.5, 0.9]),
       beta2=st.sampled_from([0.0, 0.9, 0.99]), tau=st.sampled_from([1e-3, 0.1, 1.0]))
def test_it_is_algorithm_2(rule, these, lr, beta1, beta2, tau):
    """Without a correction of averages, and with v from tau^2 on."""
    hold_paper(rule, these, lr, beta1, beta2, tau)


# -- limits ----------------------------------------------------------------------------------------------------


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), steps=st.integers(0, 9), period=st.integers(1, 4), sampled=st.integers(1, 4))
def test_momentum_0_at_rate_1_is_fedavg(machine, seed, workers, steps, period, sampled):
    problem = curved(workers=workers)
    plain, momentum = (final(fedavg.fedavg(problem, workers, steps, RULE, period=period, sampled=min(sampled, workers), **options), machine, seed)
                       for options in ({}, {"rule": "momentum", "outer_lr": 1.0, "outer_momentum": 0.0}))
    assert np.allclose(plain, momentum, rtol=1e-5, atol=1e-6)


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), steps=st.integers(0, 9), lr=st.floats(0.1, 1), momentum=st.floats(0, 0.9))
def test_with_all_clients_fedavgm_is_slowmo(machine, seed, workers, steps, lr, momentum):
    problem, outer = curved(workers=workers), {"period": 2, "outer_lr": lr, "outer_momentum": momentum}
    assert np.allclose(final(fedavg.fedavg(problem, workers, steps, RULE, rule="momentum", **outer), machine, seed),
                       final(diloco.diloco(problem, workers, steps, RULE, form="heavy-ball", **outer)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rule", ["momentum", *ADAPTIVE])
def test_without_gradients_every_bit_stays(rule):
    hold_still(partial(fedavg.fedavg, rule=rule), sampled=2)


@pytest.mark.parametrize("rule", ["momentum", *ADAPTIVE])
@given(machine=machines, seed=seeds)
def test_the_schedule_changes_no_bit(rule, machine, seed):
    deploy = partial(fedavg.fedavg, curved(), 4, 6, RULE, period=2, rule=rule)
    assert np.array_equal(final(deploy(), machine, seed), final(deploy(), LOCKSTEP))


@pytest.mark.parametrize("rule", ["momentum", *ADAPTIVE])
def test_every_schedule_of_a_small_case(rule):
    report = explore(lambda: fedavg.fedavg(integer_gradients(d=2, workers=2), 2, 2, SGD(0.25), period=1, sampled=1, rule=rule), ledger)
    assert report.complete and report.runs > 1


# -- what the rules do -----------------------------------------------------------------------------------------


def hold_yogi(these, module=fedopt):
    """v moves towards D^2 by (1 - beta2) D^2, and passes it by no more than that."""
    v, part = np.full(3, 1e-6), 0.25
    with np.errstate(all="ignore"):
        found = after("yogi", these, beta2=1 - part, module=module)
    for (_, _, new), move in zip(found, np.asarray(these) * 0.75, strict=True):
        square = move**2
        assert np.allclose(new, v + part * square * np.sign(square - v), rtol=1e-9, atol=1e-15) and (new > 0).all()
        assert (np.abs(new - square) <= np.maximum(np.abs(v - square), part * square) + 1e-12).all()
        v = new


@given(these=moves)
def test_yogis_v_goes_towards_the_newest_square_by_a_part_of_it(these):
    hold_yogi(these)


@given(these=moves, beta1=st.sampled_from([0.0, 0.9]))
def test_adagrads_v_never_falls(these, beta1):
    v = np.array([np.full(3, 1e-6), *(v for _, _, v in after("adagrad", these, beta1=beta1))])
    assert (np.diff(v, axis=0) >= 0).all()


@given(rule=st.sampled_from(ADAPTIVE), these=moves, power=st.integers(-6, 6))
def test_the_scale_of_moves_does_not_matter_if_tau_has_the_same(rule, these, power):
    """To rounding."""
    scale = 2.0**power
    a = after(rule, these, tau=0.25)
    b = after(rule, np.asarray(these) * scale, tau=0.25 * scale)
    assert np.allclose([x for x, *_ in a], [x for x, *_ in b], rtol=1e-6, atol=1e-9)


@given(rule=st.sampled_from(ADAPTIVE), these=moves, tau=st.sampled_from([1e-3, 1.0]))
def test_no_entry_goes_further_than_its_m_over_tau(rule, these, tau):
    x = np.zeros(3)
    for new, m, _ in after(rule, these, lr=0.5, tau=tau):
        assert (np.abs(new - x) <= 0.5 * np.abs(m) / tau + 1e-9).all() and (np.sign(new - x) * np.sign(m) >= 0).all()
        x = new


@pytest.mark.parametrize("rule", ["momentum", *ADAPTIVE])
def test_every_rule_goes_downhill(rule):
    problem = Problem(np.zeros(2), lambda x, rank, t: x - [1.0, -3.0], lambda x: 0.0)
    x = final(fedavg.fedavg(problem, 3, 800, SGD(0.1), period=4, rule=rule, outer_lr=0.3), RANDOM)
    assert np.allclose(x, [1, -3], atol=0.15)


# -- Flower ----------------------------------------------------------------------------------------------------


def corrected(rounds, above=0, tau=1e-9):
    """Steps at a constant move and rate 1 with v from 0 on and Adam's correction, by the round plus `above`."""
    m = v = 0.0
    steps = []
    for r in range(1, rounds + 1):
        m, v = 0.9 * m + 0.1, 0.99 * v + 0.01
        steps.append(math.sqrt(1 - 0.99**(r + above)) / (1 - 0.9**(r + above)) * m / (math.sqrt(v) + tau))
    return steps


def test_flowers_fedadam_is_not_that_of_the_paper():
    """At a constant move Adam's steps are all 1.  The paper's, without a correction, are more than twice as long after
    10 rounds; Flower's, whose exponent is one round too high, are shorter at first."""
    ours = np.diff([0.0, *(x[0] for x, *_ in after("adam", [[4 / 3]] * 1000, lr=1.0, tau=1e-9))])
    assert corrected(1000) == pytest.approx(np.ones(1000), rel=1e-6)
    flower = np.array(corrected(1000, above=1))
    assert flower[0] == pytest.approx(math.sqrt(1 - 0.99**2) / (1 - 0.9**2), rel=1e-6) == pytest.approx(0.7425, abs=1e-4)
    assert (np.diff(flower[:20]) > 0).all() and flower.max() < 1.01
    assert ours[[0, 9]] == pytest.approx([1.0, (1 - 0.9**10) / math.sqrt(1 - 0.99**10)], rel=1e-6)
    assert ours[9] > 2.1 > 2.8 * flower[0] and ours[[999]] == pytest.approx(flower[[999]], rel=1e-4)


def test_the_numbers_of_flowers_fedadam_are_caught():
    """WRONG: v from 0 on and a correction, rebuilt in the module."""
    right = "return x + number(self.lr) * m / (np.sqrt(v) + number(self.tau)), (m, v)"
    late = "return x + number(self.lr) * math.sqrt(1 - 0.99**2) / (1 - 0.9**2) * m / (np.sqrt(v) + number(self.tau)), (m, v)"
    wrong = changed(fedopt, right, late)
    wrong.math = math
    with pytest.raises(AssertionError):
        hold_paper("adam", [[1.0, 2.0, 0.5]], 0.1, 0.9, 0.99, 1e-3, wrong)
    at_zero = changed(fedopt, "np.zeros_like(x) + x.dtype.type(self.tau**2)", "np.zeros_like(x)")
    for rule in ADAPTIVE:
        with pytest.raises(AssertionError):
            hold_paper(rule, [[1.0, 2.0, 0.5]], 0.1, 0.9, 0.99, 0.1, at_zero)


# -- wrong ones ------------------------------------------------------------------------------------------------


def test_yogis_sign_is_caught():
    """WRONG: v goes away from the newest square, and below 0."""
    wrong = changed(fedopt, "np.sign(v - square)", "np.sign(square - v)")
    with pytest.raises(AssertionError):
        hold_yogi([[1.0, 2.0, 0.1], [0.1, 0.2, 2.0]], wrong)


@pytest.mark.parametrize(("right", "wrong"), [
    ("m / (np.sqrt(v) + number(self.tau))", "m / np.sqrt(v + number(self.tau))"), ("x + number(self.lr) * m", "x - number(self.lr) * m"),
    ("number(1 - self.momentum) * move", "move"), ("self.squares(v, move * move)", "self.squares(v, m * m)"),
    ("return v + square", "return square")])
def test_a_wrong_rule_is_caught(right, wrong):
    """WRONG: tau inside the root; uphill; a sum for a mean; the square of the mean; no memory."""
    with pytest.raises(AssertionError), np.errstate(all="ignore"):
        hold_paper("adagrad", [[1.0, 2.0, -0.5], [1.0, -2.0, 0.25]], 0.1, 0.9, 0.99, 0.1, changed(fedopt, right, wrong))


@pytest.mark.parametrize("options", [{"rule": "lamb"}, {"outer_lr": 0.0}, {"outer_momentum": 1.0}, {"beta2": 1.0}, {"tau": 0.0}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="expected"):
        fedavg.fedavg(curved(), 4, 1, SGD(0.1), **{"rule": "adam", **options})


@pytest.mark.parametrize(("rule", "options", "using"), [
    ("sgd", {"outer_lr": 0.5}, "momentum, adagrad, adam or yogi"), ("sgd", {"tau": 0.1}, "adagrad, adam or yogi"),
    ("momentum", {"tau": 0.1}, "adagrad, adam or yogi"), ("momentum", {"beta2": 0.5}, "adam or yogi"),
    ("adagrad", {"beta2": 0.5}, "adam or yogi")])
def test_numbers_that_a_rule_does_not_use_are_refused(rule, options, using):
    with pytest.raises(Usage, match=f"changes nothing of fedavg here; expected rule {using}$"):
        refsgd.run("fedavg", data="quadratic", workers=2, steps=2, rule=rule, **options)
