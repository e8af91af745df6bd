"""Metrics of a run, each a function of its trace; `Trace` has them as attributes of the same names.

Bytes, throughput, staleness, clock gaps and idle times are computed only from events, in the same way for
every runtime.  `refsgd.trace.waiting` computes the causes of waiting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from refsgd.trace.events import Computed, Crashed, Marked, Returned, Sent

if TYPE_CHECKING:
    from refsgd.trace.run import Trace

#: causes of waiting, see `refsgd.trace.waiting`
CAUSES = ("transfer", "queueing", "straggling", "slack", "partner", "update", "codec")


# -- counting ----------------------------------------------------------------------------------------------


def bytes_sent(trace: Trace) -> dict[str, int]:
    """Payload bytes sent to others, by node."""
    out = dict.fromkeys(trace.nodes, 0)
    for e in trace.of(Sent):
        if e.to != e.node:
            out[e.node] += e.nbytes
    return out


def messages(trace: Trace) -> int:
    """Messages that all nodes sent to others."""
    return sum(e.to != e.node for e in trace.of(Sent))


def updates(trace: Trace) -> dict[str, int]:
    """Updates of parameters, by the node that applied them."""
    return dict(Counter(e.node for e in trace.marks("update")))


def iterations(trace: Trace) -> dict[str, int]:
    """Gradients computed, by worker."""
    counts = Counter(e.node for e in trace.gradients)
    return {w: counts[w] for w in trace.workers}


def _returned(trace: Trace) -> dict[str, float]:
    """When each main program returned, by node; the last time if it was restarted."""
    ends: dict[str, float] = {}
    for e in trace.of(Returned):
        if e.program == 0:
            ends[e.node] = max(ends.get(e.node, 0.0), e.time)
    return ends


def dead(trace: Trace) -> dict[str, float]:
    """When each node died whose main program never returned; a restarted one may have returned."""
    ends = _returned(trace)
    return {e.node: e.time for e in trace.of(Crashed) if e.node not in ends}


def attendance(trace: Trace) -> dict[str, float]:
    """The share of the run for which each worker lived: 1, or less for the dead."""
    return {w: min(1.0, trace.dead[w] / trace.seconds) if w in trace.dead and trace.seconds else 1.0
            for w in trace.workers}


def completed(trace: Trace) -> dict[str, tuple[int, float]]:
    """Iterations of each worker until its own end, and that end.

    If late gradients are dropped, the iterations that a worker skipped count.
    """
    counts, ends = trace.iterations, _returned(trace) | trace.dead
    if trace.marks("drop"):
        counts = dict.fromkeys(trace.workers, max(trace.updates.values(), default=0))
        for w in counts.keys() & trace.dead.keys():
            counts[w] = max(Counter(e.node for e in trace.marks("update") if e.time <= ends[w]).values(),
                            default=0)
    return {w: (count, ends.get(w, 0.0)) for w, count in counts.items() if count or w not in trace.dead}


def rates(trace: Trace) -> dict[str, float]:
    """Iterations per second of each worker until its own end: its return or its death.

    A worker that died before it had completed an iteration has no rate and is left out.  If late gradients
    are dropped, workers skip iterations: each completes as many as there are updates until its end.
    """
    return {w: count / end if end > 0 else 0.0 for w, (count, end) in trace.completed.items()}


def iteration_rate(trace: Trace) -> float:
    """Iterations per second of all workers together; each worker's rate counts until its own end, see
    `rates`."""
    return sum(trace.rates.values())


def overall_rate(trace: Trace) -> float:
    """Iterations per second of all workers together over the whole run: a worker that has ended
    counts as idle."""
    return sum(count for count, _ in trace.completed.values()) / trace.seconds if trace.seconds else 0.0


# -- staleness and clocks ----------------------------------------------------------------------------------


def staleness(trace: Trace) -> list[tuple[str, int]]:
    """(worker, tau) of every gradient applied to every part.

    tau is the number of updates applied to the same parameters between the read from which the gradient was
    computed and its own application.  An update is a change by gradients, marked as such.  An average with
    other replicas is not an update, since each gradient in it is counted where it was applied.
    """
    return [(w, e.values["version"] - read) for e in trace.marks("update")
            for w, read in e.values.get("reads", ())]


def staleness_histogram(trace: Trace) -> dict[int, int]:
    """Number of gradients by staleness, parts pooled."""
    return dict(sorted(Counter(tau for _, tau in trace.staleness).items()))


def outstanding_age(trace: Trace) -> int:
    """Updates since the last read of each worker whose next gradient was never applied, parts pooled.

    Together with `staleness` it satisfies the identity of asynchronous SGD: their sum is (n - 1) x updates if
    every worker reads right after its own update.
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
    """(time, 2 for a start or 0 for an end, iteration, worker) of every gradient; at one time ends come
    first, early iterations before late ones.

    Deaths come between them, as 1: a worker that receives `Died` may start immediately.
    """
    steps, started = [(time, 1, 0, node) for node, time in trace.dead.items()], Counter[str]()
    for e in trace.gradients:
        if trace.is_worker(e.node):
            t = started[e.node]
            started[e.node] += 1
            steps += [(e.start, 2, t, e.node), (e.time, 0, t, e.node)]
    return sorted(steps)


