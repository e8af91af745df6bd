"""Choosing a strategy for a cluster: predicted times by kind of strategy, against synchronous SGD.

Passes over the data are comparable only within one kind of strategy, so strategies of different kinds are
never ranked against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from typing import Any

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import EXCHANGE
from refsgd.cluster import placement, prices, units
from refsgd.cluster.devices import written
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import load_machine
from refsgd.experiment.advice.candidates import CANDIDATES, KINDS, ONE, Candidate, Kind, divided
from refsgd.experiment.advice.strategies import Case, Question, Strategy, strategy
from refsgd.experiment.arguments import Usage, check_speeds, check_whole, options_of
from refsgd.experiment.functions import with_defaults
from refsgd.experiment.race.entries import Entry, Race
from refsgd.experiment.simulated import Budget
from refsgd.problems.data import apportion
from refsgd.theory.prediction import Figures, Prediction
from refsgd.trace.schema import json_text

BUDGET = 100_000  #: simulated events, some seconds
#: options that change how gradients travel, but not what an update is
HOW = {"collective", *EXCHANGE} - {"compress", "feedback"}
GAIN = 1.02  #: the factor by which another strategy must be faster to be preferred; below, formulas tie
UNKNOWN = (
    "how many passes a strategy needs to reach an accuracy, and at which learning rate: no formula exists, "
    "and below an advantage of a half, seconds of a pass do not order strategies of different kinds; "
    "--race digits adds the passes of a small net (docs/howto/race)",
    "congestion, lost packets, failing nodes: links are assumed to serve at full rate (for failures see "
    "`refsgd run --fault`)")


@dataclass(frozen=True)
class Advice:
    """Strategies by kind, the fastest first, and a recommendation."""

    machine: Machine
    strategies: tuple[Strategy, ...]  #: those that fit, by kind and seconds of a pass; then the rejected
    #: the reference: the fastest of the first kind that PyTorch has built in, with equal work for all
    #: workers; if none fits, the fastest of the first kind that has any
    baseline: Strategy | None
    tries: tuple[Strategy, ...]  #: the recommendation, the baseline and variants, the fastest of each kind
    recommendation: str  #: what to start with, and the gain and risk of another kind; "" if nothing fits
    unknown: tuple[str, ...]
    checkpoints: Prediction | None = None  #: what failures leave of the time, if they are asked for

    def to_json(self) -> str:
        """As JSON, format 2."""
        return json_text({"format": 2, "machine": self.machine.to_json(),
                           "recommendation": self.recommendation,
                           "baseline": self.baseline.name if self.baseline else None,
                           "strategies": [s.to_json() for s in self.strategies],
                           "unknown": self.unknown, "tries": [s.name for s in self.tries],
                           "checkpoints": self.checkpoints and self.checkpoints.to_json()})


def advise(machine: Machine, *, parameters: int, workers: int | None = None, batch: int = 32,
           images: int = 50_000, servers: int | None = None, activations: float = 0.0,
           memory_limit: float | None = None, staleness_limit: float | None = None,
           candidates: Sequence[Candidate] = CANDIDATES, overlap: bool = True, name: str = "",
           work: float = 0.0, net: str = "", optimiser: str = "sgd", momentum: float = 0.0,
           mixed: bool = False, budget: int = BUDGET, race: Race | None = None,
           swap: float | None = None) -> Advice:
    """Compare strategies for a model on a cluster by the predicted time of a pass over the data.

    `work` counts the operations of an image's gradient, which devices price; `net` names the model, such as
    ``shapes:resnet50@224``, whose layers say what may `overlap`; `name` is the preset or file of a machine
    that commands refer to; with `mixed` precision workers hold 2 bytes a number and a copy of the parameters
    in 4; `budget` is the number of events of simulated runs; `race` has passes that make
    kinds comparable; with `swap` bytes a second what exceeds `memory_limit` slows a strategy, in place of
    rejecting it.

    >>> found = advise(Machine(compute="fixed(0.2)", bandwidth=1.25e9), parameters=25_557_032, workers=8)
    >>> found.baseline.name
    'allreduce ring'
    >>> found.recommendation.split(":")[0]
    'Start with allreduce ring'
    """
    workers = filling(machine)[0] if workers is None else workers
    servers = filling(machine)[1] if servers is None else servers
    check_whole(1, parameters=parameters, workers=workers, batch=batch, images=images, servers=servers)
    check_speeds(machine, workers)
    _check(machine, work, memory_limit, staleness_limit)
    question = Question(
        net or f"shapes:{parameters}", parameters, images, servers, work, activations,
        {key: value for key, value, default in (("optimiser", optimiser, "sgd"), ("momentum", momentum, 0.0))
         if value != default}, mixed, (name, load_machine(name) if name else Machine()), memory_limit,
        staleness_limit, race, swap)
    plain, *others = _cases(machine, [batch] * workers, question)
    known = [c for c in candidates if "overlap" not in c.options or (overlap and net)]
    made, late = _judged([(c, plain) for c in known], question, budget * 3 // (5 if others else 3))
    fits = [s for s in made if not s.rejected]
    said = "" if fits else "No node can hold the whole model and its batch, so the model is divided. "
    if memory_limit is not None and net and any(s.needs > memory_limit for s in made):
        more, left_out = _judged([(c, plain) for c in divided(workers, batch)], question,
                                 budget // 2)
        made, late, fits = made + more, late + left_out, fits + [s for s in more if not s.rejected]
    if not made:
        raise Usage(f"{machine}: no strategy can be simulated with {budget} events; expected more: --budget")
    base = next((_fastest(some) for kind in KINDS for some in (
        [s for s in fits if s.kind is kind and s.candidate.pytorch],
        [s for s in fits if s.kind is kind]) if some), None)
    best = {base.name: base} if base else {}
    for kind in KINDS:  # among ties, the baseline is preferred
        if s := _fastest([*best.values(), *fits], kind=kind):
            best[s.name] = s
    if others and base:
        more, left_out = _judged([(s.candidate, case) for s in best.values() for case in others], question,
                                 budget * 2 // 5)
        made, late, fits = made + more, late + left_out, fits + [s for s in more if not s.rejected]
        best |= {s.name: s for s in fits if s.variant and s.candidate == base.candidate}
    if base and (start := _recommended(fits, base)):
        best[start.name] = start
    best |= {s.name: s for s in quickest(fits)[:1]}
    return Advice(
        plain.machine,
        tuple(sorted(made, key=lambda s: (bool(s.rejected), KINDS.index(s.kind), s.seconds))), base,
        tuple(sorted(best.values(), key=lambda s: (KINDS.index(s.kind), bool(s.variant), s.seconds))),
        said + _recommendation(fits, base) + (f" {by_target(fits, race)}" if race else "") if base else "",
        (*UNKNOWN[race is not None:], *_unknown(machine, bool(net and overlap), late, budget)))


def _unknown(machine: Machine, overlaps: bool, late: Sequence[str], budget: int) -> Iterable[str]:
    """What is unknown because prices, layers or simulated runs are missing."""
    if not machine.codec:
        yield ("what encoding and decoding take: compressed gradients are coded for nothing here, unless "
               "--codec gives seconds for each byte of a gradient, as calibrate measures them")
    if not overlaps:
        yield "whether the exchange overlaps with your backward pass: times here add computing and exchange"
    if late:
        yield (f"what {', '.join(late)} would take: a simulated iteration has too many events for the budget "
               f"of {budget:,} (--budget)")


def _judged(pairs: Sequence[tuple[Candidate, Case]], q: Question,
            events: int) -> tuple[list[Strategy], list[str]]:
    """The strategies, and the names of those for which the events are too few."""
    made, late, budget = list[Strategy](), list[str](), Budget(events)
    for at, (c, case) in enumerate(pairs):
        left, rest = budget.left, len(pairs) - at
        # the first, with which others are compared, may take more; precision comes after answers
        limit = max(left // 3, left // rest) if at else 2 * left
        s = strategy(c, case, q, budget, limit, left // 4 // rest)
        budget.left = budget.left if at else max(budget.left, events // 4)
        if s is None:
            late.append(c.name + " K=n" * c.beside + f", {case.variant}" * bool(case.variant))
        else:
            made.append(_limited(_swapped(s, q), None if q.swap else q.memory_limit, q.staleness_limit))
    return with_passes(made, q.race) if q.race else made, late


def filling(machine: Machine) -> tuple[int, int]:
    """The numbers of workers and of servers that fill a machine; 8 and 1 if it does not say."""
    each = machine.speeds or (machine.compute if isinstance(machine.compute, tuple) else ())
    workers, servers = placement.usual(machine.hosts, machine.groups) or (len(each) or 8, 1)
    return workers, max(servers, 1)


def _check(machine: Machine, work: float, memory_limit: float | None, staleness_limit: float | None) -> None:
    """Refuse a machine without gradient times or with loads, and wrong limits."""
    if machine.compute is None:
        raise Usage("the machine has no distribution of compute times; expected --compute DIST, or --flops "
                    "and --rate")
    if any(getattr(time, "mean", 1.0) == 0 for time in prices.each(machine)):
        raise Usage(f"compute {written(machine.compute)} of mean 0, to which advice compares all other time; "
                    "expected a mean time > 0 for each worker")
    if machine.loads:
        raise Usage("advice extrapolates a short run to a pass, which loads change on the way; expected a "
                    "machine without loads")
    if prices.on_devices(machine) and not work > 0:
        raise Usage(f"compute {written(machine.compute)} without the model's work, which it prices; expected "
                    "--net, or --parameters and --flops")
    if memory_limit is not None and not memory_limit > 0:
        raise Usage(f"memory of {memory_limit:g} bytes; expected a number > 0")
    if staleness_limit is not None and not staleness_limit >= 0:
        raise Usage(f"mean staleness of at most {staleness_limit:g} updates; expected a number >= 0")


def _cases(machine: Machine, batches: Sequence[int], q: Question) -> list[Case]:
    """The cluster as it is and, if speeds differ, without its slowest workers and with batches by speed."""
    def timed(machine: Machine, batches: Sequence[int], variant: str = "") -> Case:
        if q.net.removeprefix("shapes:").isdecimal():  # else devices price the work of its layers
            machine = prices.priced(machine, [q.work * b for b in batches], 4 * q.parameters)
        return Case(machine, tuple(batches), variant)

    plain = timed(machine, batches)
    try:
        fast = prices.paces(machine, len(batches))
    except ValueError:  # times and devices are not comparable
        return [plain]
    slow = [i for i, v in enumerate(fast) if v == min(fast)]
    if len(slow) == len(batches):
        return [plain]
    kept = [i for i, v in enumerate(fast) if v > min(fast)]
    fewer = prices.left(machine, kept, 0.0).with_(hosts=placement.of_workers(machine.hosts, len(kept)))
    without = f"without worker{slow[0]}" if len(slow) == 1 else f"without the {len(slow)} slowest"
    found = [plain, timed(fewer, batches[:len(kept)], without)]
    shares = apportion(sum(batches), fast)
    if min(shares):
        if not prices.on_devices(machine):  # a worker's speed is then that of a gradient of its own batch
            machine = machine.with_(speeds=tuple(float(f"{machine.speed(i) * b / own:.6g}")
                                                 for i, (b, own) in enumerate(zip(batches, shares))))
        found.append(timed(machine, shares, "work by speed"))
    return found


def _swapped(s: Strategy, q: Question) -> Strategy:
    """The strategy if what exceeds the memory comes and goes in each iteration, while all else waits."""
    over = s.needs - (inf if q.memory_limit is None else q.memory_limit)
    if not q.swap or over <= 0 or not s.metrics:
        return s
    step = s.metrics["seconds_per_iteration"]
    more = 2 * over / q.swap
    slow, idle = 1 + more / step.value, s.metrics["idle_ratio"]
    now = {"seconds": s.metrics["seconds"].value * slow, "seconds_per_iteration": step.value + more,
           "idle_ratio": 1 - (1 - idle.value) / slow}
    terms = {"seconds_per_iteration": {**step.terms, "swapping": more}}
    if rate := s.metrics.get("images_per_second"):
        now["images_per_second"] = rate.value / slow
    if causes := s.metrics.get("idle_by_cause"):
        now["idle_by_cause"] = now["idle_ratio"]
        terms["idle_by_cause"] = {cause: share / slow for cause, share in causes.terms.items()} | {
            "swapping": 1 - 1 / slow}
    found = Figures(s.metrics | {name: replace(
        s.metrics[name], value=value, terms=terms.get(name, {}), kind="approximation", bound="", lower=None,
        upper=None) for name, value in now.items()})
    return replace(s, seconds=s.seconds * slow, images_per_second=s.images_per_second / slow,
                   efficiency=s.efficiency / slow, metrics=found)


def _limited(s: Strategy, memory_limit: float | None, staleness_limit: float | None) -> Strategy:
    """The strategy, rejected if it exceeds a limit."""
    why, tau = [s.rejected] if s.rejected else [], s.figure("staleness_mean")
    if memory_limit is not None and s.needs > memory_limit:
        why.append(f"needs {units.as_bytes(s.needs)} of memory, {units.as_bytes(memory_limit)} available")
    if staleness_limit is not None and s.metrics and (tau is None or tau > staleness_limit):
        why.append("its staleness is unknown" if tau is None
                   else f"mean staleness {tau:.1f} updates, at most {staleness_limit:g} allowed")
    return replace(s, rejected="; ".join(why))


def _fastest(some: Sequence[Strategy], gain: float = GAIN, kind: Kind | None = None) -> Strategy | None:
    """The first, of a kind or of all, that no other beats by more than `gain`."""
    some = [s for s in some if kind in (None, s.kind)]
    least = min((s.seconds for s in some), default=0.0)
    return next((s for s in some if s.seconds <= gain * least), None)


def _alike(fitting: Sequence[Strategy], base: Strategy) -> list[Strategy]:
    """The strategies of the baseline's kind that may be recommended."""
    even = not any(s.variant for s in fitting)  # else those that drop gradients always drop the slow worker's
    return [s for s in fitting if s.kind is base.kind and (even or not s.candidate.dropped)]


