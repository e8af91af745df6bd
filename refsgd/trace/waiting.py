"""Causes of waiting: the time in which workers compute no gradient, by cause.

A worker's wait ends with a message.  While its request or that message is on the wire, the cause is
``transfer`` (latency, its bytes on a link) or ``queueing`` (behind other messages).  In between, another node
has the request, and the critical path is traced back from the answer: to an update (``update`` if the
request is part of it, else ``queueing``), to a slower worker (``straggling``), to a bound for which the
answer is held back (``slack``), or to a busy peer (``partner``).  Encoding and decoding the worker's
gradient, at either end, is ``codec``.  The time that programs spend between their effects, which is zero on
a described machine without an overhead for messages, is ``overhead``.

A wait that has not ended is explained as if it were answered at the end of the trace.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from refsgd.trace.events import (
    Added,
    Computed,
    Crashed,
    Marked,
    Received,
    Returned,
    Sent,
    Transit,
    began,
    taken,
)

if TYPE_CHECKING:
    from refsgd.trace.run import Trace

#: in words, and in the order of pictures
CAUSES = {"transfer": "a message is on the wire",
          "queueing": "behind other messages or updates, at a link or the server",
          "straggling": "for a slower worker",
          "slack": "the answer is held back to keep the bound",
          "partner": "the peer is busy",
          "update": "the update with its own gradient is being computed",
          "codec": "its own gradient is being encoded or decoded",
          "overhead": "a program handles a message"}

Program = tuple[str, int]  #: node, number of its program
Message = tuple[str, str, int]  #: from, to, number on this channel
Piece = tuple[float, float, str]  #: start, end, cause
UNANSWERED = "not answered"  #: cause of an open wait for a program that has ended


class Pending(NamedTuple):
    """What a program does after the last event: a `Compute` of a kind, or a `Recv` of classes from a node."""

    work: str = ""
    kinds: tuple[str, ...] = ()
    src: str | None = None


class Stage(NamedTuple):
    """What is known of a wait at one position."""

    awaited: Message | None  #: the message that ends it
    answer: Message | None  #: the same, if it has been sent
    request: Message | None  #: the program's last message to the other, if it has received none of it since
    other: Program | None  #: the program that has taken the request, else the one that will answer


class Activity(NamedTuple):
    """A program computes (`work`) or waits for `message` of `sender` from `start` to `end`."""

    start: float
    end: float
    work: str
    message: Transit | None = None  #: a number < 0: it has not been sent
    sender: Program | None = None


class History:
    """A trace indexed for tracing back, and what its programs do at its end.

    Position k is the moment after k events.
    """

    def __init__(self, trace: Trace, pending: Mapping[Program, Pending] | None = None) -> None:
        self.trace, self.events = trace, trace.events
        self.transits = {(m.src, m.to, m.number): m for m in trace.transits}
        # numbers of events: of each program, that sent and took each message, that hold a worker back
        self.of: dict[Program, list[int]] = defaultdict(list)
        self.sent = {(e.node, e.to, e.number): i for i, e in enumerate(self.events) if isinstance(e, Sent)}
        self.taken: dict[Message, int] = {}
        self.blocks: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.received: dict[tuple[Program, str], list[Message]] = defaultdict(list)  # by receiver and sender
        self.activities: dict[Program, list[Activity]] = defaultdict(list)
        after = dict[Program, float]()  # when each program continued after its last event
        for i, e in enumerate(self.events):
            key = e.node, e.program
            self.of[key].append(i)
            begins = began(e)
            if begins > after.get(key, inf) and not isinstance(e, Crashed):
                self.activities[key].append(Activity(after[key], begins,
                                                     "update" if isinstance(e, Added) else "overhead"))
            after[key] = inf if isinstance(e, Crashed) else e.time
            if isinstance(e, Computed) and e.time > e.start:
                self.activities[key].append(Activity(e.start, e.time, e.work))
            elif isinstance(e, Marked) and e.name == "block":
                self.blocks[e.node, e.values["worker"]].append(i)
            elif (message := taken(e)) is not None:
                self.taken[message] = i
                if isinstance(e, Received) and (m := self.transits.get(message)) is not None:
                    self.received[key, m.src].append(message)
                    if e.time > e.since:
                        self.activities[key].append(Activity(e.since, e.time, "", m, self.sender(message)))
        for key, effect in (pending or {}).items():
            self._add(key, effect)

    def _add(self, key: Program, effect: Pending) -> None:
        """Add what a program does at the end of the trace, as if it ended there."""
        since, now = self.events[self.of[key][-1]].time if key in self.of else 0.0, self.trace.seconds
        if effect.work and now > since:
            self.activities[key].append(Activity(since, now, effect.work))
        elif effect.kinds and now > since:
            _, answer, request, other = self.stage(key, effect, len(self.events))
            m = Transit(other[0] if other else "", key[0], "", -1, 0, now, now, now, now)
            if answer is not None:
                m, other = self.transit(answer), self.sender(answer)
            elif other is not None and request is not None and request not in self.taken and not (
                    self.sent[request] == self.of[key][-1] and self.send(request).message in effect.kinds):
                # not if both send the same and then wait: that is no question
                self.received[other, key[0]].append(request)  # as if that happened at the end
            self.activities[key].append(Activity(since, now, "", m, other))

    # -- messages ------------------------------------------------------------------------------------------

    def send(self, message: Message) -> Sent:
        """The event that sent a message."""
        e = self.events[self.sent[message]]
        assert isinstance(e, Sent)
        return e

    def sender(self, message: Message) -> Program:
        """The program that sent a message."""
        return message[0], self.send(message).program

    def transit(self, message: Message) -> Transit:
        """A message on its way; one that no program has taken is as if one took it at the end."""
        if message in self.transits:
            return self.transits[message]
        e = self.send(message)
        latency, bandwidth = self.trace.wire(e.node, e.to)
        arrival = e.start + latency + e.nbytes / bandwidth if latency or bandwidth < inf else inf
        if self.trace.inboxes is not None:
            arrival = self.trace.inboxes.get(message, inf)
        return Transit(*message[:2], e.message, e.number, e.nbytes, e.time, e.start, arrival,
                       self.trace.seconds)

    def wire(self, m: Transit) -> Iterator[Piece]:
        """Pieces of a message's transit; all of it is transfer in an unpaced run."""
        latency, bandwidth = self.trace.wire(m.src, m.to)
        if not latency and bandwidth == inf:
            yield m.sent, m.arrival, "transfer"
            return
        head = m.start + latency
        served = max(head, m.arrival - m.nbytes / bandwidth)
        yield m.sent, m.start, "queueing"
        yield m.start, head, "transfer"
        yield head, served, "queueing"
        yield served, m.arrival, "transfer"

    def request(self, m: Transit, sender: Program) -> Transit | None:
        """The last message of its receiver that the sender of an answer had received before."""
        found, end = self.received.get((sender, m.to), []), len(self.events)
        sent = self.sent.get((m.src, m.to, m.number), end)
        at = bisect_right(found, sent, key=lambda message: self.taken.get(message, end))
        return self.transit(found[at - 1]) if at else None

    # -- programs ------------------------------------------------------------------------------------------

    def last(self, program: Program, before: float) -> Activity | None:
        """The last activity of a program that ended by `before`."""
        found = self.activities.get(program, [])
        at = bisect_right(found, before + 1e-12, key=lambda a: a.end)
        return found[at - 1] if at else None

    def held(self, node: str, worker: str, low: int, high: int) -> int | None:
        """The last event between two in which `node` marks that it holds `worker` back to keep a bound."""
        marks = self.blocks.get((node, worker), [])
        at = bisect_left(marks, high)
        return marks[at - 1] if at and marks[at - 1] > low else None

    def held_itself(self, worker: str, k: int) -> int | None:
        """The event that marks that a worker, which waits after k events, holds itself back."""
        own, i = self.of.get((worker, 0), []), self.held(worker, worker, -1, k)
        since = self.events[own[bisect_left(own, k) - 1]].time if i is not None else inf
        return i if i is not None and self.events[i].time >= since - 1e-12 else None

    def stage(self, key: Program, wait: Pending, k: int) -> Stage:
        """What is known after k events of a program's wait, which may end later in the trace."""
        own, src = self.of.get(key, []), wait.src
        at = bisect_left(own, k)
        end = self.events[own[at]] if at < len(own) else None
        if isinstance(end, Received):
            src, awaited = end.src, taken(end)
        else:
            awaited = next((message for message, i in self.sent.items() if i < k and message[1] == key[0]
                            and src in (None, message[0]) and self.send(message).message in wait.kinds
                            and self.taken.get(message, k) >= k), None)
        request, program = None, self.send(awaited).program if awaited in self.sent else 0
        for e in (self.events[i] for i in reversed(own[:at])):
            if isinstance(e, Sent) and (e.to == src or (src is None and self.trace.is_worker(key[0]))):
                request = e.node, e.to, e.number
            if request or (isinstance(e, Received) and src in (None, e.src)):
                break
        if request and self.taken.get(request, k) < k:
            program = self.events[self.taken[request]].program
        node = src or (request[1] if request else None)
        sent = awaited is not None and self.sent.get(awaited, k) < k
        return Stage(awaited, awaited if sent else None, request, (node, program) if node else None)


