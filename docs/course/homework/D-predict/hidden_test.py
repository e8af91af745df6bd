"""Hidden tests of homework D: HOMEWORK=FILE pytest hidden_test.py"""

import importlib.util
import os
import sys

import numpy as np
import pytest

from refsgd import Machine
from refsgd.algorithms.server.asp import asp
from refsgd.algorithms.server.bsp import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.problems import integer_gradients
from refsgd.runtimes.simulator import simulate


def submitted(name):
    """A name of the submitted file: HOMEWORK, or homework.py."""
    path = os.environ.get("HOMEWORK", "homework.py")
    spec = importlib.util.spec_from_file_location("homework", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["homework"] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


SPEEDS = [(1, 1), (1, 0.25), (2, 1, 0.5), (1, 3, 0.7), (1, 1, 1, 4)]


def traced(algorithm, speeds, steps):
    """The trace of a run in which only computing takes time."""
    problem = integer_gradients(d=4, workers=len(speeds))
    machine = Machine(compute="exponential(1)", speeds=tuple(map(float, speeds)))
    return simulate(algorithm(problem, len(speeds), steps, SGD(2.0**-20)), machine).trace


def updates(speeds, steps=4000):
    """Worker and staleness of each update, until the first worker has finished."""
    found, left = [], dict.fromkeys((f"worker{i}" for i in range(len(speeds))), steps)
    for worker, tau in traced(asp, speeds, steps).staleness:
        found.append((worker, tau))
        left[worker] -= 1
        if not left[worker]:
            return found


@pytest.mark.parametrize("speeds", SPEEDS)
def test_share(speeds):
    made = [worker for worker, _ in updates(speeds)]
    seen = [made.count(f"worker{i}") / len(made) for i in range(len(speeds))]
    assert submitted("share")(speeds) == pytest.approx(seen, rel=0.1), f"a simulated run has {np.round(seen, 3)}"


@pytest.mark.parametrize("speeds", SPEEDS)
def test_staleness(speeds):
    found = updates(speeds)
    seen = [np.mean([tau for worker, tau in found if worker == f"worker{i}"]) for i in range(len(speeds))]
    assert submitted("staleness")(speeds) == pytest.approx(seen, rel=0.1), f"a simulated run has {np.round(seen, 2)}"


@pytest.mark.parametrize("speeds", SPEEDS)
def test_iteration(speeds):
    seen = traced(bsp, speeds, 4000).seconds / 4000
    assert submitted("iteration")(speeds) == pytest.approx(seen, rel=0.06), f"a simulated run has {seen:.3f} s"
