"""What is claimed of Ringmaster ASGD (Maranjyan, Tyurin and Richtarik, ICML 2025)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.server import asp, rennala, ringmaster
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.theory import predict
from tests.strategies import machines, seeds
from tests.watching import FREE, RANDOM, curved, final, steady
from tests.wrong import wrong_deployment

UNEVEN = Machine(compute="exponential(1)", speeds=(1, 1, 0.2))


def deployed(workers, steps, threshold, deploy=ringmaster.ringmaster, servers=1):
    return deploy(integer_gradients(d=4, workers=workers), workers, steps, SGD(0.25), servers, threshold=threshold)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 8), threshold=st.integers(1, 6))
def test_what_is_applied_is_young_and_the_version_counts_it_alone(machine, seed, workers, steps, threshold):
    trace = simulate(deployed(workers, steps, threshold), machine, seed).trace
    accepted, dropped = trace.marks("update"), trace.marks("drop")
    assert len(accepted) + len(dropped) == workers * steps
    assert [e.values["version"] for e in accepted] == list(range(len(accepted)))
    assert max((tau for _, tau in trace.staleness), default=0) <= threshold - 1
    versions, now = [], 0
    for e in (e for e in trace.events if getattr(e, "name", "") in ("update", "drop")):
        versions.append(now - e.values["t"] if e.name == "drop" else 0)
        now += e.name == "update"
    assert all(late >= threshold or not late for late in versions)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6),
       momentum=st.sampled_from([0.0, 0.9]))
def test_its_limits_are_asp_and_rennala_of_one_bit_for_bit(machine, seed, workers, steps, momentum):
    problem, sgd = curved(workers=workers), SGD(0.1, momentum, 0.01)
    for threshold, other in ((math.inf, asp.asp(problem, workers, steps, sgd)),
                             (1, rennala.rennala(problem, workers, steps, sgd, gradients=1))):
        a, b = (simulate(deployment, machine, seed) for deployment in (
            ringmaster.ringmaster(problem, workers, steps, sgd, threshold=threshold), other))
        assert np.array_equal(final_parameters(a), final_parameters(b)) and a.trace.seconds == b.trace.seconds


@given(seed=seeds, threshold=st.integers(1, 3))
def test_one_worker_is_sequential(seed, threshold):
    problem, sgd = curved(workers=1), SGD(0.1, 0.9, 0.01)
    assert np.array_equal(final(ringmaster.ringmaster(problem, 1, 5, sgd, threshold=threshold), RANDOM, seed),
                          final(sequential.sequential(problem, 1, 5, sgd)))


def ages(trace, workers):
    """Sum of the staleness of accepted and of dropped gradients, ages outstanding, and the number accepted."""
    read, now, total = dict.fromkeys(workers, 0), 0, 0
    for e in (e for e in trace.events if getattr(e, "name", "") in ("update", "drop")):
        w = e.values["worker"] if e.name == "drop" else e.values["reads"][0][0]
        total += now - read[w]
        now += e.name == "update"
        read[w] = now
    return total + sum(now - version for version in read.values()), now


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(1, 8), threshold=st.integers(1, 6))
def test_ages_are_conserved(machine, seed, workers, steps, threshold):
    """Staleness of accepted ones + staleness at discards + ages outstanding = (n - 1) x accepted, at any speeds."""
    trace = simulate(deployed(workers, steps, threshold), machine, seed).trace
    total, accepted = ages(trace, trace.workers)
    assert total == (workers - 1) * accepted


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(1, 8), threshold=st.integers(1, 4))
def test_of_any_n_and_one_pushes_one_is_accepted(machine, seed, workers, steps, threshold):
    """Some worker pushes twice; if nothing was accepted in between, its second delay is 0."""
    trace = simulate(deployed(workers, steps, threshold), machine, seed).trace
    names = [e.name for e in trace.events if getattr(e, "name", "") in ("update", "drop")]
    assert all("update" in names[i:i + workers + 1] for i in range(max(len(names) - workers, 1)))


def test_every_schedule_of_a_small_case():
    for threshold in (1, 2):
        report = explore(lambda r=threshold: deployed(2, 2, r), ledger)
        assert report.complete and report.runs > 1


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "threshold"), [(8, 2), (8, 8), (8, 24), (16, 4), (5, 3)])
def test_predictions_of_equal_exponential_workers(workers, threshold):
    """Until the first worker ends, the share that is accepted is within 1.5 %, and its mean staleness within 6 %."""
    p = predict("ringmaster", FREE, workers=workers, steps=4000, nbytes=16, options={"threshold": threshold})
    trace = simulate(deployed(workers, 4000, threshold), FREE, 1, observe=1).trace
    _, updates, dropped = steady(trace)
    assert p["updates"].value / (workers * 4000) == pytest.approx(len(updates) / (len(updates) + len(dropped)), rel=0.015)
    tau = [e.values["version"] - e.values["reads"][0][1] for e in updates]
    assert p["staleness_mean"].value == pytest.approx(np.mean(tau), rel=0.06)
    assert p["staleness_max"].value == threshold - 1 == max(tau)
    assert p["seconds"].value == pytest.approx(trace.seconds, rel=0.05)


@pytest.mark.parametrize(("right", "wrong"), [
    ("if shard.version - push.version < threshold:", "if shard.version - push.version <= threshold:"),
    ('yield Mark("drop", worker=w, t=push.version, reason="stale")',
     'yield from shard.mark((), 0)')])  # ignored gradients count as versions
def test_wrong_ones_are_caught(right, wrong):
    deploy = wrong_deployment(ringmaster.ringmaster, right, wrong)
    trace = simulate(deployed(3, 20, 2, deploy), UNEVEN).trace
    accepted = [e for e in trace.marks("update") if e.values["reads"]]
    assert (max(tau for _, tau in trace.staleness) > 1
            or [e.values["version"] for e in accepted] != list(range(len(accepted))))


def test_an_answer_with_an_old_model_is_caught():
    """WRONG: the worker keeps its version and is never young again: with R = 1 it starves."""
    deploy = wrong_deployment(ringmaster.ringmaster, "yield Send(w, Model(shard.x, shard.version))",
                              "yield Send(w, Model(shard.x, push.version))")
    trace = simulate(deployed(3, 20, 1, deploy), UNEVEN).trace
    total, accepted = ages(trace, trace.workers)
    assert trace.updates["server0"] < 20 <= simulate(deployed(3, 20, 1), UNEVEN).trace.updates["server0"]
    assert total == 2 * accepted  # the identity alone does not see it


@pytest.mark.parametrize("threshold", [0, 0.5, -1, 2.5, math.nan])
def test_a_wrong_threshold_is_named(threshold):
    with pytest.raises(ValueError, match="expected a whole number >= 1, or inf"):
        deployed(3, 1, threshold)
