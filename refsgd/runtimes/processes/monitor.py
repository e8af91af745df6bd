"""Resource use of processes: processor time, resident memory, bytes read and written, sampled on the trace's
clock."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import psutil


class Sample(NamedTuple):
    """One process at one time."""

    time: float  #: seconds since the common start
    cpu: float  #: processor seconds per second since the previous sample (1.0: one core busy)
    rss: int  #: bytes of resident memory; shared pages count for each process
    read: int  #: bytes read from files and devices so far
    written: int


class Monitor:
    """Samples processes every `every` seconds from a thread of this one, from `start` to `stop`; a sample
    costs about 0.1 ms per process.

    "grown" is by how much the most private memory (resident without shared, on Linux) exceeds the least
    before, at the start: it leaves out the interpreter, its modules, the data, and arrays in shared memory.

    >>> import time
    >>> monitor = Monitor(every=0.01)
    >>> monitor.start({})
    >>> time.sleep(0.1)
    >>> monitor.stop()["launcher"]["rss_max"] > 0
    True
    """

    def __init__(self, every: float = 0.05) -> None:
        if not every > 0:
            raise ValueError(f"every {every} s; expected a time > 0 between samples")
        self.every = every
        self.samples: dict[str, list[Sample]] = {}
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, pids: Mapping[str, int]) -> None:
        """Begin to sample the processes `pids` by node, each once, and this process as "launcher"."""
        if self._thread is not None:  # another attempt of the run: the first is watched
            return
        pids = {**pids, "launcher": os.getpid()}
        self._zero = time.perf_counter()
        self._processes: dict[str, psutil.Process] = {}
        for node, pid in pids.items():
            if pid not in [p.pid for p in self._processes.values()]:
                self._processes[node] = psutil.Process(pid)
        self.samples = {node: [] for node in self._processes}
        self._cpu = dict.fromkeys(self._processes, 0.0)
        self._grown, self._least = dict.fromkeys(self._processes, 0), dict[str, int]()
        # Here, not in the thread, which may run first when the programs have begun.
        self._first = {node: self._used(p) for node, p in self._processes.items()}
        self._thread = threading.Thread(target=self._watch, name="refsgd-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, dict[str, Any]]:
        """End sampling; returns the samples and summaries by node."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        out = {}
        for node, found in self.samples.items():
            if found:
                out[node] = {"cpu": self._cpu[node] / found[-1].time if found[-1].time else 0.0,
                             "rss_max": max(s.rss for s in found),
                             "grown": self._grown[node],
                             "read": found[-1].read, "written": found[-1].written,
                             "samples": [list(s) for s in found]}
        return out

    def _watch(self) -> None:
        before = dict.fromkeys(self._processes, 0.0)
        while not self._done.wait(self.every):
            for node, process in list(self._processes.items()):
                used, since = self._used(process), self._first[node]
                if used is None or since is None:  # it has ended
                    del self._processes[node]
                    continue
                now = time.perf_counter() - self._zero
                last = self.samples[node][-1].time if self.samples[node] else 0.0
                cpu, rss, read, written, private = used
                self._least[node] = min(self._least.get(node, since[4]), private)
                self._grown[node] = max(self._grown[node], private - self._least[node])
                self._cpu[node] = cpu - since[0]
                self.samples[node].append(Sample(now, (cpu - since[0] - before[node]) / (now - last),
                                                 int(rss), int(read - since[2]), int(written - since[3])))
                before[node] = cpu - since[0]

    @staticmethod
    def _used(process: psutil.Process) -> tuple[float, int, int, int, int] | None:
        try:
            with process.oneshot():
                times = process.cpu_times()
                files = process.io_counters() if hasattr(process, "io_counters") else None  # not on macOS
                memory = process.memory_info()
                return (times.user + times.system, memory.rss, files.read_bytes if files else 0,
                        files.write_bytes if files else 0, memory.rss - getattr(memory, "shared", 0))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None