def _recommended(fitting: Sequence[Strategy], base: Strategy) -> Strategy:
    """The baseline, or another of its kind that PyTorch has, too, and that is at least 5 % faster."""
    own = not base.candidate.pytorch
    return _fastest([base, *(s for s in _alike(fitting, base) if own or s.candidate.pytorch)], 1.05) or base


def _recommendation(fitting: Sequence[Strategy], base: Strategy) -> str:
    """What to start with, and what another kind would gain and cost."""
    best = _recommended(fitting, base)
    name, took = best.name.partition(", ")[0], f"{units.spoken(best.seconds)} a pass"
    if best.variant.startswith("without "):
        slow = best.variant.replace("without worker", "the slow worker").removeprefix("without ")
        start = (f"Start with {name} on {units.counted(best.workers, 'node')}, leaving out {slow}: {took} "
                 f"instead of {units.spoken(base.seconds)}" + f" with {base.name}" * (name != base.name))
    else:
        start = f"Start with {best.name}: {took} (" + (
            "the baseline)" if best is base else f"x{best.seconds / base.seconds:.2f} of {base.name})")
        start += ", every gradient computed on up-to-date parameters" * (best.kind is ONE)
    start += f", servers {best.where}" * bool(best.where) + "."
    rest = [s for s in _alike(fitting, base) if s.seconds * 1.05 < best.seconds]
    if best.candidate.pytorch and (own := _fastest([s for s in rest if not s.candidate.pytorch])):
        start += f" {own.name} takes {units.spoken(own.seconds)}, but PyTorch has nothing like it built in."
    if even := [s for s in fitting if s.name == f"{name}, work by speed" and s.seconds < best.seconds]:
        start += (f" Batches in proportion to speed, {even[0].batch}, take {units.spoken(even[0].seconds)}; "
                  "in PyTorch they need a custom sampler.")
    other = _fastest([s for s in fitting if s.kind is not base.kind and s.seconds * GAIN < best.seconds])
    if other is None:
        return (start + " No strategy of another kind is faster here, so a loss of accuracy would buy "
                "nothing.")
    found = [f", as {e.study} {e.part} found" for e in other.candidate.evidence if e.against]
    return (f"{start} {other.name}{',' * bool(other.variant)} takes {units.spoken(other.seconds)} "
            f"(x{other.seconds / base.seconds:.2f}), but {other.kind.cost}, so a pass may improve "
            f"accuracy less{''.join(found[:1])}: it pays if it needs fewer than "
            f"{best.seconds / other.seconds:.2f} times the passes.")


