"""Events as rows of a record, and back: what a program did and was told, never a number that it computed.

A row is a list of JSON values: the number of the program, a letter for the kind of event, the time, and what
`TOLD` names for this letter.  Records, replay and resumption read and write rows here and nowhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

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
)
from refsgd.trace.schema import ANY, COUNT, SECONDS, TEXT, Row, misfit, one_of, whole

NOTICE = -1  #: the number of a message that tells of its sender's death
#: the letter of each class of events
LETTERS: dict[type, str] = {Computed: "c", Sent: "s", Received: "r", Polled: "p", Chosen: "o", Marked: "m",
                            Returned: "e", Loaded: "l", Added: "a", Crashed: "x"}
#: the kind of event of each letter, in words
KINDS = {"c": "compute", "s": "send", "r": "receive", "p": "poll", "o": "choose", "m": "mark", "e": "return",
         "l": "load", "a": "add", "x": "died"}
_NOTHING, _MESSAGE = one_of(None), {"source": TEXT, "number": whole(NOTICE), "arrival": SECONDS}
#: what a row says behind its time, by letter; where there are two forms, the one that holds less first
TOLD: dict[str, tuple[dict[str, Any], ...]] = {
    "c": ({"start": SECONDS},), "s": ({"start": SECONDS},), "r": (_MESSAGE,),
    "p": (dict.fromkeys(_MESSAGE, _NOTHING), _MESSAGE),
    "o": ({"option": ANY},), "m": ({},), "e": ({},), "x": ({},), "l": ({"ticket": COUNT},),
    "a": ({"ticket": COUNT}, {"ticket": COUNT, "since": COUNT})}


class Step(NamedTuple):
    """What a record says of one event of a node; only the fields that `TOLD` names for its letter count."""

    program: int
    letter: str
    time: float
    source: str | None = None
    number: int | None = None
    arrival: float | None = None
    start: float = 0.0
    option: Any = None
    ticket: int = 0  #: the number of an access to shared cells, in their common order
    since: int | None = None  #: how many accesses there had been when an addition in virtual time began

    def row(self) -> list[Any]:
        """As a list of JSON values."""
        told = [getattr(self, name) for name in TOLD[self.letter][-1]]
        if self.letter == "a" and self.since is None:
            del told[-1]
        return [self.program, self.letter, self.time, *told]

    @classmethod
    def of(cls, row: Sequence[Any]) -> Step:
        """From a list that `row_misfit` finds nothing wrong with."""
        return cls(*row[:3], **dict(zip(TOLD[row[1]][-1], row[3:], strict=False)))


#: what each node's programs did, in order
Steps = dict[str, list[Step]]


def row_misfit(row: Any, nodes: Sequence[str]) -> str:
    """What does not fit in a node's name and its row, in words."""
    if not isinstance(row, list) or len(row) < 4:
        return misfit(row, Row({"node": TEXT, "program": COUNT, "letter": TEXT, "time": SECONDS}))
    first = {"node": one_of(*nodes), "program": COUNT, "letter": one_of(*TOLD)}
    wrong = misfit(row[:3], Row(first))
    forms = [] if wrong else [misfit(row, Row({**first, "time": SECONDS, **told})) for told in TOLD[row[2]]]
    return wrong or (forms[-1] if all(forms) else "")


class Encoder:
    """Makes steps of events, and counts accesses to shared cells where the runtime counts none: there events
    come in the order in which things happen."""

    def __init__(self) -> None:
        self._count = 0
        # a program yields its next effect when it has its answer
        self._since: dict[tuple[str, int], int] = defaultdict(int)

    def __call__(self, e: Event) -> Step:
        """The next event of all nodes as a step."""
        step = Step(e.program, LETTERS[type(e)], e.time)
        match e:
            case Computed() | Sent():
                step = step._replace(start=e.start)
            case Received(src=str()) | Polled(src=str()):
                step = step._replace(source=e.src, number=e.number, arrival=e.arrival)
            case Chosen():
                step = step._replace(option=e.option)
            case Loaded() | Added():
                ticket = self._count if e.ticket in (None, UNORDERED) else e.ticket
                since = self._since[e.node, e.program] if isinstance(e, Added) and e.ticket is None else None
                step = step._replace(ticket=int(ticket or 0), since=since)
                self._count += 1
        self._since[e.node, e.program] = self._count
        return step
