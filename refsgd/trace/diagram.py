"""A run as text: one column per node, one line per event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from refsgd.trace import Chosen, Computed, Event, Marked, Polled, Received, Sent


def words(event: Event) -> str:
    """One event in a few words, e.g. ``Push#0 -> server0``."""
    return (f"[{event.program}] " if event.program else "") + _words(event)


def _words(event: Event) -> str:
    match event:
        case Sent():
            return f"{event.message}#{event.number} -> {event.to}"
        case Polled(src=None):
            return "poll: nothing"
        case Received() | Polled():
            return f"<- {event.message}#{event.number} {event.src}"
        case Chosen():
            return f"choose {event.option}"
        case Computed():
            return event.what
        case Marked():
            shown = {k: v for k, v in event.values.items() if k in ("t", "version", "worker", "reads")}
            return f"* {event.name} " + " ".join(f"{k}={v}" for k, v in shown.items())
    return event.kind


def diagram(events: Iterable[Event], nodes: Sequence[str], clocks: bool = False) -> str:
    """Draw one line per event, in its node's column.

    >>> print(diagram([Computed(1.0, "peer1", 0, 0.0, "gradient")], ["peer0", "peer1"]))
    peer0 | peer1
          | gradient
    """
    listed = list(events)
    cells = [(nodes.index(e.node), words(e)) for e in listed]
    width = [max([len(n), *(len(w) for k, w in cells if k == i)]) for i, n in enumerate(nodes)]

    def row(column: int, text: str) -> str:
        return " | ".join((text if i == column else "").ljust(width[i]) for i in range(len(nodes))).rstrip()

    lines = [" | ".join(n.ljust(w) for n, w in zip(nodes, width)).rstrip()]
    for event, (column, text) in zip(listed, cells):
        lines.append((f"{event.time:10.6g}  " if clocks else "") + row(column, text))
    if clocks:
        lines[0] = " " * 12 + lines[0]
    return "\n".join(lines)
