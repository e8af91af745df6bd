"""Unequal batches: who averages gradients or replicas weighs them by examples; who applies each alone does not.

With integer gradients and batches that sum to a power of two all weighted means are exact in float32, so that
the mean over workers is the gradient of the union of their batches bit for bit.
"""

import importlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import ONE_WORKER
from refsgd.algorithms.server.sandblaster import sandblaster
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.collectives import ALLREDUCE
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.testing import RATE, _weighs, attempt
from tests.catalogue import having
from tests.wrong import wrong_deployment

MACHINE = Machine(compute="exponential(1)", latency=0.1, bandwidth=500.0)
SUM, STEPS = 32, 4

#: algorithms whose every update or round is a mean over all workers, with the options that make it one step
UNION = {"bsp": {}, "strads": {"blocks": 1}, "approximate": {"centers": 1}, "backup-workers": {"backups": 0}, "local-sgd": {"period": 1}, "post-local": {"switch": STEPS},
         "diloco": {"period": 1, "outer_lr": 1.0, "outer_momentum": 0.0}, "dgc": {"ratio": 1.0, "masking": False}}
#: a mean over those whose gradients an update happens to take: all of them in the first update
FIRST = {"softsync": {"splitting": 1}, "staleness-aware": {"splitting": 1}}
#: each gradient is applied alone, or replicas are mixed with the weights of a graph or of a force
ALONE = [*having(lambda facts: facts.mean_of is ONE_WORKER), "consgd", "easgd", "gosgd", "adpsgd", "pair-averaging",
         "dpsgd", "sgp"]

batches = st.lists(st.integers(1, SUM - 1), min_size=1, max_size=3).filter(lambda b: sum(b) < SUM).map(
    lambda b: [*b, SUM - sum(b)])


def union(problem: Problem, each) -> Problem:
    """The same problem with the workers' examples as one batch."""
    def gradient(x, rank, t):
        return sum(np.float32(b) * problem.gradient(x, i, t) for i, b in enumerate(each)) / np.float32(sum(each))

    return Problem(problem.x0, gradient, problem.loss)


def final(deployment, seed=0, machine=MACHINE):
    return final_parameters(simulate(deployment, machine, seed))


def sequentially(problem, each, steps, sgd):
    return final(CATALOGUE["sequential"](union(problem, each), 1, steps, sgd))


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("name", UNION)
@given(each=batches, seed=st.integers(0, 9))
@settings(max_examples=10)
def test_a_mean_over_all_workers_is_the_gradient_of_the_union(name, momentum, each, seed):
    problem, sgd = integer_gradients(workers=len(each), batches=each), SGD(0.25, momentum)
    found = final(CATALOGUE[name](problem, len(each), STEPS, sgd, **UNION[name]), seed)
    assert np.array_equal(found, sequentially(problem, each, STEPS, sgd))


@pytest.mark.parametrize("collective", ALLREDUCE)
@given(each=batches)
@settings(max_examples=5)
def test_every_collective_sums_the_weighted_gradients(collective, each):
    problem, sgd = integer_gradients(workers=len(each), batches=each), SGD(0.25, 0.5)
    found = final(CATALOGUE["allreduce"](problem, len(each), STEPS, sgd, collective=collective))
    assert np.array_equal(found, sequentially(problem, each, STEPS, sgd))


@pytest.mark.parametrize("name", FIRST)
@given(each=batches)
@settings(max_examples=10)
def test_an_update_with_one_gradient_of_each_worker_is_that_of_the_union(name, each):
    problem, sgd = integer_gradients(workers=len(each), batches=each), SGD(0.25)
    found = final(CATALOGUE[name](problem, len(each), 1, sgd, **FIRST[name]))
    assert np.array_equal(found, sequentially(problem, each, 1, sgd))


def test_backup_workers_weigh_the_gradients_that_they_take():
    each, sgd = (3, 1, 28), SGD(0.25)  # 3 + 1 examples count, those of the slow worker do not
    problem = integer_gradients(workers=3, batches=each)
    slow = Machine(compute="fixed(1)", speeds=(1, 1, 0.1))
    assert np.array_equal(final(CATALOGUE["backup-workers"](problem, 3, 1, sgd, backups=1), machine=slow),
                          sequentially(problem, each[:2], 1, sgd))


