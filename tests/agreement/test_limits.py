"""Algorithms that must coincide in a limit, bit for bit where arithmetic allows it."""

import numpy as np
import pytest

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.server import asp, bsp, ssp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.simulator import simulate

MACHINE = Machine(compute="exponential(1)", latency=0.1, bandwidth=500.0)


def final(deployment, seed=0):
    return final_parameters(simulate(deployment, MACHINE, seed))


def union(problem: Problem, workers: int) -> Problem:
    """The same problem with the workers' shares as one batch, added in worker order."""
    def gradient(x, rank, t):
        g = problem.gradient(x, 0, t)
        for i in range(1, workers):
            g = g + problem.gradient(x, i, t)
        return g / np.float32(workers)

    return Problem(problem.x0, gradient, problem.loss)


@pytest.mark.parametrize("workers", [2, 3, 4, 7])
def test_bsp_is_one_sequential_step_on_the_union_batch(workers):
    problem, sgd = quadratic(d=20, workers=workers, noise=1.0), SGD(0.1, 0.9, 0.01)
    sequentially = final(sequential.sequential(union(problem, workers), 1, 30, sgd))
    assert np.array_equal(final(bsp.bsp(problem, workers, 30, sgd)), sequentially)


@pytest.mark.parametrize("seed", range(5))
def test_ssp_without_slack_is_bsp_with_a_sum(seed):
    exact, sgd = integer_gradients(workers=4), SGD(0.25)
    summed = final(bsp.bsp(exact, 4, 20, sgd, aggregation="sum"))
    assert np.array_equal(final(ssp.ssp(exact, 4, 20, sgd, staleness=0), seed), summed)
    rounded = quadratic(d=20, workers=4, noise=1.0)
    a, b = final(ssp.ssp(rounded, 4, 20, SGD(0.05), staleness=0),
                 seed), final(bsp.bsp(rounded, 4, 20, SGD(0.05), aggregation="sum"))
    assert np.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_ssp_with_slack_is_not_bsp():
    exact, sgd = integer_gradients(workers=4), SGD(0.25)
    assert not np.array_equal(final(ssp.ssp(exact, 4, 20, sgd, staleness=1)),
                              final(bsp.bsp(exact, 4, 20, sgd, aggregation="sum")))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("servers", [1, 3])
def test_ssp_with_infinite_slack_is_asp_under_the_same_schedule(seed, servers):
    problem, sgd = quadratic(d=20, workers=4, noise=1.0), SGD(0.1, 0.5)
    runs = [simulate(deploy, MACHINE, seed) for deploy in (
        asp.asp(problem, 4, 20, sgd, servers), ssp.ssp(problem, 4, 20, sgd, servers, staleness=float("inf")))]
    assert np.array_equal(final_parameters(runs[0]), final_parameters(runs[1]))
    assert runs[0].trace.seconds == runs[1].trace.seconds


def test_zero_learning_rate_changes_nothing():
    problem, sgd = quadratic(workers=3), SGD(0.0, 0.9)
    for deploy in (bsp.bsp, asp.asp, ssp.ssp):
        assert np.array_equal(final(deploy(problem, 3, 5, sgd)), problem.x0)
