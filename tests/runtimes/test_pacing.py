"""Paced processes take the simulator's time on the same draws, and say how late they were."""

from __future__ import annotations

import time
from functools import partial

import pytest

import refsgd
from refsgd.cluster.machine import Machine
from refsgd.problems import integer_gradients
from refsgd.runtimes.processes.local import run
from refsgd.runtimes.simulator import simulate
from refsgd.trace import Computed
from tests.paced import as_simulated, slipped
from tests.runtimes.deployments import exchange

MACHINES = {
    "network without cost": Machine(compute="exponential(0.05)"),
    "link and update": Machine(compute="exponential(0.05)", latency=0.0125, bandwidth=4e5, update=0.0025),
    "colocated": Machine(compute="exponential(0.05)", latency=0.0025, bandwidth=4e5, speeds=(1, 1, 2, 0.5),
                          colocated=True)}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("transport", "machine"), [
    pytest.param(transport, machine, id=f"{transport}-{name}")
    for transport in ("shm", "tcp") for name, machine in MACHINES.items()])
def test_an_exchange_takes_the_simulated_time(transport, machine):
    """Within 5 % of the prediction from the same draws, 4 workers, mean 50 ms: a busy machine wakes
    sleepers up milliseconds late."""
    build = partial(exchange, n=4, d=2000, steps=10)
    expected = simulate(build, machine, 1)
    began = time.monotonic()
    result = run(build, machine, 1, transport=transport)
    took = time.monotonic() - began
    assert as_simulated(result.trace.seconds, expected.trace.seconds, slipped(result.trace))
    # Nominal time is no invention: the clock on the wall saw it too, and no event long after its time.
    assert result.trace.seconds * 0.99 < took
    late = [each["late_mean"] for each in result.trace.lateness.values()]
    assert max(late) < 0.1 * expected.trace.seconds
    assert result.values["server0"].tobytes() == expected.values["server0"].tobytes()
    late = result.trace.lateness["worker1"]
    assert late["computes"] == 10 and late["drawn"] > 0 and late["late_worst"] >= late["late_mean"] > 0


@pytest.mark.slow
def test_real_computing_counts_where_it_is_longer_than_drawn(transport):
    """20 ms of real work in 5 ms drawn: nominal time slips, and the run says so."""
    def busy(x, rank, t):
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass
        return x

    with pytest.warns(RuntimeWarning, match="overran its drawn times by"):
        result = run(partial(exchange, n=1, steps=30, gradient=busy), Machine(compute="fixed(0.005)"),
                     transport=transport)
    late = result.trace.lateness["worker0"]
    assert result.trace.seconds > 0.59 and late["slips"] >= 25 and late["overrun_ratio"] > 0.5


def test_unpaced_runs_take_their_real_time(transport):
    """And are on one real clock: messages are received after they were sent."""
    def slow(x, rank, t):
        time.sleep(0.005)
        return x

    trace = run(partial(exchange, n=2, steps=10, gradient=slow), transport=transport).trace
    assert trace.seconds > 0.05
    assert all(e.time - e.start >= 0.005 for e in trace.of(Computed))
    assert all(t.sent <= t.arrival <= t.received for t in trace.transits) and len(trace.transits) == 40


def test_an_unpaced_run_may_have_an_emulated_link(transport):
    """Real computing, drawn network."""
    trace = run(partial(exchange, n=2, d=1000, steps=5), Machine(latency=0.01, bandwidth=1e6),
                transport=transport).trace
    assert all(t.arrival - t.sent >= 0.014 - 1e-6 for t in trace.transits)
    assert trace.seconds >= 5 * 2 * 0.014


def test_means_that_cannot_be_paced_are_warned_about_once():
    """Below 2 ms."""
    with pytest.warns(UserWarning) as seen:
        refsgd.run("bsp", integer_gradients(1), workers=1, steps=1, machine=Machine(compute="fixed(0.001)"), runtime="processes")
    assert ["mean compute time 1 ms" in str(w.message) for w in seen] == [True]


def test_a_program_started_with_its_own_thread_may_run_in_any_thread():
    """`run` forks, watches and joins in the thread that calls it."""
    import threading

    out = []
    thread = threading.Thread(target=lambda: out.append(run(partial(exchange, n=2, steps=3))))
    thread.start()
    thread.join()
    assert len(out[0].trace.marks("update")) == 3


def test_bad_use_is_refused():
    """One line that says what was expected."""
    with pytest.raises(ValueError, match="transport 'udp'; expected one of shm, tcp"):
        run(exchange, transport="udp")
