"""The public interface is a list, and every name in it says what it takes (shapes, units) and gives back;
elsewhere a sentence is enough."""

import importlib
import inspect
import pkgutil
import re
import sys
import warnings
from pathlib import Path

import pytest

import refsgd
import refsgd.collectives
import refsgd.problems.data
import refsgd.testing
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import declare
from refsgd.algorithms.gossip import graphs
from refsgd.algorithms.sgd import SGD
from refsgd.problems.nn import elementwise, kernels, vector

#: the public modules; everything else is internal, read beside its source
PUBLIC = ("refsgd", "refsgd.effects", "refsgd.algorithms.gossip.graphs", "refsgd.collectives",
          "refsgd.algorithms", "refsgd.cluster.distributions", "refsgd.cluster.machine", "refsgd.cluster.links",
          "refsgd.problems.problem", "refsgd.problems.layers", "refsgd.problems.chain",
          "refsgd.problems.data", "refsgd.problems.nn.layers", "refsgd.problems.nn.nets",
          "refsgd.experiment.result", "refsgd.display.result", "refsgd.trace.events", "refsgd.trace.run",
          "refsgd.trace.resources", "refsgd.theory.predict",
          "refsgd.theory.prediction", "refsgd.testing")
#: modules of public packages that only the package itself uses
INSIDE = ("refsgd.problems.data.formats", "refsgd.problems.data.published")
NAMES = ("Comparison", "Distribution", "Machine", "Problem", "Race", "Result", "Stepper", "compare", "player", "plot",
         "predict", "race", "replay", "run")
#: the parts of a problem that users build besides what the packages export
BUILT = ("Block", "Chain", "LayerByLayer", "Layers")
#: what users take from the modules of graphs, which name the graphs themselves, and of results
GRAPHS = (*(graph.__name__ for graph in graphs.GRAPHS.values()), "one_peer_exponential", "metropolis", "spectral_gap")
RETURNED = ("Result", "final_parameters", "parameters_sha256", "player", "plot")
#: what describes a cluster
DESCRIBED = ("Distribution", "Link", "Machine")
MODULES = [m.name for m in pkgutil.walk_packages(refsgd.__path__, "refsgd.")
           if m.name != "refsgd.cli.__main__"]
DOCS = Path(__file__).parents[2] / "docs"
API = DOCS / "api" / "index.rst"
sys.path.insert(0, str(DOCS / "_ext"))


def is_public(module):
    return module not in INSIDE and any(module == name or module.startswith(name + ".") for name in PUBLIC[1:])


def defined(module):
    """(name, thing) of the functions, classes, methods and properties that a module defines without an
    underscore."""
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(thing) or inspect.isclass(thing):
            yield name, thing
        for own, member in vars(thing).items() if inspect.isclass(thing) else ():
            if not own.startswith("_") and (inspect.isfunction(member)
                                            or isinstance(member, classmethod | staticmethod | property)):
                yield f"{name}.{own}", getattr(thing, own)


def held(name):
    """The documented things of a public module: of an algorithm, which is read as a whole, what deploys
    it, its facts, its update rule and its graphs; of results what users call; of collectives and the conformance kit
    what their packages export; of problems and data what their packages export and what users build; of
    clusters what users describe."""
    things = dict(defined(importlib.import_module(name)))
    for package in (refsgd.collectives, refsgd.testing):
        if name.startswith(package.__name__):
            return {own: thing for own, thing in things.items() if own in package.__all__}
    if name.startswith("refsgd.problems.") and not name.startswith("refsgd.problems.nn"):
        exported = {*refsgd.problems.__all__, *refsgd.problems.data.__all__}
        return {own: thing for own, thing in things.items() if own in exported or own in BUILT}
    if name.startswith("refsgd.cluster."):
        return {own: thing for own, thing in things.items() if own.split(".")[0] in DESCRIBED}
    if name.endswith((".graphs", ".result")):
        return {own: thing for own, thing in things.items() if own.split(".")[0] in (*GRAPHS, *RETURNED)}
    whole = not name.startswith("refsgd.algorithms.")
    return {own: thing for own, thing in things.items()
            if whole or thing in (SGD, declare) or thing in CATALOGUE.values()}


def parameters(doc):
    """The names in the section Parameters of a parsed docstring."""
    return [name.strip().lstrip("*") for p in doc["Parameters"] for name in p.name.split(",")]


