"""The trace as JSON for Perfetto or chrome://tracing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from refsgd.trace.events import Computed, Event, Marked, Received, Sent, taken
from refsgd.trace.schema import json_text

if TYPE_CHECKING:
    from refsgd.trace.run import Trace


def to_chrome(trace: Trace) -> str:
    """The trace as JSON for Perfetto or chrome://tracing: a process per node, arrows for messages.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    str
        JSON in the Trace Event Format.
    """
    pid = {n: i for i, n in enumerate(trace.nodes)}
    out: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": i, "tid": 0, "args": {"name": n}}
                                 for n, i in pid.items()]

    def add(ph: str, name: str, e: Event, ts: float, **more: Any) -> None:
        out.append({"ph": ph, "name": name, "pid": pid[e.node], "tid": e.program, "ts": ts * 1e6, **more})

    for e in trace.events:
        if isinstance(e, Computed):
            add("X", e.what, e, e.start, dur=(e.time - e.start) * 1e6, cat=e.work)
        elif isinstance(e, Received) and e.time > e.since:
            add("X", f"wait for {e.message}", e, e.since, dur=(e.time - e.since) * 1e6, cat="wait",
                args={"src": e.src})
        elif isinstance(e, Marked):
            values = {k: v for k, v in e.values.items() if k != "x"}
            add("i", e.name, e, e.time, s="t", args=json.loads(json_text(values, default=str)))
    sent = {(e.node, e.to, e.number): e for e in trace.of(Sent)}
    arrows = [(s, e) for e in trace.events if (s := sent.get(taken(e) or ("", "", 0))) is not None]
    for i, (s, e) in enumerate(arrows):  # Perfetto drops an arrow whose id is not a number
        part = trace.parts.get(e.node, trace.parts.get(s.node))
        name = s.message if part is None else f"{s.message} of part {part}"
        flow = {"cat": "message", "id": i, "args": {"bytes": s.nbytes}}
        add("s", name, s, s.time, **flow)
        add("f", name, e, e.time, bp="e", **flow)
    return json_text({"traceEvents": out, "displayTimeUnit": "ms"}, indent=None)
