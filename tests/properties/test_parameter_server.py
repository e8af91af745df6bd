"""BSP, ASP and SSP under drawn machines: what holds for every schedule, and wrong programs that are
caught."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.parts import Model, Push, names, worker
from refsgd.algorithms.server import asp, bsp, ssp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, integer_gradients, quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.trace.waiting import waiting_by_cause
from tests.strategies import machines, seeds

sizes = {"workers": st.integers(1, 5), "servers": st.integers(1, 3), "steps": st.integers(0, 6)}
slack = st.sampled_from([0, 1, 2, 5, float("inf")])
refresh = st.sampled_from(["fresh", "lazy", "eager"])
SGD1 = SGD(0.25)


def ragged(problem: Problem, workers: int) -> Problem:
    """Shares of 0 to 3 images; a gradient of an empty share is zero."""
    def images(rank: int, t: int) -> int:
        return (rank + t) % 4

    def gradient(x, rank, t):
        return problem.gradient(x, rank, t) * np.float32(images(rank, t) > 0)

    return Problem(problem.x0, gradient, problem.loss, images=images)


@given(machine=machines, seed=seeds, **sizes)
def test_bsp_does_not_depend_on_the_schedule_nor_on_the_number_of_servers(
    machine, seed, workers, servers, steps):
    problem = ragged(quadratic(d=7, workers=workers, noise=1.0), workers)
    sgd = SGD(0.1, momentum=0.9, weight_decay=0.01)
    reference = final_parameters(simulate(bsp.bsp(problem, workers, steps, sgd), Machine(compute="fixed(1)")))
    run = simulate(bsp.bsp(problem, workers, steps, sgd, servers), machine, seed)
    assert np.array_equal(final_parameters(run), reference)
    assert all(tau == 0 for _, tau in run.trace.staleness)
    assert run.trace.clock_gap == 0 and run.trace.lead <= 1
    assert all(count == steps for count in run.trace.updates.values())


def arrival_order_server(workers, x, steps, sgd):
    """WRONG: sums gradients in the order in which they came."""
    v = sgd.start(x)
    for t in range(steps):
        grads = []
        for _ in workers:
            _, push = yield Recv(Push)
            grads.append(push.grad)
        x, v = yield Compute(sgd.step, x, v, sum(grads[1:], start=grads[0]) / np.float32(len(grads)), t,
                             kind="update")
        for w in workers:
            yield Send(w, Model(x, t + 1))
    return x


def test_a_sum_in_order_of_arrival_is_caught():
    problem = quadratic(d=50, workers=4, noise=1.0)

    def wrong():
        ws, ss = names(4, 1)
        return {w: Node(worker(i, ss, problem, 5)) for i, w in enumerate(ws)} | {
            "server0": Node(arrival_order_server(ws, problem.x0, 5, SGD(0.1)), role="server")}

    finals = {final_parameters(simulate(wrong, Machine(compute="exponential(1)"), seed)).tobytes()
              for seed in range(8)}
    assert len(finals) > 1


@given(machine=machines, seed=seeds, **sizes)
def test_asp_applies_every_gradient_once_and_keeps_the_identity_of_staleness(
    machine, seed, workers, servers, steps):
    run = simulate(asp.asp(integer_gradients(d=5, workers=workers), workers, steps, SGD1, servers), machine,
                   seed)
    trace = run.trace
    assert all(count == workers * steps for count in trace.updates.values())
    applied = sum(tau for _, tau in trace.staleness)
    assert min((tau for _, tau in trace.staleness), default=0) >= 0
    assert applied + trace.outstanding_age == (workers - 1) * workers * steps * len(trace.updates)


def stale_answer_server(x, pushes, sgd):
    """WRONG: answers with the model from before the worker's own push (no read after its own update)."""
    v = sgd.start(x)
    for version in range(pushes):
        w, push = yield Recv(Push)
        yield Send(w, Model(x, version))
        x, v = yield Compute(sgd.step, x, v, push.grad, version, kind="update")
        yield Mark("update", part=0, version=version, reads=((w, push.version),), x=x)
    return x


def test_an_answer_from_before_the_own_update_breaks_the_identity():
    problem, (ws, ss) = integer_gradients(workers=3), names(3, 1)
    wrong = {w: Node(worker(i, ss, problem, 5)) for i, w in enumerate(ws)}
    trace = simulate(wrong | {"server0": Node(stale_answer_server(problem.x0, 15, SGD1), role="server")},
                     Machine(compute="exponential(1)")).trace
    assert sum(tau for _, tau in trace.staleness) + trace.outstanding_age != 2 * 15


