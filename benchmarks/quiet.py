"""Measuring on a machine that others use too: wait until it is quiet, and say how quiet it was."""
from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


def processor() -> str:
    """The processor that all is measured on, and whether it has AVX-512, since names do not always tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return f"{told.get('model name', platform.machine())}, {'AVX-512' if 'avx512f' in told.get('flags', '') else 'AVX2'}"


class Foreign:
    """Cores that other processes kept busy while the block ran (``with Foreign() as foreign: ...;
    foreign.cores``)."""

    def __enter__(self) -> Foreign:
        self._start = self._counters()
        self.cores = 0.0
        return self

    def __exit__(self, *error: object) -> None:
        busy, own, now = (after - before for after, before in zip(self._counters(), self._start, strict=True))
        self.cores = max(0.0, busy - own) / max(now, 1e-3)

    def _counters(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        own = os.times()
        busy = sum(times) - times.idle - getattr(times, "iowait", 0.0)
        return busy, own.user + own.system + own.children_user + own.children_system, time.perf_counter()


def wait_until_quiet(limit: float = 0.15, patience: float = 20.0) -> None:
    """Return once others keep fewer than ``limit`` cores busy, or after ``patience`` seconds."""
    end = time.perf_counter() + patience
    while time.perf_counter() < end:
        with Foreign() as foreign:
            time.sleep(0.3)
        if foreign.cores < limit:
            return


def interleaved(
    tasks: dict[str, Callable[[], Any]],
    rounds: int,
    seconds: float,
    patience: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, float], float]:
    """Seconds per call of each task, medians over rounds in which the tasks take turns; and foreign cores.

    A round in which others were busy is taken again, once. With ``time.process_time`` as the clock, time in
    which others had the processor does not count: right for tasks of one thread, but for what others do to
    the caches.
    """
    for task in tasks.values():
        task()
        task()
    found: dict[str, list[float]] = {name: [] for name in tasks}
    noise = []
    for _ in range(rounds):
        for attempt in range(2):
            wait_until_quiet(patience=patience)
            with Foreign() as foreign:
                times = {name: _per_call(task, seconds, clock) for name, task in tasks.items()}
            if foreign.cores < 0.2 or attempt or not patience:
                break
        noise.append(foreign.cores)
        for name, value in times.items():
            found[name].append(value)
    return {name: statistics.median(values) for name, values in found.items()}, statistics.median(noise)


def _per_call(task: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> float:
    calls, start = 0, clock()
    while True:
        task()
        calls += 1
        elapsed = clock() - start
        if elapsed >= seconds:
            return elapsed / calls
