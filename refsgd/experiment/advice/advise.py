"""Choosing a strategy for a cluster: predicted times by kind of strategy, against synchronous allreduce.

Passes over the data are comparable only within one kind of strategy, so strategies of different kinds are
never ranked against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from refsgd.cluster.devices import written
from refsgd.cluster.machine import Machine
from refsgd.cluster.prices import left, on_devices, paces, priced
from refsgd.cluster.units import counted
from refsgd.experiment.advice.candidates import (
    CANDIDATES,
    COSTS,
    EVIDENCE,
    GROUPS,
    TRIES,
    Candidate,
    group_of,
)
from refsgd.experiment.advice.strategies import BY_SPEED, Case, Plan, Strategy, splits
from refsgd.experiment.arguments import Usage, check_speeds, check_whole
from refsgd.problems.data import apportion
from refsgd.trace.schema import json_text

#: pages of the documentation that explain a column, by its name
PAGES = {"links": "docs/explanation/links", "idle": "docs/howto/results",
         "staleness": "docs/explanation/staleness",
         "bytes": "docs/howto/results", "ranking": "tutorials/14-which-strategy"}


@dataclass(frozen=True)
class Advice:
    """Strategies by group, the fastest first; what to try; where another becomes the fastest."""

    machine: Machine
    strategies: tuple[Strategy, ...]  #: those that fit, by group and seconds of a pass; then the rejected
    #: the reference of `factor`: the fastest allreduce that fits, with equal work for all workers; if none
    #: fits, the fastest of the first group that has any
    baseline: Strategy | None
    #: the recommendation, the baseline and its variants, and the fastest that fits in each of `TRIES`
    tries: tuple[Strategy, ...]
    recommendation: str  #: what to start with, and the gain and risk of another kind; "" if nothing fits
    crossings: tuple[str, ...]  #: where a strategy stops being the fastest or within 2 % of it
    savings: tuple[str, ...]  #: what overlap and compression save, and what they cost
    unknown: tuple[str, ...]

    def to_json(self) -> str:
        """As JSON, format 1."""
        return json_text({"format": 1, "machine": self.machine.to_json(),
                           "recommendation": self.recommendation,
                           "baseline": self.baseline.name if self.baseline else None,
                           "strategies": [asdict(s) for s in self.strategies],
                           "crossings": self.crossings, "savings": self.savings,
                           "unknown": self.unknown,
                           "tries": [s.name for s in self.tries], "pages": PAGES})


GAIN = 1.02  #: the factor by which another strategy must be faster to be preferred; below, formulas tie


def _fastest(some: Sequence[Strategy], gain: float = GAIN) -> Strategy | None:
    """The first that no other beats by more than `gain`."""
    least = min((s.seconds for s in some), default=0.0)
    return next((s for s in some if s.seconds <= gain * least), None)


def _of_kind(some: Sequence[Strategy], algorithms: Sequence[str]) -> list[Strategy]:
    """The strategies of these algorithms, or of all compressed ones if these compress."""
    group = group_of(Candidate(algorithms[0], {}))
    return [s for s in some if s.group == group and (s.algorithm in algorithms or group == "compressed")]


def _savings(some: Sequence[Strategy]) -> Iterable[str]:
    """What each strategy saves by its exchange."""
    by_name = {s.name: s for s in some}
    for s in some:
        if (plain := by_name.get(s.plain)) and not s.variant:
            yield (f"{s.name}: {s.seconds:.4g} s instead of {plain.seconds:.4g} "
                   f"(x{s.seconds / plain.seconds:.2f}), for {s.costs or 'nothing'}")


def _recommended(fitting: Sequence[Strategy], base: Strategy) -> Strategy:
    """The strategy to start with: the baseline, unless another of its group is at least 5 % faster."""
    # with unequal workers, a backup worker would drop the slow worker's gradients again and again
    even = not any(s.variant for s in fitting)
    same = [s for s in fitting if s.group == base.group and (even or s.algorithm != "backup-workers")]
    return _fastest([base, *same], 1.05) or base


def _recommendation(fitting: Sequence[Strategy], base: Strategy) -> str:
    best = _recommended(fitting, base)
    strategy, took = best.name.removesuffix(f", {best.variant}"), f"{best.seconds:.4g} s a pass"
    if best.variant.startswith("without "):
        slow = best.variant.replace("without worker", "the slow worker").removeprefix("without ")
        than = f"{base.seconds:.4g}" + (f" with {base.name}" if strategy != base.name else "")
        start = (f"Start with {strategy} on {counted(best.workers, 'node')}, leaving out {slow}: {took} "
                 f"instead of {than}.")
    else:
        start = f"Start with {best.name}: {took} (" + ("the baseline)" if best is base
                                                       else f"x{best.factor:.2f} of {base.name})")
        start += ", every gradient computed on the newest parameters." if best.group == "one model" else "."
    if even := next((s for s in fitting if s.name == f"{strategy}, work by speed"
                     and s.seconds < best.seconds), None):
        start += (f" Batches in proportion to speed, {even.batch}, take {even.seconds:.4g} s; in PyTorch "
                  "they need a custom sampler.")
    other = _fastest([s for s in fitting if s.group != base.group and s.seconds * GAIN < best.seconds])
    if other is None:
        return (start + " No strategy of another kind is faster here, so a loss of accuracy would buy "
                "nothing.")
    name = other.name + "," * bool(other.variant)
    found = [f", as {e.study} {e.part} found" for e in EVIDENCE.get(other.algorithm, ()) if e.against]
    return (f"{start} {name} takes {other.seconds:.4g} s (x{other.factor:.2f}), but {COSTS[other.group]}, "
            f"so a pass may improve accuracy less{''.join(found[:1])}: compare accuracies after equal time "
            "before you switch.")


UNKNOWN = (
    "how many passes a strategy needs to reach an accuracy, and at which learning rate: no formula exists; "
    "runs and studies measure it on small nets",
    "congestion, lost packets, failing nodes: links are assumed to serve at full rate (for failures see "
    "`refsgd run --fault`)")


def advise(machine: Machine, *, parameters: int, workers: int, batch: int = 32, images: int = 50_000,
           servers: int = 1, activations: float = 0.0, memory_limit: float | None = None,
           staleness_limit: float | None = None, candidates: Sequence[Candidate] = CANDIDATES,
           overlap: bool = True, described: str = "", work: float = 0.0, net: str = "") -> Advice:
    """Compare strategies for a model on a cluster by the predicted time of a pass over the data; `work`
    counts the operations of an image's gradient, which devices price; `net` names the model, whose layers say
    what may `overlap`.

    >>> found = advise(Machine(compute="fixed(0.2)", bandwidth=1.25e9), parameters=25_557_032, workers=8)
    >>> found.baseline.name
    'allreduce ring'
    >>> found.recommendation.split(":")[0]
    'Start with allreduce ring'
    """
    check_whole(1, parameters=parameters, workers=workers, batch=batch, images=images, servers=servers)
    _check_machine(machine, workers, work)
    if memory_limit is not None and not memory_limit > 0:
        raise Usage(f"memory of {memory_limit:g} bytes; expected a number > 0")
    if staleness_limit is not None and not staleness_limit >= 0:
        raise Usage(f"mean staleness of at most {staleness_limit:g} updates; expected a number >= 0")
    plain = Case("", machine, parameters, workers, batch, images, servers, activations, described,
                 overlap, devices=machine if on_devices(machine) else None, work=work, net=net)
    plain = _timed(plain, [batch] * workers)

    def judged(plans: Iterable[Plan]) -> list[Strategy]:
        return [_limited(plan.strategy(), memory_limit, staleness_limit) for plan in plans if plan.metrics]

    plans = [Plan(c, plain) for c in candidates]
    found = judged(plans)
    if not found:
        raise Usage(f"no formula covers a strategy on this machine: {machine}; `refsgd compare --runtime "
                    "simulator` simulates them")
    fits = [s for s in found if not s.rejected]
    divided = [] if fits or memory_limit is None or not net else splits(plain)
    found += judged(divided)
    fits = [s for s in found if not s.rejected]
    base = _fastest(_of_kind(fits, ["allreduce"])) or next(
        (_fastest(some) for name in GROUPS if (some := [s for s in fits if s.group == name])), None)
    fits.sort(key=lambda s: s is not base)  # among ties, the baseline is preferred
    names = {t.name for members in TRIES if (t := _fastest(_of_kind(fits, members)))}
    if base:
        names.add(base.name)
    variants = _variants(plain)
    found += judged(Plan(plan.candidate, case) for case in variants for plan in plans if plan.name in names)
    found = [replace(s, factor=s.seconds / base.seconds if base else 1.0) for s in found]
    fits = [s for s in found if not s.rejected]
    base = next((s for s in fits if base and s.name == base.name), None)
    if base:
        names |= {_recommended(fits, base).name, *(f"{base.name}, {case.variant}" for case in variants)}
    order = list(GROUPS)
    ranked = sorted(found, key=lambda s: (bool(s.rejected), order.index(s.group), s.seconds))
    tried = sorted((s for s in ranked if s.name in names),
                   key=lambda s: (order.index(s.group), bool(s.variant)))
    unknown = UNKNOWN if net and overlap else (*UNKNOWN, "whether the exchange overlaps with your backward "
                                               "pass: times here add computing and exchange")
    said = "No node can hold the whole model and its batch, so the model is divided. " if divided else ""
    return Advice(plain.machine, tuple(ranked), base, tuple(tried),
                  said + _recommendation(fits, base) if base else "",
                  tuple(_crossings(plain, [plan.candidate for plan in plans
                                           if plan.name in {s.name for s in fits}])),
                  tuple(_savings(ranked)), unknown)


def _timed(case: Case, batches: Sequence[int]) -> Case:
    """The case with gradient times for these batches in place of devices."""
    if case.devices is None:
        return case
    return case._replace(machine=priced(case.devices, [case.work * b for b in batches], 4 * case.parameters))


def _variants(case: Case) -> list[Case]:
    """The cluster without its slowest workers, and with batches by speed; none if speeds are equal."""
    try:
        fast = paces(case.devices or case.machine, case.workers)
    except ValueError:  # times and devices are not comparable
        return []
    slow = [i for i, v in enumerate(fast) if v == min(fast)]
    if len(slow) == case.workers:
        return []
    kept = [i for i, v in enumerate(fast) if v > min(fast)]
    without = f"without worker{slow[0]}" if len(slow) == 1 else f"without the {len(slow)} slowest"
    found = [case._replace(variant=without, machine=left(case.machine, kept, 0.0), workers=len(kept),
                           devices=case.devices and left(case.devices, kept, 0.0))]
    batches = apportion(case.workers * case.batch, fast)
    if min(batches):
        shared = case._replace(variant=BY_SPEED, batches=tuple(batches))
        if case.devices is None:  # each worker's speed for a gradient of its own batch, as in a command
            own = tuple(float(f"{v * case.batch / b:.6g}") for v, b in zip(case.speeds, batches))
            shared = shared._replace(machine=case.machine.with_(speeds=own))
        found.append(_timed(shared, batches))
    return found


def _check_machine(machine: Machine, workers: int, work: float) -> None:
    """Refuse a machine that formulas do not cover."""
    check_speeds(machine, workers)
    if machine.compute is None:
        raise Usage("the machine has no distribution of compute times; expected --compute DIST, or --flops "
                    "and --rate")
    if machine.loads:
        raise Usage("advice compares predicted times, and formulas do not cover loads; expected a machine "
                    "without loads")
    if on_devices(machine) and not work > 0:
        raise Usage(f"compute {written(machine.compute)} without the model's work, which it prices; expected "
                    "--net, or --parameters and --flops")


def _limited(s: Strategy, memory_limit: float | None, staleness_limit: float | None) -> Strategy:
    why = [s.rejected] if s.rejected else []
    if memory_limit is not None and s.memory > memory_limit:
        unit, scale = ("GB", 1e9) if memory_limit >= 1e9 else ("MB", 1e6)
        why.append(f"needs {s.memory / scale:.2f} {unit} of memory, {memory_limit / scale:.2f} {unit} "
                   "available")
    if staleness_limit is not None and (s.staleness is None or s.staleness > staleness_limit):
        why.append("its staleness is unknown" if s.staleness is None
                   else f"mean staleness {s.staleness:.1f} updates, at most {staleness_limit:g} allowed")
    return replace(s, rejected="; ".join(why))


def _crossings(case: Case, candidates: Sequence[Candidate]) -> list[str]:
    """Where, within a group, another candidate becomes the fastest, along workers, bandwidth and latency.

    SSP is left out because it lies between BSP and ASP, and P3 because it takes long to evaluate.  A single
    server is left out if servers on all nodes, which share its load, are a candidate.
    """
    machine = case.machine
    spread = {c.algorithm for c in candidates if c.colocated} if case.servers == 1 else set()
    bandwidth = machine.bandwidth if np.isfinite(machine.bandwidth) else 1e10
    axes: dict[str, list[float]] = {
        "workers": [2, 4, 8, 16, 32, 64], "bandwidth": list(bandwidth * np.geomspace(0.01, 100, 5)),
        "latency": list((machine.latency or 1e-5) * np.geomspace(0.01, 1000, 6))}
    out = []
    for group in GROUPS:
        inside = [c for c in candidates if group_of(c) == group and c.algorithm != "ssp"
                  and "layout" not in c.exchange and (c.colocated or c.algorithm not in spread)]
        if isinstance(machine.compute, tuple):  # times of these workers only
            axes.pop("workers", None)
        for axis, values in axes.items() if len(inside) > 1 else ():
            out += [f"{group}: {text}" for text in _along(axis, values, case, inside)]
    return out


def _along(axis: str, values: Sequence[float], case: Case, candidates: Sequence[Candidate]) -> list[str]:
    """Changes of the fastest candidate along one quantity, found on a grid and refined by bisection."""

    by_name = {Plan(c, case).name: c for c in candidates}

    def rates(x: float, names: Iterable[str]) -> dict[str, float]:
        some = [by_name[name] for name in names]
        if axis == "workers":
            return _rates(some, case._replace(workers=int(x)))
        return _rates(some, case._replace(machine=case.machine.with_(**{axis: float(x)})))

    out: list[str] = []
    before: tuple[str, float] | None = None
    for x in values:
        # the fastest so far decides whether others can be
        found = rates(x, sorted(by_name, key=lambda name: before is None or name != before[0]))
        if not found:
            continue
        best = max(found, key=found.__getitem__)
        if before is None or found[best] <= GAIN * found.get(before[0], 0.0):
            before = before[0] if before else best, x
            continue
        low, high = before[1], x
        for _ in range(4):
            middle = float(np.sqrt(low * high)) if axis != "workers" else (low + high) // 2
            then = rates(middle, [name for name in by_name if name in (before[0], best)])
            if then.get(best, 0.0) > GAIN * then.get(before[0], 0.0):
                high = middle
            else:
                low = middle
        out.append(f"{before[0]} up to {_amount(axis, low)}, {best} from {_amount(axis, high)} on")
        before = best, x
    return out


def _rates(candidates: Sequence[Candidate], case: Case) -> dict[str, float]:
    """Passes per second of the candidates that a formula covers and whose messages do not pile up, from short
    runs.

    Stops at one that is as fast as workers that never communicate: no other can be faster unless it drops
    gradients.
    """
    out, most = dict[str, float](), np.inf
    if not any("backups" in c.options for c in candidates):
        alone = Plan(Candidate("independent", {}), case, 20)
        most = 1 / alone.seconds if alone.metrics else np.inf
    for c in candidates:
        plan = Plan(c, case, 20)
        if plan.metrics and not plan.piling():
            out[plan.name] = 1 / plan.seconds
            if out[plan.name] * GAIN >= most:
                break
    return out


def _amount(axis: str, x: float) -> str:
    """A value of an axis of `_crossings`, in words."""
    return {"workers": f"{x:g} workers", "bandwidth": f"a bandwidth of {x / 1e9:.3g} GB/s",
            "latency": f"a latency of {1e3 * x:.2g} ms"}[axis]
