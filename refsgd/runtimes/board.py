"""The notice board of a run: shared words in which processes tell the launcher how they stand, and it answers.

An anonymous mapping made before the fork, so nothing is left under any name.  Every word has one writer and
is written by one store (through ``memoryview.cast("Q")``; ``struct`` would write byte by byte).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from refsgd.effects import Compute, Recv
from refsgd.runtimes.programs import describe, innermost

START, COMMAND, DEATHS, VAIN = range(4)  # of the run: start on the monotonic clock [ns]; what the launcher wants; how
# many died; how often programs were told that they wait in vain
NOTHING, CLOSE, HALT, ABORT = range(4)  # commands
READY, BEAT, DONE, IDLE, SENT, GOT, EFFECTS, DUE, TEXT, DEAD, NOTICED, WAKE = range(12)  # of a host; WAKE: when to continue it
PLACE, LINE, DOING, SINCE, COMPUTES = range(5)  # of a program
OF_RUN, PER_HOST, PER_PROGRAM, TEXT_BYTES = 8, 16, 8, 1 << 14

SPIN, LOOKS = 2e-3, 200  # seconds, and looks: 0.3 ms where nobody else wants the core
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)  # named from Python 3.13 on


def anonymous(nbytes: int) -> mmap.mmap:
    """Zeroed memory that children share; untouched pages cost nothing, not even a promise."""
    return mmap.mmap(-1, max(nbytes, mmap.PAGESIZE), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NORESERVE)


class Bell:
    """What a process sleeps on: it remembers that it was rung, so no wake-up is ever lost."""

    def __init__(self) -> None:
        self._read = self._write = -1
        if hasattr(os, "eventfd"):
            self._read = self._write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._read

    def ring(self) -> None:
        """Wake the owner, now or at its next sleep."""
        try:
            os.write(self._write, b"\1\0\0\0\0\0\0\0")
        except BlockingIOError:
            pass  # it has been rung more often than it can count

    def drain(self) -> None:
        """Forget earlier rings; look for work afterwards, not before."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in {self._read, self._write} - {-1}:
            os.close(fd)
        self._read = self._write = -1

    def __del__(self) -> None:
        self.close()


def wait_for(descriptors: Sequence[int], timeout: float) -> list[int]:
    """The readable ones of `descriptors`, after at most `timeout` seconds.

    `select` because it counts in microseconds: `poll` and `epoll` round up to a millisecond.
    """
    if max(descriptors) < 1024:
        return select.select(descriptors, [], [], timeout)[0]
    poll = select.poll()
    for fd in descriptors:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout * 1e3)]


class Waiter:
    """Sleeps until something comes, or looks a little longer before it does.

    Where messages came soon the last time it first looks again for a moment, leaving the core to whoever wants it: an answer that
    is on its way then costs no wake-up.  Looks are counted, and not only time: where several processes share a core the time passes
    while others work.  Who waits for long, as in a paced run, sleeps at once.

    Parameters
    ----------
    arrived : callable
        Whether a message, or a part of one, is there.
    """

    def __init__(self, arrived: Callable[[], bool]) -> None:
        self._arrived = arrived
        self._brisk = False  # whether the last sleep was short, and ended with a message

    def soon(self, timeout: float) -> bool:
        """Whether a message comes within the next looks; none is taken where the last one was long in coming."""
        if not self._brisk:
            return False
        looks, end = LOOKS, time.perf_counter() + min(SPIN, timeout)
        while looks and time.perf_counter() < end:
            if self._arrived():
                return True
            os.sched_yield()
            looks -= 1
        return False

    def wait(self, descriptors: Sequence[int], timeout: float) -> list[int]:
        """Sleep; the readable ones of `descriptors`, after at most `timeout` seconds."""
        began = time.perf_counter()
        ready = wait_for(descriptors, timeout)
        self._brisk = time.perf_counter() - began < SPIN and self._arrived()
        return ready


