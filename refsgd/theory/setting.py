"""What a prediction is asked about, and the figures that every algorithm has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from refsgd.laws import Law
from refsgd.machine import Machine
from refsgd.theory import iteration, server
from refsgd.theory.prediction import Kind, Prediction, Side, check_law, kind_of, sampling
from refsgd.theory.stations import Network
from refsgd.theory.stragglers import mean_of_maximum, sum_law

Figures = dict[str, Prediction]


@dataclass(frozen=True)
class Setting:
    """What a formula is asked about: the machine in numbers and the sizes of the run.

    Parameters
    ----------
    machine : Machine
    workers, servers : int
        n and K.
    nbytes : int
        M, bytes of the parameters.
    batch : int
        Images per worker and iteration.
    steps : int
        Iterations of each worker.
    options : mapping
        The algorithm's own.
    """

    machine: Machine
    workers: int
    servers: int
    nbytes: int
    batch: int
    steps: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def laws(self) -> list[Law]:
        """Compute time of each worker, slower or faster by its speed."""
        law = check_law("compute", self.machine.compute)
        return [law.scaled(1 / self.machine.speed(f"worker{i}")) for i in range(self.workers)]

    @property
    def own(self) -> list[float]:
        """E[u] of each worker's own update, slower or faster by its speed."""
        return [iteration.update_mean(self.machine.update) / self.machine.speed(f"worker{i}") for i in range(self.workers)]

    @property
    def own_law(self) -> Law | None:
        """Law of the slowest worker's own update."""
        update = self.machine.update
        return None if update is None else update.scaled(1 / min(self.machine.speed(f"worker{i}") for i in range(self.workers)))

    @property
    def transfer(self) -> float:
        """w: seconds of the whole model on one link."""
        return self.nbytes / self.machine.bandwidth

    @property
    def network(self) -> dict[str, Any]:
        """The arguments that every parameter-server formula takes."""
        m = self.machine
        return {"servers": self.servers, "transfer": self.transfer, "latency": m.latency, "update": m.update,
                "collocated": m.collocated}

    @property
    def links(self) -> Network:
        """What messages to the servers meet."""
        return Network(self.servers, self.transfer, self.machine.latency, self.machine.update)

    @property
    def busy(self) -> float:
        """Seconds of gradients of a worker in the whole run, mean over workers."""
        return self.steps * iteration.mean_time(self.laws)

    @property
    def exchanges(self) -> list[float]:
        """Seconds of a push and its answer of each worker that meet nobody else."""
        m = self.machine
        return server.alone(self.laws, self.servers, self.transfer, m.latency, iteration.update_mean(m.update), m.collocated)

    @property
    def tied(self) -> bool:
        """Whether all gradients take fixed times: messages then tie, and the last digit of a sum decides who comes first."""
        return all(law.family == "fixed" for law in self.laws)

    @property
    def alike(self) -> bool:
        """Whether all workers have the same law and the same way to the servers."""
        return len(set(self.laws)) == 1 and len(set(self.exchanges)) == 1

    def with_options(self, **options: Any) -> Setting:
        """The same with other options of the algorithm.

        Parameters
        ----------
        **options
            Those that change.

        Returns
        -------
        Setting
        """
        return replace(self, options={**self.options, **options})


def weaker(*kinds: Kind) -> Kind:
    """exact only if all are; numerical if all are faithful.

    Parameters
    ----------
    *kinds : {"exact", "numerical", "approximation", "bound"}

    Returns
    -------
    str
    """
    return kind_of(all(k in ("exact", "numerical") for k in kinds), "numerical" in kinds)


def count(value: float, unit: str, formula: str, **terms: float) -> Prediction:
    """A figure that is counted, hence exact.

    Parameters
    ----------
    value : float
    unit : str
    formula : str
        How it is counted.
    **terms : float
        What it is the sum of.

    Returns
    -------
    Prediction
    """
    return Prediction(float(value), unit, "exact", terms, formula, "the message protocol")


def figures(c: Setting, step: Prediction, run: Prediction, updates: int, sent: float) -> Figures:
    """What every algorithm has: times, throughput, updates, bytes and idleness with its causes.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    step, run : Prediction
        Seconds per iteration (long run) with its terms; seconds of the whole run.
    updates : int
        Of one server (without servers: of each worker's replica).
    sent : float
        Bytes per iteration, of all nodes together.

    Returns
    -------
    dict of str to Prediction
    """
    out = {
        "seconds_per_iteration": step, "images_per_second": throughput(c, step), "seconds": run,
        "updates": count(updates, "updates", "updates of one server"),
        "bytes_per_iteration": count(sent, "bytes", "all nodes together"),
        "bytes_sent": count(sent * c.steps, "bytes", "bytes_per_iteration x steps"),
    }
    if run.value > 0 and math.isfinite(run.value):
        out.update(_idleness(c, step, run))
    return out


