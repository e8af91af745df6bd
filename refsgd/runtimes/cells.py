"""Shared vectors between real processes: their memory, made before the fork, and their locks."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from refsgd.effects import Add, Cell, Deployment, Load
from refsgd.runtimes.board import anonymous
from refsgd.runtimes.programs import add_to

PATIENCE = 10.0  # seconds; whoever holds a lock longer has died with it


class _Lock:
    """One lock for all cells of a run, and a count of accesses under it: their common order."""

    def __init__(self, tickets: int) -> None:
        self._lock = mp.get_context("fork").Lock()
        self._count = np.frombuffer(anonymous(8), np.int64, 1)
        self._count[0] = tickets

    @contextmanager
    def ticket(self) -> Iterator[int]:
        """Hold the lock; the number of this access."""
        if not self._lock.acquire(timeout=PATIENCE):
            raise RuntimeError(f"a cell has been locked for {PATIENCE:g} s; expected some microseconds: did a process die while it held it?")
        try:
            number = int(self._count[0])
            self._count[0] = number + 1
            yield number
        finally:
            self._lock.release()


def share(deployment: Deployment, tickets: int = 0) -> None:
    """Move all cells of a deployment into anonymous shared memory, before any fork; so many accesses have been.

    Parameters
    ----------
    deployment : Deployment
        Its cells are changed in place.
    tickets : int
        Number of the first access: how many an earlier part of the run has made.
    """
    found = {id(cell): cell for node in deployment.values() for cell in node.cells}
    lock = _Lock(tickets) if found else None
    for cell in found.values():
        shared = np.frombuffer(anonymous(max(1, cell.x.nbytes)), cell.x.dtype, cell.x.size)
        shared[:] = cell.x
        cell.x, cell.lock = shared, lock


def load(effect: Load) -> tuple[Any, int]:
    """A copy of one part of a cell, and the number of this access.

    Parameters
    ----------
    effect : Load

    Returns
    -------
    ndarray, (size of the part,), dtype of the cell
    int

    Raises
    ------
    RuntimeError
        If the cell's lock is held for longer than `PATIENCE`.
    """
    cell: Cell = effect.cell
    with cell.lock.ticket() as number:
        return cell.x[cell.cut[effect.part]].copy(), number


def before(effect: Add) -> Any:
    """What an `Add` that is not atomic adds to: what it reads now.

    Parameters
    ----------
    effect : Add

    Returns
    -------
    ndarray, (size of the part,), or None
        None for an atomic one, which reads when it writes.
    """
    return None if effect.atomic else effect.cell.x[effect.cell.cut[effect.part]].copy()


def add(effect: Add, seen: Any) -> int | None:
    """Write an `Add`; its number, or None where no lock gives it one.

    Parameters
    ----------
    effect : Add
    seen : ndarray, (size of the part,), or None
        Of `before`.

    Returns
    -------
    int or None
        None for an `Add` that is not atomic.

    Raises
    ------
    RuntimeError
        If the cell's lock is held for longer than `PATIENCE`.
    """
    if not effect.atomic:
        add_to(effect, seen)
        return None
    with effect.cell.lock.ticket() as number:
        add_to(effect, seen)
        return int(number)
