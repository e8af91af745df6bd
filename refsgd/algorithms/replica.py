"""What the programs without servers share: the names of the peers, and a replica with its update."""

from __future__ import annotations

from dataclasses import dataclass

from refsgd.algorithms.sgd import SGD
from refsgd.effects import Array, Compute, Mark, Program


def peers(workers: int) -> list[str]:
    """Names of the nodes, by rank; raises ValueError where there is none.

    >>> peers(2)
    ['peer0', 'peer1']
    """
    if workers < 1:
        raise ValueError(f"workers {workers}; expected at least 1")
    return [f"peer{rank}" for rank in range(workers)]


@dataclass
class Replica:
    """One peer's copy of the parameters, which its programs share, with the state of the update rule."""

    rank: int
    x: Array  # (d,)
    sgd: SGD

    def __post_init__(self) -> None:
        self.v = self.sgd.start(self.x)  #: velocity, which never travels

    def step(self, g: Array, t: int) -> Program[None]:
        """x <- update(x, g), which takes the time of an update; g is the gradient of iteration t."""
        self.x, self.v = yield Compute(self.sgd.step, self.x, self.v, g, t, kind="update")

    def mark(self, t: int, x: Array) -> Program[None]:
        """Tell observers of update t, which has made the model x; its gradient read the model before it."""
        yield Mark("update", part=0, version=t, reads=((f"peer{self.rank}", t),), t=t, x=x)

    def apply(self, g: Array, t: int) -> Program[None]:
        """Update x and tell observers."""
        yield from self.step(g, t)
        yield from self.mark(t, self.x)
