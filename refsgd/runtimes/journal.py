"""Record files (docs/records.md), written during a run so that even a crashed run can be replayed.

Each line is appended by one system call, so the processes of one computer may share a file.
"""

from __future__ import annotations

import errno
import hashlib
import heapq
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from refsgd.runtimes.errors import ReplayError
from refsgd.runtimes.replay import unordered
from refsgd.trace import UNORDERED, Added, Event, Sent, Trace, schema
from refsgd.trace.codec import Steps, event_of, row_misfit, row_of
from refsgd.trace.schema import COUNT, NUMBER, OBJECT, SECONDS, TEXT, Row, one_of, whole

FORMAT = 2
DYING = 1.0  #: seconds in which the processes of a killed run may still have its files open
# the first and the last bytes of a line
BEGINNING, CHECK = re.compile(rb'[\[{]"'), re.compile(rb" [0-9a-f]{8}")
#: those of the arguments of a run on which reading relies; `refsgd.experiment.prepare.Training` checks all
ARGUMENTS = {"workers": whole(1), "servers": whole(1), "machine": OBJECT}
HEADER = {"algorithm": TEXT, "arguments": ARGUMENTS,
          "runtime": one_of("simulator", "processes", "tcp", "mpi", "torch"), "nodes": [TEXT]}
#: planned faults, and the policy after a death; not in records of older versions
PLANNED = {"faults": [Row({"kind": TEXT, "node": TEXT, "step": COUNT, "amount": NUMBER, "to": TEXT})],
           "on_death": TEXT}
END = {"end": {"parameters_sha256": TEXT, "seconds": SECONDS}}
ADVICE = (
    "expected a file that `refsgd run ALGORITHM --record FILE` wrote (what --json or --trace writes cannot "
    "be replayed): run it again with --record")


def line(value: Any) -> bytes:
    """A JSON value as a line of a record."""
    text = schema.json_text(value, separators=(",", ":")).encode()
    return b"%s %08x\n" % (text, zlib.crc32(text))


def lock(file: int) -> None:
    """Make an open file or folder the property of this run until all its processes have closed it, and close
    it if another run has it."""
    end = time.monotonic() + DYING
    with suppress(ImportError):
        import fcntl

        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > end:
                    os.close(file)
                    raise OSError(error.errno, "another run is writing it") from None
                time.sleep(0.01)
            except OSError:  # a file system without locks
                return
            else:
                return


