"""Every public name is documented: what it is, what it takes (shapes, units), what it gives back."""

import importlib
import inspect
import pkgutil
import warnings

import pytest

import refsgd
from refsgd.algorithms import CATALOGUE

#: rooms whose functions are read beside their source: a docstring each, sections not held
EXEMPT = {
    "algorithms": "an algorithm is one short file: only the function that deploys it has full sections",
    "cli": "every command has the same add(commands) and do(args); what the options are, its own help says",
    "nn": "layers and steps have the methods of the class they stand for; kernels are called by steps only",
    "runtimes": "their parts are called by the runtimes only",
}
#: parts of those rooms that readers call, or that are whole
HELD = ("algorithms.parameter_server", "algorithms.sgd", "nn.nets", "runtimes.compiled", "runtimes.diagram", "runtimes.explorer",
        "runtimes.faults", "runtimes.faulty", "runtimes.journal", "runtimes.lateness", "runtimes.mailbox", "runtimes.monitor",
        "runtimes.pause", "runtimes.simulator", "runtimes.snapshot")
MODULES = [m.name for m in pkgutil.walk_packages(refsgd.__path__, "refsgd.") if m.name != "refsgd.__main__"]
HELD_TO_SECTIONS = [m for m in MODULES if m.split(".")[1] not in EXEMPT or m.removeprefix("refsgd.").startswith(HELD)]


def public(module):
    """(name, thing) of the functions, classes, methods and properties that a module defines without an underscore."""
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(thing) or inspect.isclass(thing):
            yield name, thing
        for own, member in vars(thing).items() if inspect.isclass(thing) else ():
            if not own.startswith("_") and (inspect.isfunction(member) or isinstance(member, classmethod | staticmethod | property)):
                yield f"{name}.{own}", getattr(thing, own)


def lacks(thing):
    """What a docstring lacks, in words; an empty list where it is whole."""
    docscrape = pytest.importorskip("numpydoc.docscrape", reason="numpydoc is not installed (the extra [docs] brings it)")
    text = inspect.getdoc(thing)
    if not text:
        return ["a docstring"]
    if isinstance(thing, property) or (inspect.isclass(thing) and issubclass(thing, Exception | tuple)) or getattr(thing, "_is_protocol", False):
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpydoc warns of unknown sections and of sections that come twice
        doc = docscrape.NumpyDocString(text)
    signature = inspect.signature(thing)
    taken = [name for name, p in signature.parameters.items() if name != "self" and p.kind is not p.VAR_KEYWORD]
    named = [name.strip().lstrip("*") for p in doc["Parameters"] for name in p.name.split(",")]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    found = [] if open_ended else [f"nothing called {name}" for name in named if name not in taken]
    if inspect.isclass(thing) and doc["Attributes"] and not named:
        return found
    found += [f"the parameter {name}" for name in taken if name not in named]
    returns = None if inspect.isclass(thing) else signature.return_annotation
    if taken and returns not in (None, "None", inspect.Signature.empty) and not doc["Returns"] and not doc["Yields"]:
        found.append("what is returned")
    return found


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name):
    module = importlib.import_module(name)
    assert module.__doc__
    promised = {own for thing in vars(module).values() if getattr(thing, "_is_protocol", False) for own in vars(thing)}
    assert [own for own, thing in public(module) if not inspect.getdoc(thing) and own.partition(".")[2] not in promised] == []


@pytest.mark.parametrize("name", HELD_TO_SECTIONS)
def test_public_names_say_what_they_take_and_give(name):
    assert {own: found for own, thing in public(importlib.import_module(name)) if (found := lacks(thing))} == {}


@pytest.mark.parametrize("name", CATALOGUE)
def test_functions_that_deploy_an_algorithm_say_what_they_take(name):
    assert set(lacks(CATALOGUE[name])) <= {"what is returned"}  # it is always a deployment


def whole(a, b=1):
    """A sum.

    Parameters
    ----------
    a, b : int

    Returns
    -------
    int
    """
    return a + b


def test_the_check_catches_what_is_missing():
    def bare(a): ...

    def half(a, b) -> int:
        """A sum.

        Parameters
        ----------
        a : int
        c : int
        """

    def two(a) -> int:
        """A number.

        Returns
        -------
        int

        Returns
        -------
        int
        """

    assert lacks(whole) == []
    assert lacks(bare) == ["a docstring"]
    assert lacks(half) == ["nothing called c", "the parameter b", "what is returned"]
    with pytest.raises((ValueError, UserWarning)):
        lacks(two)
