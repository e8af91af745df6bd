"""What is claimed of synchronous SGD with backup workers (Chen et al., arXiv:1604.00981)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.parts import Model, Push
from refsgd.algorithms.server import backup_workers, bsp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from tests.marks import mostly_slow
from tests.strategies import machines, seeds
from tests.watching import FREE, LOCKSTEP, curved, final, ragged, recorded

sizes = {"workers": st.integers(1, 5), "backups": st.integers(0, 3), "steps": st.integers(0, 6)}


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6))
def test_without_backups_it_is_bsp_bit_for_bit(machine, seed, workers, steps):
    problem, sgd = ragged(workers), SGD(0.1, 0.9, 0.01)
    runs = [simulate(deployment, machine, seed) for deployment in (
        bsp.bsp(problem, workers, steps, sgd),
        backup_workers.backup_workers(problem, workers, steps, sgd, backups=0))]
    assert np.array_equal(final_parameters(runs[0]), final_parameters(runs[1]))
    assert runs[0].trace.seconds == runs[1].trace.seconds and runs[0].trace.bytes_sent == runs[
        1].trace.bytes_sent


def test_with_backups_it_is_not_bsp():
    assert not np.array_equal(final(backup_workers.backup_workers(curved(), 4, 6, SGD(0.1))),
                              final(bsp.bsp(curved(), 4, 6, SGD(0.1))))


@given(machine=machines, seed=seeds, **sizes)
def test_each_step_has_n_minus_k_fresh_gradients_and_the_others_are_dropped(
    machine, seed, workers, backups, steps):
    """Algorithm 4: exactly N, all computed at the present version, of different workers; applied +
    dropped = computed."""
    problem, seen = recorded(curved(workers=workers))
    trace = simulate(backup_workers.backup_workers(problem, workers, steps, SGD(0.1), backups=backups),
                     machine, seed).trace
    needed = max(1, workers - backups)
    updates = trace.marks("update")
    assert [e.values["version"] for e in updates] == list(range(steps))
    assert all(len({w for w, _ in e.values["reads"]}) == len(e.values["reads"]) == needed for e in updates)
    assert all(tau == 0 for _, tau in trace.staleness)
    drops = trace.marks("drop")
    assert all(e.values["reason"] == "late" and 0 <= e.values["t"] < steps for e in drops)
    assert len(seen) == steps * needed + len(drops)
    assert sum(trace.bytes_sent.values()) == 2 * 24 * len(seen), "dropped gradients cost bandwidth too"


@given(machine=machines, seed=seeds, **sizes)
def test_a_step_is_the_mean_of_those_that_came_first(machine, seed, workers, backups, steps):
    """Replayed in sequence from who was in each step: the same bits, whatever the order within it."""
    problem = ragged(workers)
    run = simulate(backup_workers.backup_workers(problem, workers, steps, SGD(0.1), backups=backups), machine,
                   seed)
    x = problem.x0
    for e in run.trace.marks("update"):
        ranks = sorted(int(w.removeprefix("worker")) for w, _ in e.values["reads"])
        pushes = [Push(problem.gradient(x, i, e.values["version"]), problem.images(i, e.values["version"]), 0)
                  for i in ranks]
        x = bsp.update(SGD(0.1), x, x, pushes, e.values["version"], "mean")[0]
    assert np.array_equal(final_parameters(run), x)


def generous_server(workers, x, steps, sgd, needed):
    """WRONG: takes the first N gradients whatever their label, "they are only one step old"."""
    v = sgd.start(x)
    outstanding = set(workers) if steps else set()
    t, pushes = 0, {}
    while outstanding:
        w, push = yield Recv(Push)
        pushes[w] = push
        if t < steps and len(pushes) < needed:
            continue
        if t < steps:
            x, v = yield Compute(bsp.update, sgd, x, v, list(pushes.values()), t, "mean", kind="update")
            yield Mark("update", part=0, version=t, reads=tuple((w, p.version) for w, p in pushes.items()),
                       x=x)
            t += 1
        if t == steps:
            outstanding -= set(pushes)
        for w in pushes:
            yield Send(w, Model(x, t))
        pushes = {}
    return x


def test_a_server_that_takes_late_gradients_is_caught_by_their_staleness():
    problem = curved()
    wrong = dict(backup_workers.backup_workers(problem, 4, 6, SGD(0.1)))
    wrong["server0"] = Node(generous_server([f"worker{i}" for i in range(4)], problem.x0, 6, SGD(0.1), 3), role="server")
    assert any(tau > 0 for _, tau in simulate(wrong, FREE).trace.staleness)


def test_one_needed_is_the_fastest_of_all():
    """N = 1: equal speeds in lockstep, so the first in the order of arrival takes every step."""
    trace = simulate(backup_workers.backup_workers(curved(), 4, 5, SGD(0.1), backups=9), LOCKSTEP).trace
    assert [e.values["reads"] for e in trace.marks("update")] == [(("worker0", t),) for t in range(5)]


def steps_of_mean(fresh, stale, backups):
    """E[step] in units of the mean: exponential times, a late worker finishes first and then starts
    afresh."""
    if fresh + stale == backups:
        return 0.0
    more = fresh * steps_of_mean(fresh - 1, stale, backups) if fresh else 0.0
    more += stale * steps_of_mean(fresh + 1, stale - 1, backups) if stale else 0.0
    return (1 + more) / (fresh + stale)


@pytest.mark.parametrize("workers, backups", mostly_slow([(4, 1), (5, 2)], (5, 2)))
def test_a_step_takes_longer_than_the_order_statistic_because_the_late_finish_first(workers, backups):
    """h(F, Z) = [1 + F h(F-1, Z) + Z h(F+1, Z-1)]/(F + Z), h = 0 at F + Z = k, begun with the k late of the
    last step.

    Cancelling them would give E[T_(N:n)] = H_n - H_k, a lower bound; waiting for all gives H_n.  2,000 steps,
    3 %.
    """
    steps = 2000
    trace = simulate(backup_workers.backup_workers(integer_gradients(d=1), workers, steps, SGD(0.0),
                                                   backups=backups), FREE, observe=1).trace
    times = [e.time for e in trace.marks("update")]
    mean = (times[-1] - times[100]) / (steps - 101)
    harmonic = [sum(1 / j for j in range(1, n + 1)) for n in range(workers + 1)]
    assert mean == pytest.approx(steps_of_mean(workers - backups, backups, backups), rel=0.03)
    assert harmonic[workers] - harmonic[backups] < mean < harmonic[workers]


def test_stragglers_up_to_k_are_masked():
    """Two workers ten thousand times slower than the others: with two backups nobody waits for them,
    until they end."""
    machine = Machine(compute="fixed(1)", speeds=(1, 1, 1, 1e-4, 1e-4))
    for backups, seconds in ((2, 20.0), (1, 2e5)):
        trace = simulate(backup_workers.backup_workers(curved(workers=5), 5, 20, SGD(0.1), backups=backups),
                         machine).trace
        assert trace.marks("update")[-1].time == pytest.approx(seconds)


def test_every_schedule_of_three_workers_with_one_backup():
    def check(run):
        assert all(tau == 0 for _, tau in run.trace.staleness)
        assert all(len(e.values["reads"]) == 2 for e in run.trace.marks("update"))
        assert len(run.trace.marks("drop")) + 4 == sum(run.trace.iterations.values())

    report = explore(lambda: backup_workers.backup_workers(curved(workers=3), 3, 2, SGD(0.1)), check,
                     observe=lambda run: final_parameters(run).tobytes())
    assert report.complete and len(report.finals) == 9, "any two of three, twice"


def test_a_negative_number_of_backups_is_named():
    with pytest.raises(ValueError, match="expected"):
        backup_workers.backup_workers(curved(), 4, 1, SGD(0.1), backups=-1)