def with_passes(strategies: Sequence[Strategy], race: Race) -> list[Strategy]:
    """The strategies with the passes of a race's row of the same algorithm and options, where it has one."""
    workers = max(row.workers for row in race.rows)
    most = max((s.workers for s in strategies), default=workers)
    if not workers / 2 <= most <= 2 * workers:
        raise Usage(f"a race of {units.counted(workers, 'worker')} for {most}; expected one of {most / 2:g} "
                    f"to {2 * most}: refsgd race --workers {most} --json FILE")
    return [replace(s, passes=next((row.passes for row in race.rows if same(s.candidate, row)), nan))
            for s in strategies]


def same(candidate: Candidate, row: Entry) -> bool:
    """Whether a row of a race has the candidate's updates."""
    return candidate.accumulate == 1 and candidate.algorithm == row.arguments.get("algorithm") and _what(
        candidate.algorithm, candidate.options) == _what(candidate.algorithm, row.arguments)


def _what(algorithm: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options on which updates depend, with defaults."""
    function = CATALOGUE[algorithm]
    own = with_defaults(function, {name: given[name] for name in options_of(function) if name in given})
    more = {"compress": given.get("compress", "none"), "feedback": given.get("feedback", True)}
    return {name: value for name, value in {**own, **more}.items() if name not in HOW}


def quickest(fitting: Sequence[Strategy]) -> list[Strategy]:
    """Those whose seconds to the target are known, the fastest first."""
    return sorted((s for s in fitting if isfinite(s.to_target)), key=lambda s: s.to_target)


def by_target(fitting: Sequence[Strategy], race: Race) -> str:
    """What the seconds to the race's target recommend, across kinds."""
    known = quickest(fitting)
    if not known:
        return "The race has no strategy of these with its options, so kinds are not compared."
    first, of = known[0], f"{race.problem['net']} on {race.problem['data']}"
    workers = units.counted(max(row.workers for row in race.rows), "worker")
    text = (f"By passes to {race.target} of {of}, {workers} (a scale model, not your net), {first.name} is "
            f"first: {first.passes:.2g} passes, {units.spoken(first.to_target)}.")
    if close := [s.name for s in known[1:] if s.to_target < 1.2 * first.to_target]:
        text += f" Within a fifth of it, which passes of another net may reverse: {', '.join(close)}."
    return text
