"""The definitions of the layers against central differences, in float64."""
import numpy as np
import pytest

from refsgd.problems.nn import nets
from refsgd.problems.nn.layer import Concat, Residual, backward, forward
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
    hinge,
    negative_likelihood,
    negative_score,
    softmax_cross_entropy,
    squared_error,
)
from refsgd.problems.nn.net import Net

CASES = [
    (Conv(3, 3), (5, 6, 2)),
    (Conv(3, 3, pad=1), (4, 5, 2)),
    (Conv(2, 3, stride=2, pad=1), (7, 6, 2)),
    (Conv(2, 3, stride=2), (8, 8, 1)),
    (Conv(2, 5, pad=2, bias=False), (5, 5, 1)),
    (Conv(4, 1), (3, 2, 3)),
    (Relu(), (3, 4, 2)),
    (Sigmoid(), (3, 4, 2)),
    (Tanh(), (5,)),
    (MaxPool(), (5, 4, 2)),
    (MaxPool(3, 1), (5, 4, 2)),
    (MaxPool(3, 2, 1), (6, 5, 2)),
    (GlobalAverage(), (3, 4, 2)),
    (BatchNorm(), (2, 3, 2)),
    (BatchNorm(), (5,)),
    (Dropout(0.3), (7,)),
    (Flatten(), (2, 3, 2)),
    (Linear(4), (5,)),
]


NETS = [("tiny", None), ("shallow", None), ("lenet5", None), ("mlp", None), ("softmax", None),
        ("resnet18:2", (8, 8, 1))]
NETS += [("tiny:4,sigmoid,squared", None), ("tiny:4,hinge", None), ("tiny:4,likelihood", None), ("softmax:score", None), ("resnet34:1", (16, 16, 3)), ("mlp:6,tanh", (8, 8, 1)), ("resnet50:1", (24, 24, 3)), ("inception:4", (8, 8, 3)), ("vgg16:2", None)]


def differences(f, x, h=1e-6):
    """Gradient of f at x by central differences; error of the order h**2."""
    g = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = h
        g[i] = (f(x + step) - f(x - step)) / (2 * h)
    return g


def checked(layer, shape, backward):
    """Largest error of a backward pass over all its gradients, for the loss sum(y * dy) with random dy."""
    random = np.random.default_rng(1)
    x = random.standard_normal((2, *shape))
    p = {name: random.standard_normal(q.shape) for name, q in layer.parameters(shape).items()}
    key = {"key": 7} if isinstance(layer, Dropout) else {}
    y, kept = layer.forward(p | key, x)
    assert y.shape == (2, *layer.output_shape(shape))
    dy = random.standard_normal(y.shape)
    dx, gradients = backward(p | key, kept, dy)
    errors = [np.abs(dx - differences(lambda v: np.sum(layer.forward(p | key, v)[0] * dy), x)).max()]
    for name in p:
        wanted = differences(lambda v, name=name: np.sum(layer.forward(p | {name: v}, x)[0] * dy), p[name])
        errors.append(np.abs(gradients[name] - wanted).max())
    return max(errors)


@pytest.mark.parametrize("layer, shape", CASES, ids=str)
def test_backward_is_the_derivative_of_forward(layer, shape):
    assert checked(layer, shape, layer.backward) < 1e-6


CHAINS = [
    [Residual((Conv(2, 3, pad=1), Relu(), Conv(2, 3, pad=1))), Relu()],
    [Residual((Conv(4, 3, 2, 1, bias=False), BatchNorm()), (Conv(4, 1, 2, bias=False), BatchNorm()))],
    [Concat(((Conv(3, 1),), (MaxPool(3, 1, 1), Conv(1, 1)), (Relu(),)))],
    [Concat(((), (Residual((MaxPool(1, 1),)),)))],
]


@pytest.mark.parametrize("layers", CHAINS, ids=str)
def test_branches_add_up(layers):
    net = Net("chain", [*layers, Flatten(), Linear(2)], (4, 6, 2))
    random = np.random.default_rng(4)
    x, images = random.standard_normal(net.parameters), random.standard_normal((2, 4, 6, 2))
    p = net.unflatten(x)
    y, kept = forward(net.layers, p, images)
    dy = random.standard_normal(y.shape)
    dx, gradients = backward(net.layers, p, kept, dy)
    wanted = differences(lambda v: np.sum(forward(net.layers, p, v)[0] * dy), images)
    assert np.abs(dx - wanted).max() < 1e-6
    wanted = differences(lambda v: np.sum(forward(net.layers, net.unflatten(v), images)[0] * dy), x)
    assert np.abs(np.concatenate([g.ravel() for g in flattened(gradients)]) - wanted).max() < 1e-6


def flattened(gradients):
    for part in gradients:
        yield from part.values() if isinstance(part, dict) else flattened(part)


def test_dropout_keeps_the_mean_and_is_a_function_of_its_key():
    x = np.ones((100, 1000))
    drop = Dropout(0.3)
    y, _ = drop.forward({"key": 5}, x)
    assert y.mean() == pytest.approx(1, abs=5 * np.sqrt(0.3 / 0.7 / x.size))
    assert np.array_equal(y, drop.forward({"key": 5}, x)[0])
    assert np.mean(y == drop.forward({"key": 6}, x)[0]) == pytest.approx(0.58, abs=0.01)
    assert np.array_equal(drop.forward({}, x)[0], x)
    assert np.array_equal(y[40:], drop.forward({"key": 5, "first": 40}, x[40:])[0])


