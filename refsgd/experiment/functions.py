"""The deployment function of an algorithm: from the catalogue, from a file or a module, or as given."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.effects import Deployment
from refsgd.experiment.arguments import Usage, catalogued, options_of

Algorithm = str | Callable[..., Deployment]


def deployment_function(algorithm: Algorithm) -> tuple[str, Callable[..., Deployment]]:
    """Name and function of an algorithm: a name of the catalogue, FILE.py:FUNCTION, or a user's function."""
    if not callable(algorithm) and not is_place(algorithm):
        name = catalogued(algorithm)
        return name, CATALOGUE[name]
    function = algorithm if callable(algorithm) else imported(algorithm)
    if not callable(function):
        raise Usage(f"{algorithm} is of type {type(function).__name__}; expected a deployment function")
    return catalogue_name(function) or getattr(function, "__name__", "algorithm"), function


def catalogue_name(function: Callable[..., Deployment]) -> str:
    """The catalogue's name of a function; empty for a user's own, whatever it is called."""
    return next((name for name, known in CATALOGUE.items() if known is function), "")


def listed(algorithms: Algorithm | Iterable[Algorithm]) -> list[Algorithm]:
    """A list of algorithms; a single one may be given without a list."""
    return [algorithms] if isinstance(algorithms, str) or callable(algorithms) else list(algorithms)


def shared(arguments: Mapping[str, Any], functions: Sequence[Callable[..., Deployment]]
           ) -> list[dict[str, Any]]:
    """The common arguments for each algorithm: servers are not for those without, unless none has any."""
    served = [facts_of(function).served for function in functions]
    return [{name: value for name, value in arguments.items() if name != "servers" or has or not any(served)}
            for has in served]


def with_defaults(function: Callable[..., Deployment], options: Mapping[str, Any]) -> dict[str, Any]:
    """An algorithm's own options, with defaults for those not given."""
    return {name: p.default for name, p in options_of(function).items()} | dict(options)


def is_place(algorithm: Any) -> TypeGuard[str]:
    """Whether an algorithm is named by a file or a module, not by its name in the catalogue."""
    return isinstance(algorithm, str) and (":" in algorithm or algorithm.endswith(".py"))


def imported(text: str) -> Any:
    """The function or codec that FILE.py:NAME or MODULE:NAME names; a file's text runs once."""
    place, _, name = text.rpartition(":")
    if not place:
        raise Usage(f"algorithm {text!r}; expected FILE.py:FUNCTION, e.g. mine.py:my_algorithm, or one of "
                    + ", ".join(CATALOGUE))
    try:
        path = os.path.realpath(place)
        if (folder := os.path.dirname(path)) not in sys.path:
            sys.path.insert(0, folder)  # as Python does for a program, which may import what lies beside it
        module = (_run(path, Path(path).read_bytes()) if place.endswith(".py")
                  else importlib.import_module(place))
    except (ImportError, OSError) as error:
        raise Usage(f"cannot import {place}: {error}; expected a module or a file that ends in .py") from None
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise Usage(f"cannot import {place}: {type(error).__name__}: {error}{line_of(error, text)}; expected "
                    "a module that can be imported") from None
    if not hasattr(module, name):
        raise Usage(f"{place} has no function {name!r}; expected a deployment function, or a codec")
    return getattr(module, name)


@functools.cache
def _run(path: str, source: bytes) -> ModuleType:
    """The module of a file with this source, under its path as a name, which no other module has."""
    module = sys.modules[path] = ModuleType(path)
    module.__file__ = path
    exec(compile(source, path, "exec"), vars(module))
    return module


def line_of(error: BaseException, text: str) -> str:
    """Where in the file of FILE.py:FUNCTION an error was raised, in brackets; empty if elsewhere."""
    path = os.path.realpath(text.rpartition(":")[0])
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    return f" ({Path(path).name}, line {lines[-1]})" if lines else ""


def source_sha256(text: str) -> str:
    """SHA-256 of the file of FILE.py:FUNCTION; empty for a name of the catalogue."""
    place = text.rpartition(":")[0]
    if place and not place.endswith(".py"):
        raise Usage(f"a record of {text}, a module; expected FILE.py:FUNCTION, whose hash it names")
    try:
        return hashlib.sha256(Path(place).read_bytes()).hexdigest() if place else ""
    except OSError as error:
        raise Usage(f"cannot read {place} ({error.strerror}); expected the file of {text}") from None
