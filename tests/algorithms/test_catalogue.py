"""What must hold for every algorithm of the catalogue, whatever it is; a new one is tested by being
listed."""

import inspect
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

import refsgd
from refsgd.algorithms import CATALOGUE, parts
from refsgd.algorithms.baselines import sequential
from refsgd.algorithms.facts import facts_of
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.effects import Compute, Mark, Node, Recv, Send
from refsgd.experiment.prepare import prepare
from refsgd.experiment.result import final_parameters
from refsgd.problems import Problem, classification, quadratic
from refsgd.runtimes.simulator import simulate
from refsgd.testing import check, comparison, explore_algorithm
from tests.marks import mostly_slow

#: algorithms for which one worker is not plain SGD, and why
NOT_SEQUENTIAL = {"easgd": "there is a centre that follows the worker",
                  **dict.fromkeys(("diloco", "eager-diloco", "streaming-diloco", "noloco", "decoupled-diloco", "async-diloco"),
                                  "the outer step moves beyond the inner ones"),
                  "fedasync": "the server moves only a part of the way",
                  "fedbuff": "a move is rounded",
                  "sandblaster": "a step takes all data",
                  "async-rl": "a sample of the next update is begun before this one",
                  "strads": "a step moves some of the blocks",
                  "dgc": "most entries wait in the residual"}
QUICK = Machine(compute="exponential(0.003)", latency=0.001, bandwidth=20e6)
PARALLEL = [name for name in CATALOGUE if name != "sequential"]
#: those with more than 1,500 schedules of 2 workers and 2 steps, and what makes each schedule shorter
MANY = {**{name: {} for name in PARALLEL if not facts_of(CATALOGUE[name]).compared}, "hogwild": {"parts": 2},
        "ako": {"partitions": 1}}
few_draws = pytest.mark.usefixtures("few_draws")


@pytest.mark.parametrize("name", PARALLEL)
def test_conformance(name):
    broken = [str(f) for f in check(CATALOGUE[name], processes=False, max_runs=25 if name in MANY else 200,
                                    **MANY.get(name, {})) if f.held is False]
    assert not broken, "\n".join(broken)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARALLEL)
def test_conformance_in_many_schedules(name):
    runs = 200 if name in MANY else 1500  # of those that are longer
    broken = [str(f) for f in check(CATALOGUE[name], processes=False, max_runs=runs) if f.held is False]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("name", mostly_slow(comparison.COMPARED, "bsp", "asp", "ringmaster", "rennala", "fedbuff", "scaffold"))
def test_an_algorithm_passes_the_comparison_with_itself(name):
    """Its own properties: else a right submission would fail."""
    broken = [str(f) for f in check(CATALOGUE[name], algorithm=name, processes=False, max_runs=25) if f.held is False]
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
    """In words; `test_conformance` holds more schedules of such a case to more."""
    assert re.search(r"\d+ schedules?\b", explore_algorithm(name, max_runs=10, **MANY.get(name, {})))


