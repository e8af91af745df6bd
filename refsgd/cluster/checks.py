"""Errors about the description of a machine: keys that it does not have, values of another type."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def check_keys(given: Iterable[Any], known: list[str], what: str) -> None:
    """Refuse unknown keys; suggest a known key that resembles the first of them."""
    if unknown := sorted({str(key) for key in given} - set(known)):
        near = difflib.get_close_matches(unknown[0], known, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"unknown keys {unknown} of {what}; {meant}expected some of {known}")


def wrong_type(name: str, value: Any, expected: str) -> ValueError:
    """The error for a value of the wrong type."""
    return ValueError(f"{name} {value!r} of type {type(value).__name__}; expected {expected}")
