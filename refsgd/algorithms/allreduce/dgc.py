"""Deep gradient compression (DGC): all-reduce SGD in which each peer sends only its largest entries.

Peer i, step t::

    g = gradient at x on its share, times its share of all images
    u = momentum u + g;  r = r + u                          # momentum before entries are chosen
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
This is all-reduce with the codec ``dgc`` and one mask for the whole vector.  The codec also has the paper's
mask for each array, gradient clipping, Nesterov momentum and warm-up of the sparsity (`codecs.DGC`).  k is
exact, by default 1 % where the paper ends at 0.1 %, on smaller nets; the paper estimates a threshold from a
sample.  Each gradient is weighted by its images before it is accumulated: unequal shares add up to the mean
of all images.  Weight decay is part of the gradient, so it is compressed too.

References
----------
Lin, Han, Mao, Wang and Dally, "Deep gradient compression: reducing the communication bandwidth for
distributed training", ICLR 2018 (arXiv:1712.01887), algorithm 4: DGC with momentum SGD; section 3.3: momentum
factor masking.
"""

from __future__ import annotations

from dataclasses import replace

from refsgd.algorithms.allreduce.allreduce import allreduce
from refsgd.algorithms.compression import codec
from refsgd.algorithms.exchange import Exchange, of
from refsgd.algorithms.facts import CHOOSES, SUMMED, declare
from refsgd.algorithms.parts import Objective
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Deployment


@declare(SUMMED, takes=("overlap", "bucket"), codec=lambda options: f"dgc:{options['ratio']}", formula="dgc",
         because={**SUMMED.because, "compress": "it compresses already, by its own option ratio",
                  "feedback": "its residual is part of the algorithm"},
         only_sgd="it applies momentum before it chooses entries", recursion=CHOOSES)
def dgc(problem: Objective, workers: int, steps: int, sgd: SGD, *, ratio: float = 0.01,
        masking: bool = True) -> Deployment:
    """Deploy deep gradient compression, which `refsgd.algorithms.compression` does.

    Parameters
    ----------
    ratio : float
        Share of the entries that is sent, in (0, 1]; the paper's sparsity is 1 - ratio.
    masking : bool
        Clear the velocity of entries that are sent.
    """
    how = codec(f"dgc:{ratio},masking={'on' if masking else 'off'}", sgd=sgd)
    said = of(problem)
    exchange = Exchange(overlap=said.overlap, bucket=said.bucket, codec=how)
    return allreduce(replace(problem, exchange=exchange), workers, steps, sgd)  # type: ignore[type-var]
