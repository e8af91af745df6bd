"""Gaia between data centres, for `approximate`: significance filter, selective barrier and mirror clock.

A server and those of the same part in other data centres are mirrors of each other (Hsieh et al., section
3.2).  Each gathers its own centre's changes and sends the others those that have become significant::

    significance filter   share entry j of the unsent changes u once |u_j| > v / sqrt(t) |x_j|, in iteration t
    selective barrier     where the link to a mirror is behind, the indexes go ahead of the values; until the
                          values come, its workers do not read
    mirror clock          each change carries the clock of its centre, which the gate of `approximate` bounds

Programs read no clock to measure a link with: a link is behind while more than `window` updates to that
mirror are unacknowledged. Later ones wait in the data queue and leave as acknowledgements come, so that no
more are ever in flight, while their indexes overtake the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from refsgd.algorithms.codecs import kept
from refsgd.algorithms.parts import Push, Reads, Shard, of_pushes
from refsgd.algorithms.server import bsp
from refsgd.effects import Array, Compute, Mark, Program, Send

Entries = npt.NDArray[np.int32]


class Significant(NamedTuple):
    """server -> mirror: changes to add to these entries, after an update by the sender's own workers."""

    entries: Entries
    change: Array  # as many as `entries`
    reads: Reads  # of the gradients behind them
    images: int  # of these gradients
    clock: int  # iterations that all workers of the sender's centre have completed
    announced: bool  # whether a barrier has gone ahead


class Barrier(NamedTuple):
    """server -> mirror: do not read these entries until their changes have come."""

    entries: Entries
    clock: int


class Taken(NamedTuple):
    """server -> mirror: one more of your changes has come."""


def significant(x: Array, unsent: Array, limit: float, share: float | None = None) -> tuple[Entries, Array]:
    """Which entries of `unsent` exceed `limit` times the parameter; the rest, with zeros in their place.

    With a `share` they are that share of the entries, those that have changed most; in a shape-only net the
    values are unknown.  A `limit` of 0 is for all.

    >>> significant(np.ones(3), np.array([0.5, 0.01, -0.2]), 0.1)
    (array([0, 2], dtype=int32), array([0.  , 0.01, 0.  ]))
    """
    if share is None:
        bound = np.minimum(np.float32(limit) * np.abs(x), np.finfo(np.float32).max)
        found = np.flatnonzero(~(np.abs(unsent) <= bound)).astype(np.int32)  # NaN and infinity as well
    else:
        # the largest last, and NaN after it; of equal ones the lowest index
        order = unsent.size - 1 - np.argsort(np.abs(unsent[::-1]), kind="stable")
        found = np.sort(order[::-1][: kept(unsent.size, share if limit else 1.0)]).astype(np.int32)
    rest = unsent.copy()
    rest[found] = 0
    return found, rest


def add(x: Array, entries: Entries, change: Array) -> Array:
    """The copy with another centre's changes."""
    x = x.copy()
    x[entries] += change
    return x


@dataclass
class Mirror:
    """The server of the same part in another data centre, as a server sees it."""

    name: str
    window: float  #: updates to it without acknowledgement that are no sign of a slow link; inf: any number
    steps: int  #: iterations of every worker: the update that ends the last one is not acknowledged
    clock: int = 0  #: of its centre, as it has told
    awaited: int = 0  #: of its barriers, those whose changes have not come
    under_way: int = 0  #: updates to it that it has not acknowledged
    queue: deque[Significant] = field(default_factory=deque)  #: updates to it that have not left

    def show(self, update: Significant) -> Program[None]:
        """Send an update, or its indexes ahead of it; without entries it is only a clock, and never waits."""
        if not update.entries.size:
            yield Send(self.name, update)
        elif self.under_way > self.window:
            yield Send(self.name, Barrier(update.entries, update.clock))
            self.queue.append(update._replace(announced=True))
        else:
            yield from self.send(update)

    def send(self, update: Significant) -> Program[None]:
        """Send changes, which the mirror will acknowledge."""
        self.under_way += self.acknowledged(update)
        yield Send(self.name, update)

    def heard(self, copy: Copy, message: Significant | Barrier | Taken) -> Program[None]:
        """Handle a message of this mirror: a clock, changes for the copy, a barrier, or room in its link."""
        if isinstance(message, Taken):
            self.under_way -= 1
            if self.queue:
                yield from self.send(self.queue.popleft())
            return
        self.clock = max(self.clock, message.clock)  # an announced update is older than its barrier
        if isinstance(message, Barrier):
            self.awaited += 1
            return
        if message.entries.size:
            copy.x = yield Compute(add, copy.x, message.entries, message.change, kind="update")
            self.awaited -= message.announced
            if self.acknowledged(message):
                yield Send(self.name, Taken())
        yield from copy.mark(message.reads, message.images)

    def acknowledged(self, update: Significant) -> bool:
        """Whether a later update may wait for this one."""
        return self.window < np.inf and update.clock < self.steps

    def open(self) -> bool:
        """Whether anything is still to come from it."""
        return self.clock < self.steps or self.awaited > 0 or self.under_way > 0


@dataclass
class Copy(Shard):
    """A data centre's copy of one part; observers see its updates of the piece that it is responsible for."""

    piece: slice = field(default_factory=lambda: slice(None))
    own: int = 0  #: updates with gradients of own workers

    def __post_init__(self) -> None:
        super().__post_init__()
        self.unsent = np.zeros_like(self.x)  #: what these have changed and mirrors have not been shown

    def mark(self, reads: Reads, images: int) -> Program[None]:
        """As a shard's.  A version counts the updates of all centres that this copy knows of: it may be lower
        than that of a reader elsewhere, which is then as new as possible."""
        reads = tuple((w, min(read, self.version)) for w, read in reads)
        yield Mark("update", part=self.part, version=self.version, reads=reads, images=images,
                   x=self.x[self.piece])
        self.version += 1

    def step(self, pushes: Sequence[tuple[str, Push]]) -> Program[None]:
        """One update with the mean gradient of own workers."""
        old = self.x
        yield from self.update(pushes, bsp.update, [push for _, push in pushes], self.own)
        self.unsent, self.own = self.unsent + (self.x - old), self.own + 1

    def share(self, mirrors: Iterable[Mirror], pushes: Iterable[tuple[str, Push]], clock: int, limit: float,
              share: float | None) -> Program[None]:
        """Show the mirrors what is significant after an update with these gradients."""
        entries, rest = significant(self.x, self.unsent, limit, share)
        update = Significant(entries, self.unsent[entries], *of_pushes(pushes), clock, announced=False)
        for m in mirrors:
            yield from m.show(update)
        self.unsent = rest
