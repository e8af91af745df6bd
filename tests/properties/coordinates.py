"""A coordinate for each gradient: parameters then say which gradients they contain, and at which rate
each was applied."""

from __future__ import annotations

import numpy as np

from refsgd.algorithms.facts import facts_of
from refsgd.algorithms.sgd import SGD, StepDecay
from refsgd.cluster.machine import Machine
from refsgd.problems import Problem
from refsgd.runtimes.simulator import Faulty
from tests.catalogue import having

UNEQUAL = Machine(compute="exponential(1)", latency=0.1, update="exponential(0.2)", speeds=(1, 0.5, 2))
FREE = Machine(compute="exponential(1)", speeds=(1, 0.5, 2))


#: names its argument: 1, 1/2, 1/4, ...; each coordinate has one addition, so that no bit is lost
HALVING = StepDecay(1, 0.5)

BY_HALVES = SGD(1.0, schedule=HALVING)


def rank_of(node):
    """Rank of ``worker2`` or ``peer2``."""
    return int(node.removeprefix("worker").removeprefix("peer"))


#: Their workers share each gradient, and each holds a part of the parameters: `tests.papers.test_pipeline` holds
#: them to the same.
STAGED = having(lambda facts: facts.staged)
#: Their workers hold a part of the parameters each: `tests.papers.test_zero` compares their updates, bit for bit,
#: with those of all-reduce SGD, which is held to the same.
SHARDED = having(lambda facts: facts.holds == "shards")
#: L-BFGS computes each portion of the data again in every step: `tests.papers.test_sandblaster`.
AGAIN = having(lambda facts: facts.portions)


class Marked:
    """A run of `steps` iterations whose gradient (rank, t) is 1 + k at its own coordinate of part k of
    `slices` equal ones, else 0.

    Attributes
    ----------
    read : dict
        (rank, t) -> (x, number of events before), where the gradient was computed.
    """

    def __init__(self, deploy, workers=3, steps=4, slices=1, machine=UNEQUAL, seed=0, faults=(),
                 sgd=BY_HALVES, **options):
        self.workers, self.steps, self.slices, self.read = workers, steps, slices, {}
        self.size = workers * steps
        centers = deploy.__name__ == "approximate"  # where a slice is what a data centre answers for
        servers = {"servers": slices} if facts_of(deploy).served and not centers else {}
        problem = Problem(np.zeros(slices * self.size, np.float32), self._gradient, lambda x: 0.0,
                          images=self.images)
        self.world = Faulty(deploy(problem, workers, steps, sgd, **servers, **options), machine, seed, 1000,
                            faults, "continue")
        self.run = self.world.run()
        self.trace = self.run.trace

    def _gradient(self, x, rank, t):
        assert (rank, t) not in self.read, "computed once"
        self.read[rank, t] = x, len(self.world.events)
        g = np.zeros((self.slices, self.size), np.float32)
        g[:, self.place(rank, t)] = 1 + np.arange(self.slices)
        return g.ravel()

    def images(self, rank, t):
        """Shares are unequal, so that a mean is one over images, each weighted with its own."""
        return 1 + (3 * rank + 2 * t) % 5

    def place(self, rank, t):
        """The coordinate of a gradient, in the order of computing: some workers may compute more of them."""
        return list(self.read).index((rank, t))

    def contents(self, part):
        """The gradients in one part of the parameters."""
        computed = list(self.read)
        return {computed[i] for i in np.flatnonzero(part)}

    def part(self, x, k):
        """Slice k of whole parameters."""
        return x[k * self.size:(k + 1) * self.size]

    def updates(self, k=0):
        """For every update of slice k its mark and the gradients that came with it."""
        known, found = set(), []
        for mark in self.trace.marks("update"):
            if mark.values["part"] == k:
                now = self.contents(mark.values["x"])
                found.append((mark, now - known))
                known |= now
        return found
