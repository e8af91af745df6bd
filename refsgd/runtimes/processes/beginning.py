"""The starting point of a resumed run: the state that each driver takes over after replaying the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from refsgd.cluster.draws import Draws
from refsgd.effects import Array, Deployment
from refsgd.runtimes.mailbox import Envelope
from refsgd.trace import Event


class Beginning(NamedTuple):
    """The starting point of a resumed run: the state at the end of its record; see
    `refsgd.experiment.execution.resume`."""

    deployment: Deployment  #: its programs are suspended where the record ends
    seconds: float
    effects: dict[tuple[str, int], Any]  #: the effect for which each program waits, None if it has returned
    envelopes: dict[str, list[Envelope]]  #: messages sent to each node and not yet received
    numbers: dict[tuple[str, str], int]  #: number of messages sent on each channel
    #: draws of each program from its random streams
    draws: dict[tuple[str, int], list[Callable[[Draws], Any]]]
    tickets: int  #: number of accesses to shared cells
    values: dict[str, Any]
    events: list[Event]
    kept: dict[str, list[tuple[int, Array]]]  #: the newest parameters of each node
    dead: list[str]  #: nodes that have died and stay dead
