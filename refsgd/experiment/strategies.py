"""Strategies for a cluster, with their predicted time, idleness, staleness, bytes and memory.

A strategy is an algorithm with its options and the place of its servers.  Its metrics are formulas of
`refsgd.theory`; statements on accuracy are verdicts of `benchmarks.studies`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refsgd import theory
from refsgd.algorithms import CATALOGUE
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import written
from refsgd.experiment.arguments import options_of
from refsgd.experiment.prepare import has_servers
from refsgd.theory.phenomena import memory, overlap, stability
from refsgd.theory.phenomena.stragglers import mean_of_maximum
from refsgd.theory.prediction import DomainError, Prediction


class Candidate(NamedTuple):
    """A strategy that is considered: an algorithm, its options, and where servers are."""

    algorithm: str
    options: dict[str, Any]
    colocated: bool = False  #: a server on every worker's node instead of nodes of their own


class Evidence(NamedTuple):
    """A claim of a study that speaks for or against a strategy's accuracy."""

    study: str
    part: str
    says: str
    when: str  #: what was kept equal while workers were added
    against: bool = True  #: whether it speaks against the strategy


#: what is considered; of strategies that tie, an earlier one is preferred
CANDIDATES = (
    Candidate("allreduce", {"collective": "ring"}),
    Candidate("allreduce", {"collective": "halving-doubling"}), Candidate("bsp", {}),
    Candidate("bsp", {}, True), Candidate("backup-workers", {"backups": 1}), Candidate("asp", {}),
    Candidate("asp", {}, True),
    Candidate("ssp", {"staleness": 3}), Candidate("ssp", {"staleness": 3}, True),
    Candidate("dgc", {"ratio": 0.01}),
    Candidate("local-sgd", {"period": 8}), Candidate("easgd", {"period": 4}),
    Candidate("easgd", {"period": 4}, True),
    Candidate("gosgd", {"p": 0.1}), Candidate("adpsgd", {}), Candidate("dpsgd", {}), Candidate("sgp", {}))


#: what gradients are computed on: strategies of one group differ in time, not in what they compute at a given
#: number of updates
GROUPS = {"one model": ("bsp", "backup-workers", "allreduce"), "stale gradients": ("asp", "ssp"),
          "compressed": ("dgc",),
          "replicas": ("easgd", "local-sgd", "gosgd", "adpsgd", "dpsgd", "sgp")}


#: why a pass may teach less than one of synchronous SGD, by group
COSTS = {"stale gradients": "it applies stale gradients", "compressed": "it delays most of each gradient",
         "replicas": "its replicas differ"}


#: whose exchange can begin during the backward pass: that of whole gradients, for which all workers wait
OVERLAPPING = ("bsp", "allreduce", "dgc")


#: what PyTorch has for it, by algorithm; for others it has nothing built in
PYTORCH = {
    "allreduce": "torch.nn.parallel.DistributedDataParallel (DDP), which exchanges buckets of "
                 "bucket_cap_mb=25 MB during the backward pass; "
                 "for larger batches accumulate gradients under ddp.no_sync()",
    "bsp": "DistributedDataParallel (DDP) computes the same, with allreduce instead of servers",
    "dgc": "ddp.register_comm_hook(PowerSGDState(...), powerSGD_hook), from "
           "torch.distributed.algorithms.ddp_comm_hooks; low rank instead "
           "of the largest entries",
    "local-sgd": "torch.distributed.optim.PostLocalSGDOptimizer with PeriodicModelAverager(period={period}), "
                 "and post_localSGD_hook on DDP"}


#: of each of these the fastest is worth a try: replicas differ in what they learn, so not only the fastest of
#: them
TRIES = (*(members for name, members in GROUPS.items() if name != "replicas"), ("local-sgd",), ("easgd",),
         ("gosgd", "adpsgd", "dpsgd", "sgp"))


STALE = Evidence("jia2020", "figure7", "asynchronous accuracy falls from 4 to 12 workers",
                 "equal updates of each worker")


DRIFT = Evidence("ko2021", "table3", "SSP with s = 10, EASGD and GoSGD fall with the number of workers",
                 "equal passes over the images in all")


FLAT = Evidence("ko2021", "table3", "BSP, ASP and AD-PSGD hardly depend on the number of workers",
                "equal passes over the images in all", False)


