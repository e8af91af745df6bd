"""Values that cross the border between a submission and its judge, as JSON.

Nothing is unpickled, and no name that comes from a submission is looked up: a message becomes a NamedTuple
with the same name and fields.  Anything but numbers, texts, arrays and collections of these stays
with the submission, under a number.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import namedtuple
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

NUMBER = re.compile(r"[<>|=]?[biuf]\d{1,2}|\|b1")  #: dtypes of arrays that cross
FIELDS = 64  #: most fields of a message
PLAIN = (bool, int, str, type(None))


class Kept:
    """A value that has stayed with the submission."""

    def __init__(self, number: int, nbytes: int) -> None:
        self.number, self.nbytes = number, nbytes


def encode(value: Any, keep: Callable[[Any], list[int]]) -> Any:
    """A value for `json`; what cannot be described is kept, and `keep` gives its number and bytes."""
    kind = type(value)
    if kind in PLAIN or (kind is float and math.isfinite(value)):
        return value
    if kind is float:
        return {"float": str(value)}
    if kind is Kept:
        return {"kept": [value.number, value.nbytes]}
    if kind is np.ndarray and value.dtype.kind in "biuf":
        return {"array": [value.dtype.str, list(value.shape), _text(np.ascontiguousarray(value).tobytes())]}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"scalar": [value.dtype.str, _text(value.tobytes())]}
    if isinstance(value, tuple):
        items, fields = [encode(item, keep) for item in value], getattr(kind, "_fields", None)
        return {"tuple": items} if fields is None else {"message": [kind.__qualname__, list(fields), items]}
    if kind is list:
        return {"list": [encode(item, keep) for item in value]}
    if kind is dict:
        return {"dict": [[encode(key, keep), encode(item, keep)] for key, item in value.items()]}
    return {"kept": keep(value)}


def decode(said: Any, named: Callable[[str, tuple[str, ...]], Any], kept: Callable[[int, int], Any]) -> Any:
    """The value; `named` gives the class of a message, `kept` what stayed behind.  Arrays are read-only."""
    if type(said) in PLAIN or type(said) is float:
        return said
    (kind, what), = said.items()
    if kind == "array":
        dtype, shape, text = what
        return np.frombuffer(base64.b64decode(text), _dtype(dtype)).reshape(shape)
    if kind == "scalar":
        return np.frombuffer(base64.b64decode(what[1]), _dtype(what[0]))[0]
    if kind == "float":
        return float(what)
    if kind == "kept":
        return kept(int(what[0]), int(what[1]))
    if kind == "dict":
        return {decode(key, named, kept): decode(item, named, kept) for key, item in what}
    if kind == "message":
        name, fields, items = what
        return named(name, tuple(fields))(*(decode(item, named, kept) for item in items))
    return {"tuple": tuple, "list": list}[kind](decode(item, named, kept) for item in what)


@lru_cache(maxsize=1000)
def message_class(name: str, fields: tuple[str, ...]) -> Any:
    """A class of messages with this qualified name and these fields."""
    if len(name) > 200 or len(fields) > FIELDS or not all(part.isidentifier() for part in fields):
        raise ValueError(f"a message {name[:80]!r} with fields {str(fields)[:80]}; expected identifiers")
    short = name.rpartition(".")[2]
    found = namedtuple(short if short.isidentifier() else "Message", fields)  # type: ignore[misc]
    found.__qualname__ = name
    return found


def dumps(value: Any) -> bytes:
    """One line of JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _dtype(text: str) -> np.dtype[Any]:
    if not NUMBER.fullmatch(text):
        raise ValueError(f"an array of {text[:40]!r}; expected numbers")
    return np.dtype(text)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
