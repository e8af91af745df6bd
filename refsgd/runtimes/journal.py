"""Record files, written while a run goes on: what was recorded until a crash can be read and replayed.

One line for each thing that a program did: JSON, a space, and the CRC-32 of the JSON's bytes in eight hexadecimal
digits.  The first line says what was run, the last one how it ended.  Every line is one append of one system call, so
that the processes of one computer may share a file, and a process that is killed leaves whole lines behind.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from refsgd.runtimes.replay import ReplayError, Steps, step
from refsgd.trace import Event, Trace

FORMAT = 2
ADVICE = "expected a file that `refsgd run ALGORITHM --record FILE` wrote (what --json or --trace writes cannot be replayed): run it again with --record"


def line(value: Any) -> bytes:
    """A JSON value as a line of a record.

    Parameters
    ----------
    value : object
        What JSON can hold.

    Returns
    -------
    bytes
        The text, its CRC-32 in hexadecimal, a line's end.
    """
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"%s %08x\n" % (text, zlib.crc32(text))


class Journal:
    """A record that is being written.

    Parameters
    ----------
    path : path
        Made anew.
    header : mapping
        What is run: "algorithm", "arguments", "runtime".
    nodes : sequence of str
        All nodes, in the deployment's order.
    made : bool
        Another process has made the file and goes on writing to it, and to its end: this one adds its lines.
    """

    def __init__(self, path: str | Path, header: Mapping[str, Any], nodes: Sequence[str], made: bool = False) -> None:
        self._tickets, self._workers = 0, sum(not node.startswith("server") for node in nodes)
        self._made, self._path = made, path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (0 if made else os.O_CREAT | os.O_TRUNC), 0o644)
        if not made:
            self._write({"record": FORMAT, **header, "nodes": list(nodes)})

    def _write(self, value: Any) -> None:
        data = line(value)
        try:
            whole, why = os.write(self._fd, data) == len(data), "a part of a line"
        except OSError as error:
            whole, why = False, str(error.strerror)
        if not whole:
            raise RuntimeError(f"the record {self._path} could not be written ({why}); expected more free space")

    def __call__(self, event: Event) -> None:
        """Write what a program did."""
        if event.kind in ("load", "add"):
            if event.data.get("ticket", 0) is None and self._workers > 1:
                raise ReplayError("additions without a lock happen in no order that could be recorded; expected hogwild --atomic")
            self._tickets += 1
        self._write([event.node, *step(event, self._tickets - 1)])

    def finish(self, trace: Trace, parameters_sha256: str) -> None:
        """The run has ended well: say who died (nobody else could) and what came out, and see it on the disk.

        Parameters
        ----------
        trace : Trace
        parameters_sha256 : str
            In hexadecimal, of the parameters that came out.
        """
        if self._made:
            return
        for event in trace.of("died"):
            self(event)
        self._write({"end": {"parameters_sha256": parameters_sha256, "seconds": trace.seconds}})
        os.fsync(self._fd)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._fd)


class Record(NamedTuple):
    """What a record file says."""

    header: dict[str, Any]
    steps: Steps  #: of each node
    end: dict[str, Any] | None  #: None: the run has crashed, or still goes on

    @property
    def size(self) -> int:
        """Steps of all nodes."""
        return sum(map(len, self.steps.values()))


def read(path: str | Path) -> Record:
    """Read a record file; a torn last line, as a crash leaves it, is passed over.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Record

    Raises
    ------
    ReplayError
        If the file is no record, or a line is not as it was written; says which.
    """
    rows = Path(path).read_bytes().split(b"\n")
    torn, values = rows.pop(), list[Any]()
    if not rows and not torn.startswith(b"{"):
        raise ReplayError(f"{path}: not a record; {ADVICE}")
    for number, row in enumerate(rows, 1):
        text, _, check = row.rpartition(b" ")
        if check != b"%08x" % zlib.crc32(text):
            if number == 1:
                raise ReplayError(f"{path}: not a record of format {FORMAT}, or altered in its first line; {ADVICE}")
            raise ReplayError(f"{path}, line {number}: the line is not as it was written (its checksum differs); expected a file "
                              "that nobody has altered")
        values.append(json.loads(text))
    header = values[0] if values and isinstance(values[0], dict) else {}
    if "record" not in header:
        raise ReplayError(f"{path}: not a record; {ADVICE}")
    if header["record"] != FORMAT:
        raise ReplayError(f"{path}: record format {header.get('record')!r}; expected {FORMAT}")
    steps: Steps = {node: [] for node in header["nodes"]}
    end = None
    for value in values[1:]:
        if isinstance(value, dict):
            end = value["end"]
        else:
            steps[value[0]].append(value[1:])
    return Record(header, steps, end)
