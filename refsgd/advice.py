"""Which strategy fits a cluster: predicted times by kind of strategy, against synchronous allreduce; what studies found of accuracy.

Times, idleness, staleness, bytes and memory are formulas of `refsgd.theory`; statements on accuracy are verdicts of
`benchmarks.studies`, named so that you can look them up and repeat them.  A pass over the data teaches equally much only
within one kind, so strategies of different kinds are never ranked against each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from refsgd import theory
from refsgd.algorithms import CATALOGUE
from refsgd.arguments import Usage, check_speeds, options_of
from refsgd.experiment import has_servers
from refsgd.machine import Machine
from refsgd.theory import memory, overlap, stability
from refsgd.theory.prediction import DomainError, Prediction
from refsgd.theory.stragglers import mean_of_maximum
from refsgd.units import written


class Candidate(NamedTuple):
    """A strategy that is considered: an algorithm, its options, and where servers are."""

    algorithm: str
    options: dict[str, Any]
    collocated: bool = False  #: a server on every worker's node instead of nodes of their own


class Evidence(NamedTuple):
    """A claim of a study that speaks for or against a strategy's accuracy."""

    study: str
    part: str
    says: str
    when: str  #: what was kept equal while workers were added
    against: bool = True  #: whether it speaks against the strategy


#: what is considered; of strategies that tie, an earlier one is preferred
CANDIDATES = (
    Candidate("allreduce", {"collective": "ring"}), Candidate("allreduce", {"collective": "halving-doubling"}), Candidate("bsp", {}),
    Candidate("bsp", {}, True), Candidate("backup-workers", {"backups": 1}), Candidate("asp", {}), Candidate("asp", {}, True),
    Candidate("ssp", {"staleness": 3}), Candidate("ssp", {"staleness": 3}, True), Candidate("dgc", {"ratio": 0.01}),
    Candidate("local-sgd", {"period": 8}), Candidate("easgd", {"period": 4}), Candidate("easgd", {"period": 4}, True),
    Candidate("gosgd", {"p": 0.1}), Candidate("adpsgd", {}), Candidate("dpsgd", {}), Candidate("sgp", {}))

#: what gradients are computed on: strategies of one group differ in time, not in what they compute at a given number of updates
GROUPS = {"one model": ("bsp", "backup-workers", "allreduce"), "stale gradients": ("asp", "ssp"), "compressed": ("dgc",),
          "replicas": ("easgd", "local-sgd", "gosgd", "adpsgd", "dpsgd", "sgp")}

#: why a pass may teach less than one of synchronous SGD, by group
COSTS = {"stale gradients": "it applies stale gradients", "compressed": "it delays most of each gradient",
         "replicas": "its replicas differ"}

#: whose exchange can begin during the backward pass: that of whole gradients, for which all workers wait
OVERLAPPING = ("bsp", "allreduce", "dgc")

#: what PyTorch has for it, by algorithm; for others it has nothing built in
PYTORCH = {
    "allreduce": "torch.nn.parallel.DistributedDataParallel (DDP), which exchanges buckets of bucket_cap_mb=25 MB during the backward pass; "
                 "for larger batches accumulate gradients under ddp.no_sync()",
    "bsp": "DistributedDataParallel (DDP) computes the same, with allreduce instead of servers",
    "dgc": "ddp.register_comm_hook(PowerSGDState(...), powerSGD_hook), from torch.distributed.algorithms.ddp_comm_hooks; low rank instead "
           "of the largest entries",
    "local-sgd": "torch.distributed.optim.PostLocalSGDOptimizer with PeriodicModelAverager(period={period}), and post_localSGD_hook on DDP"}

#: of each of these the fastest is worth a try: replicas differ in what they learn, so not only the fastest of them
TRIES = (*(members for name, members in GROUPS.items() if name != "replicas"), ("local-sgd",), ("easgd",), ("gosgd", "adpsgd", "dpsgd", "sgp"))

STALE = Evidence("jia2020", "figure7", "asynchronous accuracy falls from 4 to 12 workers", "equal updates of each worker")
DRIFT = Evidence("ko2021", "table3", "SSP with s = 10, EASGD and GoSGD fall with the number of workers", "equal passes over the images in all")
FLAT = Evidence("ko2021", "table3", "BSP, ASP and AD-PSGD hardly depend on the number of workers", "equal passes over the images in all", False)
#: what studies found of an algorithm's accuracy
EVIDENCE: dict[str, tuple[Evidence, ...]] = {
    "bsp": (FLAT,), "asp": (STALE, FLAT), "adpsgd": (FLAT,), "ssp": (STALE,), "easgd": (DRIFT,), "gosgd": (DRIFT,)}

