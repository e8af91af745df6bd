"""PipeDream: a pipeline of stages that never waits for a batch to finish; each alternates one forward and one
backward pass, and updates after each backward pass.

A batch's backward pass uses the parameters of its forward pass, which are stashed until then::

    stage k, batch b:
        until K - k batches are in flight:  forward the next one; remember its version of x
        d from the right; backward at the stashed version; x = update(x, g)

so that w(t+1) = w(t) - lr grad f(w_0(t-K+1), w_1(t-K+2), ..., w_K-1(t)).  With fewer stages than workers
there are several replicas of the net, and g is the mean over those of stage k.

Quick facts
-----------
synchronous: no | deterministic: yes | centralised: no | roles: n replicas of K stages | messages: one
each way per cut and batch; for n > 1 those of the collective | bytes: twice a cut's activations; for n > 1
a stage of M_k bytes sends 2 (n - 1)/n M_k more | idle: only at both ends for equal stages, if messages
there and back fit into an update | staleness: K - 1 - k at stage k, with vertical sync K - 1 | clock gap: at
most K - 1 | momentum: at each stage | aggregation: mean over replicas, a batch of each is an update | in
flight: K - k

With one stage it is sequential SGD, bit for bit, or with several replicas all-reduce.

What differs from the paper
---------------------------
All stages have as many replicas, which take part in every update; the paper gives slower stages more of them
and deals batches out in turn.  Stages are balanced by the work of their layers, not by a profile; nets are
cut between the layers of their list.

References
----------
Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019
(arXiv:1806.03377), section 3.2: one forward, one backward; section 3.3: weight stashing and vertical sync.
"""

from __future__ import annotations

from typing import Any

from refsgd.algorithms.allreduce.mean import Collective
from refsgd.algorithms.facts import STAGES, declare, replicated
from refsgd.algorithms.pipeline.stages import Divisible, Held, Worker, deploy
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Deployment, Program


def train(me: Worker, batches: int, vertical: bool) -> Program[Held]:
    """One forward, one backward.  Version t is after t updates."""
    k, depth, ahead = me.k, len(me.names), 0
    stash = {0: me.x}  # versions that a batch in flight may need: K - k, with vertical sync K
    flight = dict[int, tuple[int, Any, Any]]()  # batch: version read, its examples, what backward needs
    for b in range(batches):
        while ahead < min(b + depth - k, batches):  # until K - k batches are in flight
            read = max(0, ahead - depth + 1) if vertical else b
            rows, = me.stages[0].micro_batches(me.rank, ahead)
            kept = yield from me.forward(stash[read], rows, ahead, first=True)
            flight[ahead] = read, rows, kept
            ahead += 1
        read, rows, kept = flight.pop(b)
        g = yield from me.backward(stash[read], rows, kept, b, last=True)
        yield from me.update(g, b, read)
        stash = {version: old for version, old in stash.items()
                 if version > b + 1 - depth + (0 if vertical else k)} | {b + 1: me.x}
    return me.held


@declare(STAGES, holds="stashed stages", formula="pipedream", needs=lambda options, workers: {
    **replicated(options, workers),
    **({"vertical": "stages > 1"} if 1 in (workers, options["stages"]) else {})},
         recursion="each stage has gradients of a staleness of its own: only by running it")
def pipedream(problem: Divisible, workers: int, steps: int, sgd: SGD, *, stages: int | None = None,
              cut: str = "balance", vertical: bool = False, collective: Collective = "ring") -> Deployment:
    """Deploy PipeDream: each node has a stage.

    Parameters
    ----------
    vertical : bool
        Vertical sync: all stages use one version for a batch.
    """
    return deploy(problem, workers, sgd, stages, cut, collective, lambda me: train(me, steps, vertical))
