"""Deep gradient compression (DGC): all-reduce SGD in which each peer sends only its largest entries.

Most entries of a gradient are small.  A peer sends a hundredth of its entries and keeps the rest in a
residual until they have grown.  Momentum is applied *before* entries are chosen, so a late entry arrives with
the momentum that it would have had.

Peer i, step t::

    g = gradient at x on its share, times its share of all images
    u = momentum u + g;  r = r + u
    send (value, index) of the k largest |r| to all others;  r = 0 there, and with masking u = 0 there
    x = x - lr * (sum of what all peers sent)               # no further momentum

Quick facts
-----------
synchronous: yes | centralised: no | roles: n peers | messages per peer and iteration: n - 1 each way | bytes
per peer and iteration: 8 k (n - 1) each way, k = ceil(ratio d); fewer than a ring's 8 d (n - 1)/n only while
ratio < 1/n | staleness: gradients 0, entries as long as they wait in a residual | clock gap: 0 while
computing | momentum: at each peer, before compression | aggregation: mean over images | graph: complete |
deterministic: yes, whatever the schedule

All replicas are identical.  ratio = 1 without masking is all-reduce SGD with momentum; with masking it is SGD
without momentum, since every entry of u is cleared in every step.

What differs from the paper
---------------------------
One vector instead of a mask per tensor; an exact k, by default of 1 % where the paper ends at 0.1 %, on
smaller nets; no clipping, no warm-up of the sparsity, no Nesterov momentum.  Each gradient is weighed by its
images before it is accumulated, so unequal shares add up to the mean of all images.  Weight decay is part of
the gradient, so it is compressed too.  Choosing the k largest takes no virtual time here; the paper
estimates their threshold from a sample, because an exact choice is slow.

References
----------
Lin, Han, Mao, Wang and Dally, "Deep gradient compression: reducing the communication bandwidth for
distributed training", ICLR 2018 (arXiv:1712.01887), algorithm 4: DGC with momentum SGD; section 3.3: momentum
factor masking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from refsgd.algorithms.compression import Residual, Sparse, deep_gradient, sum_of_sparse
from refsgd.algorithms.parts import Objective, rotate
from refsgd.algorithms.replica import Replica, deploy
from refsgd.algorithms.sgd import SGD, weights
from refsgd.effects import Array, Compute, Deployment, Mark, Program, Recv, Send


def all_gather(rank: int, group: Sequence[str], mine: Sparse) -> Program[list[Sparse]]:
    """Every peer's entries, in rank order; each sends to its right neighbour first, to share the links."""
    for to in rotate(group, rank + 1)[:-1]:
        yield Send(to, mine)
    messages = [mine] * len(group)
    for i, src in enumerate(group):
        if i != rank:
            _, messages[i] = yield Recv(Sparse, src=src)
    return messages


def peer(replica: Replica, group: Sequence[str], problem: Objective, steps: int, sgd: SGD, ratio: float,
         masking: bool) -> Program[Array]:
    """Gradient, compress, gather, update; returns the parameters, (d,), the same on every peer."""
    rank, state = replica.rank, Residual(np.zeros_like(replica.x), np.zeros_like(replica.x))
    for t in range(steps):
        g: Array = yield Compute(problem.gradient, replica.x, rank, t)
        share, whole = weights([problem.images(i, t) for i in range(len(group))])
        g = (g + np.float32(sgd.weight_decay) * replica.x) * np.float32(share[rank]) / np.float32(whole)
        sent, state = deep_gradient(state, g, sgd.momentum, ratio, masking)
        messages = yield from all_gather(rank, group, sent)
        yield from replica.apply(sum_of_sparse(messages, replica.x), t)
        yield Mark("clock", t=t)
    return replica.x


def dgc(problem: Objective, workers: int, steps: int, sgd: SGD, *, ratio: float = 0.01,
        masking: bool = True) -> Deployment:
    """Deploy deep gradient compression.

    Parameters
    ----------
    problem, workers, steps, sgd
        As for `refsgd.algorithms.parts.deploy`.
    ratio : float
        Share of the entries that is sent, in (0, 1]; the paper's sparsity is 1 - ratio.
    masking : bool
        Clear the velocity of entries that are sent.

    See Also
    --------
    refsgd.algorithms.compression : the compression of a gradient.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio {ratio}; expected a share of the entries in (0, 1]")
    plain = replace(sgd, momentum=0.0, weight_decay=0.0)  # both act before compression
    return deploy(problem, workers, plain,
                  lambda replica, group: peer(replica, group, problem, steps, sgd, ratio, masking))
