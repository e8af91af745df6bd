"""A strategy on a cluster: a run of at most a pass with its predicted metrics, its memory and its command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, inf, nan
from operator import attrgetter
from statistics import mean
from typing import Any, NamedTuple

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.cluster import devices, placement, prices, units
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.links import Link
from refsgd.cluster.machine import Machine
from refsgd.effects import ranks, roles
from refsgd.experiment.advice.candidates import Candidate, Kind
from refsgd.experiment.arguments import Usage
from refsgd.experiment.memory import with_sizes
from refsgd.experiment.options.unused import UNUSED
from refsgd.experiment.prepare import Experiment, prepare
from refsgd.experiment.race.entries import Race
from refsgd.experiment.simulated import Budget
from refsgd.problems.shapes import NoContents
from refsgd.runtimes.simulator import Simulator
from refsgd.theory.prediction import Figures

LONGEST = 100  #: most steps of the run that is predicted and printed as a command; a pass is extrapolated
MANY = 64  #: workers of whose iteration the number of events is estimated before it is simulated
SECOND = Machine(compute=Distribution("fixed", (1.0,)))
#: terms of a node's memory that this library's programs need and a framework does not
COPIES = ("working copies", "buffers")
STATE = "optimiser state"  #: the term that mixed precision does not halve


class Case(NamedTuple):
    """A cluster with its division of work."""

    machine: Machine
    batches: tuple[int, ...]  #: of each worker
    variant: str = ""  #: "" with equal work for all workers of the cluster

    @property
    def workers(self) -> int:
        """Their number."""
        return len(self.batches)


@dataclass(frozen=True)
class Question:
    """The model, the cluster and the limits that strategies share."""

    net: str  #: as `refsgd run` takes it
    parameters: int
    images: int  #: of a pass
    servers: int  #: of strategies with servers on hosts of their own
    work: float  #: operations of one image's gradient, 0 if unknown
    saved: float  #: bytes of one image's activations that a framework keeps for the backward pass
    training: Mapping[str, Any]  #: optimiser and momentum
    mixed: bool  #: whether workers hold parameters and gradients in 2 bytes, and a copy in 4
    base: tuple[str, Machine]  #: a machine by name, "" for none, from which flags describe others
    memory_limit: float | None  #: bytes of a node
    staleness_limit: float | None  #: updates
    race: Race | None = None  #: with passes of strategies
    swap: float | None = None  #: bytes a second to and from elsewhere of what exceeds the limit of memory


@dataclass(frozen=True)
class Strategy:
    """One candidate with its predicted metrics."""

    candidate: Candidate
    name: str  #: the algorithm, its options, K servers (K=n: one beside each worker), a variant
    workers: int  #: number of workers that take part
    batch: str  #: images in each worker's gradient
    seconds: float  #: of a pass over the data, until every worker has finished its share; inf: unknown
    images_per_second: float  #: over that pass, without images whose gradients are dropped
    efficiency: float  #: relative to workers that always compute, and all of whose gradients count
    metrics: Figures  #: of the command's run
    memory: Mapping[str, float]  #: bytes of the fullest node, by what a framework keeps there
    where: str  #: the hosts of its servers; "" without servers
    command: str  #: the run that is predicted
    rejected: str = ""  #: why it does not fit; "" if it does
    passes: float = nan  #: over the data to a race's target; not known without a race

    @property
    def kind(self) -> Kind:
        """What its gradients are computed on."""
        return self.candidate.kind

    @property
    def to_target(self) -> float:
        """Seconds to the target of a race: passes of its net times seconds of a pass here."""
        return self.passes * self.seconds

    @property
    def variant(self) -> str:
        """The division of work: "" if equal, "without ..." the slowest, or "work by speed"."""
        return self.name.partition(", ")[2]

    def figure(self, name: str) -> float | None:
        """A metric of the run; None if it is not predicted."""
        return float(self.metrics[name].value) if name in self.metrics else None

    @property
    def needs(self) -> float:
        """Bytes of the fullest node."""
        return sum(self.memory.values())

    @property
    def causes(self) -> Mapping[str, float]:
        """Shares of time without computing, by cause."""
        step = self.metrics["seconds_per_iteration"]
        if found := self.metrics.get("idle_by_cause"):
            return found.terms
        return {} if step.kind == "simulated" else {
            k: v / step.value for k, v in step.terms.items() if not k.startswith(("compute", "standard"))}

    @property
    def binding(self) -> str:
        """The largest cause of idleness; "nothing" if none takes 2 % of the time, "" if unknown."""
        largest = max(self.causes, key=self.causes.__getitem__, default="")
        return largest if self.causes.get(largest, 1.0) > 0.02 else "nothing"

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        c = self.candidate
        return {"name": self.name, "algorithm": c.algorithm, "kind": self.kind.title, "pytorch": c.pytorch,
                "evidence": [e._asdict() for e in c.evidence],
                **{key: value for key, value in vars(self).items() if key not in ("candidate", "metrics")},
                "metrics": {name: p.to_json() for name, p in self.metrics.items()}}


def strategy(c: Candidate, case: Case, q: Question, budget: Budget, limit: int,
             share: int) -> Strategy | None:
    """The candidate with its metrics; None if an iteration has more than `limit` events."""
    variant = f", {case.variant}" * bool(case.variant)
    used = sum(case.batches) * c.accumulate * (1 - c.dropped / case.workers)  # images of an iteration
    try:
        if c.dropped >= case.workers:
            raise Usage(f"{c.dropped} of {units.counted(case.workers, 'gradient')} dropped, so that none is "
                        "left; expected more workers")
        iterations = max(1, ceil(q.images / used))  # the last of which may be shorter
        # a pipeline has no small case: its depth divides the workers
        many = c.nodes == 1 and (c.piece or case.workers > MANY) and _expected(c, case, q) > 4 * limit
        if many and (case.machine.hosts or case.machine.groups):  # no formula either: links are shared
            return None
        e = _prepared(c, case, q, min(iterations, LONGEST))
        found, steps = (Figures(), 0) if many else _figures(e, c, budget, limit, share)
        if not found:
            found, steps = _in_step(e), e.steps
        if found and c.accumulate > 1:
            _accumulate(found, steps, c.accumulate, [prices.own(e.priced, i) for i in range(e.workers)])
    except (Usage, NoContents, ValueError) as error:
        name = c.name + " K=n" * c.beside + variant
        return Strategy(c, name, case.workers, "", inf, 0.0, 0.0, Figures(), {}, "", "", rejected=str(error))
    if not found:
        return None
    rank, role = ranks(e.nodes), roles(e.nodes)
    servers = len({rank[node] for node in e.nodes if role[node] == "server"})
    owns = [prices.own(e.priced, i) for i in range(case.workers)]
    times = [own.mean for own in owns if isinstance(own, Distribution)]
    pace = found["seconds"].value / steps
    if steps < e.steps and len(set(times)) == 1 and not servers:  # which serve some workers faster
        pace = found["seconds_per_iteration"].value  # the end of a short run would count too much
    # ZeRO divides the copy in single precision as it does the optimiser's state
    copies = q.mixed / (case.workers if c.options.get("stage") in (1, 2) else 1)
    made = Strategy(
        c, c.name + f" K={'n' if c.beside else servers}" * bool(servers) + variant, case.workers,
        _batch(c, case), pace * iterations, q.images / (pace * iterations),
        used / pace / c.nodes / sum(b / time for b, time in zip(case.batches, times)), found,
        _memory(found, q.saved * max(_batches(c, case)), _beside(e), copies),
        _where(e, servers), _command(c, case, q, replace(e, steps=steps)))
    return replace(made, rejected="" if servers else _piling(made, e.machine, times))


def _expected(c: Candidate, case: Case, q: Question) -> float:
    """Events of an iteration, roughly: messages grow with the number of workers or its square."""
    if c.piece:  # each is sent and received twice by each worker
        return 4 * case.workers * q.parameters / c.piece
    small = [_prepared(c, Case(SECOND, case.batches[:few]), q, 1) for few in (4, 8)]
    four, eight = (len(Simulator(e.deploy(), e.machine).run().trace.events) for e in small)
    return case.workers * four / 4 + case.workers * (case.workers - 4) * max(0, eight - 2 * four) / 32


def _batches(c: Candidate, case: Case) -> tuple[int, ...]:
    """Images in each worker's gradient, or, for all, those of the nodes that compute a batch together."""
    return case.batches if c.nodes == 1 else (c.nodes * case.batches[0],)


