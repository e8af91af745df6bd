"""Formulas beside the simulator on random exchanges: layouts, overlap, priorities, buckets, codecs, and links
that hide all or nothing.

``python -m benchmarks.layerwise`` draws 240 exchanges with fixed times and 10 with drawn ones, and writes
benchmarks/results/layerwise.json; ``python -m benchmarks.validation page`` tells of it.  Nobody picked the
points: they follow from the seed of `draw`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machines
from benchmarks.machines import Point, Row
from refsgd.cluster.machine import Machine
from refsgd.experiment.prepare import Experiment, prepare

RESULTS = Path(__file__).parent / "results" / "layerwise.json"
NETS = {"tiny@8x8x3": 21_000, "resnet18:16@16x16x3": 700_000}  # bytes, about
SERVERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bsp", {}), ("bsp", {}), ("asp", {}), ("asp", {}), ("ssp", {"staleness": 0}), ("ssp", {"staleness": 1}),
    ("ssp", {}), ("dssp", {"lower": 1, "upper": 4}), ("softsync", {"splitting": 2}), ("dc-asgd", {}))
PEERS = ("ring", "ring", "halving-doubling", "pscpu")
CODECS = ("topk:0.01", "randk:0.01", "fp16", "powersgd:2", "onebit", "qsgd:16")


@dataclass(frozen=True)
class Exchanged(Point):
    """One algorithm on one machine, with a way for its gradients to travel."""

    net: str = "tiny"
    exchange: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """With the exchange and the net."""
        more = ", ".join(f"{k} {v}" for k, v in self.exchange.items())
        return f"{more or 'plain'}, {self.net}; {super().label}"

    def experiment(self, seed: int) -> Experiment:
        """The run of a seed."""
        return prepare(self.algorithm, data="none", net=f"shapes:{self.net}", workers=self.workers,
                       servers=self.servers, steps=self.steps, machine=self.machine, seed=seed,
                       **self.options, **self.exchange)


def draw(seed: int, count: int, family: str) -> Iterator[Exchanged]:
    """So many exchanges from this seed on, compute times of this family."""
    rng = random.Random(seed)
    for _ in range(count):
        net, size = rng.choices(list(NETS.items()), (4, 1))[0]
        (name, options), peers = rng.choice(SERVERS), rng.random() < 0.25
        n, servers = rng.randint(2 if options.get("splitting") else 1, 8), rng.randint(1, 4)
        layout = rng.choice(("equal", "layers", "layers", f"chunks:{size // 20}"))
        how: dict[str, Any] = {"layout": layout, "overlap": rng.choice(("none", "backward", "both", "both"))}
        if layout != "equal":
            how |= {"priority": rng.random() < 0.5, "balance": rng.choice(("robin", "size", "hash"))}
        if peers:
            name, options = "allreduce", {"collective": rng.choice(PEERS)}
            how = {"overlap": "backward", "bucket": rng.choice((0, size // 4))}
        if rng.random() < 0.4:
            how["compress"] = rng.choice(CODECS)
        elif how["overlap"] == "none" and layout == "equal":
            how["overlap"] = "backward"  # the plain exchange is in the other grids
        given = {"latency": rng.choice((0.0, 0.0001, 0.00137)), "codec": rng.choice((0.0, 1e-9, 2e-7)),
                 "bandwidth": size / rng.choice((0.00031, 0.004, 0.0173, 0.05, 0.2))}
        if not peers:
            given |= {"colocated": rng.random() < 0.2, "duplex": rng.choice(("full", "full", "full", "half"))}
        if rng.random() < 0.3:
            given["update"] = rng.choice((0.0005, 0.002))
        if rng.random() < 0.3:
            given["speeds"] = tuple(rng.choice((1, 0.5, 2, 1.3)) for _ in range(n))
        yield Exchanged(name, options, n, servers, 9 if family != "fixed" else rng.choice((1, 4, 9)), (8,) * n,
                        Machine(compute=f"{family}(0.02)", **given), net, how)


def load() -> list[Row]:
    """What `main` has found."""
    return machines.load(RESULTS)


def section() -> str:
    """The part of docs/validation.md on these exchanges."""
    found = load()
    exact = [r for r in found if r.kind in ("exact", "numerical")]
    sure, drawn = [r for r in exact if not r.error], [r for r in exact if r.error]
    inside = sum(r.equal or abs(r.predicted - r.simulated) <= 3 * r.error for r in drawn)
    most = machines.worst(found)
    errors = "; ".join(f"{machines.NAMES[figure]} {machines.unit(figure, row.relative)} ({row.label})"
                       for figure, row in most.items())
    return "\n".join(["## Random exchanges", "", (
        f"{len({r.label for r in found})} cases drawn from a seed: equal parts, layers and chunks, assigned to "
        "one to four servers in turn, by size or by hash; no overlap, overlap with the backward pass and with "
        "both passes; priorities; six codecs, free or not; all-reduce of buckets; one to eight workers; two nets; links that hide the whole "
        "exchange or none of it; servers co-located or not; full and half duplex. `python -m "
        "benchmarks.layerwise` computes them, and `theory/test_layerwise.py` recomputes some of them."), "", (
        f"Without draws, {sum(r.equal for r in sure)} of {len(sure)} figures that are called exact equal the "
        f"simulation's to nine digits. With draws, {inside} of {len(drawn)} exact and numerical figures lie within "
        f"three combined standard errors. Largest errors of approximations: {errors or 'none'}."), ""])


def main() -> None:
    """Compute all rows."""
    machines.write(RESULTS, [row for points in (draw(18, 240, "fixed"), draw(81, 10, "exponential"))
                             for point in points for row in machines.rows(point)])


if __name__ == "__main__":
    main()
