"""Vectors shared between real processes: their memory, made before the fork, and their lock.

A process may be killed at any moment while the others continue.  So the kernel releases the lock when its
holder dies (it is a lock on an unnamed file), and the next access undoes an unfinished addition: an access
either has a number and is complete, or has not happened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from refsgd.effects import Add, Cell, Deployment, Load
from refsgd.runtimes.processes.system import FileLock, unnamed_file
from refsgd.runtimes.programs import add_to
from refsgd.runtimes.transports.waking import anonymous
from refsgd.trace import UNORDERED

# words: accesses so far; 1 + the number of the last addition begun, to which part of which cell
DONE, BEGUN, CELL, PART = range(4)


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


def share(deployment: Deployment, tickets: int = 0) -> None:
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
    cell: Cell = effect.cell
    with cell.lock.ticket() as number:
        return cell.x[cell.cut[effect.part]].copy(), number


def before(effect: Add) -> Any:
    """The value to which an `Add` that is not atomic adds: the one that it reads now."""
    return None if effect.atomic else effect.cell.x[effect.cell.cut[effect.part]].copy()


def add(effect: Add, seen: Any) -> int:
    """Write an `Add`; returns its number, or `UNORDERED` without a lock."""
    if not effect.atomic:
        add_to(effect, seen)
        return UNORDERED
    with effect.cell.lock.ticket() as number:
        effect.cell.lock.adds(effect)
        add_to(effect, seen)
        return int(number)
