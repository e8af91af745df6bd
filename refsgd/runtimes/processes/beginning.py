"""Where a resumed run continues: what the driver of each process takes over from the replay of its record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from refsgd.cluster.draws import Draws
from refsgd.effects import Array, Deployment
from refsgd.runtimes.mailbox import Envelope
from refsgd.trace import Event


class Beginning(NamedTuple):
    """Where a resumed run continues: the state at the end of its record; see `refsgd.experiment.resume`."""

    deployment: Deployment  #: whose programs stand where the record ends
    seconds: float
    effects: dict[tuple[str, int], Any]  #: what each program waits for, None if it has returned
    envelopes: dict[str, list[Envelope]]  #: what has been sent to each node and not been received
    numbers: dict[tuple[str, str], int]  #: how many messages each channel has had
    #: what each program has taken from its random streams
    draws: dict[tuple[str, int], list[Callable[[Draws], Any]]]
    tickets: int  #: how many accesses to shared cells there have been
    values: dict[str, Any]
    events: list[Event]
    kept: dict[str, list[tuple[int, Array]]]  #: the newest parameters of each node
    dead: list[str]  #: nodes that have died and stay dead
