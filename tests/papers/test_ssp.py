"""What is claimed of stale synchronous parallel SGD."""

import numpy as np
import pytest

from refsgd.algorithms.server import ssp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.problems import integer_gradients
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Computed, Returned, Sent
from refsgd.trace.waiting import waiting_by_cause

PROBLEM = integer_gradients(d=4)


@pytest.mark.parametrize("slack,steps", [
    (1, 200), pytest.param(0, 2000, marks=pytest.mark.slow),
    *(pytest.param(slack, 2000, marks=pytest.mark.long) for slack in (1, 3))])
def test_two_memoryless_workers_are_blocked_a_share_of_1_over_2s_plus_3(slack, steps):
    """The difference of clocks is a birth-death chain, uniform over its 2s + 3 states; blocked at its ends.

    The interval is four standard errors of batch means over 20 batches; the share of a slack of one more is
    outside.
    """
    batches = []
    for seed in range(20):
        run = simulate(ssp.ssp(PROBLEM, 2, steps, SGD(0.0), staleness=slack),
                       Machine(compute="exponential(1)"), seed, observe=1)
        end = min(e.time for e in run.trace.of(Returned))  # without the end, where nobody is left to wait for
        busy = sum(min(e.time, end) - e.start for e in run.trace.of(Computed)
                   if e.work == "gradient" and e.start < end)
        batches.append(1 - busy / (2 * end))
    error = np.std(batches, ddof=1) / np.sqrt(len(batches))
    share, more = 1 / (2 * slack + 3), 1 / (2 * slack + 5)
    assert abs(np.mean(batches) - share) <= 4 * error < abs(np.mean(batches) - more)
    assert error < 0.01


@pytest.mark.parametrize("slack", [0, 1, 4])
def test_lazy_refresh_reads_at_least_once_in_s_plus_one_clocks_and_the_slowest_no_more_often(slack):
    """The slowest worker always gets a row of its own clock, which is good for s + 1 iterations."""
    steps = 61
    machine = Machine(compute="exponential(1)", speeds=(1, 1, 0.01))
    trace = simulate(ssp.ssp(PROBLEM, 3, steps, SGD(0.1), staleness=slack, refresh="lazy"), machine).trace
    rows = {f"worker{i}": sum(e.message == "Row" and e.to == f"worker{i}"
                              for e in trace.of(Sent)) for i in range(3)}
    fewest = (steps - 1) // (slack + 1)
    assert rows["worker2"] == fewest
    assert all(fewest <= count <= steps for count in rows.values())


def test_eager_refresh_is_fresher_than_lazy():
    """Dai et al. 2015, ESSP: pushing rows as they change lowers the staleness that is seen."""
    machine = Machine(compute="exponential(1)", latency=0.01)
    for seed in range(2):
        mean = {refresh: np.mean([tau for _, tau in simulate(
            ssp.ssp(PROBLEM, 6, 60, SGD(0.0), staleness=4, refresh=refresh), machine, seed,
            observe=1).trace.staleness])
            for refresh in ("fresh", "lazy", "eager")}
        assert mean["fresh"] < mean["eager"] < mean["lazy"]


def test_more_slack_waits_less():
    seconds = [simulate(ssp.ssp(PROBLEM, 4, 100, SGD(0.0), staleness=s), Machine(compute="exponential(1)"),
                        observe=1).trace.seconds
               for s in (0, 1, 3, 10)]
    assert seconds == sorted(seconds, reverse=True)


def test_what_a_worker_waits_for_is_called_slack():
    for refresh in ("fresh", "lazy", "eager"):
        deployment = ssp.ssp(PROBLEM, 4, 100, SGD(0.0), staleness=1, refresh=refresh)
        trace = simulate(deployment, Machine(compute="exponential(1)"), observe=1).trace
        assert waiting_by_cause(trace)["slack"] > 0.9 * trace.idle_ratio
