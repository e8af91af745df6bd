"""GPipe: a net divided into K stages, one per node, which work on different micro-batches of a batch at the
same time, and update together.

With ``micro=1`` only one stage works at a time: plain model parallelism.  GPipe splits a batch into m
micro-batches and waits for all of them before one synchronous update::

    each step, stage k:
        for each micro-batch:              a from the left; forward(x, a) to the right
        for each micro-batch, last first:  d from the right; its gradient by a to the left; g += that by x
        g = mean over the replicas of stage k
        x = update(x, g)

With ``passes="1f1b"`` (PipeDream-flush) a stage starts each backward pass as soon as it can, the first
micro-batch first.  With ``chunks=v`` node k has v stages, k, K + k, ...: v K - 1 cuts in place of K - 1.
With fewer stages than workers there are several replicas of the net: data and model parallelism together.

Quick facts
-----------
synchronous: yes | deterministic: yes | centralised: no | roles: n replicas of K stages | messages: one each
way per cut and micro-batch; for n > 1 those of the collective | bytes: twice a cut's activations; for n > 1 a
stage of M_k bytes sends 2 (n - 1)/n M_k more | idle: (K - 1)/(v m + K - 1) for equal stages | staleness: 0 |
clock gap: 0 | momentum: at each stage | aggregation: sum over micro-batches of their parts of the mean, then
mean over the images of all replicas | in flight: m; K - k with 1f1b

With any n, K and m it takes the steps of sequential SGD with the batches of all replicas together, to float32
rounding; batch norm sees each micro-batch by itself.  With K = m = 1 it has the bits of all-reduce.
1f1b adds gradients in another order than fill-drain: for m > 2 the bits differ.

What differs from the papers
----------------------------
Activations are kept, not recomputed.  Nets are cut between the layers of their list, so that a residual
block or an Inception module is in one stage.  With chunks, m need not be a multiple of K: micro-batches pass
through the chunks in groups of K or a few more.

References
----------
Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019
(arXiv:1811.06965), section 2.2: micro-batches and the synchronous update; section 2.3: the bubble.
Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC 2021
(arXiv:2104.04473), section 2.2: 1F1B with flushes, and interleaved stages.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from refsgd.algorithms.allreduce.mean import Collective
from refsgd.algorithms.facts import STAGES, declare, one_of, replicated
from refsgd.algorithms.pipeline.stages import Divisible, Held, Worker, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Program

Passes = Literal["fill-drain", "1f1b"]


def ordered(passes: Passes, m: int, k: int, depth: int, chunks: int) -> list[tuple[bool, int, int]]:
    """The passes of node k in order: whether it is a forward pass, its chunk, its micro-batch.

    >>> [("FB"[not forward], j) for forward, _, j in ordered("1f1b", 3, 0, 2, 1)]
    [('F', 0), ('F', 1), ('B', 0), ('F', 2), ('B', 1), ('B', 2)]
    """
    many = max(1, m // depth)  # groups that go through one chunk after the other
    groups = [range(m * i // many, m * (i + 1) // many) for i in range(many)]
    there = [(chunk, j) for group in groups for chunk in range(chunks) for j in group]
    if passes == "fill-drain":
        back, ahead = there[::-1], len(there)
    else:
        back = [(chunks - 1 - chunk, j) for chunk, j in there]
        ahead = depth - k if chunks == 1 else 2 * (depth - k) - 1 + (chunks - 1) * len(groups[-1])
    order, begun = list[tuple[bool, int, int]](), 0
    for done, (chunk, j) in enumerate(back):
        most = max(begun, min(done + ahead, len(there)))  # until this many are in flight
        order += [*((True, *forward) for forward in there[begun:most]), (False, chunk, j)]
        begun = most
    return order


def gradient(me: Worker, x: Array, t: int, micro: int, passes: Passes) -> Program[Array]:
    """Section 2.2: the passes of all micro-batches of a batch through a node's stages; their gradient."""
    chunks, parts = len(me.stages), me.stages[0].micro_batches(me.rank, t, micro)
    order = ordered(passes, len(parts), me.k, len(me.names), chunks)
    kept, total = dict[tuple[int, int], Any](), dict[int, Array]()
    for i, (forward, chunk, j) in enumerate(order):
        if forward:
            kept[chunk, j] = yield from me.forward(x, parts[j], j, chunk, first=i == 0)
        else:
            g = yield from me.backward(x, parts[j], kept.pop((chunk, j)), j, chunk, last=i == len(order) - 1)
            total[chunk] = total[chunk] + g if chunk in total else g
    return total[0] if chunks == 1 else np.concatenate([total[chunk] for chunk in range(chunks)])


def train(me: Worker, steps: int, micro: int, passes: Passes) -> Program[Held]:
    """A gradient of the whole batch, one update."""
    for t in range(steps):
        g = yield from gradient(me, me.x, t, micro, passes)
        yield from me.update(g, t, read=t)
    return me.held


@declare(STAGES, formula="gpipe", recursion="mean", needs=lambda options, workers: {
    **replicated(options, workers), **({"passes": "micro > 1"} if options["micro"] == 1 else {})})
def gpipe(problem: Divisible, workers: int, steps: int, sgd: SGD, *, stages: int | None = None,
          micro: int = 4, cut: str = "balance", passes: Passes = "fill-drain", chunks: int = 1,
          collective: Collective = "ring") -> Deployment:
    """Deploy GPipe: each node has a stage, or several.

    Parameters
    ----------
    micro : int
        Most micro-batches of a batch; none is empty.  1: plain model parallelism.
    passes : {"fill-drain", "1f1b"}
        The order of a node's passes.
    chunks : int
        v: stages on each node.
    """
    if micro < 1:
        raise ValueError(f"micro {micro}; expected at least 1 micro-batch")
    one_of("passes", passes, Passes)
    if chunks < 1 or (chunks > 1 and 1 in (workers, stages)):
        raise ValueError(f"chunks {chunks} with {workers if stages is None else stages} stages; expected at "
                         "least 1, and no more than 1 unless several nodes take turns")
    return deploy(problem, workers, sgd, stages, cut, collective,
                  lambda me: train(me, steps, micro, passes), chunks)
