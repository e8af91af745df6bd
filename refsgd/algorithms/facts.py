"""The facts of an algorithm that its programs do not show, but that runs, formulas, tables and tests need.

A deployment function declares them, and they are written nowhere else::

    @declare(SERVED, updates=each_push, mean_of=ONE_WORKER, formula="asp")
    def asp(problem, workers, steps, sgd, servers=1, rotated=False): ...

`SERVED`, `SUMMED`, `REPLICAS` and `STAGES` are the facts of four families; an algorithm names those in which
it differs.  If they depend on the algorithm's own options, `declare` gets a function that takes the options
and returns `Facts`.  A function of your own may declare facts, too.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

Options = Mapping[str, Any]  #: the algorithm's own options; those that were not given have their defaults
Function = TypeVar("Function", bound=Callable[..., Any])

#: parameters that a deployment function may have besides problem, workers, steps, sgd and its own options
GIVEN = ("servers", "rotated", "hosts", "groups")
#: options of an exchange of gradients, see `refsgd.algorithms.exchange`
EXCHANGE = ("layout", "balance", "priority", "overlap", "bucket", "compress", "feedback")


def each_step(workers: int, steps: int, options: Options) -> int:
    """One update in each step."""
    return steps


def each_push(workers: int, steps: int, options: Options) -> int:
    """One update for each gradient of each worker."""
    return workers * steps


def depends(workers: int, steps: int, options: Options) -> None:
    """The number of updates depends on the run, for example because some gradients are ignored."""


def all_workers(workers: int, options: Options) -> int:
    """An update is the mean of all workers' gradients."""
    return workers


def never(options: Options) -> tuple[float, float]:
    """A gate at which no worker ever waits."""
    return math.inf, math.inf


def unmixed(workers: int, options: Options) -> float:
    """1: gradients are taken at what replicas are after mixing, or nothing mixes them."""
    return 1.0


ONE_WORKER = "an update applies the gradient of one worker, whose batch does not grow with their number"
PART = "a worker has the only copy of its stage's parameters"
IN_PAIRS = "its replicas average in pairs, at moments of their own: only by running it"
CHOOSES = "it chooses entries by their size, which is not linear in them"
#: that which moves the model, for `Facts.recursion`: the mean of gradients at the model itself, or at
#: replicas whose mean is the model; gradients at earlier versions of a server's model, all those of workers
#: that never wait, or those that a schedule applies; elastic forces of all workers together
RECURSIONS = ("mean", "replicas", "pushes", "waits", "elastic")


