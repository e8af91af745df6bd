"""Which algorithm takes which option of an exchange, and why others do not."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from refsgd.algorithms.compression import codec
from refsgd.algorithms.exchange import PLAIN, Exchange, of
from refsgd.algorithms.sgd import SGD
from refsgd.cluster.machine import Machine
from refsgd.experiment.arguments import Usage
from refsgd.problems import Problem, quadratic
from refsgd.runtimes.simulator import simulate

if TYPE_CHECKING:
    from refsgd.experiment.prepare import Experiment
    from refsgd.theory.phenomena.layerwise import Plan

#: servers whose workers wait for an answer to each push, see `refsgd.algorithms.parts.worker`
ANSWERED = ("bsp", "asp", "ssp", "softsync", "staleness-aware", "dc-asgd", "consgd", "dynsgd", "dssp")
SERVERS = (*ANSWERED, "downpour")
REDUCED = ("allreduce", "dgc")

#: who takes an option, by its name
TAKES: dict[str, tuple[str, ...]] = {
    "layout": (*SERVERS, "easgd"), "balance": (*SERVERS, "easgd"), "priority": (*SERVERS, "easgd"),
    "overlap": (*SERVERS, *REDUCED), "bucket": REDUCED, "compress": (*SERVERS, "allreduce"),
    "feedback": (*SERVERS, "allreduce")}
#: attributes that programs read which honour an option; others have its name
READ = {"compress": {"encode", "decode"}, "feedback": {"encode", "decode"}}
_OWN = "its programs do not use the exchange that others share"
_REPLICAS = "it exchanges parameters, which are whole only after the update"
_STAGES = "its stages exchange activations, and each updates its own parameters"
_REDUCED = "it has no servers: its buckets are parts, in the order in which they are ready"
#: why an algorithm does not take an option, where the reason is not `_OWN`
BECAUSE: dict[tuple[str, str], str] = {
    ("easgd", "overlap"): "it exchanges parameters before it computes the gradient",
    **{("easgd", option): "it exchanges parameters, which must arrive whole"
       for option in ("compress", "feedback")},
    ("dgc", "compress"): "it compresses by its own ratio",
    ("dgc", "feedback"): "its residual is part of the algorithm",
    ("sequential", ""): "it exchanges nothing", ("independent", ""): "it exchanges nothing",
    ("zero", ""): "its stage says what is exchanged and when: whole layers, as soon as they are computed",
    ("gpipe", ""): _STAGES, ("pipedream", ""): _STAGES,
    ("hogwild", ""): "it shares memory and sends nothing",
    ("sandblaster", ""): "its shards compute with whole vectors, in equal parts",
    ("strads", ""): "its scheduler says which blocks are exchanged, and none travels in parts",
    ("backup-workers", ""): "its server drops whole gradients, and parts would drop different ones",
    ("approximate", ""): "its servers pick the significant entries themselves",
    **{(name, ""): _REPLICAS for name in ("gosgd", "adpsgd", "pair-averaging", "local-sgd", "post-local",
                                          "diloco", "dpsgd", "sgp")},
    **{(name, option): _REDUCED for name in REDUCED for option in ("layout", "balance", "priority")},
    **{(name, "bucket"): "it has servers, and sends each part by itself" for name in (*SERVERS, "easgd")}}


def refusal(name: str, option: str) -> str:
    """Why an algorithm of the catalogue does not take an option; empty if it does."""
    if name in TAKES[option]:
        return ""
    return BECAUSE.get((name, option)) or BECAUSE.get((name, "")) or _OWN


def asked(exchange: Exchange) -> dict[str, Any]:
    """The options of an exchange that differ from those of the plain one."""
    return {option: value for option in TAKES
            if (value := getattr(exchange, option)) != getattr(PLAIN, option)}


def exchange_of(said: Mapping[str, Any], sgd: SGD, ranks: int, problem: Problem | None = None,
                seed: int = 0) -> Exchange:
    """The exchange with these options, for a rule, a number of workers and a problem."""
    try:
        found = Exchange(**said)
        if not found.compress:
            return found
        layers = problem.layers if problem is not None else None
        epoch = int(problem.describe.get("steps_per_epoch", 100)) if problem is not None else 100
        return replace(found, codec=codec(found.compress, found.feedback, sgd=sgd, ranks=ranks, epoch=epoch,
                                          shapes=layers.tensors if layers else (), seed=seed))
    except ValueError as error:
        raise Usage(str(error)) from None


def check(name: str, options: Mapping[str, Any], exchange: Exchange, problem: Problem) -> None:
    """Refuse an exchange that an algorithm of the catalogue does not have, or that says nothing; `name` is
    empty for the reader's own, which `try_out` runs."""
    said = asked(exchange)
    for option, value in said.items() if name else ():
        if reason := refusal(name, option):
            raise Usage(f"{option} {value} with {name}: {reason}; expected one of {', '.join(TAKES[option])}")
    if exchange.overlap == "both" and name:
        if name in REDUCED:
            raise Usage(f"overlap both with {name}: the next forward pass begins with the first layer, whose "
                        "bucket is the last; expected overlap backward")
        if name == "downpour" or options.get("refresh", "fresh") != "fresh":
            raise Usage(f"overlap both with {name}: its workers do not wait for the answer to a push; "
                        "expected overlap backward" + ", or refresh fresh" * (name == "ssp"))
    if said.keys() - {"compress", "feedback"} and problem.layers is None:
        raise Usage(f"{', '.join(said)} with a problem that does not declare its layers; expected one with "
                    "layers=..., see refsgd.problems.layers")
    if exchange.layout == "equal":
        for option in ("balance", "priority"):
            if option in said:
                raise Usage(f"{option} {said[option]} with layout equal; expected layout layers, or "
                            "chunks:BYTES")
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
    """Refuse an exchange with which the reader's own programs fail in a small simulated run, or whose options
    they do not read."""
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


def plan(name: str, options: Mapping[str, Any], problem: Problem, servers: int, price: float) -> Plan | None:
    """How gradients travel, for formulas; None for the plain exchange; `price` is a codec's, per byte."""
    from refsgd.theory.phenomena.layerwise import Part, Plan  # it needs scipy
    how = of(problem)
    if name == "dgc" and (asked(how) or price):
        how = replace(how, codec=codec(f"dgc:{options['ratio']}"))
    elif not asked(how) and name != "zero":
        return None
    layers = problem.layers
    if name == "zero":
        layers = problem.in_layers
        parts = list(layers.parts)
    elif name not in REDUCED:
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
        found.append(Part(home, tuple(held), sum(sums), 4 * d, sums if own is None or own.linear else ()))
    passes = (layers.forward, layers.backward) if layers else ((), ())
    return Plan(tuple(found), *passes, how.overlap, how.priority, price if how.codec else 0.0,
                how.layout == "equal", unknown)