@few_draws
@pytest.mark.parametrize("runtime", ["processes", pytest.param("tcp", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PARALLEL)
def test_real_processes_end_replay_and_count_the_bytes(name, runtime, tmp_path):
    """Bytes are the simulator's wherever the number of messages does not depend on time or chance."""
    arguments = {"workers": 4, "steps": 6, "data": "integers", "lr": 0.125, "machine": QUICK}
    result = refsgd.run(name, runtime=runtime, record=tmp_path / "record.json", **arguments)
    assert refsgd.replay(tmp_path / "record.json").parameters_sha256 == result.parameters_sha256
    predicted = result.predicted.get("bytes_sent")
    if predicted is not None and predicted["kind"] == "exact":
        assert result.measured["bytes_sent"] == predicted["value"]


@pytest.mark.parametrize("name", CATALOGUE)
def test_one_server_and_nobody_rotates_where_nothing_is_said(name):
    parameters = inspect.signature(CATALOGUE[name]).parameters.values()
    assert {p.name: p.default for p in parameters if p.kind != p.KEYWORD_ONLY
            and p.default != p.empty} in ({}, {"servers": 1}, {"servers": 1, "rotated": False}, {"servers": 1, "groups": None},
                                          {"hosts": None})


@pytest.mark.parametrize("name", CATALOGUE)
def test_nobody_is_refused_in_one_line_and_one_is_enough(name):
    problem, deploy = quadratic(workers=1), CATALOGUE[name]
    for workers in (0, -1):
        with pytest.raises(ValueError, match=f"^workers {workers}; expected (at least )?1"):
            deploy(problem, workers, 2, SGD(0.1))
    simulate(deploy(problem, 1, 2, SGD(0.1)))
    if facts_of(deploy).served:
        with pytest.raises(ValueError, match="^servers 0; expected at least 1"):
            deploy(problem, 1, 2, SGD(0.1), 0)


@few_draws
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("name", PARALLEL)
def test_counted_bytes_equal_the_closed_form(name, servers):
    if servers > 1 and not facts_of(CATALOGUE[name]).served:
        pytest.skip(f"{name} has no servers")
    for workers in (1, 2, 5):
        result = refsgd.run(name, workers=workers, servers=servers, steps=7, data="quadratic", machine=QUICK)
        predicted = result.predicted.get("bytes_sent")
        if predicted is None:
            pytest.skip(f"no closed form for the bytes of {name}: they depend on the data")
        if predicted["kind"] != "exact":
            pytest.skip(f"the bytes of {name} are {predicted['kind']}: they depend on chance or time")
        assert result.measured["bytes_sent"] == predicted["value"]


def greedy_server(workers, x, steps, sgd):
    """WRONG: forgets the last worker's gradient of each round (an off-by-one in the count)."""
    v = sgd.start(x)
    for t in range(steps):
        pushes = {}
        for _ in workers:
            w, push = yield Recv(parts.Push)
            pushes[w] = push
        some = [pushes[w] for w in workers[:-1]]
        x, v = yield Compute(bsp.update, sgd, x, v, some, t, "mean", kind="update")
        yield Mark("update", part=0, version=t, reads=tuple((w, t) for w in workers[:-1]), x=x)
        for w in workers:
            yield Send(w, parts.Model(x, t + 1))
    return x


def test_conformance_catches_a_lost_gradient_a_forgotten_yield_and_a_deadlock():
    def lossy(problem, workers, steps, sgd):
        ws, ss = parts.names(workers, 1)
        return {w: Node(parts.worker(i, ss, problem, steps)) for i, w in enumerate(ws)} | {
            "server0": Node(greedy_server(ws, problem.x0, steps, sgd), role="server")}

    def silent(problem, workers, steps, sgd):
        def program():
            g = yield Compute(problem.gradient, problem.x0, 0, 0)
            Send("worker0", parts.Push(g, 1, 0))
            yield Mark("clock", t=0)
            return problem.x0

        return {"worker0": Node(program())}

    def stuck(problem, workers, steps, sgd):
        def program(i):
            if steps and workers > 1:
                yield Recv(parts.Push)
            return problem.x0

        return {f"worker{i}": Node(program(i)) for i in range(workers)}

    def gone(problem, workers, steps, sgd):
        def program():
            yield Compute(sys.exit, 0)

        return {"worker0": Node(program())}

    for wrong, name, word in ((lossy, "gradients", "applied"), (stuck, "all schedules", "deadlock"),
                              (gone, "sizes", "sys.exit(0); expected")):
        failed = {f.name: f.text for f in check(wrong, processes=False) if f.held is False}
        assert name in failed and word in failed[name], failed
    line = silent.__code__.co_firstlineno + 3
    (only,) = check(silent)  # and not what follows from it, six times
    assert only.name == "lint" and only.held is False and f"{__file__}:{line}; write `yield` before" in only.text
    hidden = eval("lambda *all: silent(*all)", {"silent": silent})  # no source to read: the first run says it
    assert [f.name for f in check(hidden) if f.held is False] == ["deployment"] and "ForgottenYield" in check(
        hidden)[-1].text


def least_squares(**parts):
    """A reader's own problem: |x - 1|^2."""
    return Problem(np.zeros(3, np.float32), lambda x, rank, t: x - 1, lambda x: float(np.sum((x - 1) ** 2)),
                   **parts)


@pytest.mark.parametrize(("parts", "images"),
                         [({}, 1), ({"images": lambda rank, t: 5}, 5), ({"describe": {"batch": 8}}, 8)])
def test_images_of_a_readers_own_problem_are_those_that_it_counts(parts, images):
    arguments = {"workers": 2, "steps": 7, "lr": 0.1, "machine": Machine(compute="fixed(0.1)")}
    result = refsgd.run("bsp", least_squares(**parts), **arguments)
    assert result.measured["images_per_second"] == pytest.approx(2 * images / 0.1)
    assert refsgd.predict("bsp", least_squares(**parts),
                          **arguments)["images_per_second"].value == pytest.approx(2 * images / 0.1)
    if "describe" not in parts:
        assert result.history[-1][2] / result.history[-1][0] == pytest.approx(2 * images / 0.1)


def test_a_readers_own_problem_is_described():
    result = refsgd.run("bsp", least_squares(describe={"data": "mine"}), workers=2, steps=2)
    assert result.problem == {"data": "mine", "net": "own gradient", "parameters": 3, "bytes": 12, "batch": 1}
    counted = refsgd.run("bsp", least_squares(images=lambda rank, t: np.int64(5)), workers=2, steps=2)
    assert json.loads(json.dumps(counted.problem)) == result.problem | {"data": "own data", "batch": 5}
    assert "own gradient on own data, 3 parameters, batch 1" in refsgd.run(
        "bsp", least_squares(), workers=2, steps=2).summary()
    with pytest.raises(refsgd.experiment.prepare.Usage, match="^batch 32 with your own problem, which says how many"):
        refsgd.run("bsp", least_squares(describe={"data": "mine"}), workers=2, steps=2, batch=32)


@pytest.mark.parametrize(("images", "said"), [
    (lambda rank: 5, r"images\(0, 0\): TypeError: .*; expected images\(rank, t\)"),
    (5, r"images\(0, 0\): TypeError: .*; expected images\(rank, t\)"),
    (lambda rank, t: 2.5, r"images\(0, 0\) 2.5 of type float; expected a whole number"),
    (lambda rank, t: -1, "-1; expected at least 0"),
    (lambda rank, t: None, "None of type NoneType; expected a whole number")])
def test_images_that_are_no_number_are_refused(images, said):
    with pytest.raises(refsgd.experiment.prepare.Usage, match=said):
        prepare("bsp", replace(least_squares(), images=images), steps=2)


@pytest.mark.parametrize("batch", [2.5, -1, "8"])
def test_a_described_batch_that_is_no_number_of_images_is_refused(batch):
    with pytest.raises(refsgd.experiment.prepare.Usage, match=r"describe\[\"batch\"\] .*expected"):
        prepare("bsp", least_squares(describe={"batch": batch}), steps=2)


def test_a_problem_for_another_number_of_workers_is_refused():
    """Its images are dealt out to its own number: fewer workers would never see some of them."""
    from refsgd.problems.data import load
    from refsgd.problems.nn import nets

    digits = load("digits")
    net = nets.build("softmax", digits.train_images.shape[1:])

    def problem(workers):
        return classification(digits, net, workers=workers, batch=16)

    for made, workers in ((8, 4), (2, 4)):
        with pytest.raises(refsgd.experiment.prepare.Usage,
                           match=rf"problem for {made} workers, run with 4; expected the same number: "
                                 r"classification\(..., workers=4\)"):
            refsgd.run("bsp", problem(made), workers=workers, epochs=1)
    with pytest.raises(refsgd.experiment.prepare.Usage,
                       match=r"problem for 4 workers, run with 1 \(one for all workers\)"):
        refsgd.run("sequential", problem(4), workers=4, epochs=1)
    for name, workers in (("bsp", 4), ("sequential", 1)):
        assert refsgd.run(name, problem(workers), workers=workers, steps=2).problem["workers"] == workers


@pytest.mark.parametrize(("arguments", "said"), [
    ({"net": 3}, "net 3 of type int; expected text"),
    ({"data": None}, "data None of type NoneType; expected text"),
    ({"data": ["digits"]}, "expected text"), ({"schedule": 3}, "schedule 3 of type int; expected text"),
    ({"shards": 2}, "shards 2 of type int"),
    ({"batch": 2.5}, "batch 2.5 of type float; expected a whole number")])
def test_names_that_are_no_text_are_refused_in_one_line(arguments, said):
    with pytest.raises(refsgd.experiment.prepare.Usage, match=said):
        prepare("bsp", **arguments)


def test_an_algorithm_that_is_no_name_is_refused_in_one_line():
    with pytest.raises(refsgd.experiment.prepare.Usage, match="is unknown; expected one of independent, sequential"):
        prepare(["bsp"], steps=1)
