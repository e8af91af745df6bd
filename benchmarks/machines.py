"""Formulas beside the simulator on random machines: hosts, links, groups, devices, speeds, batches.

``python -m benchmarks.machines`` draws 400 machines whose gradients take fixed times and 120 that draw
them, runs an algorithm on each and writes benchmarks/results/machines.json; ``python -m benchmarks.validation
page`` reports them.  Nobody picked the points: they follow from the seed of `draw`.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from refsgd.cluster import prices
from refsgd.cluster.devices import Device
from refsgd.cluster.machine import Machine
from refsgd.cluster.units import counted
from refsgd.experiment.execution.perform import perform
from refsgd.experiment.prepare import Experiment, prepare
from refsgd.problems.shapes import shape_only
from refsgd.trace import Computed, Trace
from refsgd.trace.schema import json_text

RESULTS = Path(__file__).parent / "results" / "machines.json"
D = 1200  # parameters: 4,800 bytes
OPERATIONS = 2e7  # of an image's gradient: a batch of 8 takes a device of 10 GFLOPS 16 ms
FIGURES = ("seconds_per_iteration", "seconds", "idle_ratio", "staleness_mean", "bytes_sent")
SEEDS = {5: 96, 9: 16, 120: 16}  # steps: number of runs, where times are drawn
CONFIGURATIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bsp", {}), ("asp", {}), ("ssp", {"staleness": 0}), ("ssp", {"staleness": 1}), ("ssp", {}),
    ("ssp", {"staleness": 1, "refresh": "lazy"}), ("ssp", {"staleness": 2, "refresh": "eager"}),
    ("dssp", {"lower": 1, "upper": 4}), ("consgd", {}), ("dynsgd", {}), ("dc-asgd", {}), ("downpour", {}),
    ("downpour", {"fetch_every": 3}), ("downpour", {"push_every": 2}), ("easgd", {"period": 2}),
    ("easgd", {"mode": "sync", "period": 3}), ("backup-workers", {}), ("softsync", {"splitting": 2}),
    ("staleness-aware", {}), ("allreduce", {}), ("local-sgd", {"period": 3}), ("post-local", {"switch": 8}),
    ("diloco", {"period": 2}), ("dpsgd", {}), ("dpsgd", {"order": "atc"}), ("sgp", {}), ("dgc", {"ratio": 0.3}),
    ("gosgd", {"p": 1.0}), ("independent", {}))
SERVERLESS = ("allreduce", "local-sgd", "post-local", "diloco", "dpsgd", "sgp", "dgc", "gosgd", "independent")


@dataclass(frozen=True)
class Point:
    """One algorithm on one machine."""

    algorithm: str
    options: dict[str, Any]
    workers: int
    servers: int
    steps: int
    batches: tuple[int, ...]  # examples of each worker
    machine: Machine

    @property
    def label(self) -> str:
        """The algorithm with its options, and where it runs."""
        more = [f"{k}={v}" for k, v in self.options.items()]
        return (f"{' '.join([self.algorithm, *more])}: {self.workers} workers, {self.servers} servers, "
                f"{self.steps} steps, batches {','.join(map(str, self.batches))}, {self.machine}")

    def experiment(self, seed: int) -> Experiment:
        """The run of a seed."""
        problem = shape_only(D, self.batches, OPERATIONS)
        if self.algorithm == "dgc":  # which looks at the entries
            problem = replace(problem, x0=np.zeros(D, np.float32),
                              gradient=lambda x, rank, t: np.full(D, 1e-3, np.float32))
        return prepare(self.algorithm, problem, workers=self.workers, servers=self.servers, steps=self.steps,
                       machine=self.machine, seed=seed, **self.options)


@dataclass(frozen=True)
class Row:
    """A figure that formula and simulator give; `error`: standard error of both together."""

    algorithm: str
    label: str
    figure: str
    kind: str
    predicted: float
    simulated: float
    error: float

    @property
    def relative(self) -> float:
        """Error of the formula, see `scale_of`."""
        return (self.predicted - self.simulated) / scale_of(self.figure, self.simulated)

    @property
    def noise(self) -> float:
        """The standard error in the unit of `relative`."""
        return self.error / scale_of(self.figure, self.simulated)

    @property
    def equal(self) -> bool:
        """Whether both are the same but for rounding."""
        return math.isclose(self.predicted, self.simulated, rel_tol=1e-9, abs_tol=1e-12)


def scale_of(figure: str, simulated: float) -> float:
    """What an error of 1 is: all of a time or of bytes, 1 for ratios and for staleness below one update."""
    return {"idle_ratio": 1.0, "staleness_mean": max(abs(simulated), 1.0)}.get(figure, simulated) or 1.0


def unit(figure: str, value: float) -> str:
    """An error as people read it."""
    return f"{value:+.3f}" if figure == "idle_ratio" else f"{value:+.1%}"


def draw(seed: int, count: int, drawn: bool = False) -> Iterator[Point]:
    """So many points from this seed on, with fixed or with drawn times."""
    rng = random.Random(seed)
    for _ in range(count):
        name, options = rng.choice(CONFIGURATIONS)
        n, servers = rng.choice((2, 3, 4, 6, 8)), rng.choice((1, 1, 2, 3))
        servers = 1 if name == "backup-workers" else servers
        batches = tuple(rng.choice((4, 8, 20)) for _ in range(n)) if rng.random() < 0.3 else (8,) * n
        yield Point(name, options, n, servers, rng.choice((5, 120)), batches,
                    _machine(rng, n, 0 if name in SERVERLESS else servers, drawn))


def _time(rng: random.Random, drawn: bool) -> str:
    """Seconds of a gradient, or a device; 20 ms of a batch of 8, more or less."""
    spread = rng.choice(("exponential({})", "lognormal({},0.4)")) if drawn else "fixed({})"
    if rng.random() < 0.5:
        return spread.format(0.02)
    parts = [f"{rng.choice((5, 8, 10, 16))}GFLOPS", rng.choice(("0", "0.5ms", "4ms"))]
    parts += rng.choice(([], ["2MB/s"])) + [spread.format(1)] * drawn
    return f"device({','.join(parts)})"


def _compute(rng: random.Random, n: int, drawn: bool) -> str:
    """What says how long gradients take: the same for all workers, or of each its own."""
    own = n if rng.random() < 0.3 else 1
    return "; ".join(_time(rng, drawn) for _ in range(own))


def _machine(rng: random.Random, n: int, servers: int, drawn: bool) -> Machine:
    """A machine on which these workers and servers fit."""
    def link(latencies: tuple[float, ...], seconds: tuple[float, ...]) -> dict[str, Any]:
        return {"latency": rng.choice(latencies), "bandwidth": 4 * D / rng.choice(seconds),
                "duplex": rng.choice(("full", "full", "half"))}

    size, place = rng.choice((1, 2, 3, 4)), rng.choice(("flat", "beside", "blocks", "blocks beside", "cyclic"))
    hosts = -(-n // size)
    count = {"flat": n + servers, "beside": n, "blocks": hosts + servers, "blocks beside": hosts,
             "cyclic": size}[place]
    given = link((0.0, 0.001, 0.002, 0.00137), (0.001, 0.004, 0.00317, 0.009))
    given["hosts"] = {"b": f"{hosts}x{size}", "c": f"cyclic:{size}"}.get(
        "" if place == "beside" else place[0], "")
    given["colocated"] = place.endswith("beside")
    if rng.random() < 0.5:
        given["inside"] = link((0.0, 1e-5, 3e-4), (0.0002, 0.003, 0.006))
    if count > 1 and rng.random() < 0.4:
        cut = rng.randrange(1, count)
        given |= {"groups": (tuple(range(cut)), tuple(range(cut, count))),
                  "uplink": link((0.0, 0.005), (0.002, 0.01))}
    if rng.random() < 0.4:
        given["update"] = rng.choice((0.0005, 0.002))
    if rng.random() < 0.4:
        given["speeds"] = tuple(rng.choice((1, 0.5, 2, 1.3)) for _ in range(n))
    return Machine(compute=_compute(rng, n, drawn), **given)  # type: ignore[arg-type]


def has_draws(machine: Machine) -> bool:
    """Whether gradients of one batch take unequal times."""
    return any((time.noise if isinstance(time, Device) else time).family != "fixed"
               for time in prices.each(machine))


def _iteration(trace: Trace, count: int) -> float:
    """Seconds of an iteration, of all workers together, in `count` iterations after the first quarter."""
    rate = 0.0
    for w in trace.workers:
        ends = [e.time for e in trace.of(Computed, w) if e.work == "gradient"]
        low = len(ends) // 4
        rate += count / (ends[low + count - 1] - ends[low - 1])
    return len(trace.workers) / rate


def measured(experiment: Experiment) -> tuple[dict[str, float], bool]:
    """Figures of one simulated run, and whether its pace is that of the long run."""
    trace, settled = perform(experiment, "simulator").trace, True
    ages = [tau for _, tau in trace.staleness]
    seen = {"seconds": trace.seconds, "idle_ratio": trace.idle_ratio,
            "staleness_mean": float(np.mean(ages)) if ages else 0.0,
            "bytes_sent": float(sum(trace.bytes_sent.values()))}
    if experiment.steps >= 120 and experiment.name != "backup-workers":
        seen["seconds_per_iteration"] = _iteration(trace, 48)  # whole periods of local SGD and EASGD
        settled = math.isclose(seen["seconds_per_iteration"], _iteration(trace, 24), rel_tol=1e-9)
    return seen, settled


def rows(point: Point) -> list[Row]:
    """Every figure of a point that a formula gives; a "tie" where the last digit of a time decides which of
    two messages is served first."""
    first, runs = zlib.crc32(point.label.encode()) % 10_000, []
    drawn = has_draws(point.machine) or point.algorithm == "gosgd"
    for seed in range(SEEDS[point.steps] if drawn else 1):
        experiment = point.experiment(first + seed)
        runs.append(measured(experiment))
    priced = runs[0][0] if drawn else measured(replace(experiment, machine=experiment.priced))[0]
    found = []
    for figure, p in experiment.predictions().items():
        if figure not in priced or p.kind == "bound":
            continue
        if figure == "seconds_per_iteration" and p.kind == "exact" and not (drawn or runs[0][1]):
            continue  # the pace of the long run is not to be seen yet
        # idle time is a share of the time of all runs together, as formulas take it of the expected time
        values, weights = (np.array([seen[name] for seen, _ in runs]) for name in (figure, "seconds"))
        weights = weights if figure == "idle_ratio" and drawn else np.ones(len(runs))
        mean = float(np.average(values, weights=weights))
        spread = float(np.linalg.norm(weights * (values - mean)) / weights.sum()) * math.sqrt(
            len(runs) / max(len(runs) - 1, 1))
        tied = not math.isclose(values[0], priced[figure], rel_tol=1e-9)
        found.append(Row(point.algorithm, point.label, figure, "tie" if tied else p.kind, p.value,
                         mean, math.hypot(spread, p.error)))
    return found


def held(points: Iterable[Point]) -> list[Row]:
    """The rows of points; AssertionError where one is not what it calls itself."""
    found = [row for point in points for row in rows(point)]
    for row in found:
        if row.kind in ("exact", "numerical"):
            assert row.equal or abs(row.predicted - row.simulated) <= 5.5 * row.error, row
    return found


LIMITS = {"seconds_per_iteration": 0.05, "seconds": 0.05, "idle_ratio": 0.03, "staleness_mean": 0.1}
NAMES = {"seconds_per_iteration": "iteration time", "seconds": "run time", "idle_ratio": "idle ratio",
         "staleness_mean": "staleness", "bytes_sent": "bytes"}


def far(row: Row) -> bool:
    """Whether an approximation is further off than its limit and the noise of the simulation."""
    limit = LIMITS.get(row.figure, math.inf) + 3 * row.noise
    return row.kind == "approximation" and abs(row.relative) > limit


def worst(found: Iterable[Row]) -> dict[str, Row]:
    """The approximation with the largest error of each figure."""
    out: dict[str, Row] = {}
    for row in found:
        if row.kind == "approximation" and (row.figure not in out
                                            or abs(row.relative) > abs(out[row.figure].relative)):
            out[row.figure] = row
    return out


def section() -> str:
    """The part of docs/validation.md on these machines."""
    found = load()
    exact = [r for r in found if r.kind in ("exact", "numerical")]
    sure, drawn = [r for r in exact if not r.error], [r for r in exact if r.error]
    inside = sum(r.equal or abs(r.predicted - r.simulated) <= 3 * r.error for r in drawn)
    ties = sum(r.kind == "tie" for r in found)
    out = ["## Random machines", "",
           f"{len({r.label for r in found})} cases drawn from a seed: hosts of one to four nodes, placed "
           "in blocks, in turn or each on its own, servers co-located or not, links inside hosts, two groups "
           "with uplinks, half and full duplex, devices, compute times that differ by worker, unequal speeds and batches, "
           "updates that take time, two to eight workers, up to three servers, 5 and 120 iterations. "
           "`python -m benchmarks.machines` computes them, and `theory/test_machines.py` recomputes some of them.", "",
           f"Without draws, {sum(r.equal for r in sure)} of {len(sure)} figures that are called exact equal the "
           f"simulation's to nine digits. With draws, {inside} of {len(drawn)} exact and numerical figures lie "
           "within three combined standard errors (for a normal distribution, 99.7 % do). The largest errors of "
           "approximations, with the standard error in brackets:", "",
           "| figure | exact or numerical | approximations | largest error | where |", "|---|---|---|---|---|"]
    most = worst(found)
    for figure in FIGURES:
        mine = [r for r in found if r.figure == figure]
        close = sum(r.kind in ("exact", "numerical") for r in mine)
        loose, row = sum(r.kind == "approximation" for r in mine), most.get(figure)
        error = f"{unit(figure, row.relative)} ({row.noise:.3f})" if row else ""
        out.append(f"| {NAMES[figure]} | {close} | {loose} | {error} | {row.label if row else ''} |")
    out += ["", "An iteration time is compared only in runs of 120 iterations, and an exact one only if the simulated "
            "run has reached a steady pace. Idle time is a share of the time of all runs together, since formulas "
            "divide expected times; the mean of single runs is lower, by up to 0.05 in runs of 5 iterations. "
            "An iteration time is called exact where parts of the run have the same pace, and "
            "an approximation elsewhere: workers with unequal fixed times meet in ever-changing orders. "
            f"Left out: {counted(ties, 'figure')} of runs in which two messages are due at one moment, so that "
            "the last digit of a device's time decides which is served first. Formulas that would take longer "
            "than two seconds are refused, as `refsgd predict` says, and so are AD-PSGD, pair averaging, Gaia "
            "and collectives other than the ring on links that several nodes share.", ""]
    return "\n".join(out)


def load(results: Path = RESULTS) -> list[Row]:
    """What `main` has found."""
    return [Row(*values) for values in json.loads(results.read_text(encoding="utf-8"))["rows"]]


def write(results: Path, found: Iterable[Row]) -> None:
    """Keep rows in a file."""
    text = ",\n".join(json_text(astuple(row), indent=None) for row in found)
    results.write_text(f'{{"columns": {json_text([f.name for f in fields(Row)], indent=None)},\n"rows": [\n{text}]}}\n', encoding="utf-8")


def main() -> None:
    """Compute all rows."""
    write(RESULTS, [row for points in (draw(17, 400), draw(71, 120, True))
                    for point in points for row in rows(point)])


if __name__ == "__main__":
    main()
