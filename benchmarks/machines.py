"""Random machines: hosts, links, groups, devices, speeds, batches.

Nobody picks the points, which follow from the seed of `draw`; `benchmarks.oracle.compare` runs them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refsgd.algorithms import CATALOGUE
from refsgd.algorithms.facts import facts_of
from refsgd.cluster.machine import Machine
from refsgd.experiment.prepare import Experiment, prepare
from refsgd.problems.shapes import shape_only

D = 1200  # parameters: 4,800 bytes
OPERATIONS = 2e7  # of an image's gradient: a batch of 8 takes a device of 10 GFLOPS 16 ms
FIGURES = ("seconds_per_iteration", "seconds", "idle_ratio", "staleness_mean", "bytes_sent")
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
        served = {"servers": self.servers} if facts_of(CATALOGUE[self.algorithm]).served else {}
        return prepare(self.algorithm, problem, workers=self.workers, steps=self.steps, machine=self.machine, seed=seed,
                       **served, **self.options)


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
        n, servers = rng.choice((2, 3, 4, 5, 6, 8, 12)), rng.choice((1, 1, 2, 3))
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


NAMES = {"seconds_per_iteration": "iteration time", "seconds": "run time", "idle_ratio": "idle ratio",
         "staleness_mean": "staleness", "bytes_sent": "bytes"}
