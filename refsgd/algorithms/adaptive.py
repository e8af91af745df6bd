"""Update rules that adapt the learning rate: Adam that of each entry, LARS that of each layer.

Both are used as `refsgd.algorithms.sgd.SGD` is: `start` gives the state of a copy or a part of the
parameters, `step` a new one.  Adam is elementwise, so dividing the vector among servers never changes a bit;
LARS needs the norms of whole layers.

References
----------
Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015 (arXiv:1412.6980), algorithm 1.
You, Gitman and Ginsburg, "Large batch training of convolutional networks", arXiv:1708.03888, 2017,
algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from refsgd.algorithms.sgd import SGD, zeros
from refsgd.effects import Array


@dataclass(frozen=True)
class Adam(SGD):
    """Adam: moving averages of the gradient and of its square, corrected for their start at 0.

    Its steps are about as long as the learning rate, whatever the gradient.  Weight decay is a part of the
    gradient, as in ``torch.optim.Adam``.

    >>> adam, x = Adam(lr=0.5), np.ones(2, np.float32)
    >>> x, state = adam.step(x, adam.start(x), np.array([4.0, -0.25], np.float32), t=0)
    >>> x.tolist()
    [0.5, 1.5]
    """

    beta1: float = 0.9  #: how much of the average is kept at each update, in [0, 1); it replaces `momentum`
    beta2: float = 0.999  #: and of the average of the square
    epsilon: float = 1e-8  #: added to the root of the mean square

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum:
            raise ValueError(f"momentum {self.momentum} with adam, which has beta1 instead; expected 0")

    def start(self, x: Array) -> Any:
        """The two averages before the first update: zeros."""
        return zeros(x), zeros(x)

    def step(self, x: Array, v: Any, g: Array, t: int) -> tuple[Array, Any]:
        """Parameters and averages after update t, from 0 on, with gradient g."""
        number, (m, s) = np.float32, v
        if self.weight_decay:
            g = g + number(self.weight_decay) * x
        m = number(self.beta1) * m + number(1 - self.beta1) * g
        s = number(self.beta2) * s + number(1 - self.beta2) * g * g
        mean, square = m / number(1 - self.beta1 ** (t + 1)), s / number(1 - self.beta2 ** (t + 1))
        return x - self.rate(t) * mean / (np.sqrt(square) + number(self.epsilon)), (m, s)


@dataclass(frozen=True)
class LARS(SGD):
    """LARS: layer-wise adaptive rates, so that no layer moves by more than a small part of its norm.

    Each layer has its ratio r, and the velocity contains the rate, as in the paper::

        r = trust |x| / (|g| + weight_decay |x|)              # trust, if one of them is 0
        v <- momentum * v + lr(t) * r * (g + weight_decay * x)
        x <- x - v
    """

    trust: float = 0.001  #: the part of its norm by which a layer moves at a learning rate of 1
    layers: tuple[slice, ...] = ()  #: their places in the vector; () if it is one layer

    def ratio(self, x: Array, g: Array) -> np.float32:
        """The rate of one layer, as a multiple of the learning rate."""
        if not isinstance(x, np.ndarray):  # shape-only
            return np.float32(self.trust)
        length, slope = (float(np.sqrt(np.sum(np.square(a, dtype=float)))) for a in (x, g))
        known = length and slope
        return np.float32(self.trust * (length / (slope + self.weight_decay * length) if known else 1))

    def step(self, x: Array, v: Any, g: Array, t: int) -> tuple[Array, Any]:
        """Parameters and velocity after update t with gradient g."""
        moves = [self.ratio(x[at], g[at]) * (g[at] + np.float32(self.weight_decay) * x[at])
                 for at in self.layers or (slice(0, x.size),)]
        v = np.float32(self.momentum) * v + self.rate(t) * np.concatenate(moves)
        return x - v, v
