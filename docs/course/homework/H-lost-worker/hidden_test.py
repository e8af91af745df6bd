"""Hidden tests of homework H: HOMEWORK=FILE pytest hidden_test.py"""

import importlib.util
import os
import sys

import numpy as np
import pytest

from refsgd import Machine, Problem
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Compute, Died
from refsgd.runtimes.faults import Fault
from refsgd.runtimes.simulator import Faulty


def submitted(name):
    """A name of the submitted file: HOMEWORK, or homework.py."""
    path = os.environ.get("HOMEWORK", "homework.py")
    spec = importlib.util.spec_from_file_location("homework", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["homework"] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


LR, BETA, STEPS = np.float32(0.25), np.float32(0.9), 4


def gradient(x, rank, t):
    """Of half the squared distance to the worker's own goal."""
    return x - np.array([rank + 1, -rank, t], np.float32)


def expected(n, deaths):
    """The centre, computed round by round; a worker takes part in the rounds before the step at which it dies."""
    centre, x = np.zeros(3, np.float32), np.zeros((n, 3), np.float32)
    for t in range(STEPS):
        living = [i for i in range(n) if t < deaths.get(i, STEPS)]
        if not living:
            break
        for i in living:
            x[i] -= LR * gradient(x[i], i, t)
        force = BETA / len(living) * (x[living] - centre)
        x[living] -= force
        centre = centre + force.sum(axis=0)
    return centre


def held(n, deaths, speeds=()):
    """The submitted server's centre is the expected one."""
    problem = Problem(np.zeros(3, np.float32), gradient, lambda x: 0.0)
    deployment = submitted("elastic")(problem, n, STEPS, SGD(float(LR)))
    faults = [Fault("kill", f"worker{i}", step) for i, step in deaths.items()]
    machine = Machine(compute="exponential(0.02)", latency=0.003, speeds=speeds)
    centre = Faulty(deployment, machine, 0, 64, faults, "continue").run().values["server0"]
    assert np.allclose(centre, expected(n, deaths), atol=1e-4), (
        f"{n} workers, deaths at {deaths}: the centre is {centre}; expected {expected(n, deaths)}")


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("dead", [0, -1])
@pytest.mark.parametrize("step", range(STEPS))
def test_one_death(n, dead, step):
    held(n, {dead % n: step})
    held(n, {dead % n: step}, speeds=(0.05, *[1.0] * (n - 1)))  # worker 0 dies while the others wait for it


@pytest.mark.parametrize("deaths", [{0: 1, 1: 2, 2: 3}, {0: 1, 1: 1}, {3: 0, 0: 3}, {0: 2, 1: 2, 2: 2, 3: 2}, {}])
def test_several_deaths(deaths):
    held(4, deaths)


def test_a_replica_that_has_arrived_counts():
    """The server, driven by hand: worker 0 sends its replica and dies, then worker 1 sends its own."""
    module = submitted("server").__globals__
    Replica, one = module["Replica"], np.ones(3, np.float32)
    news = iter([("worker0", Replica(one)), ("worker0", Died("worker0")), ("worker1", Replica(3 * one))])
    program = submitted("server")(["worker0", "worker1"], 0 * one, 1)
    try:
        effect = next(program)
        while True:
            answer = effect.fn(*effect.args) if isinstance(effect, Compute) else None
            effect = program.send(next(news) if hasattr(effect, "kinds") else answer)
    except StopIteration as end:
        assert np.allclose(end.value, 0.45 * (1 + 3)), f"the centre is {end.value}; expected 1.8"
