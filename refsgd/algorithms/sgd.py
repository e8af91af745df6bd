"""The update rule that every algorithm applies: stochastic gradient descent with momentum and weight decay.

In the form of PyTorch::

    g <- g + weight_decay * x
    v <- momentum * v + g
    x <- x - lr(t) * v

where t counts the updates of this copy of the parameters.  The rule is elementwise, so dividing the vector
among servers never changes a bit; scalars are float32, so that no array is promoted.

Weight decay uses the x to which g is applied, as in PyTorch's optimiser, even if g was taken at another x: at
parameter servers, in D-PSGD (`cta`), AD-PSGD, pair averaging, SGP and PipeDream.  EASGD, Hogwild! and DGC use
the x at which g was taken.

References
----------
Robbins and Monro, "A stochastic approximation method", 1951; Polyak, "Some methods of speeding up the
convergence of iteration methods", 1964.  Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1
hour", arXiv:1706.02677, 2017, section 2.2: gradual warm-up.  Loshchilov and Hutter, "SGDR: stochastic
gradient descent with warm restarts", ICLR 2017 (arXiv:1608.03983), equation 5: the cosine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refsgd.effects import Array

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class StepDecay:
    """Multiply the learning rate by `factor` after each `every` updates (of the server that applies them).

    Asynchronous servers update once per push, so they reach the same decay n times earlier in epochs than a
    synchronous one.  Jia et al., IPCCC 2020, adapt the rate in this way, "based on the number of weight
    updates".
    """

    every: int  #: updates, at least 1
    factor: float  #: in (0, 1]

    def __post_init__(self) -> None:
        if self.every < 1 or not 0 < self.factor <= 1:
            raise ValueError(
                f"schedule step({self.every},{self.factor}); expected every >= 1 and 0 < factor <= 1")

    def __call__(self, t: int) -> float:
        return float(self.factor ** (t // self.every))


constant = StepDecay(1, 1.0)  #: the learning rate never changes


@dataclass(frozen=True)
class Cosine:
    """Lower the learning rate from its full value to 0 along half a cosine; there are no restarts."""

    updates: int  #: at least 1; from this one on the rate is 0

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise ValueError(f"schedule cosine({self.updates}); expected at least 1 update")

    def __call__(self, t: int) -> float:
        return (1 + math.cos(math.pi * min(t / self.updates, 1))) / 2


@dataclass(frozen=True)
class Warmup:
    """Begin at a share of the learning rate, and raise it by the same amount at each of the first updates."""

    updates: int  #: at least 1; update number `updates`, counted from 0, is the first with the full rate
    start: float  #: the share at update 0
    then: Schedule  #: counts from update 0 as well; the warm-up multiplies it

    def __call__(self, t: int) -> float:
        return (self.start + (1 - self.start) * min(t / self.updates, 1)) * self.then(t)


def parse_schedule(text: str, updates: int = 1) -> Schedule:
    """Read ``constant``, ``cosine``, ``cosine(updates)`` or ``step(every,factor)``; a ``cosine`` without a
    number is 0 after `updates`.  Raises ValueError on anything else."""
    whole = max(updates, 1)
    kinds: dict[str, Callable[..., Schedule]] = {
        "constant": lambda: constant, "cosine": lambda length=whole: Cosine(int(length)),
        "step": lambda every, factor: StepDecay(int(every), float(factor))}
    if found := re.fullmatch(r"(constant|cosine|step)(?:\((.*)\))?", text):
        try:
            return kinds[found[1]](*(found[2].split(",") if found[2] is not None else ()))
        except (ValueError, TypeError) as error:
            if str(error).startswith("schedule "):
                raise
    raise ValueError(f"schedule {text!r} not understood; expected constant, cosine, cosine(updates) or "
                     "step(every,factor), e.g. step(100,0.5)")


def zeros(x: Array) -> Array:
    """Zeros of the shape of `x`, which unlike those of ``zeros_like`` take no memory before they are used."""
    return np.zeros(x.shape, x.dtype, like=x)


@dataclass(frozen=True)
class SGD:
    """The rule and its constants; it has no state: `start` and `step` are pure functions.

    Parameters
    ----------
    lr : float
        Learning rate > 0 (0: communication only).
    momentum : float
        In [0, 1).
    weight_decay : float
        >= 0; part of the gradient, applied once per update.
    schedule : callable
        Factor of the learning rate at update t.

    Examples
    --------
    >>> sgd, x = SGD(lr=0.5, momentum=0.5), np.ones(1, np.float32)
    >>> x, v = sgd.step(x, sgd.start(x), np.ones(1, np.float32), t=0)
    >>> x, v = sgd.step(x, v, np.ones(1, np.float32), t=1)
    >>> float(x[0])
    -0.25
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = constant

    def __post_init__(self) -> None:
        if not 0 <= self.lr < float("inf"):
            raise ValueError(f"learning rate {self.lr}; expected a finite number >= 0")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum {self.momentum}; expected a number in [0, 1)")
        if not 0 <= self.weight_decay < float("inf"):
            raise ValueError(f"weight decay {self.weight_decay}; expected a finite number >= 0")

    def rate(self, t: int) -> np.float32:
        """The learning rate at update t of these parameters."""
        return np.float32(self.lr * self.schedule(t))

    def start(self, x: Array) -> Any:
        """The velocity before the first update: zeros of the shape of the parameters `x`."""
        return zeros(x)

    def step(self, x: Array, v: Any, g: Array, t: int) -> tuple[Array, Any]:
        """Parameters and velocity after update t with gradient g: new arrays, but without momentum `v`
        itself."""
        if self.weight_decay:
            g = g + np.float32(self.weight_decay) * x
        if not self.momentum:
            return x - self.rate(t) * g, v
        v = np.float32(self.momentum) * v + g
        return x - self.rate(t) * v, v


def weights(images: Sequence[float]) -> tuple[list[float], float]:
    """Weights of a mean over images, and their sum: all 1 if the shares are equal.

    So a single gradient keeps its bits, and equal shares cause no rounding.

    >>> weights([16, 16]), weights([16, 15])
    (([1, 1], 2), ([16, 15], 31))
    """
    if len(set(images)) <= 1:
        return [1] * len(images), len(images)
    return list(images), sum(images)


def mean_gradient(gradients: Sequence[Array], images: Sequence[float]) -> Array:
    """The mean over all images, ``sum_i b_i g_i / sum_i b_i``, added in the order given.

    The plain mean of means is wrong if the shares b_i differ.  The order is that of the workers, never that
    of arrival: floating-point addition must not depend on the network.
    """
    share, total = weights(images)
    weighted = np.float32(share[0]) * gradients[0]
    for g, b in zip(gradients[1:], share[1:], strict=True):
        weighted = weighted + np.float32(b) * g
    return weighted / np.float32(total)
