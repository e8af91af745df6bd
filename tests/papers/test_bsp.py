"""What is claimed of bulk-synchronous SGD."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients, quadratic
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


def grouped(group, workers=6, steps=5, machine=None, problem=None, **options):
    problem = problem or integer_gradients(d=4, workers=workers)
    return simulate(bsp.bsp(problem, workers, steps, SGD(0.25), group=group, **options), machine, observe=1)


@pytest.mark.parametrize("aggregation", ["mean", "sum"])
@pytest.mark.parametrize("batches", [(), (1, 2, 3, 4, 5, 6)], ids=["equal", "unequal"])
def test_sums_of_groups_change_the_model_by_rounding_only(batches, aggregation):
    """MXNet's two levels: a host's gradients are summed before they are pushed."""
    problem = quadratic(d=4, workers=6, noise=1.0, batches=batches)
    plain, *others = (final_parameters(grouped(group, problem=problem, aggregation=aggregation))
                      for group in (1, 2, 3, 4, 6))
    for other in others:  # groups of four: the last has two workers
        np.testing.assert_allclose(other, plain, rtol=1e-5)


def test_a_leader_that_ignores_its_members_batches_is_caught():
    problem, right = quadratic(d=4, workers=6, noise=1.0, batches=(1, 2, 3, 4, 5, 6)), bsp.mean
    plain = final_parameters(grouped(1, problem=problem))
    try:
        bsp.mean = lambda *pushes: right(*(push._replace(examples=1) for push in pushes))
        wrong = final_parameters(grouped(2, problem=problem))
    finally:
        bsp.mean = right
    assert not np.allclose(wrong, plain, rtol=1e-3)


@settings(max_examples=30)
@given(workers=st.integers(1, 9), group=st.integers(1, 10), servers=st.integers(1, 3))
def test_only_leaders_talk_to_servers_and_every_gradient_is_in_an_update_once(workers, group, servers):
    trace = grouped(group, workers, steps=3, servers=servers).trace
    leaders = -(-workers // group)
    up, down = 3 * servers * leaders, 3 * (workers - leaders)
    assert trace.messages == 2 * up + 2 * down
    assert sum(trace.bytes_sent.values()) == 2 * 3 * workers * 16
    for update in trace.marks("update"):
        assert sorted(w for w, _ in update.values["reads"]) == sorted(f"worker{i}" for i in range(workers))


@pytest.mark.parametrize("group", [1, 2, 4])
def test_the_servers_link_carries_one_gradient_for_each_group(group):
    """Fixed times, 8 workers: leaders wait for 2 (g - 1) messages on their own links, the server for n/g + 1."""
    n, w, alpha = 8, 16 / 100, 0.5
    machine = Machine(compute="fixed(10)", latency=alpha, bandwidth=100)
    times = [e.time for e in grouped(group, n, 6, machine).trace.marks("update")]
    own = 2 * alpha + group * w if group > 1 else 0  # members start staggered by w, as the model reaches them
    assert np.diff(times)[1:] == pytest.approx([10 + 2 * alpha + (n // group + 1) * w + own] * 4, rel=1e-9)
