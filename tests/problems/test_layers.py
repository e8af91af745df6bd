"""Layers of the shipped problems: their places, their shares, and the bits of gradients by layer."""
from dataclasses import replace
from math import fsum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refsgd
from refsgd.algorithms.server.bsp import bsp
from refsgd.cluster.machine import Machine
from refsgd.problems import classification, data, integer_gradients, quadratic
from refsgd.problems.layers import LayerByLayer, at_once
from refsgd.problems.nn import nets
from refsgd.problems.shapes import ShapeOnly, in_shape_only, of_net, shape_only
from tests.problems.passes import OneLayerBehind, backward, forward, run


def learning(net="tiny", batch=5, shape=(8, 8, 1)):
    digits = data.load("digits")
    return classification(digits, nets.build(net, shape), workers=3, batch=batch)


REAL = {"quadratic": lambda: quadratic(d=11), "noisy quadratic": lambda: quadratic(d=6, noise=0.3),
        "quadratic in float64": lambda: quadratic(d=5, dtype=np.float64), "integers": integer_gradients,
        "integers in batches": lambda: integer_gradients(batches=[3, 1, 2, 2]),
        "tiny": learning, "unequal batches": lambda: learning(batch=[8, 3, 1]),
        "resnet18": lambda: learning("resnet18:2"), "more layers than numbers": lambda: quadratic(d=3)}
TIMED = {"a number of parameters": lambda: shape_only(1001), "resnet50": lambda: of_net("resnet50@224", 32),
         "vgg16": lambda: of_net("vgg16", 1), "in shape only": lambda: in_shape_only(learning(), [5])}


@pytest.mark.parametrize("problem", [*REAL.values(), *TIMED.values()], ids=[*REAL, *TIMED])
def test_layers_are_all_of_the_vector_and_of_the_time(problem):
    problem = problem()
    layers, end = problem.layers, 0
    for part in layers.parts:
        assert part.start == end and part.stop > part.start and part.step is None
        end = part.stop
    assert end == problem.x0.size
    assert len(layers.names) == len(set(layers.names)) == len(layers.parts)
    assert fsum([*layers.forward, *layers.backward]) == pytest.approx(1, rel=1e-14)
    assert layers.backward == tuple(2 * share for share in layers.forward) and min(layers.forward) > 0


@pytest.mark.parametrize("problem", REAL.values(), ids=REAL)
def test_a_gradient_by_layer_has_the_bits_of_the_whole_one(problem):
    problem = problem()
    x = problem.x0 + np.linspace(-0.1, 0.1, problem.x0.size, dtype=problem.x0.dtype)
    for rank, t in ((0, 0), (2, 7), (0, 0)):
        g = run(problem.layers.begin(rank, t), x, problem.layers.parts)
        assert g.dtype == x.dtype
        np.testing.assert_array_equal(g, problem.gradient(x, rank, t))


