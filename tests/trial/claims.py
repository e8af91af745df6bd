"""What is claimed of Ringmaster ASGD."""

import numpy as np
import pytest

from refsgd.algorithms.server import asp, ringmaster
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients
from refsgd.runtimes.simulator import simulate

MACHINE = Machine(compute="exponential(1)", speeds=(1, 1, 0.2))


@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_what_is_applied_is_young_and_every_push_is_applied_or_ignored(threshold):
    trace = simulate(ringmaster.ringmaster(integer_gradients(workers=3), 3, 30, SGD(0.25), threshold=threshold), MACHINE).trace
    assert max(tau for _, tau in trace.staleness) < threshold
    assert trace.marks("drop") and len(trace.marks("update")) + len(trace.marks("drop")) == 90


def test_without_a_threshold_it_is_asp():
    problem, infinite = integer_gradients(workers=3), float("inf")
    both = [simulate(deploy, MACHINE) for deploy in (asp.asp(problem, 3, 9, SGD(0.25, 0.5)),
            ringmaster.ringmaster(problem, 3, 9, SGD(0.25, 0.5), threshold=infinite))]
    assert np.array_equal(*map(final_parameters, both))
