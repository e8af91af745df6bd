"""The compiled model of a parameter server: every moment is the simulator's, bit for bit."""

import numpy as np
import pytest

from benchmarks.compiled_server import parameter_server
from refsgd.cluster.machine import Machine
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.problems.shapes import shape_only

pytestmark = pytest.mark.slow  # it is a benchmark's, and compiled first
MACHINES = {
    "random": Machine("exponential(0.02)", 0.0005, 1e6, update="lognormal(0.002,0.5)"),
    "ties": Machine("fixed(0.01)", 0.001, 1e6, update=0.002),
    "half duplex": Machine("uniform(0.01,0.02)", 0.001, 5e5, update=0.001, duplex="half"),
    "half duplex, ties": Machine("fixed(0.01)", 0.0, 1e6, duplex="half"),
    "unequal": Machine("pareto(0.01,3)", 0.002, 1e6, speeds=(1, 1, 4)),
    "no bandwidth": Machine("exponential(0.01)", 0.001),
    "nothing takes time": Machine(),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("algorithm", ["asp", "bsp"])
@pytest.mark.parametrize(("workers", "steps"), [(1, 4), (5, 300), (8, 3), (3, 0)])
def test_it_is_the_simulator_bit_for_bit(name, algorithm, workers, steps):
    machine = MACHINES[name].for_workers(workers)
    trace = perform(prepare(algorithm, shape_only(1000), workers=workers, steps=steps, machine=machine, seed=5),
                    "simulator").trace
    found = parameter_server(machine, workers, steps, 4000, seed=5, synchronous=algorithm == "bsp")
    assert found.seconds == trace.seconds
    assert found.times.tolist() == [e.time for e in trace.marks("update")]
    assert found.staleness.tolist() == [tau for _, tau in trace.staleness]
    assert found.idle_ratio == pytest.approx(trace.idle_ratio, abs=1e-12)


def test_another_seed_another_link_rule_and_another_size_give_other_moments():
    machine = MACHINES["random"]
    others = [(machine, 4000, 2), (machine.with_(duplex="half"), 4000, 1), (machine, 4001, 1)]
    expected = parameter_server(machine, 4, 20, 4000, 1).times
    for other, nbytes, seed in others:
        assert not np.array_equal(parameter_server(other, 4, 20, nbytes, seed).times, expected)


@pytest.mark.parametrize(("arguments", "message"), [
    ((Machine(), 0, 5, 100), "workers 0, steps 5; expected at least 1 worker"),
    ((Machine(colocated=True), 2, 5, 100), "servers are colocated; expected"),
])
def test_what_it_does_not_cover_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        parameter_server(*arguments)
