"""Networks by name."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from refsgd.problems.nn import kernel_cache
from refsgd.problems.nn.layer import Concat, Layer, Residual, Shape
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

Layers = list[Layer]


def _tiny(shape: Shape, classes: int, width: int) -> Layers:
    """A small net for the 8x8 digits: 9,930 parameters."""
    return [
        Conv(width, 3, pad=1), Relu(), Conv(2 * width, 3, pad=1), Relu(), MaxPool(), Flatten(),
        Linear(classes)
    ]


def _shallow(shape: Shape, classes: int, width: int) -> Layers:
    """The shallow net of the class report, for 28x28 images: 431,080 parameters."""
    return [
        Conv(20, 5), Relu(), MaxPool(),
        Conv(50, 5), Relu(), MaxPool(),
        Flatten(), Linear(500), Relu(), Linear(classes),
    ]


def _lenet5(shape: Shape, classes: int, width: int) -> Layers:
    """LeNet-5 (LeCun et al. 1998) with relu, max-pooling and full connections: 61,706 parameters at 28 px."""
    return [
        Conv(6, 5, pad=2), Relu(), MaxPool(),
        Conv(16, 5), Relu(), MaxPool(),
        Flatten(), Linear(120), Relu(), Linear(84), Relu(), Linear(classes),
    ]


def _mlp(shape: Shape, classes: int, width: int) -> Layers:
    """Two hidden layers of ``width`` units."""
    return [Flatten(), Linear(width), Relu(), Linear(width), Relu(), Linear(classes)]


def _softmax(shape: Shape, classes: int, width: int) -> Layers:
    """Softmax regression, a convex problem."""
    return [Flatten(), Linear(classes)]


def _normed(channels: int, kernel: int, stride: int = 1) -> Layers:
    return [Conv(channels, kernel, stride, kernel // 2, bias=False), BatchNorm()]


def _stem(shape: Shape, width: int) -> Layers:
    """The first layers of a residual net; for large images those of the paper, which shrink them fourfold."""
    if min(shape[:2]) > 64:
        return [*_normed(width, 7, 2), Relu(), MaxPool(3, 2, 1)]
    return [*_normed(width, 3), Relu()]


def _resnet(shape: Shape, classes: int, width: int, blocks: Sequence[int],
            bottleneck: bool = False) -> Layers:
    """Residual blocks at four widths (He et al. 2016): each of two 3x3 convolutions, or of a 3x3 one, which
    has the stride, between two of 1x1."""
    layers, inputs = _stem(shape, width), width
    for stage, count in enumerate(blocks):
        inner = width * 2**stage
        outputs = 4 * inner if bottleneck else inner
        for block in range(count):
            stride = 2 if stage and not block else 1
            if bottleneck:
                body = (*_normed(inner, 1), Relu(), *_normed(inner, 3, stride), Relu(), *_normed(outputs, 1))
            else:
                body = (*_normed(outputs, 3, stride), Relu(), *_normed(outputs, 3))
            shortcut = () if inputs == outputs else tuple(_normed(outputs, 1, stride))
            layers += [Residual(body, shortcut), Relu()]
            inputs = outputs
    return [*layers, GlobalAverage(), Linear(classes)]


# Channels of the Inception modules 3a to 5b: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; pooled.
_INCEPTION: list[tuple[int, ...] | None] = [
    (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), None,
    (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128), None,
    (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
]


def _inception(shape: Shape, classes: int, width: int) -> Layers:
    """Inception-v1 (Szegedy et al. 2015) with batch norm, without side outputs, stem for 32x32 images."""

    def unit(channels: int, kernel: int) -> Layers:
        return [*_normed(channels * width // 64, kernel), Relu()]

    layers: Layers = unit(192, 3)
    for widths in _INCEPTION:
        if widths is None:
            layers.append(MaxPool(3, 2, 1))
            continue
        one, reduced3, three, reduced5, five, pooled = widths
        branches = (
            unit(one, 1),
            [*unit(reduced3, 1), *unit(three, 3)],
            [*unit(reduced5, 1), *unit(five, 5)],
            [MaxPool(3, 1, 1), *unit(pooled, 1)],
        )
        layers.append(Concat(tuple(tuple(branch) for branch in branches)))
    return [*layers, GlobalAverage(), Linear(classes)]


def _vgg16(shape: Shape, classes: int, width: int) -> Layers:
    """VGG-16 (Simonyan and Zisserman 2015): 138,357,544 parameters at 224 px; one linear layer below."""
    layers: Layers = []
    for multiple, count in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
        for _ in range(count):
            layers += [Conv(width * multiple, 3, pad=1), Relu()]
        layers.append(MaxPool())
    layers.append(Flatten())
    if min(shape[:2]) >= 224:
        for _ in range(2):
            layers += [Linear(64 * width), Relu(), Dropout(0.5)]
    return [*layers, Linear(classes)]


_GRAY8, _GRAY28, _COLOR32 = (8, 8, 1), (28, 28, 1), (32, 32, 3)
# Builder, default shape of the images, default width.
_NETS: dict[str, tuple[Callable[[Shape, int, int], Layers], Shape, int]] = {
    "tiny": (_tiny, _GRAY8, 16),
    "shallow": (_shallow, _GRAY28, 20),
    "lenet5": (_lenet5, _GRAY28, 6),
    "mlp": (_mlp, _GRAY28, 128),
    "softmax": (_softmax, _GRAY28, 1),
    "resnet18": (partial(_resnet, blocks=(2, 2, 2, 2)), _COLOR32, 64),
    "resnet34": (partial(_resnet, blocks=(3, 4, 6, 3)), _COLOR32, 64),
    "resnet50": (partial(_resnet, blocks=(3, 4, 6, 3), bottleneck=True), _COLOR32, 64),
    "inception": (_inception, _COLOR32, 64),
    "vgg16": (_vgg16, _COLOR32, 64),
}
_LOSSES = {"squared": squared_error, "hinge": hinge, "likelihood": negative_likelihood,
           "score": negative_score}
_ACTIVATIONS: dict[str, Layer] = {"sigmoid": Sigmoid(), "tanh": Tanh()}
_FIXED_WIDTH = ("shallow", "lenet5", "softmax")
NAMES = tuple(_NETS)


def build(name: str, input_shape: Shape | None = None, classes: int = 10) -> Net:
    """A new net object with its own buffers.

    Parameters
    ----------
    name : str
        One of `NAMES`, optionally with the width of its first layers after a colon, as in "resnet18:16";
        other layers are scaled in proportion. The default width is 64 for the large nets, 128 for "mlp", 16
        for "tiny". After the colon may also come, or follow after a comma, "sigmoid" or "tanh" in place of
        relu, and in place of cross-entropy "squared" for the squared error, "hinge" for the hinge loss, or
        "likelihood" or "score" for minus the probability or the score of the right class:
        "mlp:64,tanh,squared".
    input_shape : (H, W, C), optional
        Shape of the images; by default that for which the net was designed.
    classes : int

    Returns
    -------
    Net

    Raises
    ------
    ValueError
        If there is no such net, or it does not accept such images.

    Examples
    --------
    >>> from refsgd.problems.nn import nets
    >>> nets.build("resnet50", (224, 224, 3), classes=1000).parameters
    25557032
    """
    base, colon, given = name.partition(":")
    if base not in _NETS:
        raise ValueError(f"net is {name!r}, expected one of {', '.join(NAMES)}")
    builder, shape, width = _NETS[base]
    loss, activation = softmax_cross_entropy, None
    for word in given.split(",") if colon else ():
        if word in _LOSSES:
            loss = _LOSSES[word]
        elif word in _ACTIVATIONS:
            activation = _ACTIVATIONS[word]
        elif base in _FIXED_WIDTH or not (word.isascii() and word.isdigit() and int(word) > 0):
            expected = "" if base in _FIXED_WIDTH else f"{base}:WIDTH with a whole number of 1 or more, or "
            raise ValueError(f"net is {name!r}, expected {expected}{base} alone, or with sigmoid, tanh, "
                             f"{', '.join(_LOSSES)} after a colon, as in {base}:tanh,squared")
        else:
            width = int(word)
    if classes < 1:
        raise ValueError(f"net {name}: classes is {classes}, expected 1 or more")
    shape = shape if input_shape is None else input_shape
    layers = builder(shape, classes, width)
    if activation is not None:
        if Relu() not in layers or any(hasattr(layer, "branches") for layer in layers):
            raise ValueError(f"net is {name!r}, expected one with relu between its layers, without branches")
        layers = [activation if layer == Relu() else layer for layer in layers]
    return Net(name, layers, shape, loss)


def needs_compiling() -> bool:
    """Whether numba's disk cache seems to lack the kernels, so that the first gradient takes some seconds."""
    if not kernel_cache.has_kernels():
        return False
    from refsgd.problems.nn import kernels

    kernel = kernels.convolve
    index = f"kernels.convolve-{kernel.py_func.__code__.co_firstlineno}.py*.nbi"
    return kernel.stats.cache_path is None or not any(Path(kernel.stats.cache_path).glob(index))
