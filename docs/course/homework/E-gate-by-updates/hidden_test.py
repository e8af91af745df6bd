"""Hidden tests of homework E: HOMEWORK=FILE pytest hidden_test.py"""

import importlib.util
import os
import sys

import pytest

from refsgd import Machine
from refsgd.algorithms.sgd import SGD
from refsgd.problems import integer_gradients
from refsgd.runtimes.explorer import explore, walk
from refsgd.runtimes.simulator import simulate
from refsgd.testing import check, ledger


def submitted(name):
    """A name of the submitted file: HOMEWORK, or homework.py."""
    path = os.environ.get("HOMEWORK", "homework.py")
    spec = importlib.util.spec_from_file_location("homework", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["homework"] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def deployment(n, steps, bound):
    return submitted("homework")(integer_gradients(d=4, workers=n), n, steps, SGD(0.125), bound=bound)


@pytest.mark.parametrize(("n", "steps", "bound"), [(2, 3, 1), (2, 3, 2), (3, 2, 2), (3, 2, 3)])
def test_the_bound_holds_in_every_schedule_and_is_reached(n, steps, bound):
    seen = set()

    def at_end(run):
        ledger(run)
        for worker, staleness in run.trace.staleness:
            assert staleness <= bound, f"{worker}'s gradient is {staleness} updates old; at most {bound} allowed"
            seen.add(staleness)

    explore(lambda: deployment(n, steps, bound), at_end, max_runs=300)
    walk(lambda: deployment(n, steps, bound), at_end, runs=100)
    assert max(seen) == bound, f"staleness never exceeds {max(seen)}; {bound} is allowed"


@pytest.mark.parametrize(("n", "bound"), [(2, 1), (2, 4), (3, 2), (3, 5)])
def test_a_slow_worker_lets_as_many_updates_through_as_are_allowed(n, bound):
    machine = Machine(compute="fixed(1)", speeds=(0.001, *[1] * (n - 1)))
    staleness = dict(reversed(simulate(deployment(n, 8, bound), machine).trace.staleness))  # of the first gradient
    assert staleness["worker0"] == bound


def test_it_is_a_correct_program():
    lost = [str(f) for f in check(submitted("homework"), processes=False, max_runs=100, bound=3) if f.held is False]
    assert not lost, "\n".join(lost)
