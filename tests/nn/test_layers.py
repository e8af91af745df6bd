"""The definitions of the layers against central differences, in float64."""
import numpy as np
import pytest

from refsgd.nn import nets
from refsgd.nn.layers import Conv, Flatten, Linear, MaxPool, Relu, softmax_cross_entropy

CASES = [
    (Conv(3, 3), (5, 6, 2)),
    (Conv(3, 3, pad=1), (4, 5, 2)),
    (Conv(2, 3, stride=2, pad=1), (7, 6, 2)),
    (Conv(2, 3, stride=2), (8, 8, 1)),
    (Conv(2, 5, pad=2, bias=False), (5, 5, 1)),
    (Conv(4, 1), (3, 2, 3)),
    (Relu(), (3, 4, 2)),
    (MaxPool(), (5, 4, 2)),
    (MaxPool(3, 1), (5, 4, 2)),
    (Flatten(), (2, 3, 2)),
    (Linear(4), (5,)),
]


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
    y, kept = layer.forward(p, x)
    assert y.shape == (2, *layer.output_shape(shape))
    dy = random.standard_normal(y.shape)
    dx, gradients = backward(p, kept, dy)
    errors = [np.abs(dx - differences(lambda v: np.sum(layer.forward(p, v)[0] * dy), x)).max()]
    for name in p:
        wanted = differences(lambda v, name=name: np.sum(layer.forward(p | {name: v}, x)[0] * dy), p[name])
        errors.append(np.abs(gradients[name] - wanted).max())
    return max(errors)


@pytest.mark.parametrize("layer, shape", CASES, ids=str)
def test_backward_is_the_derivative_of_forward(layer, shape):
    assert checked(layer, shape, layer.backward) < 1e-6


@pytest.mark.parametrize("layer, shape", [CASES[1], CASES[2]], ids=str)
def test_the_check_notices_filters_that_were_not_turned(layer, shape):
    def unturned(p, kept, dy):
        wrong = {name: value[::-1, ::-1] if value.ndim == 4 else value for name, value in p.items()}
        return layer.backward(wrong, kept, dy)[0], layer.backward(p, kept, dy)[1]

    assert checked(layer, shape, unturned) > 0.1


def test_the_check_notices_a_relu_without_mask():
    assert checked(Relu(), (3, 4, 2), lambda p, kept, dy: (dy, {})) > 0.1


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


@pytest.mark.parametrize("name", nets.NAMES)
def test_gradient_of_a_whole_net_in_some_directions(name):
    net = nets.build(name)
    random = np.random.default_rng(3)
    x = net.init(0).astype(np.float64)
    images, labels = random.standard_normal((2, *net.input_shape)), random.integers(0, net.classes, 2)
    _, g = net.reference_gradient(x, images, labels)
    for part, _ in net.segments.values():
        direction = np.zeros_like(x)
        direction[part] = random.standard_normal(x[part].size)
        h = 1e-6 / np.linalg.norm(direction)
        ahead, behind = (net.reference_gradient(x + s * h * direction, images, labels)[0] for s in (1, -1))
        assert (ahead - behind) / (2 * h) == pytest.approx(g @ direction, rel=1e-5, abs=1e-7)
