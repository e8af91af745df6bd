"""What runtimes do with a suspended program: freeze what crossed its yield, and say where it stands."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np

from refsgd.effects import Add, Compute, Recv


class Where(NamedTuple):
    """Where a program stands: the line of its innermost frame, what it waits for, and its local variables."""

    node: str
    program: int
    function: str
    filename: str
    line: int
    waits_for: str
    locals: dict[str, Any]


def freeze(values: Any) -> None:
    """Make the arrays in `values` read-only: they have crossed a yield."""
    for value in values:
        kind = type(value)
        if kind is np.ndarray:
            value.flags.writeable = False
        elif kind is list or kind is tuple:
            freeze(value)
        elif kind is dict:
            freeze(value.values())


def perform(effect: Compute) -> Any:
    """What a `Compute` answers."""
    return effect.fn(*effect.args)


def add_to(effect: Add, seen: Any) -> None:
    """Write an `Add` to its cell: onto what is there, or, if it is not atomic, onto what was `seen` at its start."""
    part = effect.cell.cut[effect.part]
    effect.cell.x[part] = (effect.cell.x[part] if effect.atomic else seen) + effect.delta


def innermost(program: Any) -> Any:
    """The generator that is suspended at a primitive effect, below every ``yield from``."""
    return frames(program)[-1]


def frames(program: Any) -> list[Any]:
    """The suspended generators of a program, from its outermost down to the one at a primitive effect."""
    found = [program]
    while hasattr(getattr(found[-1], "gi_yieldfrom", None), "gi_frame"):
        found.append(found[-1].gi_yieldfrom)
    return found


def line_of(program: Any) -> str:
    """``file:line in function`` of a suspended program, for errors."""
    inner = innermost(program)
    if inner.gi_frame is None:
        return f"the end of {inner.gi_code.co_name}"
    return f"{inner.gi_code.co_filename}:{inner.gi_frame.f_lineno} in {inner.gi_code.co_name}"


def describe(effect: Any) -> str:
    """What a program is doing or waiting for, in a few words."""
    if isinstance(effect, Recv):
        kinds = " or ".join(k.__name__ for k in effect.kinds)
        return f"Recv({kinds}" + (f" from {effect.src})" if effect.src else ")")
    if isinstance(effect, Compute):
        return f"Compute({effect.kind})"
    return type(effect).__name__ if effect is not None else "nothing (not started)"


def counts_steps(node: str, kind: str) -> bool:
    """Whether a Compute of this kind is one of a node's steps: gradients, and a server's updates."""
    return kind == ("update" if node.startswith("server") else "gradient")


def where(node: str, index: int, program: Any, effect: Any) -> Where:
    """Where program number `index` of a node stands, suspended at `effect`."""
    inner = innermost(program)
    if inner.gi_frame is None:
        return Where(node, index, inner.gi_code.co_name, inner.gi_code.co_filename, 0, "returned", {})
    return Where(node, index, inner.gi_code.co_name, inner.gi_code.co_filename, inner.gi_frame.f_lineno, describe(effect),
                 local_values(inner))


def local_values(program: Any) -> dict[str, Any]:
    """A suspended generator's local variables, arguments first, in an order that depends on its code alone."""
    found, code = inspect.getgeneratorlocals(program), program.gi_code
    names = dict.fromkeys([*code.co_varnames, *code.co_cellvars, *code.co_freevars])
    return {name: found[name] for name in names if name in found}