#: what studies found of an algorithm's accuracy
EVIDENCE: dict[str, tuple[Evidence, ...]] = {
    "bsp": (FLAT,), "asp": (STALE, FLAT), "adpsgd": (FLAT,), "ssp": (STALE,), "easgd": (DRIFT,),
    "gosgd": (DRIFT,)}


#: figures of a strategy by the names of their closed forms
SHOWN = {"images_per_second": "images_per_second", "seconds": "seconds", "idle": "idle_ratio",
         "staleness": "staleness_mean", "bytes": "bytes_per_iteration"}


@dataclass(frozen=True)
class Strategy:
    """One candidate with its predicted metrics."""

    name: str  #: the algorithm with its options; K servers (K=n: one on each worker's host)
    group: str  #: one of `GROUPS`
    workers: int  #: that take part
    variant: str  #: "" with equal work for all workers; "without ..." the slowest, or "work by speed"
    command: str  #: the command that tries it
    note: str  #: what to expect of that run; "" if it is this strategy's pass
    pytorch: str  #: what PyTorch has for it; "" if there is nothing built in
    page: str  #: the page of the documentation that explains it
    seconds: float  #: of a pass over the data, until every worker has finished its equal share
    factor: float  #: `seconds` relative to the baseline's
    images_per_second: float  #: while all workers are busy, without images whose gradients are dropped
    idle: float | None  #: 1 - (time in `Compute`)/(elapsed), mean over workers, of a run of equal steps
    run_idle: float | None  #: the same without overlap, which is what the command's run reports
    staleness: float | None  #: mean, in updates; None where no formula exists, as for the next
    bytes: float | None  #: per iteration, sent by all nodes
    memory: float  #: of the fullest node, in bytes
    #: largest stable learning rate at that staleness, relative to the synchronous one
    #: (`stability.constant_delay`); None for replicas and compressed gradients, which it does not cover
    rate: float | None
    kind: str  #: of the time: exact, approximation or bound
    binding: str  #: the largest cause of idleness; "nothing" if none takes 2 % of the time
    overlapped: bool  #: whether its exchange begins during the backward pass
    evidence: tuple[str, ...]  #: findings of studies: "study part: claim (what was kept equal)"
    formulas: dict[str, str]  #: the formula of each metric with its source
    rejected: str = ""  #: why it does not fit here; "" if it does

    @property
    def algorithm(self) -> str:
        """Its name in the catalogue."""
        return self.name.split()[0]


class Case(NamedTuple):
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
        """Of each worker."""
        return [self.machine.speed(i) for i in range(self.workers)]


def _servers(c: Candidate, case: Case) -> int:
    """K; 0 without a server.  Backup workers have one, however many are asked for."""
    if c.algorithm == "backup-workers":
        return 1
    if not has_servers(CATALOGUE[c.algorithm]):
        return 0
    return case.workers if c.colocated else case.servers


def name_of(c: Candidate, case: Case) -> str:
    """The algorithm with its options, servers where it has any, and how work is divided if not equally."""
    options = "".join(f" {v}" if isinstance(v, str) else f" {k}={v:g}" for k, v in c.options.items())
    servers = "n" if c.colocated else _servers(c, case)
    return (f"{c.algorithm}{options}" + (f" K={servers}" if servers else "")
            + (f", {case.variant}" if case.variant else ""))


#: steps of a run that is predicted and printed as a command; a longer pass continues at its pace
LONGEST = 100


def steps_of(case: Case, most: int = LONGEST) -> int:
    """Steps of each worker in the run that is predicted: a pass, if that is not too long."""
    return min(max(1, round(case.images / (case.workers * case.batch))), most)


def figures_of(c: Candidate, case: Case, steps: int, **changes: Any) -> dict[str, Any] | None:
    """Its closed forms; None outside their domain, or where they say nothing of speed."""
    defaults = {name: p.default for name, p in options_of(CATALOGUE[c.algorithm]).items()}
    given = {"machine": case.machine.with_(colocated=c.colocated), "nbytes": 4 * case.parameters, **changes}
    try:
        found = theory.predict(c.algorithm, workers=case.workers, servers=max(_servers(c, case), 1),
                               batch=case.batch, steps=steps, options={**defaults, **c.options}, **given)
    except DomainError:
        return None
    return dict(found) if "images_per_second" in found else None


