"""Stages of a pipeline: parameters and functions, messages between neighbours, one pass in each direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from refsgd.effects import Array, Compute, Program, Recv, Send


@dataclass(frozen=True)
class Stage:
    """A differentiable function of parameters and activations.

    Parameters
    ----------
    x0 : ndarray, (d_k,)
        Its parameters at the start.
    forward : callable
        ``(x, a) -> activations``, both (rows, ...).
    backward : callable
        ``(x, a, d) -> (g, d_in)``: d is the gradient of what `forward` returned, g (d_k,) the mean over rows.
    """

    x0: Array
    forward: Callable[[Array, Array], Array]
    backward: Callable[[Array, Array, Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Chain:
    """Stages in order, and the two ends of the pipeline.

    Parameters
    ----------
    stages : sequence of Stage
    inputs : callable
        ``(t, j) -> (rows, ...)``: micro-batch j of step t.
    loss_gradient : callable
        ``(output, t, j) -> (rows, ...)``: gradient of each row's loss by the output of the last stage.
    """

    stages: Sequence[Stage]
    inputs: Callable[[int, int], Array]
    loss_gradient: Callable[[Array, int, int], Array]


class Activations(NamedTuple):
    """stage k -> stage k + 1: the result of a micro-batch's forward pass."""

    a: Array


class Gradients(NamedTuple):
    """stage k -> stage k - 1: the gradient of those activations."""

    d: Array


def forward(k: int, chain: Chain, x: Array, t: int, j: int) -> Program[tuple[Array, Array | None]]:
    """Micro-batch j of step t through stage k: its input, and at the last stage the loss gradient."""
    a: Array = chain.inputs(t, j) if k == 0 else (yield Recv(Activations, src=f"stage{k - 1}"))[1].a
    out: Array = yield Compute(chain.stages[k].forward, x, a)
    if k == len(chain.stages) - 1:
        return a, chain.loss_gradient(out, t, j)
    yield Send(f"stage{k + 1}", Activations(out))
    return a, None


def backward(k: int, chain: Chain, x: Array, a: Array, d: Array | None) -> Program[Array]:
    """The gradient of stage k's parameters at x and a; d is that of its output, None: from the right."""
    if d is None:
        d = (yield Recv(Gradients, src=f"stage{k + 1}"))[1].d
    g, to_left = yield Compute(chain.stages[k].backward, x, a, d)
    if k:
        yield Send(f"stage{k - 1}", Gradients(to_left))
    return g  # type: ignore[no-any-return]
