"""The same programs in virtual time, over shared memory and over TCP."""

import numpy as np
import pytest

import refsgd
from refsgd.cluster.machine import Machine
from tests.paced import as_simulated, slipped

pytestmark = pytest.mark.usefixtures("few_draws_throughout")
QUICK = Machine(compute="exponential(0.004)", latency=0.001, bandwidth=20e6)
REAL = ("processes", "tcp")


def test_bsp_ends_with_the_same_bits_in_every_runtime_and_with_any_number_of_servers():
    hashes = {(runtime, servers): refsgd.run("bsp", workers=4, servers=servers, epochs=0.25, seed=0,
                                             runtime=runtime,
                                             machine=QUICK, momentum=0.5).parameters_sha256
              for runtime, servers in (*(("simulator", k) for k in (1, 2, 3)), ("processes", 1),
                                     ("processes", 3), ("tcp", 2))}
    assert len(set(hashes.values())) == 1, hashes


@pytest.mark.parametrize(("runtime", "servers"), [
    ("processes", 1), ("tcp", 2),
    *(pytest.param(*rest, marks=pytest.mark.slow) for rest in (("processes", 2), ("tcp", 1)))])
def test_the_identity_of_staleness_holds_in_real_processes(runtime, servers):
    result = refsgd.run("asp", workers=4, servers=servers, steps=25, data="quadratic", runtime=runtime,
                        machine=QUICK)
    trace = result.trace
    assert sum(tau for _, tau in trace.staleness) + trace.outstanding_age == 3 * 100 * servers
    assert result.measured["updates"] == 100


@pytest.mark.parametrize(("runtime", "refresh"), [
    ("processes", "fresh"), ("processes", "eager"), ("tcp", "lazy"),
    *(pytest.param(*rest, marks=pytest.mark.slow)
      for rest in (("processes", "lazy"), ("tcp", "fresh"), ("tcp", "eager")))])
def test_ssp_keeps_its_bound_in_real_processes(runtime, refresh):
    result = refsgd.run("ssp", workers=3, steps=25, staleness=2, refresh=refresh, data="integers", lr=0.25,
                        runtime=runtime,
                        machine=QUICK.with_(speeds=(1, 1, 4)))
    assert result.measured["clock_gap_max"] <= 2 and result.measured["lead_max"] <= 3
    assert result.measured["updates"] == 75


@pytest.mark.parametrize("algorithm", ["bsp", "asp", "ssp"])
def test_bytes_and_messages_are_the_same_in_every_runtime(algorithm):
    seen = [refsgd.run(algorithm, workers=3, servers=2, steps=8, data="quadratic", runtime=runtime,
                       machine=QUICK).measured
            for runtime in ("simulator", *REAL)]
    assert seen[0]["bytes_sent_by_node"] == seen[1]["bytes_sent_by_node"] == seen[2]["bytes_sent_by_node"]
    assert seen[0]["messages"] == seen[1]["messages"] == seen[2]["messages"]


@pytest.mark.slow
@pytest.mark.alone
def test_paced_processes_take_the_simulated_time_on_the_same_draws():
    """Mean 20 ms, 4 workers, 200 iterations: within 5 % of the simulator."""
    machine = Machine(compute="exponential(0.02)", latency=0.001, bandwidth=50e6)
    virtual, real = (refsgd.run("bsp", workers=4, steps=200, runtime=runtime, machine=machine)
                     for runtime in ("simulator", "processes"))
    slips, simulated, measured = slipped(real.trace), virtual.measured, real.measured
    assert as_simulated(measured["seconds"], simulated["seconds"], slips)
    off = 0.05 + slips / measured["seconds"]
    assert measured["idle_ratio"] == pytest.approx(simulated["idle_ratio"], abs=off)
    assert np.isclose(measured["idle_by_cause"]["straggling"], simulated["idle_by_cause"]["straggling"], atol=off)


def test_a_readers_own_algorithm_runs_in_every_runtime():
    from refsgd.algorithms.sgd import SGD
    from refsgd.effects import Compute, Node

    def alone(problem, workers, steps, sgd: SGD, *, twice: bool = False):
        def program(rank):
            x, v = problem.x0, sgd.start(problem.x0)
            for t in range(steps * (1 + twice)):
                g = yield Compute(problem.gradient, x, rank, t)
                x, v = sgd.step(x, v, g, t)
            return x

        return {f"worker{i}": Node(program(i)) for i in range(workers)}

    hashes = {refsgd.run(alone, twice=True, workers=2, steps=4, data="quadratic", runtime=r,
                         machine=QUICK).parameters_sha256
              for r in ("simulator", *REAL)}
    assert len(hashes) == 1
