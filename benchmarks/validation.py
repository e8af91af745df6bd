"""Formulas beside the simulator, the simulator beside real processes, formulas beside published figures.

``python -m benchmarks.validation grid`` runs every algorithm that has formulas over laws, workers, latencies
and bandwidths in the simulator and compares it with `refsgd.theory.predict`; ``hard`` does so in cases that
nobody picks, drawn from a seed.  ``paced`` (a quiet machine) runs four OS processes beside the simulation.
``grid`` runs in pieces with ``--part 1/3``, which may run at once.  ``page`` writes docs/validation.md and its
pictures from what they have left in benchmarks/results/validation.json.
All but the paced runs are deterministic.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.machines import FIGURES, NAMES, D, scale_of, unit
from benchmarks.oracle import compare
from benchmarks.published import UNADDRESSED, figures
from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.machine import Machine
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import prepare
from refsgd.problems import Problem
from refsgd.problems.chain import Block
from refsgd.problems.shapes import shape_only
from refsgd.trace import Computed, Trace
from refsgd.trace.schema import json_text

RESULTS = Path(__file__).parent / "results" / "validation.json"
DOCS = Path(__file__).parent.parent / "docs"
LAWS = ("fixed(0.02)", "exponential(0.02)", "lognormal(0.02,0.5)")
WORKERS = (2, 4, 8)
# latency [s], seconds of the model on a link
LINKS = ((0.0, 0.0), (0.002, 0.0), (0.002, 0.001), (0.002, 0.005))
STEPS, SEEDS = 120, 12
FAITHFUL = ("exact", "numerical")  #: kinds of formulas that simplify nothing
MORE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bsp", {"servers": 2}), ("asp", {"servers": 2}), ("ssp", {"servers": 2}),
    ("ssp", {"staleness": 1}), ("ssp", {"refresh": "lazy"}), ("ssp", {"staleness": 1, "refresh": "lazy"}),
    ("ssp", {"refresh": "eager"}),
    ("allreduce", {"collective": "halving-doubling"}), ("allreduce", {"collective": "pscpu"}),
    ("easgd", {"mode": "sync"}),
    ("downpour", {"fetch_every": 3}), ("downpour", {"push_every": 2}), ("dpsgd", {"order": "atc"}),
    ("backup-workers", {"backups": 2}), ("streaming-diloco", {"fragments": 1, "delay": 8}),
    ("dssp", {"lower": 1, "upper": 4}), ("gosgd", {"p": 1.0}), ("zero", {"stage": 1}), ("zero", {"stage": 2}),
    ("gpipe", {"passes": "1f1b"}), ("gpipe", {"micro": 8, "passes": "1f1b", "chunks": 2}), ("gpipe", {"stages": 2}),
    ("pipedream", {"stages": 2}))
# timed as others are: 4 workers only
TWINS = ("softsync", "staleness-aware", "dc-asgd", "consgd", "dynsgd", "independent", "diloco")
CONFIGURATIONS = tuple((name, dict[str, Any]()) for name, function in CATALOGUE.items() if facts_of(function).formula) + MORE


@dataclass(frozen=True)
class Case:
    """One algorithm on one machine."""

    algorithm: str
    options: dict[str, Any]
    workers: int
    law: str
    latency: float
    transfer: float
    servers: int = 1
    speeds: tuple[float, ...] = ()
    update: float | None = None

    @property
    def label(self) -> str:
        """The algorithm with its options."""
        more = {**self.options, **({"servers": self.servers} if self.servers > 1 else {}),
                **({"speeds": ",".join(f"{v:g}" for v in self.speeds)} if self.speeds else {}),
                **({"update": f"{self.update * 1e3:g} ms"} if self.update else {})}
        return " ".join([self.algorithm, *(f"{k}={v}" for k, v in more.items())])

    @property
    def machine(self) -> Machine:
        """As `refsgd.cluster.machine.Machine`."""
        return Machine(compute=self.law, latency=self.latency, bandwidth=4 * D / self.transfer
                       if self.transfer else math.inf, speeds=self.speeds,  # type: ignore[arg-type]
                       update=self.update)  # type: ignore[arg-type]

    @property
    def mean(self) -> float:
        """Seconds of a gradient, over the workers."""
        return float(np.mean([self.machine.compute.mean / self.machine.speed(i)  # type: ignore[union-attr]
                              for i in range(self.workers)]))

    @property
    def staged(self) -> bool:
        """Whether workers are stages of one pipeline."""
        return facts_of(CATALOGUE[self.algorithm]).staged

    @property
    def fixed(self) -> bool:
        """Whether nothing in it is random."""
        return self.law.startswith("fixed") and self.algorithm not in ("gosgd", "adpsgd", "pair-averaging")


@dataclass(frozen=True)
class Row:
    """A figure that formula and simulator give; times in seconds.

    `error`: standard error of the simulation; `deviation`: predicted - simulated over the standard error of
    both.
    """

    label: str
    workers: int
    law: str
    latency: float
    transfer: float
    figure: str
    kind: str
    side: str
    predicted: float
    simulated: float
    error: float
    deviation: float
    runs: int

    @property
    def machine(self) -> tuple[int, str, float, float]:
        """What the algorithm ran on."""
        return self.workers, self.law, self.latency, self.transfer

    @property
    def relative(self) -> float:
        """Error of the formula, see `machines.scale_of`."""
        return (self.predicted - self.simulated) / scale_of(self.figure, self.simulated)

    @property
    def noise(self) -> float:
        """Standard error of the simulation in the unit of `relative`."""
        return self.error / scale_of(self.figure, self.simulated)


def _unused(*given: Any) -> Any:
    """The pass of a block without contents, which `shape_only` replaces."""


def problem_of(algorithm: str) -> Problem:
    """Shape-only parameters where the algorithm does not read them; for pipelines 8 equal blocks, with
    activations of 8 examples as large as the model."""
    if algorithm in ("gpipe", "pipedream"):
        parts = [slice(D * k // 8, D * (k + 1) // 8) for k in range(8)]
        return shape_only(D, 8, blocks=[Block("", part, 1.0, D / 2, _unused, _unused) for part in parts])
    if algorithm not in ("dgc", "hogwild", "approximate", "adacomm"):
        return shape_only(D)
    return Problem(np.zeros(D, np.float32), lambda x, rank, t: np.full(D, 1e-3, np.float32), lambda x: 0.0)


def iteration(trace: Trace, case: Case) -> tuple[float, float]:
    """Long-run seconds per iteration, and the mean of the drawn compute times in it [s].

    Two fifths of each worker's iterations, after two fifths; of the server's updates where workers skip some.
    All workers are alike here, so their seconds are added and divided by all their iterations: a mean of their
    rates would be 1/48 too quick over 48 exponential times.
    """
    def pace(ends: list[list[float]]) -> float:
        parts = [v[2 * len(v) // 5: 4 * len(v) // 5 + 1] for v in ends]
        return sum(v[-1] - v[0] for v in parts) / sum(len(v) - 1 for v in parts)

    if case.staged or case.algorithm == "zero":  # whose gradients come in pieces
        return pace([[e.time for e in trace.marks("clock") if e.node == w] for w in trace.workers]), gradient_time(
            trace, case)
    done = {w: [e for e in trace.of(Computed, w) if e.work == "gradient"] for w in trace.workers}
    drawn = float(np.mean([e.time - e.start for v in done.values() for e in v[2 * len(v) // 5 + 1: 4 * len(v) // 5 + 1]]))
    ends = [[e.time for e in trace.marks("update")]] if case.algorithm == "backup-workers" else [
        [e.time for e in v] for v in done.values()]
    return pace(ends), drawn


def gradient_time(trace: Trace, case: Case) -> float:
    """Mean over a run of the drawn time of a gradient [s], which stages share."""
    mean = sum(trace.busy.values()) / max(sum(trace.iterations.values()), 1)
    return mean * case.options.get("stages", case.workers) if case.staged else mean


def adjusted(values: np.ndarray, luck: np.ndarray | None = None) -> tuple[float, float]:
    """Mean over runs and its standard error; the part that the luck of the draws explains is taken out by
    regression."""
    count = len(values)
    if count == 1 or not np.ptp(values):
        return float(values.mean()), 0.0
    if luck is None or np.ptp(luck) == 0:
        return float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count)
    design = np.stack([np.ones(count), luck], axis=1)
    inverse = np.linalg.inv(design.T @ design)
    solution = inverse @ design.T @ values
    rest = float(np.sum((values - design @ solution) ** 2)) / (count - 2)
    return float(solution[0]), math.sqrt(rest * float(inverse[0, 0]))


def measured(case: Case, steps: int, seeds: int) -> tuple[dict[str, Any], dict[str, np.ndarray],
                                                          dict[str, np.ndarray]]:
    """Predictions, each figure of `seeds` simulated runs, and the mean of the compute times drawn in the
    run and in the part that `iteration` takes [s]."""
    first = zlib.crc32(case.label.encode()) % 10_000  # other draws for every algorithm
    values: dict[str, list[float]] = {name: [] for name in FIGURES}
    drawn: dict[str, list[float]] = {"run": [], "part": []}
    for seed in range(seeds):
        experiment = prepare(case.algorithm, problem_of(case.algorithm), workers=case.workers,
                             servers=case.servers, steps=steps,
                             machine=case.machine, seed=first + seed, **case.options)
        trace = perform(experiment, "simulator").trace
        ages = [tau for _, tau in trace.staleness]
        each, luck = iteration(trace, case)
        drawn["part"].append(luck)
        drawn["run"].append(gradient_time(trace, case))
        for name, value in zip(FIGURES, (each, trace.seconds, trace.idle_ratio,
                                         float(np.mean(ages)) if ages else 0.0,
                                         float(sum(trace.bytes_sent.values())))):
            values[name].append(value)
    return experiment.formulas(), {name: np.array(v)
                                      for name, v in values.items()}, {
                                          k: np.array(v) for k, v in drawn.items()}


def check(case: Case, steps: int = STEPS, seeds: int = SEEDS) -> list[Row]:
    """Every figure of a case that has a formula."""
    seeds = 1 if case.fixed else seeds
    predictions, values, drawn = measured(case, steps, seeds)
    rows = []
    for name in FIGURES:
        p = predictions.get(name)
        mixed = case.speeds or case.algorithm == "post-local"  # of unequal workers, or before and after a switch
        if p is None or (mixed and name == "seconds_per_iteration"):
            continue
        luck = None if name == "bytes_sent" else drawn["part" if name == "seconds_per_iteration"
                                                       else "run"] - case.mean
        mean, error = adjusted(values[name], luck)
        both = math.hypot(error, p.terms.get("standard error", 0.0))
        away = p.value - mean
        deviation = 0.0 if abs(away) <= 1e-6 * max(abs(mean),
                                                   1e-9) + 1e-12 else away / both if both else math.inf
        rows.append(Row(case.label, case.workers, case.law, case.latency, case.transfer, name, p.kind,
                        p.bound,
                        *(float(f"{v:.8g}") for v in (p.value, mean, error, deviation)), seeds))
    return rows


def cases(workers: Iterable[int] = WORKERS, laws: Iterable[str] = LAWS,
          links: Iterable[tuple[float, float]] = LINKS,
          configurations: Iterable[tuple[str, dict[str, Any]]] = CONFIGURATIONS) -> Iterator[Case]:
    """The grid: algorithms as they come on all of it, their options and their twins on 4 workers;
    log-normal times with 4 workers only."""
    for name, given in configurations:
        options = {k: v for k, v in given.items() if k != "servers"}
        plain = not given and name not in TWINS
        for n in (1,) if name == "sequential" else workers if plain else set(workers) & {4}:
            for law in laws:
                for latency, transfer in links:
                    if (not law.startswith("lognormal")
                        or (plain and n == 4)) and n > options.get("backups", 0):
                        yield Case(name, options, n, law, latency, transfer, given.get("servers", 1))


#: slow, or without times, or later than the draws, which a longer list would change
SLOW = ("sequential", "gpipe", "pipedream", "dgc", "hogwild", "approximate", "downpour", "zero", "ako")


def hard(seed: int = 12, each: int = 2) -> Iterator[Case]:
    """Cases from a seed: numbers of workers that are no powers of two, few of them, unequal speeds, more servers,
    updates that take time, links from idle to saturated.

    Each configuration draws its own, so that a new algorithm leaves those of the others as they are.
    """
    for name, given in (c for c in CONFIGURATIONS if c[0] not in SLOW):
        rng = random.Random(f"{seed} {name} {given}")
        for _ in range(each):
            n = rng.choice([n for n in (2, 3, 5, 6, 7, 12) if n > given.get("backups", 1)])
            many = facts_of(CATALOGUE[name]).served
            yield Case(name, {k: v for k, v in given.items() if k != "servers"}, n,
                       rng.choice((*LAWS, "straggler(0.02,0.1,5)")), rng.choice((0.0005, 0.00137, 0.002)),
                       rng.choice((0.0, 0.001, 0.003, 0.00517, 0.009)), rng.choice((1, 1, 2, 3)) if many else 1,
                       tuple(rng.choice((1.0, 0.5, 2.0, 1.3)) for _ in range(n)) if rng.random() < 0.4 else (),
                       rng.choice((None, None, 0.0005, 0.002)))


def tolerance(rows: int, runs: int, level: float = 0.99) -> float:
    """Student quantile that all of this many deviations stay below with probability `level`."""
    return float(stats.t.ppf(1 - (1 - level) / 2 / max(rows, 1), runs - 2))


@dataclass(frozen=True)
class Exactness:
    """How the rows that call themselves exact or numerical came off."""

    digits: int  # fixed times: rows that are equal to six digits
    of_digits: int
    inside: int  # random times: rows within their own 99 % interval
    of_inside: int
    largest: float  # deviation
    limit: float  # what all of them stay below with probability 99 %
    worst: str


def exactness(rows: list[Row]) -> Exactness:
    """Of the rows of kind exact or numerical."""
    exact = [r for r in rows if r.kind in FAITHFUL]
    fixed, random = [r for r in exact if r.runs == 1], [r for r in exact if r.runs > 1]
    moving = [r for r in random if r.error or r.deviation]
    worst = max(moving, key=lambda r: abs(r.deviation))
    quantile = tolerance(1, worst.runs)
    return Exactness(sum(r.deviation == 0 for r in fixed), len(fixed),
                     sum(abs(r.deviation) <= quantile for r in moving), len(moving),
                     abs(worst.deviation), tolerance(len(moving), worst.runs),
                     f"{worst.label}, {worst.figure}")


def largest(rows: list[Row]) -> dict[tuple[str, str], Row]:
    """The row with the largest error of each (algorithm with options, figure), of kind approximation."""
    out: dict[tuple[str, str], Row] = {}
    for r in rows:
        key = r.label, r.figure
        if r.kind == "approximation" and (key not in out or abs(r.relative) > abs(out[key].relative)):
            out[key] = r
    return out


def crossed(rows: list[Row]) -> list[Row]:
    """Bounds that the simulation crosses by more than three standard errors."""
    return [r for r in rows if r.kind == "bound" and
            (r.simulated - r.predicted) * (1 if r.side == "upper" else -1) > 3 * r.error + 1e-9
            * abs(r.simulated)]


# -- processes ---------------------------------------------------------------------------------------------

PACED = [(name, options, law, latency, bandwidth)
         for name, options in (("bsp", {}), ("asp", {}), ("ssp", {"staleness": 1}), ("allreduce", {}),
                               ("adpsgd", {}), ("easgd", {}), ("downpour", {}))
         for law, latency, bandwidth in (("fixed(0.03)", 0.0, math.inf), ("lognormal(0.02,0.5)", 0.005, 1e6),
                                         ("exponential(0.05)", 0.02, 5e6))]


def four(name: str, options: dict[str, Any], machine: Machine, runtime: str, steps: int = 50) -> Trace:
    """Four workers on a vector of D numbers."""
    problem = Problem(np.zeros(D, np.float32), lambda x, rank, t: np.full(D, 1e-3, np.float32), lambda x: 0.0)
    return perform(prepare(name, problem, workers=4, steps=steps, machine=machine, seed=3, **options),
                   runtime).trace


def paced(part: tuple[int, int], steps: int = 50) -> Iterator[dict[str, Any]]:
    """Four workers as OS processes and in the simulator, same seed."""
    for name, options, law, latency, bandwidth in PACED[part[0] - 1:: part[1]]:
        seen = {}
        for runtime in ("simulator", "processes"):
            trace = four(name, options, Machine(compute=law, latency=latency, bandwidth=bandwidth), runtime,
                         steps)  # type: ignore[arg-type]
            ages = [tau for _, tau in trace.staleness]
            rate = trace.iteration_rate
            seen[runtime] = {"seconds_per_iteration": 4 / rate, "bytes_sent": sum(trace.bytes_sent.values()),
                             "idle_ratio": trace.idle_ratio,
                             "staleness_mean": float(np.mean(ages)) if ages else 0.0}
        yield {"algorithm": name, "options": options, "law": law, "latency": latency,
               "bandwidth": None if math.isinf(bandwidth) else bandwidth,
               **seen}


# -- the page ----------------------------------------------------------------------------------------------

def load() -> dict[str, Any]:
    """What earlier parts have found; rows are stored as lists."""
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows = {name: [Row(*values) for values in found.get(name, [])] for name in ("grid", "hard")}
    return {**found, **rows, "paced": found.get("paced", [])}


def save(grid: Iterable[Row] = (), paced: Iterable[dict[str, Any]] = (), hard: Iterable[Row] = ()) -> None:
    """Put rows and runs in the place of earlier ones of the same label; other parts may be doing so too."""
    directory = os.open(RESULTS.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        found, new, runs, cases = load(), list(grid), list(paced), list(hard)
        labels, known = {r.label for r in new}, {_machine(r) for r in runs}
        rows = in_order([r for r in found["grid"] if r.label not in labels] + new)
        kept = sorted([r for r in found["paced"] if _machine(r) not in known] + runs, key=_machine)
        text, beside = (",\n".join(json_text(astuple(r), indent=None) for r in some)
                        for some in (rows, cases or found["hard"]))
        RESULTS.write_text(
            f'{{"columns": {json_text([f.name for f in fields(Row)], indent=None)},\n"grid": [\n{text}],\n"hard": [\n{beside}],\n'
            f'"paced": {json_text(kept)}}}\n', encoding="utf-8")
    finally:
        os.close(directory)


def _machine(run: dict[str, Any]) -> str:
    return json_text([run[k] for k in ("algorithm", "options", "law", "latency", "bandwidth")], indent=None)


def percent(value: float) -> str:
    """A share with a sign."""
    return f"{value:+.1%}"


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows in the order of the grid, however many parts have made them."""
    place = {label: i for i, label in enumerate(dict.fromkeys(case.label for case in cases()))}
    return sorted(rows, key=lambda r: place[r.label])