class Journal:
    """A record being written: a new file, whose `header` describes the run, or, if another process has `made`
    the file and writes its end, an existing one."""

    def __init__(self, path: str | Path, header: Mapping[str, Any], nodes: Sequence[str],
                 made: bool = False) -> None:
        self._made, self._path = made, path
        other = os.path.exists(path) and not os.path.isfile(path)  # a pipe or a device
        flags = os.O_APPEND | os.O_CLOEXEC | (os.O_WRONLY if other else os.O_RDWR)
        self._fd = os.open(path, flags if made else flags | os.O_CREAT, 0o644)
        self._file = stat.S_ISREG(os.fstat(self._fd).st_mode)
        if not made:
            if self._file:
                lock(self._fd)
                os.ftruncate(self._fd, 0)
            self._write({"record": FORMAT, **header, "nodes": list(nodes)})

    def _write(self, value: Any) -> None:
        data = line(value)
        try:
            whole, why = os.write(self._fd, data) == len(data), "a part of a line"
        except OSError as error:
            whole, why = False, str(error.strerror)
        if not whole:
            raise self._failed(why)

    def _failed(self, why: str) -> RuntimeError:
        return RuntimeError(f"the record {self._path} could not be written ({why}); expected more free space")

    def __call__(self, event: Event) -> None:
        """Write an action of a program."""
        if isinstance(event, Added) and event.ticket == UNORDERED:
            raise unordered()
        self._write(row_of(event))

    def repeat(self, steps: Steps) -> None:
        """Write the steps of an earlier record that this one continues."""
        for event in heapq.merge(*steps.values(), key=lambda e: (e.time, not isinstance(e, Sent))):
            self._write(row_of(event))

    def move(self, path: str | Path) -> None:
        """Flush the file to the disk and rename it atomically."""
        self.sync()
        os.replace(self._path, path)
        self._path = path
        folder = os.open(Path(path).parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name too
        finally:
            os.close(folder)

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a pipe or a device, which has no disk
                raise self._failed(str(error.strerror)) from None

    def finish(self, trace: Trace, parameters_sha256: str) -> None:
        """Write the end of a successful run, and wait until it is on the disk."""
        if self._made:
            return
        end = {"parameters_sha256": parameters_sha256, "seconds": trace.seconds}
        if self._file:  # nothing else can be read again, nor by its name if somebody has removed it
            with open(os.dup(self._fd), "rb") as file:
                file.seek(0)
                end["sha256"] = _digest([row for _, row in _whole_lines(self._path, file.read())])
        self._write({"end": end})
        self.sync()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class Record(NamedTuple):
    """The contents of a record file."""

    header: dict[str, Any]
    steps: Steps  #: of each node
    end: dict[str, Any] | None  #: None: the run has crashed, or is still running

    @property
    def size(self) -> int:
        """Steps of all nodes."""
        return sum(map(len, self.steps.values()))


def _is_whole(row: bytes) -> bool:
    text, _, check = row.rpartition(b" ")
    return check == b"%08x" % zlib.crc32(text)


def _pieces(row: bytes) -> tuple[list[bytes], bytes]:
    """The whole lines between two line ends, and the rest after them.

    A killed process may leave the beginning of a line, to which others append theirs; text before a whole
    line is skipped if it can be such a beginning.
    """
    found, begin = list[bytes](), 0
    for start in BEGINNING.finditer(row):
        if start.start() < begin:
            continue
        for check in CHECK.finditer(row, start.start()):
            if _is_whole(row[start.start() : check.end()]):
                if start.start() > begin and row[begin : begin + 1] not in (b"[", b"{"):
                    return [], row
                found.append(row[start.start() : check.end()])
                begin = check.end()
                break
    return found, row[begin:]


def _whole_lines(path: str | Path, data: bytes) -> list[tuple[int, bytes]]:
    """The whole lines of a record with their numbers in the file; raises for an altered line."""
    rows, found = data.split(b"\n"), list[tuple[int, bytes]]()
    if len(rows) == 1 and not rows[0].startswith(b"{"):
        raise ReplayError(f"{path}: not a record; {ADVICE}")
    for number, row in enumerate(rows, 1):
        lines, left = ([row], b"") if _is_whole(row) else _pieces(row)
        if (left or not lines) and number < len(rows):
            if number == 1:
                raise ReplayError(
                    f"{path}: not a record of format {FORMAT}, or altered in its first line; {ADVICE}")
            _refuse(path, number, "the line was altered (its checksum differs); expected the file as it was "
                    "written")
        found += [(number, line) for line in lines]
    return found


def _digest(rows: Sequence[bytes]) -> str:
    return hashlib.sha256(b"\n".join(rows)).hexdigest()


def value_of(row: bytes) -> Any:
    """The JSON value of a line."""
    try:
        return json.loads(row.rpartition(b" ")[0])
    except RecursionError:
        raise ValueError("lists nested too deeply") from None


def read(path: str | Path) -> Record:
    """Read a record file, skipping lines that a death has cut, at its end or between others."""
    lines = _whole_lines(path, Path(path).read_bytes())
    try:
        values = [(number, value_of(row)) for number, row in lines]
    except ValueError as error:
        raise ReplayError(f"{path}: not JSON: {error}; {ADVICE}") from None
    header: dict[str, Any] = values[0][1] if values and isinstance(values[0][1], dict) else {}
    if "record" not in header:
        raise ReplayError(f"{path}: not a record; {ADVICE}")
    if header["record"] != FORMAT:
        raise ReplayError(f"{path}: record format {header.get('record')!r}; expected {FORMAT}")
    header = {"faults": [], "on_death": "stop"} | header
    _refuse(path, 1, schema.misfit(header, HEADER) or schema.misfit(header, PLANNED))
    header["arguments"] = schema.infinities(header["arguments"])
    steps: Steps = {node: [] for node in header["nodes"]}
    end = None
    for at, (number, value) in enumerate(values[1:], 1):
        if isinstance(value, dict):
            _refuse(path, number, schema.misfit(value, END))
            end = value["end"]
            if end.get("sha256", found := _digest([row for _, row in lines[:at]])) != found:
                _refuse(path, number,
                        f"end.sha256 is not that of the lines before it, {found[:16]}...; expected the file "
                        "as it was written")
        else:
            _refuse(path, number, row_misfit(value, header["nodes"]))
            steps[value[0]].append(event_of(value))
    return Record(header, steps, end)


def _refuse(path: str | Path, number: int, wrong: str) -> None:
    if wrong:
        raise ReplayError(f"{path}, line {number}: {wrong}")
