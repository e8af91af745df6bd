"""Half-duplex links: formula, simulator and processes serve both ways over one link, first come first
served."""

import math

import numpy as np
import pytest

from benchmarks.oracle.evaluated import evaluated
from refsgd.cluster.machine import Machine
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.problems import Problem
from refsgd.problems.shapes import shape_only
from refsgd.theory import predict

D = 1200


def seconds(machine, n, steps, seed=0, name="bsp", **options):
    return perform(prepare(name, shape_only(D), workers=n, steps=steps, machine=machine, seed=seed, **options),
                   "simulator").trace.seconds


@pytest.mark.parametrize("colocated", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("transfer", [0.001, 0.03])
def test_formula_equals_simulation(n, transfer, colocated):
    """BSP, one server, to the last digit; where the link is busy, full duplex is another time."""
    machine = Machine(compute="fixed(0.02)", latency=0.001, bandwidth=4 * D / transfer, update=0.002,
                      duplex="half", colocated=colocated)
    p = predict("bsp", machine, workers=n, nbytes=4 * D, steps=7)["seconds"]
    assert p.kind == "exact" and p.value == pytest.approx(seconds(machine, n, 7), rel=1e-9)
    full = seconds(machine.with_(duplex="full"), n, 7)
    assert (full < p.value * (1 - 1e-6)) == (transfer > 0.02 and n - colocated > 1)


def test_random_times():
    machine = Machine(compute="exponential(0.02)", latency=0.001, bandwidth=4 * D / 0.004, duplex="half")
    p = predict("bsp", machine, workers=4, nbytes=4 * D, steps=100)["seconds"]
    runs = [seconds(machine, 4, 100, seed) for seed in range(12)]
    error = math.hypot(np.std(runs) / math.sqrt(11), p.terms["standard error"])
    assert abs(p.value - np.mean(runs)) <= 4.5 * error


@pytest.mark.parametrize("name,options", [("asp", {}), ("bsp", {"servers": 2}), ("ssp", {"staleness": 1}),
                                          ("downpour", {}), ("allreduce", {}), ("dpsgd", {})])
def test_other_algorithms_to_the_last_digit(name, options):
    """The second implementation has links that serve both ways too; full duplex is another time, but for two
    servers that take turns."""
    machine = Machine(compute="fixed(0.005)", latency=0.001, bandwidth=4 * D / 0.007, duplex="half")
    experiment = prepare(name, shape_only(D), workers=4, steps=7, machine=machine, **options)
    trace = perform(experiment, "simulator").trace
    assert evaluated(experiment, trace).seconds == pytest.approx(trace.seconds, rel=1e-9)
    full = seconds(machine.with_(duplex="full"), 4, 7, name=name, **options)
    assert name == "bsp" or full < trace.seconds * (1 - 1e-3)


def test_algorithms_without_a_formula_say_so():
    machine = Machine(compute="fixed(0.02)", bandwidth=1e6, duplex="half")
    refused = predict("adpsgd", machine, workers=4, nbytes=4 * D, steps=5)
    assert refused == {} and "shared by several nodes or both directions" in refused.missing["seconds"]
    quiet = predict("asp", machine.with_(bandwidth=math.inf), workers=4, nbytes=4 * D, steps=5)
    assert quiet["seconds"].value == predict("asp", Machine(compute="fixed(0.02)"), workers=4, nbytes=4 * D,
                                             steps=5)["seconds"].value


def test_machine():
    machine = Machine(compute="fixed(0.02)", duplex="half")
    assert Machine.from_json(machine.to_json()) == machine and "half duplex" in str(machine)
    with pytest.raises(ValueError, match="full or half"):
        Machine(duplex="double")


@pytest.mark.alone
def test_processes_serve_one_link():
    """Three paced workers, 15 ms for the model: 90 ms of link a round; full duplex would need 80."""
    machine = Machine(compute="fixed(0.02)", bandwidth=4 * D / 0.015, duplex="half")
    problem = Problem(np.zeros(D, np.float32), lambda x, rank, t: np.ones(D, np.float32), lambda x: 0.0)
    trace = perform(prepare("bsp", problem, workers=3, steps=6, machine=machine), "processes").trace
    assert trace.seconds == pytest.approx(seconds(machine, 3, 6), rel=0.05)
    assert trace.seconds > 1.05 * seconds(machine.with_(duplex="full"), 3, 6)
