"""Replay: the gradients of a run, applied by hand in float64 in the order in which its servers did, give
its parameters."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem
from refsgd.runtimes.simulator import simulate
from tests.properties.coordinates import UNEQUAL
from tests.watching import curved, recorded
from tests.wrong import wrong_deployment

PLAIN = SGD(0.05, 0.6, 0.1, StepDecay(4, 0.7))
WORKERS, STEPS = 3, 6


class Server:
    """A server by hand: x and the velocity, and what else its rule keeps."""

    def __init__(self, x, sgd):
        self.x, self.v, self.sgd, self.updates = np.float64(x), np.zeros(x.size), sgd, 0
        self.clock, self.images, self.mean, self.backup = Counter(), Counter(), defaultdict(
            lambda: np.zeros(x.size)), defaultdict(lambda: np.float64(x))
        self.squares = np.zeros(x.size)

    def decayed(self, g):
        return g + self.sgd.weight_decay * self.x

    def move(self, g, t=None, part=1):
        """Velocity and parameters after a gradient, with the rate of update t: by default of the number
        of updates so far."""
        self.v = self.sgd.momentum * self.v + g
        self.x = self.x - part * float(self.sgd.rate(self.updates if t is None else t)) * self.v
        self.updates += 1


def mean_of(gradients):
    return sum(b * g for _, g, b, _ in gradients) / sum(b for _, _, b, _ in gradients)


def mean(server, gradients):
    server.move(server.decayed(mean_of(gradients)))


def total(server, gradients):
    server.move(server.decayed(sum(g for _, g, _, _ in gradients)))


def one_nth(server, gradients):
    (_, g, _, _), = gradients
    server.move(server.decayed(g), part=1 / WORKERS)


def adagrad(server, gradients):
    a = server.decayed(sum(g for _, g, _, _ in gradients))
    server.squares += a**2
    server.move(a / np.sqrt(server.squares))


def less_by_staleness(server, gradients):
    server.move(server.decayed(mean_of([(w, g / max(1, tau), b, tau) for w, g, b, tau in gradients])))


def compensated(factor, adaptive):
    def rule(server, gradients):
        (w, g, _, _), = gradients
        server.squares = 0.95 * server.squares + 0.05 * g**2
        ratio = factor / np.sqrt(server.squares + 1e-7) if adaptive else factor
        server.move(server.decayed(g + ratio * g**2 * (server.x - server.backup[w])))
        server.backup[w] = server.x

    return rule


def mean_so_far(server, gradients):
    (w, g, b, _), = gradients
    c = server.clock[w]
    server.clock[w] += 1
    server.images[c] += b
    change = b / server.images[c] * (server.decayed(g) - server.mean[c])
    server.mean[c] = server.mean[c] + change
    server.move(change, c)


CASES = [
    ("sequential", {}, total), ("bsp", {}, mean), ("bsp", {"aggregation": "sum"}, total), ("asp", {}, total),
    ("dssp", {"lower": 0, "upper": 2}, total),
    *[("ssp", {"staleness": 1, "refresh": refresh}, total) for refresh in ("fresh", "lazy", "eager")],
    ("consgd", {"staleness": 1}, one_nth), ("dynsgd", {"staleness": 1}, mean_so_far),
    ("downpour", {}, total), ("downpour", {"push_every": 3, "fetch_every": 2}, total),
    ("downpour", {"push_every": 2, "adagrad": True}, adagrad),
    ("backup-workers", {}, mean), ("softsync", {}, mean), ("softsync", {"splitting": 2}, mean),
    ("staleness-aware", {}, less_by_staleness), ("staleness-aware", {"splitting": 1}, less_by_staleness),
    ("dc-asgd", {}, compensated(0.04, False)), ("dc-asgd", {"compensation": 0.7}, compensated(0.7, False)),
    ("dc-asgd", {"adaptive": True}, compensated(2.0, True)),
]


def replayed(deploy, options, rule, seed):
    """The parameters of a run and those by hand."""
    workers = 1 if deploy.__name__ == "sequential" else WORKERS
    plain = curved(workers=workers)
    problem, seen = recorded(Problem(np.float32([0.3, -0.3] * 3), plain.gradient, plain.loss,
                                     images=lambda rank, t: 1 + (rank + t) % 3))
    sgd = SGD(0.05, 0.0, 0.1, StepDecay(4, 0.7)) if "adagrad" in options else PLAIN
    run = simulate(deploy(problem, workers, STEPS, sgd, **options), UNEQUAL, seed)
    dropped = {(e.values["worker"], e.values["t"]) for e in run.trace.marks("drop")}
    gradients, server = defaultdict(list), Server(problem.x0, sgd)
    for rank, t, _, g in seen:
        if (w := f"worker{rank}", t) not in dropped:
            gradients[w].append((w, np.float64(g), problem.images(rank, t)))
    for e in run.trace.marks("update"):
        rule(server, [(*gradients[w].pop(0), e.values["version"] - read) for w, read in e.values["reads"]])
    assert not any(gradients.values())
    return final_parameters(run), server.x


@pytest.mark.parametrize(("name", "options", "rule"), CASES)
def test_a_run_is_its_gradients_applied_by_hand(name, options, rule):
    for seed in range(2):
        assert np.allclose(*replayed(CATALOGUE[name], options, rule, seed), rtol=0, atol=1e-5)


def hold_hogwild(deploy):
    """Every step is taken at what was read, decays that, and is added to what is there by then."""
    problem, seen = recorded(Problem(np.float32([0.3, -0.3] * 3), curved(workers=3).gradient, lambda x: 0.0))
    sgd = SGD(0.05, 0.0, 0.1, StepDecay(2, 0.7))
    run = simulate(deploy(problem, WORKERS, STEPS, sgd), UNEQUAL)
    steps = [float(sgd.rate(t)) * (np.float64(g) + sgd.weight_decay * x) for _, t, x, g in seen]
    assert len(steps) == WORKERS * STEPS and np.allclose(final_parameters(run), problem.x0 - sum(steps),
                                                         rtol=0, atol=1e-5)


def test_hogwild_adds_all_steps():
    hold_hogwild(CATALOGUE["hogwild"])


@pytest.mark.parametrize(("right", "wrong"),
                         [("weight_decay) * x if", "weight_decay) * g if"),
                          ("if sgd.weight_decay else g", "if sgd.momentum else g")])
def test_another_step_of_hogwild_is_caught(right, wrong):
    with pytest.raises(AssertionError):
        hold_hogwild(wrong_deployment(CATALOGUE["hogwild"], right, wrong))


def both_centers(deploy, threshold, seed=0):
    """The parameters of a run of Gaia, half of a copy from each data centre, and by hand: all steps of
    both, each with its own velocity."""
    sgd, (problem, seen) = SGD(0.05, 0.6, 0.0,
                               StepDecay(4, 0.7)), recorded(Problem(np.float32([0.3, -0.3] * 3),
                                                                    curved(workers=3).gradient,
                                                                    lambda x: 0.0))
    run = simulate(deploy(problem, 3, STEPS, sgd, threshold=threshold, local="asp"), UNEQUAL, seed)
    x = np.float64(problem.x0)
    for k, center in enumerate((("worker0",), ("worker1", "worker2"))):
        gradients, server = {w: [g for rank, _, _, g in seen if w == f"worker{rank}"]
                             for w in center}, Server(0 * problem.x0, sgd)
        for e in run.trace.marks("update"):
            (w, _), = e.values["reads"]
            if e.node == f"server{k}" and w in center:
                server.move(gradients[w].pop(0))
        x += server.x
    return final_parameters(run), x


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.3, 50.0])
def test_both_data_centres_end_with_the_steps_of_both(threshold):
    for seed in range(2):
        assert np.allclose(*both_centers(CATALOGUE["approximate"], threshold, seed), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("right", "wrong"), [
    ("old = self.x\n", "old = self.state\n"), ("self.unsent + (self.x - old), self.own", "self.x - old, self.own"),
    ("0.0 if now == steps else", "0.0 if now == steps + 1 else"),
    ("0.0 if now == steps else", "0.0 if not now == steps else")])
def test_a_data_centre_that_lacks_something_is_caught(right, wrong):
    with pytest.raises(AssertionError):
        for threshold in (0.01, 50.0):
            assert np.allclose(*both_centers(wrong_deployment(CATALOGUE["approximate"], right, wrong),
                                             threshold), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "right", "wrong"), [
    ("asp", "self.x, self.state = yield", "self.x, _ = yield"),
    ("dynsgd", "weight_decay) * x - mean)", "weight_decay) * x)"), ("dynsgd", "mean + change})", "mean})"),
    ("dynsgd", "replace(sgd, weight_decay=0.0)", "sgd"),
    ("dc-asgd", "backup[w] = shard.x\n", "pass\n"),
    ("dc-asgd", "dict.fromkeys(workers, shard.x)", "dict.fromkeys(workers, 0 * shard.x)"),
    ("dc-asgd", "sgd.step(x, v, g, t)", "sgd.step(x, v, g, t + 1)"),
    ("downpour", "squares = squares + a * a", "squares = a * a"),
    ("downpour", "np.where(squares > 0,", "np.where(x > 0,"),
    ("staleness-aware", "grad=g / tau", "grad=g"),
    ("softsync", "            kept = []\n", "            kept = kept[1:]\n"),
])
def test_another_rule_is_caught(name, right, wrong):
    deploy = wrong_deployment(CATALOGUE[name], right, wrong)
    with pytest.raises((AssertionError, IndexError)):
        for n, options, rule in CASES:
            if n == name:
                assert np.allclose(*replayed(deploy, options, rule, 0), rtol=0, atol=1e-5)


def hold_empty(deploy):
    """Iteration 1 has no images at all, 2 none for worker 0: such gradients are zero, and where no share
    has images all weigh the same."""
    def images(rank, t):
        return 0 if t == 1 or (t == 2 and not rank) else 2

    problem = Problem(np.ones(4, np.float32), lambda x, rank, t: np.float32(images(rank, t) > 0) * x,
                      lambda x: 0.0, images=images)
    run = simulate(deploy(problem, 1 if deploy.__name__ == "sequential" else WORKERS, STEPS, SGD(0.1)),
                   UNEQUAL)
    assert np.all(np.isfinite(final_parameters(run)))


@pytest.mark.parametrize("name", CATALOGUE)
def test_shares_may_be_empty(name):
    hold_empty(CATALOGUE[name])


def test_a_share_of_no_images_is_caught():
    with pytest.raises(ZeroDivisionError):
        hold_empty(wrong_deployment(CATALOGUE["dynsgd"], "max(1, images[c])", "images[c]"))
