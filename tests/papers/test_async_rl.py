"""What is claimed of asynchronous reinforcement learning with a bound on the lead of actors (AReaL, 2025)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.server import async_rl, bsp
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients
from refsgd.problems.bandit import bandit
from refsgd.runtimes.explorer import Counterexample, explore
from refsgd.runtimes.simulator import simulate
from refsgd.testing import ledger
from refsgd.trace import Computed, Sent
from tests.strategies import machines, seeds
from tests.watching import FREE, curved, final, ragged
from tests.wrong import wrong_deployment

RULE = SGD(0.2, 0.9, 0.01, StepDecay(3, 0.5))
UNEVEN = Machine(compute="exponential(1)", speeds=(1, 1, 0.1), update="fixed(0.2)")


def deployed(workers, steps, ahead, deploy=async_rl.async_rl, **options):
    return deploy(integer_gradients(d=4, workers=workers), workers, steps, SGD(0.25), ahead=ahead, **options)


def oldest(run):
    return max((tau for _, tau in run.trace.staleness), default=0)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 6),
       correct=st.sampled_from(["none", "is", "truncated"]), order=st.sampled_from(["admission", "completion"]))
def test_without_a_lead_it_is_bsp_bit_for_bit(machine, seed, workers, steps, correct, order):
    """With B = n, in any order of arrival."""
    problem = bandit(4, [3, 1, 2, 5, 4][:workers])
    ours = async_rl.async_rl(problem, workers, steps, RULE, ahead=0, correct=correct, order=order)
    assert np.array_equal(final(ours, machine, seed), final(bsp.bsp(problem, workers, steps, RULE)))


@given(seed=seeds, order=st.sampled_from(["admission", "completion"]))
def test_without_a_lead_one_worker_is_sequential(seed, order):
    problem = curved(workers=1)
    ours = async_rl.async_rl(problem, 1, 5, RULE, ahead=0, order=order)
    assert np.array_equal(final(ours, UNEVEN, seed), final(sequential.sequential(problem, 1, 5, RULE)))


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), steps=st.integers(0, 7), ahead=st.integers(0, 3),
       size=st.integers(1, 6), how=st.sampled_from([{}, {"order": "completion"}, {"order": "completion", "filter": True}]))
def test_samples_count_once_and_the_gate_holds(machine, seed, workers, steps, ahead, size, how):
    run = simulate(async_rl.async_rl(ragged(workers), workers, steps, RULE, ahead=ahead, gradients=size, **how), machine, seed)
    ledger(run)
    trace, total = run.trace, workers * steps
    updates, dropped = trace.marks("update"), trace.marks("drop")
    reads = [e.values["reads"] for e in updates]
    assert sum(map(len, reads)) + len(dropped) == total and (not dropped or "filter" in how)
    assert sum(e.message == "Admit" for e in trace.of(Sent)) == len(updates) + len(dropped), "the model, to the dispatcher"
    assert [e.values["version"] for e in updates] == list(range(len(updates)))
    assert all(len(each) == size for each in reads[:-1])
    if how != {"order": "completion"}:
        assert oldest(run) <= ahead
    if not ahead:
        assert oldest(run) == 0
    given, version, gone = 0, 0, 0
    for e in trace.events:  # as the trainer, which is never behind the dispatcher, counts
        if isinstance(e, Sent) and e.message == "Job" and e.nbytes:
            given += 1
            assert given - gone <= (ahead + version + 1) * size
        version += getattr(e, "name", "") == "update"
        gone += getattr(e, "name", "") == "drop"
    assert given == total == sum(e.gradient_ended for e in trace.of(Computed))


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), steps=st.integers(0, 6))
def test_without_a_bound_no_actor_waits(machine, seed, workers, steps):
    assert not simulate(deployed(workers, steps, math.inf), machine, seed).trace.marks("block")


@pytest.mark.parametrize("how", [{}, {"order": "completion"}, {"order": "completion", "filter": True}])
def test_every_schedule_of_a_small_case(how):
    def check(run):
        ledger(run)
        assert oldest(run) <= 1 or how == {"order": "completion"}

    for workers, steps, size in ((2, 2, 1), (2, 2, 2), (3, 1, 2)):
        report = explore(lambda: deployed(workers, steps, 1, gradients=size, **how), check)
        assert report.complete and report.runs > 1


def test_the_gate_alone_does_not_bound_staleness():
    """Two actors, B = 1, ahead = 1: a sample that is 2 updates old is in one of the first three."""
    def check(run):
        first = run.trace.marks("update")[:3]
        assert all(e.values["version"] - read <= 1 for e in first for _, read in e.values["reads"])

    with pytest.raises(Counterexample) as found:
        explore(lambda: deployed(2, 2, 1, gradients=1, order="completion"), check)
    assert "staleness 2" in str(found.value)
    for how in ({}, {"order": "completion", "filter": True}):
        assert explore(lambda how=how: deployed(2, 2, 1, gradients=1, **how), check).complete


# -- times -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "rollout", "update", "ahead"), [
    (4, 1.0, 0.3, 0), (3, 1.0, 0.25, 1), (5, 0.5, 2.0, 3), (2, 1.0, 1.0, 0), (6, 0.3, 0.2, 2), (4, 2.0, 0.5, 1)])
def test_cycle_of_a_closed_queue(workers, rollout, update, ahead):
    """max(T_r, T_u, (T_r + T_u)/(ahead + 1)) at fixed times; the staleness fills up where updates are slower."""
    machine = Machine(compute=f"fixed({rollout})", update=f"fixed({update})")
    run = simulate(deployed(workers, 40, ahead), machine)
    ends = [e.time for e in run.trace.marks("update")]
    skip, rounds = 3 * (ahead + 1), 6 * (ahead + 1)
    assert (ends[skip + rounds] - ends[skip]) / rounds == pytest.approx(max(rollout, update, (rollout + update) / (ahead + 1)))
    assert oldest(run) == (ahead if update > rollout else min(ahead, 1))


@pytest.mark.parametrize("order", ["admission", "completion"])
@pytest.mark.parametrize("law", ["exponential(1)", pytest.param("lognormal(1,1)", marks=pytest.mark.slow)])
def test_no_law_is_faster_than_the_trainer_or_all_actors(law, order):
    """cycle >= max(E[T_u], B E[T_r]/n), which a large lead comes close to."""
    machine = Machine(compute=law, update="fixed(0.2)")
    seconds = [simulate(deployed(6, 600, ahead, gradients=3, order=order), machine, 1, observe=1).trace.seconds / 1200
               for ahead in (0, 2, 32)]
    assert seconds == sorted(seconds, reverse=True) and 0.5 * 0.93 < seconds[-1] < 0.5 * 1.2


# -- wrong ones --------------------------------------------------------------------------------------------------


ADMITTED = "number < min(total, policy.samples)"


@pytest.mark.parametrize(("right", "wrong"), [
    ("(ahead + 1) * size)", "(ahead + 2) * size)"),  # the gate, at the beginning
    ("version += 1\n            yield Send(\"dispatcher\", Admit(x, version, (ahead + version + 1)",
     "version += 1\n            yield Send(\"dispatcher\", Admit(x, version, (ahead + version + 2)"),
    (ADMITTED, "number < total"),
    ("i < used + size]", "True]")])  # the order of completion
def test_a_wrong_gate_is_caught(right, wrong):
    deploy = wrong_deployment(async_rl.async_rl, right, wrong)
    assert max(oldest(simulate(deployed(3, 30, 1, deploy), UNEVEN, seed)) for seed in range(3)) > 1


@pytest.mark.parametrize(("right", "wrong"), [
    ("for i in sorted(kept) if", "for i in kept if"),  # sums in the order of arrival
    ("job.number % workers,", "int(name[6:]),"),  # an actor's own
    ("examples = [problem.images(i % workers, i // workers)", "examples = [1")])
def test_other_samples_than_those_of_bsp_are_caught(right, wrong):
    deploy, problem = wrong_deployment(async_rl.async_rl, right, wrong), ragged()
    reference = final(bsp.bsp(problem, 4, 8, RULE))
    assert any(not np.array_equal(final(deploy(problem, 4, 8, RULE, ahead=0), FREE, seed), reference) for seed in range(3))


def test_a_filter_that_keeps_the_place_of_what_it_drops_is_caught():
    """WRONG: rejected samples count as submitted, and in the end all actors but those of one batch wait."""
    wrong = wrong_deployment(async_rl.async_rl, "dropped += 1", "pass")
    right, wrong = (simulate(deployed(4, 60, 2, deploy, gradients=1, order="completion", filter=True), UNEVEN)
                    for deploy in (async_rl.async_rl, wrong))
    assert right.trace.marks("drop") and wrong.trace.seconds > 1.5 * right.trace.seconds


def test_a_trainer_that_recomputes_the_probabilities_is_caught():
    """WRONG: with the probabilities of now all ratios are 1, which is `none` without saying so."""
    problem = bandit(4, 4)
    deploy = wrong_deployment(async_rl.async_rl, "rollouts.surrogate(x, sample, correct)",
                              "rollouts.surrogate(x, sample)")
    results = [final(make(problem, 3, 8, SGD(1.0), correct="is"), FREE) for make in (async_rl.async_rl, deploy)]
    assert not np.array_equal(*results)
    assert np.array_equal(results[1], final(async_rl.async_rl(problem, 3, 8, SGD(1.0)), FREE))


@pytest.mark.parametrize("options", [{"ahead": -1}, {"ahead": math.nan}, {"ahead": 1.5}, {"gradients": 0}, {"correct": "no"}, {"order": "no"},
                                     {"correct": "is"}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match="expected"):
        async_rl.async_rl(curved(), 4, 1, SGD(0.1), **options)


@pytest.mark.parametrize(("policy", "expected"), [("continue", "stop$"), ("shrink", "stop$"), ("restart", "stop$")])
def test_a_death_stops_the_run(policy, expected):
    with pytest.raises(ValueError, match=f"expected {expected}"):
        refsgd.run("async-rl", data="bandit", steps=4, on_death=policy, faults=["kill worker 1 at step 1"])


def test_processes_and_virtual_time_agree_without_a_lead():
    found = {refsgd.run("async-rl", data="bandit", steps=6, ahead=0, correct="is", runtime=runtime,
                        machine=Machine()).parameters_sha256 for runtime in ("simulator", "processes", "tcp")}
    assert len(found) == 1
    assert found == {refsgd.run("bsp", data="bandit", steps=6, machine=Machine()).parameters_sha256}


def test_final_parameters_are_the_trainers():
    run = simulate(deployed(2, 3, 1), FREE)
    assert np.array_equal(final_parameters(run), run.values["server0"])