@dataclass(frozen=True)
class Facts:
    """What must be known of an algorithm besides its programs.

    The defaults fit an algorithm whose workers each compute a gradient in every step, wait for each other,
    and exchange gradients in messages of their own.
    """

    given: tuple[str, ...] = ()  #: the parameters of `GIVEN` that the deployment function has

    # data
    #: who has a share of each step's examples: each worker, each replica (one for all its stages), or all
    #: workers together
    share: Literal["worker", "replica", "all"] = "worker"
    single: bool = False  #: whether it always has one worker
    portions: bool = False  #: whether each step uses all data, in portions
    dealt: bool = False  #: whether any worker may compute any share or portion: the first that is free

    # exchange
    takes: tuple[str, ...] = ()  #: the options of `EXCHANGE` that its programs use
    #: why it refuses each of the others, and perhaps "overlap both"; under "": why it refuses any
    because: Mapping[str, str] = field(default_factory=dict)
    layered: bool = False  #: whether gradients are always exchanged layer by layer
    codec: Callable[[Options], str] | None = None  #: the codec that is part of the algorithm

    #: which of its own options would change nothing, with what each of them needs; from all its options
    #: and the number of workers
    needs: Callable[[Options, int], Mapping[str, str]] | None = None

    # update rule
    #: how often one copy of the parameters is updated in a run; None if that depends on the run
    updates: Callable[[int, int, Options], int | None] = each_step
    #: how many workers' gradients an update averages, by which ``scale_lr`` multiplies the rate; or, as
    #: text, why the rate cannot be scaled
    mean_of: Callable[[int, Options], int] | str = all_workers
    only_sgd: str = ""  #: why it takes no other rule than SGD
    not_lars: str = ""  #: why it does not take LARS, which needs whole layers
    unscheduled: str = ""  #: why it takes neither warm-up nor a cosine schedule
    minimises: bool = False  #: whether it goes to the minimum along each coordinate, if a problem has one

    # machine
    silent: bool = False  #: whether no node sends a message
    collective: bool = False  #: whether workers, or the replicas of a stage, sum vectors in a collective

    # deaths
    lost: str = "velocities, residuals"  #: what is lost with a worker that dies while the others continue
    #: what only one worker has, as a sentence: no run can continue without it
    unshared: str = ""
    timeless: bool = False  #: whether the result is the same in every schedule, whatever computing takes

    # memory
    #: what a worker keeps in memory: a replica that it updates ("replica"), that servers update ("pushed"),
    #: with the buffers of a collective ("summed"), or that it does not exchange ("alone"); a shard of the
    #: optimiser's state ("shards"); stages, without or with the versions that they used ("stashed stages"); a
    #: replica with sums of gradients that others do not have yet ("partitions")
    holds: Literal["replica", "pushed", "summed", "alone", "shards", "stages", "stashed stages",
                   "partitions"] = "replica"
    leads: int = 1  #: how many workers' gradients one of them sums, to exchange them as one
    collects: bool = False  #: whether a server keeps gradients of several workers until it applies them
    copies: bool = False  #: whether each server has all parameters, not a part

    # theory and checks
    #: the formulas that predict its metrics: a key of ``refsgd.theory.ALGORITHMS``, or a function of your own
    #: from `refsgd.theory.Setting` to `refsgd.theory.Figures`
    formula: str | Callable[[Any], Any] = ""
    no_formula: str = ""  #: why there are none
    #: one of `RECURSIONS`, by which `refsgd.theory.phenomena.convergence` follows the expected loss on a
    #: quadratic, or, as text, why none of them does; from the algorithm's own options
    recursion: str | Callable[[Options], str] = "it does not declare what moves its model"
    #: the least eigenvalue of the matrix that mixes replicas while gradients are taken: on a quadratic of
    #: curvature a, they part at rates from (1 + it)/a
    mixing: Callable[[int, Options], float] = unmixed
    #: how many clocks a worker may be ahead of the slowest: below the first number it never waits, at the
    #: second it always does; None: this is not checked
    gate: Callable[[Options], tuple[float, float]] | None = None
    tight: tuple[Options, ...] = ()  #: small values of the gate's options, with which it is checked
    #: whether a small case has few enough schedules to follow them all, so that ``check --as`` can compare
    #: programs with it
    compared: bool = True

    @property
    def served(self) -> bool:
        """Whether it has parameter servers, as many as the run asks for."""
        return "servers" in self.given

    @property
    def staged(self) -> bool:
        """Whether workers are the stages of a net."""
        return self.share == "replica"

    def refusal(self, option: str) -> str:
        """The reason why an option of the exchange is refused; empty if it is taken."""
        if option in self.takes:
            return ""
        return (self.because.get(option) or self.because.get("")
                or "its programs do not use it")


def declare(facts: Facts | Callable[[Options], Facts], **changes: Any) -> Callable[[Function], Function]:
    """Declare the facts of a deployment function.

    Parameters
    ----------
    facts : Facts or callable
        Those of a family, such as `SERVED`, or a function that computes them from the algorithm's options.
    **changes
        Fields of `Facts` in which the algorithm differs from its family.

    Returns
    -------
    callable
        A decorator, which returns the function itself.
    """
    def mark(function: Function) -> Function:
        own = replace(facts, **changes) if isinstance(facts, Facts) else facts
        function.facts = own  # type: ignore[attr-defined]
        _check(function)
        return function
    return mark