def page(found: dict[str, Any]) -> str:
    """The page as MyST; every number in it is from `found` or from `benchmarks.published`."""
    rows, every = found["grid"], [*found["grid"], *found["hard"]]
    bounds, over = [r for r in every if r.kind == "bound"], crossed(every)
    met = {r.label for r in bounds if abs(r.predicted - r.simulated) <= 1e-9 * abs(r.simulated)}
    out = [HEAD.format(cases=len({(r.label, r.machine) for r in rows}), rows=len(rows), steps=STEPS,
                       seeds=SEEDS, hard=len({(r.label, r.machine) for r in found["hard"]}),
                       more=len(found["hard"])), EXACT.format(**asdict(exactness(every))),
           _approximations(rows, every),
           f"## Bounds\n\n{len(bounds)} figures are bounds, all of "
           f"{', '.join(f'`{name}`' for name in dict.fromkeys(r.label for r in rows if r.kind == 'bound'))}. "
           f"Simulations beyond their bound: {len(over)}. Bounds that a simulation meets to the last digit: "
           f"{', '.join(f'`{name}`' for name in sorted(met)) or 'none'}.\n"]
    out.append(compare.section())
    if found.get("paced"):
        out.append(_processes(found["paced"]))
    out.append(_published())
    return "\n".join(out)


