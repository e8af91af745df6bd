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

    def parts(self, r: int, t: int, micro: int = 1) -> list[tuple[float, int]]:
        """The micro-batches of replica r's batch t: their share of it, their size in units of `crossing`."""
        count = self.examples[r][t % len(self.examples[r])]
        m = max(1, min(micro, count))
        sizes = [count * (j + 1) // m - count * j // m for j in range(m)]
        return [(size / count if count else 1.0, size if self.by_row else 1) for size in sizes]

    def sent(self, steps: int, micro: int = 1) -> float:
        """Bytes of all activations, and as many of gradients back."""
        return 2 * sum(self.crossing) * sum(size for r in range(self.replicas) for t in range(steps)
                                            for _, size in self.parts(r, t, micro))


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
