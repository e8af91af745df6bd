"""Suspended programs: freeze values that crossed a yield, find where a program is paused, report errors."""

from __future__ import annotations

import inspect
import math
import os
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from refsgd.effects import Add, Compute, Load, Recv, _Built
from refsgd.runtimes.lint import forgotten_by

Error = TypeVar("Error", bound=BaseException)

_HOLDERS = {np.ndarray, list, tuple, dict}  # types that can be frozen or contain arrays
LIBRARY = f"{Path(__file__).parents[1]}{os.sep}"


class ForgottenYield(RuntimeError):
    """A program built an effect and did not yield it."""


class Where(NamedTuple):
    """Where a program is paused: the line of its innermost frame, what it waits for, its local variables,
    and, in a stepper, why it waits."""

    node: str
    program: int
    function: str
    filename: str
    line: int
    waits_for: str
    locals: dict[str, Any]
    why: str = ""


def freeze(values: Any) -> None:
    """Make the arrays in `values` read-only: they have crossed a yield."""
    for value in values:
        kind = type(value)
        if kind not in _HOLDERS:  # the usual case
            continue
        if kind is np.ndarray:
            value.flags.writeable = False
        else:
            freeze(value.values() if kind is dict else value)


def finite(gradient: Any, value: Any) -> bool:
    """Whether a gradient has finite numbers only; one that refuses others is not looked at again.

    A sum of squares takes a pass through memory, and is finite only where all numbers are.
    """
    return (getattr(gradient, "refuses", False) or value.dtype.kind != "f"
            or math.isfinite(np.vdot(value, value)) or bool(np.isfinite(value).all()))


def read(effect: Load | Add) -> Any:
    """A copy of the part of a cell named by an effect."""
    return effect.cell.x[effect.cell.cut[effect.part]].copy()


def add_to(effect: Add, seen: Any) -> None:
    """Write an `Add` to its cell: to the current value, or, if it is not atomic, to the value `seen` at its
    start."""
    part = effect.cell.cut[effect.part]
    effect.cell.x[part] = (effect.cell.x[part] if effect.atomic else seen) + effect.delta


def share_of(effect: Add) -> float:
    """The share of an update's time that an `Add` takes: its part's share of the cell."""
    return effect.cell.x[effect.cell.cut[effect.part]].size / max(1, effect.cell.x.size)


def frames(program: Any) -> list[Any]:
    """The suspended generators of a program, from the outermost to the one at a primitive effect."""
    found = [program]
    while hasattr(getattr(found[-1], "gi_yieldfrom", None), "gi_frame"):
        found.append(found[-1].gi_yieldfrom)
    return found


def line_of(program: Any) -> str:
    """``file:line in function`` of a suspended program, for errors; one that runs elsewhere says it."""
    if (line := getattr(program, "line", None)) is not None:
        return str(line)
    inner = frames(program)[-1]
    if inner.gi_frame is None:
        return f"the end of {inner.gi_code.co_name}"
    return f"{inner.gi_code.co_filename}:{inner.gi_frame.f_lineno} in {inner.gi_code.co_name}"


def no_exit(raised: Error) -> Error | RuntimeError:
    """What a user's code has raised; sys.exit in it is an error like others and ends no process."""
    if not isinstance(raised, SystemExit):
        return raised
    return RuntimeError(f"sys.exit({raised.code!r}); expected a return or an error").with_traceback(
        raised.__traceback__)


def blame(error: BaseException, program: str, node: str, now: str) -> None:
    """Add notes to an error: the meaning of one about a read-only array or a generator, and the
    program that raised it."""
    if isinstance(error, ValueError) and "read-only" in str(error):
        error.add_note("an array that has crossed a yield must not change any more: make a new one")
    if isinstance(error, TypeError | AttributeError) and "generator" in str(error):
        error.add_note("a sub-program needs `yield from`")
    places = [f", raised at {frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
              for frame, line in traceback.walk_tb(error.__traceback__)
              # of the program and its sub-programs; the last is the most informative
              if frame.f_code.co_flags & inspect.CO_GENERATOR]
    error.add_note(f"in program {program} of {node} at {now}{places[-1] if places else ''}")


