"""Checks before a run: its arguments, a user's algorithm, a user's problem.

Programs check nothing.  Every mistake that can be found before the run is reported here, in one line.
"""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import numpy as np

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import GIVEN
from refsgd.cluster import devices
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted, written
from refsgd.effects import Deployment, Node
from refsgd.problems import Problem

#: the largest sizes that are accepted; a run within them is announced if it is long
MOST = {"workers": 10_000, "servers": 10_000, "steps": 10**9, "batch": 10**9, "walks": 10**6,
        "max_runs": 10**7, "evaluations": 10**6, "parameters": 10**13, "images": 10**13}

LARGEST_OPTION = 10**6  #: of an algorithm's own whole numbers


class Usage(ValueError):
    """Usage error: the message says what was found and what was expected."""


@contextmanager
def checked() -> Iterator[None]:
    """Turn what the rooms below refuse, a ValueError, into a usage error."""
    try:
        yield
    except ValueError as error:
        raise Usage(str(error)) from None


def check_unpaced(unpaced: bool, runtime: str | None) -> None:
    """Refuse to leave virtual time without its machine."""
    if unpaced and runtime == "simulator":
        raise Usage("unpaced with runtime simulator, which follows the machine; expected processes, tcp, mpi "
                    "or torch")


def check_warmup(warmup_steps: int, steps: int) -> None:
    """Refuse to leave out a negative number of steps, or all."""
    check_whole(0, warmup_steps=warmup_steps)
    if warmup_steps >= max(steps, 1):
        raise Usage(f"warmup_steps {warmup_steps} of {counted(steps, 'step')}; expected fewer")


def options_of(function: Callable[..., Deployment]) -> dict[str, inspect.Parameter]:
    """The algorithm's own options: keyword-only parameters of its deployment function, types resolved."""
    if not hasattr(function, "__name__"):  # such as a partial, which has no facts either
        raise Usage(f"an algorithm of type {type(function).__name__}; expected a function f(problem, "
                    "workers, steps, sgd, *, options), written with def")
    # defaults are those with which Python calls it: documentation tools put text into its ``__signature__``
    hints, defaults = typing.get_type_hints(function), getattr(function, "__kwdefaults__", None) or {}
    return {name: p.replace(annotation=hints.get(name, p.annotation), default=defaults.get(name, p.default))
            for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}


def plain(name: str) -> str:
    """A name in lower case, without hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def nearest(given: str, names: Iterable[str]) -> str:
    """The name that was probably meant, or an empty string."""
    known = {plain(name): name for name in names}
    near = difflib.get_close_matches(plain(given), known, n=1)
    return known[near[0]] if near else ""


def suggestion(given: str, names: Iterable[str]) -> str:
    """The end of an error: "; did you mean ...?"."""
    near = nearest(given, names)
    return f"; did you mean {near}?" if near else ""


def catalogued(name: Any) -> str:
    """An algorithm's name in the catalogue, from a name in any case, with or without hyphens."""
    for known in CATALOGUE if isinstance(name, str) else ():
        if plain(known) == plain(name):
            return known
    raise Usage(f"algorithm {name!r} is unknown; expected one of {', '.join(CATALOGUE)}"
                + suggestion(str(name), CATALOGUE))


def elsewhere(option: str) -> str:
    """The algorithms that have an option, for an error about one that does not."""
    owners = [name for name, function in CATALOGUE.items() if option in options_of(function)]
    return f"{', '.join(owners)} {'have' if len(owners) > 1 else 'has'} it" if owners else ""


def check_kind(kind: type, words: str, **values: Any) -> None:
    """Refuse values of the wrong type; True and False are not numbers."""
    for name, value in values.items():
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise Usage(f"{name} {value!r} of type {type(value).__name__}; expected {words}")


def check_whole(least: int, **values: Any) -> None:
    """Refuse values that are not whole numbers, are too small, or exceed those of `MOST`."""
    check_kind(Integral, f"a whole number, at least {least}", **values)
    for name, value in values.items():
        if value < least:
            raise Usage(f"{name} {value}; expected at least {least}")
        if value > MOST.get(name, value):
            raise Usage(f"{name} {value}; expected at most {MOST[name]}")


def check_length(steps: Any, epochs: Any) -> None:
    """Refuse a run length that is given twice or is invalid."""
    if steps is not None and epochs is not None:
        raise Usage(f"steps {steps} and epochs {epochs}; expected one of the two")
    if steps is not None:
        check_whole(0, steps=steps)
    if epochs is not None and not (isinstance(epochs, Real) and 0 < float(epochs) < float("inf")):
        raise Usage(f"epochs {epochs!r}; expected a number > 0 (steps may be 0)")


def check_speeds(machine: Machine, workers: int, servers: int | None = None) -> None:
    """Refuse a machine with speeds or times for another number of nodes, or a load of a missing node."""
    given = len(machine.speeds)
    if given not in (0, workers):
        wanted = written([machine.speed(i) for i in range(workers)])
        raise Usage(f"speeds {written(machine.speeds)} for {counted(given, 'worker')} in a run with "
                    f"{workers}; expected a speed for each, such as {wanted}, or workers {given}")
    if isinstance(machine.compute, tuple) and len(machine.compute) != workers:
        raise Usage(f"compute {devices.written(machine.compute)} for "
                    f"{counted(len(machine.compute), 'worker')} in a run with {workers}; expected one for "
                    "each, or one for all")
    if servers is not None and len(machine.server_speeds) not in (0, servers):
        raise Usage(f"server_speeds {written(machine.server_speeds)} for {counted(servers, 'server')}; "
                    "expected a speed for each")
    for load in machine.loads:
        most = workers if load.role == "worker" else servers
        if most is not None and load.rank >= most:
            raise Usage(f"load {load}: there is no {load.node}; expected one of {load.role}0 to "
                        f"{load.role}{most - 1}")