def _batch(c: Candidate, case: Case) -> str:
    """The batch as the command line reads it."""
    batches = _batches(c, case)
    return units.written(batches if len(set(batches)) > 1 else batches[:1], str)


def _prepared(c: Candidate, case: Case, q: Question, steps: int) -> Experiment:
    """The experiment; servers have hosts of their own, unless they are placed or there is no room."""
    machine, given = case.machine, dict[str, int]()
    if facts_of(CATALOGUE[c.algorithm]).served:
        given["servers"] = case.workers if c.beside else q.servers
    if c.nodes > 1 and not prices.on_devices(machine):  # the time is of one batch
        machine = machine.with_(speeds=tuple(machine.speed(i) / c.nodes for i in range(case.workers)))
    machine = machine.with_(colocated=machine.colocated or c.beside)
    batches = _batches(c, case)
    arguments = {"net": q.net, "data": "none", "workers": case.workers, "steps": steps, **q.training, **given,
                 "batch": batches[0] if len(set(batches)) == 1 else list(batches), **c.options}
    try:
        return prepare(c.algorithm, machine=machine, **arguments)
    except Usage:
        if machine.colocated:
            raise
        return prepare(c.algorithm, machine=machine.with_(colocated=True), **arguments)


def _figures(e: Experiment, c: Candidate, budget: Budget, limit: int, share: int) -> tuple[Figures, int]:
    """Metrics by formula, or of simulated runs, and the number of their steps."""
    if not (e.machine.hosts or e.machine.groups):  # a recursion over shared links takes longer than a run
        found = e.formulas()
        if {"seconds", "seconds_per_iteration", "idle_ratio"} <= set(found):
            return with_sizes(e, found), e.steps
    # a periodic exchange takes part in whole periods
    return budget.runs(e, int(c.options.get("period", 1)), limit, share) or (Figures(), 0)


