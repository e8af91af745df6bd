"""Runs in virtual time of Ko et al.'s algorithms, with messages of the sizes of their nets."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from benchmarks.studies.lab import Lab, Seen, Trial
from refsgd.cluster.machine import Machine
from refsgd.problems.nn import nets

#: assumed: a third of a Titan V's 14.9 TFLOP/s, 32 images a gradient
RATE, BATCH = 5e12, 32
NETS = {"ResNet-50": "resnet50", "VGG-16": "vgg16"}
SPEEDUP: dict[str, dict[str, Any]] = {
    "bsp": {}, "asp": {}, "ssp": {"staleness": 3}, "easgd": {"period": 4}, "allreduce": {},
    "gosgd": {"p": 0.1}, "adpsgd": {}}
#: exchange with the server in every iteration; EASGD, centralised too, in every 4th
CENTRAL = ("bsp", "asp", "ssp")
DECENTRAL = ("allreduce", "gosgd", "adpsgd")


@functools.cache
def size_of(name: str) -> tuple[int, float]:
    """Parameters, and seconds of a gradient, of a net at 224 pixels."""
    built = nets.build(NETS[name], (224, 224, 3), classes=1000)
    return built.parameters, 3 * BATCH * sum(row.flops for row in built.describe()) / RATE


def arguments(algorithm: str, net: str, gbps: int, workers: int, seed: int, servers: int = 1,
               steps: int = 20) -> dict[str, Any]:
    """Arguments of a run with messages of the net's size."""
    parameters, compute = size_of(net)
    machine = Machine(compute=f"lognormal({compute:g},0.1)", latency=2e-5,
                      bandwidth=gbps * 1.25e8)  # type: ignore[arg-type]
    own = {"servers": servers} if algorithm in CENTRAL else {}
    return {"net": f"shapes:{parameters}", "data": "none", "workers": workers, "batch": BATCH,
            "steps": steps, "machine": machine,
            "seed": seed, **SPEEDUP.get(algorithm, {}), **own}


def runs(lab: Lab, keys: Sequence[tuple[str, str, int, int]], servers: int = 1,
          steps: int = 20) -> dict[tuple[str, str, int, int], Seen]:
    """Virtual runs by (algorithm, net, Gbps, workers), with messages of the nets' sizes."""
    trials = [Trial(a, arguments(a, net, gbps, n, lab.seed, servers, steps)) for a, net, gbps, n in keys]
    return dict(zip(keys, lab.runs(trials)))