#: pages of the documentation that explain a figure, by its name
PAGES = {"links": "docs/explanation/links", "idle": "docs/howto/results", "staleness": "docs/explanation/staleness",
         "bytes": "docs/howto/results", "ranking": "tutorials/14-which-strategy"}

#: figures of a strategy by the names of their closed forms
SHOWN = {"images_per_second": "images_per_second", "seconds": "seconds", "idle": "idle_ratio", "staleness": "staleness_mean", "bytes": "bytes_per_iteration"}


@dataclass(frozen=True)
class Strategy:
    """One candidate with its predicted figures.

    Attributes
    ----------
    name, group : str
        What it is called (K servers, K=n: one on each worker's node); which of `GROUPS` it belongs to.
    workers : int
        That take part.
    variant : str
        "" with equal work for all workers; else "without ..." the slowest, or "work by speed": batches in proportion to speed.
    command, note : str
        The command that tries it, and what to expect of its run; "" if that is this strategy's pass.
    pytorch : str
        What PyTorch has for it; "" if there is nothing built in.
    page : str
        The page of the documentation that explains it.
    seconds : float
        A pass over the data: until every worker has finished its equal share.
    factor : float
        `seconds` relative to the baseline's.
    images_per_second : float
        While all workers are busy, without images whose gradients are dropped.
    idle : float or None
        1 - (time in `Compute`)/(elapsed), mean over workers, of a run of equal steps: `idle_ratio`.
    run_idle : float or None
        The same without overlap, which is what the command's run reports.
    staleness, bytes : float or None
        Mean, in updates; per iteration, sent by all nodes.  None where no formula exists.
    memory : float
        Of the fullest node [bytes].
    rate : float or None
        Largest stable learning rate at that staleness, relative to the synchronous one (`stability.constant_delay`);
        None for replicas and compressed gradients, which that formula does not cover.
    kind : str
        exact, approximation or bound: of the time.
    binding : str
        The largest cause of idleness; "nothing" if none takes 2 % of the time.
    overlapped : bool
        Whether its exchange begins during the backward pass.
    evidence : sequence of str
        What studies found: "study part: claim (what was kept equal)".
    formulas : dict of str to str
        The formula of each figure with its source, as `refsgd.theory` names them.
    rejected : str
        Why it does not fit here; "" if it does.
    """

    name: str
    group: str
    workers: int
    variant: str
    command: str
    note: str
    pytorch: str
    page: str
    seconds: float
    factor: float
    images_per_second: float
    idle: float | None
    run_idle: float | None
    staleness: float | None
    bytes: float | None
    memory: float
    rate: float | None
    kind: str
    binding: str
    overlapped: bool
    evidence: tuple[str, ...]
    formulas: dict[str, str]
    rejected: str = ""

    @property
    def algorithm(self) -> str:
        """Its name in the catalogue."""
        return self.name.split()[0]


@dataclass(frozen=True)
class Advice:
    """Strategies by group, the fastest of each first; what is worth a try; where the fastest changes; what is not known.

    Attributes
    ----------
    strategies : tuple of Strategy
        Those that fit, by group and seconds of a pass; the rejected after them.
    baseline : Strategy or None
        What `factor` refers to: the fastest allreduce that fits, with equal work for all workers; if none fits, the fastest
        of the first group that has any.
    tries : tuple of Strategy
        What is recommended, the baseline and its variants, and the fastest that fits of each of `TRIES`; by group.
    recommendation : str
        What to start with, whether batches by speed would be faster, and what another kind of strategy would gain at which
        risk; "" if nothing fits.
    crossings : tuple of str
        In words: up to where a strategy is the fastest or within 2 % of it, and which one is from there on.
    unknown : tuple of str
    """

    machine: Machine
    strategies: tuple[Strategy, ...]
    baseline: Strategy | None
    tries: tuple[Strategy, ...]
    recommendation: str
    crossings: tuple[str, ...]
    unknown: tuple[str, ...]

    def to_json(self) -> str:
        """As JSON, format 1."""
        return json.dumps({"format": 1, "machine": self.machine.to_json(), "recommendation": self.recommendation,
                           "baseline": self.baseline.name if self.baseline else None, "strategies": [asdict(s) for s in self.strategies],
                           "crossings": self.crossings, "unknown": self.unknown, "tries": [s.name for s in self.tries], "pages": PAGES}, indent=1)


