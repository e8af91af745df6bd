"""Limits that a container or a batch system sets by control groups of Linux, versions 1 and 2."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: where the system shows control groups, and to which this process belongs
ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's groups for a controller, with those around them."""
    # in a container the path may be the host's, which is not visible: the root is the container's group
    try:
        lines = OWN.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for root in [ROOT / controller] if controllers else [ROOT, ROOT / "unified"]:
            inner = root / path.lstrip("/")
            yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root))


def _numbers(folder: Path, file: str) -> list[float]:
    """The numbers in a file, "max" being infinite; none if there is no such file."""
    try:
        words = (folder / file).read_text(encoding="utf-8").split()
        return [math.inf if word == "max" else float(word) for word in words]
    except (OSError, ValueError):
        return []


def cores() -> float:
    """The cores that all processes of the tightest group may use together; infinite without a limit."""
    found = [math.inf]
    for folder in _groups("cpu"):
        quota = _numbers(folder, "cpu.max") or (
            _numbers(folder, "cpu.cfs_quota_us") + _numbers(folder, "cpu.cfs_period_us"))
        if len(quota) == 2 and quota[0] > 0 and quota[1] > 0:
            found.append(quota[0] / quota[1])
    return min(found)


def free_memory() -> float:
    """Bytes that the tightest group may still take, files that can be read again not counted."""
    found = [math.inf]
    for folder in _groups("memory"):
        for most, now, cached in (("memory.max", "memory.current", "inactive_file"),
                                  ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")):
            limit, used = _numbers(folder, most), _numbers(folder, now)
            if limit and used:
                found.append(limit[0] - used[0])
                with suppress(OSError):
                    lines = (folder / "memory.stat").read_text(encoding="utf-8").splitlines()
                    found[-1] += next((float(line.split()[1]) for line in lines
                                       if line.startswith(f"{cached} ")), 0.0)
    return max(min(found), 0.0)


def free_tasks() -> float:
    """Processes and threads that the tightest group may still start."""
    found = [math.inf]
    for folder in _groups("pids"):
        limit, now = _numbers(folder, "pids.max"), _numbers(folder, "pids.current")
        if limit and now:
            found.append(limit[0] - now[0])
    return max(min(found), 0.0)
