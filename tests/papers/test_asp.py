"""What is claimed of asynchronous SGD."""

import numpy as np
import pytest

from refsgd.algorithms.server import asp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.problems import integer_gradients
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Returned

PROBLEM = integer_gradients(d=4)


@pytest.mark.slow
@pytest.mark.parametrize("workers,pushes", [(4, 16_000), (2, 40_000), (4, 40_000), (8, 40_000)])
def test_staleness_is_geometric_for_equal_memoryless_workers(workers, pushes):
    """P(tau = j) = (1/n)(1 - 1/n)^j: the next update is anybody's, so each one is the reader's with
    probability 1/n.

    Staleness of neighbouring gradients is dependent; every 5n-th is tested, at the 0.1 % level, at which the
    distributions of one worker more and of nearly one less (of eight: three, and a little over two) are rejected.
    """
    run = simulate(asp.asp(PROBLEM, workers, pushes // workers, SGD(0.0)), Machine(compute="exponential(1)"),
                   seed=5, observe=1)
    taus = np.array([tau for _, tau in run.trace.staleness])[20 * workers: -20 * workers: 5 * workers]
    other = 1 if workers < 8 else 3  # of 8 workers a thousand gradients do not tell 9
    assert max(fit(taus, workers - 0.75 * other), fit(taus, workers + other)) < 0.001 < fit(taus, workers)


def fit(taus, n):
    """p-value of the geometric distribution for n workers, by the chi-squared test."""
    from scipy import stats

    top = int(4 * n)
    observed = np.bincount(np.minimum(taus, top), minlength=top + 1)
    p = (1 / n) * (1 - 1 / n) ** np.arange(top)
    expected = len(taus) * np.append(p, 1 - p.sum())
    enough = expected >= 5
    f_obs = np.append(observed[enough], observed[~enough].sum())
    f_exp = np.append(expected[enough], expected[~enough].sum())
    keep = f_exp > 0
    return stats.chisquare(f_obs[keep], f_exp[keep]).pvalue


def test_the_goodness_of_fit_rejects_another_law():
    from scipy import stats

    run = simulate(asp.asp(PROBLEM, 4, 500, SGD(0.0)), Machine(compute="uniform(0.9,1.1)"), seed=5,
                   observe=1)
    taus = np.array([tau for _, tau in run.trace.staleness])[100:-100:20]
    observed = np.bincount(np.minimum(taus, 9), minlength=10)
    p = 0.25 * 0.75 ** np.arange(9)
    assert stats.chisquare(observed, len(taus) * np.append(p, 1 - p.sum())).pvalue < 1e-6


def test_equal_fixed_times_give_n_minus_one_after_the_first_round():
    run = simulate(asp.asp(PROBLEM, 5, 10, SGD(0.0)), Machine(compute="fixed(1)"))
    taus = [tau for _, tau in run.trace.staleness]
    assert taus == [0, 1, 2, 3, 4] + [4] * 45


def test_the_mean_is_n_minus_one_at_any_speeds_and_the_slow_one_has_the_old_gradients():
    run = simulate(asp.asp(PROBLEM, 4, 3000, SGD(0.0)),
                   Machine(compute="exponential(1)", speeds=(1, 1, 1, 4)), observe=1)
    end = min(e.time for e in run.trace.of(Returned))  # while all four still work
    while_all = [(e.values["reads"][0][0], e.values["version"] - e.values["reads"][0][1])
                 for e in run.trace.marks("update") if e.time < end]
    assert np.mean([tau for _, tau in while_all]) == pytest.approx(3, rel=0.01)
    for worker, rate in [("worker0", 1), ("worker3", 4)]:
        mean = np.mean([tau for w, tau in while_all if w == worker])
        assert mean == pytest.approx((7 - rate) / rate, rel=0.1)


def test_asp_updates_n_times_as_often_as_bsp():
    run = simulate(asp.asp(PROBLEM, 8, 10, SGD(0.1)))
    assert run.trace.updates == {"server0": 80}


def test_a_fast_server_link_decides_the_throughput():
    """Incoming link, processor and outgoing link are stations in series: fixed T gives X = min(n/R, 1/w,
    1/u)."""
    w, n = 16 / 10, 4
    machine = Machine(compute="fixed(1)", latency=0.5, bandwidth=10)
    trace = simulate(asp.asp(PROBLEM, n, 50, SGD(0.0)), machine).trace
    times = [e.time for e in trace.marks("update")]
    round_trip = 1 + 2 * 0.5 + 2 * w
    assert (times[-1] - times[40]) / (len(times) - 41) == pytest.approx(
        1 / min(n / round_trip, 1 / w), rel=1e-9)