GAIN = 1.02  #: by how much another strategy must be faster before it is preferred: below, formulas tie


def _fastest(some: Sequence[Strategy], gain: float = GAIN) -> Strategy | None:
    """The first that no other beats by more than `gain`."""
    least = min((s.seconds for s in some), default=0.0)
    return next((s for s in some if s.seconds <= gain * least), None)


def _recommended(fitting: Sequence[Strategy], base: Strategy) -> Strategy:
    """What to start with: the baseline, unless another of its group is at least 5 % faster."""
    even = not any(s.variant for s in fitting)  # else a backup drops the slow worker's gradients again and again
    same = [s for s in fitting if s.group == base.group and (even or s.algorithm != "backup-workers")]
    return _fastest([base, *same], 1.05) or base


def _recommendation(fitting: Sequence[Strategy], base: Strategy) -> str:
    best = _recommended(fitting, base)
    strategy, took = best.name.removesuffix(f", {best.variant}"), f"{best.seconds:.4g} s a pass"
    if best.variant.startswith("without "):
        slow = best.variant.replace("without worker", "the slow worker").removeprefix("without ")
        start = (f"Start with {strategy} on {best.workers} nodes, leaving out {slow}: {took} instead of {base.seconds:.4g}"
                 + (f" with {base.name}" if strategy != base.name else "") + ".")
    else:
        start = f"Start with {best.name}: {took} (" + ("the baseline)" if best is base else f"x{best.factor:.2f} of {base.name})")
        start += ", every gradient computed on the newest parameters." if best.group == "one model" else "."
    if (even := next((s for s in fitting if s.name == f"{strategy}, work by speed" and s.seconds < best.seconds), None)):
        start += f" Batches in proportion to speed take {even.seconds:.4g} s but need a sampler of your own."
    other = _fastest([s for s in fitting if s.group != base.group and s.seconds * GAIN < best.seconds])
    if other is None:
        return start + " No strategy of another kind is faster here, so there is nothing to gain for a loss of accuracy."
    name, found = other.name + "," * bool(other.variant), [f", as {e.study} {e.part} found" for e in EVIDENCE.get(other.algorithm, ()) if e.against]
    return (f"{start} {name} takes {other.seconds:.4g} s (x{other.factor:.2f}), but {COSTS[other.group]}, so a pass may teach less"
            f"{''.join(found[:1])}: compare the accuracies reached in equal time before you switch.")


UNKNOWN = (
    "how many passes a strategy needs to reach an accuracy, and at which learning rate: no formula exists; runs and studies measure it on "
    "small nets",
    "congestion, lost packets, failing nodes: links serve at full rate (see `refsgd run --fault` for failures)")


