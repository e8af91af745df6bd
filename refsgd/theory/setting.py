"""The setting of a prediction, and the metrics that all algorithms have."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from refsgd.cluster import prices
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.theory.estimate import Uncovered, certain, check_distribution, kind_of, sampling
from refsgd.theory.phenomena import iteration
from refsgd.theory.phenomena.collectives import Link
from refsgd.theory.phenomena.layerwise import Plan
from refsgd.theory.phenomena.pipeline import Pipeline
from refsgd.theory.phenomena.stragglers import mean_of_maximum, sum_of
from refsgd.theory.prediction import DomainError, Figures, Kind, Prediction, Side
from refsgd.trace.metrics import METRICS, PREDICTED


@dataclass(frozen=True)
class Setting:
    """The arguments of formulas: the machine and the sizes of the run."""

    machine: Machine
    workers: int
    servers: int
    nbytes: int
    batches: tuple[int, ...]  #: of each worker
    images: float  #: in all gradients of the run, some of which may have fewer
    steps: int
    options: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None  #: of gradients that travel in parts
    pipeline: Pipeline | None = None  #: of a net in stages
    owner: str = ""  #: the formula and its algorithm, where that has no options but these

    @functools.cached_property
    def times(self) -> list[Distribution]:
        """Compute time of each worker, at its speed."""
        return [check_distribution("compute", prices.own(self.machine, i)) for i in range(self.workers)]

    @functools.cached_property
    def updates(self) -> list[Distribution | None]:
        """Time of each worker's own update, at its speed."""
        return [prices.at(self.machine, "worker", i).update for i in range(self.workers)]

    @functools.cached_property
    def own(self) -> list[float]:
        """E[u] of each worker's own update."""
        return [iteration.update_mean(self.machine.update) / self.machine.speed(i)
                for i in range(self.workers)]

    @property
    def link(self) -> Link:
        """The cost of a message in a collective."""
        return Link(self.machine.latency, self.machine.bandwidth, self.machine.reduction)

    @property
    def transfer(self) -> float:
        """w: seconds of the whole model on one link."""
        return self.nbytes / self.machine.bandwidth

    @property
    def pushed(self) -> float:
        """Bytes of a worker's gradient on the wire."""
        return math.fsum(part.up for part in self.plan.parts) if self.plan else self.nbytes

    @property
    def network(self) -> dict[str, Any]:
        """The arguments that every parameter-server formula takes."""
        m = self.machine
        return {"servers": self.servers, "transfer": self.transfer, "latency": m.latency, "update": m.update,
                "colocated": m.colocated}

    @property
    def one_link(self) -> bool:
        """Whether a link takes time and carries both directions."""
        return self.machine.duplex == "half" and self.transfer > 0

    @property
    def update(self) -> float:
        """E[u] of a server."""
        return iteration.update_mean(self.machine.update)

    @property
    def shared(self) -> bool:
        """Whether nodes, parts of a model or both directions share links."""
        m = self.machine
        return self.plan is not None or (m.linked and bool(m.hosts or m.inside or m.groups or self.one_link))

    def check_alone(self) -> None:
        """Raise Uncovered where messages meet on links, for formulas that do not follow them."""
        if self.shared:
            raise Uncovered("no formula follows these messages over links shared by several nodes or both "
                            "directions: they can only be simulated or measured")

    @functools.cached_property
    def placed(self) -> bool:
        """Whether messages between workers and servers meet on links other than each node's two."""
        beside = self.machine.colocated and self.servers > 1 and self.workers > 1
        return self.shared or (self.transfer > 0 and beside)

    @property
    def alone(self) -> bool:
        """Whether there is one server, and no two nodes share a link."""
        m = self.machine
        return self.servers == 1 and not (m.hosts or m.inside or m.groups or self.plan)

    @property
    def queues(self) -> bool:
        """Whether workers may queue at servers' links or processors."""
        return self.placed or (self.workers > 1 and bool(self.transfer or self.update))

    @property
    def met(self) -> bool:
        """Whether pushes and answers meet on links that are not the server's own."""
        return self.placed or (self.machine.colocated and self.queues)

    @functools.cached_property
    def exchanges(self) -> list[float]:
        """Seconds of each worker's push and answer without queueing, if they have their own links."""
        m = self.machine
        return iteration.alone(self.times, self.servers, self.transfer, m.latency, self.update, m.colocated)

    @property
    def tied(self) -> bool:
        """Whether all gradients take fixed times, so that messages tie and rounding decides the order."""
        return certain(*self.times)

    @property
    def together(self) -> bool:
        """Whether all gradients take the same fixed time."""
        return self.tied and len(set(self.times)) == 1

    @property
    def alike(self) -> bool:
        """Whether all workers have the same distribution and exchange, and share only the servers."""
        return not self.placed and len(set(self.times)) == 1 and len(set(self.exchanges)) == 1

    @property
    def memoryless(self) -> bool:
        """Whether workers are alike, exchange at no cost, and what is left of a gradient does not depend on
        when it was begun."""
        return self.alike and self.times[0].family == "exponential" and not any(self.exchanges)

    def option(self, name: str, usual: Any) -> Any:
        """An option that says how much or how often; None has the usual value.

        An algorithm without it may have given it another name, so nothing is assumed.  Options that turn
        something on are read with ``options.get`` instead: without them it is off.
        """
        if self.owner and name not in self.options:
            raise DomainError(f"formula {self.owner} reads option {name}, found "
                              f"{', '.join(self.options) or 'none'}; expected an option of this name, or "
                              "a formula of your own")
        given = self.options.get(name)
        return usual if given is None else given

    def whole(self, name: str, usual: int) -> int:
        """An option that is a whole number."""
        return int(self.option(name, usual))

    def with_options(self, **options: Any) -> Setting:
        """The same setting with other options of the algorithm."""
        return replace(self, options={**self.options, **options})


