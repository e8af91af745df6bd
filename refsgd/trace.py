"""What happened: one type of event on one clock from every runtime, and every figure computed from it.

An algorithm never times itself.  A runtime writes events; bytes, throughput, staleness, clock gaps and waiting
are functions of them (why workers wait: `refsgd.waiting`).  Times are seconds since the common start: virtual in the simulator,
nominal in paced processes, real in unpaced ones.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

#: why a worker waits, see `refsgd.waiting`
CAUSES = ("transfer", "queueing", "straggling", "slack", "partner", "update")


class Event(NamedTuple):
    """One thing that a program did, or that happened to it.

    `kind` and what `data` then holds (times in seconds, sizes in bytes):

    ========= ==========================================================================================
    compute   at its end: ``start``, ``work`` (the kind of the Compute), ``late`` (real processes)
    send      ``to``, ``message``, ``number`` (of this channel), ``bytes``, ``start`` (of the transmission)
    receive   ``src``, ``message``, ``number``, ``bytes``, ``since`` (start of the wait), ``arrival``
    choose    ``option``
    poll      ``src`` or None, ``message``, ``number``
    mark      ``name`` and the mark's own values
    load, add ``part`` of a shared cell, ``ticket``: the common order of locked accesses (real processes)
    return    the program has ended
    died      the node's process has ended before its programs: ``reason``; of real processes ``silent``, seconds from
              its last sign of life until that was known
    ========= ==========================================================================================
    """

    time: float
    node: str
    program: int
    kind: str
    data: dict[str, Any]


class Transit(NamedTuple):
    """A message from its Send to its delivery: when sent, transmitted (start, head), arrived, received."""

    src: str
    to: str
    message: str
    number: int
    nbytes: int
    sent: float
    start: float
    arrival: float
    received: float


def is_worker(node: str) -> bool:
    """Whether a node counts as a worker: every node that is not a server.

    Parameters
    ----------
    node : str
        Its name.

    Returns
    -------
    bool
    """
    return not node.startswith("server")


@dataclass
class Trace:
    """The events of one run in order of time.

    Parameters
    ----------
    events : list of Event
    nodes : sequence of str
        All nodes in the deployment's order.
    seconds : float
        When the last main program returned.
    latency, bandwidth : float
        Of the emulated link [s, bytes/s], to tell transfer from queueing; 0 and inf where nothing is emulated.
    lateness : dict of str to dict
        How late each node's real process was, by figure; empty in virtual time.
    """

    events: list[Event]
    nodes: Sequence[str]
    seconds: float
    latency: float = 0.0
    bandwidth: float = float("inf")
    lateness: dict[str, dict[str, float]] = field(default_factory=dict)

    def of(self, kind: str, node: str | None = None) -> list[Event]:
        """Events of one kind, of all nodes or of one.

        Parameters
        ----------
        kind : str
            See `Event`.
        node : str, optional
            Its name.

        Returns
        -------
        list of Event
            In order of time.
        """
        return [e for e in self._by_kind.get(kind, ()) if node is None or e.node == node]

    @cached_property
    def _by_kind(self) -> dict[str, list[Event]]:
        kinds: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            kinds[event.kind].append(event)
        return kinds

    def marks(self, name: str) -> list[Event]:
        """Marks of one name.

        Parameters
        ----------
        name : str
            Of the mark.

        Returns
        -------
        list of Event
            In order of time.
        """
        return [e for e in self.of("mark") if e.data["name"] == name]

    @property
    def workers(self) -> list[str]:
        """Nodes that compute gradients: those named worker or peer, and others that are no servers and have computed one."""
        computed = {e.node for e in self.of("compute") if e.data["work"] == "gradient"}
        return [n for n in self.nodes if is_worker(n) and (n.startswith(("worker", "peer")) or n in computed)]

    # -- counting ------------------------------------------------------------------------------------------

    @cached_property
    def bytes_sent(self) -> dict[str, int]:
        """Payload bytes that each node handed over, by node."""
        out = dict.fromkeys(self.nodes, 0)
        for e in self.of("send"):
            out[e.node] += e.data["bytes"]
        return out

    @property
    def messages(self) -> int:
        """Messages sent by all nodes."""
        return len(self.of("send"))

    @cached_property
    def updates(self) -> dict[str, int]:
        """Updates of parameters, by the node that applied them."""
        return dict(Counter(e.node for e in self.marks("update")))

    @cached_property
    def iterations(self) -> dict[str, int]:
        """Gradients computed, by worker."""
        counts = Counter(e.node for e in self.of("compute") if e.data["work"] == "gradient")
        return {w: counts[w] for w in self.workers}

    @cached_property
    def _returned(self) -> dict[str, float]:
        """When each main program returned, by node; of one that was started again, the last time."""
        ends: dict[str, float] = {}
        for e in self.of("return"):
            if e.program == 0:
                ends[e.node] = max(ends.get(e.node, 0.0), e.time)
        return ends

    @cached_property
    def dead(self) -> dict[str, float]:
        """When each node died whose main program never returned: one that was started again may have."""
        return {e.node: e.time for e in self.of("died") if e.node not in self._returned}

    @cached_property
    def attendance(self) -> dict[str, float]:
        """The share of the run for which each worker lived: 1, or less for the dead."""
        return {w: min(1.0, self.dead[w] / self.seconds) if w in self.dead and self.seconds else 1.0 for w in self.workers}

    @cached_property
    def _completed(self) -> dict[str, tuple[int, float]]:
        """Iterations of each worker until its own end, and that end; where late gradients are dropped, those that it skipped count."""
        counts, ends = self.iterations, self._returned | self.dead
        if self.marks("drop"):
            counts = dict.fromkeys(self.workers, max(self.updates.values(), default=0))
            for w in counts.keys() & self.dead.keys():
                counts[w] = max(Counter(e.node for e in self.marks("update") if e.time <= ends[w]).values(), default=0)
        return {w: (count, ends.get(w, 0.0)) for w, count in counts.items() if count or w not in self.dead}

    @cached_property
    def rates(self) -> dict[str, float]:
        """Iterations per second of each worker until its own end: its return, or else its death.

        One that died before it had completed an iteration has no rate, and is left out.  Where late gradients are dropped, a
        worker skips iterations: all go through as many as there are updates until their end.
        """
        return {w: count / end if end > 0 else 0.0 for w, (count, end) in self._completed.items()}

    @property
    def iteration_rate(self) -> float:
        """Iterations per second of all workers together; each worker's rate counts until its own end, see `rates`."""
        return sum(self.rates.values())

    @property
    def overall_rate(self) -> float:
        """Iterations per second of all workers together over the whole run: a worker that has ended counts as idle."""
        return sum(count for count, _ in self._completed.values()) / self.seconds if self.seconds else 0.0

    # -- staleness and clocks ------------------------------------------------------------------------------

    @cached_property
    def staleness(self) -> list[tuple[str, int]]:
        """(worker, tau) of every gradient applied to every slice; tau = updates applied between its read and itself."""
        return [(w, e.data["version"] - read) for e in self.marks("update") for w, read in e.data.get("reads", ())]

    @property
    def staleness_histogram(self) -> dict[int, int]:
        """How many gradients (slices pooled) had each staleness."""
        return dict(sorted(Counter(tau for _, tau in self.staleness).items()))

    def outstanding_age(self) -> int:
        """Updates since the last read of each worker whose next gradient was never applied, slices pooled.

        With `staleness` it makes the identity of asynchronous SGD: their sum is (n - 1) x updates if every
        worker reads right after its own update.
        """
        total, version = 0, Counter(self.updates)
        last: dict[tuple[str, str], int] = {}
        for e in self.marks("update"):
            for worker, _ in e.data["reads"]:
                last[worker, e.node] = e.data["version"] + 1
        for worker in self.workers:
            for server in version:
                total += version[server] - last.get((worker, server), 0)
        return total

    def _clock_steps(self) -> list[tuple[float, int, int, str]]:
        """(time, 2 for a start or 0 for an end, iteration, worker) of every gradient; at one time ends come first, and of them early iterations.

        Between them the deaths, as 1: whoever is told of one may start.
        """
        steps, started = [(time, 1, 0, node) for node, time in self.dead.items()], Counter[str]()
        for e in self.of("compute"):
            if e.data["work"] == "gradient" and is_worker(e.node):
                t = started[e.node]
                started[e.node] += 1
                steps += [(e.data["start"], 2, t, e.node), (e.time, 0, t, e.node)]
        return sorted(steps)

    @cached_property
    def _gaps(self) -> tuple[int, int]:
        done, gap, lead = dict.fromkeys(self.workers, 0), 0, 0
        at, slowest = Counter(done.values()), 0  # how many workers have completed so many
        for _, what, _, worker in self._clock_steps():
            if worker not in done:  # dead: it may have taken no time for what it did last
                continue
            if what == 2:
                gap = max(gap, done[worker] - slowest)
                continue
            if what == 1:  # nobody waits for the dead
                del done[worker]
                at, slowest = Counter(done.values()), min(done.values(), default=slowest)
                continue
            at[done[worker]] -= 1
            done[worker] += 1
            at[done[worker]] += 1
            slowest += not at[slowest]
            lead = max(lead, done[worker] - slowest)
        return gap, lead

    @property
    def clock_gap(self) -> int:
        """Largest c - min_j (iterations completed by j) at which a worker *started* iteration c (SSP: at most s); j lives."""
        return self._gaps[0]

    @property
    def lead(self) -> int:
        """Largest difference of *completed* iterations between two living workers at one time (SSP: at most s + 1)."""
        return self._gaps[1]

    @cached_property
    def replica_spread(self) -> list[tuple[float, float]]:
        """(seconds, consensus distance) at the iterations whose replicas were kept; see `Thinner`.

        The distance is the mean squared distance (1/n) sum_i |x_i - mean|^2 of the workers' parameters after an iteration t,
        from the marks of workers that carry ``t`` and ``x``; the time is that of the last worker.  Empty where fewer than two
        workers mark a replica.
        """
        rows: dict[int, dict[str, Event]] = defaultdict(dict)
        for e in self.of("mark"):
            if is_worker(e.node) and "x" in e.data and "t" in e.data:
                rows[e.data["t"]][e.node] = e
        most = max(map(len, rows.values()), default=0)
        out = []
        for _, found in sorted(rows.items()):
            if len(found) == most > 1:
                x = np.stack([e.data["x"] for e in found.values()]).astype(float)
                out.append((max(e.time for e in found.values()), float(np.sum((x - x.mean(axis=0)) ** 2) / most)))
        return out

    # -- waiting -------------------------------------------------------------------------------------------

    @cached_property
    def busy(self) -> dict[str, float]:
        """Seconds of gradient computing of each worker until the end of the run (overlapping ones count once)."""
        out = {}
        for w in self.workers:
            total, end = 0.0, 0.0
            for e in sorted(self.of("compute", w), key=lambda e: (e.data["start"], e.time)):
                if e.data["work"] == "gradient":
                    total += max(0.0, min(e.time, self.seconds) - max(end, e.data["start"]))
                    end = max(end, e.time)
            out[w] = total
        return out

    @property
    def idle_ratio(self) -> float:
        """1 - (time computing gradients) / elapsed, mean over workers; 0 for an empty run.

        A worker that died counts for the time for which it lived.  By cause: `refsgd.waiting.waiting_by_cause`.
        """
        lived = sum(self.attendance.values())
        if not self.seconds or not lived:
            return 0.0
        return 1 - sum(self.busy.values()) / lived / self.seconds

    @cached_property
    def transits(self) -> list[Transit]:
        """All messages that were received, in order of reception."""
        sent = {(e.node, e.data["to"], e.data["number"]): e for e in self.of("send")}
        out = []
        for e in self.events:
            if e.kind == "receive" or (e.kind == "poll" and e.data["src"] is not None):
                s = sent.get((e.data["src"], e.node, e.data["number"]))
                if s is not None:
                    out.append(Transit(s.node, e.node, s.data["message"], s.data["number"], s.data["bytes"],
                                       s.time, s.data["start"], e.data["arrival"], e.time))
        return out

    # -- export --------------------------------------------------------------------------------------------

    def to_chrome(self) -> str:
        """The trace as JSON for Perfetto or chrome://tracing: a process per node, arrows for messages."""
        pid = {n: i for i, n in enumerate(self.nodes)}
        out: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": i, "tid": 0, "args": {"name": n}} for n, i in pid.items()
        ]

        def add(ph: str, name: str, e: Event, ts: float, **more: Any) -> None:
            out.append({"ph": ph, "name": name, "pid": pid[e.node], "tid": e.program, "ts": ts * 1e6, **more})

        for e in self.events:
            if e.kind == "compute":
                add("X", e.data["work"], e, e.data["start"], dur=(e.time - e.data["start"]) * 1e6, cat="compute")
            elif e.kind == "receive" and e.time > e.data["since"]:
                add("X", f"wait for {e.data['message']}", e, e.data["since"],
                    dur=(e.time - e.data["since"]) * 1e6, cat="wait", args={"src": e.data["src"]})
            elif e.kind == "mark":
                values = {k: v for k, v in e.data.items() if k not in ("x", "name")}
                add("i", e.data["name"], e, e.time, s="t", args=json.loads(json.dumps(values, default=str)))
        for t in self.transits:
            flow = {"cat": "message", "name": t.message, "id": f"{t.src}>{t.to}#{t.number}", "tid": 0}
            out.append({"ph": "s", "pid": pid[t.src], "ts": t.sent * 1e6, **flow})
            out.append({"ph": "f", "bp": "e", "pid": pid[t.to], "ts": t.received * 1e6, **flow})
        return json.dumps({"traceEvents": out, "displayTimeUnit": "ms"})


