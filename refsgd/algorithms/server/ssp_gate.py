"""The server of SSP's variant `fresh`: answer a push with the newest model once the bound allows it.

Its workers are those of BSP and ASP; those of Ho et al. read through a cache, see `ssp`.  With a slack of 0
they wait as in BSP, with an infinite slack they never wait, as in ASP.  CONSGD runs this server; that of DSSP
moves the bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from refsgd.algorithms.parts import Model, Push, Shard
from refsgd.effects import Array, Died, Mark, Program, Send


def server(shard: Shard, workers: Sequence[str], steps: int, staleness: float) -> Program[Array]:
    """Answer a worker once it is at most `staleness` clocks ahead of the slowest; returns its part."""
    clock, waiting = dict.fromkeys(workers, 0), set()  # gradients received from each living worker
    while min(clock.values(), default=steps) < steps:
        w, message = yield from shard.recv(Push, Died)
        if isinstance(message, Died):
            clock.pop(w, None)  # the others no longer wait for it
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
    """Raise ValueError if `slack` is not a valid slack."""
    if not slack >= 0 or slack % 1 > 0:  # inf % 1 is NaN
        raise ValueError(f"{name} {slack}; expected a whole number of clocks >= 0, or inf")
