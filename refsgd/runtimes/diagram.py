"""A run as text: one column per node, one line per event, time downwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from refsgd.trace import Event


def words(event: Event) -> str:
    """One event in a few words, e.g. ``Push#0 -> server0``."""
    d = event.data
    program = f"[{event.program}] " if event.program else ""
    if event.kind == "send":
        return f"{program}{d['message']}#{d['number']} -> {d['to']}"
    if event.kind == "receive" or (event.kind == "poll" and d["src"] is not None):
        return f"{program}<- {d['message']}#{d['number']} {d['src']}"
    if event.kind == "poll":
        return f"{program}poll: nothing"
    if event.kind == "choose":
        return f"{program}choose {d['option']}"
    if event.kind == "compute":
        return f"{program}{d['work']}"
    if event.kind == "mark":
        shown = {k: v for k, v in d.items() if k in ("t", "version", "worker", "reads")}
        return f"{program}* {d['name']} " + " ".join(f"{k}={v}" for k, v in shown.items())
    return f"{program}{event.kind}"


def diagram(events: Iterable[Event], nodes: Sequence[str], clocks: bool = False) -> str:
    """Draw events below each other, each in its node's column.

    Examples
    --------
    >>> print(diagram([Event(0.0, "peer1", 0, "compute", {"work": "gradient"})], ["peer0", "peer1"]))
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
