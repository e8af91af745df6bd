"""Version numbers of updates to shared memory, counted from the trace; programs that count would race."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from refsgd.trace.events import UNORDERED, Added, Event, Loaded, Marked


def number_updates(events: Sequence[Event]) -> None:
    """Add `version` and `reads` to marks of updates to shared cells that lack them.

    Accesses are ordered by their tickets, or without tickets by their events.  An update happens at its last
    addition, and has read the version at its program's first access after the previous update.
    """
    if all(type(e) is not Marked or e.name != "update" or "version" in e.values for e in events):
        return
    ticketed = all(e.ticket != UNORDERED for e in events if isinstance(e, Loaded | Added))
    begun, added = dict[tuple[str, int], int](), dict[tuple[str, int], int]()
    updates: list[tuple[int, int, Marked]] = []
    for i, e in enumerate(events):
        program = e.node, e.program
        if isinstance(e, Loaded | Added):
            at = e.ticket if ticketed else i
            begun.setdefault(program, at)
            if isinstance(e, Added):
                added[program] = at
        elif isinstance(e, Marked) and e.name == "update" and program in added:
            updates.append((added.pop(program), begun.pop(program), e))
    updates.sort(key=lambda update: update[0])
    ends = [end for end, _, _ in updates]
    for version, (_, read, mark) in enumerate(updates):
        if "version" not in mark.values:
            mark.values.update(version=version, reads=((mark.node, bisect_left(ends, read)),))
