"""The catalogue: one readable file per consistency algorithm.

`CATALOGUE` maps the names of the command line to deployment functions
``f(problem, workers, steps, sgd[, servers, rotated], *, options)``; the keyword-only parameters are the
algorithm's own options, the others mean the same everywhere.  They are found: every function that declares
its `refsgd.algorithms.facts` in a module of one of the `FAMILIES`.

Parameters
----------
problem : Objective
    The objective to minimise.
workers : int
    n, at least 1.
steps : int
    Iterations of each worker, which SSP calls clocks, >= 0.
sgd : SGD
    The update rule of each server's part, or of each replica.
servers : int
    K, at least 1.
rotated : bool
    Worker i begins with server i: for deployments in which every worker's node has a server.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType

from refsgd.algorithms.facts import declared
from refsgd.effects import Deployment

FAMILIES = ("baselines", "server", "averaging", "federated", "allreduce", "gossip", "shared_memory",
            "pipeline")

#: those compared by default: one worker, and the seven of Ko et al., "An in-depth analysis of distributed
#: training of deep neural networks", IPDPS 2021
COMPARED = ("sequential", "bsp", "asp", "ssp", "easgd", "allreduce", "gosgd", "adpsgd")
ALONE = "sequential"  #: the one of these without other workers, with which races compare


def _modules() -> Iterator[ModuleType]:
    """The modules of all families, in the order of their names within a family."""
    for family in FAMILIES:
        package = importlib.import_module(f"{__name__}.{family}")
        for found in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
            yield importlib.import_module(f"{package.__name__}.{found.name}")


CATALOGUE: dict[str, Callable[..., Deployment]] = {
    name.replace("_", "-"): function for module in _modules() for name, function in vars(module).items()
    if declared(function) and function.__module__ == module.__name__}