class Time(NamedTuple):
    """A pass, and how many times faster the exchange's overlap makes it."""

    seconds: float
    gain: float
    exposed: float  #: seconds of an iteration in which an overlapped exchange is waited for


def time_of(c: Candidate, case: Case, figures: dict[str, Any], steps: int) -> Time:
    """Seconds of a pass in equal shares, from a run of some steps: overlapped where the layers are known
    and that is faster."""
    whole, gain, exposed = case.images / (case.workers * case.batch * _used(c, case)), 1.0, 0.0
    if case.layers and c.algorithm in OVERLAPPING and case.workers > 1:
        serial = figures["seconds_per_iteration"]
        still = case.machine.with_(colocated=c.colocated, compute="fixed(0)", update=None)

        def exchange(nbytes: float) -> float:
            found = figures_of(c, case, 1, machine=still, nbytes=int(nbytes))
            return float(found["seconds_per_iteration"].value) if found else float("inf")

        drawn = [case.machine.distribution("gradient", case.machine.speed(i)) for i in range(case.workers)]
        slowest = mean_of_maximum([d for d in drawn if d is not None])
        parameters, flops = zip(*case.layers)
        update = float(serial.terms.get("update", 0.0))
        step = overlap.bucketed(parameters, flops, slowest, exchange).value + update
        if step < serial.value:
            gain, exposed = float(serial.value) / step, step - slowest - update
    return Time(float(figures["seconds"].value) / steps / gain * whole, gain, exposed)


def _used(c: Candidate, case: Case) -> float:
    """Share of the gradients that count: backup workers drop those of the last."""
    return 1 - min(int(c.options.get("backups", 0)), case.workers - 1) / case.workers


def strategy_of(c: Candidate, case: Case) -> Strategy | None:
    """The candidate with its metrics; None where formulas do not cover it."""
    steps = steps_of(case)
    figures = figures_of(c, case, steps)
    if not figures:
        return None

    def value(key: str) -> float | None:
        return float(figures[key].value) if key in figures else None

    time, used = time_of(c, case, figures, steps), _used(c, case)
    tau, run_idle = value("staleness_mean"), value("idle_ratio")
    idle = None if run_idle is None else max(1 - (1 - run_idle) * time.gain, 0.0)
    formulas = {name: "; ".join(filter(None, (figures[key].formula, figures[key].source)))
                for name, key in SHOWN.items() if key in figures}
    formulas["seconds"] += "; an iteration: " + figures["seconds_per_iteration"].formula
    if time.gain > 1:
        formulas["seconds"] += "; overlapped: sum f + max_l (sum_{j>=l} b_j + sum_{j<=l} c_j) of buckets"
    if used < 1:
        formulas["images_per_second"] += f"; x {used:g}: the gradients that count"
    unwaited = group_of(c.algorithm) in ("one model", "stale gradients")
    kind = "approximation" if time.gain > 1 else figures["seconds"].kind
    return Strategy(name_of(c, case), group_of(c.algorithm), case.workers, case.variant,
                    _command(c, case, steps), _note(c, case, time, figures, steps), _pytorch(c, case),
                    f"docs/algorithms/{c.algorithm}",
                    time.seconds, 1.0, used * time.gain * float(figures["images_per_second"].value), idle,
                    run_idle, tau, value("bytes_per_iteration"), _memory(c, case),
                    stability.constant_delay(round(tau)).value / 2 if unwaited and tau is not None else None,
                    kind, _binding(figures, time), time.gain > 1,
                    tuple(f"{e.study} {e.part}: {e.says} ({e.when})" for e in EVIDENCE.get(c.algorithm, ())),
                    formulas, piling(c, case))


def _binding(figures: dict[str, Any], time: Time) -> str:
    """The largest cause of idleness; "nothing" if none takes 2 % of the time."""
    step: Prediction = figures["seconds_per_iteration"]
    causes = {k: v for k, v in step.terms.items() if not k.startswith(("compute", "standard error"))}
    whole = step.value / time.gain
    if time.gain > 1:
        causes = {"transfer": time.exposed,
                  "straggling": whole - time.exposed
                  - step.terms["compute E[T]"] - step.terms.get("update", 0.0)}
    elif "idle_by_cause" in figures:
        causes, whole = dict(figures["idle_by_cause"].terms), 1.0
    largest = max(causes, key=causes.__getitem__, default="")
    return largest if causes and causes[largest] > 0.02 * whole else "nothing"


