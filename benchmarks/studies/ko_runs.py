"""Runs in virtual time of Ko et al.'s algorithms on their six machines of four GPUs, with messages of the
sizes of their nets."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.studies.lab import Lab, Seen, Trial
from benchmarks.studies.looks import ends
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import load_machine
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
MACHINES, GPUS = 6, 4  #: the document's, with that many workers on each
DEPLOYED, FLAT = f"{MACHINES} machines of {GPUS}", "a link for each worker"
Key = tuple[str, str, int, int]  #: algorithm, net, Gbps, workers


@functools.cache
def size_of(name: str) -> tuple[int, float]:
    """Parameters, and seconds of a gradient, of a net at 224 pixels."""
    built = nets.build(NETS[name], (224, 224, 3), classes=1000)
    return built.parameters, 3 * BATCH * sum(row.flops for row in built.leaves) / RATE


def machine(gbps: int, flat: bool = False) -> Machine:
    """The document's machines, which share a link among four workers each, with servers on the machines of
    workers; `flat`: a link for each worker and for the server, with which they are compared."""
    return load_machine(f"ipdps21-{gbps}g" if flat else preset(gbps))


def preset(gbps: int) -> str:
    """The name of the document's machines."""
    return f"ipdps21-{MACHINES}x{GPUS}-{gbps}g"


def elsewhere(workers: int) -> int:
    """The number of workers on other machines than the first, where the only server is."""
    return max(0, workers - GPUS)


def arguments(algorithm: str, net: str, gbps: int, workers: int, seed: int, steps: int = 20,
              flat: bool = False) -> dict[str, Any]:
    """Arguments of a run with messages of the net's size."""
    parameters, compute = size_of(net)
    return {"net": f"shapes:{parameters}", "data": "none", "workers": workers, "batch": BATCH,
            "steps": steps, "machine": machine(gbps, flat).with_(compute=f"lognormal({compute:g},0.1)"),
            "seed": seed, **SPEEDUP[algorithm]}


def runs(lab: Lab, keys: Sequence[Key], steps: int = 20, flat: bool = False) -> dict[Key, Seen]:
    """Virtual runs by (algorithm, net, Gbps, workers), with messages of the nets' sizes.

    Formulas are of a link for each worker only.
    """
    trials = [Trial(a, arguments(a, net, gbps, n, lab.seed, steps, flat), look=ends, formulas=flat)
              for a, net, gbps, n in keys]
    return dict(zip(keys, lab.runs(trials)))


def whole_rate(run: Seen) -> float:
    """Images per second of the run, in which each worker has as many iterations."""
    return float(run.measured["images_per_second"])


def own_rate(run: Seen) -> float:
    """Images per second, of each worker until it is done itself."""
    return sum(BATCH * gradients / end for gradients, end, _ in run.looked.values())


def waits(run: Seen, workers: Sequence[int] | None = None) -> float:
    """The mean share of its time, until it is done itself, in which a worker (of these ranks) does not
    compute."""
    found: Mapping[str, Sequence[float]] = run.looked
    each = list(found.values()) if workers is None else [found[f"worker{k}"] for k in workers]
    return float(np.mean([1 - computing / end for _, end, computing in each]))
