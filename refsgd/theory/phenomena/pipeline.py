"""Pipelines of stages: the bubble, their idle share.

References
----------
Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", NeurIPS 2019.
Narayanan et al., "PipeDream: generalized pipeline parallelism for DNN training", SOSP 2019: partition by
dynamic programming.
"""

from __future__ import annotations

from refsgd.theory.estimate import check_count
from refsgd.theory.prediction import Prediction


def bubble(micro_batches: int, stages: int) -> Prediction:
    """Idle share of k equal stages with m micro-batches: (k-1)/(m+k-1), exact.

    A stage works in m of the m + k - 1 slots from filling the pipeline to draining it.

    >>> bubble(4, 4).value
    0.42857142857142855
    """
    m, k = check_count("micro-batches", micro_batches), check_count("stages", stages)
    return Prediction((k - 1) / (m + k - 1), "1", "exact", {"filling and draining": (k - 1) / (m + k - 1)},
                      "(k-1)/(m+k-1)", "Huang et al. 2019, section 2.3", "equal stages; no time to hand over")