def check_names(name: str, function: Callable[..., Deployment], others: Iterable[str]) -> None:
    """Refuse own options that are called as `others`, which would get their values; some facts give."""
    others = set(others) - set(GIVEN)
    if both := next((option for option in options_of(function) if option in others), ""):
        raise Usage(f"option {both} of {name} is also one of a run; expected another name")


def check_options(name: str, function: Callable[..., Deployment], options: Mapping[str, Any],
                  others: Sequence[str] = ()) -> None:
    """Refuse options that an algorithm does not have, and values of the wrong type."""
    check_names(name, function, others)
    known = options_of(function)
    for option, value in options.items():
        if option not in known:
            expected = f"some of {', '.join(known)}" if known else "none"
            other = elsewhere(option)
            raise Usage(f"{name} has no option {option!r}; expected {expected}"
                        + (f"; {other}" if other else suggestion(option, [*known, *others])))
        kinds = typing.get_args(known[option].annotation) or (known[option].annotation,)
        if int in kinds and isinstance(value, Integral) and int(value) > LARGEST_OPTION:
            raise Usage(f"{option} {value}; expected at most {LARGEST_OPTION}")
        if type(value) in kinds:
            continue
        if float in kinds:
            check_kind(Real, "a number", **{option: value})
        elif int in kinds:
            check_kind(Integral, "a whole number", **{option: value})
        elif bool in kinds:
            check_kind(bool, "True or False", **{option: value})
        elif str in kinds:
            check_kind(str, "text", **{option: value})


def check_function(name: str, function: Callable[..., Deployment], given: Mapping[str, Any]) -> None:
    """Refuse a deployment function that cannot be called as the library calls it."""
    signature = inspect.signature(function)
    try:
        signature.bind("problem", "workers", "steps", "sgd", **given)
    except TypeError as error:
        raise Usage(f"{name}{signature}: {error}; expected a deployment function f(problem, workers, steps, "
                    "sgd, *, options)") from None


def check_deployment(name: str, found: Any) -> Deployment:
    """Refuse a value that is not a deployment."""
    if not isinstance(found, Mapping):
        raise Usage(f"{name} returned a value of type {type(found).__name__}; expected a dictionary of "
                    "nodes, such as {'worker0': Node(program)}")
    if not found:
        raise Usage(f"{name} returned an empty dictionary; expected at least one node, such as "
                    "{'worker0': Node(program)}")
    for node, programs in found.items():
        gives = f"{name} gives {node}"
        if not isinstance(programs, Node):
            raise Usage(f"{gives} a value of type {type(programs).__name__}; expected "
                        "refsgd.effects.Node(program)")
        if not isinstance(programs.handlers, Sequence):
            raise Usage(f"{gives} handlers of type {type(programs.handlers).__name__}; expected a list: "
                        "Node(main, [handler])")
        for program in (programs.main, *programs.handlers):
            if not hasattr(program, "send"):
                raise Usage(f"{gives} a program of type {type(program).__name__}; expected a generator: a "
                            "function with a yield in it, called with its arguments")
    return found


def check_problem(problem: Any) -> None:
    """Refuse a user's problem whose parts do not fit together; computes one gradient and one loss."""
    if not isinstance(problem, Problem):
        raise Usage(f"problem of type {type(problem).__name__}; expected a "
                    "refsgd.Problem(x0, gradient, loss)")
    x0 = problem.x0
    if problem.describe.get("shape_only"):
        return
    if not isinstance(x0, np.ndarray) or x0.ndim != 1 or x0.dtype.kind != "f":
        raise Usage(f"the starting point x0 is of type {_array(x0)}; expected one vector of float32: "
                    "np.asarray(x0, np.float32).ravel()")
    if not np.all(np.isfinite(x0)):
        raise Usage("the starting point x0 has NaN or infinite entries; expected finite numbers")
    try:
        inspect.signature(problem.gradient).bind(x0, 0, 0)
    except TypeError as error:
        raise Usage(f"gradient{inspect.signature(problem.gradient)}: {error}; expected gradient(x, rank, t)"
                    ) from None
    except ValueError:
        pass  # a compiled function may not say what it takes
    try:
        g, loss = problem.gradient(x0, 0, 0), problem.loss(x0)
    except Exception:
        return  # the run will raise it too, and says where
    if not isinstance(g, np.ndarray) or (g.shape, g.dtype) != (x0.shape, x0.dtype):
        raise Usage(f"gradient(x0, 0, 0) returned a value of type {_array(g)}; expected an array as x0 is: "
                    f"{x0.dtype} and shape {x0.shape}")
    if not isinstance(loss, Real) and np.ndim(loss):
        raise Usage(f"loss(x0) returned an array of shape {np.shape(loss)}; expected one number")


def _array(value: Any) -> str:
    """The kind of a value, for errors."""
    array = isinstance(value, np.ndarray)
    return f"array of {value.dtype} and shape {value.shape}" if array else type(value).__name__