def test_no_two_dropouts_of_a_net_drop_the_same():
    """WRONG: one key for all of them, as in VGG-16, whose two dropouts are of one width."""
    net, ones = Net("two", [Dropout(0.5)] * 2, (1000,)), np.ones((1, 1000))
    assert np.mean(forward(net.layers, net.unflatten(net.init(0), 5), ones)[0] > 0) == pytest.approx(0.25, abs=0.05)


def test_the_check_notices_batch_norm_with_constant_statistics():
    def constant(p, kept, dy):
        _, inverse = kept
        return p["gain"] * inverse * dy, BatchNorm().backward(p, kept, dy)[1]

    assert checked(BatchNorm(), (2, 3, 2), constant) > 0.1


@pytest.mark.parametrize("layer, shape", [CASES[1], CASES[2]], ids=str)
def test_the_check_notices_filters_that_were_not_turned(layer, shape):
    def unturned(p, kept, dy):
        wrong = {name: value[::-1, ::-1] if value.ndim == 4 else value for name, value in p.items()}
        return layer.backward(wrong, kept, dy)[0], layer.backward(p, kept, dy)[1]

    assert checked(layer, shape, unturned) > 0.1


def test_the_check_notices_a_relu_without_mask():
    assert checked(Relu(), (3, 4, 2), lambda p, kept, dy: (dy, {})) > 0.1


@pytest.mark.parametrize("layer", [Sigmoid(), Tanh()], ids=str)
def test_the_check_notices_a_slope_by_the_input_in_place_of_the_output(layer):
    def slope(p, kept, dy):
        return layer.backward(p, np.arctanh(kept) if layer == Tanh() else np.log(kept / (1 - kept)), dy)

    assert checked(layer, (3, 4, 2), slope) > 0.1


def test_smooth_activations_by_hand():
    x = np.float32([-1000, 0, np.log(3), 1000])
    assert Sigmoid().forward({}, x)[0] == pytest.approx([0, 0.5, 0.75, 1])
    assert Tanh().forward({}, x)[0] == pytest.approx([-1, 0, 0.8, 1])


def test_the_squared_error_by_hand_and_by_differences():
    loss, dz = squared_error(np.array([[1.0, 2.0], [0.0, 0.5]]), np.array([0, 1]))
    assert loss == (0 + 4 + 0 + 0.25) / 4 and dz.tolist() == [[0, 1], [0, -0.25]]
    z, labels = np.random.default_rng(2).standard_normal((3, 5)), np.array([0, 4, 2])
    wanted = differences(lambda v: squared_error(v, labels)[0], z)
    assert np.abs(squared_error(z, labels)[1] - wanted).max() < 1e-8


@pytest.mark.parametrize(("negative", "by_hand"), [(negative_likelihood, (-0.375, [[-0.125, 0.125], [0.09375, -0.09375]])),
                                                   (negative_score, (-0.5, [[-0.5, 0], [0, -0.5]]))])
def test_negative_losses_by_hand_and_by_differences(negative, by_hand):
    """Probabilities of the right class: a half, and a quarter; its scores: 1, and 0."""
    loss, dz = negative(np.array([[1.0, 1.0], [np.log(3), 0.0]]), np.array([0, 1]))
    assert loss == pytest.approx(by_hand[0]) and dz == pytest.approx(np.array(by_hand[1]))
    z, labels = np.random.default_rng(2).standard_normal((3, 5)), np.array([0, 4, 2])
    wanted = differences(lambda v: negative(v, labels)[0], z)
    assert np.abs(negative(z, labels)[1] - wanted).max() < 1e-8


def test_the_hinge_loss_by_hand_and_by_differences():
    loss, dz = hinge(np.array([[2.0, 1.5, 0.0], [0.0, 3.0, 0.0]]), np.array([0, 1]))
    assert loss == 0.5 / 6 and dz.tolist() == [[-1 / 6, 1 / 6, 0], [0, 0, 0]]
    z, labels = np.random.default_rng(2).standard_normal((3, 5)), np.array([0, 4, 2])
    wanted = differences(lambda v: hinge(v, labels)[0], z)
    assert np.abs(hinge(z, labels)[1] - wanted).max() < 1e-8


def test_softmax_cross_entropy_is_differentiated_rightly_and_does_not_overflow():
    random = np.random.default_rng(2)
    z, labels = random.standard_normal((3, 5)), np.array([0, 4, 2])
    _, dz = softmax_cross_entropy(z, labels)
    assert np.abs(dz - differences(lambda v: softmax_cross_entropy(v, labels)[0], z)).max() < 1e-8
    assert softmax_cross_entropy(np.array([[1000.0, 0.0]]), np.array([0]))[0] == 0.0


def test_ties_of_a_pool_go_to_the_first_pixel():
    _, kept = MaxPool().forward({}, np.zeros((1, 2, 2, 1)))
    dx, _ = MaxPool().backward({}, kept, np.ones((1, 1, 1, 1)))
    assert dx[0, :, :, 0].tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize("name, shape", NETS)
def test_gradient_of_a_whole_net_in_some_directions(name, shape):
    net = nets.build(name, shape)
    random = np.random.default_rng(3)
    x = net.init(0).astype(np.float64)
    images, labels = random.standard_normal((2, *net.input_shape)), random.integers(0, net.classes, 2)
    _, g = net.reference_gradient(x, images, labels)
    parts = list(net.segments.values())
    for part, _ in parts[:: max(1, len(parts) // 10)]:
        direction = np.zeros_like(x)
        direction[part] = random.standard_normal(x[part].size)
        direction /= np.linalg.norm(direction)
        h = 1e-6
        ahead, behind = (net.reference_gradient(x + s * h * direction, images, labels)[0] for s in (1, -1))
        assert (ahead - behind) / (2 * h) == pytest.approx(g @ direction, rel=1e-5, abs=1e-7)
