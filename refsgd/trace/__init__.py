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
    Transit,
    taken,
)
from refsgd.trace.moments import Thinner, joined, thin
from refsgd.trace.run import Run, Trace, Use
from refsgd.trace.waiting import CAUSES

__all__ = [
    "CAUSES", "UNORDERED", "Added", "Chosen", "Computed", "Crashed", "Event", "Loaded", "Marked", "Polled",
    "Received", "Returned", "Run", "Sent", "Thinner", "Trace", "Transit", "Use", "joined", "taken",
    "thin",
]