@pytest.mark.parametrize("problem", REAL.values(), ids=REAL)
def test_a_layer_that_computes_with_the_parameters_of_the_step_before_is_noticed(problem):
    problem = problem()
    x, parts = problem.x0 + problem.x0.dtype.type(1), problem.layers.parts
    for layer in {0, len(parts) // 2, len(parts) - 1}:
        late = OneLayerBehind(problem.layers.begin(0, 1), layer, x[parts[layer]] - x.dtype.type(2))
        assert not np.array_equal(run(late, x, parts), problem.gradient(x, 0, 1))


@pytest.mark.parametrize("problem", ["quadratic", "integers", "tiny", "resnet18"])
@given(first=st.lists(st.booleans(), min_size=400, max_size=400))
def test_passes_of_two_workers_take_turns_in_any_order(problem, first):
    problem = PROBLEMS[problem]
    parts = problem.layers.parts
    xs = [problem.x0, problem.x0 + problem.x0.dtype.type(1)]
    n, passes, found = len(parts), [problem.layers.begin(w, w) for w in (0, 1)], [[], []]
    done, turns = [0, 0], iter(first)
    while min(done) < 2 * n:
        w = int(done[0] == 2 * n or (done[1] < 2 * n and next(turns)))
        if done[w] < n:
            passes[w].forward(done[w], xs[w][parts[done[w]]])
        else:
            k = 2 * n - 1 - done[w]
            found[w].append(passes[w].backward(k, xs[w][parts[k]]))
        done[w] += 1
    for w in (0, 1):
        np.testing.assert_array_equal(np.concatenate(found[w][::-1]), problem.gradient(xs[w], w, w))


PROBLEMS = {"quadratic": quadratic(noise=0.1), "integers": integer_gradients(), "tiny": learning(),
            "resnet18": learning("resnet18:2", batch=2)}


@pytest.mark.parametrize("name", ["tiny", "resnet50", "inception", "vgg16"])
def test_layers_of_a_net_know_the_shapes_of_its_arrays_in_the_order_of_the_vector(name):
    net = nets.build(name, (32, 32, 3))
    assert of_net(f"{name}@32", 1).layers.tensors == tuple(segment.shape for segment in net.segments.values())


@pytest.mark.parametrize("problem", TIMED.values(), ids=TIMED)
def test_a_shape_only_gradient_comes_in_parts_of_its_layers(problem):
    problem = problem()
    passed = problem.layers.begin(0, 0)
    forward(passed, problem.x0, problem.layers.parts)
    for k in reversed(range(len(problem.layers.parts))):
        part = problem.layers.parts[k]
        g = passed.backward(k, problem.x0[part])
        assert isinstance(g, ShapeOnly) and g.size == part.stop - part.start


def test_shares_are_those_of_the_floating_point_operations():
    """ResNet-50's first convolution, 118 million multiplications of 3.8 to 4.1 billion, and its last layer."""
    layers = of_net("resnet50@224", 32).layers
    assert len(layers.names) == 53 + 53 + 1 and layers.names[0] == "conv1" and layers.names[-1] == "linear1"
    assert layers.parts[0] == slice(0, 7 * 7 * 3 * 64)
    rows = nets.build("resnet50", (224, 224, 3), 1000).leaves
    total = sum(row.flops for row in rows)
    assert layers.forward[0] == pytest.approx(2 * 7 * 7 * 3 * 64 * 112**2 / total / 3, rel=1e-12)
    assert layers.backward[-1] == pytest.approx(2 * 2 * 2048 * 1000 / total / 3, rel=1e-12)


def test_the_shape_of_a_problem_keeps_its_layers():
    real = learning("resnet18:2")
    timed = in_shape_only(real, [5])
    assert timed.layers.names == real.layers.names and timed.layers.forward == real.layers.forward
    assert timed.work(0, 0) == real.work(0, 0)
    assert in_shape_only(quadratic(), [1]).layers.parts == quadratic().layers.parts


@pytest.mark.parametrize("steps, message", [
    ([("forward", 1)], "forward of layer 1 after 0 of 6 steps of a gradient; expected forward of layer 0"),
    ([("forward", 0), ("forward", 2)], "forward of layer 2 after 1 of 6 steps of a gradient; expected forward "
                                       "of layer 1"),
    ([("forward", 0), ("forward", 1), ("backward", 2)], "expected forward of layer 2"),
    ([*(("forward", k) for k in range(3)), ("backward", 0)], "expected backward of layer 2"),
    ([*(("forward", k) for k in range(3)), *(("backward", k) for k in (2, 1, 0)), ("forward", 0)],
     "forward of layer 0 after 6 of 6 steps of a gradient; expected a new pass")])
def test_layers_out_of_order_are_refused(steps, message):
    parts = [slice(0, 1), slice(1, 3), slice(3, 6)]
    passed = LayerByLayer(3, at_once(parts, lambda x: x))
    with pytest.raises(ValueError, match=message):
        for direction, layer in steps:
            getattr(passed, direction)(layer, np.ones(layer + 1))


def test_numbers_that_are_not_finite_are_named_as_those_of_a_whole_gradient():
    problem = learning()
    x = np.full_like(problem.x0, np.nan)
    with pytest.raises(FloatingPointError) as whole:
        problem.gradient(x, 2, 4)
    passed = problem.layers.begin(2, 4)
    forward(passed, x, problem.layers.parts)
    with pytest.raises(FloatingPointError) as layered:
        backward(passed, x, problem.layers.parts)
    assert str(layered.value) == str(whole.value) and str(whole.value).startswith("worker 2, step 4: net tiny")


@pytest.mark.parametrize("changed, message", [
    ({"names": ("a", "b", "c")}, "layers: 3 names, 4 parts, 4 forward and 4 backward shares; expected one of "
                                 "each per layer"),
    ({"parts": (slice(0, 2), slice(3, 4), slice(4, 6), slice(6, 8))},
     r"layer layer2 is slice\(3, 4, None\); expected one number or more, from 2 on"),
    ({"parts": (slice(0, 2), slice(2, 2), slice(2, 6), slice(6, 8))},
     r"layer layer2 is slice\(2, 2, None\); expected one number or more, from 2 on"),
    ({"parts": (slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 9))},
     "layers end at 9; expected 8, the number of parameters"),
    ({"forward": (0.25,) * 4}, r"shares of layers sum to 1\.6+\d*; expected 1"),
    ({"forward": (float("nan"),) * 4}, "shares of layers sum to nan; expected 1")])
def test_layers_that_are_not_all_of_the_vector_or_of_the_time_are_refused(changed, message):
    problem = integer_gradients(d=8)
    with pytest.raises(ValueError, match=message) as error:
        replace(problem, layers=replace(problem.layers, **changed))
    assert "\n" not in str(error.value)


def in_layers(problem, workers, steps, sgd):
    """BSP whose gradients are computed layer by layer."""
    return bsp(replace(problem, gradient=lambda x, rank, t: run(problem.layers.begin(rank, t), x,
                                                                problem.layers.parts)), workers, steps, sgd)


@pytest.mark.parametrize("on_death", ["shrink", "restart"])
def test_layers_keep_their_worker_and_step_when_a_run_continues_after_a_death(on_death):
    found = [refsgd.run(algorithm, quadratic(workers=4, noise=0.2), steps=9, workers=4, on_death=on_death,
                        machine=Machine(compute="fixed(1)", latency=0.01), faults=["kill worker 1 at step 4"])
             for algorithm in (in_layers, "bsp")]
    assert found[0].parameters_sha256 == found[1].parameters_sha256
