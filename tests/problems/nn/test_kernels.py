"""The kernels against the definitions: random small nets of every form that a plan knows, and random
batches."""
import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refsgd.problems.nn import kernels
from refsgd.problems.nn.layer import Concat, Residual
from refsgd.problems.nn.layers import (
    BatchNorm,
    Conv,
    Dropout,
    Flatten,
    GlobalAverage,
    Linear,
    MaxPool,
    Relu,
    Sigmoid,
    Tanh,
)
from refsgd.problems.nn.net import Net

# Relative to what was added up. A float32 sum of K numbers errs by some sqrt(K) half units in the last place;
# the longest here is that of a filter's gradient over 9 images of 15 x 15 positions, and what it sums is
# itself such a sum.
TOLERANCE = 2 * np.sqrt(9 * 15 * 15) * np.finfo(np.float32).eps / 2  # 5.4e-6


def disagreement(net, b, seed):
    """Largest error of loss and gradient relative to the definition in float64.

    Parameters and pixels are multiples of small powers of two, so that the forward pass up to the scores is
    exact in float32: both sides agree on the sign of every unit and on the winner of every pool, and ties do
    occur. The gradient's error is relative to the sum of the images' gradients without their signs: two
    images of different labels may cancel all but rounding.
    """
    random = np.random.default_rng(seed)
    x = random.integers(-2, 3, net.parameters).astype(np.float32) / 16
    x.setflags(write=False)
    images = random.integers(-2, 3, (b, *net.input_shape)).astype(np.float32) / 2
    labels = random.integers(0, net.classes, b)
    loss, g = net.gradient(x, images, labels)
    assert g.dtype == np.float32 and g.shape == (net.parameters,)
    each = [net.reference_gradient(x.astype(np.float64), images[n : n + 1], labels[n : n + 1])
            for n in range(b)]
    wanted_loss, wanted = np.mean([loss for loss, _ in each]), np.mean([g for _, g in each], axis=0)
    added = np.mean([np.abs(g) for _, g in each], axis=0)
    return max(abs(loss - wanted_loss) / max(1.0, wanted_loss), np.abs(g - wanted).max() / added.max())