def in_words(error: BaseException) -> str:
    """An error with its notes, the first of which help most."""
    notes = [note for note in map(str, getattr(error, "__notes__", ()))
             # a judge of gradients says all
             if not (isinstance(error, AssertionError) and note.startswith("in Compute"))]
    said = str(error) if str(error).startswith("deadlock") else f"{type(error).__name__}: {error}"
    return "; ".join([said, *notes])


def stuck(waiting: Sequence[tuple[str, str, str]], dead: Sequence[str]) -> str:
    """The rest of an error: after which deaths, and where and for what nodes wait that no message can reach.

    If some wait in programs of a user, these come first, and the others without a line of the library.
    """
    theirs = [each for each in waiting if each[1].startswith(LIBRARY)]
    own = [each for each in waiting if each not in theirs]
    said = [f"{node} at {place} waits for {what}" for node, place, what in own or theirs]
    said += [f"{node} in the library's {place.rpartition(' ')[2]} waits for {what}"
             for node, place, what in theirs if own]
    return (f" after the death of {', '.join(dead)}: " if dead else ": ") + "; ".join(said)


def unread(letters: Sequence[Any]) -> str:
    """The messages in the mailbox of a program that waits for something else, in words."""
    found = [f"{type(letter.body).__name__} from {letter.src}" for letter in letters]
    return (f", not for {', '.join(found[:3])}{' ...' if len(found) > 3 else ''}, which it has" if found
            else "")


def no_effect(node: str, program: Any, found: Any) -> TypeError:
    """Error: a program yielded something other than an effect."""
    said = repr(found)
    if "\n" in said or len(said) > 80:
        said = f"a value of type {type(found).__name__}"
    return TypeError(
        f"{node}: {line_of(program)} yielded {said}; expected an effect (a sub-program needs `yield from`)")


def forgotten(node: str, program: Any, before: int, yielded: int) -> ForgottenYield:
    """Error: a program built more effects than it yielded."""
    built = _Built.count - before
    places = forgotten_by(frame.gi_code for frame in frames(program))
    seen = f": see {' and '.join(places)}" if places else ""
    return ForgottenYield(
        f"{node}: {built} effect{'s were' if built > 1 else ' was'} built before {line_of(program)} and "
        f"{'one' if yielded else 'none'} was yielded{seen}; write `yield` before each effect and "
        "`yield from` before each sub-program")


def no_message(node: str, program: Any, body: Any) -> TypeError:
    """Error: a program sends something other than a message."""
    return TypeError(
        f"{node}: {line_of(program)} sends a message of type {type(body).__name__}; expected an instance of "
        "a NamedTuple class")


def describe(effect: Any) -> str:
    """What a program is doing or waiting for, in a few words."""
    if isinstance(effect, Recv):
        kinds = " or ".join(k.__name__ for k in effect.kinds)
        return f"Recv({kinds}" + (f" from {effect.src})" if effect.src else ")")
    if isinstance(effect, Compute):
        return f"Compute({effect.kind})"
    return type(effect).__name__ if effect is not None else "nothing (not started)"


def where(node: str, index: int, program: Any, effect: Any) -> Where:
    """Where program number `index` of a node stands, suspended at `effect`."""
    inner = frames(program)[-1]
    if inner.gi_frame is None:
        return Where(node, index, inner.gi_code.co_name, inner.gi_code.co_filename, 0, "returned", {})
    return Where(node, index, inner.gi_code.co_name, inner.gi_code.co_filename, inner.gi_frame.f_lineno,
                 describe(effect),
                 {name: value for frame in frames(program) for name, value in local_values(frame).items()})


def local_values(program: Any) -> dict[str, Any]:
    """A suspended generator's local variables, arguments first, in an order fixed by its code."""
    found, code = inspect.getgeneratorlocals(program), program.gi_code
    names = dict.fromkeys([*code.co_varnames, *code.co_cellvars, *code.co_freevars])
    return {name: found[name] for name in names if name in found}