def _check(function: Callable[..., Any]) -> None:
    """Refuse facts of the wrong type, or with names that are not known."""
    taken, options = inspect.signature(function).parameters, getattr(function, "__kwdefaults__", None) or {}
    if any(p.kind is p.KEYWORD_ONLY and name not in options for name, p in taken.items()):
        return  # facts may depend on options without defaults
    facts = facts_of(function)

    def refuse(name: str, found: str, expected: str = "") -> NoReturn:
        raise ValueError(f"fact {name} of {function.__name__} {found}; expected "
                         + (expected or Facts.__annotations__[name]))

    for name, kind in _kinds().items():
        value = getattr(facts, name)
        if not _fits(value, kind):
            refuse(name, f"is {value!r}")
        for each in (kind, *get_args(kind)) if callable(value) and name != "formula" else ():
            if get_origin(each) is not abc.Callable:
                continue
            takes, gives = get_args(each)
            try:
                found = value(*(options if each == Options else 2 for each in takes))  # 2 workers, 2 steps
            except ValueError:  # the algorithm refuses them
                continue
            except Exception as error:
                refuse(name, f"raises {error!r}")
            if not _fits(found, gives):
                refuse(name, f"gives {found!r}")
    for name, known in {"given": [each for each in GIVEN if each in taken], "takes": EXCHANGE,
                        "because": (*EXCHANGE, "", "overlap both")}.items():
        if others := [each for each in getattr(facts, name) if each not in known]:
            refuse(name, f"names {others[0]}", f"only {', '.join(filter(None, known)) or '()'}")
    if isinstance(facts.recursion, str) and not (facts.recursion in RECURSIONS or " " in facts.recursion):
        refuse("recursion", f"is {facts.recursion!r}", f"{', '.join(RECURSIONS)}, or why it is none of them")


@functools.cache
def _kinds() -> dict[str, Any]:
    """The types of all facts."""
    return get_type_hints(Facts)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in args)
    if origin is Literal:
        return value in args
    return isinstance(value, (int, float) if kind is float else origin or kind)


def declared(function: Any) -> bool:
    """Whether something is a deployment function that declares its facts."""
    return callable(function) and hasattr(function, "facts")


def facts_of(function: Callable[..., Any], options: Options | None = None) -> Facts:
    """The facts of a deployment function, with these values of its own options.

    If a function declares none, the names of its parameters decide: `servers` and the others of `GIVEN`, and
    `stages`.
    """
    facts: Facts | Callable[[Options], Facts] | None = getattr(function, "facts", None)
    options = {**(getattr(function, "__kwdefaults__", None) or {}), **(options or {})}
    if facts is None:
        taken = inspect.signature(function).parameters
        stages = "stages" in taken and options.get("stages") != 1
        return Facts(tuple(name for name in GIVEN if name in taken), "replica" if stages else "worker",
                     unshared=PART * stages, holds="stages" if stages else "replica")
    return facts if isinstance(facts, Facts) else facts(options)


def one_of(name: str, value: str, known: Any) -> None:
    """Raise ValueError if an option is none of the texts of a `Literal`."""
    *first, last = get_args(known)
    if value not in (*first, last):
        raise ValueError(f"{name} {value!r}; expected {', '.join(first)} or {last}")


# -- families ----------------------------------------------------------------------------------------------

#: parameter servers that answer each push, see `refsgd.algorithms.parts`
SERVED = Facts(
    ("servers", "rotated"), takes=("layout", "balance", "priority", "overlap", "compress", "feedback"),
    because={"bucket": "it has servers, and each of their parts is a message of its own"}, holds="pushed",
    lost="the gradient that it was computing")
#: peers that sum their gradients in buckets, see `refsgd.algorithms.allreduce.mean`
SUMMED = Facts(
    takes=("overlap", "bucket", "compress", "feedback"), holds="summed", timeless=True, recursion="mean",
    because={**dict.fromkeys(
        ("layout", "balance", "priority"),
        "it has no servers: it sums gradients in buckets, in the order in which they are ready"),
             "overlap both": "the next forward pass begins with the first layer, which is summed last"})
#: peers that average their parameters
REPLICAS = Facts(because={"": "it exchanges parameters, which are complete only after the update"})


def replicated(options: Options, workers: int) -> Mapping[str, str]:
    """Only stages with several replicas use a collective."""
    alone = options["stages"] in (None, workers)
    return {"collective": "more workers than stages: a stage of one replica has no peers"} if alone else {}


#: workers that are the stages of a net
STAGES = Facts(
    share="replica", because={"": "its stages exchange activations, and each updates its own parameters"},
    not_lars="the update rule of a stage does not know where layers end", unshared=PART, timeless=True,
    holds="stages", collective=True, needs=replicated)
