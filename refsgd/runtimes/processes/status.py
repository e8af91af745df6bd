"""Shared status table: each process publishes its state, the launcher publishes commands.

An anonymous mapping made before the fork, so nothing is left under any name.  Every word has one writer and
is written by one store (through ``memoryview.cast("Q")``; ``struct`` would write byte by byte).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from refsgd.effects import Compute, Recv
from refsgd.runtimes.programs import describe, innermost
from refsgd.runtimes.transports.waking import anonymous

# of the run: start on the monotonic clock [ns]; what the launcher wants; how
START, COMMAND, DEATHS, VAIN = range(4)
# many died; how often programs were told that they wait in vain
NOTHING, CLOSE, HALT, ABORT = range(4)  # commands
# of a process; WAKE: when to continue it
READY, BEAT, DONE, IDLE, SENT, GOT, EFFECTS, DUE, TEXT, DEAD, NOTICED, WAKE = range(12)
PLACE, LINE, DOING, SINCE, COMPUTES = range(5)  # of a program
OF_RUN, PER_PROCESS, PER_PROGRAM, TEXT_BYTES = 8, 16, 8, 1 << 14


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
        return (f"{self.node} in {self.doing}{step} at {self.place}" if self.place
                else f"{self.node} {self.doing}")


class StatusTable:
    """Words and a little text of every process.

    Parameters
    ----------
    programs : mapping of str to list of (str, int)
        For each process its programs, as (node, index).
    """

    def __init__(self, programs: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        self.programs = {process: list(p) for process, p in programs.items()}
        self.index = {process: i for i, process in enumerate(programs)}
        count = sum(map(len, self.programs.values()))
        words = OF_RUN + PER_PROCESS * len(self.index) + PER_PROGRAM * count
        self._map = anonymous(8 * words + TEXT_BYTES * len(self.index))
        self._view = memoryview(self._map)
        self.words = self._view[: 8 * words].cast("Q")
        self._text_at = 8 * words
        self._program_at: dict[tuple[str, int], int] = {}
        at = OF_RUN + PER_PROCESS * len(self.index)
        for one in self.programs.values():
            for key in one:
                self._program_at[key] = at
                at += PER_PROGRAM

    def of(self, process: str) -> memoryview:
        """The words of a process."""
        at = OF_RUN + PER_PROCESS * self.index[process]
        return self.words[at : at + PER_PROCESS]

    def text(self, process: str) -> memoryview:
        """The text of a process: one line per entry."""
        at = self._text_at + TEXT_BYTES * self.index[process]
        return self._view[at : at + TEXT_BYTES]

    def slot(self, node: str, program: int) -> memoryview:
        """The words of a program."""
        at = self._program_at[node, program]
        return self.words[at : at + PER_PROGRAM]

    def standing(self, processes: Iterable[str] | None = None) -> list[Standing]:
        """Where the programs of these processes (all by default) stand."""
        out = []
        for process in self.programs if processes is None else processes:
            text = bytes(self.text(process)[: self.of(process)[TEXT]]).decode(errors="replace")
            lines = ["", *text.split("\n")]
            for node, index in self.programs[process]:
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


class StatusLog:
    """The log of one process: enters what its programs do in the status table, in one microsecond.

    Parameters
    ----------
    table : StatusTable
    process : str
        Whose words and text are written; it is their only writer.
    """

    def __init__(self, table: StatusTable, process: str) -> None:
        self._words, self._text = table.of(process), table.text(process)
        self._slots = {key: table.slot(*key) for key in table.programs[process]}
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
