"""Resource use of processes, sampled on the trace's clock: processor time, memory, files, and what they have
said to each other; `refsgd.trace.resources` has the form."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import psutil

from refsgd.trace.resources import COLUMNS, DEFAULT, FILES, FORMAT, TRAFFIC


class _Used(NamedTuple):
    """What a process has used since it began, and its memory now."""

    cpu: float
    rss: int
    files: tuple[int, ...]  #: as FILES
    private: int  #: resident without shared, on Linux


class Monitor:
    """Samples processes every `every` seconds from a thread of this one, from `start` to `stop`; a sample
    costs about 0.1 ms per process.

    The processes themselves count their messages, in memory that they share with this one.  "grown" is by how
    much the most private memory exceeds the least before, at the start: it leaves out the interpreter, its
    modules, the data, and arrays in shared memory.
    """

    def __init__(self, every: float = DEFAULT) -> None:
        if not 0 < every < float("inf"):
            raise ValueError(f"every {every} s; expected a time > 0 between samples")
        self.every = every
        self.samples: dict[str, list[list[float]]] = {}
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, pids: Mapping[str, int], words: Mapping[str, Any] | None = None) -> None:
        """Begin to sample the processes `pids` by node, each once, and this process as "launcher"; `words`
        are their entries of the status table."""
        if self._thread is not None:  # another attempt of the run: the first is watched
            return
        pids = {**pids, "launcher": os.getpid()}
        self._words = dict(words or {})
        self._zero = time.perf_counter()
        self._processes: dict[str, psutil.Process] = {}
        for node, pid in pids.items():
            if pid not in [p.pid for p in self._processes.values()]:
                self._processes[node] = psutil.Process(pid)
        self.samples = {node: [] for node in self._processes}
        self._least = dict[str, int]()
        # Here, not in the thread, which may run first when the programs have begun.
        self._first = {node: _used(p) for node, p in self._processes.items()}
        self._before = {node: first.cpu for node, first in self._first.items() if first is not None}
        self._thread = threading.Thread(target=self._watch, name="refsgd-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, dict[str, Any]]:
        """End sampling; returns the samples and summaries by node."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        out = {}
        for node, rows in self.samples.items():
            first = self._first[node]
            if rows and first is not None:
                last, most = (dict(zip(COLUMNS, each)) for each in (rows[-1], map(max, zip(*rows))))
                out[node] = {"format": FORMAT, "every": self.every, "columns": list(COLUMNS),
                             "cpu": (self._before[node] - first.cpu) / last["time"],
                             "rss_max": most["rss"], "grown": most["grown"],
                             **{what: last[what] for what in FILES},
                             # of the whole run, which may have gone on after the last sample
                             **dict(zip(TRAFFIC, self._traffic(node))), "samples": rows}
        return out

    def _watch(self) -> None:
        while not self._done.wait(self.every):
            for node, process in list(self._processes.items()):
                used, first = _used(process), self._first[node]
                if used is None or first is None:  # it has ended
                    del self._processes[node]
                    continue
                now, rows = time.perf_counter() - self._zero, self.samples[node]
                cpu = (used.cpu - self._before[node]) / (now - (rows[-1][0] if rows else 0.0))
                self._before[node] = used.cpu
                self._least[node] = min(self._least.get(node, first.private), used.private)
                files = [b - a for a, b in zip(first.files, used.files)]
                grown = used.private - self._least[node]
                rows.append([now, cpu, used.rss, *files, grown, *self._traffic(node)])

    def _traffic(self, node: str) -> list[int]:
        """Bytes and messages that a process has sent and received; the launcher takes part in no exchange."""
        words = self._words.get(node)
        return [getattr(words, what) if words is not None else 0 for what in TRAFFIC]


def _used(process: psutil.Process) -> _Used | None:
    """What a process has used; None if it has ended."""
    try:
        with process.oneshot():
            times = process.cpu_times()
            f = process.io_counters() if hasattr(process, "io_counters") else None  # not on macOS
            memory = process.memory_info()
            if not memory.rss:  # its parent has not noticed yet
                return None
            files = (f.read_bytes, f.write_bytes, f.read_count, f.write_count) if f else (0,) * len(FILES)
            return _Used(times.user + times.system, memory.rss, files,
                         memory.rss - getattr(memory, "shared", 0))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
