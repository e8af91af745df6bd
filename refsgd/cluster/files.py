"""Machine files: TOML or JSON with the fields of a `Machine`, perhaps on top of another file."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from refsgd.cluster.checks import check_keys
from refsgd.cluster.machine import Machine

Timed = tuple[str, int] | None  #: net and batch whose gradients a machine's compute times are


def read(name: str) -> tuple[Machine, Timed]:
    """The machine of a file, or of the file that it includes where it says nothing else, and what its
    gradients were timed for; OSError if there is none, ValueError in one line that names file and key."""
    values, origin, timed = _merged(Path(name), ())
    try:
        machine = Machine.from_json(values)
    except ValueError as error:  # which begins with the key
        found = origin.get(str(error).split()[0].rstrip(":"), Path(name))
        raise ValueError(f"machine file {found}: {error}") from None
    return machine.with_(source=f"machine file {name}: "), timed


def _merged(path: Path, outer: tuple[Path, ...]) -> tuple[dict[str, Any], dict[str, Path], Timed]:
    """The values of a file over those that it includes, the file of each, and the net and batch."""
    data = _parsed(path)
    values = data.get("machine", data)
    if not isinstance(values, Mapping):
        raise ValueError(f"machine file {path}: a machine is {values!r} of type {type(values).__name__}; "
                         f"expected an object with some of {Machine.keys()}")
    values = {"include": data["include"], **values} if "include" in data else dict(values)
    try:
        check_keys(set(values) - {"collocated"}, [*Machine.keys(), "include"], "a machine")
    except ValueError as error:
        raise ValueError(f"machine file {path}: {error}") from None
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
        raise ValueError(f"machine file {path}: include {include!r} closes the circle {circle}; expected "
                         "files that do not include each other")
    try:
        below, origin, below_timed = _merged(further, chain)
    except OSError as error:
        raise ValueError(f"machine file {path}: include {include!r}: {error.strerror}; expected the name of "
                         "another machine file") from None
    return {**below, **values}, {**origin, **dict.fromkeys(values, path)}, timed or below_timed


def _parsed(path: Path) -> dict[str, Any]:
    """The contents of a file: TOML if it is called so, else JSON."""
    text = path.read_bytes()
    toml = path.suffix == ".toml"
    try:
        data = tomllib.loads(text.decode()) if toml else json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:  # also if it is not text
        wanted = "TOML" if toml else "JSON as `refsgd calibrate` writes it, or TOML in a file *.toml"
        raise ValueError(f"machine file {path}: {error}; expected {wanted}") from None
    if not isinstance(data, dict):
        raise ValueError(f"machine file {path} holds a {type(data).__name__}; expected an object")
    return data


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a key that stands in it twice is refused, as in TOML."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(k for k in keys if keys.count(k) > 1)!r} stands there twice")
    return found


def written(machine: Machine, toml: bool) -> str:
    """The text of a machine file, without fields that are as in every machine."""
    usual = Machine().to_json()
    fields = {name: value for name, value in machine.to_json().items()
              if name not in usual or value != usual[name]}
    if not toml:
        return json.dumps(fields, indent=1)
    return "\n".join(f"{name} = {_toml(value)}" for name, value in fields.items())


def _toml(value: Any) -> str:
    """A value as TOML, which writes most of them as JSON does."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return "inf" if value is None else json.dumps(value)  # TOML has no null: an unlimited bandwidth
