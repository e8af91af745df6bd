"""Whether an algorithm takes the options of an exchange, and how its gradients then travel."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.compression import codec
from refsgd.algorithms.exchange import PLAIN, Exchange, of
from refsgd.algorithms.facts import EXCHANGE, Facts, facts_of
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.experiment.arguments import Usage, checked
from refsgd.problems import Problem, quadratic
from refsgd.runtimes.simulator import simulate

if TYPE_CHECKING:
    from refsgd.experiment.prepare import Experiment
    from refsgd.theory.phenomena.layerwise import Plan

#: attributes that programs read which honour an option; others have its name
READ = {"compress": {"encode", "decode"}, "feedback": {"encode", "decode"}}


def asked(exchange: Exchange) -> dict[str, Any]:
    """The options of an exchange that differ from those of the plain one."""
    return {option: value for option in EXCHANGE
            if (value := getattr(exchange, option)) != getattr(PLAIN, option)}


@checked()
def exchange_of(said: Mapping[str, Any], sgd: SGD, ranks: int, problem: Problem | None = None,
                seed: int = 0, first: int = 0) -> Exchange:
    """The exchange with these options for a rule, some workers and a problem, from step `first` on."""
    found = Exchange(**said)
    if not found.compress:
        return found
    layers = problem.layers if problem is not None else None
    epoch = int(problem.describe.get("steps_per_epoch", 100)) if problem is not None else 100
    made = codec(found.compress, found.feedback, sgd=sgd, ranks=ranks, epoch=epoch,
                 shapes=layers.tensors if layers else (), seed=seed)
    return replace(found, codec=replace(made, first=first))


def check(name: str, facts: Facts | None, exchange: Exchange, problem: Problem, servers: int) -> None:
    """Refuse an exchange that an algorithm does not have by its `facts`, if any, or that says nothing."""
    said = asked(exchange)
    if facts:
        for option, value in said.items():
            if reason := facts.refusal(option):
                takers = [known for known, each in CATALOGUE.items() if option in facts_of(each).takes]
                raise Usage(f"{option} {value} with {name}: {reason}; expected one of {', '.join(takers)}")
        if exchange.overlap == "both" and (reason := facts.because.get("overlap both", "")):
            raise Usage(f"overlap both with {name}: {reason}; expected overlap backward")
    if said.keys() - {"compress", "feedback"} and problem.layers is None:
        raise Usage(f"{', '.join(said)} with a problem that does not declare its layers; expected one with "
                    "layers=..., see refsgd.problems.layers")
    if exchange.layout == "equal":
        for option in ("balance", "priority"):
            if option in said:
                raise Usage(f"{option} {said[option]} with layout equal; expected layout layers, or "
                            "chunks:BYTES")
    if facts and "balance" in said and servers == 1:
        raise Usage(f"balance {exchange.balance} with one server, which has all parts; expected servers 2 or "
                    "more")
    if "feedback" in said and not exchange.compress:
        raise Usage("feedback off without compress; expected a codec, such as compress topk:0.01")
    if exchange.bucket and exchange.overlap == "none":
        raise Usage(f"bucket {exchange.bucket} without overlap; expected overlap backward")


def _noting(value: Any, seen: set[str]) -> Any:
    """The same value; the names of attributes that are read from now on are added to `seen`."""
    kind: Any = type(value)
    found = copy(value)

    def read(self: Any, name: str) -> Any:
        seen.add(name)
        return kind.__getattribute__(self, name)

    object.__setattr__(found, "__class__", type(kind.__name__, (kind,), {"__getattribute__": read}))
    return found


def try_out(experiment: Experiment) -> None:
    """Refuse an exchange with which the reader's own programs fail in a small run, or that they ignore."""
    said, seen = asked(of(experiment.problem)), set[str]()
    workers, sgd = min(experiment.workers, 64), SGD(0.1)  # more would take long
    small = quadratic(d=16, workers=workers)
    exchange = exchange_of(said, sgd, workers, small)
    exchange = replace(exchange, codec=exchange.codec and _noting(exchange.codec, seen))

    def failure(how: Exchange | None) -> str:
        problem = replace(small, exchange=how)
        tried = replace(experiment, problem=problem, workers=workers, sgd=sgd, steps=3)
        try:
            simulate(tried.deploy(), Machine(compute="fixed(1)"))  # type: ignore[arg-type]
        except Exception as error:  # a user's program may raise anything
            return f"its programs fail with it ({type(error).__name__}: {error})"
        return ""

    if failure(None):
        return  # as the run will, which says more
    wrong = failure(_noting(exchange, seen))
    unread = [option for option in said if not READ.get(option, {option}) <= seen]
    if wrong or unread:
        told = ", ".join(f"{option} {said[option]}" for option in (said if wrong else unread))
        raise Usage(f"{told} with {experiment.name}: {wrong or 'its programs do not use it'}; expected "
                    "programs built on refsgd.algorithms.parts or refsgd.algorithms.allreduce, which do")


def largest_server(problem: Problem, servers: int) -> float | None:
    """Bytes of the fullest server over the mean of all; None where parts are equal."""
    how = of(problem)
    if how.layout == "equal":
        return None
    parts, held = how.cut(problem, servers), [0] * servers
    for part, home in zip(parts, how.deal(parts, servers), strict=True):
        held[home] += part.stop - part.start
    return max(held) * servers / problem.x0.size


def plan(facts: Facts, options: Mapping[str, Any], problem: Problem, servers: int,
         price: float) -> Plan | None:
    """How gradients travel, for formulas; None for the plain exchange; `price` is a codec's, per byte."""
    from refsgd.theory.phenomena.layerwise import Part, Plan  # it needs scipy
    how = of(problem)
    if facts.codec and (asked(how) or price):
        how = replace(how, codec=codec(facts.codec(options)))
    elif not asked(how) and not facts.layered:
        return None
    layers = problem.layers
    if facts.layered:
        layers = problem.in_layers
        parts = list(layers.parts)
    elif facts.served:
        parts = how.cut(problem, servers)
    else:
        parts = how.buckets(problem)[::-1] if how.overlap != "none" else [slice(0, problem.x0.size)]
    found, unknown = list[Part](), ""
    for part, home in zip(parts, how.deal(parts, servers), strict=True):
        held = [k for k, layer in enumerate(layers.parts if layers else ())
                if part.start < layer.stop and layer.start < part.stop]
        d, own = part.stop - part.start, how.codec_of(part)
        sums = own.phases(d) if own else (4 * d,)
        if own and own.phases(d, 0) != sums:
            unknown = f"messages of {how.compress} change in size, which no formula covers"
        found.append(Part(home, tuple(held), sum(sums), 4 * d,
                          sums if own is None or own.rule.linear else ()))
    passes = (layers.forward, layers.backward) if layers else ((), ())
    return Plan(tuple(found), *passes, how.overlap, how.priority, price if how.codec else 0.0,
                how.layout == "equal", unknown)
