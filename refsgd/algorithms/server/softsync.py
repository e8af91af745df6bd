"""n-softsync: asynchronous SGD whose server averages c gradients before it steps.

Between ASP, where each gradient is a step of its own, and BSP, where all workers wait for a step: nobody waits,
but the server collects c = floor(workers / splitting) gradients, from whomever they come, and takes one step with
their mean.  Fewer, larger, less stale updates.

Worker i::

    g = gradient at x on its share
    push g to the server;  take the model that answers this push

Server, on each push::

    keep g;  once c are kept:  x = update(x, mean of the kept);  version = version + 1;  keep none
    answer with (x, version)

Quick facts
-----------
synchronous: no | centralised: yes | roles: n workers, K servers with a slice each | messages per worker and
iteration: K up, K down | bytes per worker and iteration: M up, M down (M = 4 d) | staleness: unbounded, mean
(n - 1)/c updates | clock gap: unbounded | momentum: at the server | aggregation: mean over the images of c
gradients; a fast worker may give several of them | deterministic: given the order of arrival

splitting = n is ASP.  splitting = 1 is *not* BSP: there is no barrier, a push is answered before the update that
it is part of, so staleness is not 0.

What differs from the paper
---------------------------
The paper's n, as in the name n-softsync, is our `splitting`; its lambda is our number of workers, n elsewhere in this
file.  Its rate, lr / splitting (about the mean staleness), is the caller's choice.  The gradients of one update are
added in worker order.  The last update takes what is left, fewer than c if need be, so every gradient is used once.

References
----------
Gupta, Zhang and Wang, "Model accuracy and runtime tradeoff in distributed deep learning: a systematic study",
ICDM 2016, arXiv:1509.04210: the protocols hardsync and n-softsync.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from refsgd.algorithms.parts import Model, Objective, Push, deploy, worker
from refsgd.algorithms.server import bsp
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, RunEnded, Send


def server(k: int, workers: Sequence[str], x: Array, pushes: int, sgd: SGD, size: int) -> Program[Array]:
    """Step slice k with the mean of `size` gradients at a time, answer each push at once; returns the slice."""
    v, version, kept = sgd.start(x), 0, list[tuple[str, Push]]()
    for left in reversed(range(pushes)):
        w = None
        with suppress(RunEnded):  # raised after a death, when nobody sends any more: the last update takes what is left
            w, push = yield Recv(Push)
            kept.append((w, push))
        last = w is None or not left
        if len(kept) == size or (last and kept):
            kept.sort(key=lambda pair: workers.index(pair[0]))
            x, v = yield Compute(bsp.update, sgd, x, v, [push for _, push in kept], version, "mean", kind="update")
            yield Mark("update", part=k, version=version, reads=tuple((w, push.version) for w, push in kept), x=x)
            version, kept = version + 1, []
        if w is None:
            break
        yield Send(w, Model(x, version))
    return x


def gradients_per_update(workers: int, splitting: int | None) -> int:
    """c = floor(workers / splitting), by default 1; raises ValueError where that is no number of gradients."""
    splitting = workers if splitting is None else splitting
    if not 1 <= splitting <= workers:
        raise ValueError(f"splitting {splitting} with {workers} workers; expected 1 to {workers}")
    return workers // splitting


def softsync(problem: Objective, workers: int, steps: int, sgd: SGD, servers: int = 1, rotated: bool = False, *,
             splitting: int = 1) -> Deployment:
    """Deploy n-softsync.

    Parameters
    ----------
    problem : Objective
    workers, servers : int
        The number of learners and K, at least 1.
    steps : int
        Iterations of each worker, >= 0.
    sgd : SGD
    rotated : bool
        Worker i begins with server i: where every worker's node has a server.
    splitting : int
        From 1 (a step for every `workers` gradients) to `workers` (a step for each gradient: ASP).
    """
    return deploy(problem, workers, servers, sgd,
                  lambda rank, servers: worker(rank, servers, problem, steps, rotated),
                  lambda shard, workers: server(shard.part, workers, shard.x, steps * len(workers), sgd,
                                                gradients_per_update(len(workers), splitting)))
