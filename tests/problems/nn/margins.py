"""Parameters at which rounding cannot change the piece of a piecewise smooth net that a batch lies on.

A net with relu and max-pooling is smooth but for the places where the input of a relu is 0 or two pixels of a
window tie. Among some hundred thousand units one lies within rounding of such a place, float32 takes it for
its neighbour, and batch norm spreads what that changes over the whole gradient: two right implementations
then differ by per cent. Here biases are moved until every unit is far from 0.
"""
import numpy as np

from refsgd.problems.nn.layer import Concat, Residual
from refsgd.problems.nn.layers import MaxPool, Relu, _windows

# The last gain of a residual branch: at 1, some ten blocks amplify rounding tenfold; small values are how
# such nets are initialised (Goyal et al. 2017, section 5.1).
_BRANCH_GAIN = 0.25


def apart(net, seed, images):
    """Parameters near ``net.init(seed)``, float32, and how far these images keep every unit from a kink:
    from relus, from ties."""
    x = net.init(seed).astype(np.float64)
    margins = {"relu": np.inf, "pool": np.inf}
    _walk(net.layers, net.unflatten(x), images.astype(np.float64), margins)
    return x.astype(np.float32), margins["relu"], margins["pool"]


def _walk(layers, p, h, margins):
    """Run the layers by their definitions, moving the bias of whatever feeds a relu."""
    for k, (layer, q) in enumerate(zip(layers, p, strict=True)):
        if isinstance(layer, MaxPool):
            windows = np.sort(_windows(h, layer, -np.inf).reshape(-1, layer.kernel**2), axis=-1)
            first, second = windows[:, -1], windows[:, -2]
            # Equal values are one pixel that an earlier pool put into both places, or zeros that pass no
            # gradient.
            gap = (first - second)[(first > 0) & (first > second)]
            margins["pool"] = min(margins["pool"], gap.min())
        if isinstance(layer, Residual):
            q[0][-1]["gain"] *= _BRANCH_GAIN
        if isinstance(layer, Residual | Concat):
            parts = [_walk(branch, r, h, margins) for branch, r in zip(layer.branches, q, strict=True)]
            h = sum(parts) if isinstance(layer, Residual) else np.concatenate(parts, axis=-1)
        else:
            h, _ = layer.forward(q, h)
        if list(layers[k + 1 : k + 2]) == [Relu()]:
            middle, half = _largest_gap(h)
            bias = q[0][-1]["bias"] if isinstance(layer, Residual) else q["bias"]
            bias -= middle
            h = h - middle
            margins["relu"] = min(margins["relu"], half.min())
    return h


def _largest_gap(h):
    """For each channel: middle and half width of the largest gap between neighbouring values, of those
    near 0."""
    values = np.sort(h.reshape(-1, h.shape[-1]), axis=0)
    middle, half = (values[1:] + values[:-1]) / 2, (values[1:] - values[:-1]) / 2
    near = np.abs(middle) < 0.5 * values.std(axis=0)
    best = np.where(near, half, -np.inf).argmax(axis=0)
    channels = np.arange(h.shape[-1])
    return middle[best, channels], np.where(near, half, -np.inf)[best, channels]