def explain(history: History, worker: str, wait: Activity) -> Iterator[Piece]:
    """Pieces for a time in which a worker computes no gradient; the first that covers a moment counts."""
    m, at = wait.message, wait.sender
    if m is None:
        yield wait.start, wait.end, _own(wait)
    if m is None or at is None:
        return
    ended = history.events[history.of[at][-1]] if at in history.of else None
    if m.number < 0 and isinstance(ended, Returned | Crashed):
        yield ended.time, m.sent, UNANSWERED
    yield from history.wire(m)
    request, low, high = history.request(m, at), wait.start, m.sent
    if request is not None:
        yield from ((a, min(b, high), cause) for a, b, cause in history.wire(request))
        low = max(low, request.arrival)
    message, end = (m.src, m.to, m.number), len(history.events)
    if history.held_itself(worker, history.taken.get(message, end)) is not None:
        yield low, high, "slack"
        return
    if request is not None:
        taken_at = history.taken.get((request.src, request.to, request.number), end)
        held = history.held(m.src, worker, taken_at, history.sent.get(message, end))
        if held is not None:
            high = history.events[held].time
            yield high, m.sent, "slack"
    if request is None:  # no request: a predecessor in a collective, or a server that releases its bound
        blame = "straggling" if history.trace.is_worker(m.src) else "slack"
    else:
        blame = "partner" if history.trace.is_worker(m.src) else "straggling"
    yield from _trace_back(history, at, low, high, request, blame)