def slices(nbytes: int, servers: int) -> list[int]:
    """Bytes of each server's part, a whole number of float32."""
    edges = [4 * (nbytes // 4 * k // servers) for k in range(servers)] + [nbytes]
    return [b - a for a, b in itertools.pairwise(edges)]


def weaker(*kinds: Kind) -> Kind:
    """The weakest kind: exact if all are exact, numerical if all are exact or numerical."""
    return kind_of(all(k in ("exact", "numerical") for k in kinds), "numerical" in kinds)


def count(value: float, unit: str, formula: str, **terms: float) -> Prediction:
    """An exact count."""
    return Prediction(float(value), unit, "exact", terms, formula, "the message protocol")


#: why a figure is left to a simulation
QUEUES = "no closed form: messages meet on links, and their order decides who waits"
#: metrics in seconds, or relative to the seconds of the run
TIMES = [name for name in PREDICTED if METRICS[name].unit == "s" or METRICS[name].per == "seconds"]


def figures(c: Setting, step: Prediction | None, run: Prediction | None, updates: int, sent: float,
            *more: Mapping[str, Prediction]) -> Figures:
    """The metrics common to all algorithms (times, throughput, updates, bytes, idle time), and `more`; times
    without a formula are None, and are left to a simulation."""
    out = Figures({"updates": count(updates, "updates", "updates of one server"),
                   "bytes_per_iteration": count(sent, "bytes", "all nodes together"),
                   "bytes_sent": count(sent * c.steps, "bytes", "bytes_per_iteration x steps")})
    out.leave(QUEUES, *TIMES)
    if step:
        out["seconds_per_iteration"] = step
    if run:
        out |= {"images_per_second": throughput(c, run), "seconds": run}
    if step and run and 0 < run.value < math.inf:
        out |= _idleness(c, step, run)
    elif run and not 0 < run.value < math.inf:
        out.without("a run without a finite duration has no idle share", "idle_ratio", "idle_by_cause")
    for others in more:
        out |= others
    return out


OPPOSITE: dict[Side, Side] = {"lower": "upper", "upper": "lower", "": ""}  #: bounds of a rate, from a time's


def throughput(c: Setting, run: Prediction, applied: float = 1.0) -> Prediction:
    """Images over the seconds of a run, or those of many runs over their seconds if times are drawn; a share
    of the gradients is `applied`."""
    images = applied * c.images
    value = images / run.value if run.value else math.inf
    return Prediction(value, "images/s", run.kind if images else "exact",
                      {"images": images, "elapsed": run.value,
                       **sampling(value * run.error / run.value if run.value else 0.0)},
                      "images in applied gradients / seconds", run.source, run.assumptions,
                      {"images": "images", "elapsed": "s"}, OPPOSITE[run.bound])


def _idleness(c: Setting, step: Prediction, run: Prediction) -> dict[str, Prediction]:
    """The idle share of the whole run, and its split by the terms of the iteration."""
    busy = c.steps * iteration.mean_time(c.times)  # of each worker, on average
    idle = max(1 - busy / run.value, 0.0)

    def share(*names: str) -> dict[str, float]:
        return {name: max(step.terms.get(name, 0.0), 0.0) * c.steps / run.value for name in names}

    shares = _fit(share("transfer", "update"), idle)
    rest = idle - math.fsum(shares.values())
    shares |= _fit(share("queueing", "slack", "partner", "straggling"), rest)
    # workers that end early wait for the last
    shares["straggling"] += max(idle - math.fsum(shares.values()), 0.0)
    shares = {name: v for name, v in shares.items() if v > 0}
    ratio = Prediction(idle, "1", run.kind,
                       {"computing": busy, "elapsed": run.value,
                        **sampling((1 - idle) * run.error / run.value)},
                       "1 - steps x E[T] / seconds, mean over workers", step.source, step.assumptions,
                       {"computing": "s", "elapsed": "s"})
    causes = Prediction(idle, "1", kind_of(len(shares) < 2 and run.kind == "exact"), shares,
                        "terms of the iteration x steps / seconds", step.source, step.assumptions)
    return {"idle_ratio": ratio, "idle_by_cause": causes}


def _fit(shares: dict[str, float], room: float) -> dict[str, float]:
    """Shares, scaled down if their sum exceeds `room`."""
    known = math.fsum(shares.values())
    return {name: v * max(room, 0.0) / known
            for name, v in shares.items()} if known > max(room, 0.0) else shares


def zero(unit: str, formula: str) -> Prediction:
    """A prediction that is 0 by construction."""
    return Prediction(0.0, unit, "exact", {}, formula, "by construction")


def clocks(c: Setting, gap: float, lead: float, formula: str) -> dict[str, Prediction]:
    """Upper bounds of the gaps of started and of completed iterations, reached in long runs."""
    limits = {"clock_gap_max": min(gap, c.steps - 1), "lead_max": min(lead, c.steps)}
    return {name: Prediction(float(value if c.workers > 1 else 0), "iterations", "bound", {}, formula,
                             "the gate", bound="upper") for name, value in limits.items()}


RUN = "bounded only by the length of the run"


def unbounded(c: Setting) -> dict[str, Prediction]:
    """`clocks` of workers that never wait."""
    return clocks(c, math.inf, math.inf, RUN)


def last_of_sums(c: Setting, exchanges: Sequence[float] | None = None) -> tuple[float, bool]:
    """E[max over workers of the sum of `steps` rounds, a compute time and the worker's exchange each] in
    seconds, without queueing, and whether it is exact; if exchanges differ, only workers within three
    standard deviations of the slowest are considered."""
    sums = [sum_of(time, c.steps) for time in c.times]
    fixed = [c.steps * e for e in exchanges or [0.0] * c.workers]
    if len(set(fixed)) == 1:
        return mean_of_maximum([time for time, _ in sums]) + fixed[0], all(closed for _, closed in sums)
    ends = [time.mean + e for (time, _), e in zip(sums, fixed, strict=True)]
    near = [i for i, (time, _) in enumerate(sums)
            if ends[i] >= max(ends) * (1 - 1e-12) - 3 * math.sqrt(min(time.variance, time.mean * time.mean))]
    return mean_of_maximum([sums[i][0] for i in near]) + max(fixed[i] for i in near), c.tied
