"""Links of groups of hosts, which several processes serve: a file holds the times when they are free."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from typing import Any

from refsgd.runtimes.processes.system import FileLock, unnamed_file


class GroupLinks:
    """When each link of a group of hosts is free, for the processes that serve it.

    A process may be killed at any moment.  So a single store of eight bytes changes a time: a message whose
    receiver dies has occupied the link, or has not.

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
