"""FedOpt: the server of FedAvg takes the mean move of a round as the direction of an optimiser of its own.

A move goes downhill: minus it is what an optimiser calls its gradient.  As in the paper, and unlike
`refsgd.algorithms.adaptive`, averages are not corrected for their start, and v starts at tau^2.

References
----------
Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive federated optimization", ICLR
2021, arXiv:2003.00295, algorithm 2: FedAdagrad, FedAdam and FedYogi.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from refsgd.algorithms.averaging.outer import check_outer, outer_step
from refsgd.algorithms.federated.clients import Trained, mean_move
from refsgd.effects import Array

Name = Literal["sgd", "momentum", "adagrad", "adam", "yogi"]


@dataclass(frozen=True)
class Outer:
    """The server's rule: the heavy ball (`momentum`), or one with a rate for each entry."""

    rule: Name
    lr: float
    momentum: float  #: beta_1
    beta2: float
    tau: float

    def __post_init__(self) -> None:
        if self.rule not in get_args(Name):
            raise ValueError(f"rule {self.rule!r}; expected one of {', '.join(get_args(Name))}")
        check_outer(self.lr, self.momentum)
        if not (0 <= self.beta2 < 1 and self.tau > 0):
            raise ValueError(f"beta2 {self.beta2} and tau {self.tau}; expected beta2 in [0, 1) and tau > 0")

    def start(self, x: Array) -> tuple[Array, Array]:
        """m and v before the first round."""
        return np.zeros_like(x), np.zeros_like(x) + x.dtype.type(self.tau**2)

    def step(self, x: Array, state: Any, models: Sequence[Trained],
             images: Sequence[int]) -> tuple[Array, Any]:
        """The model after a round, m and v."""
        (m, v), move, number = state, mean_move(x, models, images), x.dtype.type
        if self.rule == "momentum":
            x, m = outer_step(x, m, move, self.lr, self.momentum, "heavy-ball")
            return x, (m, v)
        m = number(self.momentum) * m + number(1 - self.momentum) * move
        v = self.squares(v, move * move)
        return x + number(self.lr) * m / (np.sqrt(v) + number(self.tau)), (m, v)

    def squares(self, v: Array, square: Array) -> Array:
        """Their sum (Adagrad), their mean (Adam), or v moved towards the newest, by a part of it (Yogi)."""
        new = v.dtype.type(1 - self.beta2)
        if self.rule == "adagrad":
            return v + square
        return v - new * (v - square if self.rule == "adam" else square * np.sign(v - square))