def advise(machine: Machine, *, parameters: int, workers: int, batch: int = 32, images: int = 50_000, servers: int = 1,
           activations: float = 0.0, memory_limit: float | None = None, staleness_limit: float | None = None,
           candidates: Sequence[Candidate] = CANDIDATES, layers: Sequence[tuple[int, float]] = (), described: str = "") -> Advice:
    """Compare strategies for a model on a cluster by the predicted time of a pass over the data.

    Examples
    --------
    >>> found = advise(Machine(compute="fixed(0.2)", bandwidth=1.25e9), parameters=25_557_032, workers=8)
    >>> found.baseline.name
    'allreduce ring'
    >>> found.recommendation.split(":")[0]
    'Start with allreduce ring'
    """
    for name, value in (("parameters", parameters), ("workers", workers), ("batch", batch), ("images", images), ("servers", servers)):
        if value < 1:
            raise Usage(f"{name} {value}; expected at least 1")
    check_speeds(machine, workers)
    if memory_limit is not None and not memory_limit > 0:
        raise Usage(f"memory of {memory_limit:g} bytes; expected a number > 0")
    if staleness_limit is not None and not staleness_limit >= 0:
        raise Usage(f"mean staleness of at most {staleness_limit:g} updates; expected a number >= 0")
    if machine.compute is None:
        raise Usage("the machine has no law of compute times; expected --compute LAW, or --flops and --rate")
    plain = _Case("", machine, parameters, workers, batch, images, servers, activations, described, tuple(layers))

    def judged(some: Sequence[Candidate], case: _Case) -> list[Strategy]:
        return [_limited(s, memory_limit, staleness_limit) for c in some if (s := _strategy(c, case)) is not None]

    found = judged(candidates, plain)
    fits = [s for s in found if not s.rejected]
    base = _fastest([s for s in fits if s.algorithm == "allreduce"]) or next(
        (_fastest(some) for name in GROUPS if (some := [s for s in fits if s.group == name])), None)
    fits.sort(key=lambda s: s is not base)  # which is preferred to what ties with it
    tries = [t for members in TRIES if (t := _fastest([s for s in fits if s.algorithm in members]))]
    varied = [c for c in candidates if _name(c, plain) in {s.name for s in tries} | {base.name if base else ""}]
    variants = _variants(plain)
    found += [s for case in variants for s in judged(varied, case)]
    found = [replace(s, factor=s.seconds / base.seconds if base else 1.0) for s in found]
    fits, names = [s for s in found if not s.rejected], {s.name for s in tries}
    base = next((s for s in fits if base and s.name == base.name), None)
    if base:
        names |= {base.name, _recommended(fits, base).name, *(f"{base.name}, {case.variant}" for case in variants)}
    order = list(GROUPS)
    ranked = tuple(sorted(found, key=lambda s: (bool(s.rejected), order.index(s.group), s.seconds)))
    tried = tuple(sorted((s for s in ranked if s.name in names), key=lambda s: (order.index(s.group), bool(s.variant))))
    unknown = UNKNOWN if layers else (*UNKNOWN, "whether your backward pass hides its exchange: times here add computing and exchange")
    return Advice(machine, ranked, base, tried, _recommendation(fits, base) if base else "",
                  tuple(_crossings(plain, [c for c in candidates if _name(c, plain) in {s.name for s in fits}])), unknown)


class _Case(NamedTuple):
    """What is asked: a cluster with its division of work, and the sizes of the model and of a pass."""

    variant: str
    machine: Machine
    parameters: int
    workers: int
    batch: int
    images: int
    servers: int
    activations: float
    described: str
    layers: tuple[tuple[int, float], ...]
    largest: float = 1.0  #: batch of the fastest worker, in mean batches

    @property
    def speeds(self) -> list[float]:
        return [self.machine.speed(f"worker{i}") for i in range(self.workers)]


def _variants(case: _Case) -> list[_Case]:
    """The cluster without its slowest workers, and with batches in proportion to speed; none where speeds are equal."""
    speeds, law = case.speeds, case.machine.compute
    slow = [i for i, v in enumerate(speeds) if v == min(speeds)]
    if len(slow) == case.workers or law is None:
        return []
    kept = tuple(v for v in speeds if v > min(speeds))
    mean = sum(speeds) / case.workers
    without = f"without worker{slow[0]}" if len(slow) == 1 else f"without the {len(slow)} slowest"
    return [case._replace(variant=without, machine=case.machine.with_(speeds=kept), workers=len(kept)),
            case._replace(variant="work by speed", machine=case.machine.with_(speeds=(1.0,) * case.workers, compute=law.scaled(1 / mean)),
                          largest=max(speeds) / mean)]


def _servers(c: Candidate, case: _Case) -> int:
    """K; 0 without a server.  Backup workers have one, however many are asked for."""
    if c.algorithm == "backup-workers":
        return 1
    if not has_servers(CATALOGUE[c.algorithm]):
        return 0
    return case.workers if c.collocated else case.servers


def _name(c: Candidate, case: _Case) -> str:
    """The algorithm with its options, servers where it has any, and how work is divided if not equally."""
    options = "".join(f" {v}" if isinstance(v, str) else f" {k}={v:g}" for k, v in c.options.items())
    servers = "n" if c.collocated else _servers(c, case)
    return f"{c.algorithm}{options}" + (f" K={servers}" if servers else "") + (f", {case.variant}" if case.variant else "")


LONGEST = 100  #: steps of a run that is predicted and printed as a command; a longer pass continues at its pace


def _steps(case: _Case, most: int = LONGEST) -> int:
    """Steps of each worker in the run that is predicted: a pass, if that is not too long."""
    return min(max(1, round(case.images / (case.workers * case.batch))), most)


