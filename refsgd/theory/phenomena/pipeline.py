"""Pipelines of stages: what they compute and send, and the bubble of equal ones."""

from __future__ import annotations

from typing import NamedTuple

from refsgd.theory.estimate import check_count
from refsgd.theory.prediction import Prediction


class Pipeline(NamedTuple):
    """Shares of a gradient's time by stage; bytes that cross each cut, for one example or, unless `by_row`,
    for any number; examples of each batch of an epoch, by replica; bytes of each stage's parameters; stages
    on each node.

    Node k * replicas + r has the stages k, depth + k, ... of replica r.
    """

    shares: tuple[float, ...]
    crossing: tuple[float, ...]
    by_row: bool
    examples: tuple[tuple[int, ...], ...]
    held: tuple[int, ...] = ()
    chunks: int = 1

    @property
    def depth(self) -> int:
        """Nodes of a replica."""
        return len(self.shares) // self.chunks

    def share(self, k: int) -> float:
        """Node k's share of a gradient's time."""
        return sum(self.shares[k::self.depth])

    @property
    def replicas(self) -> int:
        """How many pipelines run side by side."""
        return len(self.examples)

    def sent(self, steps: int, micro: int = 1) -> float:
        """Bytes of all activations, and as many of gradients back."""
        counts = [batches[t % len(batches)] for batches in self.examples for t in range(steps)]
        units = counts if self.by_row else [max(1, min(micro, count)) for count in counts]
        return 2 * sum(self.crossing) * sum(units)


def bubble(micro_batches: int, stages: int, chunks: int = 1) -> Prediction:
    """Idle share of k nodes with v equal chunks each and m micro-batches, exact: a node works in v m of the
    v m + k - 1 slots from filling the pipeline to draining it.

    >>> bubble(4, 4).value
    0.42857142857142855
    """
    m, k = check_count("micro-batches", micro_batches), check_count("stages", stages)
    share = (k - 1) / (check_count("chunks", chunks) * m + k - 1)
    return Prediction(share, "1", "exact", {"filling and draining": share}, "(k-1)/(v m+k-1)",
                      "Huang et al. 2019, section 2.3; Narayanan et al. 2021, section 2.2",
                      "equal stages; no time to hand over; with v > 1, m a multiple of k")
