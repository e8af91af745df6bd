"""Hogwild!: workers read and add to one shared vector without coordination and without a lock.

The parameters are in memory that all workers share.  With *atomic* additions nothing is lost: the vector is
x_0 plus all added steps.  Otherwise an addition is a read followed by a write, and additions of others
between the two are lost.

Quick facts
-----------
synchronous: no | centralised: shared memory, no server | roles: n workers, one vector in `parts` parts |
messages, bytes: none | staleness: unbounded, mean about n - 1 | clock gap: unbounded | momentum: none |
aggregation: each step is added alone | deterministic: given the order of accesses, if atomic

The trace numbers updates in the order of their last additions (`refsgd.trace.metrics`): a counter in shared
memory would be read and incremented by the same racing accesses.  Unequal batches: each step is added in
full, whatever its gradient's number of examples.

What differs from the paper
---------------------------
Recht et al. touch only the few components of a sparse example; here gradients are dense and a part has many
components, so workers collide far more often.  They assume that the addition of a component is atomic;
`atomic=False` shows the algorithm without this assumption.  Their rate is constant within an epoch and
shrinks from one to the next.
`momentum` is refused: it would need a shared velocity.  The learning rate's schedule runs on the worker's own
t, not on the number of all updates.

References
----------
Recht, Re, Wright, Niu, "Hogwild!: a lock-free approach to parallelizing stochastic gradient descent", NIPS
2011, algorithm 1: sample, read, compute, add component by component.
"""

from __future__ import annotations

import numpy as np

from refsgd.algorithms.facts import ONE_WORKER, Facts, declare, never
from refsgd.algorithms.parts import Objective, names
from refsgd.algorithms.sgd import SGD
from refsgd.effects import Add, Array, Cell, Compute, Deployment, Load, Mark, Node, Program


def worker(rank: int, shared: Cell, problem: Objective, steps: int, sgd: SGD, atomic: bool) -> Program[Cell]:
    """Read, compute, add; returns the shared cell, which holds the parameters at the end of the run."""
    for t in range(steps):
        parts = []
        for p in range(len(shared.cut)):  # line 3: may be torn, since others write meanwhile
            part: Array = yield Load(shared, p)
            parts.append(part)
        x = np.concatenate(parts)
        g: Array = yield Compute(problem.gradient, x, rank, t)
        step = -sgd.rate(t) * (g + np.float32(sgd.weight_decay) * x if sgd.weight_decay else g)
        for p, cut in enumerate(shared.cut):  # line 4
            yield Add(shared, p, step[cut], atomic)
        yield Mark("update", part=0, t=t, x=x + step)
        yield Mark("clock", t=t)
    return shared


@declare(Facts(
    because={"": "it shares memory and sends nothing"}, silent=True, mean_of=ONE_WORKER,
    only_sgd="its workers share only the parameters, and no node keeps the state of a rule",
    lost="what it has not added yet", formula="hogwild", gate=never,
    recursion="a read may mix parts of several versions: only by running it"))
def hogwild(problem: Objective, workers: int, steps: int, sgd: SGD, *, atomic: bool = True,
            parts: int = 8) -> Deployment:
    """Deploy Hogwild!.

    Parameters
    ----------
    sgd : SGD
        Without momentum.
    atomic : bool
        Whether an addition is one indivisible step.
    parts : int
        Number of parts of the vector, at least 1.
    """
    if not 1 <= parts <= 100_000:
        raise ValueError(f"parts {parts}; expected 1 to 100000")
    if sgd.momentum:
        raise ValueError(f"momentum {sgd.momentum}; expected 0: hogwild has no shared velocity")
    shared = Cell(problem.x0, parts)
    ws, _ = names(workers, 1)
    return {w: Node(worker(i, shared, problem, steps, sgd, atomic), cells=[shared], rank=i, survives=True)
            for i, w in enumerate(ws)}
