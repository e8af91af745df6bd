"""The file of a checkpoint: written whole or not at all, and read as it was written or not at all.

A checkpoint is a record of the run so far (`refsgd.runtimes.journal`) together with everything that its programs held at
that moment (`refsgd.runtimes.snapshot`): parameters, optimiser state, residuals, clocks, messages in flight.  See
docs/checkpoints.md for the file, and for what else was considered; `refsgd.resumable` for the runs that write them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refsgd.runtimes.journal import HEADER, line, value_of
from refsgd.runtimes.replay import Steps, step_misfit
from refsgd.runtimes.snapshot import Snapshot
from refsgd.schema import ANY, COUNT, SECONDS, TEXT, Row, misfit

FORMAT = 2
PART = {"nodes": [TEXT], "seconds": SECONDS, "iterations": COUNT}  # of what one process holds
CHECKED = {"lines": COUNT, "bytes": COUNT, "sha256": TEXT}  # what stands behind the first line
ARRAYS = [Row({"type": TEXT, "shape": [COUNT]})]
NAME = re.compile(r"checkpoint-(\d{6})")


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read, or that does not fit; names the file."""


@dataclass(frozen=True)
class Checkpoint:
    """A moment of a run.

    Attributes
    ----------
    header : dict
        "algorithm", "arguments", "runtime", "nodes", "seconds" (of the run so far), "iterations" (of the first worker),
        and in the simulator "advances", how many happenings there were.
    steps : dict of node name to list
        What each program did so far, see `refsgd.runtimes.replay.step`.
    state : dict of str to Snapshot
        What the programs of each node held (in the simulator: of all nodes, under "simulator").
    path : path, optional
        Where it was read.
    """

    header: dict[str, Any]
    steps: Steps
    state: dict[str, Snapshot]
    path: str | Path = ""


def pack(checkpoint: Checkpoint) -> list[bytes | memoryview]:
    """The bytes of a checkpoint: a line that describes and checks the rest, lines of JSON, then the raw arrays."""
    arrays, places = list[np.ndarray[Any, Any]](), dict[int, int]()
    used = dict[str, list[int]]()
    for key, snapshot in checkpoint.state.items():
        for array in snapshot.arrays:
            if id(array) not in places:
                places[id(array)] = len(arrays)
                arrays.append(array)
        used[key] = [places[id(array)] for array in snapshot.arrays]
    raws = [np.ascontiguousarray(array, array.dtype.newbyteorder("<")) for array in arrays]
    lines = [json.dumps([node, *told]) for node, steps in checkpoint.steps.items() for told in steps]
    lines.append(json.dumps({"facts": {key: s.facts for key, s in checkpoint.state.items()}, "arrays": used,
                             "kinds": [[a.dtype.str, list(a.shape)] for a in raws]}))
    body: list[bytes | memoryview] = ["".join(text + "\n" for text in lines).encode()]
    body += [raw.reshape(-1).view(np.uint8).data for raw in raws if raw.size]
    head = {"checkpoint": FORMAT, **checkpoint.header, "lines": len(lines), "bytes": sum(map(len, body))}
    return [line({**head, "sha256": _digest(head, body)}), *body]


def _digest(head: dict[str, Any], body: Iterable[bytes | memoryview]) -> str:
    """SHA-256 of a checkpoint: of what its first line says, without the digest itself, and of everything behind it."""
    digest = hashlib.sha256(line(head))
    for part in body:
        digest.update(part)
    return digest.hexdigest()