def throughput(c: Setting, step: Prediction) -> Prediction:
    """Images per second of all workers together.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    step : Prediction
        Seconds of an iteration.

    Returns
    -------
    Prediction
    """
    images = float(c.workers * c.batch)
    error = images * step.error / step.value**2 if step.value else 0.0
    return Prediction(images / step.value if step.value else math.inf, "images/s", step.kind,
                      {"images per iteration": images, "iteration": step.value, **sampling(error)},
                      "n b / seconds_per_iteration", step.source, step.assumptions,
                      {"images per iteration": "images", "iteration": "s"}, _flipped(step.bound))


def _flipped(bound: Side) -> Side:
    """A lower bound of a time is an upper bound of a rate."""
    opposite: dict[Side, Side] = {"lower": "upper", "upper": "lower", "": ""}
    return opposite[bound]


def _idleness(c: Setting, step: Prediction, run: Prediction) -> Figures:
    """1 - (gradient seconds)/elapsed over the whole run, and its split by the iteration's terms."""
    idle = max(1 - c.busy / run.value, 0.0)

    def share(*names: str) -> dict[str, float]:
        return {name: max(step.terms.get(name, 0.0), 0.0) * c.steps / run.value for name in names}

    shares = _fit(share("transfer", "update"), idle)
    rest = idle - math.fsum(shares.values())
    shares |= _fit(share("queueing", "slack", "partner", "straggling"), rest)
    shares["straggling"] += max(idle - math.fsum(shares.values()), 0.0)  # those that end first wait for the last
    shares = {name: v for name, v in shares.items() if v > 0}
    ratio = Prediction(idle, "1", run.kind, {"computing": c.busy, "elapsed": run.value, **sampling((1 - idle) * run.error / run.value)},
                       "1 - steps x E[T] / seconds, mean over workers", step.source, step.assumptions,
                       {"computing": "s", "elapsed": "s"})
    causes = Prediction(idle, "1", kind_of(len(shares) < 2 and run.kind == "exact"), shares,
                        "terms of the iteration x steps / seconds", step.source, step.assumptions)
    return {"idle_ratio": ratio, "idle_by_cause": causes}


def _fit(shares: dict[str, float], room: float) -> dict[str, float]:
    """Shares scaled down in proportion if they do not fit."""
    known = math.fsum(shares.values())
    return {name: v * max(room, 0.0) / known for name, v in shares.items()} if known > max(room, 0.0) else shares


def zero(unit: str, formula: str) -> Prediction:
    """A figure that is 0 by construction.

    Parameters
    ----------
    unit : str
    formula : str
        Why it is zero.

    Returns
    -------
    Prediction
    """
    return Prediction(0.0, unit, "exact", {}, formula, "by construction")


def clocks(c: Setting, gap: float, lead: float, formula: str) -> Figures:
    """Largest gap of started and of completed iterations; upper bounds, met in long runs.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    gap, lead : float
        Upper bounds; may be infinite.
    formula : str
        Why they hold.

    Returns
    -------
    dict of str to Prediction
    """
    most = max(c.steps - 1, 0) if c.workers > 1 else 0
    out: Figures = {}
    for name, value, top in (("clock_gap_max", gap, most), ("lead_max", lead, most + 1 if c.workers > 1 and c.steps else 0)):
        out[name] = Prediction(float(min(value, top)), "iterations", "bound", {}, formula, "the gate", bound="upper")
    return out


def last_of_sums(c: Setting, exchanges: Sequence[float] | None = None) -> tuple[float, bool]:
    """E[max over workers of the sum of `steps` rounds that meet nobody] in seconds, and whether that is exact.

    A round is a compute time and the worker's exchange.  Where exchanges differ, only workers within three
    standard deviations of the slowest can be last.

    Parameters
    ----------
    c : Setting
        The machine in numbers and the sizes of the run.
    exchanges : sequence of float, optional
        Seconds of each worker besides its gradient, in every iteration; none by default.

    Returns
    -------
    (float, bool)
        Seconds, and whether they are exact.
    """
    if not c.steps:
        return 0.0, True
    sums = [sum_law(law, c.steps) for law in c.laws]
    fixed = [c.steps * e for e in exchanges or [0.0] * c.workers]
    if len(set(fixed)) == 1:
        return mean_of_maximum([law for law, _ in sums]) + fixed[0], all(closed for _, closed in sums)
    ends = [law.mean + e for (law, _), e in zip(sums, fixed, strict=True)]
    near = [i for i, (law, _) in enumerate(sums) if ends[i] >= max(ends) * (1 - 1e-12) - 3 * math.sqrt(min(law.variance, law.mean**2))]
    sure = all(law.family == "fixed" for law in c.laws)
    return mean_of_maximum([sums[i][0] for i in near]) + max(fixed[i] for i in near), sure
