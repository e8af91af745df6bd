"""What must hold for every algorithm of the catalogue, whatever it is; a new one is tested by being listed."""

import numpy as np
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE, bsp, sequential
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.experiment import has_servers, prepare
from refsgd.machine import Machine
from refsgd.problems import quadratic
from refsgd.result import final_parameters
from refsgd.runtimes.simulator import simulate
from refsgd.testing import check, explore_algorithm

#: algorithms for which one worker is not plain SGD, and why
NOT_SEQUENTIAL = {"easgd": "there is a centre that follows the worker", "diloco": "the outer step moves beyond the inner ones",
                  "dgc": "most entries wait in the residual"}
QUICK = Machine(compute="exponential(0.003)", latency=0.001, bandwidth=20e6)
MANY = ("gosgd", "hogwild", "pair-averaging")  #: those with more than 1,500 schedules of 2 workers and 2 steps
PARALLEL = [name for name in CATALOGUE if name != "sequential"]


@pytest.mark.parametrize("name", PARALLEL)
def test_conformance(name):
    broken = [str(f) for f in check(CATALOGUE[name], processes=False, max_runs=300 if name in MANY else 1500) if f.held is False]
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_conformance_of_those_with_many_schedules(name):
    broken = [str(f) for f in check(CATALOGUE[name], processes=False, max_runs=1500) if f.held is False]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("name", [n for n in PARALLEL if n not in NOT_SEQUENTIAL])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_worker_is_sequential_sgd(name, momentum):
    if name == "hogwild" and momentum:
        pytest.skip("hogwild has no shared velocity")
    problem, sgd = quadratic(d=7, workers=1, noise=1.0), SGD(0.1, momentum, 0.01)
    reference = final_parameters(simulate(sequential.sequential(problem, 1, 12, sgd)))
    assert np.array_equal(final_parameters(simulate(CATALOGUE[name](problem, 1, 12, sgd), QUICK)), reference)


@pytest.mark.parametrize("name", PARALLEL)
def test_a_small_case_is_explored(name):
    assert "schedules" in explore_algorithm(name, max_runs=300)


@pytest.mark.parametrize("runtime", ["processes", "tcp"])
@pytest.mark.parametrize("name", PARALLEL)
def test_real_processes_end_replay_and_count_the_bytes(name, runtime, tmp_path):
    """Bytes are the simulator's wherever the number of messages does not depend on time or chance."""
    arguments = {"workers": 4, "steps": 6, "data": "integers", "lr": 0.125, "machine": QUICK}
    result = refsgd.run(name, runtime=runtime, record=tmp_path / "record.json", **arguments)
    assert refsgd.replay(tmp_path / "record.json").parameters_sha256 == result.parameters_sha256
    predicted = result.predicted.get("bytes_sent")
    if predicted is not None and predicted["kind"] == "exact" and "standard error" not in predicted["terms"]:
        assert sum(result.measured["bytes_sent"].values()) == predicted["value"]


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("name", PARALLEL)
def test_counted_bytes_equal_the_closed_form(name, servers):
    if servers > 1 and not has_servers(CATALOGUE[name]):
        pytest.skip(f"{name} has no servers")
    for workers in (1, 2, 5):
        arguments = {"workers": workers, "servers": servers, "steps": 7, "data": "quadratic", "machine": QUICK}
        predicted = prepare(name, **arguments).predictions().get("bytes_sent")
        if predicted is None:
            pytest.skip(f"no closed form for the bytes of {name}: they depend on the data")
        if predicted.kind != "exact" or "standard error" in predicted.terms:
            pytest.skip(f"the bytes of {name} are {predicted.kind}, or a mean: they depend on chance or time")
        assert sum(refsgd.run(name, **arguments).measured["bytes_sent"].values()) == predicted.value


def greedy_server(workers, x, steps, sgd):
    """WRONG: forgets the last worker's gradient of each round (an off-by-one in the count)."""
    v = sgd.start(x)
    for t in range(steps):
        pushes = {}
        for _ in workers:
            w, push = yield Recv(bsp.Push)
            pushes[w] = push
        some = [pushes[w] for w in workers[:-1]]
        x, v = yield Compute(bsp.update, sgd, x, v, some, t, "mean", kind="update")
        yield Mark("update", slice=0, version=t, reads=tuple((w, t) for w in workers[:-1]), x=x)
        for w in workers:
            yield Send(w, bsp.Model(x, t + 1))
    return x


def test_conformance_catches_a_lost_gradient_a_forgotten_yield_and_a_deadlock():
    def lossy(problem, workers, steps, sgd):
        ws, ss = bsp.names(workers, 1)
        return {w: Node(bsp.worker(i, ss, problem, steps)) for i, w in enumerate(ws)} | {
            "server0": Node(greedy_server(ws, problem.x0, steps, sgd))}

    def silent(problem, workers, steps, sgd):
        def program():
            g = yield Compute(problem.gradient, problem.x0, 0, 0)
            Send("worker0", bsp.Push(g, 1, 0))
            yield Mark("clock", t=0)
            return problem.x0

        return {"worker0": Node(program())}

    def stuck(problem, workers, steps, sgd):
        def program(i):
            if steps and workers > 1:
                yield Recv(bsp.Push)
            return problem.x0

        return {f"worker{i}": Node(program(i)) for i in range(workers)}

    for wrong, name, word in ((lossy, "gradients", "applied"), (silent, "sizes", "ForgottenYield"), (stuck, "all schedules", "deadlock")):
        failed = {f.name: f.text for f in check(wrong, processes=False) if f.held is False}
        assert name in failed and word in failed[name], failed
