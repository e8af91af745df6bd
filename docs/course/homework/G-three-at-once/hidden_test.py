"""Hidden tests of homework G: HOMEWORK=FILE pytest hidden_test.py"""

import importlib.util
import os
import sys

import numpy as np
import pytest

from refsgd import Machine, Problem
from refsgd.algorithms.sgd import SGD
from refsgd.runtimes.explorer import explore, walk
from refsgd.runtimes.simulator import simulate


def submitted(name):
    """A name of the submitted file: HOMEWORK, or homework.py."""
    path = os.environ.get("HOMEWORK", "homework.py")
    spec = importlib.util.spec_from_file_location("homework", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["homework"] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def deployment(n, steps, only=None):
    """Each gradient is a unit vector, so the models together show which gradients they contain; `only` one is not 0."""
    def gradient(x, rank, t):
        return np.eye(1, n * steps, rank * steps + t, np.float32)[0] * (only is None or only == (rank, t))

    return submitted("gossip")(Problem(np.zeros(n * steps, np.float32), gradient, lambda x: 0.0), n, steps, SGD(1.0))


def at_end(run):
    contained = -sum(peer.x for peer in run.values.values())
    assert np.allclose(contained, 1, atol=1e-4), (
        f"the models together contain the gradients {contained.round(2).tolist()} times; expected each once")


@pytest.mark.parametrize(("n", "steps"), [(3, 2), (4, 1), (4, 2)])
def test_every_schedule_ends_with_every_gradient(n, steps):
    explore(lambda: deployment(n, steps), at_end, max_runs=100)
    walk(lambda: deployment(n, steps), at_end, runs=100)


@pytest.mark.parametrize("slow", [0, 1])
def test_all_three_continue_with_the_mean(slow):
    """One passive peer's gradient of step 0; two more steps spread it."""
    machine = Machine(compute="fixed(1)", speeds=tuple(0.25 if rank == slow else 1.0 for rank in range(3)))
    run = simulate(deployment(3, 3, only=(2, 0)), machine)
    models = [peer.x.sum() for peer in run.values.values()]
    assert np.allclose(models, -1 / 3), f"the models contain {models} of a gradient; expected a third each"
