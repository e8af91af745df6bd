"""Hidden tests of homework F: HOMEWORK=FILE pytest hidden_test.py"""

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


def deployment(n, steps, staleness, begun):
    """Each gradient is a unit vector in both halves, so each half shows which gradients it contains."""
    def gradient(x, rank, t):
        first, second = -x.reshape(2, n, steps)
        if begun is not None:
            begun.append((rank, t))
        assert np.array_equal(first, second), (
            f"worker{rank} computes gradient {t} on halves that contain {first.astype(int).tolist()} and "
            f"{second.astype(int).tolist()}; expected the same gradients of each worker")
        due = max(0, t - staleness)
        assert (first[:, :due] == 1).all() and (first[rank] == (np.arange(steps) < t)).all(), (
            f"worker{rank} computes gradient {t} on {first.astype(int).tolist()}; expected all its own and the first "
            f"{due} of each worker")
        return np.tile(np.eye(1, n * steps, rank * steps + t, np.float32)[0], 2)

    problem = Problem(np.zeros(2 * n * steps, np.float32), gradient, lambda x: 0.0)
    return submitted("homework")(problem, n, steps, SGD(1.0), staleness=staleness)


def once(run):
    """Every gradient is in both halves, once."""
    halves = [run.values[f"server{k}"] for k in (0, 1)]
    assert all((half == -1).all() for half in halves), f"the halves are {halves}; expected each gradient once"


@pytest.mark.parametrize(("n", "steps", "staleness"), [(2, 2, 0), (2, 3, 1), (3, 2, 1)])
def test_every_model_that_is_read_is_in_one_piece(n, steps, staleness):
    explore(lambda: deployment(n, steps, staleness, None), once, max_runs=400)
    walk(lambda: deployment(n, steps, staleness, None), once, runs=150)


@pytest.mark.parametrize(("n", "staleness"), [(2, 0), (2, 2), (3, 3)])
def test_nobody_waits_longer_than_the_bound_says(n, staleness):
    begun, machine = [], Machine(compute="fixed(1)", speeds=(0.001, *[1.0] * (n - 1)))
    once(simulate(deployment(n, 6, staleness, begun), machine))
    meanwhile = begun[:begun.index((0, 1))]
    for rank in range(1, n):
        ahead = 1 + max(t for w, t in meanwhile if w == rank)
        assert ahead >= staleness + 1, f"worker{rank} begins {ahead} gradients in worker0's first; {staleness + 1} are allowed"
