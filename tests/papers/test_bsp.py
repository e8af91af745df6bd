"""What is claimed of bulk-synchronous SGD."""

import numpy as np
import pytest

from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.problems import integer_gradients
from refsgd.runtimes.simulator import simulate
from refsgd.trace.waiting import waiting_by_cause
from tests.marks import mostly_slow

PROBLEM = integer_gradients(d=4)


@pytest.mark.parametrize("workers,steps", mostly_slow([(4, 2_000), (2, 8_000), (8, 8_000), (4, 20_000)], (4, 2_000)))
def test_an_iteration_takes_as_long_as_the_slowest_of_n(workers, steps):
    """Order statistics: E[max of n exponentials] = H_n / lambda, within 1 % at 20,000 iterations and four standard
    errors at fewer; the slowest of one more or one less would be noticed."""
    run = simulate(bsp.bsp(PROBLEM, workers, steps, SGD(0.0)), Machine(compute="exponential(1)"), seed=1,
                   observe=1)
    fewer, harmonic, more = (sum(1 / k for k in range(1, n + 1)) for n in (workers - 1, workers, workers + 1))
    tolerance = 0.01 * harmonic if steps == 20_000 else 4 * np.sqrt(
        sum(1 / k**2 for k in range(1, workers + 1)) / steps)
    seen = run.trace.seconds / steps
    assert abs(seen - harmonic) <= tolerance < min(abs(seen - fewer), abs(seen - more))


def test_an_iteration_of_equal_workers_costs_n_plus_one_transfers_not_2n():
    """Answers leave one by one, so pushes come back staggered: T + 2 alpha + u + (n + 1) w from the
    second iteration on."""
    n, w = 4, 16 / 100
    machine = Machine(compute="fixed(10)", latency=0.5, bandwidth=100, update="fixed(0.25)")
    run = simulate(bsp.bsp(PROBLEM, n, 6, SGD(0.0)), machine)
    times = [e.time for e in run.trace.marks("update")]
    assert np.diff(times) == pytest.approx([10 + 1 + 0.25 + (n + 1) * w] * 5, rel=1e-12)


def test_the_wait_is_straggling_transfer_update_and_queueing():
    """One server, exponential workers: straggling is E[max T] - E[T], transfer 2 (alpha + w), update u."""
    n, steps, w = 4, 1500, 16 / 1000
    machine = Machine(compute="exponential(1)", latency=0.05, bandwidth=1000, update="fixed(0.1)")
    trace = simulate(bsp.bsp(PROBLEM, n, steps, SGD(0.0)), machine, observe=1).trace
    cause = {k: v * trace.seconds / steps for k, v in waiting_by_cause(trace).items()}
    assert cause["transfer"] == pytest.approx(2 * (0.05 + w), rel=0.02)
    assert cause["update"] == pytest.approx(0.1, rel=1e-6)
    assert cause["straggling"] == pytest.approx(25 / 12 - 1, rel=0.08)
    assert cause["slack"] == cause["partner"] == 0


def test_bytes_are_a_model_up_and_a_model_down_per_worker_and_iteration():
    for servers in (1, 3):
        trace = simulate(bsp.bsp(PROBLEM, 5, 7, SGD(0.1), servers)).trace
        assert sum(trace.bytes_sent.values()) == 2 * 5 * 7 * 16
        assert trace.messages == 2 * 5 * 7 * servers