def _trace_back(history: History, at: Program, low: float, high: float, request: Transit | None,
                blame: str) -> Iterator[Piece]:
    """Pieces of the critical path that reaches program `at` at time `high`, back to `low`."""
    passed, known = set[Program](), set[int]()
    while high > low and (activity := history.last(at, high)) is not None and id(activity) not in known:
        known.add(id(activity))  # where messages take next to no time, nothing else ends a circle of peers
        if activity.message is None:
            cause = blame
            if activity.work != "gradient":
                mine = request is None or activity.start >= request.received - 1e-12
                cause = _own(activity) if mine else "queueing"
            yield activity.start, high, cause  # including the marks and sends that follow
            high = activity.start
        elif activity.sender is None or (activity.message.number < 0 and at in passed):
            yield activity.start, high, blame  # nobody in particular is awaited, or a cycle
            high = activity.start
        else:
            passed.add(at)
            q = activity.message
            yield activity.end, high, blame
            high = min(high, activity.end)
            pieces = list(history.wire(q))
            contended = any(b > a for a, b, cause in pieces if cause == "queueing")
            free = "transfer" if history.trace.is_worker(at[0]) else "queueing" if contended else blame
            yield from ((a, min(b, high), "queueing" if cause == "queueing" else free)
                        for a, b, cause in pieces)
            yield q.arrival, high, blame
            at, high = activity.sender, min(high, q.sent)
    yield low, high, blame


