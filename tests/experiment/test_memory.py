"""Memory of each role, predicted from the algorithm and the net's plan, and measured in real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import refsgd
from refsgd.algorithms.compression import codec
from refsgd.experiment.memory import of_nodes
from refsgd.experiment.prepare import prepare
from refsgd.problems import classification
from refsgd.problems.data import load
from refsgd.problems.nn.layers import BatchNorm, Conv, Flatten, Linear, Relu
from refsgd.problems.nn.net import Net

SHAPES = {"net": "shapes:resnet18:16@32x32x3", "data": "none", "machine": refsgd.Machine(compute="fixed(1)")}


def terms(algorithm, role, **options):
    return refsgd.predict(algorithm, **{"workers": 4, "steps": 9, "batch": 32, **SHAPES, **options})[
        f"memory_{role}"].terms


def test_each_role_has_its_own_memory():
    """A server holds its part and a gradient of each worker; activations are a worker's."""
    m = terms("bsp", "worker")["parameters"]
    assert terms("bsp", "server", servers=4) == pytest.approx(
        {"parameters": m / 4, "gradients": m, "working copies": 3 * m / 4}, rel=1e-4)
    assert terms("bsp", "worker") == pytest.approx(
        {"parameters": m, "gradient": m, "buffers": m, "activations": terms("bsp", "worker")["activations"]})
    assert terms("bsp", "server", momentum=0.9)["optimiser state"] == m


@pytest.mark.parametrize(("name", "options", "vectors"), [
    ("allreduce", {"compress": "topk:0.01"}, 1), ("bsp", {"compress": "topk:0.01"}, 1), ("bsp", {"compress": "fp16"}, 1),
    ("allreduce", {"compress": "topk:0.01", "feedback": False}, 0), ("allreduce", {"compress": "dgc:0.01"}, 2),
    ("bsp", {"compress": "dgc:0.01,nesterov=on"}, 2), ("dgc", {"ratio": 0.1}, 2), ("dgc", {}, 2), ("bsp", {}, 0)])
def test_what_a_codec_keeps_is_asked_of_the_codec(name, options, vectors):
    """A residual, and for DGC a velocity too, which for the algorithm of that name is the same codec."""
    found = terms(name, "worker", **options)
    assert found.get("codec residual", 0) == vectors * found["parameters"]


@pytest.mark.parametrize("text", ["topk:0.1", "randk:0.25", "dgc:0.1", "onebit", "twobit:0.5", "qsgd:4", "fp16", "powersgd:2"])
@pytest.mark.parametrize("feedback", [True, False])
def test_bytes_of_a_codecs_state_are_those_that_it_names(text, feedback):
    """Measured: after a gradient the arrays in the state, each once."""
    if "dgc" in text and not feedback:
        return
    how, g = codec(text, feedback, shapes=((20, 15), (15,), (15, 8))), np.ones(435, np.float32)
    _, state = how.encode(how.start(435), g, how.key(0, 0))
    arrays = [a for a in [*(state[0] or ()), state[1]] if isinstance(a, np.ndarray)]
    assert sum(a.nbytes for a in arrays) == how.held(435)


def test_activations_grow_with_the_batch_and_parameters_do_not():
    small, large = (terms("bsp", "worker", batch=b) for b in (16, 64))
    assert small["parameters"] == large["parameters"]
    assert large["activations"] == pytest.approx(4 * small["activations"], rel=0.15)  # scratch does not grow


def test_the_first_stage_of_pipedream_holds_the_most():
    """K - k batches in flight and as many versions at stage k; a stage of GPipe holds one batch in parts."""
    nodes = of_nodes(prepare("pipedream", workers=4, steps=9, batch=32, **SHAPES))
    of_one = of_nodes(prepare("gpipe", workers=4, steps=9, batch=32, micro=1, **SHAPES))
    for k in range(4):
        many, one = nodes[f"stage{k}"].terms, of_one[f"stage{k}"].terms
        assert many["activations"] == pytest.approx((4 - k) * one["activations"])
        assert many.get("stashed versions", 0) == (3 - k) * one["parameters"]
    flush = of_nodes(prepare("gpipe", workers=4, steps=9, batch=32, micro=8, passes="1f1b", **SHAPES))
    assert flush["stage3"].terms["activations"] < of_one["stage3"].terms["activations"] / 3


