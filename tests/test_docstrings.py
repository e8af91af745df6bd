"""Every public name is documented: what it is, what it takes (shapes, units), what it gives back."""

import importlib
import inspect
import pkgutil
import re
import warnings
from functools import cache
from typing import Protocol

import pytest

import refsgd
from refsgd.algorithms import CATALOGUE
from refsgd.cli import doctor, hosts
from refsgd.nn import elementwise, kernels, vector, winograd
from refsgd.nn.steps import Step

#: rooms whose functions are read beside their source: a docstring each, sections not held
EXEMPT = {
    "algorithms": "an algorithm is one short file, read as a whole: the function that deploys it has sections, the others a sentence",
}
#: parts of those rooms that readers call, or that are whole
HELD = ("algorithms.parameter_server", "algorithms.sgd")
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


#: the functions that a reader calls of an algorithm's file
DEPLOYING = {f"{m}.{name}": thing for m in MODULES if m.startswith("refsgd.algorithms.") for name, thing in public(importlib.import_module(m))
             if inspect.isfunction(thing) and inspect.signature(thing).return_annotation == "Deployment"}


def parameters(doc):
    """The names in the section Parameters of a parsed docstring."""
    return [name.strip().lstrip("*") for p in doc["Parameters"] for name in p.name.split(",")]


def lacks(thing):
    """What a docstring lacks, in words; an empty list where it is whole. What a base class takes, a class need not say again."""
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
    named = parameters(doc)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    found = [] if open_ended else [f"nothing called {name}" for name in named if name not in taken]
    if inspect.isclass(thing) and doc["Attributes"] and not named:
        return found
    said = said_by_bases(thing) if inspect.isclass(thing) else ()
    found += [f"the parameter {name}" for name in taken if name not in named and name not in said]
    returns = None if inspect.isclass(thing) else signature.return_annotation
    if taken and returns not in (None, "None", "typing.NoReturn", inspect.Signature.empty) and not doc["Returns"] and not doc["Yields"]:
        found.append("what is returned")
    return found


def said_by_bases(cls):
    """What a class's constructor takes that a base class has in its docstring: everything, if the constructor is another library's."""
    from numpydoc.docscrape import NumpyDocString

    ours = [base for base in cls.__mro__[1:] if base.__module__.startswith("refsgd")]
    if any(cls.__init__ is base.__init__ for base in cls.__mro__[1:] if base not in ours):
        return set(inspect.signature(cls).parameters)
    return {name for base in ours for name in parameters(NumpyDocString(inspect.getdoc(base)))}


@cache
def protocols():
    """The package's protocols, with the names of their methods and properties."""
    things = {thing for m in MODULES for thing in vars(importlib.import_module(m)).values() if getattr(thing, "_is_protocol", False)}
    return {p: {n for n, member in vars(p).items() if not n.startswith("_") and (callable(member) or isinstance(member, property))}
            for p in things - {Protocol}}


def takes(function):
    """The names of a function's parameters, or of a method's."""
    return [name for name in inspect.signature(function).parameters if name != "self"]


def said_once(owner, name):
    """Whether a base class, or a protocol that the class (or module) fulfils, documents a method whole, for parameters of the same names."""
    bases = [base for base in getattr(owner, "__mro__", ())[1:] if base.__module__.startswith("refsgd") and hasattr(base, name)]
    bases += [p for p, names in protocols().items() if name in names and names <= set(dir(owner))]
    own = takes(getattr(owner, name))
    return any(takes(getattr(base, name)) == own and not lacks(getattr(base, name)) for base in bases)


def unsaid(module):
    """What the docstrings of a module lack, by name; nothing needs sections where they are said once for all that have it."""
    found = {}
    for own, thing in public(module):
        owner, _, name = own.rpartition(".")
        if (missing := lacks(thing)) and not said_once(getattr(module, owner) if owner else module, name):
            found[own] = missing
    return found


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert [own for own, thing in public(module) if not inspect.getdoc(thing)] == []


@pytest.mark.parametrize("name", HELD_TO_SECTIONS)
def test_public_names_say_what_they_take_and_give(name):
    assert unsaid(importlib.import_module(name)) == {}


def test_every_algorithm_of_the_catalogue_is_among_those_that_deploy():
    assert set(CATALOGUE.values()) <= set(DEPLOYING.values())


@pytest.mark.parametrize("name", DEPLOYING)
def test_functions_that_deploy_an_algorithm_say_what_they_take(name):
    assert set(lacks(DEPLOYING[name])) <= {"what is returned"}  # it is always a deployment


@pytest.mark.parametrize("room", EXEMPT)
def test_no_room_is_exempt_that_need_not_be(room):
    modules = [importlib.import_module(m) for m in MODULES if m.split(".")[1] == room and m not in HELD_TO_SECTIONS]
    assert any(map(unsaid, modules)), f"{room} is whole: hold it to it"


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


class Scaled(Step):
    """A step that says what it takes beside source and target.

    Parameters
    ----------
    by : float
    """

    def __init__(self, source, target, by): ...


class Silent(Step):
    """One that keeps quiet about an argument."""

    def __init__(self, source, target, by): ...


def test_a_class_need_not_say_again_what_its_base_takes():
    assert lacks(Scaled) == []
    assert lacks(Silent) == ["the parameter by"]


def unexplained(function, module, *more):
    """Arguments of a kernel that neither its docstring has as code, nor its module's, nor another; ``xn`` is a stride of x by its name."""
    code = re.findall(r"``.*?``|`.*?`", " ".join([function.__doc__, module.__doc__, *more]), re.DOTALL)
    words = {"context", *re.findall(r"\w+", " ".join(code))}
    return [name for name in inspect.signature(function).parameters if name not in words and not re.fullmatch("[a-z][nrc]", name)]


@pytest.mark.parametrize("module", [kernels, elementwise, winograd, vector], ids=lambda module: module.__name__)
def test_kernels_explain_their_letters(module):
    """Kernels are compiled things with many arguments: most are explained once, in the list of letters that all of them share."""
    own = {name: inspect.unwrap(thing) for name, thing in vars(module).items() if hasattr(thing, "__wrapped__") and not name.startswith("_")}
    own = {name: function for name, function in own.items() if function.__module__ == module.__name__}
    assert own
    assert {name: found for name, function in own.items() if (found := unexplained(function, module, kernels.__doc__))} == {}


def test_the_check_of_letters_catches_one_that_is_not_explained():
    def scale(b, x, xr, factor):
        """Multiply ``x`` by the factor."""

    assert unexplained(scale, kernels) == ["factor"]


class Segment:
    """Fulfils `refsgd.runtimes.launcher.Network`."""

    def connect(self, host: str) -> str:
        """The transport of one process."""
        return host

    def forked(self): ...
    def close(self): ...


class Renamed(Segment):
    """Whoever reads the protocol would call it wrongly."""

    def connect(self, place: str) -> str:
        """The transport of one process."""
        return place


class Endless:
    """Has not all that the protocol promises, so it is something else."""

    def connect(self, host: str) -> str:
        """The transport of one process."""
        return host


def test_sections_are_said_once_for_all_classes_that_fulfil_a_protocol():
    assert lacks(Segment.connect) == ["the parameter host", "what is returned"]
    assert said_once(Segment, "connect")
    assert not said_once(Renamed, "connect") and not said_once(Endless, "connect")


def test_sections_are_said_once_for_all_commands():
    assert said_once(doctor, "add") and said_once(doctor, "do") and takes(doctor.do) == takes(hosts.do)
    assert not said_once(hosts, "do")  # no command: it has no `add`