def _figures(c: Candidate, case: _Case, steps: int, **changes: Any) -> dict[str, Any] | None:
    """Its closed forms; None outside their domain, or where they say nothing of speed."""
    defaults = {name: p.default for name, p in options_of(CATALOGUE[c.algorithm]).items()}
    given = {"machine": case.machine.with_(collocated=c.collocated), "nbytes": 4 * case.parameters, **changes}
    try:
        found = theory.predict(c.algorithm, workers=case.workers, servers=max(_servers(c, case), 1), batch=case.batch, steps=steps,
                               options={**defaults, **c.options}, **given)
    except DomainError:
        return None
    return dict(found) if "images_per_second" in found else None


class _Time(NamedTuple):
    """A pass, and how many times faster the exchange's overlap makes it."""

    seconds: float
    gain: float
    exposed: float  #: seconds of an iteration in which an overlapped exchange is waited for


def _time(c: Candidate, case: _Case, figures: dict[str, Any], steps: int) -> _Time:
    """Seconds of a pass in equal shares, from a run of some steps: overlapped where the layers are known and that is faster."""
    whole, gain, exposed = case.images / (case.workers * case.batch * _used(c, case)), 1.0, 0.0
    if case.layers and c.algorithm in OVERLAPPING and case.workers > 1:
        serial = figures["seconds_per_iteration"]
        still = case.machine.with_(collocated=c.collocated, compute="fixed(0)", update=None)

        def exchange(nbytes: float) -> float:
            found = _figures(c, case, 1, machine=still, nbytes=int(nbytes))
            return float(found["seconds_per_iteration"].value) if found else float("inf")

        slowest = mean_of_maximum([law for i in range(case.workers) if (law := case.machine.law(f"worker{i}", "gradient"))])
        parameters, flops = zip(*case.layers)
        update = float(serial.terms.get("update", 0.0))
        step = overlap.bucketed(parameters, flops, slowest, exchange).value + update
        if step < serial.value:
            gain, exposed = float(serial.value) / step, step - slowest - update
    return _Time(float(figures["seconds"].value) / steps / gain * whole, gain, exposed)


def _used(c: Candidate, case: _Case) -> float:
    """Share of the gradients that count: backup workers drop those of the last."""
    return 1 - min(int(c.options.get("backups", 0)), case.workers - 1) / case.workers


def _strategy(c: Candidate, case: _Case) -> Strategy | None:
    steps = _steps(case)
    figures = _figures(c, case, steps)
    if not figures:
        return None

    def value(key: str) -> float | None:
        return float(figures[key].value) if key in figures else None

    time, used, tau, run_idle = _time(c, case, figures, steps), _used(c, case), value("staleness_mean"), value("idle_ratio")
    idle = None if run_idle is None else max(1 - (1 - run_idle) * time.gain, 0.0)
    formulas = {name: "; ".join(filter(None, (figures[key].formula, figures[key].source))) for name, key in SHOWN.items() if key in figures}
    formulas["seconds"] += "; an iteration: " + figures["seconds_per_iteration"].formula
    if time.gain > 1:
        formulas["seconds"] += "; overlapped: sum f + max_l (sum_{j>=l} b_j + sum_{j<=l} c_j) of buckets"
    if used < 1:
        formulas["images_per_second"] += f"; x {used:g}: the gradients that count"
    unwaited = _group(c.algorithm) in ("one model", "stale gradients")
    kind = "approximation" if time.gain > 1 else figures["seconds"].kind
    return Strategy(
        _name(c, case), _group(c.algorithm), case.workers, case.variant, _command(c, case, steps), _note(c, case, time, figures, steps), _pytorch(c, case),
        f"docs/algorithms/{c.algorithm}", time.seconds, 1.0, used * time.gain * float(figures["images_per_second"].value), idle, run_idle, tau,
        value("bytes_per_iteration"), _memory(c, case), stability.constant_delay(round(tau)).value / 2 if unwaited and tau is not None else None,
        kind, _binding(figures, time), time.gain > 1, tuple(f"{e.study} {e.part}: {e.says} ({e.when})" for e in EVIDENCE.get(c.algorithm, ())),
        formulas, _piling(c, case))


