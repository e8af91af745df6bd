"""What the processes of a run share under a lock: vectors, and when the links of groups of hosts are free.

A process may be killed at any moment while the others continue, so the kernel releases a lock when its holder
dies (it is a lock on an unnamed file).  The next access to a vector undoes an unfinished addition, so an
access either has a number and is complete, or has not happened; and a single store of eight bytes changes the
time of a link.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from refsgd.effects import Add, Cell, Deployment, Load
from refsgd.runtimes.processes.system import unnamed_file
from refsgd.runtimes.programs import add_to, read
from refsgd.runtimes.transports.transport import anonymous
from refsgd.trace import UNORDERED

# words: accesses so far; 1 + the number of the last addition begun, to which part of which cell
DONE, BEGUN, CELL, PART = range(4)


class FileLock:
    """A lock between processes on an open file, which the kernel releases when its holder dies."""

    def __init__(self, file: int) -> None:
        import fcntl  # exists wherever fork does

        self._lockf, self._take, self._free = fcntl.lockf, fcntl.LOCK_EX, fcntl.LOCK_UN
        self._file = file

    def __enter__(self) -> None:
        self._lockf(self._file, self._take)

    def __exit__(self, *error: object) -> None:
        self._lockf(self._file, self._free)


class _Lock:
    """One lock for all `cells` of a run, whose memory is shared already, and a count of accesses under it,
    from `tickets` on: their common order."""

    def __init__(self, cells: list[Cell], tickets: int) -> None:
        self._file = unnamed_file("cells")
        self._lock = FileLock(self._file)
        self._cells = cells
        self._words = memoryview(anonymous(8 * 4))[: 8 * 4].cast("q")
        self._words[DONE] = tickets
        self._before = np.frombuffer(anonymous(max(cell.x.nbytes for cell in cells)), np.uint8)

    def __del__(self) -> None:
        os.close(self._file)

    @contextmanager
    def ticket(self) -> Iterator[int]:
        """Hold the lock; yields the number of this access."""
        words = self._words
        with self._lock:
            number = words[DONE]
            if words[BEGUN] == number + 1:  # the process that began it has died
                self._undo()
            yield number
            words[DONE] = number + 1

    def adds(self, effect: Add) -> None:
        """Prepare, while the lock is held, for undoing an addition that a death may interrupt."""
        words, cell = self._words, effect.cell
        x = cell.x[cell.cut[effect.part]]
        self._before[: x.nbytes] = x.view(np.uint8)
        words[CELL], words[PART] = next(i for i, one in enumerate(self._cells) if one is cell), effect.part
        words[BEGUN] = words[DONE] + 1

    def _undo(self) -> None:
        cell = self._cells[self._words[CELL]]
        x = cell.x[cell.cut[self._words[PART]]]
        x.view(np.uint8)[:] = self._before[: x.nbytes]


def share_cells(deployment: Deployment, tickets: int = 0) -> None:
    """Move all cells of a deployment into anonymous shared memory, before any fork, after `tickets`
    accesses."""
    found = {id(cell): cell for node in deployment.values() for cell in node.cells}
    for cell in found.values():
        shared = np.frombuffer(anonymous(max(1, cell.x.nbytes)), cell.x.dtype, cell.x.size)
        shared[:] = cell.x
        cell.x = shared
    lock = _Lock(list(found.values()), tickets) if found else None
    for cell in found.values():
        cell.lock = lock


def load(effect: Load) -> tuple[Any, int]:
    """A copy of one part of a cell, and the number of this access."""
    with effect.cell.lock.ticket() as number:
        return read(effect), number


def add(effect: Add, seen: Any) -> int:
    """Write an `Add`; returns its number, or `UNORDERED` without a lock."""
    if not effect.atomic:
        add_to(effect, seen)
        return UNORDERED
    with effect.cell.lock.ticket() as number:
        effect.cell.lock.adds(effect)
        add_to(effect, seen)
        return int(number)


class GroupLinks:
    """When each link of a group of hosts is free, for the processes that serve it.

    `links` are their indices in the network, `file` is a descriptor of the file that holds the times, by
    default a new one without a name, made before the fork.
    """

    def __init__(self, links: Iterable[int], file: int | None = None) -> None:
        self._at = {link: k for k, link in enumerate(sorted(links))}
        self._file = unnamed_file("links") if file is None else file
        self._lock = FileLock(self._file)
        os.ftruncate(self._file, 8 * len(self._at))
        self._times: Any = None  # mapped by each process for itself

    def __contains__(self, link: int) -> bool:
        return link in self._at

    def times(self) -> Any:
        """When each link is free, in the order of their indices."""
        if self._times is None:
            memory = mmap.mmap(self._file, 8 * len(self._at))
            self._times = (ctypes.c_double * len(self._at)).from_buffer(memory)
        return self._times

    def serve(self, link: int, head: float, seconds: float) -> float:
        """Occupy a link for some seconds as soon as the head of a message is there and the link is free; when
        that is."""
        times, at = self.times(), self._at[link]
        with self._lock:
            start: float = max(head, times[at])
            times[at] = start + seconds
        return start

    def close(self) -> None:
        """Give the file back, in the launcher."""
        os.close(self._file)
