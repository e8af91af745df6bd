"""A quadratic with a spectrum, in independent copies and at several learning rates at once.

The loss is the mean over copies of ``sum_j a_j/2 x_j^2``.  A gradient has noise of its own in each copy, so
that the loss of one run is close to its expectation, which `refsgd.theory.phenomena.convergence` computes.

An algorithm that adds multiples of gradients, entry by entry, cannot tell a rate in the gradient from its
own: a run at rate 1 on gradients ``rate (a_j x + noise)`` shows it at several rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refsgd.effects import Array
from refsgd.problems.layers import equal
from refsgd.problems.problem import Problem

COPIES = 256  #: in a problem of the command line
LARGEST = 10**6  #: most numbers in its vector


@dataclass(frozen=True)
class Spectrum:
    """Of each eigenvector of the Hessian, (modes,) in double precision."""

    values: Any  #: its eigenvalue
    noise: Any  #: the variance of a gradient's noise
    start: Any  #: x at the start


def spectrum(low: float, high: float, modes: int, noise: float) -> Spectrum:
    """Eigenvalues from low to high at equal ratios, which have equal shares of the loss at the start, 1; the
    variance of the noise is `noise` times the eigenvalue, as in least squares."""
    values = np.geomspace(low, high, modes)
    return Spectrum(values, noise * values, np.sqrt(2 / (modes * values)))


def spectral(given: Spectrum, copies: int = COPIES, seed: int = 0,
             rates: Sequence[float] = (1.0,)) -> Problem:
    """The problem of a spectrum; its vector has (rates, modes, copies).

    Noise is drawn from (seed, rank, t), the same at all rates, so that they can be compared.
    """
    shape = len(rates), len(given.values), copies
    a, start, deviation = (np.asarray(each, np.float32)[:, None]
                           for each in (given.values, given.start, np.sqrt(given.noise)))
    rate = np.asarray(rates, np.float32)[:, None, None]
    x0 = np.broadcast_to(start, shape).reshape(-1).copy()

    def gradient(x: Array, rank: int, t: int) -> Array:
        noise = np.random.default_rng([seed, 5, rank, t]).standard_normal(shape[1:], np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # of rates that diverge
            return np.asarray(rate * (a * x.reshape(shape) + deviation * noise)).reshape(-1)

    def loss(x: Array) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.mean(np.asarray(x, float).reshape(shape) ** 2, axis=(0, 2))
        return float(given.values @ squares / 2)

    return Problem(x0, gradient, loss, describe={
        "data": "quadratic", "net": "quadratic", "parameters": x0.size, "bytes": 4 * x0.size, "batch": 1},
                   layers=equal(x0.size, gradient), spectrum=given)


def generated(text: str, seed: int = 0) -> Problem:
    """The problem of ``quadratic:LOW,HIGH,MODES,NOISE``."""
    try:
        low, high, modes, noise = (float(part) for part in text.partition(":")[2].split(","))
        if not (0 < low <= high < float("inf") and 0 <= noise < float("inf") and modes >= 1 and modes % 1 == 0
                and modes * COPIES <= LARGEST):
            raise ValueError
    except ValueError:
        raise ValueError(f"data {text!r}; expected quadratic:LOW,HIGH,MODES,NOISE, eigenvalues 0 < LOW <= "
                         f"HIGH, their number, at most {LARGEST // COPIES}, and a variance >= 0, such as "
                         "quadratic:0.01,1,8,0.05") from None
    found = spectral(spectrum(low, high, int(modes), noise), seed=seed)
    found.describe["data"] = text
    return found
