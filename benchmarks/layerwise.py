"""Random exchanges: layouts, overlap, priorities, codecs, stages, shards, and links that hide all or nothing.

Nobody picks the points, which follow from the seeds of `draw` and `staged`; `benchmarks.oracle.compare` runs
them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.machines import Point
from refsgd.cluster.machine import Machine
from refsgd.experiment.prepare import Experiment, prepare

NETS = {"tiny@8x8x3": 21_000, "resnet18:16@16x16x3": 700_000}  # bytes, about
SERVERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bsp", {}), ("bsp", {}), ("asp", {}), ("asp", {}), ("ssp", {"staleness": 0}), ("ssp", {"staleness": 1}),
    ("ssp", {}), ("dssp", {"lower": 1, "upper": 4}), ("softsync", {"splitting": 2}), ("dc-asgd", {}))
SPLIT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("zero", {"stage": 1}), ("zero", {"stage": 2}), ("zero", {}), ("gpipe", {"micro": 3}),
    ("gpipe", {"passes": "1f1b", "micro": 6}), ("gpipe", {"chunks": 2, "micro": 4, "passes": "1f1b"}))
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
        name, options = rng.choice(SERVERS)
        n, servers = rng.randint(2 if options.get("splitting") else 1, 8), rng.randint(1, 4)
        layout = rng.choice(("equal", "layers", "layers", f"chunks:{size // 20}"))
        how: dict[str, Any] = {"layout": layout, "overlap": rng.choice(("none", "backward", "both", "both"))}
        if layout != "equal":
            how |= {"priority": rng.random() < 0.5, "balance": rng.choice(("robin", "size", "hash"))}
            if servers == 1:
                del how["balance"]  # which one server, with all parts, would refuse
        if rng.random() < 0.4:
            how["compress"] = rng.choice(CODECS)
        elif how["overlap"] == "none" and layout == "equal":
            how["overlap"] = "backward"  # the plain exchange is in the other grids
        given = {"latency": rng.choice((0.0, 0.0001, 0.00137)), "codec": rng.choice((0.0, 1e-9, 2e-7)),
                 "bandwidth": size / rng.choice((0.00031, 0.004, 0.0173, 0.05, 0.2))}
        given |= {"colocated": rng.random() < 0.2, "duplex": rng.choice(("full", "full", "full", "half"))}
        if rng.random() < 0.3:
            given["update"] = rng.choice((0.0005, 0.002))
        if rng.random() < 0.3:
            given["speeds"] = tuple(rng.choice((1, 0.5, 2, 1.3)) for _ in range(n))
        yield Exchanged(name, options, n, servers, 9 if family != "fixed" else rng.choice((1, 4, 9)), (8,) * n,
                        Machine(compute=f"{family}(0.02)", **given), net, how)


def staged(seed: int, count: int) -> Iterator[Exchanged]:
    """So many nets in stages or shards from this seed on."""
    rng = random.Random(seed)
    for _ in range(count):
        (name, options), n = rng.choice(SPLIT), rng.randint(2, 5)
        n = 2 if "chunks" in options else min(n, 4) if name != "zero" else n
        law, seconds = rng.choice(("fixed", "exponential")), rng.choice((0.00031, 0.004, 0.0173, 0.05))
        machine = Machine(compute=f"{law}(0.02)", latency=rng.choice((0.0, 0.0001, 0.00137)),  # type: ignore
                          bandwidth=21_000 / seconds, reduction=rng.choice((0.0, 1e-8)),
                          speeds=tuple(rng.choice((1, 0.5, 2, 1.3)) for _ in range(n)))
        yield Exchanged(name, options, n, 1, rng.choice((1, 4, 9)), (8,) * n, machine)