def read(path: str | Path, part: bool = False) -> Checkpoint:
    """Read a checkpoint file."""
    data = Path(path).read_bytes()
    first, _, body = data.partition(b"\n")
    if not first.startswith(b'{"checkpoint":') or first + b"\n" != _rewritten(first):
        raise CheckpointError(f"{path}: no checkpoint, or its first line is damaged")
    header = value_of(first)
    if header.pop("checkpoint") != FORMAT:
        raise CheckpointError(f"{path}: a checkpoint of another format; expected {FORMAT}")
    _refuse(path, 1, misfit(header, CHECKED))
    count, nbytes, digest = header["lines"], header["bytes"], header.pop("sha256")
    if len(body) != nbytes:
        raise CheckpointError(f"{path}: torn: {len(body)} bytes behind its first line; expected {nbytes}")
    if _digest({"checkpoint": FORMAT, **header}, [body]) != digest:
        raise CheckpointError(f"{path}: altered: its SHA-256 is not the one in its first line")
    whole = HEADER | ({"advances": COUNT} if header.get("runtime") == "simulator" else {})
    _refuse(path, 1, misfit(header, PART if part else PART | whole))
    *lines, raw = body.split(b"\n", count)
    try:
        values = [json.loads(text) for text in lines]
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    steps: Steps = {node: [] for node in header["nodes"]}
    for number, value in enumerate(values[:-1], 2):
        _refuse(path, number, step_misfit(value, header["nodes"]))
        steps[value[0]].append(value[1:])
    names = ["simulator"] if header.get("runtime") == "simulator" else header["nodes"]
    about = {"facts": {key: [ANY] for key in names}, "arrays": {key: [COUNT] for key in names}, "kinds": ARRAYS}
    last: Any = values[-1] if values else None
    _refuse(path, len(lines) + 1, misfit(last, about) or _arrays_misfit(last, len(raw)))
    at, arrays = 0, list[np.ndarray[Any, Any]]()
    for code, shape in last["kinds"]:
        arrays.append(np.frombuffer(raw, code, math.prod(shape), at).reshape(shape))
        at += arrays[-1].nbytes
    state = {key: Snapshot(last["facts"][key], [arrays[k] for k in last["arrays"][key]]) for key in names}
    return Checkpoint({key: value for key, value in header.items() if key not in CHECKED}, steps, state, path)


def _arrays_misfit(about: dict[str, Any], nbytes: int) -> str:
    """What does not fit between the arrays that a checkpoint describes, those it names, and the bytes it holds."""
    needed = 0
    for k, (code, shape) in enumerate(about["kinds"]):
        if not re.fullmatch(r"[<|][biufc]\d{1,2}", code):
            return f"kinds[{k}].type is {code!r}; expected the type of a little-endian array of numbers, such as '<f4'"
        needed += int(code[2:]) * math.prod(shape)
    if needed != nbytes:
        return f"kinds are of {needed} bytes; expected {nbytes}, which stand behind it"
    for key, used in about["arrays"].items():
        if any(k >= len(about["kinds"]) for k in used):
            return f"arrays.{key} names array {max(used)}; expected one of {len(about['kinds'])}"
    return ""


def _refuse(path: str | Path, number: int, wrong: str) -> None:
    if wrong:
        raise CheckpointError(f"{path}, line {number}: {wrong}")


def _rewritten(first: bytes) -> bytes:
    try:
        return line(value_of(first))
    except ValueError:
        return b""


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a file that is there whole or not at all, also after a power cut."""
    try:
        _replace(path, checkpoint)
    except OSError as error:
        raise CheckpointError(f"{path} could not be written ({error.strerror}); expected a folder that is there, with free space") from None


def _replace(path: Path, checkpoint: Checkpoint) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".checkpoint-")
    try:
        with os.fdopen(handle, "wb") as file:
            for part in pack(checkpoint):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name too
    finally:
        os.close(folder)


def files(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest first."""
    return sorted(path for path in folder.iterdir() if NAME.fullmatch(path.name))


def newest(place: str | Path) -> Checkpoint:
    """The checkpoint at `place`, a file or a folder, of which the newest is taken."""
    place = Path(place)
    if not place.exists():
        raise CheckpointError(f"no checkpoint at {place}; expected a folder that --checkpoint wrote to, or a file in it")
    found = files(place) if place.is_dir() else [place]
    if not found:
        raise CheckpointError(f"no checkpoint in {place}; the run ended before its first one")
    try:
        return read(found[-1])
    except CheckpointError as error:
        whole = next((p for p in reversed(files(found[-1].parent)) if p.name < found[-1].name and _is_whole(p)), None)
        offer = f"the one before it is whole: --resume {whole}" if whole else "there is no whole one before it"
        raise CheckpointError(f"{error}; {offer}") from None


def _is_whole(path: Path) -> bool:
    try:
        read(path)
    except CheckpointError:
        return False
    return True
