"""Codec between events and the rows of a record (docs/records.md), which hold actions and answers but no
computed numbers: fields that `TOLD` does not name are None in an event that was read, because a replay
computes them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refsgd.trace import events
from refsgd.trace.events import Added, Event, Polled
from refsgd.trace.schema import ANY, COUNT, SECONDS, TEXT, Row, misfit, one_of, whole

NOTICE = -1  #: the number of a message that reports its sender's death
CLASSES: dict[str, type] = {
    "c": events.Computed, "s": events.Sent, "r": events.Received, "p": Polled, "o": events.Chosen,
    "m": events.Marked, "e": events.Returned, "l": events.Loaded, "a": Added, "x": events.Crashed}
LETTERS = {kind: letter for letter, kind in CLASSES.items()}
_NOTHING, _MESSAGE = one_of(None), {"src": TEXT, "number": whole(NOTICE), "arrival": SECONDS}
#: fields of a row after its time, by letter; of two forms the shorter one first
TOLD: dict[str, tuple[dict[str, Any], ...]] = {
    "c": ({"start": SECONDS},), "s": ({"start": SECONDS},), "r": (_MESSAGE,),
    "p": (dict.fromkeys(_MESSAGE, _NOTHING), _MESSAGE),
    "o": ({"option": ANY},), "m": ({},), "e": ({},), "x": ({},), "l": ({"ticket": COUNT},),
    "a": ({"ticket": COUNT}, {"ticket": COUNT, "since": COUNT})}

#: actions of each node's programs, in order
Steps = dict[str, list[Event]]


def row_of(event: Event) -> list[Any]:
    """An event as a row."""
    letter = LETTERS[type(event)]
    told = [getattr(event, name) for name in TOLD[letter][-1]]
    if isinstance(event, Polled) and event.src is None:
        told = [None] * len(told)
    elif isinstance(event, Added) and event.since is None:
        del told[-1]
    return [event.node, event.program, letter, event.time, *told]


def event_of(row: Sequence[Any]) -> Event:
    """The event of a row that `row_misfit` has accepted."""
    node, program, letter, time, *told = row
    known = {"time": time, "node": node, "program": program, **dict(zip(TOLD[letter][-1], told))}
    kind: Any = CLASSES[letter]
    return kind(*map(known.get, kind._fields))  # type: ignore[no-any-return]


def row_misfit(row: Any, nodes: Sequence[str]) -> str:
    """The first misfit in a row; empty if there is none."""
    if not isinstance(row, list) or len(row) < 4:
        return misfit(row, Row({"node": TEXT, "program": COUNT, "letter": TEXT, "time": SECONDS}))
    first = {"node": one_of(*nodes), "program": COUNT, "letter": one_of(*TOLD)}
    wrong = misfit(row[:3], Row(first))
    forms = [] if wrong else [misfit(row, Row({**first, "time": SECONDS, **told})) for told in TOLD[row[2]]]
    return wrong or (forms[-1] if all(forms) else "")
