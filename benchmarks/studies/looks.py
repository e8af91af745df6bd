"""What studies read from traces: parts of an exchange, staleness by three definitions, gradients a second.

Each is a ``Look`` of `benchmarks.studies.lab`: a function of a result with its trace that gives JSON values.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from refsgd.experiment.result import Result
from refsgd.trace import Computed, Received, Sent


def exchanges(result: Result) -> dict[str, Any]:
    """Mean seconds of a gradient, an update, a push, a pull, and of the answer's way alone.

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
    return {what: float(np.mean(seconds)) for what, seconds in took.items()}


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
