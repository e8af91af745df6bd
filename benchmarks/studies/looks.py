"""What studies read from traces: parts of an exchange, staleness by three definitions, gradients a second.

Each is a ``Look`` of `benchmarks.studies.lab`: a function of a result with its trace that gives JSON values.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from refsgd.experiment.result import Result
from refsgd.trace import Computed, Received, Sent, Trace

Bars = dict[str, list[tuple[float, float]]]  #: (start, end) by "row: what"


def exchanges(result: Result) -> dict[str, Any]:
    """Mean seconds of a gradient, an update, a push, a pull, and of the answer's way alone; and the share of the
    time in which a host computes.

    A push ends when the server has all the gradients that it waits for: then its update begins.  A pull ends
    when the updated weights have arrived, so it includes the update: MXNet's server answers a push once it
    has scheduled the update, and a pull of the same key once the weights are written (Response and WaitToRead
    in kvstore_dist_server.h).
    """
    trace = result.trace
    assert trace is not None
    sent = {(e.node, e.to, e.number): e.time for e in trace.of(Sent)}
    # what a server has: of whom, and when it was sent
    pushed: dict[str, list[tuple[str, float]]] = defaultdict(list)
    begun: dict[tuple[str, str], float] = {}  # the update that a worker waits for
    took: dict[str, list[float]] = {"push": [], "pull": [], "way": [], "update": [], "gradient": []}
    for e in trace.events:
        if isinstance(e, Computed):
            took[e.work].append(e.time - e.start)
        if isinstance(e, Computed) and e.work == "update":
            for worker, at in pushed.pop(e.node):
                took["push"].append(e.start - at)
                begun[worker, e.node] = e.start
        elif isinstance(e, Received):
            at = sent[e.src, e.node, e.number]
            if trace.is_worker(e.node):
                took["pull"].append(e.arrival - begun[e.node, e.src])
                took["way"].append(e.arrival - at)
            else:
                pushed[e.node].append((e.src, at))
    return {what: float(np.mean(seconds)) for what, seconds in took.items()} | {"computing": _computing(trace)}


def _computing(trace: Trace) -> float:
    """The share of the time in which some node of a host computes, on average over the hosts; on a machine without
    hosts each node counts alone."""
    until: dict[str, float] = {trace.hosts.get(node, node): 0.0 for node in trace.nodes}
    total = 0.0
    for e in sorted(trace.of(Computed), key=lambda e: e.start):
        host = trace.hosts.get(e.node, e.node)
        total += max(0.0, e.time - max(until[host], e.start))
        until[host] = max(until[host], e.time)
    return total / trace.seconds / len(until)


def answers(result: Result) -> dict[str, Any]:
    """How many messages servers sent, and how many of them before their receiver had sent one since the last."""
    trace = result.trace
    assert trace is not None
    open_, sent, unasked = set[tuple[str, str]](), 0, 0
    for e in trace.events:
        if isinstance(e, Sent) and trace.is_worker(e.node):
            open_.add((e.node, e.to))
        elif isinstance(e, Sent):
            sent, unasked = sent + 1, unasked + ((e.to, e.node) not in open_)
            open_.discard((e.to, e.node))
    return {"sent": sent, "unasked": unasked}


def ages(result: Result) -> dict[str, Any]:
    """Staleness by three definitions until each quarter of the run: updates, whole rounds of updates,
    clocks apart."""
    trace = result.trace
    assert trace is not None
    n, marks = len(trace.workers), trace.marks("update")
    done, gaps = dict.fromkeys(trace.workers, 0), []
    for e in trace.of(Computed):
        if e.work == "gradient":
            done[e.node] += 1
            gaps.append((e.time, max(done.values()) - min(done.values())))
    out = []
    for quarter in range(1, 5):
        until = trace.seconds * quarter / 4
        taus = [e.values["version"] - read for e in marks if e.time <= until for _, read in e.values["reads"]]
        out.append([quarter / 4, float(np.mean(taus)), max(tau // n for tau in taus),
                    max(gap for at, gap in gaps if at <= until)])
    return {"ages": out}


def pace(result: Result) -> dict[str, Any]:
    """Gradients a second while every worker still has work, and staleness as `ages`."""
    assert result.trace is not None
    done: dict[str, list[float]] = {}
    for e in result.trace.of(Computed):
        if e.work == "gradient":
            done.setdefault(e.node, []).append(e.time)
    until = min(max(times) for times in done.values())
    return {"pace": sum(at <= until for times in done.values() for at in times) / until, **ages(result)}


def ends(result: Result) -> dict[str, Any]:
    """Of each worker: its gradients, when its last gradient or message has ended, and the seconds in which it
    computed."""
    trace = result.trace
    assert trace is not None
    found = {worker: [0, 0.0, 0.0] for worker in trace.workers}
    for e in trace.events:
        if e.node in found and isinstance(e, Computed | Received):
            found[e.node][1] = max(found[e.node][1], e.time)
            if isinstance(e, Computed):
                found[e.node][0] += e.work == "gradient"
                found[e.node][2] += e.time - e.start
    return dict(found)


def waits(result: Result, node: str) -> dict[int, list[float]]:
    """Seconds for which each forward pass of a layer, from the second iteration on, waits for its
    parameters."""
    assert result.trace is not None
    found, end = defaultdict(list), None
    for e in result.trace.of(Computed, node):
        if e.piece and e.piece[0] == "forward" and end is not None:
            found[e.piece[1]].append(e.start - end)
        end = e.time if e.piece and (end is not None or e.piece[:2] == ("backward", 0)) else end
    return dict(found)


def layer_by_layer(result: Result, node: str, since: float, until: float) -> Bars:
    """What a worker computes, sends and receives of each layer within a time, and when it waits; a message's bar
    is its time on the link, without latency."""
    trace = result.trace
    assert trace is not None
    sent = {(e.node, e.to, e.number): e.start for e in trace.of(Sent)}
    bars: list[tuple[str, float, float]] = []
    end = 0.0
    for e in trace.of(Computed, node):
        if e.piece:
            bars += [("waits: idle", end, e.start)] * (e.start > end + 1e-9)
            bars.append((f"{e.piece[0]}: layer {e.piece[1] + 1}", e.start, e.time))
            end = e.time
    bars.append(("waits: idle", end, trace.seconds))
    for t in trace.transits:
        seconds = t.nbytes / trace.wire(t.src, t.to)[1]
        if t.src == node:
            start = sent[t.src, t.to, t.number]
            bars.append((f"push: layer {trace.parts[t.to] + 1}", start, start + seconds))
        elif t.to == node:
            bars.append((f"pull: layer {trace.parts[t.src] + 1}", t.arrival - seconds, t.arrival))
    rows = ("forward", "backward", "push", "pull", "waits")
    found: Bars = defaultdict(list)
    for label, start, end in sorted(bars, key=lambda bar: rows.index(bar[0].split(":")[0])):
        if since - 1e-9 <= start < until - 1e-9:
            found[label].append((start - since, end - since))
    return dict(found)