@st.composite
def small_nets(draw):
    height, width = draw(st.integers(6, 15)), draw(st.integers(6, 15))
    shape = (height, width, draw(st.sampled_from([1, 2, 3, 5])))
    kernel = draw(st.sampled_from([1, 3, 5]))
    channels = st.sampled_from([1, 3, 8, 10, 16, 17, 20, 33, 50])
    first = Conv(draw(channels), kernel, draw(st.integers(1, 3)), draw(st.integers(0, kernel // 2)),
                 draw(st.booleans()))
    layers = [first, *draw(st.sampled_from([[], [Relu()]]))]
    height, width, _ = first.output_shape(shape)
    kernel = draw(st.sampled_from([k for k in (1, 3, 5) if k <= min(height, width)]))
    if min(height, width) >= kernel + 1 and draw(st.booleans()):
        second = Conv(draw(channels), kernel, 1, draw(st.integers(0, kernel // 2)))
        layers += [second, Relu(), MaxPool()]
    elif draw(st.booleans()):
        second = Conv(draw(channels), kernel, 1, draw(st.integers(0, kernel - 1)), draw(st.booleans()))
        layers += [second, *draw(st.sampled_from([[], [Relu()]]))]
    layers += [Flatten()]
    layers += draw(st.sampled_from([[], [Linear(7), Relu()], [Linear(65)]]))
    return Net("drawn", [*layers, Linear(draw(st.sampled_from([2, 10, 19])))], shape)


@settings(max_examples=60, deadline=None)
@given(small_nets(), st.sampled_from([1, 2, 3, 9]), st.integers(0, 1000))
def test_kernels_compute_what_the_definitions_say(net, b, seed):
    assert disagreement(net, b, seed) < TOLERANCE


@st.composite
def larger_nets(draw):
    """Nets with branches, batch norm, strides and every pool."""
    channels = st.sampled_from([1, 3, 8, 17, 24, 33, 48])
    c = draw(channels)
    layers = [Conv(c, 3, 1, 1, draw(st.booleans()))]

    def unit(outputs, kernel=3, stride=1, relu=True):
        conv = Conv(outputs, kernel, stride, kernel // 2, draw(st.booleans()))
        return [conv, *draw(st.sampled_from([[], [BatchNorm()]])), *([Relu()] if relu else [])]

    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["identity", "projection", "concat", "pool", "before", "nested"]))
        if kind == "identity":
            layers += [Residual((*unit(draw(channels)), *unit(c, relu=draw(st.booleans()))))]
        elif kind == "projection":
            c, stride, last = draw(channels), draw(st.integers(1, 2)), draw(st.booleans())
            layers += [Residual((*unit(c, 3, stride), *unit(c, relu=last)), (*unit(c, 1, stride, last),))]
        elif kind == "concat":
            parts = [draw(channels), draw(channels), c, c]
            layers += [
                Concat((tuple(unit(parts[0], 1)), tuple(unit(parts[1])), (MaxPool(3, 1, 1),),
                        ())[: draw(st.integers(1, 4))])
            ]
            c = sum(parts[: len(layers[-1].branches)])
        elif kind == "before":  # norm and relu before the convolution: the branch works on a copy
            layers += [Residual((BatchNorm(), Relu(), Conv(c, 3, pad=1)))]
        elif kind == "nested":
            inner = Residual((Conv(c, 3, pad=1, bias=False), BatchNorm()))
            layers += [Residual((inner,)), Residual((Conv(c, 1), inner), (Residual((Conv(c, 1),)),))]
        else:
            layers += [draw(st.sampled_from([MaxPool(), MaxPool(3, 2, 1), MaxPool(2, 1)]))]
        layers += draw(st.sampled_from([[], [Relu()]]))
    end = draw(st.sampled_from([[Flatten()], [GlobalAverage()]]))
    return Net("drawn", [*layers, *end, Linear(5)],
               (draw(st.integers(10, 17)), draw(st.sampled_from([10, 12, 15])), 2))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(larger_nets(), st.sampled_from([2, 3, 5]), st.integers(0, 1000))
def test_kernels_of_larger_nets(net, b, seed):
    """With batch norm nothing is exact, and a relu next to 0 may flip: one of three batches must agree
    closely."""
    assert any(distance(net, b, seed + k) < 2e-5 for k in range(3))


def distance(net, b, seed):
    """Relative error of loss and gradient, less what the definition itself loses in float32."""
    random = np.random.default_rng(seed)
    x = net.init(seed) * np.float32(2)
    images = random.standard_normal((b, *net.input_shape)).astype(np.float32)
    labels = random.integers(0, net.classes, b)
    loss, g = net.gradient(x, images, labels)
    assert net.loss_and_accuracy(x, images, labels)[0] == pytest.approx(loss, rel=1e-6)
    wanted_loss, wanted = net.reference_gradient(x.astype(np.float64), images, labels)
    rounded_loss, rounded = net.reference_gradient(x, images, labels)
    errors = (
        (abs(loss - wanted_loss) - 10 * abs(rounded_loss - wanted_loss)) / max(1.0, wanted_loss),
        (np.linalg.norm(g - wanted) - 10 * np.linalg.norm(rounded - wanted)) / np.linalg.norm(wanted),
    )
    return max(errors)


def chain(draw, shape, most, depth=0):
    """At most so many layers in any order, also with branches that are empty or hold branches, and the shape
    that they give."""
    layers = []
    for _ in range(draw.randint(0, most)):
        kinds = [Relu(), Tanh(), Sigmoid(), Dropout(0.3), BatchNorm(), Flatten()]
        if len(shape) == 3:
            conv = Conv(draw.choice([1, 3, 10, 17]), draw.choice([1, 3]), draw.choice([1, 1, 2]), draw.choice([0, 1]))
            kinds += [conv, conv, MaxPool(), MaxPool(3, 1, 1), MaxPool(3, 2, 1), GlobalAverage()]
        else:
            kinds += [Linear(draw.choice([1, 5, 65]))]
        layer = draw.choice(kinds)
        if depth < 2 and len(shape) == 3 and draw.random() < 0.4:
            found = [chain(draw, shape, 2, depth + 1) for _ in range(draw.randint(1, 3))]
            fitting = [(tuple(body), end) for body, end in found if end[:2] == shape[:2]]
            if fitting and draw.random() < 0.5:
                layer = Concat(tuple(body for body, _ in fitting))
            elif fitting:
                body, end = fitting[0]
                layer = Residual(body, (Conv(end[-1], 1),) if end != shape or draw.random() < 0.3 else ())
        if min(shape[:2]) > 2 or not isinstance(layer, Conv | MaxPool):
            layers, shape = [*layers, layer], layer.output_shape(shape)
    return layers, shape


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([2, 3, 33]), st.integers(0, 1000))
def test_kernels_of_layers_in_any_order(draw, b, seed):
    shape = (draw.randint(4, 9), draw.randint(4, 9), draw.randint(1, 3))
    layers, _ = chain(draw, shape, 6)
    last = draw.choice([[], [Flatten()], [Tanh()], [Sigmoid(), Flatten()]])
    net = Net("drawn", [*layers, Flatten(), Linear(5), *last], shape)
    assert any(distance(net, b, seed + k) < 3e-5 for k in range(4)), layers


def test_batch_norm_of_features():
    """Over some hundred images: over two, normalised features are +-1 and rounding is all that is left of
    the gradient."""
    net = Net("features", [Flatten(), Linear(20), BatchNorm(), Relu(), Linear(4)], (5, 5, 1))
    random = np.random.default_rng(0)
    x, images = net.init(0), random.standard_normal((300, 5, 5, 1)).astype(np.float32)
    labels = random.integers(0, 4, 300)
    loss, g = net.gradient(x, images, labels)
    wanted_loss, wanted = net.reference_gradient(x.astype(np.float64), images, labels)
    assert loss == pytest.approx(wanted_loss, rel=1e-6)
    assert np.abs(g - wanted).max() < 1e-5 * np.abs(wanted).max()


DROPPING = {
    "features": [Flatten(), Linear(70), Relu(), Dropout(0.3)],
    "images": [Dropout(0.2), Conv(9, 3, pad=1), Relu(), Dropout(0.3), Conv(20, 3, pad=1), Relu(), MaxPool(),
               Dropout(0.1), Flatten()],
    "alike": [Flatten(), *[Linear(70), Relu(), Dropout(0.5)] * 2],
    "branches": [Conv(6, 3, pad=1), Residual((Dropout(0.3), Conv(6, 3, pad=1), Dropout(0.2))), Relu(),
                 Dropout(0.5), BatchNorm(), GlobalAverage()],
}


@pytest.mark.parametrize("layers", DROPPING.values(), ids=DROPPING)
def test_dropout_drops_what_the_definition_drops(layers):
    net = Net("drop", [*layers, Linear(4)], (5, 5, 2))
    random = np.random.default_rng(0)
    x, images = net.init(0), random.standard_normal((300, 5, 5, 2)).astype(np.float32)
    labels = random.integers(0, 4, 300)
    for key in (None, 0, 1, 2**63 + 5):
        loss, g = net.gradient(x, images, labels, key)
        wanted_loss, wanted = net.reference_gradient(x.astype(np.float64), images, labels, key)
        assert loss == pytest.approx(wanted_loss, rel=1e-5)
        assert np.abs(g - wanted).max() < 1e-5 * np.abs(wanted).max()


SEQUENCES = {  # steps that share memory
    "dropout after a curve": [Flatten(), Linear(20), Tanh(), Dropout(0.3)],
    "a curve after relu": [Flatten(), Linear(20), Relu(), Sigmoid(), Linear(9), Sigmoid(), Relu(), Sigmoid()],
    "a curve after relu and flattening": [Conv(4, 3), Relu(), Flatten(), Sigmoid()],
    "a curve after relu and dropout": [Flatten(), Linear(20), Relu(), Dropout(0.3), Sigmoid()],
    "a curve after a sum": [Conv(4, 3, pad=1), Residual((Conv(4, 3, pad=1),)), Relu(), Sigmoid()],
    "pooling in a branch": [Conv(4, 3, pad=1), Residual((Conv(4, 3), Relu(), MaxPool()), (Conv(4, 3, 2),))],
    "flat branches": [Conv(4, 3, pad=1), Residual((Conv(4, 3), Flatten()), (Conv(4, 3), Flatten()))],
    "a flat shortcut": [Conv(4, 3, pad=1), Residual((Conv(4, 3, pad=1), Flatten()), (Flatten(),)), Relu()],
    "a border after a sum": [Conv(4, 3, pad=1), Residual((Conv(4, 5, pad=2), Relu())), Conv(4, 3), Relu(),
                             MaxPool()],
    "flat twice": [BatchNorm(), Flatten(), Flatten(), BatchNorm()],
}


@pytest.mark.parametrize("layers", SEQUENCES.values(), ids=SEQUENCES)
def test_steps_that_share_memory_leave_what_others_need(layers):
    net = Net("shared", [*layers, Flatten(), Linear(5)], (8, 8, 2))
    random = np.random.default_rng(0)
    x, images = net.init(0), random.standard_normal((30, 8, 8, 2)).astype(np.float32)
    labels = random.integers(0, 5, 30)
    loss, g = net.gradient(x, images, labels, 3)
    wanted_loss, wanted = net.reference_gradient(x.astype(np.float64), images, labels, 3)
    assert loss == pytest.approx(wanted_loss, rel=1e-6)
    assert np.abs(g - wanted).max() < 2e-6 * np.abs(wanted).max()
    wanted_loss, _ = net.reference_gradient(x.astype(np.float64), images, labels)
    assert net.loss_and_accuracy(x, images, labels)[0] == pytest.approx(wanted_loss, rel=1e-6)


def test_a_net_whose_last_layer_flattens_is_evaluated_within_its_memory():
    net = Net("convolutions", [Conv(500, 8), Flatten()], (8, 8, 2))
    images = np.ones((64, 8, 8, 2), np.float32)
    with net._planned(keep=False) as plan:
        plan.reserve(64)
        assert plan.output.gradient.data.size >= 64 * 500
    loss, _ = net.loss_and_accuracy(net.init(0), images, np.zeros(64, int))
    assert loss == pytest.approx(net.gradient(net.init(0), images, np.zeros(64, int))[0])


@pytest.mark.parametrize("outputs", [3, 16, 67])
@pytest.mark.parametrize("b", [1, 4, 7])
def test_large_linear_layers_multiply_by_the_transpose_without_forming_it(outputs, b):
    net = Net("wide", [Flatten(), Linear(700), Relu(), Linear(outputs)], (5, 5, 3))
    assert disagreement(net, b, 0) < TOLERANCE


@pytest.mark.parametrize("index", [0, 7, 15])
def test_the_check_notices_a_lost_output(monkeypatch, index):
    """A wrong variant of `convolve` that forgets one number of its first row."""

    def wrong(*arguments):
        right(*arguments)
        place = arguments[5]  # of the output
        ctypes.c_float.from_address(place[0] + 4 * index).value = 0

    right = kernels.convolve
    monkeypatch.setattr(kernels, "convolve", wrong)
    assert disagreement(Net("small", [Conv(16, 3), Flatten(), Linear(16)], (6, 6, 2)), 3, 0) > TOLERANCE


def test_nan_is_not_hidden_by_relu_or_pooling():
    net = Net("small", [Conv(4, 3), Relu(), Conv(4, 1), Relu(), MaxPool(), Flatten(), Linear(3)], (6, 6, 2))
    images = np.zeros((1, 6, 6, 2), np.float32)
    images[0, 3, 3, 0] = np.nan
    assert np.isnan(net.loss_and_accuracy(net.init(0), images, np.zeros(1, int))[0])


@pytest.mark.parametrize("pixel", range(9))
def test_nan_is_the_largest_of_a_window_wherever_it_stands(pixel):
    net = Net("pooled", [MaxPool(3, 1), Flatten(), Linear(2)], (3, 3, 1))
    images = np.ones((1, 3, 3, 1), np.float32)
    images.flat[pixel] = np.nan
    assert np.isnan(net.loss_and_accuracy(net.init(0), images, np.zeros(1, int))[0])


def test_the_gradient_at_the_label_keeps_its_digits_where_the_net_is_confident():
    net = Net("two scores", [Flatten(), Linear(2)], (1, 1, 1))
    x = np.zeros(net.parameters, np.float32)
    x[net.segments["linear1.bias"][0]] = 16, 0
    _, g = net.gradient(x, np.zeros((1, 1, 1, 1), np.float32), np.array([0]))
    at_the_label = g[net.segments["linear1.bias"][0]][0]
    exact = -1 / (1 + np.exp(16.0))
    assert abs(at_the_label / exact - 1) < 1e-6
    softmax = np.float32(1) / (np.float32(1) + np.exp(np.float32(-16)))
    assert abs((softmax - np.float32(1)) / exact - 1) > 0.01  # the usual form has lost nearly all of them
