"""The catalogue: one readable file per consistency algorithm.

`CATALOGUE` maps the names of the command line to deployment functions
``f(problem, workers, steps, sgd[, servers, rotated], *, options)``; the keyword-only parameters are the
algorithm's own options.
"""

from __future__ import annotations

from collections.abc import Callable

from refsgd.algorithms import allreduce, asp, bsp, downpour, easgd, gosgd, hogwild, independent, sequential, ssp
from refsgd.effects import Deployment

CATALOGUE: dict[str, Callable[..., Deployment]] = {
    "sequential": sequential.sequential,
    "bsp": bsp.bsp,
    "asp": asp.asp,
    "ssp": ssp.ssp,
    "easgd": easgd.easgd,
    "downpour": downpour.downpour,
    "allreduce": allreduce.allreduce,
    "gosgd": gosgd.gosgd,
    "independent": independent.independent,
    "hogwild": hogwild.hogwild,
}
