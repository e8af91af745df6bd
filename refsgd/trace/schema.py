"""Schemas of JSON values in files, and a check whose error is one line that names the field.

A schema is a `Kind`, for a value without parts; a dict, for an object with at least these fields; a `Row`,
for a list with one value per field; or a list with one schema, for a list of such values.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

LARGEST = 2.0**63  # no duration, rate or time beyond it makes sense


class Kind(NamedTuple):
    """The allowed values, in words and as a function."""

    expected: str
    fits: Callable[[Any], bool]


class Row(NamedTuple):
    """A list with one value per field, in this order."""

    fields: dict[str, Any]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST < value < LARGEST


def whole(least: int) -> Kind:
    """A whole number."""
    return Kind(f"a whole number, at least {least}", lambda value: type(value) is int and value >= least)


def one_of(*choices: Any) -> Kind:
    """One of some texts, or null."""
    return Kind(" or ".join("null" if c is None else c for c in choices),
                lambda value: isinstance(value, str | None) and value in choices)


ANY = Kind("anything", lambda value: True)
TEXT = Kind("text", lambda value: isinstance(value, str))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
NUMBER = Kind("a number", _is_number)
SECONDS = Kind("a number of seconds, at least 0", lambda value: _is_number(value) and value >= 0)
COUNT = whole(0)


def json_text(value: Any, **style: Any) -> str:
    """A value as strict JSON: NaN as null, infinities as "inf" and "-inf"; by default a field a line."""
    style = style or {"indent": 1}
    try:
        return json.dumps(value, **style, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), **style, allow_nan=False)


def infinities(options: Mapping[str, Any]) -> dict[str, Any]:
    """An algorithm's options as `json_text` got them: "inf" and "-inf" are numbers."""
    return {name: float(value) if value in ("inf", "-inf") else value for name, value in options.items()}


def as_number(value: Any) -> Any:
    """The inverse of `json_text` for a number, which "inf" is, too."""
    return math.nan if value is None else float(value) if isinstance(value, str) else value


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(float(value))
    return value


def misfit(value: Any, schema: Any, field: str = "") -> str:
    """The first misfit of a value and a schema, in one line.

    >>> misfit({"workers": [None]}, {"workers": [COUNT]})
    'workers[0] is None; expected a whole number, at least 0'
    """
    parts, below = [], f"{field}." if field else ""
    if isinstance(schema, Kind):
        fits, expected = schema.fits(value), schema.expected
    elif isinstance(schema, Row):
        fits = isinstance(value, list) and len(value) == len(schema.fields)
        expected = f"a list of {', '.join(schema.fields)}"
        parts = [(below + key, part, each)
                 for (key, each), part in zip(schema.fields.items(), value)] if fits else []
    elif isinstance(schema, dict):
        fits, expected = isinstance(value, dict), f"an object with {', '.join(schema)}"
        absent = [key for key in schema if key not in value] if fits else []
        if absent:
            return f"{below}{absent[0]} is missing; expected {expected}"
        parts = [(below + key, value[key], each) for key, each in schema.items()] if fits else []
    else:
        fits, expected = isinstance(value, list), "a list"
        parts = [(f"{field}[{k}]", part, schema[0]) for k, part in enumerate(value)] if fits else []
    if not fits:
        return f"{field or 'it'} is {reprlib.repr(value)}; expected {expected}"
    return next(filter(None, (misfit(part, each, name) for name, part, each in parts)), "")
