"""Gradients of nets, layer by layer."""
import gc

import numpy as np
import pytest

from refsgd.problems.nn import nets
from refsgd.problems.nn.layers import Conv, Dropout, Flatten, Linear, Relu
from refsgd.problems.nn.net import Net
from tests.marks import mostly_slow
from tests.problems.passes import OneLayerBehind, backward, forward, layered, run

SMALL = ("tiny", "shallow", "lenet5", "mlp", "softmax", "resnet18:4", "inception:8", "vgg16:8", "resnet34:2",
         "resnet50:4")


def batch(net, b, seed=0):
    random = np.random.default_rng(seed)
    return random.standard_normal((b, *net.input_shape)).astype(np.float32), random.integers(
        0, net.classes, b)


def slices(net):
    return [part.slice for part in net.parts]


def test_every_net_is_tested():
    assert {name.partition(":")[0] for name in SMALL} == set(nets.NAMES)


@pytest.mark.parametrize("name", SMALL)
def test_layers_come_in_the_order_of_the_vector(name):
    net = nets.build(name)
    leaves = [leaf for leaf in net.leaves if leaf.at]
    assert [part.name for part in net.parts] == [leaf.name for leaf in leaves]
    assert [4 * part.slice.start for part in net.parts] == [min(leaf.at.values()) for leaf in leaves]
    assert sum(part.work for part in net.parts) == sum(row.flops for row in net.leaves)
    with net._planned(keep=True) as plan:
        of_steps = [{id(step.at): step.at for step in steps if step.at} for steps in plan.pieces]
    assert [list(ats.values()) for ats in of_steps] == [[leaf.at] for leaf in leaves]


@pytest.mark.parametrize("name", mostly_slow(SMALL, *(name for name in SMALL if name != "inception:8")))
def test_the_bits_of_the_gradient_come_layer_by_layer(name):
    net = nets.build(name)
    x = net.init(0)
    for b in (6, 1, 19):
        images, labels = batch(net, b, b)
        g = run(layered(net, images, labels), x, slices(net))
        assert np.array_equal(g, net.gradient(x, images, labels)[1])


def test_beyond_the_chunk_layers_differ_from_the_gradient_by_rounding_alone():
    net = nets.build("vgg16:8")
    images, labels = batch(net, 70)
    x = net.init(0)
    g, h = run(layered(net, images, labels), x, slices(net)), net.gradient(x, images, labels)[1]
    with net._planned(keep=True) as plan:
        assert plan.chunk == 64
    assert np.abs(g - h).max() < 1e-6 * np.abs(h).max()


def test_dropout_drops_the_same_layer_by_layer():
    net = Net("dropping", [Conv(8, 3), Relu(), Flatten(), Dropout(0.5), Linear(20), Relu(), Dropout(0.3),
                           Linear(10)], (8, 8, 1))
    images, labels = batch(net, 6)
    x = net.init(0)
    with_key = run(layered(net, images, labels, key=5), x, slices(net))
    assert np.array_equal(with_key, net.gradient(x, images, labels, key=5)[1])
    assert not np.array_equal(with_key, run(layered(net, images, labels, key=6), x, slices(net)))


@pytest.mark.parametrize("name", ["tiny", "resnet18:4", "inception:8", "vgg16:8"])
def test_parameters_of_the_step_before_change_the_bits(name):
    net = nets.build(name)
    images, labels = batch(net, 4)
    x = net.init(0)
    wanted = net.gradient(x, images, labels)[1]
    for layer in {0, 1, len(net.parts) // 2, len(net.parts) - 1}:
        old = net.init(1)[net.parts[layer].slice] + np.float32(0.5)
        late = OneLayerBehind(layered(net, images, labels), layer, old)
        assert not np.array_equal(run(late, x, slices(net)), wanted)


@pytest.mark.parametrize("name", ["tiny", "resnet18:4"])
def test_without_kernels_the_parts_are_those_of_the_definition(name, monkeypatch):
    monkeypatch.setattr(nets.kernel_cache, "has_kernels", lambda: False)
    net = nets.build(name)
    images, labels = batch(net, 5)
    x = net.init(0)
    assert np.array_equal(run(layered(net, images, labels), x, slices(net)), net.gradient(x, images, labels)[1])


def test_no_images_have_no_gradient():
    net = nets.build("tiny")
    assert not run(layered(net, *batch(net, 0)), net.init(0), slices(net)).any()


@pytest.mark.parametrize("name", ["tiny", "resnet18:4"])
def test_a_pass_gives_its_buffers_back_also_when_it_is_dropped(name):
    net = nets.build(name)
    images, labels = batch(net, 6)
    x = net.init(0)
    wanted = net.gradient(x, images, labels)[1]
    n, idle = len(net.parts), net.idle[True]
    assert len(idle) == 1
    for ends in (1, n, n + 1, 2 * n - 1, 2 * n):  # steps that are taken
        passed = layered(net, images[::-1], labels)
        assert len(idle) == 1  # nothing is taken before the first step
        for step in range(ends):
            if step < n:
                passed.forward(step, x[net.parts[step].slice])
            else:
                passed.backward(2 * n - 1 - step, x[net.parts[2 * n - 1 - step].slice])
        assert len(idle) == (ends == 2 * n)
        del passed
        gc.collect()
        assert len(idle) == 1
        assert np.array_equal(net.gradient(x, images, labels)[1], wanted)


def test_numbers_that_are_not_finite_end_a_pass_as_they_end_a_gradient():
    net = nets.build("tiny")
    images, labels = batch(net, 4)
    x = net.init(0)
    x[net.segments["conv2.bias"].slice] = np.nan
    passed = layered(net, images, labels)
    forward(passed, x, slices(net))
    with pytest.raises(FloatingPointError, match="net tiny: loss is nan: conv2.bias has numbers"):
        backward(passed, x, slices(net))
    assert len(net.idle[True]) == 1


def test_wrong_use_is_named_in_one_line():
    net = nets.build("tiny")
    images, labels = batch(net, 4)
    with pytest.raises(ValueError, match=r"labels lie in 0\.\.19, expected 0\.\.9") as error:
        layered(net, images, labels * 0 + np.array([0, 3, 2, 19])).forward(0, net.init(0)[:160])
    assert "\n" not in str(error.value)
