"""A run as text: one column per node, one line per event; and events in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from refsgd.trace import events
from refsgd.trace.events import Event

WORKS = {"gradient": "a gradient", "update": "the update", "reduction": "a reduction",
         "codec": "a codec's step", "evaluation": "the loss", "forward": "the forward pass"}
PIECE = re.compile(r"^(forward|backward) (\d+)$")


def words(event: Event) -> str:
    """One event in as few words as fit into a column, e.g. ``Push#0 -> server0``."""
    return (f"[{event.program}] " if event.program else "") + _words(event)


def _words(event: Event) -> str:
    match event:
        case events.Sent():
            return f"{event.message}#{event.number} -> {event.to}"
        case events.Polled(src=None):
            return "poll: nothing"
        case events.Received() | events.Polled():
            return f"<- {event.message}#{event.number} {event.src}"
        case events.Chosen():
            return f"choose {event.option}"
        case events.Computed():
            return event.what
        case events.Returned():
            return "return"
    return deed(event)


def computed(what: str) -> str:
    """What is computed, with its article: a `Computed.what`."""
    return WORKS.get(what) or PIECE.sub(r"the \1 pass of layer or batch \2", what)


def deed(event: Event) -> str:
    """What a program has done, as the rest of a sentence, e.g. ``sends Push#0 to server0``."""
    match event:
        case events.Computed():
            return f"has computed {computed(event.what)}"
        case events.Sent():
            return f"sends {event.message}#{event.number} to {event.to}"
        case events.Polled(src=None):
            return "looks: nothing there"
        case events.Received() | events.Polled():
            return f"takes {event.message}#{event.number} of {event.src}"
        case events.Chosen():
            return f"chooses {event.option}"
        case events.Marked():
            return _marked(event)
        case events.Loaded():
            return f"reads part {event.part}"
        case events.Added():
            return f"adds to part {event.part}"
        case events.Crashed():
            return "dies"
    return "returns"


def _marked(event: events.Marked) -> str:
    said = event.values
    match event.name:
        case "update":
            ages = [(f"of {' and '.join(worker for worker, _ in those)}", read)
                    for read, those in groupby(said.get("reads", ()), key=lambda pair: pair[1])]
            which = f"update {said['version']}" if "version" in said else "an update"
            applied = "; ".join(f"{whose}, staleness {said['version'] - read}" for whose, read in ages)
            return f"applies {which} {applied}".strip()
        case "clock":
            return f"ends iteration {said.get('t', '')}".strip()
        case "block":
            own = said["worker"] == event.node
            return ("continues only with a newer copy" if own else f"holds {said['worker']} back") + (
                ", to keep the bound")
        case "drop":
            return f"drops what {said.get('worker')} sent: {said.get('reason')}"
    return f"marks {event.name}"


def diagram(happened: Iterable[Event], nodes: Sequence[str]) -> str:
    """Draw one line per event, in its node's column.

    >>> print(diagram([events.Computed(1.0, "peer1", 0, 0.0, "gradient")], ["peer0", "peer1"]))
    peer0 | peer1
          | gradient
    """
    cells = [(nodes.index(e.node), words(e)) for e in happened]
    width = [max([len(n), *(len(w) for k, w in cells if k == i)]) for i, n in enumerate(nodes)]

    rows = [nodes, *([text if i == column else "" for i in range(len(nodes))] for column, text in cells)]
    return "\n".join(" | ".join(map(str.ljust, row, width)).rstrip() for row in rows)
