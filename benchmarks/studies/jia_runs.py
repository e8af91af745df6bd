"""Runs of Jia et al.'s four virtual machines: times alone."""

from __future__ import annotations

from typing import Any

from benchmarks.studies.lab import Look, Trial
from refsgd.cluster.machine import Machine
from refsgd.cluster.presets import load_machine
from refsgd.problems.nn import nets

ALGORITHM = {"sync": "bsp", "async": "asp"}
#: seconds of a gradient that has the processors for itself: Table II's synchronous push of ResNet-18
GRADIENT = 2.3
#: seconds of an update that has the processors for itself: Table II's synchronous one of ResNet-18
UPDATE = 0.0057


def machine(compute: str, update: float = UPDATE, latency: float = 0.01) -> Machine:
    """The four virtual machines (`ipccc20-4vm`), dealt workers and servers in turn, as in Fig. 6.

    The document states no time of a gradient and no bandwidth; `compute` is assumed in each part.  Its pulls
    take as long alone as together, so its links do not queue: 20 GB/s, memory of one host.  A gradient is
    assumed to use all processors of its machine (`cores`), which the workers and servers on it share.
    """
    return load_machine("ipccc20-4vm").with_(compute=compute, update=f"fixed({update})", latency=latency,
                                             bandwidth=20e9)


def flat(vm: Machine) -> Machine:
    """The same with a machine for each worker, with which Fig. 6's is compared; four workers have the
    document's four either way."""
    return vm.with_(hosts=(), colocated=True)


def parameters(net: str) -> int:
    """Of a net for images of CIFAR-10."""
    return nets.build(net, (32, 32, 3)).parameters


def timed(mode: str, vm: Machine, seed: int, net: str = "resnet18", look: Look | None = None,
          **sizes: Any) -> Trial:
    """A run of `sizes` (workers, servers, steps) with messages of a net's size that computes nothing:
    only times."""
    return Trial(ALGORITHM[mode],
                 {"net": f"shapes:{parameters(net)}", "data": "none", "batch": 128, "machine": vm,
                  "seed": seed, **sizes}, look=look)
