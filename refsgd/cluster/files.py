"""Machine files: TOML or JSON with the fields of a `Machine`, optionally on top of another file."""

from __future__ import annotations

import codecs
import json
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from refsgd.cluster import nccl
from refsgd.cluster.checks import check_keys, prefixed
from refsgd.cluster.machine import Machine

Timed = tuple[str, int] | None  #: the net and batch for which compute times were measured
DEEPEST, LARGEST = 16, 16 << 20  #: files that include one another; bytes of one
#: byte order marks, and how the text after them is encoded
MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
         (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


def read(name: str) -> tuple[Machine, Timed]:
    """The machine that a file describes, together with the files it includes, and the net and batch that its
    compute times are for; raises OSError, or ValueError in one line that names file and key."""
    values, origin, timed = _merged(Path(name), ())
    try:
        machine = Machine.from_json(values)
    except ValueError as error:  # which begins with the key
        found = origin.get(str(error).split()[0].rstrip(":"), Path(name))
        raise ValueError(f"machine file {found}: {error}") from None
    return machine.with_(source=f"machine file {name}: "), timed


def _merged(path: Path, outer: tuple[Path, ...]) -> tuple[dict[str, Any], dict[str, Path], Timed]:
    """The values of a file and of those it includes, the file of each value, and the net and batch."""
    data = _parsed(path)
    values = data.get("machine", data)
    if not isinstance(values, Mapping):
        raise ValueError(f"machine file {path}: machine {values!r} of type {type(values).__name__}; "
                         f"expected an object with some of {Machine.keys()}")
    values = {"include": data["include"], **values} if "include" in data else dict(values)
    with prefixed(f"machine file {path}: "):
        check_keys(values, [*Machine.keys(), "include"], "a machine")
    for name in ("compute", "bandwidth"):
        if nccl.is_table(values.get(name)):
            values[name] = f"@{path.parent / values[name].strip()[1:]}"
    if nccl.is_table(values.get("bandwidth")):
        with prefixed(f"machine file {path}: bandwidth @"):
            latency, values["bandwidth"] = nccl.link_of(values["bandwidth"][1:])
        values.setdefault("latency", latency)
    net = data.get("net")
    timed = (net["net"], net["batch"]) if isinstance(net, Mapping) and {"net", "batch"} <= set(net) else None
    if "include" not in values:
        return values, dict.fromkeys(values, path), timed
    include = values.pop("include")
    if not isinstance(include, str):
        raise ValueError(f"machine file {path}: include {include!r}; expected the name of another machine "
                         "file")
    further, chain = path.parent / include, (*outer, path)
    if further.resolve() in [p.resolve() for p in chain]:
        circle = " -> ".join(p.name for p in (*chain, further))
        raise ValueError(f"machine file {path}: include {include!r} forms the cycle {circle}; expected "
                         "files that do not include each other")
    if len(chain) > DEEPEST:
        raise ValueError(f"machine file {chain[0]}: {len(chain)} files include one another; expected at most "
                         f"{DEEPEST}")
    try:
        below, origin, below_timed = _merged(further, chain)
    except OSError as error:
        raise ValueError(f"machine file {path}: include {include!r}: {error.strerror}; expected the name of "
                         "another machine file") from None
    return {**below, **values}, {**origin, **dict.fromkeys(values, path)}, timed or below_timed


def _parsed(path: Path) -> dict[str, Any]:
    """The contents of a file: TOML if its name ends in .toml, else JSON."""
    toml = path.suffix == ".toml"
    try:
        text = _text(path)
        data = tomllib.loads(text) if toml else json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:  # also if it is not text
        wanted = "TOML" if toml else "JSON as `refsgd calibrate` writes it, or TOML in a file *.toml"
        raise ValueError(f"machine file {path}: {error}; expected {wanted}") from None
    if not isinstance(data, dict):
        raise ValueError(f"machine file {path} holds a {type(data).__name__}; expected an object")
    return data


def _text(path: Path) -> str:
    """The text of a regular file of moderate size, in UTF-8 or as its byte order mark says."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        raise ValueError(f"it is not a regular file of at most {LARGEST >> 20} MiB")
    raw = path.read_bytes()
    encoding = next((name for mark, name in MARKS if raw.startswith(mark)), "utf-8")
    if encoding == "utf-8" and b"\0" in raw:
        raise ValueError("it has zero bytes, as UTF-16 without a byte order mark has, and is read as UTF-8")
    return raw.decode(encoding).replace("\r\n", "\n")


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a duplicate key is refused, as in TOML."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)!r} appears twice")
    return found


def written(machine: Machine, toml: bool) -> str:
    """The text of a machine file, without fields that have their default."""
    usual = Machine().to_json()
    fields = {name: value for name, value in machine.to_json().items()
              if name not in usual or value != usual[name]}
    if not toml:
        return json.dumps(fields, indent=1, allow_nan=False)
    return "\n".join(f"{name} = {_toml(value)}" for name, value in fields.items())


def _toml(value: Any) -> str:
    """A value as TOML, which writes most of them as JSON does."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    # TOML has no null: an unlimited bandwidth
    return "inf" if value is None else json.dumps(value, allow_nan=False)
