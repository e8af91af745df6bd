"""GPipe: a net divided into K stages, one per node, which work on different micro-batches of a batch at the
same time, and update together.

A stage owns its parameters; activations travel right, gradients of the same size travel left.  With one batch
at a time only one stage works: that is plain model parallelism, ``micro=1``.  GPipe splits a batch into m
micro-batches and waits for all of them before one synchronous update::

    each step, stage k:
        for each micro-batch:              a from the left; forward(x, a) to the right
        for each micro-batch, last first:  d from the right; its gradient by a to the left; g += that by x
        x = update(x, g)

Quick facts
-----------
synchronous: yes | deterministic: yes | centralised: no | roles: K stages | messages: one each way per cut and
micro-batch | bytes: twice a cut's activations | idle: (K - 1)/(m + K - 1) for equal stages | staleness: 0 |
clock gap: 0 | momentum: at each stage | aggregation: sum over micro-batches of their parts of the mean |
in flight: m

With any K and m it takes the steps of sequential SGD with the same batch, to float32 rounding; batch norm and
dropout see each micro-batch by itself.

What differs from the paper
---------------------------
Activations are kept, not recomputed.  Nets are cut between the layers of their list, so that a residual block
or an Inception module is in one stage.

References
----------
Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019
(arXiv:1811.06965), section 2.2: micro-batches and the synchronous update; section 2.3: the bubble.
"""

from __future__ import annotations

from refsgd.algorithms.pipeline.stages import Divisible, Held, Worker, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Deployment, Program


def train(me: Worker, steps: int, micro: int) -> Program[Held]:
    """Section 2.2: all forward, all backward, one update."""
    for t in range(steps):
        parts, kept, total = me.stage.micro_batches(0, t, micro), [], list[Array]()
        for j, rows in enumerate(parts):
            kept.append((yield from me.forward(me.x, rows, j)))
        for j in reversed(range(len(parts))):
            g = yield from me.backward(me.x, parts[j], kept.pop(), j)
            total = [total[0] + g if total else g]
        yield from me.update(total[0], t, read=t)
    return me.held


def gpipe(problem: Divisible, workers: int, steps: int, sgd: SGD, *, stages: int | None = None,
          micro: int = 4, cut: str = "balance") -> Deployment:
    """Deploy GPipe: each node has a stage.

    Parameters
    ----------
    problem, workers, sgd, stages, cut
        As for `refsgd.algorithms.pipeline.stages.deploy`.
    steps : int
        Batches.
    micro : int
        Most micro-batches of a batch; none is empty.  1: plain model parallelism.
    """
    if micro < 1:
        raise ValueError(f"micro {micro}; expected at least 1 micro-batch")
    return deploy(problem, workers, sgd, stages, cut, lambda me: train(me, steps, micro))