def _note(c: Candidate, case: Case, time: Time, figures: dict[str, Any], steps: int) -> str:
    """What to expect of the command's run where that is not the strategy's pass."""
    whole = max(1, round(case.images / (case.workers * case.batch * _used(c, case))))
    by_speed = case.variant == "work by speed"
    differs = [f"{case.workers} equal workers stand in for batches by speed"] if by_speed else []
    differs += ["there is no overlap"] if time.gain > 1 else []
    if steps == whole and not differs:
        return ""
    expect = f"{steps} steps" if steps == whole else f"{steps} of {whole} steps"
    expect += f", {float(figures['seconds'].value):.4g} s" + (
        f", idle {float(figures['idle_ratio'].value):.0%}" if "idle_ratio" in figures else "")
    return expect + (f"; differs from the row{' twice' * (len(differs) > 1)}: {', and '.join(differs)}"
                     if differs else "")


def _pytorch(c: Candidate, case: Case) -> str:
    """What PyTorch has for the algorithm and the division of work."""
    if c.algorithm not in PYTORCH or not case.variant:
        return PYTORCH.get(c.algorithm, "").format(**c.options)
    if case.variant == "work by speed":
        return ("the same, with a sampler of your own (DistributedSampler deals equal shares) and each loss "
                "weighted by its share of the images")
    return f"the same, launched on the other {case.workers} nodes"


def piling(c: Candidate, case: Case) -> str:
    """Why a strategy that waits for nobody is out: some link gets more than it can carry, so messages grow
    older without bound.

    GoSGD: worker i sends p/T_i models a second, and hears of the others p/(n - 1) sum 1/T_j.
    """
    found = case.machine.compute
    if c.algorithm != "gosgd" or case.workers < 2 or found is None:
        return ""
    own = np.asarray(case.speeds) / found.mean
    busiest = c.options["p"] * 4 * case.parameters / case.machine.bandwidth * max(
        own.max(), (own.sum() - own.min()) / (case.workers - 1))
    return (f"messages pile up: the busiest link would have to carry {busiest:.3g} times its bandwidth"
            if busiest >= 1 else "")


def _memory(c: Candidate, case: Case) -> float:
    """Bytes of the fullest node: a worker with one model on its way, and the server where it is beside it."""
    worker = float(memory.worker(case.parameters, case.activations * case.largest, case.batch,
                                 buffers=4 * case.parameters).value)
    servers = _servers(c, case)
    if not servers:
        return worker
    server = float(memory.server(case.parameters, servers, workers=case.workers,
                                 collects=c.algorithm in ("bsp", "backup-workers")).value)
    return worker + server if c.colocated else max(worker, server)


def _command(c: Candidate, case: Case, steps: int) -> str:
    options = "".join(f" --{k.replace('_', '-')} {v}" for k, v in c.options.items())
    where = f" --servers {_servers(c, case)}" if has_servers(CATALOGUE[c.algorithm]) else ""
    described = case.described or _flags(case.machine)
    if case.described and case.machine.speeds:
        described += f" --speeds {written(case.machine.speeds)}"
    if case.described and case.variant == "work by speed":  # a later flag changes an earlier one
        described += f" --compute '{case.machine.compute}'"
    return (f"refsgd run {c.algorithm}{options} --net shapes:{case.parameters} --data none --workers "
            f"{case.workers}{where} --batch {case.batch} --steps {steps} {described}"
            + (" --colocated" if c.colocated else ""))


def _flags(machine: Machine) -> str:
    """The machine's numbers as flags of the command line."""
    said = {"compute": f"'{machine.compute}'", "latency": f"{machine.latency:g}",
            "bandwidth": f"{machine.bandwidth:g}" if np.isfinite(machine.bandwidth) else "",
            "update": f"'{machine.update}'" if machine.update else "",
            "speeds": written(machine.speeds) if len(set(machine.speeds)) > 1 or 1.0 not in machine.speeds
            else ""}
    return " ".join(f"--{name} {value}" for name, value in said.items() if value)


def group_of(algorithm: str) -> str:
    """The group of `GROUPS` that an algorithm belongs to."""
    return next(name for name, members in GROUPS.items() if algorithm in members)
