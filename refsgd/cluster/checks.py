"""Values of a machine as JSON has them, and errors about them: unknown keys, another type, their place."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any


def plain(value: Any) -> Any:
    """A field as JSON values, where infinity is None."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if hasattr(value, "to_json"):
        return value.to_json()
    return plain_fields(value) if is_dataclass(value) else None if value == math.inf else value


def plain_fields(value: Any) -> dict[str, Any]:
    """The fields of an object as JSON values, by name."""
    return {each.name: plain(getattr(value, each.name)) for each in fields(value)}


@contextmanager
def prefixed(where: str) -> Iterator[None]:
    """Puts the place of a wrong value before the message of its error."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None


def check_keys(given: Iterable[Any], known: list[str], what: str) -> None:
    """Refuse unknown keys; suggest a known key that resembles the first of them."""
    if unknown := sorted({str(key) for key in given} - set(known)):
        near = difflib.get_close_matches(unknown[0], known, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"unknown keys {unknown} of {what}; {meant}expected some of {known}")


def wrong_type(name: str, value: Any, expected: str) -> ValueError:
    """The error for a value of the wrong type."""
    return ValueError(f"{name} {value!r} of type {type(value).__name__}; expected {expected}")
