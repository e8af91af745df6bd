"""Metrics of a run: bytes, throughput, staleness, clock gaps and idle times.

Each function is of the trace, the same for every runtime, and an attribute of `Trace` with the same name.
`METRICS` says which numbers a result has, in which units and in which words.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from refsgd.trace.events import UNORDERED, Added, Computed, Crashed, Event, Loaded, Marked, Returned, Sent
from refsgd.trace.waiting import waiting_by_cause

if TYPE_CHECKING:
    from refsgd.trace.run import Trace


# -- counting ----------------------------------------------------------------------------------------------


def bytes_sent(trace: Trace) -> dict[str, int]:
    """Payload bytes sent to others, by node."""
    out = dict.fromkeys(trace.nodes, 0)
    for e in trace.of(Sent):
        if e.to != e.node:
            out[e.node] += e.nbytes
    return out


def messages(trace: Trace) -> int:
    """Number of messages between nodes."""
    return sum(e.to != e.node for e in trace.of(Sent))


def updates(trace: Trace) -> dict[str, int]:
    """Updates of parameters, by the node that applied them."""
    return dict(Counter(e.node for e in trace.marks("update")))


def iterations(trace: Trace) -> dict[str, int]:
    """Gradients computed, by worker."""
    counts = Counter(e.node for e in trace.gradients)
    return {w: counts[w] for w in trace.workers}


def _returned(trace: Trace) -> dict[str, float]:
    """When each main program returned, by node; for a restarted one, when it last returned."""
    ends: dict[str, float] = {}
    for e in trace.of(Returned):
        if e.program == 0:
            ends[e.node] = max(ends.get(e.node, 0.0), e.time)
    return ends


def dead(trace: Trace) -> dict[str, float]:
    """When each node died whose main program never returned; a restarted program may return later."""
    ends = _returned(trace)
    return {e.node: e.time for e in trace.of(Crashed) if e.node not in ends}


def attendance(trace: Trace) -> dict[str, float]:
    """The share of the run during which each worker lived."""
    return {w: min(1.0, trace.dead[w] / trace.seconds) if w in trace.dead and trace.seconds else 1.0
            for w in trace.workers}


def completed(trace: Trace) -> dict[str, tuple[int, float]]:
    """Iterations of each worker until its own end, and the time of that end.

    If late gradients are dropped, skipped iterations count.
    """
    counts, ends = trace.iterations, _returned(trace) | trace.dead
    if any(e.values.get("reason", "late") == "late" for e in trace.marks("drop")):
        counts = dict.fromkeys(trace.workers, max(trace.updates.values(), default=0))
        for w in counts.keys() & trace.dead.keys():
            counts[w] = max(Counter(e.node for e in trace.marks("update") if e.time <= ends[w]).values(),
                            default=0)
    return {w: (count, ends.get(w, 0.0)) for w, count in counts.items() if count or w not in trace.dead}


def rates(trace: Trace) -> dict[str, float]:
    """Iterations per second of each worker until its own end: its return or its death.

    Workers that died in their first iteration are left out.  If late gradients are dropped, workers skip
    iterations: each completes as many as there are updates until its end.
    """
    return {w: count / end if end > 0 else 0.0 for w, (count, end) in trace.completed.items()}


def iteration_rate(trace: Trace) -> float:
    """Sum of the workers' `rates`, each until the worker's own end."""
    return sum(trace.rates.values())


def number_images(trace: Trace, images: Callable[[str, int], int]) -> None:
    """Add `images` to marks of updates that lack them, from ``images(worker, t)`` of each gradient.

    The gradients in `reads` are of the mark's iteration ``t``, or else each worker's follow one another.  One
    that several nodes apply to the same part counts at the first of them.
    """
    applied, known = Counter[tuple[str, str]](), Counter[tuple[Any, str]]()  # by worker: by node, of a part
    for e in trace.marks("update"):
        if "images" not in e.values:
            found = 0
            for worker, _ in e.values.get("reads", ()):
                k, place = applied[e.node, worker], (_part(trace, e), worker)
                applied[e.node, worker] += 1
                if k >= known[place]:
                    known[place] += 1
                    found += images(worker, e.values.get("t", k))
            e.values["images"] = found


def _part(trace: Trace, mark: Marked) -> Any:
    """The part of the parameters that a mark is about; servers that do not say have one each."""
    return mark.values.get("part", 0 if trace.is_worker(mark.node) else mark.node)


def applied(trace: Trace) -> list[tuple[float, int]]:
    """When gradients were applied, and how many images all gradients had that were applied until then.

    Every part of the parameters gets every gradient, so the part that has got most images counts.  What a
    replica repeats after a restart from older parameters counts once.
    """
    parts, seen, most, out = Counter[Any](), set[tuple[str, int]](), 0, list[tuple[float, int]]()
    for e in trace.of(Marked):
        again = trace.is_worker(e.node) and (e.node, e.values.get("t")) in seen
        if "images" in e.values and not again:
            if "t" in e.values:
                seen.add((e.node, e.values["t"]))
            part = _part(trace, e)
            parts[part] += e.values["images"]
            most = max(most, parts[part])
            out.append((e.time, most))
    return out


def images(trace: Trace, until: float = inf) -> int:
    """Images in all gradients that were applied until some time.

    Parameters
    ----------
    trace : Trace
    until : float
        Seconds; by default the whole run.

    Returns
    -------
    int
    """
    k = bisect_right(trace.applied, until, key=itemgetter(0))
    return trace.applied[k - 1][1] if k else 0


def images_per_second(trace: Trace) -> float:
    """Images in applied gradients over the seconds of the run; 0 for an empty run."""
    return trace.images() / trace.seconds if trace.seconds else 0.0


# -- staleness and clocks ----------------------------------------------------------------------------------


class _Ours(int):
    """A version that no program has counted: a longer trace may count an earlier update."""


def number_updates(events: Sequence[Event]) -> None:
    """Add `version` and `reads` to marks of updates to shared cells that lack them; programs that count would
    race.

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
        if isinstance(mark.values.get("version", _Ours()), _Ours):
            mark.values.update(version=_Ours(version), reads=((mark.node, bisect_left(ends, read)),))


