"""The softmax bandit: its gradient, and importance ratios in expectation, by enumeration of the arms."""

import numpy as np
import pytest

import refsgd
from refsgd.problems.bandit import bandit, log_softmax

ARMS = 5
RNG = np.random.default_rng(3)
NEW, OLD = RNG.standard_normal((2, ARMS))
MEANS = np.random.default_rng([0, 6]).permutation(np.linspace(0, 1, ARMS))


def softmax(x):
    return np.exp(log_softmax(x))


def exact(x):
    """-pi_a (r_a - J)."""
    pi = softmax(x)
    return -pi * (MEANS - pi @ MEANS)


def expected(problem, behaviour, x, correct):
    """Of the surrogate of one choice of a policy, over all arms."""
    logp = log_softmax(behaviour)
    return sum(np.exp(logp[a]) * problem.rollouts.surrogate(x, (np.array([a]), MEANS[[a]], logp[[a]]), correct)
               for a in range(ARMS))


@pytest.mark.parametrize("baseline", [0.0, 0.5, 2.0])
def test_with_ratios_the_gradient_of_an_older_policy_has_no_bias(baseline):
    problem = bandit(ARMS, 1, baseline=baseline)
    assert expected(problem, OLD, NEW, "is") == pytest.approx(exact(NEW))
    assert expected(problem, NEW, NEW, "none") == pytest.approx(exact(NEW))


def test_without_ratios_it_has():
    """-sum_a pi_old(a) (r_a - baseline) (onehot_a - pi_new)."""
    found = expected(bandit(ARMS, 1, baseline=0.5), OLD, NEW, "none")
    weight = softmax(OLD) * (MEANS - 0.5)
    assert found == pytest.approx(-(weight - weight.sum() * softmax(NEW)))
    assert np.abs(found - exact(NEW)).max() > 0.05


def test_ratios_are_cut_at_two():
    x, logp = np.zeros(2), np.log([0.1, 0.9])
    sample = np.array([0]), np.array([1.0]), logp[[0]]  # a ratio of 5
    problem = bandit(2, 1, baseline=0.0)
    full, cut = (problem.rollouts.surrogate(x, sample, correct) for correct in ("is", "truncated"))
    assert cut == pytest.approx(full * 2 / 5) and full[0] == pytest.approx(-2.5)


def test_the_gradient_is_that_of_the_loss():
    problem, h = bandit(ARMS), 1e-6
    numeric = [(problem.loss(NEW + h * e) - problem.loss(NEW - h * e)) / (2 * h) for e in np.eye(ARMS)]
    assert exact(NEW) == pytest.approx(np.array(numeric), abs=1e-7)


def test_choices_have_the_probabilities_of_the_policy():
    chosen, rewards, logp = bandit(ARMS, 100_000).rollouts.sample(NEW.astype(np.float32), 0, 0)
    assert np.bincount(chosen, minlength=ARMS) / 100_000 == pytest.approx(softmax(NEW), abs=0.006)
    assert np.mean(rewards[chosen == 2]) == pytest.approx(MEANS[2], abs=0.005)
    assert logp == pytest.approx(log_softmax(NEW)[chosen], abs=1e-6)
    assert {chosen.dtype, rewards.dtype, logp.dtype} == {np.dtype(np.int32), np.dtype(np.float32)}


@pytest.mark.parametrize("correct", ["none", "is", "truncated"])
def test_at_the_policy_that_drew_them_all_gradients_are_the_same_bits(correct):
    problem, x = bandit(), RNG.standard_normal(10).astype(np.float32)
    assert np.array_equal(problem.rollouts.surrogate(x, problem.rollouts.sample(x, 1, 2), correct), problem.gradient(x, 1, 2))


def test_a_choice_of_probability_zero_is_never_drawn():
    x = np.array([0, 200, 0], np.float32)
    assert set(bandit(3, 1000).rollouts.sample(x, 0, 0)[0]) == {1}


@pytest.mark.parametrize("name", ["bsp", "asp", "allreduce", "gosgd", "local-sgd", "async-rl"])
def test_algorithms_learn_the_best_arm(name):
    found = refsgd.run(name, data="bandit", workers=4, steps=100, lr=0.5, batch="16,16,8,8")
    assert -1 < found.loss < -0.85


@pytest.mark.parametrize(("said", "why"), [
    ({"net": "tiny"}, "whose gradients are not of a net"), ({"shards": "by-label"}, "which has no labels"),
    ({"start": "x.npy"}, "whose parameters are not of a net"), ({"data": "bandit:3"}, "lasso, logistic, bandit")])
def test_what_it_does_not_use_is_refused(said, why):
    with pytest.raises(ValueError, match=why):
        refsgd.run("bsp", **{"data": "bandit", **said})
