"""Events: the actions of programs and what happened to them, one class per kind, the same in every runtime.

An algorithm never measures its own time.  Runtimes write events, and every metric is a function of them
(`refsgd.trace.metrics`).  Times are seconds since the common start: virtual in the simulator, nominal in
paced processes, real in unpaced ones.  Sizes are in bytes.  Every event has a `time`, a `node`, a `program`
and a `kind`, the word for its class in files and in the player.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

UNORDERED = -1  #: ticket of an access without a number


class Computed(NamedTuple):
    """The end of a computation that began at `start`.

    `work` and `piece` are those of the `Compute`; `late` is the delay of a paced process beyond the planned
    end [s].  `finite`: whether a gradient has finite numbers only, or refuses others itself.
    """

    time: float
    node: str
    program: int
    start: float
    work: str
    late: float = 0.0
    piece: tuple[str, int, float, bool, bool] | None = None  #: direction, number, share, first, last
    finite: bool = True

    @property
    def kind(self) -> Literal["compute"]:
        """The word for this class."""
        return "compute"

    @property
    def gradient_ended(self) -> bool:
        """Whether this was a whole gradient, or the last piece of one."""
        return self.work == "gradient" and (self.piece is None or self.piece[4])

    @property
    def what(self) -> str:
        """The kind of computation, or the piece of a gradient, e.g. ``forward`` or ``backward 3``."""
        if self.piece is None:
            return self.work
        return "forward" if self.piece[:2] == ("forward", 0) else f"{self.piece[0]} {self.piece[1]}"


class Sent(NamedTuple):
    """A message sent, the `number`th from `node` to `to`; its transmission begins at `start`."""

    time: float
    node: str
    program: int
    to: str
    message: str
    number: int
    nbytes: int
    start: float

    @property
    def kind(self) -> Literal["send"]:
        """The word for this class."""
        return "send"


class Received(NamedTuple):
    """A message taken by a `Recv` that had waited since `since`."""

    time: float
    node: str
    program: int
    src: str
    message: str
    number: int
    nbytes: int
    since: float
    arrival: float

    @property
    def kind(self) -> Literal["receive"]:
        """The word for this class."""
        return "receive"


class Polled(NamedTuple):
    """A message taken by a `Poll`; `src` is None if there was none."""

    time: float
    node: str
    program: int
    src: str | None = None
    message: str = ""
    number: int = 0
    nbytes: int = 0
    arrival: float = 0.0

    @property
    def kind(self) -> Literal["poll"]:
        """The word for this class."""
        return "poll"


class Chosen(NamedTuple):
    """The option drawn for a `Choose`."""

    time: float
    node: str
    program: int
    option: Any

    @property
    def kind(self) -> Literal["choose"]:
        """The word for this class."""
        return "choose"


class Marked(NamedTuple):
    """A `Mark`: its name and its values; `Thinner` may remove the parameters `x`."""

    time: float
    node: str
    program: int
    name: str
    values: dict[str, Any]

    @property
    def kind(self) -> Literal["mark"]:
        """The word for this class."""
        return "mark"


class Loaded(NamedTuple):
    """A part of a shared cell read; `ticket` numbers the accesses of all nodes."""

    time: float
    node: str
    program: int
    part: int
    ticket: int

    @property
    def kind(self) -> Literal["load"]:
        """The word for this class."""
        return "load"


class Added(NamedTuple):
    """A part of a shared cell changed.

    `ticket` is as in `Loaded`, or `UNORDERED` if processes add without a lock; `since` is the number of
    accesses before the addition began, in virtual time.
    """

    time: float
    node: str
    program: int
    part: int
    ticket: int
    since: int | None = None

    @property
    def kind(self) -> Literal["add"]:
        """The word for this class."""
        return "add"


class Returned(NamedTuple):
    """The end of a program."""

    time: float
    node: str
    program: int

    @property
    def kind(self) -> Literal["return"]:
        """The word for this class."""
        return "return"


class Crashed(NamedTuple):
    """The end of a node's process before the end of its programs.

    `silent` is the time from its last sign of life until the death was noticed [s]; 0 in virtual time.
    """

    time: float
    node: str
    program: int
    reason: str
    silent: float = 0.0

    @property
    def kind(self) -> Literal["died"]:
        """The word for this class."""
        return "died"


#: an action of a program, or what happened to it
Event = (Computed | Sent | Received | Polled | Chosen | Marked | Loaded | Added | Returned | Crashed)


class Transit(NamedTuple):
    """A message, with the times of its Send, the start of its transmission, its arrival and its receipt."""

    src: str
    to: str
    message: str
    number: int
    nbytes: int
    sent: float
    start: float
    arrival: float
    received: float


def began(event: Event) -> float:
    """When a program went on to the effect of which an event is the end.

    Parameters
    ----------
    event : Event

    Returns
    -------
    float
        Seconds.
    """
    if isinstance(event, Computed):
        return event.start
    return event.since if isinstance(event, Received) else event.time


def taken(event: Event) -> tuple[str, str, int] | None:
    """The message that an event took.

    Parameters
    ----------
    event : Event

    Returns
    -------
    (str, str, int) or None
        Its sender, its receiver and its number; None if the event took none.
    """
    if isinstance(event, Received | Polled) and event.src is not None:
        return event.src, event.node, event.number
    return None