def staleness(trace: Trace) -> list[tuple[str, int]]:
    """(worker, tau) of every gradient applied to every part.

    tau is the number of updates applied to the same parameters after they were read for the gradient and
    before the gradient was applied.  An update is a change by gradients, marked as such.  An average with
    other replicas is not an update: each gradient in it is counted where it was applied.
    """
    return [(w, e.values["version"] - read) for e in trace.marks("update")
            for w, read in e.values.get("reads", ())]


def staleness_histogram(trace: Trace) -> dict[int, int]:
    """Number of gradients by staleness, over all parts."""
    return dict(sorted(Counter(tau for _, tau in trace.staleness).items()))


def outstanding_age(trace: Trace) -> int:
    """Updates since each worker's last read, for which no gradient was applied, over all parts.

    The identity of asynchronous SGD: if every worker reads right after its own update, this number and the
    sum of `staleness` add up to (n - 1) x updates.
    """
    total, version = 0, Counter(trace.updates)
    last: dict[tuple[str, str], int] = {}
    for e in trace.marks("update"):
        for worker, _ in e.values["reads"]:
            last[worker, e.node] = e.values["version"] + 1
    for worker in trace.workers:
        for server in version:
            total += version[server] - last.get((worker, server), 0)
    return total


def _clock_steps(trace: Trace) -> list[tuple[float, int, int, str]]:
    """(time, 2 for a start or 0 for an end, iteration, worker) of every gradient, in order.

    At one time, ends come before starts.  Deaths come between them, as 1: a worker that receives `Died` may
    start immediately.
    """
    steps, started = [(time, 1, 0, node) for node, time in trace.dead.items()], Counter[str]()
    for e in trace.gradients:
        if trace.is_worker(e.node):
            t = started[e.node]
            started[e.node] += 1
            steps += [(e.start, 2, t, e.node), (e.time, 0, t, e.node)]
    return sorted(steps)


def gaps(trace: Trace) -> tuple[int, int]:
    """`clock_gap` and `lead`, computed together."""
    done, gap, lead = dict.fromkeys(trace.workers, 0), 0, 0
    at, slowest = Counter(done.values()), 0  # number of workers by completed iterations
    for _, what, _, worker in _clock_steps(trace):
        if worker not in done:  # dead
            continue
        if what == 2:
            gap = max(gap, done[worker] - slowest)
            continue
        if what == 1:  # no worker waits for the dead one
            del done[worker]
            at, slowest = Counter(done.values()), min(done.values(), default=slowest)
            continue
        at[done[worker]] -= 1
        done[worker] += 1
        at[done[worker]] += 1
        slowest += not at[slowest]
        lead = max(lead, done[worker] - slowest)
    return gap, lead