HEAD = """# Formula, simulation, measurement

This page compares every formula of `refsgd predict` with the simulator, the simulator with a second implementation,
the simulator with real processes, and formulas with published measurements. Figures without a formula, which
`refsgd predict` simulates, are not here. `python -m benchmarks.validation grid`, `hard`, `paced` and `page` generate it;
its numbers are in `benchmarks/results/validation.json`, and `theory/test_validation.py` recomputes a part of
them.

The grid has {cases} cases and {rows} figures: every algorithm that has formulas, some with several options;
fixed, exponential and log-normal times of mean 20 ms; 2, 4 and 8 workers; latency 0 and 2 ms; 0, 1 and 5 ms to
transfer the model over a link (at 5 ms, 8 workers saturate a server's link). A simulation has {steps} iterations, and
{seeds} runs if times are random, with separate draws for each algorithm. Variance that the mean of a run's
drawn times explains is removed by regression. Beside it there are {hard} hard cases with {more} figures, drawn from
a seed: 2, 3, 5, 6, 7 or 12 workers, of equal or of unequal speeds, with one to three servers, with updates that take
time or not, with links from idle to far beyond saturation, and times that are sometimes five times as long. Pipelines have a net of 8 equal blocks, and activations as large as
the model cross each cut.

![Error of iteration time and idle ratio of every approximation](images/validation-errors.png)
"""