def gaps(trace: Trace) -> tuple[int, int]:
    """`clock_gap` and `lead`."""
    done, gap, lead = dict.fromkeys(trace.workers, 0), 0, 0
    at, slowest = Counter(done.values()), 0  # number of workers by completed iterations
    for _, what, _, worker in _clock_steps(trace):
        if worker not in done:  # dead: its last action may have taken no time
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
    """Largest c - min_j (iterations completed by j) at which a worker *started* iteration c (SSP: at
    most s); j lives."""
    return trace.gaps[0]


def lead(trace: Trace) -> int:
    """Largest difference of *completed* iterations between two living workers at one time (SSP: at
    most s + 1)."""
    return trace.gaps[1]


def replica_spread(trace: Trace) -> list[tuple[float, float]]:
    """(seconds, consensus distance) at the iterations whose replicas were kept; see `Thinner`.

    The distance is the mean squared distance (1/n) sum_i |x_i - mean|^2 of the workers' parameters after
    an iteration t, from the marks of workers that carry ``t`` and ``x``; the time is that of the last
    worker.  Empty if fewer than two workers mark a replica.
    """
    rows: dict[int, dict[str, Marked]] = defaultdict(dict)
    for e in trace.of(Marked):
        if trace.is_worker(e.node) and "x" in e.values and "t" in e.values:
            rows[e.values["t"]][e.node] = e
    most = max(map(len, rows.values()), default=0)
    out = []
    for _, found in sorted(rows.items()):
        if len(found) == most > 1:
            x = np.stack([e.values["x"] for e in found.values()]).astype(float)
            out.append((max(e.time for e in found.values()),
                        float(np.sum((x - x.mean(axis=0)) ** 2) / most)))
    return out


# -- idleness ----------------------------------------------------------------------------------------------


def busy(trace: Trace) -> dict[str, float]:
    """Seconds of gradient computing of each worker until the end of the run; overlapping ones count once."""
    total, until = dict.fromkeys(trace.workers, 0.0), dict.fromkeys(trace.workers, 0.0)
    computing = [e for e in trace.of(Computed) if e.work == "gradient"]
    for e in sorted(computing, key=lambda e: (e.start, e.time)):
        if e.node in total:
            total[e.node] += max(0.0, min(e.time, trace.seconds) - max(until[e.node], e.start))
            until[e.node] = max(until[e.node], e.time)
    return total


def idle_ratio(trace: Trace) -> float:
    """1 - (time computing gradients) / elapsed, mean over workers; 0 for an empty run.

    A worker that died counts for its lifetime.  By cause:
    `refsgd.trace.waiting.waiting_by_cause`.
    """
    lived = sum(trace.attendance.values())
    if not trace.seconds or not lived:
        return 0.0
    return 1 - sum(trace.busy.values()) / lived / trace.seconds