def merge(streams: Iterable[list[Event]]) -> list[Event]:
    """Join the events of several nodes in order of time, each node's own order kept.

    Parameters
    ----------
    streams : iterable of list of Event
        One for each node, in its order.

    Returns
    -------
    list of Event
    """
    every = [e for stream in streams for e in stream]
    every.sort(key=lambda e: e.time)
    return every


@dataclass(slots=True)
class _Kept:
    """Of the marks of one name of one node: how many came, and those that keep their `x`, each with its index."""

    count: int = 0
    stride: int = 1
    marks: list[tuple[int, Event]] = field(default_factory=list)


class Thinner:
    """Keeps `x` in at most `limit` evenly spaced marks of each name of each node, and drops it from the others.

    Kept are the iterations `t` (without one: the versions, else the counts of such marks) that are divisible by
    a stride, which doubles when more are held: a rule that every server follows alone, so that the slices of
    one version can be joined.  The events themselves stay.

    Parameters
    ----------
    limit : int
        Most `x` kept of each (node, name), >= 0.
    """

    def __init__(self, limit: int = 64) -> None:
        self.limit = limit
        self._kept: dict[tuple[str, str], _Kept] = defaultdict(_Kept)

    def __call__(self, event: Event) -> None:
        """Look at the next event of a run."""
        if event.kind != "mark" or "x" not in event.data:
            return
        data = event.data
        kept = self._kept[event.node, data["name"]]
        index = data["t"] if "t" in data else data.get("version", kept.count)
        kept.count += 1
        if index % kept.stride or (index == 0 and len(kept.marks) >= self.limit):
            del data["x"]
            return
        kept.marks.append((index, event))
        while len(kept.marks) > self.limit:
            kept.stride *= 2
            for i, e in kept.marks:
                if i % kept.stride:
                    del e.data["x"]
            kept.marks = [(i, e) for i, e in kept.marks if i % kept.stride == 0]


def thin(events: Iterable[Event], limit: int = 64) -> None:
    """Drop `x` from all but `limit` evenly spaced marks of each name of each node; see `Thinner`.

    Parameters
    ----------
    events : iterable of Event
        Changed in place.
    limit : int
        Most `x` kept of each (node, name).

    Examples
    --------
    >>> marks = [Event(0.0, "server0", 0, "mark", {"name": "update", "version": v, "x": v}) for v in range(100)]
    >>> thin(marks, 4)
    >>> [e.data["version"] for e in marks if "x" in e.data]
    [0, 32, 64, 96]
    """
    look = Thinner(limit)
    for event in events:
        look(event)


@dataclass
class Run:
    """What a runtime gives back: the trace and what every main program returned.

    Parameters
    ----------
    trace : Trace
    values : dict of str to object
        What main programs returned, by node.
    """

    trace: Trace
    values: dict[str, Any]
