"""Update architectures of TensorFlow's benchmarks, Horovod and Caffe2 (Graur 2019): what --preset expands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from refsgd.cluster import placement


class Architecture(NamedTuple):
    """An algorithm with options, and what it asks of the machine."""

    algorithm: str
    options: Mapping[str, Any]
    says: str
    colocated: bool = False  #: servers share hosts with workers
    devices: bool = False  #: all workers are devices of one host, with links inside it
    extra: int = 0  #: workers more than others have
    nested: Mapping[str, Any] = {}  #: options that differ where hosts have several devices

    def fields(self, workers: int) -> dict[str, Any]:
        """Fields of the machine for this many workers."""
        if self.devices:
            return {"hosts": f"1x{workers}", "inside": INSIDE}
        return {"colocated": True} if self.colocated else {}

    def on(self, hosts: placement.Hosts, workers: int) -> dict[str, Any]:
        """The options on these hosts."""
        several = bool(hosts) and max(placement.devices(hosts, workers), default=0) > 1
        return {**self.options, **(self.nested if several else {})}


INSIDE = "10us,12GB/s"  #: of PCIe 3.0 with 16 lanes, about
ARCHITECTURES = {
    "parameter-server": Architecture("bsp", {"servers": 1}, "a server on a host of its own"),
    "parameter-server-extra-worker": Architecture(
        "bsp", {"servers": 1}, "a server on a host of its own, and one worker more than --workers", extra=1),
    "parameter-server-collocated": Architecture("bsp", {"servers": 1}, "the server on a worker's host", True),
    "replicated": Architecture(
        "allreduce", {"collective": "tree"}, "workers are devices of one host and sum over its inside links",
        devices=True),
    "distributed-replicated": Architecture(
        "bsp", {"servers": 1, "layout": "layers", "overlap": "backward"},
        "copies on the workers; the server renews each layer during the backward pass, so that a "
        "forward pass needs no network", True),
    # the collective `pscpu` is another: it gives each worker a part to reduce, as tf_cnn_benchmarks can
    "distributed-allreduce-pscpu": Architecture("allreduce", {"collective": "root"},
                                                "one worker's processor gathers and averages all gradients"),
    "distributed-allreduce-ringx1": Architecture("allreduce", {"collective": "ring"},
                                                 "one ring after the backward pass"),
    "distributed-allreduce-ringx2": Architecture("allreduce", {"collective": "rings", "rings": 2},
                                                 "two rings at once, half of the vector each"),
    "collective-allreduce": Architecture("allreduce", {"collective": "ring", "overlap": "backward"},
                                         "one ring for each layer, during the backward pass"),
    "horovod": Architecture(
        "allreduce", {"collective": "ring", "overlap": "backward", "bucket": 64 << 20},
        "one ring for layers of 64 MiB together, during the backward pass; hierarchical on hosts of several "
        "devices", nested={"collective": "hierarchical"}),
    "caffe2": Architecture("allreduce", {"collective": "halving-doubling"}, "Gloo's halving and doubling"),
}


def named(name: str) -> str:
    """The preset of this name, or the only one that ends with it, such as `ringx2`; else an empty string."""
    found = [known for known in ARCHITECTURES if known.endswith(f"-{name}")]
    return name if name in ARCHITECTURES else found[0] if name and len(found) == 1 else ""
