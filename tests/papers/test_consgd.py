"""What is claimed of CONSGD and DYNSGD (Jiang, Cui, Zhang and Yu, SIGMOD 2017)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.parts import Model, Push
from refsgd.algorithms.server import bsp, consgd, dynsgd, ssp
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import integer_gradients
from refsgd.runtimes.explorer import explore
from refsgd.runtimes.simulator import simulate
from tests.strategies import machines, seeds
from tests.watching import RANDOM, constant, curved, final, ragged, recorded

BOTH = pytest.mark.parametrize("deploy", [consgd.consgd, dynsgd.dynsgd])
slack = st.sampled_from([0, 1, 3, float("inf")])
sizes = {"workers": st.integers(1, 5), "servers": st.integers(1, 3), "steps": st.integers(0, 6)}


@BOTH
@given(machine=machines, seed=seeds, slack=slack, **sizes)
def test_they_run_under_the_gate_of_ssp(deploy, machine, seed, slack, workers, servers, steps):
    """Same worker, same answers: the schedule, the bytes and the staleness are those of SSP."""
    problem = integer_gradients(d=5, workers=workers)
    run, plain = (simulate(f(problem, workers, steps, SGD(0.25), servers, staleness=slack), machine, seed)
                  for f in (deploy, ssp.ssp))
    assert run.trace.seconds == plain.trace.seconds and run.trace.staleness == plain.trace.staleness
    assert run.trace.bytes_sent == plain.trace.bytes_sent
    assert run.trace.clock_gap <= slack and run.trace.lead <= slack + 1
    assert [e.values["worker"] for e in run.trace.marks("block")] == [e.values["worker"]
                                                                    for e in plain.trace.marks("block")]


@BOTH
@given(machine=machines, seed=seeds, steps=st.integers(0, 6), servers=st.integers(1, 3))
def test_one_worker_is_sequential_sgd_bit_for_bit(deploy, machine, seed, steps, servers):
    problem, sgd = curved(workers=1), SGD(0.1, 0.9, 0.01)
    assert np.array_equal(final(deploy(problem, 1, steps, sgd, servers), machine, seed),
                          final(sequential.sequential(problem, 1, steps, sgd)))


@given(machine=machines, seed=seeds, slack=slack, workers=st.sampled_from([1, 2, 4]), steps=st.integers(0, 6))
def test_consgd_adds_each_update_times_1_over_n(machine, seed, slack, workers, steps):
    """x = x0 + (1/n) sum of u; 1/n a power of two, so exact."""
    problem, seen = recorded(integer_gradients(d=5, workers=workers))
    x = final(consgd.consgd(problem, workers, steps, SGD(0.25), staleness=slack), machine, seed)
    assert np.array_equal(x,
                          problem.x0
                          - np.float32(0.25 / workers) * sum((g for *_, g in seen), np.zeros(5, np.float32)))


@BOTH
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_without_slack_both_are_bsp_with_a_mean(deploy, workers, seed):
    """All updates of a clock are complete before the next one begins, in whatever order they came."""
    problem, sgd = curved(workers=workers, dtype=np.float64), SGD(0.25)
    assert np.allclose(final(deploy(problem, workers, 12, sgd, staleness=0), RANDOM, seed),
                       final(bsp.bsp(problem, workers, 12, sgd)), rtol=1e-9)
    assert not np.allclose(final(deploy(problem, workers, 12, sgd, staleness=2), RANDOM, seed),
                           final(bsp.bsp(problem, workers, 12, sgd)), rtol=1e-4)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5))
def test_a_complete_clock_of_dynsgd_is_the_mean_over_images(machine, seed, workers):
    """As BSP at slack 0 also for unequal and empty shares, with a schedule by clocks; a mean of means
    would differ."""
    problem, sgd = ragged(workers, np.float64), SGD(0.25, schedule=StepDecay(2, 0.5))
    x = final(dynsgd.dynsgd(problem, workers, 6, sgd, staleness=0), machine, seed)
    assert np.allclose(x, final(bsp.bsp(problem, workers, 6, sgd)), rtol=1e-9)


@given(machine=machines, seed=seeds, workers=st.integers(1, 5), slack=st.sampled_from([0, 2, float("inf")]))
def test_the_weights_of_a_clock_always_sum_to_one(machine, seed, workers, slack):
    """The d-th arrival takes 1/d and shrinks the earlier ones: with g(rank, t) = 1 at t = c only, x moves
    by 1 at once and stays."""
    for c in range(3):
        only = constant(lambda rank, t, c=c: float(t == c))
        run = simulate(dynsgd.dynsgd(only, workers, 3, SGD(1.0), staleness=slack), machine, seed)
        assert {round(float(-e.values["x"][0]), 5) for e in run.trace.marks("update")} <= {0.0, 1.0}
        assert np.allclose(final_parameters(run), -1)


@given(machine=machines, seed=seeds, workers=st.integers(1, 4), slack=st.sampled_from([1, float("inf")]),
       steps=st.integers(0, 5))
def test_the_model_is_the_sum_of_the_clocks_means_whatever_the_order(machine, seed, workers, slack, steps):
    problem, seen = recorded(curved(workers=workers, dtype=np.float64))
    x = final(dynsgd.dynsgd(problem, workers, steps, SGD(0.25), staleness=slack), machine, seed)
    assert np.allclose(x, -0.25 * sum((g for *_, g in seen), np.zeros(6)) / workers, rtol=1e-9, atol=1e-12)


def staleness_server(x, pushes, sgd):
    """WRONG, yet called DynSGD elsewhere: each push divided by its staleness + 1; the weights of a clock
    sum to nothing fixed."""
    v = sgd.start(x)
    for version in range(pushes):
        w, push = yield Recv(Push)
        x, v = yield Compute(sgd.step, x, v, push.grad / np.float32(version - push.version + 1), version,
                             kind="update")
        yield Mark("update", part=0, version=version, reads=((w, push.version),), x=x)
        yield Send(w, Model(x, version + 1))
    return x


def test_a_rate_by_staleness_is_caught():
    only = constant(lambda rank, t: float(t == 1))
    wrong = dict(dynsgd.dynsgd(only, 3, 3, SGD(1.0), staleness=float("inf"))) | {
        "server0": Node(staleness_server(only.x0, 9, SGD(1.0)), role="server")}
    assert not np.allclose(final(wrong), -1)


@BOTH
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("slack", [0, 1])
def test_every_schedule_of_a_small_case_ends_at_the_sum_of_means(deploy, workers, slack):
    """Gradients 2 i + t: their mean over workers is n - 1 + t, in sum over t = 0, 1 it is 2 n - 1."""
    problem = constant(lambda rank, t: 2.0 * rank + t)

    def check(run):
        assert np.allclose(final_parameters(run), -0.25 * (2 * workers - 1))

    assert explore(lambda: deploy(problem, workers, 2, SGD(0.25), staleness=slack), check).complete


def test_stragglers_harm_less_than_in_ssp():
    """A worker ten times slower whose data differ: SSP's full updates throw the model about, DYNSGD's
    means less, CONSGD's least."""
    problem, machine = curved(workers=4), Machine(compute="fixed(1)", speeds=(10, 10, 10, 1))
    losses = []
    for deploy in (consgd.consgd, dynsgd.dynsgd, ssp.ssp):
        trace = simulate(deploy(problem, 4, 60, SGD(0.5), staleness=8), machine, observe=1000).trace
        losses.append(np.mean([problem.loss(e.values["x"]) for e in trace.marks("update")[40:]
                               if "x" in e.values]))  # of updates at one moment the last
    assert losses[0] < losses[1] < losses[2]


@BOTH
def test_a_wrong_staleness_is_named(deploy):
    with pytest.raises(ValueError, match="expected"):
        deploy(curved(), 4, 1, SGD(0.1), staleness=-1)
