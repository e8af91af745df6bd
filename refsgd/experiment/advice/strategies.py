"""The metrics of a strategy on a cluster: predicted time, idleness, staleness, bytes and memory.

Formulas of `refsgd.theory` give them.  Strategies that divide the model itself, for one that does not fit a
node's memory (ZeRO and pipelines), are predicted as `refsgd predict` predicts the command that runs them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf
from typing import NamedTuple

import numpy as np

from refsgd import theory
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.algorithms.sgd import SGD
from refsgd.cluster import devices, prices
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import written
from refsgd.experiment.advice.candidates import EVIDENCE, PYTORCH, Candidate, group_of
from refsgd.experiment.options import exchanges
from refsgd.experiment.options.problems import build_problem
from refsgd.experiment.prepare import predict, with_defaults
from refsgd.problems import Problem
from refsgd.theory.estimate import check_distribution
from refsgd.theory.phenomena import memory, staleness
from refsgd.theory.phenomena.iteration import mean_time
from refsgd.theory.phenomena.layerwise import Plan as Travel
from refsgd.theory.phenomena.stragglers import mean_of_maximum
from refsgd.theory.prediction import DomainError, Prediction

#: metrics of a strategy by the names of their closed forms
SHOWN = {"images_per_second": "images_per_second", "seconds": "seconds", "idle": "idle_ratio",
         "staleness": "staleness_mean", "bytes": "bytes_per_iteration"}


@dataclass(frozen=True)
class Strategy:
    """One candidate with its predicted metrics."""

    name: str  #: the algorithm with its options; K servers (K=n: one on each worker's host)
    group: str  #: one of `GROUPS`
    workers: int  #: number of workers that take part
    variant: str  #: "" with equal work for all workers; "without ..." the slowest, or "work by speed"
    command: str  #: the command that tries it
    note: str  #: what to expect of that run; "" if it is a whole pass
    pytorch: str  #: PyTorch's counterpart; "" if nothing is built in
    page: str  #: the documentation page that explains it
    batch: str  #: images in each worker's gradient
    seconds: float  #: of a pass over the data, until every worker has finished its equal share
    factor: float  #: `seconds` relative to the baseline's
    images_per_second: float  #: of the pass, in which dropped gradients do not count
    idle: float | None  #: 1 - (time in `Compute`)/(elapsed), mean over workers, in a run of equal steps
    staleness: float | None  #: mean, in updates; None if no formula exists, as for `bytes`
    bytes: float | None  #: per iteration, sent by all nodes
    memory: float  #: of the fullest node, in bytes
    #: largest stable learning rate at that staleness, relative to the synchronous one
    #: (`staleness.constant_delay`); None for replicas and compressed gradients
    rate: float | None
    kind: str  #: kind of the predicted time: exact, approximation or bound
    binding: str  #: the largest cause of idleness; "nothing" if none takes 2 % of the time
    plain: str  #: the strategy with the plain exchange that it varies; "" if it is one
    costs: str  #: what its exchange costs; "" if plain
    evidence: tuple[str, ...]  #: findings of studies: "study part: claim (what was kept equal)"
    formulas: dict[str, str]  #: the formula and source of each metric
    rejected: str = ""  #: why it does not fit; "" if it does

    @property
    def algorithm(self) -> str:
        """Its name in the catalogue."""
        return self.name.split()[0]


BY_SPEED = "work by speed"  #: the variant with batches in proportion to speed


class Case(NamedTuple):
    """The question: a cluster with its division of work, and the sizes of the model and of a pass."""

    variant: str
    machine: Machine
    parameters: int
    workers: int
    batch: int
    images: int
    servers: int
    activations: float
    described: str
    overlap: bool  #: whether exchanges may overlap with passes, for which `net` must be named
    batches: tuple[int, ...] = ()  #: of each worker, if not all are `batch`
    devices: Machine | None = None  #: the machine with devices behind the times of `machine`
    work: float = 0.0  #: operations of one image's gradient
    net: str = ""  #: the model's shape-only name, such as resnet50@224x224x3

    @property
    def speeds(self) -> list[float]:
        """The speed of each worker."""
        return [self.machine.speed(i) for i in range(self.workers)]

    @property
    def times(self) -> list[Distribution]:
        """The time of a gradient of each worker."""
        return [check_distribution("compute", prices.own(self.machine, i)) for i in range(self.workers)]


#: most steps of the run that is predicted and printed as a command; a longer pass is extrapolated
LONGEST = 100


class Plan:
    """A candidate on a cluster: a run of at most `most` steps with its metrics, and the time of a pass."""

    def __init__(self, candidate: Candidate, case: Case, most: int = LONGEST) -> None:
        self.candidate, self.case = candidate, case
        self.function = CATALOGUE[candidate.algorithm]
        if candidate.algorithm == "backup-workers":
            self.servers = 1
        elif not facts_of(self.function).served:
            self.servers = 0
        else:
            self.servers = case.workers if candidate.colocated else case.servers
        self.machine = case.machine.with_(colocated=candidate.colocated)
        self.devices = case.devices if case.net and case.batches else None  # which price each batch
        self.net = case.net if self.devices or (candidate.exchange and case.net) else str(case.parameters)
        used = case.workers - min(int(candidate.options.get("backups", 0)), case.workers - 1)  # that count
        self.iterations = max(1, -(-case.images // (used * case.batch)))  # of a pass
        self.steps = min(self.iterations, most)

    @cached_property
    def travel(self) -> Travel | None:
        """How its gradients travel, for formulas; None for the plain exchange."""
        given, case = dict(self.candidate.exchange), self.case
        if not given:
            return None
        problem = _shape(case.net or str(case.parameters))
        how = exchanges.exchange_of(given, SGD(0.0), case.workers, problem)
        problem = replace(problem, exchange=how)
        return exchanges.plan(facts_of(self.function), {}, problem, max(self.servers, 1), case.machine.codec)

    @cached_property
    def metrics(self) -> dict[str, Prediction]:
        """Its figures by formula; none outside their domain or if they do not predict speed.

        Parts on servers' links are followed at fixed times: means, or the slowest worker's if all wait.
        """
        c, case, machine, times = self.candidate, self.case, self.machine, self.case.times
        if "overlap" in c.exchange and not (case.overlap and case.net):
            return {}
        drawn = self.servers > 0 and bool(c.exchange) and any(time.family != "fixed" for time in times)
        if drawn:
            fixed = [time.mean for time in times]
            if c.algorithm == "bsp":
                fixed = [mean_of_maximum(times)] * len(times)
            machine = machine.with_(speeds=(), compute=tuple(Distribution("fixed", (t,)) for t in fixed))
        try:
            found = theory.predict(c.algorithm, machine, workers=case.workers, servers=max(self.servers, 1),
                                   nbytes=4 * case.parameters, batch=case.batch, steps=self.steps,
                                   options=with_defaults(self.function, c.options), plan=self.travel)
        except DomainError:
            return {}
        if drawn:
            found.simplify("fixed times")
            if "idle_ratio" in found:
                idle, busy = found["idle_ratio"], mean_time(times) / (sum(fixed) / len(fixed))
                found["idle_ratio"] = replace(idle, value=1 - (1 - idle.value) * busy)
        return dict(found) if "images_per_second" in found else {}

    @property
    def seconds(self) -> float:
        """Seconds of a pass divided into equal shares."""
        return self.value("seconds") / self.steps * self.iterations

    @property
    def name(self) -> str:
        """The algorithm with its options, its exchange, its servers, and the division of work if unequal."""
        c = self.candidate
        options = [f"{v}" if isinstance(v, str) else f"{k}={v:g}" for k, v in c.options.items()]
        how = "P3" if c.exchange.get("priority") else "overlap" if "overlap" in c.exchange else ""
        servers = f"K={'n' if c.colocated else self.servers}" if self.servers else ""
        words = [c.algorithm, *options, how, c.exchange.get("compress", ""), servers]
        return " ".join(filter(None, words)) + (f", {self.case.variant}" if self.case.variant else "")

    @property
    def plain(self) -> str:
        """The name of the strategy with the plain exchange; empty if it is this one."""
        c = self.candidate
        return Plan(c._replace(exchange={}), self.case).name if c.exchange else ""

    @property
    def costs(self) -> str:
        """The costs of the exchange; empty if it is the plain one."""
        if self.travel is None:
            return ""
        said, parts = [], self.travel.parts
        if len(parts) > 1:
            what = "messages of a worker each way" if self.servers else "sums"
            said.append(f"{len(parts)} {what} instead of {max(self.servers, 1)}")
        if "compress" in self.candidate.exchange:
            kept = sum(part.up for part in parts) / (4 * self.case.parameters)
            said.append(f"gradients in {kept:.1%} of their bytes, and memory for what they leave out")
        return "; ".join(said)

    @property
    def batch(self) -> str:
        """Images in each worker's gradient, as the command line reads them."""
        return written(self.case.batches or [self.case.batch])

    def value(self, key: str) -> float:
        """A metric."""
        return float(self.metrics[key].value)

    def binding(self) -> str:
        """The largest cause of idleness; "nothing" if none takes 2 % of the time."""
        step = self.metrics["seconds_per_iteration"]
        terms, whole = step.terms, step.value
        if "idle_by_cause" in self.metrics:
            causes, whole = dict(self.metrics["idle_by_cause"].terms), 1.0
        else:
            causes = {k: v for k, v in terms.items() if not k.startswith(("compute", "standard error"))}
        largest = max(causes, key=causes.__getitem__, default="")
        return largest if causes and causes[largest] > 0.02 * whole else "nothing"

    def piling(self) -> str:
        """Why a strategy without waiting is rejected: a link gets more than it can carry, so that messages
        age without bound.

        GoSGD: worker i sends p/T_i models a second and receives p/(n - 1) sum 1/T_j from the others.
        """
        case = self.case
        if self.candidate.algorithm != "gosgd" or case.workers < 2:
            return ""
        own = 1 / np.array([time.mean for time in case.times])
        busiest = self.candidate.options["p"] * 4 * case.parameters / case.machine.bandwidth * max(
            own.max(), (own.sum() - own.min()) / (case.workers - 1))
        return (f"messages pile up: the busiest link would have to carry {busiest:.3g} times its bandwidth"
                if busiest >= 1 else "")

    def memory(self) -> float:
        """Bytes of the fullest node: a worker with one model in transit, and its server if co-located."""
        case = self.case
        kept = 2 if "compress" in self.candidate.exchange else 1  # with what its messages have left out
        worker = float(memory.worker(case.parameters, case.activations, max(case.batches, default=case.batch),
                                     buffers=4 * case.parameters * kept).value)
        if not self.servers:
            return worker
        server = float(memory.server(case.parameters, self.servers, workers=case.workers,
                                     collects=self.candidate.algorithm in ("bsp", "backup-workers")).value)
        return worker + server if self.candidate.colocated else max(worker, server)

    def command(self) -> str:
        """The command that runs it."""
        c, case = self.candidate, self.case
        options = "".join(f" --{k.replace('_', '-')}" + f" {v}" * (v is not True)
                          for k, v in (*c.options.items(), *c.exchange.items()))
        where = f" --servers {self.servers}" if facts_of(self.function).served else ""
        machine = self.devices or self.machine
        described = case.described or flags(machine)
        if case.described and case.devices and not self.devices:  # a later flag overrides an earlier one
            described += f" --compute '{devices.written(machine.compute)}'"
        if case.described and machine.speeds:
            described += f" --speeds {written(machine.speeds)}"
        batch = f"auto:{sum(case.batches)}" if self.devices and case.batches else self.batch
        return (f"refsgd run {c.algorithm}{options} --net shapes:{self.net} --data none "
                f"--workers {case.workers}{where} --batch {batch} --steps {self.steps} {described}"
                + " --colocated" * c.colocated)

    def note(self) -> str:
        """The result to expect of the command's run if it is not the strategy's pass."""
        timed = self.case.batches and not self.devices
        by_speed = "its times are for gradients of each worker's own batch" if timed else ""
        if self.steps == self.iterations:
            return by_speed
        expect = f"{self.steps} of {self.iterations} steps, {self.value('seconds'):.4g} s"
        if "idle_ratio" in self.metrics:
            expect += f", idle {self.value('idle_ratio'):.0%}"
        return expect + f"; {by_speed}" * bool(by_speed)

    def pytorch(self) -> str:
        """PyTorch's counterpart of the algorithm and the division of work."""
        c, variant = self.candidate, self.case.variant
        key = "" if "priority" in c.exchange else c.exchange.get("compress", c.algorithm).partition(":")[0]
        if key not in PYTORCH or not variant:
            return PYTORCH.get(key, "").format(**c.options)
        if variant == BY_SPEED:
            return ("the same, with a custom sampler (DistributedSampler deals equal shares) and each loss "
                    "weighted by its share of the images")
        return f"the same, launched on the other {self.case.workers} nodes"

    def formulas(self) -> dict[str, str]:
        """The formula and source of each metric."""
        found = {name: "; ".join(filter(None, (self.metrics[key].formula, self.metrics[key].source)))
                 for name, key in SHOWN.items() if key in self.metrics}
        found["seconds"] += "; an iteration: " + self.metrics["seconds_per_iteration"].formula
        return found

    def strategy(self) -> Strategy:
        """The strategy with its metrics."""
        algorithm, group = self.candidate.algorithm, group_of(self.candidate)
        known = {key: self.value(key) for key in SHOWN.values() if key in self.metrics}
        idle, tau = known.get("idle_ratio"), known.get("staleness_mean")
        rate = None
        if tau is not None and group in ("one model", "stale gradients"):
            rate = staleness.constant_delay(round(tau)).value / 2
        return Strategy(
            name=self.name, group=group, workers=self.case.workers, variant=self.case.variant,
            command=self.command(), note=self.note(), pytorch=self.pytorch(),
            page=f"docs/algorithms/{algorithm}",
            batch=self.batch, seconds=self.seconds, factor=1.0,
            images_per_second=self.case.images / self.seconds if self.seconds else inf, idle=idle,
            staleness=tau, bytes=known.get("bytes_per_iteration"), memory=self.memory(), rate=rate,
            kind=self.metrics["seconds"].kind, binding=self.binding(), plain=self.plain, costs=self.costs,
            formulas=self.formulas(), rejected=self.piling(),
            evidence=tuple(f"{e.study} {e.part}: {e.says} ({e.when})" for e in EVIDENCE.get(algorithm, ())))


