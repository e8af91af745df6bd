"""Pipelines: a net cut into K stages, one per node, which work on different micro-batches at the same time.

A stage owns its parameters; activations go right, gradients of the same size go left. With one batch at a time only one stage works. GPipe cuts a batch into
micro-batches and waits for all of them before one synchronous update. PipeDream waits for no batch: it alternates forward and backward, and updates after each.

GPipe, stage k, each step::

    for each micro-batch j:            a_j from the left;  forward(x, a_j) to the right
    for each micro-batch, last first:  d from the right;  g_j, d' = backward(x, a_j, d);  d' to the left
    x = update(x, mean of g_j)

PipeDream, stage k, for each batch b::

    until K - k batches are in flight:  forward the next one with the newest x, and stash that x
    d from the right;  g, d' = backward(the x stashed for b, a_b, d);  d' to the left;  x = update(x, g)

Without the stash the backward pass uses an x that its forward pass has not seen: the gradient of no function.

Quick facts
-----------
synchronous: GPipe only | deterministic: yes | centralised: no | roles: K stages | messages: one each way per cut and micro-batch (GPipe) or batch | bytes:
twice a cut's activations | idle: GPipe (K - 1)/(m + K - 1), PipeDream only at both ends if messages there and back fit into an update | staleness: GPipe 0,
PipeDream K - 1 - k at stage k, with vertical sync K - 1 | momentum: at each stage | aggregation: mean over rows | in flight: GPipe m, PipeDream K - k

What differs from the papers
----------------------------
Activations are kept, not computed again; a stage is one node, without replicas; stages are given, not cut by a profile.  Both passes are priced as a gradient.

References
----------
Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019
(arXiv:1811.06965), section 2.2: micro-batches and the synchronous update; section 2.3: the bubble.
Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019 (arXiv:1806.03377), section
3.2: one forward, one backward; section 3.3: weight stashing and vertical sync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from refsgd.algorithms.sgd import SGD, mean_gradient
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program, Recv, Send


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
    """Stages in order, and the two ends of the pipe.

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
    """stage k -> stage k + 1: what the forward pass of a micro-batch gave."""

    a: Array


class Gradients(NamedTuple):
    """stage k -> stage k - 1: the gradient of those activations."""

    d: Array


def forward(k: int, chain: Chain, x: Array, t: int, j: int) -> Program[tuple[Array, Array | None]]:
    """Micro-batch j of step t through stage k: what came in, and (last stage) the loss gradient of what came out."""
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


def gpipe_stage(k: int, chain: Chain, steps: int, sgd: SGD, micro: int) -> Program[Array]:
    """All forward, all backward, one update; returns the stage's parameters."""
    x = chain.stages[k].x0
    v = sgd.start(x)
    for t in range(steps):
        kept, gradients = [], dict[int, Array]()
        for j in range(micro):
            kept.append((yield from forward(k, chain, x, t, j)))
        for j in reversed(range(micro)):
            gradients[j] = yield from backward(k, chain, x, *kept[j])
        g = mean_gradient([gradients[j] for j in range(micro)], [len(a) for a, _ in kept])
        x, v = yield Compute(sgd.step, x, v, g, t, kind="update")
        yield Mark("update", slice=k, version=t, reads=((f"stage{k}", t),), t=t, x=x)
    return x


def pipedream_stage(k: int, chain: Chain, batches: int, sgd: SGD, vertical: bool) -> Program[Array]:
    """One forward, one backward; returns the stage's parameters.  Version t is after t updates."""
    depth, ahead = len(chain.stages), 0
    x = chain.stages[k].x0
    v, stash = sgd.start(x), {0: x}  # versions that a batch in flight may need: K - k, with vertical sync K
    flight: dict[int, tuple[int, Array, Array | None]] = {}  # batch -> version of its forward pass, what to keep
    for b in range(batches):
        while ahead < min(b + depth - k, batches):
            read = max(0, ahead - depth + 1) if vertical else b
            flight[ahead] = (read, *(yield from forward(k, chain, stash[read], ahead, 0)))
            ahead += 1
        read, a, d = flight.pop(b)
        g = yield from backward(k, chain, stash[read], a, d)
        x, v = yield Compute(sgd.step, x, v, g, b, kind="update")
        stash = {version: old for version, old in stash.items() if version > b + 1 - depth + (0 if vertical else k)} | {b + 1: x}
        yield Mark("update", slice=k, version=b, reads=((f"stage{k}", read),), t=b, x=x)
    return x


def gpipe(chain: Chain, steps: int, sgd: SGD, *, micro: int = 4) -> Deployment:
    """Deploy GPipe: `steps` batches of `micro` >= 1 micro-batches each.

    Parameters
    ----------
    chain : Chain
    steps, micro : int
    sgd : SGD
    """
    if micro < 1:
        raise ValueError(f"micro {micro}; expected at least 1 micro-batch")
    return {f"stage{k}": Node(gpipe_stage(k, chain, steps, sgd, micro)) for k in range(len(chain.stages))}


def pipedream(chain: Chain, batches: int, sgd: SGD, *, vertical: bool = False) -> Deployment:
    """Deploy PipeDream; with `vertical` sync all stages use one version for a batch.  Batch b is ``inputs(b, 0)``.

    Parameters
    ----------
    chain : Chain
    batches : int
    sgd : SGD
    vertical : bool
    """
    return {f"stage{k}": Node(pipedream_stage(k, chain, batches, sgd, vertical)) for k in range(len(chain.stages))}
