"""What suspended programs know, and how to bring re-executed programs to know the same.

A generator can be neither copied nor pickled, but it can be run again: a program is a function of what it was told.  A
recorded schedule brings fresh programs to the line at which the old ones stood, with the same clocks, loop counters and
random streams; only computing costs time.  So resuming runs them along the record with *stand-ins* for what `Compute`
returns (arrays of the right shape, with wrong contents) and then writes the saved contents into every array in reach.

That is right only if no program decides by the contents of an array.  Therefore everything else in reach, from loop
counters to iterators and the shapes of arrays, is saved too and must be equal; where it is not, `Mismatch` is raised
and the caller runs the programs along the record with real computing instead, which is always right.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from refsgd.effects import Cell, Compute

CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.CodeType, types.FrameType, types.ModuleType, type,
        functools.partial)
ITERATORS = (enumerate, zip, map, filter, reversed)
RawArray = npt.NDArray[Any]


class Mismatch(Exception):
    """Programs that ran along a record with stand-ins are not where the recorded ones were."""


class Snapshot(NamedTuple):
    """Everything in reach of some roots.

    `facts` are JSON values in the order of the walk: types, lengths, keys, numbers, shapes of arrays; `arrays` the
    arrays themselves.
    """

    facts: list[Any]
    arrays: list[RawArray]


class Constants:
    """What programs are given at their start: never saved where it cannot change, and never written to.

    Parameters
    ----------
    roots : iterable
        Programs that have not run yet.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        walk = _Walk(None)
        for root in roots:
            walk.look(root)
        self._kept = walk.kept  # so that no identity is used a second time
        self.frozen = {id(value) for value in self._kept if _is_frozen(value)}
        self.memory = {id(_owner(array)) for array in walk.arrays}


def _is_frozen(value: Any) -> bool:
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


def _owner(array: RawArray) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class _Walk:
    """Goes through everything in reach, in an order that depends on the programs alone."""

    def __init__(self, constants: Constants | None) -> None:
        self.facts: list[Any] = []
        self.arrays: list[RawArray] = []
        self.kept: list[Any] = []
        self._constants, self._seen = constants, dict[int, int]()

    def look(self, value: Any) -> None:
        """Write down one value and what it holds."""
        if value is None or isinstance(value, (bool, int, str)):
            self.facts.append(value)
        elif isinstance(value, np.ndarray):
            self.kept.append(value)
            self.arrays.append(value)
            self.facts.append([value.dtype.str, *value.shape])
        elif isinstance(value, np.generic):
            self.facts.append([value.dtype.str, value.tobytes().hex()])
        elif isinstance(value, float):
            self.facts.append(value.hex())
        elif isinstance(value, CODE):
            self.facts.append(getattr(value, "__qualname__", type(value).__name__))
        elif isinstance(value, tuple):
            self._items(value)
        elif id(value) in self._seen:
            self.facts.append(["seen", self._seen[id(value)]])
        else:
            self._seen[id(value)] = len(self._seen)
            self.kept.append(value)
            self._into(value)

    def _items(self, values: Any) -> None:
        # A message that came over a wire holds plain tuples where the sender's had names.
        self.facts.append(["tuple" if isinstance(values, tuple) else type(values).__name__, len(values)])
        for value in values:
            self.look(value)

    def _into(self, value: Any) -> None:
        if isinstance(value, types.GeneratorType):
            at = value.gi_frame.f_lasti if value.gi_frame is not None else None
            self.facts.append(["program", value.gi_code.co_name, at])
            if value.gi_frame is not None:  # locals, and what an expression around a yield has computed so far
                self._items([r for r in gc.get_referents(value) if not isinstance(r, CODE)])
        elif isinstance(value, (list, deque)):
            self._items(value)
        elif isinstance(value, Cell):
            self._items([value.x])  # and not its lock
        elif isinstance(value, dict):
            self._items([item for pair in value.items() for item in pair])
        elif isinstance(value, (set, frozenset)):
            self._items(sorted(value, key=repr))
        elif isinstance(value, ITERATORS) or type(value).__name__.endswith("iterator"):
            self._items([item for item in value.__reduce__()[1:] if item is not None])
        elif self._constants is not None and id(value) in self._constants.frozen:
            self.facts.append(["constant", type(value).__name__])
        elif dataclasses.is_dataclass(value):
            self._items([getattr(value, field.name) for field in dataclasses.fields(value)])
        else:
            self.facts.append(type(value).__name__)
            for name, item in sorted(getattr(value, "__dict__", {}).items()):
                self.look((name, item))


def look(root: Any, constants: Constants) -> Snapshot:
    """Everything in reach of `root`; its arrays are not copied."""
    walk = _Walk(constants)
    walk.look(root)
    return Snapshot(walk.facts, walk.arrays)


def same_bits(a: RawArray, b: RawArray) -> bool:
    """Whether two arrays of equal shape and type hold the same bits."""
    return bool(np.array_equal(a, b)) or a.tobytes() == b.tobytes()


def restore(root: Any, constants: Constants, saved: Snapshot) -> None:
    """Write the saved arrays into those in reach of `root`, whose programs stand where the saved ones stood."""
    found = look(root, constants)
    if found.facts != saved.facts:
        at = next((i for i, (a, b) in enumerate(zip(found.facts, saved.facts)) if a != b), min(len(found.facts), len(saved.facts)))
        raise Mismatch(f"at {at}: {found.facts[at:at + 1]} where {saved.facts[at:at + 1]} was saved")
    shapes, expected = ([(array.dtype.newbyteorder("<"), array.shape) for array in arrays] for arrays in (saved.arrays, found.arrays))
    if shapes != expected:
        raise Mismatch(f"arrays {shapes} where {expected} are held")
    for array, contents in zip(found.arrays, saved.arrays):
        if not same_bits(array, contents):
            _overwrite(array, contents, constants)
    if not all(map(same_bits, found.arrays, saved.arrays)):
        raise Mismatch("two arrays in one place")


def _overwrite(array: RawArray, contents: RawArray, constants: Constants) -> None:
    owner = _owner(array)
    if id(owner) in constants.memory:
        raise Mismatch("an array of the start where another was saved")
    chain = [array]
    while isinstance(chain[-1].base, np.ndarray):
        chain.append(chain[-1].base)
    before = [one.flags.writeable for one in chain]
    try:
        for one in reversed(chain):
            one.flags.writeable = True
        np.copyto(array, contents)
    except ValueError as error:
        raise Mismatch(str(error)) from None
    finally:
        for one, flag in zip(chain, before):
            one.flags.writeable = flag


class StandIns:
    """Answers each `Compute` with a copy of what the first of its kind returned; only that one is really computed."""

    def __init__(self) -> None:
        self._first: dict[Any, Any] = {}
        self.computed = 0  #: how many were

    def __call__(self, effect: Compute) -> Any:
        key = effect.kind, _name(effect.fn), tuple(getattr(a, "shape", type(a).__name__) for a in effect.args)
        if key not in self._first:
            self.computed += 1
            self._first[key] = effect.fn(*effect.args)
        return _copy(self._first[key])


def _name(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(fn, "__qualname__", type(fn).__name__)


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        items = map(_copy, value)
        return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
    return [_copy(item) for item in value] if isinstance(value, list) else value