def _binding(figures: dict[str, Any], time: _Time) -> str:
    """The largest cause of idleness; "nothing" if none takes 2 % of the time."""
    step: Prediction = figures["seconds_per_iteration"]
    causes = {k: v for k, v in step.terms.items() if not k.startswith(("compute", "standard error"))}
    whole = step.value / time.gain
    if time.gain > 1:
        causes = {"transfer": time.exposed, "straggling": whole - time.exposed - step.terms["compute E[T]"] - step.terms.get("update", 0.0)}
    elif "idle_by_cause" in figures:
        causes, whole = dict(figures["idle_by_cause"].terms), 1.0
    return max(causes, key=lambda k: causes[k]) if causes and max(causes.values()) > 0.02 * whole else "nothing"


def _note(c: Candidate, case: _Case, time: _Time, figures: dict[str, Any], steps: int) -> str:
    """What to expect of the command's run where that is not the strategy's pass."""
    whole = max(1, round(case.images / (case.workers * case.batch * _used(c, case))))
    differs = [f"{case.workers} equal workers stand in for batches by speed"] if case.variant == "work by speed" else []
    differs += ["there is no overlap"] if time.gain > 1 else []
    if steps == whole and not differs:
        return ""
    expect = f"{steps} steps" if steps == whole else f"{steps} of {whole} steps"
    expect += f", {float(figures['seconds'].value):.4g} s" + (f", idle {float(figures['idle_ratio'].value):.0%}" if "idle_ratio" in figures else "")
    return expect + (f"; differs from the row{' twice' * (len(differs) > 1)}: {', and '.join(differs)}" if differs else "")


def _pytorch(c: Candidate, case: _Case) -> str:
    """What PyTorch has for the algorithm and the division of work."""
    if c.algorithm not in PYTORCH or not case.variant:
        return PYTORCH.get(c.algorithm, "").format(**c.options)
    if case.variant == "work by speed":
        return "the same, with a sampler of your own (DistributedSampler deals equal shares) and each loss weighted by its share of the images"
    return f"the same, launched on the other {case.workers} nodes"


def _piling(c: Candidate, case: _Case) -> str:
    """Why a strategy that waits for nobody is out: some link gets more than it can carry, so messages grow older without bound.

    GoSGD: worker i sends p/T_i models a second, and hears of the others p/(n - 1) sum 1/T_j.
    """
    law = case.machine.compute
    if c.algorithm != "gosgd" or case.workers < 2 or law is None:
        return ""
    own = np.asarray(case.speeds) / law.mean
    busiest = c.options["p"] * 4 * case.parameters / case.machine.bandwidth * max(own.max(), (own.sum() - own.min()) / (case.workers - 1))
    return f"messages pile up: the busiest link would have to carry {busiest:.3g} times its bandwidth" if busiest >= 1 else ""


def _memory(c: Candidate, case: _Case) -> float:
    """Bytes of the fullest node: a worker with one model on its way, and the server where it is beside it."""
    worker = float(memory.worker(case.parameters, case.activations * case.largest, case.batch, buffers=4 * case.parameters).value)
    servers = _servers(c, case)
    if not servers:
        return worker
    server = float(memory.server(case.parameters, servers, workers=case.workers, collects=c.algorithm in ("bsp", "backup-workers")).value)
    return worker + server if c.collocated else max(worker, server)


def _command(c: Candidate, case: _Case, steps: int) -> str:
    options = "".join(f" --{k.replace('_', '-')} {v}" for k, v in c.options.items())
    where = f" --servers {_servers(c, case)}" if has_servers(CATALOGUE[c.algorithm]) else ""
    described = case.described or _flags(case.machine)
    if case.described and case.machine.speeds:
        described += f" --speeds {written(case.machine.speeds)}"
    if case.described and case.variant == "work by speed":  # a later flag changes an earlier one
        described += f" --compute '{case.machine.compute}'"
    return (f"refsgd run {c.algorithm}{options} --net phantom:{case.parameters} --data none --workers {case.workers}{where} --batch {case.batch} "
            f"--steps {steps} {described}" + (" --collocated" if c.collocated else ""))


def _flags(machine: Machine) -> str:
    """The machine's numbers as flags of the command line."""
    said = {"compute": f"'{machine.compute}'", "latency": f"{machine.latency:g}",
            "bandwidth": f"{machine.bandwidth:g}" if np.isfinite(machine.bandwidth) else "", "update": f"'{machine.update}'" if machine.update else "",
            "speeds": written(machine.speeds) if len(set(machine.speeds)) > 1 or 1.0 not in machine.speeds else ""}
    return " ".join(f"--{name} {value}" for name, value in said.items() if value)


