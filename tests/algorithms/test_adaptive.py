"""Adam and LARS: by hand, like PyTorch's, and the same bits in every algorithm with one worker."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.adaptive import LARS, Adam
from refsgd.algorithms.sgd import Cosine, StepDecay
from refsgd.experiment.prepare import Usage, prepare
from tests.catalogue import having

SMALL = {"data": "quadratic", "steps": 5, "lr": 0.1}


def run_of(rule, x, gradients):
    """The parameters after each gradient."""
    v, found = rule.start(x), []
    for t, g in enumerate(gradients):
        x, v = rule.step(x, v, g, t)
        found.append(x)
    return np.array(found)


def hold_adam(kind):
    """Gradients 4, -2, 0 by hand: m is 0.4, 0.16, 0.144 and s 0.016, 0.019984, 0.019964016, to be divided by
    0.1, 0.19, 0.271 and by 0.001, 0.001999, 0.002997001."""
    found = run_of(kind(lr=0.5), np.float64([1]), np.float64([[4], [-2], [0]]))
    steps = [4 / 4, (0.16 / 0.19) / math.sqrt(0.019984 / 0.001999),
             (0.144 / 0.271) / math.sqrt(0.019964016 / 0.002997001)]
    np.testing.assert_allclose(found[:, 0], 1 - 0.5 * np.cumsum(steps), rtol=1e-6)


class Uncorrected(Adam):
    """A mistake: the averages begin at 0, and nothing corrects it."""

    def step(self, x, v, g, t):
        return super().step(x, v, g, 10**6)


def hold_lars(kind):
    """Two layers of norms 5 and 2 whose gradients have norms 1 and 0.5: ratios 5 and 4 at trust 1, then again
    by hand; the velocity keeps half of the last move."""
    rule = kind(lr=0.1, momentum=0.5, trust=1.0, layers=(slice(0, 2), slice(2, 3)))
    g = np.float64([1, 0, -0.5])
    found = run_of(rule, np.float64([3, 4, 2]), [g, g, 0 * g])
    first = np.float64([3 - 0.1 * 5 * 1, 4, 2 + 0.1 * 4 * 0.5])
    np.testing.assert_allclose(found[0], first, rtol=1e-6)
    v = np.float64([0.5, 0, -0.2]) / 2 + np.float64([0.1 * math.hypot(2.5, 4), 0, -0.1 * 2.2])
    np.testing.assert_allclose(found[1], first - v, rtol=1e-6)
    np.testing.assert_allclose(found[2], first - 1.5 * v, rtol=1e-6)


class Distrusting(LARS):
    """A mistake: one ratio for all layers."""

    def ratio(self, x, g):
        return np.float32(self.trust)


@pytest.mark.parametrize(("hold", "kind", "wrong"), [(hold_adam, Adam, Uncorrected),
                                                     (hold_lars, LARS, Distrusting)])
def test_three_steps_by_hand_and_a_mistake_is_found(hold, kind, wrong):
    hold(kind)
    with pytest.raises(AssertionError):
        hold(wrong)


def test_lars_counts_decay_in_the_norm_and_trusts_where_nothing_is_known():
    rule = LARS(lr=1.0, weight_decay=0.5, trust=0.1)
    assert rule.ratio(np.float32([3, 4]), np.float32([0, 2])) == pytest.approx(0.1 * 5 / (2 + 2.5))
    assert rule.ratio(np.zeros(2, np.float32), np.ones(2, np.float32)) == pytest.approx(0.1)


def adam_in_float64(x, gradients, rate, decay, beta1, beta2, epsilon):
    """Kingma and Ba, algorithm 1, with sums in place of moving averages; decay is a part of the gradient."""
    seen = []
    for t, g in enumerate(gradients, start=1):
        seen.append(g + decay * x if decay else g)
        m = sum((1 - beta1) * beta1 ** (t - i) * each for i, each in enumerate(seen, start=1)) / (1 - beta1**t)
        s = sum((1 - beta2) * beta2 ** (t - i) * each**2 for i, each in enumerate(seen, start=1)) / (1 - beta2**t)
        x = x - rate(t - 1) * m / (np.sqrt(s) + epsilon)
        yield x


def lars_in_float64(x, gradients, rate, decay, momentum, trust, layers):
    """You, Gitman and Ginsburg, algorithm 1, layer by layer."""
    moves = []
    for t, g in enumerate(gradients):
        move = np.zeros_like(x)
        for at in layers:
            length, slope = np.linalg.norm(x[at]), np.linalg.norm(g[at])
            ratio = trust * (length / (slope + decay * length) if length > 0 and slope > 0 else 1)
            move[at] = rate(t) * ratio * (g[at] + decay * x[at] if decay else g[at])
        moves.append(move)
        x = x - sum(momentum ** (t - i) * each for i, each in enumerate(moves))
        yield x


dyadic = st.integers(0, 15).map(lambda k: k / 16)  # so that constants in float32 are exact
positive = st.integers(1, 15).map(lambda k: k / 16)
entries = st.integers(-16, 16).map(lambda k: k / 4)


@given(data=st.data(), d=st.integers(1, 5), steps=st.integers(1, 5), lr=positive, decay=dyadic, momentum=dyadic, second=dyadic,
       every=st.integers(1, 3), factor=positive)
def test_steps_are_those_of_float64(data, d, steps, lr, decay, momentum, second, every, factor):
    """For drawn rates, with and without decay and momentum, and with a schedule; an average of 1 - 1/16 is not yet full."""
    x = np.array(data.draw(st.lists(entries, min_size=d, max_size=d)))
    gradients = np.array(data.draw(st.lists(st.lists(entries, min_size=d, max_size=d), min_size=steps, max_size=steps)))
    ends = sorted(end for end in data.draw(st.sets(st.integers(1, 4), max_size=2)) if end < d)
    layers = [slice(a, b) for a, b in zip([0, *ends], [*ends, d])]
    how = {"lr": lr, "weight_decay": decay, "schedule": StepDecay(every, factor)}

    def rate(t):
        return lr * factor ** (t // every)

    adam = Adam(**how, beta1=momentum, beta2=second, epsilon=0.125)
    expected = list(adam_in_float64(x, gradients, rate, decay, momentum, second, 0.125))
    np.testing.assert_allclose(run_of(adam, x, gradients), expected, rtol=1e-5, atol=1e-5)
    for cut in (tuple(layers), ()):
        lars = LARS(**how, momentum=momentum, trust=0.25, layers=cut)
        expected = list(lars_in_float64(x, gradients, rate, decay, momentum, 0.25, cut or [slice(0, d)]))
        np.testing.assert_allclose(run_of(lars, x, gradients), expected, rtol=1e-5, atol=1e-5)


def test_constants_are_those_of_the_papers_and_rates_are_checked():
    adam, lars = Adam(0.1), LARS(0.1)
    assert (adam.beta1, adam.beta2, adam.epsilon, lars.trust) == (0.9, 0.999, 1e-8, 0.001)
    for rule in (Adam, LARS):
        with pytest.raises(ValueError, match="learning rate -1; expected a finite number >= 0"):
            rule(-1)


def test_norms_of_layers_are_summed_in_float64():
    """In float32 each 1 would be lost beside 4096 squared, and the square of 1e20 would be infinite."""
    x, g = np.float32([4096] + 7 * [1]), np.float32([1] + 7 * [0])
    assert LARS(lr=1.0, trust=1.0).ratio(x, g) == np.float32(np.sqrt(2.0**24 + 7))
    assert LARS(lr=1.0, trust=1.0).ratio(x, np.float32(1e20) * g) == pytest.approx(4096e-20)


@pytest.mark.slow
def test_adam_takes_the_steps_of_pytorch():
    torch = pytest.importorskip("torch")
    random, rule = np.random.default_rng(1), Adam(0.01, weight_decay=0.1, schedule=Cosine(20))
    x, gradients = random.standard_normal(7), random.standard_normal((12, 7))
    y = torch.tensor(x, requires_grad=True)
    theirs = torch.optim.Adam([y], 0.01, weight_decay=0.1)
    for ours, g, t in zip(run_of(rule, x, gradients), gradients, range(12), strict=True):
        theirs.param_groups[0]["lr"] = float(rule.rate(t))
        y.grad = torch.tensor(g)
        theirs.step()
        np.testing.assert_allclose(ours, y.detach().numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", ["adam", "lars"])
def test_one_worker_takes_the_same_steps_in_every_algorithm(rule):
    names = having(lambda facts: not facts.only_sgd and not (facts.not_lars and rule == "lars"))
    names = [name for name in names if "diloco" not in name and name not in ("fedasync", "fedbuff", "noloco")]  # which have an outer step
    own = {"async-rl": {"ahead": 0}}  # which else begins samples early
    found = {name: refsgd.run(name, workers=1, optimiser=rule, **SMALL, **own.get(name, {})).parameters_sha256 for name in names}
    assert len(set(found.values())) == 1, found
    assert found["bsp"] != refsgd.run("bsp", workers=1, **SMALL).parameters_sha256


@pytest.mark.parametrize("told", [{"optimiser": "adam", "servers": 3}, {"optimiser": "adam", "layout": "layers"},
                                  {"optimiser": "lars", "servers": 2, "layout": "layers"}])
def test_dividing_the_vector_changes_no_bit(told):
    net = {"data": "digits", "net": "mlp:8", "steps": 4, "workers": 2}
    whole = refsgd.run("bsp", optimiser=told["optimiser"], evaluations=0, **net)
    assert refsgd.run("bsp", evaluations=0, **told, **net).parameters_sha256 == whole.parameters_sha256


@pytest.mark.slow
@pytest.mark.usefixtures("few_draws")
def test_the_state_of_zero_is_divided_and_its_steps_are_those_of_all_reduce():
    told = {**SMALL, "optimiser": "adam"}
    ring = refsgd.run("allreduce", **told).parameters_sha256
    for stage in (1, 2, 3):
        assert refsgd.run("zero", stage=stage, **told).parameters_sha256 == ring
    plain, adam = (refsgd.predict("zero", optimiser=rule)["memory_worker"].terms for rule in ("sgd", "adam"))
    assert adam["optimiser state"] == pytest.approx(2 * adam["parameters"]) and "optimiser state" not in plain


def test_processes_and_a_record_repeat_the_rule(tmp_path):
    told = {**SMALL, "optimiser": "adam", "workers": 2}
    result = refsgd.run("bsp", record=tmp_path / "r", **told)
    assert refsgd.replay(tmp_path / "r").parameters_sha256 == result.parameters_sha256
    assert refsgd.run("bsp", runtime="processes", machine=refsgd.Machine(), **told
                      ).parameters_sha256 == result.parameters_sha256


def test_shape_only_nets_have_every_rule():
    for rule in ("adam", "lars"):
        assert refsgd.run("bsp", optimiser=rule, net="shapes:1000", steps=2).measured["updates"] == 2


def test_a_run_without_a_rate_has_that_of_its_rule():
    assert prepare("bsp", data="quadratic", optimiser="adam").sgd.lr == 0.003


@pytest.mark.parametrize("name", having(lambda facts: facts.only_sgd))
def test_an_algorithm_with_a_rule_of_its_own_refuses_others(name):
    with pytest.raises(Usage, match=f"optimiser adam with {name}: .*; expected optimiser sgd"):
        prepare(name, optimiser="adam", **SMALL)


@pytest.mark.parametrize(("name", "told", "line"), [
    ("bsp", {"optimiser": "adamw"}, "optimiser 'adamw'; expected one of sgd, adam, lars"),
    ("bsp", {"optimiser": "adam", "momentum": 0.9}, "momentum 0.9 with adam"),
    ("bsp", {"optimiser": "lars", "servers": 2}, "cut through layers; expected layout layers, or one server"),
    ("bsp", {"optimiser": "lars", "layout": "chunks:8"}, "cut through layers"),
    ("zero", {"optimiser": "lars"}, "cut through layers"), ("gpipe", {"optimiser": "lars"}, "a stage"),
    ("ssp", {"optimiser": "adam", "refresh": "lazy"}, "refresh fresh has no caches; expected optimiser sgd"),
    ("bsp", {"optimiser": "adam", "compress": "dgc:0.1"}, "expected compress topk")])
def test_a_rule_that_cannot_be_applied_is_refused(name, told, line):
    with pytest.raises(Usage, match=line):
        prepare(name, **SMALL, **told)