def _in_step(e: Experiment) -> Figures:
    """Metrics by formula as if each gradient took the mean time of an iteration's slowest."""
    from refsgd.theory.phenomena.stragglers import mean_of_maximum

    owns = [prices.own(e.priced, i) for i in range(e.workers)]
    shared = e.machine.hosts or e.machine.groups
    if shared or not all(isinstance(own, Distribution) for own in owns):
        return Figures()
    slowest = Distribution("fixed", (mean_of_maximum(owns),))  # type: ignore[arg-type]
    found = replace(e, machine=e.priced.with_(compute=slowest, speeds=())).formulas()
    if not {"seconds", "seconds_per_iteration", "idle_ratio"} <= set(found):
        return Figures()
    found.update({name: replace(p, kind="approximation", bound="") for name, p in found.items()})
    return with_sizes(e, found)


def _accumulate(found: Figures, steps: int, count: int, owns: Sequence[Any]) -> None:
    """Let gradients of `count - 1` other batches precede each of the steps: no exchange overlaps these."""
    from refsgd.theory.phenomena.stragglers import mean_of_maximum, sum_of

    sums = [own.scaled(count) if own.family == "replayed" else sum_of(own, count)[0] for own in owns]
    more, other = mean_of_maximum(sums) - mean_of_maximum(owns), (count - 1) * mean(o.mean for o in owns)
    step, before = found["seconds_per_iteration"], found["seconds"].value
    busy = (1 - found["idle_ratio"].value) * before + steps * other
    now = {"seconds": before + steps * more, "seconds_per_iteration": step.value + more,
           "idle_ratio": 1 - busy / (before + steps * more)}
    terms = {"seconds_per_iteration": {**step.terms, "compute of other batches": more}} if step.terms else {}
    if rate := found.get("images_per_second"):
        now["images_per_second"] = rate.value * count * before / now["seconds"]
    if causes := found.get("idle_by_cause"):
        now["idle_by_cause"] = now["idle_ratio"]
        terms["idle_by_cause"] = {cause: share * now["idle_ratio"] / (causes.value or 1.0)
                                  for cause, share in causes.terms.items()}
    fixed = {own.family for own in owns} == {"fixed"}
    for name, value in now.items():
        found[name] = replace(found[name], value=value, terms=terms.get(name, {}), bound="", lower=None,
                              upper=None, kind=found[name].kind if fixed else "approximation")


def _beside(e: Experiment) -> list[str]:
    """The workers' hosts on which there are servers."""
    host, role = e.network.host, roles(e.nodes)
    own = {host[node] for node in e.nodes if role[node] == "worker"}
    return [host[node] for node in e.nodes if role[node] == "server" and host[node] in own]


def _where(e: Experiment, servers: int) -> str:
    """The hosts of its servers, in words."""
    shared = sorted(set(_beside(e)))
    if not shared:
        return "on hosts of their own" * (servers > 1) or "on a host of its own" * servers
    return "on each worker's host" if servers == e.workers > 1 else f"on {', '.join(shared)}, with workers"


