"""The trace of a run: events, and the metrics computed from them."""

from refsgd.trace.events import (
    UNORDERED,
    Added,
    Chosen,
    Computed,
    Crashed,
    Event,
    Loaded,
    Marked,
    Polled,
    Received,
    Returned,
    Sent,
    Thinner,
    taken,
    thin,
)
from refsgd.trace.metrics import CAUSES, joined
from refsgd.trace.run import Run, Trace, Transit, Use

__all__ = [
    "CAUSES", "UNORDERED", "Added", "Chosen", "Computed", "Crashed", "Event", "Loaded", "Marked", "Polled",
    "Received", "Returned", "Run", "Sent", "Thinner", "Trace", "Transit", "Use", "joined", "taken",
    "thin",
]
