"""A window of a trace as JSON values for the page, which holds changes instead of whole states."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from functools import cached_property
from itertools import pairwise
from typing import Any

from refsgd.cluster.units import counted
from refsgd.display.player.states import States, rank
from refsgd.display.player.why import Reason, Why
from refsgd.trace import CAUSES, Computed, Event, Marked, Received, Sent, Trace
from refsgd.trace.diagram import deed
from refsgd.trace.waiting import UNANSWERED, Program, Wait, waits

ALL = [*CAUSES, UNANSWERED]


class Tape:
    """The page's data for the events from `first` to `last` - 1.

    Position k is the moment after k events of the trace; in the JSON, positions count from `first`.
    """

    def __init__(self, trace: Trace, states: States, first: int, last: int, unit: str) -> None:
        self.trace, self.states, self.first, self.last, self.unit = trace, states, first, last, unit
        # what each program does at the end of the run, if the window reaches that
        self.ends = {key: column[-1][1] for key, column in states.stands.items() if last == len(trace.events)}
        self.why = Why(trace, states)
        self.events = trace.events[first:last]
        self.start = trace.events[first - 1].time if first else 0.0
        self.end = self.events[-1].time if self.events else 0.0
        keys = {(e.node, e.program)
                for e in trace.events[:last]} | set(states.stands) | {(n, 0) for n in trace.nodes}
        self.node = {n: i for i, n in enumerate(trace.nodes)}
        self.programs = sorted(keys, key=lambda key: (self.node[key[0]], key[1]))
        self.number = {key: i for i, key in enumerate(self.programs)}

    def _k(self, k: int) -> int:
        """A position of the trace, counted from the start of the window."""
        return max(0, k - self.first)

    def _after(self, i: int | None) -> int:
        """The position after event i; -1 if that is after the window."""
        return self._k(i + 1) if i is not None and i < self.last else -1

    def _before(self, key: Program, i: int) -> int:
        """The position in the trace after a program's last event before event i."""
        own = self.why.history.of.get(key, [])
        at = bisect_left(own, i)
        return own[at - 1] + 1 if at else 0

    def _clipped(self, a: float, b: float) -> tuple[float, float]:
        """The part of a time span inside the window."""
        return _time(max(a, self.start)), _time(min(b, self.end))

    def to_json(self) -> dict[str, Any]:
        """All data of the page."""
        # where time counts steps, a time in which the node has no event is no wait
        pieces = [w for w in waits(self.trace, {key: stand.pending for key, stand in self.ends.items()})
                  if w.message or w.cause != "straggling" or self.unit != "steps"]
        return {
            "unit": self.unit, "first": self.first, "total": len(self.trace.events),
            "start": _time(self.start), "end": _time(self.end),
            "nodes": list(self.trace.nodes), "workers": [self.trace.is_worker(n) for n in self.trace.nodes],
            "programs": [self._program(key) for key in self.programs],
            "times": [_time(e.time) for e in self.events],
            "events": [[self.number[e.node, e.program], kind_of(e), deed(e)] for e in self.events],
            "places": self.states.places, "note": self.states.note,
            "computing": self._computing(), "waiting": self._waiting(pieces), "blocks": self._blocks(pieces),
            "messages": self._messages(), "causes": ALL, "why": CAUSES, **self._ages(),
            **self._counts(), "stops": self._stops(), "base": self._base(pieces),
        }

    def _program(self, key: tuple[str, int]) -> dict[str, Any]:
        """The positions and local variables of a program, constant variables separately."""
        columns = self.states.locals.get(key, {})
        values = {name: [v for _, v in column if v is not None] for name, column in columns.items()}
        fixed = {name: values[name][0] for name, column in columns.items()
                 if len(values[name]) == 1 and column[0][0] <= self.first and rank(name) == rank("")}
        moves = {name: [[self._k(k), v] for k, v in columns[name]] for name in sorted(columns, key=rank)
                 if name not in fixed}
        stands = [[self._k(k), stand.place, stand.says] for k, stand in self.states.stands.get(key, [])]
        reasons = [[self._k(k), reason and reason.text, *((reason and reason.held and reason.place) or ())]
                   for k, reason in self.reasons[key]]
        return {"node": self.node[key[0]], "index": key[1],
                "name": self.states.names.get(key, ""), "stands": stands,
                "reasons": reasons, "locals": moves, "fixed": fixed}

    @cached_property
    def reasons(self) -> dict[Program, list[tuple[int, Reason | None]]]:
        """Why each main program waits, with the positions from which the reasons hold."""
        found: dict[Program, list[tuple[int, Reason | None]]] = {
            key: [(self.first, None)] for key in self.programs}
        for key in found:
            for k in range(self.first, self.last + 1) if not key[1] else ():
                reason = self.why.reason(key, k)
                if reason != found[key][-1][1]:
                    found[key].append((k, reason))
        return found

    # -- the diagram ---------------------------------------------------------------------------------------

    def _computing(self) -> list[list[Any]]:
        """Every Compute in the window: [program, start, end, work, position at its end (-1: open), name]."""
        out = [[self.number.get((e.node, e.program), 0), *self._clipped(e.start, e.time), e.work,
                self._after(i), e.what]
               for i, e in enumerate(self.trace.events) if isinstance(e, Computed)
               and e.time >= self.start and e.start <= self.end and e.time > e.start]
        for key, stand in self.ends.items():
            since, work = self._time_at(self._before(key, self.last)), stand.pending.work
            if work and since < self.end:
                out.append([self.number[key], *self._clipped(since, self.end), work, -1,
                            stand.says.removeprefix("computes: ")])
        return out

    def _waiting(self, pieces: list[Wait]) -> list[list[Any]]:
        """Every wait in the window, in pieces: [program, start, end, cause, position at its end]."""
        found = [((w.worker, 0), w.start, w.end, ALL.index(w.cause), self._taken(w)) for w in pieces]
        found += [((e.node, e.program), e.since, e.time, -1, i)  # servers without a request
                  for i, e in enumerate(self.trace.events)
                  if isinstance(e, Received) and not self.trace.is_worker(e.node)]
        return sorted([self.number[key], *self._clipped(a, b), cause, self._after(i)]
                      for key, a, b, cause, i in found if min(b, self.end) > max(a, self.start))

    def _taken(self, w: Wait) -> int | None:
        """The event that ends a wait."""
        m = w.message
        return self.why.history.taken.get((m.src, m.to, m.number)) if m else None

    def _blocks(self, pieces: list[Wait]) -> list[list[Any]]:
        """Every wait in the window: [program, from position, to position, explanation]."""
        by_event = defaultdict(list)
        for w in pieces:
            by_event[self._taken(w)].append(w)
        out = [[self.number[e.node, e.program], self._k(self._before((e.node, e.program), i)), self._k(i + 1),
                self._spent(e, by_event[i])] for i, e in enumerate(self.trace.events[:self.last])
               if isinstance(e, Received) and e.time > e.since and i >= self.first]
        return sorted(out, key=lambda block: block[1])

    def _base(self, pieces: list[Wait]) -> dict[str, float]:
        """The seconds of each cause, and of computing, before the window."""
        base = dict.fromkeys([*ALL, "computing"], 0.0)
        spans = [(w.cause, w.start, w.end) for w in pieces]
        spans += [("computing", e.start, e.time) for e in self.trace.of(Computed)
                  if e.work == "gradient" and self.trace.is_worker(e.node)]
        for cause, a, b in spans:
            base[cause] += max(0.0, min(b, self.start) - min(a, self.start))
        return {cause: _time(spent) for cause, spent in base.items()}

    def _spent(self, e: Received, pieces: list[Wait]) -> str:
        """The end of a wait for a message, and the causes of the whole wait."""
        spent: dict[str, float] = defaultdict(float)
        for w in pieces:
            spent[w.cause] += w.end - w.start
        causes = [f"{self._lasting(seconds)} {cause} ({CAUSES[cause]})"
                  for cause, seconds in sorted(spent.items(), key=lambda item: -item[1])
                  if seconds > 1e-3 * (e.time - e.since)]
        return f"until {self._clock(e.time)}" + ("; of the whole wait " + ", ".join(causes) if causes else "")

    def _time_at(self, k: int) -> float:
        return self.trace.events[min(k, self.last) - 1].time if k else 0.0

    def _clock(self, seconds: float) -> str:
        return f"step {seconds:g}" if self.unit == "steps" else f"{seconds * 1e3:.4g} ms"

    def _lasting(self, seconds: float) -> str:
        return counted(round(seconds), "step") if self.unit == "steps" else self._clock(seconds)

    # -- messages, ages, counts ----------------------------------------------------------------------------

    def _messages(self) -> list[list[Any]]:
        """Every message: [from program, to program, name, position and time of sending, arrival, position
        (-1: never) and time of receipt, bytes, body]."""
        out = []
        for i, e in enumerate(self.trace.events[:self.last]):
            if not isinstance(e, Sent) or e.to not in self.node:
                continue
            j = self.why.history.taken.get((e.node, e.to, e.number))
            if j is not None and j < self.first:
                continue
            arrival = self.why.history.transit((e.node, e.to, e.number)).arrival
            got = _time(self.trace.events[j].time) if j is not None and j < self.last else None
            taker = e.to, self.trace.events[j].program if j is not None else 0
            to = self.number.get(taker, self.number[e.to, 0])
            out.append([self.number[e.node, e.program], to, f"{e.message}#{e.number}", self._k(i + 1),
                        _time(e.time), None if arrival == float("inf") else _time(arrival), self._after(j),
                        got, e.nbytes, self.states.bodies.get(i, "")])
        return out

    def _ages(self) -> dict[str, Any]:
        """Every applied gradient: [position, staleness, worker]; and the histogram before the window."""
        ages, before = [], Counter[int]()
        for i, e in enumerate(self.trace.events[:self.last]):
            if isinstance(e, Marked) and e.name == "update":
                for worker, read in e.values.get("reads", ()):
                    tau = int(e.values["version"] - read)
                    if i < self.first:
                        before[tau] += 1
                    else:
                        ages.append([self._k(i + 1), tau, self.node.get(worker, -1)])
        return {"ages": ages, "agesBefore": dict(before)}

    def _counts(self) -> dict[str, Any]:
        """Counts of each worker's gradients and each node's updates: [position, value]."""
        found: dict[str, dict[int, dict[int, int]]] = {"gradients": {}, "updates": {}}
        for i, e in enumerate(self.trace.events[:self.last]):
            gradient = isinstance(e, Computed) and e.gradient_ended and self.trace.is_worker(e.node)
            if gradient or kind_of(e) == "update":
                column = found["gradients" if gradient else "updates"].setdefault(self.node[e.node], {0: 0})
                column[self._k(i + 1)] = next(reversed(column.values())) + 1
        return {what: {node: list(column.items()) for node, column in columns.items()}
                for what, columns in found.items()}

    def _stops(self) -> list[list[int]]:
        """Every point at which a worker begins to be held back: [position, program]."""
        out = []
        for key in ((node, 0) for node in self.trace.workers):
            known = False  # of this wait
            for (k, reason), (until, _) in pairwise([*self.reasons[key], (self.last + 1, None)]):
                lasts = until > self.last or self._time_at(until) > self._time_at(k)
                if reason and reason.held and lasts and not known:
                    out += [[self._k(k), self.number[key]]] if k > self.first else []
                    known = True
                known = known and reason is not None
        return sorted(out)


def kind_of(e: Event) -> str:
    """An event's kind, or the name of a mark."""
    return str(e.name) if isinstance(e, Marked) else e.kind


def _time(seconds: float) -> float:
    return round(float(seconds), 9)