EXACT = """## Exact and numerical figures

With fixed times, {digits} of {of_digits} figures equal the simulation's to six digits. With random times,
{inside} of {of_inside} figures lie within their own 99 % confidence interval (Student's; it combines the
standard errors of the simulation and of a formula's Monte Carlo mean). The largest deviation is {largest:.1f}
standard errors ({worst}); with a probability of 99 %, all of them stay below {limit:.1f}.

![Deviations of exact figures](images/validation-exact.png)
"""

def _where(r: Row) -> str:
    return f"{r.workers} workers, {r.law}, latency {r.latency * 1e3:g} ms, transfer {r.transfer * 1e3:g} ms"


def stated(rows: Iterable[Row]) -> dict[str, Row]:
    """The row with the largest error of each figure, over all approximations."""
    out: dict[str, Row] = {}
    for r in largest(list(rows)).values():
        if r.figure not in out or abs(r.relative) > abs(out[r.figure].relative):
            out[r.figure] = r
    return out


def _approximations(rows: list[Row], every: list[Row]) -> str:
    """Counts by algorithm and figure, largest errors of all, hard cases included, and of each on the grid."""
    worst, most, labels = largest(rows), stated(every), list(dict.fromkeys(r.label for r in rows))
    out = ["## Approximations", "",
           "Errors are predicted/simulated - 1 for times, bytes and staleness (below one update: the "
           "difference in updates), and the difference for the idle ratio. They include the noise of the "
           "simulation; its standard error is in brackets, in the same unit. Over the whole grid and the hard cases:", "",
           "| figure | largest error | where |", "|---|---|---|"]
    out += [f"| {NAMES[name]} | {unit(r.figure, r.relative)} ({r.noise:.3f}) | `{r.label}`, {_where(r)} |"
            for name in FIGURES if (r := most.get(name))]
    out += ["", "GoSGD's bytes are predicted in expectation; the rest is the random variation of its draws.",
            "", "## Every algorithm", "",
            "E: all rows are exact or numerical, with their number; *k of m*: k of m rows are "
            "approximations, with their largest error; B: a bound; -: simulated or without a figure (`refsgd predict` "
            "says why). On the grid:", "", "| algorithm | " + " | ".join(NAMES[name] for name in FIGURES) + " |",
            "|---" * (len(FIGURES) + 1) + "|"]
    for label in labels:
        cells = []
        for name in FIGURES:
            mine = [r for r in rows if r.label == label and r.figure == name]
            loose = sum(r.kind == "approximation" for r in mine)
            far = worst.get((label, name))
            cells.append("-" if not mine
                         else f"{loose} of {len(mine)}: {unit(far.figure, far.relative)} ({far.noise:.3f})" if far
                         else
                         "B" if any(m.kind == "bound" for m in mine) else f"E {len(mine)}")
        out.append(f"| `{label}` | " + " | ".join(cells) + " |")
    return "\n".join([*out, ""])


