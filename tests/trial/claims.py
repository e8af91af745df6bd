"""What is claimed of ASP with a growing threshold."""

import numpy as np
import pytest

from refsgd.algorithms.server import asp, growing
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients
from refsgd.runtimes.simulator import simulate

MACHINE = Machine(compute="exponential(1)", speeds=(1, 1, 0.2))


@pytest.mark.parametrize("power", [0, 0.25, 0.5])
def test_what_is_applied_is_young_and_every_push_is_applied_or_ignored(power):
    trace = simulate(growing.growing(integer_gradients(workers=3), 3, 30, SGD(0.25), power=power), MACHINE).trace
    updates = [e.values for e in trace.marks("update")]
    assert all(e["version"] - read < e["version"]**power + 1 for e in updates for _, read in e["reads"])
    assert trace.marks("drop") and len(updates) + len(trace.marks("drop")) == 90


def test_a_threshold_that_grows_as_fast_as_the_model_is_asp():
    problem = integer_gradients(workers=3)
    both = [simulate(deploy, MACHINE) for deploy in (asp.asp(problem, 3, 9, SGD(0.25, 0.5)),
            growing.growing(problem, 3, 9, SGD(0.25, 0.5), power=1))]
    assert np.array_equal(*map(final_parameters, both))
