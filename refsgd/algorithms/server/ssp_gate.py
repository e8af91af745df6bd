"""The server of SSP that answers a push at its gate: with its newest model, once the bound allows it.

It is the form `fresh` of `ssp`, with the worker of BSP and ASP.  With a slack of 0 it waits as BSP does, with
an infinite one it never waits, as ASP.  CONSGD runs this server; DSSP's moves the bound.

References
----------
Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013,
section 2: the bound.  Their workers read through a cache, see `ssp`.
"""

from __future__ import annotations

from collections.abc import Sequence

from refsgd.algorithms.parts import Model, Push, Shard
from refsgd.effects import Array, Died, Mark, Program, Recv, Send


def server(shard: Shard, workers: Sequence[str], steps: int, staleness: float) -> Program[Array]:
    """Answer a worker once it is at most `staleness` clocks ahead of the slowest; returns its part."""
    clock, waiting = dict.fromkeys(workers, 0), set()  # gradients received from each living worker
    while min(clock.values(), default=steps) < steps:
        w, message = yield Recv(Push, Died)
        if isinstance(message, Died):
            clock.pop(w, None)  # the others wait for it no more
        else:
            yield from shard.apply(w, message)
            clock[w] += 1
            waiting.add(w)
        slowest = min(clock.values(), default=steps)
        if clock.get(w, 0) > slowest + staleness:
            yield Mark("block", worker=w)
        ready = [w for w in clock if w in waiting and clock[w] <= slowest + staleness]
        for w in ready:
            waiting.remove(w)
            yield Send(w, Model(shard.x, shard.version))
    return shard.x


def check(slack: float, name: str = "staleness") -> None:
    """Refuse what is no slack with a ValueError."""
    if not slack >= 0 or slack % 1 > 0:  # inf % 1 is NaN
        raise ValueError(f"{name} {slack}; expected a whole number of clocks >= 0, or inf")