def prctl(option: int, value: int) -> None:
    """Linux's prctl; nothing elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def settle(place: int, count: int) -> None:
    """Keep this process on its share of the cores, where its caches are; nothing where there are fewer cores than processes.

    With more processes than cores the system moves them to where there is room, which is worth more: all-reduces of 100 kB by four processes
    on two cores then took three quarters of the time that they took where each stayed on one.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if count <= len(cores):
        with suppress(OSError):  # a container may forbid it
            os.sched_setaffinity(0, cores[place * len(cores) // count : (place + 1) * len(cores) // count])


def keep_memory() -> None:
    """Make glibc's malloc keep what is freed in this process: nothing elsewhere.

    By default it gives large blocks back at once, so that every fresh vector costs a page fault for each 4 kB: half of
    the time of an all-reduce of 1 MB.  A process then holds the most that it ever had in use.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that it accepts
        mallopt(M_TRIM_THRESHOLD, 1 << 30)


class Standing(NamedTuple):
    """Where a program stands, as the launcher reads it: nothing of it needs the process to be alive."""

    node: str
    program: int
    doing: str
    place: str
    since: float
    computes: int

    def __str__(self) -> str:
        if not self.doing:
            return f"{self.node} had not begun"
        step = f" {self.computes}" if self.doing.startswith("Compute") else ""
        return f"{self.node} in {self.doing}{step} at {self.place}" if self.place else f"{self.node} {self.doing}"


class Board:
    """Words and a little text of every host.

    Parameters
    ----------
    programs : mapping of str to list of (str, int)
        For each host its programs, as (node, index).
    """

    def __init__(self, programs: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        self.programs = {host: list(p) for host, p in programs.items()}
        self.index = {host: i for i, host in enumerate(programs)}
        count = sum(map(len, self.programs.values()))
        words = OF_RUN + PER_HOST * len(self.index) + PER_PROGRAM * count
        self._map = anonymous(8 * words + TEXT_BYTES * len(self.index))
        self._view = memoryview(self._map)
        self.words = self._view[: 8 * words].cast("Q")
        self._text_at = 8 * words
        self._program_at: dict[tuple[str, int], int] = {}
        at = OF_RUN + PER_HOST * len(self.index)
        for one in self.programs.values():
            for key in one:
                self._program_at[key] = at
                at += PER_PROGRAM

    def of(self, host: str) -> memoryview:
        """The words of a host."""
        at = OF_RUN + PER_HOST * self.index[host]
        return self.words[at : at + PER_HOST]

    def text(self, host: str) -> memoryview:
        """The text of a host: one line per entry."""
        at = self._text_at + TEXT_BYTES * self.index[host]
        return self._view[at : at + TEXT_BYTES]

    def slot(self, node: str, program: int) -> memoryview:
        """The words of a program."""
        at = self._program_at[node, program]
        return self.words[at : at + PER_PROGRAM]

    def standing(self, hosts: Iterable[str] | None = None) -> list[Standing]:
        """Where the programs of these hosts (all by default) stand."""
        out = []
        for host in self.programs if hosts is None else hosts:
            lines = ["", *bytes(self.text(host)[: self.of(host)[TEXT]]).decode(errors="replace").split("\n")]
            for node, index in self.programs[host]:
                words = self.slot(node, index)
                doing, place = (lines[words[k]] if words[k] < len(lines) else "?" for k in (DOING, PLACE))
                if place:
                    file, _, function = place.partition("|")
                    place = f"{file}:{words[LINE]} in {function}"
                out.append(Standing(node, index, doing, place, words[SINCE] / 1e9, words[COMPUTES]))
        return out

    def close(self) -> None:
        """Give the memory back; later use raises ValueError."""
        self.words.release()
        self._view.release()
        self._map.close()


class Notes:
    """A host's own pen: says on the board what its programs do, in one microsecond.

    Parameters
    ----------
    board : Board
    host : str
        Whose words and text are written; it is their only writer.
    """

    def __init__(self, board: Board, host: str) -> None:
        self._words, self._text = board.of(host), board.text(host)
        self._slots = {key: board.slot(*key) for key in board.programs[host]}
        self._known: dict[Any, int] = {}
        self._end = 0

    def _entry(self, key: Any, text: str) -> int:
        """The number of a line of text, written when first used; 0 once the text is full."""
        if key not in self._known:
            line = (text.replace("\n", " ") + "\n").encode()
            if self._end + len(line) > TEXT_BYTES:
                return 0
            self._text[self._end : self._end + len(line)] = line
            self._end += len(line)
            self._words[TEXT] = self._end
            self._known[key] = len(self._known) + 1
        return self._known[key]

    def waits(self, node: str, index: int, program: Any, effect: Any, now_ns: int) -> None:
        """A program is about to wait for `effect` (a Compute or a Recv)."""
        words, inner = self._slots[node, index], innermost(program)
        key = (effect.kinds, effect.src) if isinstance(effect, Recv) else effect.kind
        words[DOING] = self._known.get(key) or self._entry(key, describe(effect))
        code = inner.gi_code
        words[PLACE] = self._known.get(code) or self._entry(code, f"{code.co_filename}|{code.co_name}")
        words[LINE] = inner.gi_frame.f_lineno
        words[SINCE] = now_ns
        if type(effect) is Compute:
            words[COMPUTES] += 1

    def ended(self, node: str, index: int) -> None:
        """A program has returned."""
        words = self._slots[node, index]
        words[DOING], words[PLACE] = self._entry("returned", "has returned"), 0