def test_zero_divides_what_its_stage_says():
    m = terms("allreduce", "worker")["parameters"]
    assert [terms("zero", "worker", stage=s)["parameters"] / m for s in (1, 2, 3)] == pytest.approx(
        [1, 1, 0.25], rel=1e-4)
    assert [terms("zero", "worker", stage=s)["gradient"] / m for s in (1, 2, 3)] == pytest.approx(
        [1, 0.25, 0.25], rel=1e-4)


def wide(kind, workers, batch):
    """Of 73 MB of parameters and few activations, or the other way round."""
    layers = [Flatten(), *(each for _ in range(3) for each in (Linear(3000), Relu()))]
    if kind == "activations":
        layers = [each for _ in range(4) for each in (Conv(64, 3, pad=1), BatchNorm(), Relu())] + [Flatten()]
    return classification(load("digits"), Net(kind, [*layers, Linear(10)], (8, 8, 1)), workers, batch)


def measured(folder, algorithm, kind, runtime, *, steps=8, **options):
    """Growth and prediction of each node's process, and the result, of a run by a fresh interpreter: the heap of
    this one has holes, which its children would fill and not give back."""
    told = {"algorithm": algorithm, "kind": kind, "runtime": runtime, "steps": steps, "options": options}
    subprocess.run([sys.executable, __file__, json.dumps(told), folder / "found.npz"], check=True, timeout=100,
                   env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    with np.load(folder / "found.npz") as found:
        return dict(found)


def measure(folder, *, algorithm, kind, runtime, steps, options):
    workers = 1 if algorithm == "sequential" else 2
    problem = wide(kind, 2 if algorithm in ("bsp", "allreduce") else 1, 256 if kind == "activations" else 16)
    result = refsgd.run(algorithm, problem, workers=workers, steps=steps, runtime=runtime, evaluations=0,
                        monitor=0.005,  # a peak lasts for some milliseconds
                        machine=refsgd.Machine(), lr=0.01, **options)
    assert "grown by" in result.summary()
    used = [each for node, each in result.measured["resources"].items() if node != "launcher"]
    np.savez(folder, parameters=result.parameters, **{key: [each[key] for each in used]
                                                      for key in ("grown", "predicted")})


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "kind", "runtime"), [
    ("bsp", "parameters", "processes"), ("allreduce", "activations", "processes"), ("gpipe", "activations", "processes"),
    *(pytest.param(*case, marks=pytest.mark.long) for case in (
        ("bsp", "parameters", "tcp"), ("bsp", "activations", "processes"), ("gpipe", "parameters", "processes"),
        ("pipedream", "activations", "processes")))])
def test_processes_grow_by_what_is_predicted(algorithm, kind, runtime, tmp_path):
    """Private memory of worker, server and stage within 20 %, where there are more than 20 MB to see."""
    found = measured(tmp_path, algorithm, kind, runtime)
    large = found["predicted"] > 2e7
    assert large.any()
    assert found["grown"][large] == pytest.approx(found["predicted"][large], rel=0.2)


@pytest.mark.slow
def test_a_net_that_does_not_fit_one_nodes_memory_trains_on_two(tmp_path):
    """With 200 MB a node, sequential SGD does not fit, by formula and measured; each of two stages does, and their
    result is the same."""
    alone = measured(tmp_path, "sequential", "parameters", "processes", steps=4)
    staged = measured(tmp_path, "gpipe", "parameters", "processes", steps=4, micro=1)
    assert [alone["grown"].size, staged["grown"].size] == [1, 2]
    for kind in ("grown", "predicted"):
        assert alone[kind][0] > 200e6 > staged[kind].max()
    assert np.allclose(alone["parameters"], staged["parameters"], rtol=0, atol=1e-6)


def test_without_evaluations_no_history_is_kept():
    """Of a run that is not evaluated, servers keep no parameters; its result is the same."""
    kept, none = (refsgd.run("bsp", data="quadratic", steps=20, evaluations=n) for n in (20, 0))
    assert [sum("x" in mark.values for mark in r.trace.marks("update")) for r in (kept, none)] == [20, 0]
    assert np.array_equal(kept.parameters, none.parameters)


if __name__ == "__main__":
    measure(sys.argv[2], **json.loads(sys.argv[1]))