@given(machine=machines, seed=seeds, slack=slack, refresh=refresh, **sizes)
def test_ssp_never_exceeds_its_slack_and_loses_nothing(machine, seed, slack, refresh, workers, servers,
                                                       steps):
    problem = integer_gradients(d=5, workers=workers)
    run = simulate(ssp.ssp(problem, workers, steps, SGD1, servers, staleness=slack, refresh=refresh), machine,
                   seed)
    assert run.trace.clock_gap <= slack and run.trace.lead <= slack + 1
    assert all(count == workers * steps for count in run.trace.updates.values())
    assert min((tau for _, tau in run.trace.staleness), default=0) >= 0
    waited = waiting_by_cause(run.trace)
    assert sum(waited.values()) == pytest.approx(run.trace.idle_ratio)


@pytest.mark.parametrize("refresh", ["fresh", "lazy", "eager"])
@pytest.mark.parametrize("slack", [0, 1, 3])
def test_the_bound_of_ssp_is_reached(slack, refresh):
    machine = Machine(compute="exponential(1)", speeds=(1, 1, 9))
    problem = integer_gradients(workers=3)
    trace = simulate(ssp.ssp(problem, 3, 40, SGD1, staleness=slack, refresh=refresh), machine).trace
    assert trace.clock_gap == slack and trace.lead == slack + 1


def test_an_off_by_one_in_the_slack_is_caught():
    """WRONG: `clock[w] <= slowest + staleness + 1`, which is what a slack of one more gives."""
    trace = simulate(ssp.ssp(integer_gradients(workers=3), 3, 40, SGD1, staleness=2 + 1),
                     Machine(compute="exponential(1)", speeds=(1, 1, 9))).trace
    assert trace.clock_gap > 2


@given(seed=seeds, slack=st.integers(0, 3), refresh=st.sampled_from(["lazy", "eager"]))
def test_a_cache_shows_what_ssp_promises(seed, slack, refresh):
    """Ho et al., section 2: a read at clock c has all updates of clocks < c - s, all own ones, each once.

    Worker i's gradient is the unit vector i, so x counts visible updates of each worker.
    """
    n, steps, seen = 3, 6, []

    def gradient(x, rank, t):
        seen.append((rank, t, -x.copy()))
        return np.eye(n, dtype=np.float32)[rank]

    problem = Problem(np.zeros(n, np.float32), gradient, lambda x: 0.0)
    machine = Machine(compute="exponential(1)", latency=0.2, bandwidth=50.0)
    run = simulate(ssp.ssp(problem, n, steps, SGD(1.0), 2, staleness=slack, refresh=refresh), machine, seed)
    for rank, t, visible in seen:
        assert visible[rank] == t, "all own updates, none twice"
        assert np.all(visible >= t - slack), "the guarantee"
        assert np.all(visible <= t + slack + 1), "nobody is further ahead"
    assert np.array_equal(final_parameters(run), np.full(n, -steps, np.float32))


def with_own_zero(program):
    """WRONG: a server that pretends its rows contain nothing of the receiver."""
    value = None
    while True:
        try:
            effect = program.send(value)
        except StopIteration as end:
            return end.value
        if isinstance(effect, Send):
            object.__setattr__(effect, "body", effect.body._replace(own=0))
        value = yield effect


def test_a_cache_that_counts_its_own_updates_twice_is_caught():
    n, steps, seen = 2, 5, []

    def gradient(x, rank, t):
        seen.append((rank, t, -x.copy()))
        return np.eye(n, dtype=np.float32)[rank]

    problem = Problem(np.zeros(n, np.float32), gradient, lambda x: 0.0)
    wrong = dict(ssp.ssp(problem, n, steps, SGD(1.0), staleness=1, refresh="lazy"))
    wrong["server0"] = Node(with_own_zero(wrong["server0"].main), role="server")
    simulate(wrong, Machine(compute="exponential(1)"))
    assert any(visible[rank] > t for rank, t, visible in seen)


@given(machine=machines, seed=seeds, steps=st.integers(0, 6), momentum=st.sampled_from([0.0, 0.9]),
       servers=st.integers(1, 3))
def test_one_worker_is_sequential_sgd_bit_for_bit(machine, seed, steps, momentum, servers):
    problem, sgd = quadratic(d=9, workers=1, noise=1.0), SGD(0.1, momentum, 0.01)
    reference = final_parameters(simulate(sequential.sequential(problem, 1, steps, sgd)))
    for deploy in (bsp.bsp, asp.asp, ssp.ssp):
        assert np.array_equal(
            final_parameters(simulate(deploy(problem, 1, steps, sgd, servers), machine, seed)), reference)
