"""What processes use over time: the form of the series in a result, and the series of a run in virtual time.

`Result.measured["resources"]` has for each process "format", "every" (seconds between two samples), "columns"
and "samples", a row of the columns for each sample, beside the sums and peaks of the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refsgd.trace.events import Computed, Sent

if TYPE_CHECKING:
    from refsgd.trace.run import Trace

FORMAT = 2  #: version of the form; the first had five columns and did not name them
FIRST = ("time", "cpu", "rss", "read", "written")
#: what each column of a sample is; bytes, calls and messages are sums since the start
COLUMNS = {
    "time": "seconds since the common start",
    "cpu": "processor seconds per second since the sample before; 1.0: one core busy",
    "rss": "bytes of resident memory; shared pages count for each process",
    "read": "bytes read from files and devices",
    "written": "bytes written to files and devices",
    "reads": "calls that read, from pipes and sockets too",
    "writes": "calls that write",
    "grown": "bytes of private memory beyond the least before",
    "bytes_sent": "payload bytes of messages to other processes",
    "bytes_received": "payload bytes of messages from other processes",
    "messages_sent": "messages to other processes",
    "messages_received": "messages from other processes"}
FILES = ("read", "written", "reads", "writes")
TRAFFIC = ("bytes_sent", "bytes_received", "messages_sent", "messages_received")
DEFAULT = 0.05  #: seconds between two samples of real processes
ROWS = 50  #: samples of a run in virtual time, unless an interval is given
MOST = 100_000  #: samples of a run in virtual time


def column(used: Mapping[str, Any], name: str) -> list[float]:
    """One column of a process's samples.

    Parameters
    ----------
    used : mapping
        The record of a process in ``measured["resources"]``.
    name : str
        One of its columns.

    Returns
    -------
    list of float
        A value for each sample.
    """
    at = list(used.get("columns", FIRST)).index(name)
    return [sample[at] for sample in used["samples"]]


def per_second(used: Mapping[str, Any], name: str) -> list[float]:
    """How fast a sum grows between each sample and the one before.

    Parameters
    ----------
    used : mapping
        The record of a process in ``measured["resources"]``.
    name : str
        One of its columns: read, written, reads, writes, or bytes and messages sent and received.

    Returns
    -------
    list of float
        Bytes, calls or messages per second, a value for each sample.

    Examples
    --------
    >>> per_second({"samples": [[0.0, 0, 0, 0, 0], [0.5, 0, 0, 0, 10], [1.0, 0, 0, 0, 40]]}, "written")
    [0.0, 20.0, 60.0]
    """
    times, sums = ([0.0, *column(used, each)] for each in ("time", name))
    return [(b - a) / (t - s) if t > s else 0.0 for s, t, a, b in zip(times, times[1:], sums, sums[1:])]


def in_virtual_time(trace: Trace, host: Mapping[str, str], every: float | None = None) -> dict[str, Any]:
    """Computing and traffic of each host, by its name: what a monitor of its process would have seen.

    A message leaves and arrives at the bandwidth of the path, not at once; computing occupies one core.

    Parameters
    ----------
    trace : Trace
        Of a run in the simulator.
    host : mapping of str to str
        The host of each node.
    every : float, optional
        Seconds between two samples; by default a fiftieth of the run.

    Returns
    -------
    dict
        The record of each host.
    """
    every = every or trace.seconds / ROWS or DEFAULT
    count = math.ceil(trace.seconds / every - 1e-9)
    if count > MOST:
        raise ValueError(f"monitor every {every:g} s of {trace.seconds:g} s; expected at most {MOST} samples")
    times = np.minimum(every * np.arange(count + 1), trace.seconds)
    sums = {name: {what: np.zeros(count + 1) for what in ("computed", *TRAFFIC)}
            for name in dict.fromkeys(host[node] for node in trace.nodes)}
    for c in trace.of(Computed):
        sums[host[c.node]]["computed"] += _passed(times, c.start, c.time, c.time - c.start)
    for s in trace.of(Sent):
        if host[s.node] != host[s.to]:
            own = sums[host[s.node]]
            own["bytes_sent"] += _passed(times, s.start, s.start + s.nbytes / trace.wire(s.node, s.to)[1],
                                         s.nbytes)
            own["messages_sent"] += times >= s.start
    for m in trace.transits:
        if host[m.src] != host[m.to]:
            own = sums[host[m.to]]
            own["bytes_received"] += _passed(times, m.arrival - m.nbytes / trace.wire(m.src, m.to)[1],
                                             m.arrival, m.nbytes)
            own["messages_received"] += times >= m.arrival
    return {name: _of_host(times, own, every) for name, own in sums.items()}


def _passed(times: NDArray[Any], start: float, end: float, amount: float) -> NDArray[Any]:
    """How much of an amount that passes evenly has passed at some times."""
    if end <= start:
        return amount * (times >= end)
    return np.asarray(amount * np.clip((times - start) / (end - start), 0.0, 1.0))


def _of_host(times: NDArray[Any], sums: Mapping[str, NDArray[Any]], every: float) -> dict[str, Any]:
    """The record of one host in the form of a process's."""
    busy, traffic = sums["computed"], [np.rint(sums[what]).astype(int) for what in TRAFFIC]
    cpu = np.diff(busy, prepend=0.0) / np.maximum(np.diff(times, prepend=0.0), 1e-12)
    return {"format": FORMAT, "every": every, "columns": ["time", "cpu", *TRAFFIC],
            "cpu": float(busy[-1] / times[-1]) if times[-1] else 0.0,
            **{what: int(found[-1]) for what, found in zip(TRAFFIC, traffic)},
            "samples": [list(row) for row in zip(times.tolist(), cpu.tolist(),
                                                 *(found.tolist() for found in traffic))]}