@given(each=batches)
@settings(max_examples=10)
def test_dynsgd_holds_the_weighted_mean_of_each_clock(each):
    problem, sgd = quadratic(workers=len(each), noise=1.0, batches=each), SGD(0.1)
    found = final(CATALOGUE["dynsgd"](problem, len(each), 10, sgd, staleness=0))
    assert np.allclose(found, sequentially(problem, each, 10, sgd), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name, options", [("local-sgd", {"period": 3}), ("post-local", {"period": 3, "switch": 0}),
                                           ("diloco", {"period": 3, "outer_lr": 1.0, "outer_momentum": 0.0})])
@given(each=batches)
@settings(max_examples=10)
def test_a_round_of_local_steps_ends_in_the_weighted_mean_of_the_replicas(name, options, each):
    problem, sgd = integer_gradients(workers=len(each), batches=each), SGD(0.25, 0.5)
    alone = simulate(CATALOGUE["independent"](problem, len(each), 3, sgd), MACHINE, 0).values
    mean = sum(np.float32(b) * alone[f"peer{i}"] for i, b in enumerate(each)) / np.float32(SUM)
    assert np.array_equal(final(CATALOGUE[name](problem, len(each), 3, sgd, **options)), mean)


@given(each=batches, workers=st.integers(1, 3))
@settings(max_examples=10)
def test_portions_of_sandblaster_weigh_by_examples(each, workers):
    """Portion i has the gradient and the examples of worker i."""
    dealt = integer_gradients(workers=len(each), batches=each)
    problem = replace(dealt, gradient=lambda x, rank, t: dealt.gradient(x, t, 0), images=lambda rank, t: each[t])
    assert np.array_equal(final(sandblaster(problem, workers, 3, SGD(1.0), portions=len(each))),
                          final(sandblaster(union(dealt, each), workers, 3, SGD(1.0), portions=1)))


@pytest.mark.parametrize("name", ALONE)
def test_what_is_applied_alone_or_mixed_by_a_graph_does_not_weigh_and_says_so(name):
    each, sgd = (20, 1, 11), SGD(0.125)
    weighed, plain = integer_gradients(workers=3, batches=each), integer_gradients(workers=3)
    assert np.array_equal(final(CATALOGUE[name](weighed, 3, STEPS, sgd)), final(CATALOGUE[name](plain, 3, STEPS, sgd)))
    said = importlib.import_module(CATALOGUE[name].__module__).__doc__
    assert "Unequal batches:" in " ".join(said.split())


@pytest.mark.parametrize("name", [*UNION, *FIRST, "dynsgd", "allreduce", "zero"])
def test_a_weighted_mean_is_not_the_plain_one(name):
    each, sgd, options = (20, 1, 11), SGD(0.125), {**UNION, **FIRST}.get(name, {})
    weighed, plain = integer_gradients(workers=3, batches=each), integer_gradients(workers=3)
    assert not np.array_equal(final(CATALOGUE[name](weighed, 3, 1, sgd, **options)),
                              final(CATALOGUE[name](plain, 3, 1, sgd, **options)))


@pytest.mark.parametrize("name, says", [
    ("bsp", "weigh: "), ("dynsgd", "weigh: "), ("local-sgd", "weigh: "), ("asp", "do not weigh"),
    ("dpsgd", "do not weigh"), ("diloco", "weigh, but")])
def test_the_conformance_kit_says_whether_an_algorithm_weighs(name, says):
    found = attempt("unequal batches", _weighs, lambda *case: CATALOGUE[name](*case, SGD(RATE)))
    assert found.text.startswith(says) and found.held is (True if says == "weigh: " else None)


@pytest.mark.parametrize("name, right, wrong", [
    ("bsp", "[push.examples for push in pushes]", "[1 for push in pushes]"),
    ("allreduce", "g * np.float32(share[rank])", "g"),
    ("zero", "g * np.float32(share[self.rank])", "g"),
    ("local-sgd", "number(share[rank]) * move", "move"),
    ("dgc", "np.float32(share[rank]) / np.float32(whole)", "np.float32(1 / len(self._group))"),
])
def test_a_mean_of_means_is_noticed(name, right, wrong):
    each, sgd = (20, 1, 11), SGD(0.25)
    problem = integer_gradients(workers=3, batches=each)
    deploy = wrong_deployment(CATALOGUE[name], right, wrong)
    assert not np.array_equal(final(deploy(problem, 3, STEPS, sgd, **UNION.get(name, {}))),
                              sequentially(problem, each, STEPS, sgd))
