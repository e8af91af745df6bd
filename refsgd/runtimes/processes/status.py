"""Shared status table: each process publishes its state, the launcher publishes commands.

It is an anonymous mapping made before the fork, so no name is left behind.  Every word has one writer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from refsgd.effects import Compute, Recv
from refsgd.runtimes.programs import describe, frames
from refsgd.runtimes.transports.transport import anonymous

NOTHING, CLOSE, HALT, ABORT = range(4)  # commands
TEXT_BYTES = 1 << 14  # of a process


class _OfRun(ctypes.Structure):
    __slots__ = ()  # so that any other name is an error
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "start",  # on the monotonic clock [ns]
        "command",  # what the launcher wants
        "deaths",  # how many processes have died
        "hopeless")]  # how often programs were told that no message can arrive


class _OfProcess(ctypes.Structure):
    __slots__ = ()
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "ready",
        "beat",  # last sign of life on the monotonic clock [ns]
        "done",  # its main programs have returned
        "idle",  # it can do nothing before a message arrives
        "sent", "got",  # messages to and from living processes
        "effects",  # how many it has performed
        "due",  # when something is due, in the run [ns]
        "text",  # bytes of its text
        "dead",
        "noticed",  # how many deaths and notices that no message can arrive it has seen
        "wake",  # when to continue it, on the monotonic clock [ns]
        "bytes_sent", "bytes_received",  # payloads of messages to and from other processes
        "messages_sent", "messages_received")]


class _OfProgram(ctypes.Structure):
    __slots__ = ()
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "place", "doing",  # numbers of lines of the process's text
        "line",  # of the source
        "since",  # on the monotonic clock [ns]
        "computes")]  # how many it has begun


class Standing(NamedTuple):
    """Where a program is paused, as the launcher reads it, even after the process has died."""

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
        return (f"{self.node} in {self.doing}{step} at {self.place}" if self.place
                else f"{self.node} {self.doing}")


class StatusTable:
    """Words and a little text of every process; `programs` are those of each process, as (node, index)."""

    def __init__(self, programs: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        self.programs = {process: list(own) for process, own in programs.items()}
        keys = [key for own in self.programs.values() for key in own]
        of_processes = ctypes.sizeof(_OfRun)
        of_programs = of_processes + ctypes.sizeof(_OfProcess) * len(self.programs)
        text = of_programs + ctypes.sizeof(_OfProgram) * len(keys)
        memory = anonymous(text + TEXT_BYTES * len(self.programs))
        self.run: Any = _OfRun.from_buffer(memory)
        self.process: dict[str, Any] = dict(zip(
            self.programs, (_OfProcess * len(self.programs)).from_buffer(memory, of_processes)))
        self.program: dict[tuple[str, int], Any] = dict(zip(
            keys, (_OfProgram * len(keys)).from_buffer(memory, of_programs)))
        #: one line for each thing that the programs of a process do, and each place where they do it
        self.text = {process: memoryview(memory)[text + TEXT_BYTES * i : text + TEXT_BYTES * (i + 1)]
                     for i, process in enumerate(self.programs)}

    def standing(self, processes: Iterable[str] | None = None) -> list[Standing]:
        """Where the programs of these processes (all by default) stand."""
        out = []
        for process in self.programs if processes is None else processes:
            text = bytes(self.text[process][: self.process[process].text]).decode(errors="replace")
            lines = dict(enumerate(["", *text.split("\n")]))
            for node, index in self.programs[process]:
                words = self.program[node, index]
                doing, place = lines.get(words.doing, "?"), lines.get(words.place, "?")
                if place:
                    file, _, function = place.partition("|")
                    place = f"{file}:{words.line} in {function}"
                out.append(Standing(node, index, doing, place, words.since / 1e9, words.computes))
        return out

    def close(self) -> None:
        """Release the memory, which is freed with the last object that refers to it."""
        del self.run, self.process, self.program, self.text


class StatusLog:
    """Enters what the programs of one process do in the status table, in one microsecond; the process is the
    only writer of its words and text."""

    def __init__(self, table: StatusTable, process: str) -> None:
        self._words, self._text = table.process[process], table.text[process]
        self._programs = {key: table.program[key] for key in table.programs[process]}
        self._known: dict[Any, int] = {}

    def _entry(self, key: Any, text: str) -> int:
        """The number of a line of text, which is written at its first use; 0 once the text is full."""
        if key not in self._known:
            line, end = (text.replace("\n", " ") + "\n").encode(), self._words.text
            if end + len(line) > TEXT_BYTES:
                return 0
            self._text[end : end + len(line)] = line
            self._words.text = end + len(line)
            self._known[key] = len(self._known) + 1
        return self._known[key]

    def waits(self, node: str, index: int, program: Any, effect: Any, now_ns: int) -> None:
        """A program is about to wait for `effect` (a Compute or a Recv)."""
        words, inner = self._programs[node, index], frames(program)[-1]
        key = (effect.kinds, effect.src) if isinstance(effect, Recv) else effect.kind
        words.doing = self._known.get(key) or self._entry(key, describe(effect))
        code = inner.gi_code
        words.place = self._known.get(code) or self._entry(code, f"{code.co_filename}|{code.co_name}")
        words.line = inner.gi_frame.f_lineno
        words.since = now_ns
        if type(effect) is Compute:
            words.computes += 1

    def ended(self, node: str, index: int) -> None:
        """A program has returned."""
        words = self._programs[node, index]
        words.doing, words.place = self._entry("returned", "has returned"), 0
