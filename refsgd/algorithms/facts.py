"""The facts of an algorithm that its programs do not show: what runs, formulas, tables and tests must know.

A deployment function declares them, and nobody else says anything about an algorithm::

    @declare(SERVED, updates=each_push, mean_of=ONE_WORKER, lost="the gradient that it was computing")
    def asp(problem, workers, steps, sgd, servers=1, rotated=False): ...

Where they depend on the algorithm's own options, `declare` gets a function of these.  A reader's function may
declare facts, too.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

Options = Mapping[str, Any]  #: the algorithm's own, with their defaults
Function = TypeVar("Function", bound=Callable[..., Any])

#: what a deployment function may be given besides problem, workers, steps, rule and its own options
GIVEN = ("servers", "rotated", "hosts", "groups")
#: options of an exchange, see `refsgd.algorithms.exchange`
EXCHANGE = ("layout", "balance", "priority", "overlap", "bucket", "compress", "feedback")


def each_step(workers: int, steps: int, options: Options) -> int:
    """One update a step."""
    return steps


def each_push(workers: int, steps: int, options: Options) -> int:
    """One update for each gradient of each worker."""
    return workers * steps


def depends(workers: int, steps: int, options: Options) -> None:
    """A number of updates that only the run shows, as where gradients are ignored."""


def all_workers(workers: int, options: Options) -> int:
    """An update is a mean over all workers."""
    return workers


def never(options: Options) -> tuple[float, float]:
    """A gate at which no worker ever waits."""
    return math.inf, math.inf


ONE_WORKER = "an update has the gradient of one worker, whose batch does not grow with their number"
PART = "a stage's parameters die"  #: with a worker of a pipeline


@dataclass(frozen=True)
class Facts:
    """What must be known of an algorithm besides its programs; the defaults are those of any function."""

    given: tuple[str, ...] = ()  #: those of `GIVEN` that the deployment function takes

    # data
    #: whose share of each step's examples there is: each worker's, one of all stages of a replica, one of all
    share: Literal["worker", "replica", "all"] = "worker"
    single: bool = False  #: whether one worker is all that it can have
    portions: bool = False  #: whether a step takes all data, in portions that any worker computes

    # exchange
    takes: tuple[str, ...] = ()  #: those of `EXCHANGE` that its programs use
    #: why it does not take one of the others, or "overlap both"; under "": why it takes none
    because: Mapping[str, str] = field(default_factory=dict)
    layered: bool = False  #: whether gradients are always exchanged layer by layer
    codec: Callable[[Options], str] | None = None  #: the codec that is part of the algorithm

    #: its own options that change nothing beside the others, with a number of workers, and what they need
    needs: Callable[[Options, int], Mapping[str, str]] | None = None

    # update rule
    #: of one copy of the parameters in a run; None where that depends on the run
    updates: Callable[[int, int, Options], int | None] = each_step
    #: how many workers' gradients an update is the mean of, or why there is no such mean
    mean_of: Callable[[int, Options], int] | str = all_workers
    only_sgd: str = ""  #: why it takes no other rule
    not_lars: str = ""  #: why it takes no rule that needs whole layers
    unscheduled: str = ""  #: why there is neither warm-up nor a cosine schedule
    minimises: bool = False  #: whether it goes to the minimum along coordinates of which that is known

    # machine
    silent: bool = False  #: whether no node sends a message
    collective: bool = False  #: whether workers, or the replicas of a stage, add vectors in a collective

    # deaths
    lost: str = "velocities, residuals"  #: with a worker that dies while the others continue
    unshared: str = ""  #: what no other worker has, so that no run can go on without it
    timeless: bool = False  #: whether the result does not depend on how long anything takes

    # memory
    #: what a worker keeps: a replica that it updates; one that servers update; one with the sums of a
    #: collective; one that it does not exchange; a shard of the optimiser's state; stages, or also the
    #: versions at which they have computed
    holds: Literal["replica", "pushed", "summed", "alone", "shards", "stages", "stashed stages"] = "replica"
    collects: bool = False  #: whether servers keep the gradients of several workers
    copies: bool = False  #: whether each server has all parameters

    # theory and checks
    formula: str = ""  #: that predicts its figures, a key of `refsgd.theory.FORMULAS`
    no_formula: str = ""  #: why none does
    #: the clocks that a worker may be ahead of the slowest, at least and at most; None: no gate is checked
    gate: Callable[[Options], tuple[float, float]] | None = None
    tight: tuple[Options, ...] = ()  #: small values of the options of the gate, with which it is checked
    compared: bool = True  #: whether all schedules of a small case of it can be followed, to compare others

    @property
    def served(self) -> bool:
        """Whether it has parameter servers, whose number is an option of the run."""
        return "servers" in self.given

    @property
    def staged(self) -> bool:
        """Whether workers are the stages of a net."""
        return self.share == "replica"

    def refusal(self, option: str) -> str:
        """Why an option of the exchange is not taken; empty if it is."""
        if option in self.takes:
            return ""
        return (self.because.get(option) or self.because.get("")
                or "its programs do not use the exchange that others share")


def declare(facts: Facts | Callable[[Options], Facts], **changes: Any) -> Callable[[Function], Function]:
    """Declare the facts of a deployment function: these, with some changed, or a function of its options."""
    def mark(function: Function) -> Function:
        function.facts = replace(facts, **changes) if isinstance(facts, Facts) else facts  # type: ignore[attr-defined]
        return function
    return mark


def declared(function: Any) -> bool:
    """Whether this is a deployment function that declares facts."""
    return callable(function) and hasattr(function, "facts")


def facts_of(function: Callable[..., Any], options: Options | None = None) -> Facts:
    """The facts of a deployment function with these of its own options; one that declares nothing is taken
    at the word of its parameters: `servers` and the rest of `GIVEN`, `stages`."""
    facts: Facts | Callable[[Options], Facts] | None = getattr(function, "facts", None)
    options = {**(getattr(function, "__kwdefaults__", None) or {}), **(options or {})}
    if facts is None:
        taken = inspect.signature(function).parameters
        stages = "stages" in taken and options.get("stages") != 1
        return Facts(tuple(name for name in GIVEN if name in taken), "replica" if stages else "worker",
                     unshared=PART * stages, holds="stages" if stages else "replica")
    return facts if isinstance(facts, Facts) else facts(options)


# -- families ----------------------------------------------------------------------------------------------

#: servers that answer each push, see `refsgd.algorithms.parts`
SERVED = Facts(
    ("servers", "rotated"), takes=("layout", "balance", "priority", "overlap", "compress", "feedback"),
    because={"bucket": "it has servers, and sends each part by itself"}, holds="pushed",
    lost="the gradient that it was computing")
#: peers that sum their gradients in buckets, see `refsgd.algorithms.allreduce.mean`
SUMMED = Facts(
    takes=("overlap", "bucket", "compress", "feedback"), holds="summed", timeless=True,
    because={**dict.fromkeys(
        ("layout", "balance", "priority"),
        "it has no servers: its buckets are parts, in the order in which they are ready"),
             "overlap both": "the next forward pass begins with the first layer, whose bucket is the last"})
#: peers that exchange parameters
REPLICAS = Facts(because={"": "it exchanges parameters, which are whole only after the update"})


def replicated(options: Options, workers: int) -> Mapping[str, str]:
    """Only replicas of a stage have a collective."""
    alone = options["stages"] in (None, workers)
    return {"collective": "more workers than stages: a stage of one replica has no peers"} if alone else {}


#: the stages of a net
STAGES = Facts(
    share="replica", because={"": "its stages exchange activations, and each updates its own parameters"},
    not_lars="the rule of a stage does not know where its layers end", unshared=PART, timeless=True,
    holds="stages", collective=True, needs=replicated)