def lacks(thing):
    """What a docstring lacks, in words; an empty list where it is whole."""
    docscrape, docstrings = (pytest.importorskip(name, reason="the extra [docs] is not installed")
                            for name in ("numpydoc.docscrape", "docstrings"))
    text = inspect.getdoc(thing)
    if not text:
        return ["a docstring"]
    if isinstance(thing, property) or (inspect.isclass(thing)
                                       and issubclass(thing, Exception | tuple)) or getattr(
                                           thing, "_is_protocol", False):
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpydoc warns of unknown sections and of sections that come twice
        doc = docstrings.completed(thing, text) if inspect.isfunction(thing) else docscrape.NumpyDocString(text)
    signature = inspect.signature(thing)
    taken = [name for name, p in signature.parameters.items() if name != "self"
             and p.kind is not p.VAR_KEYWORD]
    named = parameters(doc)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    found = [] if open_ended else [f"nothing called {name}" for name in named if name not in taken]
    if inspect.isclass(thing) and doc["Attributes"] and not named:
        return found
    said = said_by_bases(thing) if inspect.isclass(thing) else ()
    found += [f"the parameter {name}" for name in taken if name not in named and name not in said]
    returns = None if inspect.isclass(thing) else signature.return_annotation
    if taken and returns not in (None, "None", "Deployment",
                                 inspect.Signature.empty) and not doc["Returns"] and not doc["Yields"]:
        found.append("what is returned")
    return found


def said_by_bases(cls):
    """What a class's constructor takes that a base class has in its docstring: everything, if the
    constructor is another library's."""
    from numpydoc.docscrape import NumpyDocString

    ours = [base for base in cls.__mro__[1:] if base.__module__.startswith("refsgd")]
    if any(cls.__init__ is base.__init__ for base in cls.__mro__[1:] if base not in ours):
        return set(inspect.signature(cls).parameters)
    return {name for base in ours for name in parameters(NumpyDocString(inspect.getdoc(base)))}


def inherited(module, own):
    """Whether a base class documents a method whole."""
    owner, _, name = own.rpartition(".")
    bases = getattr(module, owner).__mro__[1:] if owner else ()
    return any(base.__module__.startswith("refsgd") and hasattr(base, name) and not lacks(getattr(base, name))
               for base in bases)


def test_the_public_names_are_those_that_are_documented():
    assert sorted({*refsgd.__all__} - {"__version__"}) == list(NAMES) and all(hasattr(refsgd, name) for name in NAMES)
    listed = re.findall(r"^   (refsgd[.\w]+)$", API.read_text(), re.MULTILINE)
    assert set(listed) == {*PUBLIC[1:], *(f"refsgd.{name}" for name in NAMES)}


@pytest.mark.parametrize("name", MODULES)
def test_everything_that_has_a_name_says_what_it_is(name):
    module = importlib.import_module(name)
    assert module.__doc__
    assert [own for own, thing in defined(module) if not inspect.getdoc(thing)] == []


@pytest.mark.parametrize("name", [name for name in MODULES if is_public(name)])
def test_public_names_say_what_they_take_and_give(name):
    module = importlib.import_module(name)
    assert {own: found for own, thing in held(name).items() if (found := lacks(thing))
            and not inherited(module, own)} == {}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_package_say_what_they_take_and_give(name):
    assert lacks(getattr(refsgd, name)) == []


def test_every_algorithm_of_the_catalogue_is_among_those_that_are_held():
    assert set(CATALOGUE.values()) <= {thing for name in MODULES if name.startswith("refsgd.algorithms.")
                                       for thing in held(name).values()}


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


def unexplained(function, module, *more):
    """Arguments of a kernel that neither its docstring has as code, nor its module's, nor another; ``xn``
    is a stride of x by its name."""
    code = re.findall(r"``.*?``|`.*?`", " ".join([function.__doc__, module.__doc__, *more]), re.DOTALL)
    words = {"context", *re.findall(r"\w+", " ".join(code))}
    return [name for name in inspect.signature(function).parameters if name not in words
            and not re.fullmatch("[a-z][nrc]", name)]


@pytest.mark.parametrize("module", [kernels, elementwise, vector],
                         ids=lambda module: module.__name__)
def test_kernels_explain_their_letters(module):
    """Kernels are compiled things with many arguments: most are explained once, in the list of letters
    that all of them share."""
    own = {name: inspect.unwrap(thing) for name, thing in vars(module).items()
           if hasattr(thing, "__wrapped__") and not name.startswith("_")}
    own = {name: function for name, function in own.items() if function.__module__ == module.__name__}
    assert own
    assert {name: found for name, function in own.items()
            if (found := unexplained(function, module, kernels.__doc__))} == {}


def test_the_check_of_letters_catches_one_that_is_not_explained():
    def scale(b, x, xr, factor):
        """Multiply ``x`` by the factor."""

    assert unexplained(scale, kernels) == ["factor"]