def clock_gap(trace: Trace) -> int:
    """Largest c - min_j (iterations that a living j completed) when a worker *started* c; SSP: at most s."""
    return trace.gaps[0]


def lead(trace: Trace) -> int:
    """Largest difference of *completed* iterations between living workers at one time; SSP: at most s + 1."""
    return trace.gaps[1]


# -- idleness ----------------------------------------------------------------------------------------------


def busy(trace: Trace) -> dict[str, float]:
    """Seconds in which each worker computed gradients; overlapping computations count once."""
    total, until = dict.fromkeys(trace.workers, 0.0), dict.fromkeys(trace.workers, 0.0)
    computing = [e for e in trace.of(Computed) if e.work == "gradient"]
    for e in sorted(computing, key=lambda e: (e.start, e.time)):
        if e.node in total:
            total[e.node] += max(0.0, min(e.time, trace.seconds) - max(until[e.node], e.start))
            until[e.node] = max(until[e.node], e.time)
    return total


def idle_ratio(trace: Trace) -> float:
    """Share of the workers' lifetimes without computing gradients; 0 for an empty run.

    `refsgd.trace.waiting.waiting_by_cause` divides it by cause.
    """
    lived = sum(trace.attendance.values())
    if not trace.seconds or not lived:
        return 0.0
    return 1 - sum(trace.busy.values()) / lived / trace.seconds


def phases(trace: Trace) -> dict[str, float]:
    """Mean seconds of each kind of computation and of messages on their way, with waits at links.

    A push goes from a worker to a server, a pull is the answer's way back, an exchange is between workers; of
    a gradient in pieces, the forward pass counts apart, too.
    """
    took, forward = defaultdict[str, list[float]](list), 0.0
    for e in trace.gradients:
        took["gradient"].append(e.time - e.start)
    for e in trace.of(Computed):
        if e.work != "gradient":
            took[e.work].append(e.time - e.start)
        elif e.piece is not None and e.piece[0] == "forward":
            forward += e.time - e.start
    if forward and "gradient" in took:
        took["forward"].append(forward / len(took["gradient"]))
    for m in trace.transits:
        if m.src != m.to:
            up = "exchange" if trace.is_worker(m.to) else "push"
            took[up if trace.is_worker(m.src) else "pull"].append(m.arrival - m.sent)
    return {what: sum(seconds) / len(seconds) for what, seconds in sorted(took.items())}


def overrun_ratio(trace: Trace) -> float:
    """The workers' computing time beyond the drawn times, relative to these; a server's are too short."""
    late = [trace.lateness[w] for w in trace.workers if w in trace.lateness]
    drawn = sum(t["drawn"] for t in late)
    return sum(t["overrun"] for t in late) / drawn if drawn else 0.0


# -- the table ---------------------------------------------------------------------------------------------


class Metric(NamedTuple):
    """One metric of a run: what every table, picture, page and file says of it."""

    name: str  #: its key in `Result.measured`, and in `Result.predicted` if there is a prediction
    unit: str  #: "1" of a share or ratio; "" of words and objects
    label: str  #: in tables and on axes
    meaning: str  #: in one clause
    #: its value, from a `Trace`, whose properties have types only after this file; None: no trace has it
    of: Callable[[Any], Any] | None = None
    predicted: Literal["formula", "sizes", ""] = "formula"  #: sizes: of the run's parts
    #: "run" if it grows with a run, else that of which it is a mean or share; "" of a rate or an extreme
    per: Literal["", "run", "seconds", "gradients"] = ""
    by: str = ""  #: what the keys are, if it is a mapping
    head: str = ""  #: of a column
    scale: float = 1.0  #: to the unit in `head`
    pattern: str = "{:.0f}"
    details: str = ""  #: what else a reader must know

    def text(self, value: float) -> str:
        """A value as it stands under `head`."""
        return self.pattern.format(value * self.scale)


METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (
    Metric("seconds_per_iteration", "s", "seconds per iteration",
           "time until each worker's own end divided by its iterations, mean of the workers",
           lambda t: len(t.rates) / t.iteration_rate if t.iteration_rate else 0.0,
           head="ms per\niteration", scale=1e3, pattern="{:.2f}"),
    Metric("images_per_second", "images/s", "images per second", "images of applied gradients per second",
           images_per_second, per="seconds", head="images/s"),
    Metric("seconds", "s", "seconds of the run", "time until the last main program returned",
           lambda t: t.seconds, per="run", pattern="{:.3f}",
           details="virtual in the simulator, wall-clock otherwise"),
    Metric("updates", "updates", "updates", "updates of one server; without servers, of one worker",
           lambda t: max(t.updates.values(), default=0), per="run"),
    Metric("bytes_per_iteration", "bytes", "bytes per iteration", "bytes sent divided by the steps"),
    Metric("bytes_sent", "bytes", "bytes sent", "payload of all messages: arrays and declared scalars",
           lambda t: sum(t.bytes_sent.values()), per="run", head="MB\nsent", scale=1e-6, pattern="{:.3f}",
           details="headers, requests and the first distribution of the model are not counted"),
    Metric("bytes_sent_by_node", "bytes", "bytes sent by each node", "the same by sender",
           lambda t: dict(t.bytes_sent), predicted="", by="node"),
    Metric("messages", "messages", "messages", "messages between nodes", lambda t: t.messages, predicted=""),
    Metric("idle_ratio", "1", "idle share of a worker's time", "share of a worker's time without computing",
           lambda t: t.idle_ratio, per="seconds", head="idle", pattern="{:.1%}",
           details="mean over the workers, each until it dies"),
    Metric("idle_by_cause", "1", "idle share by cause", "the same by cause; the causes sum to it",
           waiting_by_cause, per="seconds", by="cause"),
    Metric("staleness_mean", "updates", "mean staleness", "updates that a gradient missed",
           lambda t: sum(tau for _, tau in t.staleness) / max(1, len(t.staleness)), per="gradients",
           head="staleness\nmean", pattern="{:.2f}", details="mean over gradients and parts"),
    Metric("staleness_max", "updates", "largest staleness", "most updates that a gradient missed",
           lambda t: max(t.staleness_histogram, default=0), head="staleness\nmax"),
    Metric("staleness_histogram", "gradients", "gradients by staleness",
           "gradients by the updates that they missed",
           lambda t: {str(tau): count for tau, count in t.staleness_histogram.items()}, predicted="",
           by="staleness"),
    Metric("clock_gap_max", "iterations", "largest clock gap (started)",
           "iterations by which a worker that starts one is ahead of the slowest", lambda t: t.clock_gap),
    Metric("lead_max", "iterations", "largest lead (completed)",
           "largest difference of the workers' completed iterations", lambda t: t.lead),
    Metric("phase_seconds", "s", "seconds by phase", "mean seconds of computations and messages, by kind",
           phases, predicted="", per="gradients", by="phase",
           details="push: to a server; pull: its answer; exchange: between workers"),
    Metric("overrun_ratio", "1", "computing beyond the drawn times",
           "computing time of the workers beyond the drawn times, relative to these", overrun_ratio,
           predicted="", pattern="{:.1%}", details="trust a paced run only if it is small"),
    Metric("largest_server", "1", "fullest server over the mean",
           "bytes of the fullest server divided by the mean over servers", predicted="sizes",
           pattern="{:.2f}", details="where `--layout` is not `equal`"),
    *(Metric(f"memory_{role}", "bytes", f"memory of a {role}", f"bytes that the fullest {role} holds",
             predicted="sizes", scale=1e-6, pattern="{:.2f}",
             details="parameters, gradient, state of the update rule, activations by the net's plan, what an "
                     "update creates; without the interpreter and the data")
      for role in ("worker", "server", "stage")),
    Metric("not_finite", "", "numbers that are not finite",
           "where the first such numbers were, in words; absent if there are none", predicted=""),
    Metric("resources", "", "resources by process",
           "processor time, memory, files, bytes and messages in and out", predicted="", by="process",
           details="with `--monitor`; `predicted` is the sum of what its nodes hold"))}
#: names of the metrics that formulas or simulated runs predict, in printing order
PREDICTED = tuple(metric.name for metric in METRICS.values() if metric.predicted == "formula")


def measure(trace: Trace, warmup: int = 0) -> dict[str, Any]:
    """The metrics of a trace, by name; rates, shares and means without the first `warmup` iterations of each
    worker."""
    whole = {name: metric.of(trace) for name, metric in METRICS.items() if metric.of}
    warm = trace.after(warmup) if warmup else trace
    return whole | {name: metric.of(warm) for name, metric in METRICS.items() if warmup and metric.of and (
        name == "seconds_per_iteration" or metric.per in ("seconds", "gradients"))}