def _processes(runs: list[dict[str, Any]]) -> str:
    out = ["## Processes compared with the simulation", "",
           "Four workers run as OS processes over shared memory, paced to the machine, with the same draws "
           "as the simulation. " + _summary(runs), "",
           "![Measured against simulated iteration time](images/validation-paced.png)", "",
           "| algorithm | machine | iteration, simulated | measured | | idle, simulated | measured | "
           "staleness, simulated | measured | bytes |",
           "|---|---|---|---|---|---|---|---|---|---|"]
    for r in runs:
        s, m = r["simulator"], r["processes"]
        width = "unlimited" if r["bandwidth"] is None else f"{r['bandwidth'] / 1e6:g} MB/s"
        out.append(
            f"| `{r['algorithm']}` | {r['law']}, {r['latency'] * 1e3:g} ms, {width} | "
            f"{s['seconds_per_iteration'] * 1e3:.1f} ms | "
                   f"{m['seconds_per_iteration'] * 1e3:.1f} ms | "
                   f"{percent(m['seconds_per_iteration'] / s['seconds_per_iteration'] - 1)} | "
                   f"{s['idle_ratio']:.3f} | {m['idle_ratio']:.3f} | {s['staleness_mean']:.2f} | "
                   f"{m['staleness_mean']:.2f} | "
                   f"{'equal' if s['bytes_sent'] == m['bytes_sent'] else 'DIFFER'} |")
    return "\n".join([*out, ""])