def _memory(found: Figures, activations: float, beside: object, copies: float) -> dict[str, float]:
    """Bytes of the fullest node, by what a framework keeps; with `copies` in single precision, other
    numbers take 2 bytes."""
    held: list[dict[str, float]] = []
    for name in ("memory_worker", "memory_stage", "memory_server"):
        if name not in found:
            continue
        terms = {term: size for term, size in found[name].terms.items() if term not in COPIES}
        if name == "memory_worker":
            terms["activations"] = activations
        if name != "memory_server":
            single = copies * terms.get("parameters", 0.0)
            terms = {term: size / 2 if copies and term != STATE else size for term, size in terms.items()}
            terms["parameters in fp32"] = single
        else:  # which adds gradients as they arrive
            one = min(terms.pop("gradients", 0.0), terms["parameters"])
            terms = {f"server's {term}": size for term, size in {**terms, "gradient": one}.items()}
        held.append(terms)
    if beside and len(held) > 1:
        held = [held[0] | held[1]]
    fullest = max(held, key=lambda terms: sum(terms.values()), default={})
    return {term: size for term, size in fullest.items() if size}


def _piling(s: Strategy, m: Machine, times: Sequence[float]) -> str:
    """Why a strategy that never waits is rejected: a link gets more than it can carry, so messages age."""
    # each of n workers sends to any others, and the slowest receives from all; a link that several workers
    # share carries those messages that leave them
    n = s.workers
    waits = [share > 0.001 for cause, share in s.causes.items() if cause not in ("straggling", "update")]
    if n < 2 or "idle_by_cause" not in s.metrics or any(waits):
        return ""
    rates = [1 / time for time in times]
    levels = [(max(placement.devices(m.hosts, n)), m.bandwidth)]
    if m.uplink:
        levels.append((-(-n // len(m.groups)), m.uplink.bandwidth))
    fastest = max(max(rates), (sum(rates) - min(rates)) / (n - 1))
    sent = fastest * (s.figure("bytes_per_iteration") or 0.0) / n
    load = max(sent * each * (n - each) / (n - 1) / bandwidth for each, bandwidth in levels)
    return (f"messages pile up: the busiest link would have to carry {load:.3g} times its bandwidth"
            if load >= 1 else "")


def _command(c: Candidate, case: Case, q: Question, e: Experiment) -> str:
    """The command that runs it."""
    given = {**c.options, "net": q.net, "data": "none", "workers": e.workers,
             **({"servers": e.servers} if facts_of(e.function).served else {}),
             "batch": _batch(c, case), "steps": e.steps, **q.training}
    said = " ".join(f"--{key.replace('_', '-')}" + f" {shlex.quote(str(value))}" * (value is not True)
                    for key, value in given.items())
    return f"refsgd run {c.algorithm} {said} {_flags(e, *q.base)}".rstrip()


def _flags(e: Experiment, name: str = "", base: Machine | None = None) -> str:
    """The machine as flags that change `base`, a machine of that name, without those that a run refuses."""
    machine = e.machine
    base, found = base or Machine(), [f"--machine {shlex.quote(name)}"] if name else []
    for field in fields(machine):
        value = getattr(machine, field.name)
        alike = field.name == "speeds" and not base.speeds and set(value) == {1.0}
        differs = field.compare and not alike and value != getattr(base, field.name)
        asked = value != field.default and field.name in UNUSED  # what is removed is not asked for
        if not differs or (asked and UNUSED[field.name](e)):
            continue
        if isinstance(value, bool):
            found.append(f"--{'' if value else 'no-'}{field.name}")
        else:
            flag = "load" if field.name == "loads" else field.name.replace("_", "-")
            found.append(f"--{flag} {shlex.quote(_text(field.name, value))}")
    return " ".join(found)


def _text(name: str, value: Any) -> str:
    """A field of a machine as the command line reads it; "none" removes what another machine has."""
    if value in (None, "", ()):
        return "none"
    if isinstance(value, float):
        return units.exact(value)

    def link(link: Link) -> str:  # in few digits where these are exact
        short = str(link).removesuffix(" duplex")
        return short if Link.of(short) == link else f"{link.latency!r}, {link.bandwidth!r}, {link.duplex}"

    writers: dict[str, Callable[[Any], str]] = {
        "hosts": lambda hosts: hosts if isinstance(hosts, str) else "; ".join(map(",".join, hosts)),
        "compute": lambda times: devices.written(times, attrgetter("exact")), "update": attrgetter("exact"),
        "groups": placement.written_groups, "inside": link, "uplink": link,
        **dict.fromkeys(("speeds", "server_speeds"), lambda speeds: units.written(speeds, units.exact)),
        "overhead": lambda o: f"{o.fixed!r},{o.per_byte!r}/B",
        "loads": lambda loads: "; ".join(f"{load.node}: {load.steps}" for load in loads)}
    return writers.get(name, str)(value)