def flags(machine: Machine) -> str:
    """The machine's numbers as flags of the command line."""
    said = {"compute": f"'{devices.written(machine.compute)}'", "latency": f"{machine.latency:g}",
            "bandwidth": f"{machine.bandwidth:g}" if np.isfinite(machine.bandwidth) else "",
            "update": f"'{machine.update}'" if machine.update else "",
            "speeds": written(machine.speeds) if set(machine.speeds) - {1.0} else ""}
    return " ".join(f"--{name} {value}" for name, value in said.items() if value)


@lru_cache(maxsize=4)
def _shape(net: str) -> Problem:
    """The shape-only problem of a model, whose layers say what an exchange may overlap."""
    return build_problem("none", f"shapes:{net}", 1, 1, 0, "iid")


class Split(Plan):
    """A division of the model among the workers; a pipeline takes the batches of all its nodes together."""

    def __init__(self, candidate: Candidate, case: Case, most: int = LONGEST) -> None:
        super().__init__(candidate, case, most)
        self.depth = int(candidate.options.get("stages", 1))
        self.devices, self.net = case.devices, case.net
        self.machine = case.devices or case.machine
        if not case.devices and self.depth > 1:  # devices price the larger batch themselves
            self.machine = self.machine.with_(speeds=tuple(v / self.depth for v in case.speeds))

    @property
    def batch(self) -> str:
        """Images of a peer, or of a replica of a pipeline."""
        return str(self.case.batch * self.depth)

    @cached_property
    def metrics(self) -> dict[str, Prediction]:
        """Its figures, with the memory of each role."""
        case, c = self.case, self.candidate
        return dict(predict(c.algorithm, net=f"shapes:{case.net}", data="none", workers=case.workers,
                            batch=int(self.batch), steps=self.steps, machine=self.machine, **c.options))

    def memory(self) -> float:
        """Bytes of the fullest node."""
        return max(float(p.value) for name, p in self.metrics.items() if name.startswith("memory_"))


def splits(case: Case) -> list[Split]:
    """ZeRO in each stage, and pipelines of any number of nodes that divides the workers evenly, with 4, 16 or
    more micro-batches for each node, of no fewer than 4 images unless the batch is small."""
    some = [Candidate("zero", {"stage": stage}) for stage in (1, 2, 3)]
    some += [Candidate("gpipe", {"stages": depth, "micro": depth * each, "passes": "1f1b"})
             for depth in range(2, case.workers + 1) if case.workers % depth == 0
             for each in sorted({min(4, case.batch), min(16, case.batch), max(1, case.batch // 4)})]
    found = []
    for candidate in some:
        try:
            plan = Split(candidate, case)
            if "images_per_second" in plan.metrics:
                found.append(plan)
        except ValueError:  # fewer layers than stages
            continue
    return found