def apart_of(r: dict[str, Any]) -> tuple[float, float, float, bool]:
    """Measured against simulated: iteration time (share), idle ratio (difference), staleness (share;
    below one update the difference), same bytes."""
    s, m = r["simulator"], r["processes"]
    return (m["seconds_per_iteration"] / s["seconds_per_iteration"] - 1, m["idle_ratio"] - s["idle_ratio"],
            (m["staleness_mean"] - s["staleness_mean"]) / max(s["staleness_mean"], 1.0),
            s["bytes_sent"] == m["bytes_sent"])


def _summary(runs: list[dict[str, Any]]) -> str:
    apart = [apart_of(r) for r in runs]
    times, idle = (max((a[i] for a in apart), key=abs) for i in range(2))
    ages = max((a[2] for r, a in zip(runs, apart) if not ties(r)), key=abs, default=0.0)
    ranges = [(r["algorithm"], *orders(r), r["processes"]["staleness_mean"]) for r in runs if ties(r)]
    wide = ", ".join(f"`{name}` {low:.2f} to {high:.2f} (measured {seen:.2f})"
                     for name, low, high, seen in ranges if high > 1.1 * low)
    beyond = max((max(low - seen, seen - high, 0.0) / max(high, 1.0) for _, low, high, seen in ranges),
                 default=0.0)
    return (
        f"Over {len(runs)} pairs the largest difference in iteration time is {percent(times)}, in idle ratio "
        f"{idle:+.3f}, in mean staleness {percent(ages)}; "
        f"bytes are equal in {sum(a[3] for a in apart)} of {len(runs)}. With fixed times and no latency "
        "all messages arrive at the same moment, and the order in which they are served is arbitrary. Mean "
        "staleness lies between two cases, all at once in the order of ranks and one by one; where these "
        f"differ by more than a tenth: {wide}. No measurement is more than {beyond:.1%} outside this range.")