def _own(activity: Activity) -> str:
    """The cause of a wait for what a program does itself for the worker's request."""
    return activity.work if activity.work in ("codec", "overhead") else "update"


class Wait(NamedTuple):
    """A worker waits from `start` to `end` for `message`; None: for its own update, or for others to end."""

    worker: str
    cause: str
    start: float
    end: float
    message: Transit | None


def waits(trace: Trace, pending: Mapping[Program, Pending] | None = None) -> list[Wait]:
    """Every wait of every worker, by cause: all of its life in which it computes no gradient.

    Time that is neither a wait for a message nor an update, above all after a worker's end, is straggling.
    """
    found, history = list[Wait](), History(trace, pending)
    for worker in trace.workers:
        busy = _union((a.start, a.end) for key, done in history.activities.items() if key[0] == worker
                      for a in done if a.work == "gradient")
        starts, own = [a for a, _ in busy], list[Wait]()
        for activity in (a for a in history.activities[worker, 0] if a.work != "gradient"):
            near = busy[max(0, bisect_right(starts, activity.start) - 1): bisect_right(starts, activity.end)]
            free = _outside(near, activity.start, min(activity.end, trace.seconds))
            pieces = list(explain(history, worker, activity))
            own += [Wait(worker, cause, lo, hi, activity.message) for cause, lo, hi in _charge(free, pieces)]
        known = _union([*busy, *((wait.start, wait.end) for wait in own)])
        rest = _outside(known, 0.0, trace.seconds * trace.attendance[worker])
        found += own + [Wait(worker, "straggling", lo, hi, None) for lo, hi in rest]
    return found


def waiting_by_cause(trace: Trace) -> dict[str, float]:
    """Share of the workers' lifetimes without computing gradients, by cause."""
    seconds = dict.fromkeys(CAUSES, 0.0)
    total = trace.seconds * sum(trace.attendance.values())
    for wait in waits(trace) if total else ():
        seconds[wait.cause] += (wait.end - wait.start) / total
    return seconds


Interval = tuple[float, float]


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, as disjoint intervals in order."""
    out: list[Interval] = []
    for a, b in sorted(intervals):
        if out and a <= out[-1][1]:
            out[-1] = out[-1][0], max(b, out[-1][1])
        else:
            out.append((a, b))
    return out


def _outside(busy: list[Interval], low: float, high: float) -> list[Interval]:
    """The parts of [low, high] outside some disjoint, ordered intervals."""
    out = []
    for a, b in busy:
        if min(a, high) > low:
            out.append((low, min(a, high)))
        low = max(low, b)
    if high > low:
        out.append((low, high))
    return out


def _charge(free: Iterable[Interval], pieces: Collection[Piece]) -> Iterator[tuple[str, float, float]]:
    """Assign each free moment to the first piece that covers it, or to straggling."""
    def cause(span: Interval) -> str:
        return next((cause for a, b, cause in pieces if a <= span[0] and span[1] <= b), "straggling")

    for x, y in free:
        cuts = sorted({x, y, *(t for a, b, _ in pieces for t in (a, b) if x < t < y)})
        for same, found in groupby(pairwise(cuts), key=cause):
            spans = list(found)
            yield same, spans[0][0], spans[-1][1]
