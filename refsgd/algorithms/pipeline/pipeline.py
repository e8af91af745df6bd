"""Pipelines: a net divided into K stages, one per node, which work on different micro-batches at the same
time.

A stage owns its parameters; activations travel right, gradients of the same size travel left.  With one batch
at a time only one stage works.  GPipe splits a batch into micro-batches and waits for all of them before one
synchronous update.  PipeDream does not wait for a batch to finish: it alternates forward and backward passes,
and updates after each backward pass.  Without the stash the backward pass would use another x than its
forward pass, and the result would not be the gradient of any function.

Quick facts
-----------
synchronous: GPipe only | deterministic: yes | centralised: no | roles: K stages | messages: one each way per
cut and micro-batch (GPipe) or batch | bytes: twice a cut's activations | idle: GPipe (K - 1)/(m + K - 1),
PipeDream only at both ends if messages there and back fit into an update | staleness: GPipe 0, PipeDream K -
1 - k at stage k, with vertical sync K - 1 | momentum: at each stage | aggregation: mean over rows | in
flight: GPipe m, PipeDream K - k

What differs from the papers
----------------------------
Activations are kept, not recomputed; a stage is one node, without replicas; stages are given, not chosen from
a profile.  Both passes are priced as a gradient.

References
----------
Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019
(arXiv:1811.06965), section 2.2: micro-batches and the synchronous update; section 2.3: the bubble.
Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019
(arXiv:1806.03377), section 3.2: one forward, one backward; section 3.3: weight stashing and vertical sync.
"""

from __future__ import annotations

from refsgd.algorithms.pipeline.stages import Chain, Stage, backward, forward
from refsgd.algorithms.sgd import SGD, mean_gradient
from refsgd.effects import Array, Compute, Deployment, Mark, Node, Program

__all__ = ["Chain", "Stage", "gpipe", "pipedream"]


def gpipe_stage(k: int, chain: Chain, steps: int, sgd: SGD, micro: int) -> Program[Array]:
    """Section 2.2: all forward, all backward, one update; returns the stage's parameters."""
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
        yield Mark("update", part=k, version=t, reads=((f"stage{k}", t),), t=t, x=x)
    return x


def pipedream_stage(k: int, chain: Chain, batches: int, sgd: SGD, vertical: bool) -> Program[Array]:
    """One forward, one backward; returns the stage's parameters.  Version t is after t updates."""
    depth, ahead, x = len(chain.stages), 0, chain.stages[k].x0
    v, stash = sgd.start(x), {0: x}  # versions that a batch in flight may need: K - k, with vertical sync K
    flight: dict[int, tuple[int, Array, Array | None]] = {}  # batch: version read, activations
    for b in range(batches):
        while ahead < min(b + depth - k, batches):  # until K - k batches are in flight
            read = max(0, ahead - depth + 1) if vertical else b
            flight[ahead] = (read, *(yield from forward(k, chain, stash[read], ahead, 0)))
            ahead += 1
        read, a, d = flight.pop(b)
        g = yield from backward(k, chain, stash[read], a, d)
        x, v = yield Compute(sgd.step, x, v, g, b, kind="update")
        stash = {version: old for version, old in stash.items()
                 if version > b + 1 - depth + (0 if vertical else k)} | {b + 1: x}
        yield Mark("update", part=k, version=b, reads=((f"stage{k}", read),), t=b, x=x)
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
    return {f"stage{k}": Node(gpipe_stage(k, chain, steps, sgd, micro), rank=k)
            for k in range(len(chain.stages))}


def pipedream(chain: Chain, batches: int, sgd: SGD, *, vertical: bool = False) -> Deployment:
    """Deploy PipeDream: batch b is ``inputs(b, 0)``; with `vertical` sync all stages use one version of it.

    Parameters
    ----------
    chain : Chain
    batches : int
    sgd : SGD
    vertical : bool
    """
    return {f"stage{k}": Node(pipedream_stage(k, chain, batches, sgd, vertical), rank=k)
            for k in range(len(chain.stages))}