def ties(run: dict[str, Any]) -> bool:
    """Whether messages of different workers come at the same moment, so that times do not say who is
    first."""
    return run["law"].startswith("fixed") and not run["latency"]


def orders(run: dict[str, Any]) -> tuple[float, float]:
    """Least and largest mean staleness over ways to order what ties: all at once, by rank, or one by one.

    One by one: times of the same mean that differ in the ninth digit, so that a worker's exchange is over
    before the next begins.
    """
    mean = Machine(compute=run["law"]).compute.mean  # type: ignore[union-attr]
    apart = Machine(compute=Distribution("uniform", (mean * (1 - 1e-9), mean * (1 + 1e-9))))
    ages = [tau for _, tau in four(run["algorithm"], run["options"], apart, "simulator").staleness]
    found = run["simulator"]["staleness_mean"], float(np.mean(ages)) if ages else 0.0
    return min(found), max(found)


def _published() -> str:
    out = ["## Published figures", "",
           "The models are calibrated on figures of a single node (`benchmarks.published`); nothing is "
           "fitted to several nodes. Each line with an error of more than a quarter gives the reason.", "",
           "| source | what | quoted | model | predicted | error | |", "|---|---|---|---|---|---|---|"]
    every = figures()
    for f in every:
        out.append(
            f"| {f.source} | {f.what} | {f.quoted:.4g} "
            f"{f.unit.replace('1', '') if f.unit == '1' else f.unit} | {f.model} | {f.predicted:.4g} | "
                   f"{percent(f.error)} | {f.reason if abs(f.error) > 0.25 else ''} |")
    met = sum(abs(f.error) <= 0.25 for f in every)
    out += ["", f"{met} of {len(every)} lines are within a quarter. No formula covers these:", ""]
    out += [f"* {source}: {what}: {why}." for source, what, why in UNADDRESSED]
    return "\n".join([*out, ""])