def _limited(s: Strategy, memory_limit: float | None, staleness_limit: float | None) -> Strategy:
    why = [s.rejected] if s.rejected else []
    if memory_limit is not None and s.memory > memory_limit:
        why.append(f"needs {s.memory / 1e9:.2f} GB of memory, {memory_limit / 1e9:.2f} GB available")
    if staleness_limit is not None and (s.staleness is None or s.staleness > staleness_limit):
        why.append("its staleness is not known" if s.staleness is None else f"mean staleness {s.staleness:.1f} updates, at most {staleness_limit:g} allowed")
    return replace(s, rejected="; ".join(why))


def _group(algorithm: str) -> str:
    return next(name for name, members in GROUPS.items() if algorithm in members)


def _crossings(case: _Case, candidates: Sequence[Candidate]) -> list[str]:
    """Where, within a group, another candidate becomes the fastest, along workers, bandwidth and latency.

    SSP is left out: it lies between BSP and ASP.  So is one server where servers on all nodes are a candidate: they share its load.
    """
    machine = case.machine
    spread = {c.algorithm for c in candidates if c.collocated} if case.servers == 1 else set()
    bandwidth = machine.bandwidth if np.isfinite(machine.bandwidth) else 1e10
    axes: dict[str, list[float]] = {
        "workers": [2, 4, 8, 16, 32, 64], "bandwidth": list(bandwidth * np.geomspace(0.01, 100, 5)),
        "latency": list((machine.latency or 1e-5) * np.geomspace(0.01, 1000, 6))}
    out = []
    for group, members in GROUPS.items():
        inside = [c for c in candidates if c.algorithm in members and c.algorithm != "ssp" and (c.collocated or c.algorithm not in spread)]
        for axis, values in axes.items() if len(inside) > 1 else ():
            out += [f"{group}: {text}" for text in _along(axis, values, case, inside)]
    return out


def _along(axis: str, values: Sequence[float], case: _Case, candidates: Sequence[Candidate]) -> list[str]:
    """Changes of the fastest candidate along one quantity: between values of a grid, then halved towards the change."""

    def rates(x: float, some: Sequence[Candidate]) -> dict[str, float]:
        some = sorted(some, key=lambda c: before is None or _name(c, case) != before[0])  # the fastest so far decides whether others can be
        if axis == "workers":
            return _rates(some, case._replace(workers=int(x)))
        return _rates(some, case._replace(machine=case.machine.with_(**{axis: float(x)})))

    out: list[str] = []
    before: tuple[str, float] | None = None
    for x in values:
        found = rates(x, candidates)
        if not found:
            continue
        best = max(found, key=lambda name: found[name])
        if before and found[best] > GAIN * found.get(before[0], 0.0):
            low, high = before[1], x
            two = [c for c in candidates if _name(c, case) in (before[0], best)]
            for _ in range(4):
                middle = float(np.sqrt(low * high)) if axis != "workers" else (low + high) // 2
                then = rates(middle, two)
                low, high = (low, middle) if then.get(best, 0.0) > GAIN * then.get(before[0], 0.0) else (middle, high)
            out.append(f"{before[0]} up to {_amount(axis, low)}, {best} from {_amount(axis, high)} on")
        if not before or found[best] > GAIN * found.get(before[0], 0.0):
            before = best, x
        else:
            before = before[0], x
    return out


def _rates(candidates: Sequence[Candidate], case: _Case) -> dict[str, float]:
    """Passes a second of those that a formula covers and whose messages do not pile up, from short runs.

    Ends early where one is as fast as workers that never communicate: no other can be faster, unless it drops gradients.
    """
    steps, out, most = _steps(case, 20), dict[str, float](), np.inf
    if not any("backups" in c.options for c in candidates) and (free := _figures(Candidate("independent", {}), case, steps)):
        most = 1 / _time(Candidate("independent", {}), case, free, steps).seconds
    for c in candidates:
        if not _piling(c, case) and (figures := _figures(c, case, steps)):
            out[_name(c, case)] = 1 / _time(c, case, figures, steps).seconds
            if out[_name(c, case)] * GAIN >= most:
                break
    return out


def _amount(axis: str, x: float) -> str:
    """A value of an axis of `_crossings`, in words."""
    return {"workers": f"{x:g} workers", "bandwidth": f"a bandwidth of {x / 1e9:.3g} GB/s", "latency": f"a latency of {1e3 * x:.2g} ms"}[axis]
