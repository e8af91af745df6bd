"""Causes of waiting: the time in which workers compute no gradient, by cause.

A worker's wait ends with a message.  While its request or that message is on the wire, the cause is
``transfer`` (latency, its bytes on a link) or ``queueing`` (behind other messages).  In between, another node
has the request, and the critical path is traced back from the answer: to an update (``update`` if the
request is part of it, else ``queueing``), to a slower worker (``straggling``), to a bound for which the
answer is held back (``slack``), or to a busy peer (``partner``).  Encoding and decoding the worker's
gradient, at either end, is ``codec``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from refsgd.trace import CAUSES, Computed, Marked, Received, Sent, Trace, Transit


class Activity(NamedTuple):
    """A program computes (`work`) or waits for `message` from `start` to `end`."""

    start: float
    end: float
    work: str
    message: Transit | None


@dataclass
class _History:
    """A trace indexed for tracing back: activities by program, messages by channel, marks of held workers."""

    trace: Trace

    def __post_init__(self) -> None:
        transits = {(m.src, m.to, m.number): m for m in self.trace.transits}
        self.activities: dict[tuple[str, int], list[Activity]] = defaultdict(list)
        self.received: dict[tuple[str, str, int], list[Transit]] = defaultdict(list)  # src, to, its program
        self.sender = {(e.node, e.to, e.number): e.program for e in self.trace.of(Sent)}
        self.blocks: dict[tuple[str, str], list[float]] = defaultdict(list)
        for e in self.trace.events:
            if isinstance(e, Computed):
                self.activities[e.node, e.program].append(Activity(e.start, e.time, e.work, None))
            elif isinstance(e, Marked) and e.name == "block":
                self.blocks[e.node, e.values["worker"]].append(e.time)
            elif isinstance(e, Received) and (m := transits.get((e.src, e.node, e.number))) is not None:
                self.received[m.src, e.node, e.program].append(m)
                self.activities[e.node, e.program].append(Activity(e.since, e.time, "", m))
        self.ends = {key: [a.end for a in found] for key, found in self.activities.items()}
        self.taken = {key: [m.received for m in found] for key, found in self.received.items()}

    def wire(self, m: Transit) -> Iterator[tuple[float, float, str]]:
        """Pieces (start, end, cause) of a message's transit; all of it is transfer in an unpaced run."""
        latency, bandwidth = self.trace.wire(m.src, m.to)
        if not latency and bandwidth == float("inf"):
            yield m.sent, m.arrival, "transfer"
            return
        head = m.start + latency
        served = max(head, m.arrival - m.nbytes / bandwidth)
        yield m.sent, m.start, "queueing"
        yield m.start, head, "transfer"
        yield head, served, "queueing"
        yield served, m.arrival, "transfer"

    def last(self, program: tuple[str, int], before: float) -> Activity | None:
        """The last activity of a program that took time and ended by `before`."""
        at = bisect_right(self.ends.get(program, []), before + 1e-12)
        while at:
            at -= 1
            found = self.activities[program][at]
            if found.end > found.start:
                return found
        return None

    def held(self, node: str, worker: str, low: float, high: float) -> float | None:
        """When `node` last marked between two times that it holds `worker` back to keep a bound."""
        times = self.blocks.get((node, worker), [])
        at = bisect_right(times, high + 1e-12)
        return times[at - 1] if at and times[at - 1] >= low else None

    def request(self, wait: Activity, node: str) -> Transit | None:
        """The last message from `node` that the sender of the awaited message had received before."""
        m = wait.message
        assert m is not None
        key = node, m.src, self.sender[m.src, node, m.number]
        at = bisect_right(self.taken.get(key, []), m.sent + 1e-12)
        return self.received[key][at - 1] if at else None


def explain(history: _History, node: str, wait: Activity) -> Iterator[tuple[float, float, str]]:
    """Pieces (start, end, cause) that cover one wait of `node`, in no particular order."""
    m = wait.message
    assert m is not None
    yield from history.wire(m)
    request = history.request(wait, node)
    low, high = wait.start, m.sent
    if request is not None:
        yield from ((a, min(b, high), cause) for a, b, cause in history.wire(request))
        low = max(low, request.arrival)
    own = history.held(node, node, wait.start - 1e-12, wait.start)
    held = history.held(m.src, node, request.received, m.sent) if request is not None else None
    if own is not None:
        yield low, high, "slack"
        return
    if held is not None:
        yield held, high, "slack"
        high = held
    if request is None:  # no request: a predecessor in a collective, or a server that releases its bound
        blame = "straggling" if history.trace.is_worker(m.src) else "slack"
    else:
        blame = "partner" if history.trace.is_worker(m.src) else "straggling"
    at = m.src, history.sender[m.src, node, m.number]
    while high > low:
        activity = history.last(at, high)
        if activity is None:
            yield low, high, blame
            return
        if activity.message is None:
            cause = blame
            if activity.work != "gradient":
                mine = request is None or activity.start >= request.received - 1e-12
                cause = _own(activity) if mine else "queueing"
            yield activity.start, high, cause  # including the marks and sends that follow
            high = activity.start
        else:
            q = activity.message
            yield activity.end, high, blame
            high = min(high, activity.end)
            pieces = list(history.wire(q))
            contended = any(b > a for a, b, cause in pieces if cause == "queueing")
            free = "transfer" if history.trace.is_worker(at[0]) else "queueing" if contended else blame
            yield from ((a, min(b, high), "queueing" if cause == "queueing" else free)
                        for a, b, cause in pieces)
            yield q.arrival, high, blame
            at, high = (q.src, history.sender[q.src, at[0], q.number]), min(high, q.sent)


def _own(activity: Activity) -> str:
    """The cause of a wait for a computation that is part of the worker's own request."""
    return "codec" if activity.work == "codec" else "update"


class Wait(NamedTuple):
    """A worker waits from `start` to `end` for `message`; None: for its own update, or for others to end."""

    worker: str
    cause: str
    start: float
    end: float
    message: Transit | None


def waits(trace: Trace) -> list[Wait]:
    """Every wait of every worker, by cause: all of its life in which it computes no gradient.

    Time outside waits for messages and own updates, above all after a worker's end, is straggling.
    """
    found, history = list[Wait](), _History(trace)
    for worker in trace.workers:
        busy = _union((a.start, a.end) for key, done in history.activities.items() if key[0] == worker
                      for a in done if a.work == "gradient")
        starts, own = [a for a, _ in busy], list[Wait]()
        for activity in history.activities[worker, 0]:
            if activity.work == "gradient" or activity.end <= activity.start:
                continue
            near = busy[max(0, bisect_right(starts, activity.start) - 1): bisect_right(starts, activity.end)]
            free = _outside(near, activity.start, min(activity.end, trace.seconds))
            pieces = (explain(history, worker, activity) if activity.message
                      else [(activity.start, activity.end, _own(activity))])
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


def _charge(free: list[Interval],
            pieces: Iterable[tuple[float, float, str]]) -> Iterator[tuple[str, float, float]]:
    """Assign each free moment to the first piece that covers it, and the rest to straggling."""
    for a, b, cause in pieces:
        rest = []
        for x, y in free:
            lo, hi = max(a, x), min(b, y)
            if hi > lo:
                yield cause, lo, hi
                rest += [(x, lo), (hi, y)]
            else:
                rest.append((x, y))
        free = [(x, y) for x, y in rest if y > x]
    for x, y in free:
        yield "straggling", x, y