def draw(found: dict[str, Any]) -> None:
    """The pictures of the page."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = found["grid"]
    near = [r for r in rows if r.kind == "approximation"
            and r.figure in ("seconds_per_iteration", "idle_ratio")]
    labels = sorted({r.label for r in near}, reverse=True)
    fig, axes = plt.subplots(1, 2, figsize=(11, 0.24 * len(labels) + 1.2), sharey=True, layout="constrained")
    names = "iteration time, predicted / simulated - 1", "idle ratio, predicted - simulated"
    for ax, figure, name in zip(axes, ("seconds_per_iteration", "idle_ratio"), names):
        for n, colour in zip(WORKERS, ("C0", "C1", "C3")):
            picked = [r for r in near if r.figure == figure and r.workers == n]
            ax.plot([r.relative for r in picked], [labels.index(r.label) for r in picked], ".", color=colour,
                    label=f"{n} workers", alpha=0.7)
        ax.axvline(0, color="0.6", lw=0.8)
        ax.set_xlabel(name)
        ax.locator_params(axis="x", nbins=6)
        ax.grid(axis="x", alpha=0.3)
    axes[0].set_yticks(range(len(labels)), labels, fontsize=8)
    axes[0].legend(fontsize=8)
    fig.savefig(DOCS / "images" / "validation-errors.png", dpi=110)
    exact = [r.deviation for r in rows if r.kind in FAITHFUL and r.runs > 1 and (r.error or r.deviation)]
    fig, ax = plt.subplots(figsize=(7, 3), layout="constrained")
    bins = np.linspace(-6, 6, 49)
    ax.hist(np.clip(exact, -6, 6), bins, density=True, color="C0", alpha=0.6,
            label=f"{len(exact)} exact figures")
    ax.plot(bins, stats.t.pdf(bins, SEEDS - 2), color="C3",
            label=f"Student's law, {SEEDS - 2} degrees of freedom")
    ax.set_xlabel("(predicted - simulated) / standard error")
    ax.legend()
    fig.savefig(DOCS / "images" / "validation-exact.png", dpi=110)
    if found.get("paced"):
        fig, ax = plt.subplots(figsize=(5, 4), layout="constrained")
        for name in dict.fromkeys(r["algorithm"] for r in found["paced"]):
            picked = [r for r in found["paced"] if r["algorithm"] == name]
            ax.plot([1e3 * r["simulator"]["seconds_per_iteration"] for r in picked],
                    [1e3 * r["processes"]["seconds_per_iteration"] for r in picked],
                    "o", label=name)
        low, high = ax.get_xlim()
        ax.plot([low, high], [low, high], color="0.5", lw=0.8)
        ax.set(xlabel="simulated, ms an iteration", ylabel="measured, ms an iteration")
        ax.legend(fontsize=8)
        fig.savefig(DOCS / "images" / "validation-paced.png", dpi=110)
    plt.close("all")


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("grid", "hard", "paced", "page"))
    parser.add_argument("--part", default="1/1", help="which of how many pieces, e.g. 2/3")
    arguments = parser.parse_args()
    if arguments.what == "grid":
        first, _, count = arguments.part.partition("/")
        for configuration in CONFIGURATIONS[int(first) - 1:: int(count)]:
            rows = [r for case in cases(configurations=(configuration,)) for r in check(case)]
            save(grid=rows)
            print(f"{rows[0].label}: {len(rows)} figures", flush=True)
    elif arguments.what == "hard":
        save(hard=[r for case in hard() for r in check(case)])
    elif arguments.what == "paced":
        first, _, count = arguments.part.partition("/")
        for run in paced((int(first), int(count))):
            save(paced=[run])
            print(run["algorithm"], run["law"],
                  {k: (run["simulator"][k], run["processes"][k]) for k in run["simulator"]}, flush=True)
    else:
        found = load()
        draw(found)
        (DOCS / "validation.md").write_text(page(found))


if __name__ == "__main__":
    main()
