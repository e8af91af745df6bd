"""Settings of the operating system for one process: its cores, its memory, its end."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def prctl(option: int, value: int) -> None:
    """Linux's prctl; does nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def settle(place: int, count: int) -> None:
    """Pin this process to its share of the cores, where its caches are; with fewer cores than processes the
    system moves them to idle cores, which is quicker."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if count <= len(cores):
        with suppress(OSError):  # a container may forbid it
            os.sched_setaffinity(0, cores[place * len(cores) // count : (place + 1) * len(cores) // count])


def keep_memory() -> None:
    """Make glibc's malloc keep freed memory in this process: fresh pages for every vector take half of the
    time of an all-reduce of 1 MB.  What the parent had freed goes back first, as writing to it would copy it.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    mallopt = getattr(library, "mallopt", None)
    if mallopt is not None:
        library.malloc_trim(0)  # type: ignore[union-attr]
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that it accepts
        mallopt(M_TRIM_THRESHOLD, 1 << 30)


@contextmanager
def standard_descriptors() -> Iterator[None]:
    """Open those of the descriptors 0, 1 and 2 that a host program has closed, so that a record or a socket
    does not take their place and get what a program prints."""
    opened = [os.open(os.devnull, os.O_RDWR)]
    while opened[-1] <= 2:
        opened.append(os.open(os.devnull, os.O_RDWR))
    os.close(opened.pop())
    try:
        yield
    finally:
        for stream in opened:
            os.close(stream)


def unnamed_file(name: str) -> int:
    """A descriptor of a file in memory, which disappears with the last process that has it open."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
