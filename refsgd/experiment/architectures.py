"""Update architectures of TensorFlow's benchmarks, Horovod and Caffe2 as runs of the catalogue (Graur 2019).

Each is an algorithm with options; `refsgd run --preset NAME` and `refsgd predict --preset NAME` expand it.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Architecture(NamedTuple):
    """An algorithm with options and, if `colocated`, servers that share hosts with workers."""

    algorithm: str
    options: dict[str, Any]
    says: str
    colocated: bool = False


ARCHITECTURES = {
    "parameter-server": Architecture("bsp", {"servers": 1}, "a server on a host of its own"),
    "parameter-server-collocated": Architecture("bsp", {"servers": 1}, "the server beside a worker", True),
    "distributed-allreduce-pscpu": Architecture("allreduce", {"collective": "pscpu"},
                                                "parts reduced by workers in turn"),
    "distributed-allreduce-root": Architecture("allreduce", {"collective": "root"},
                                               "everything reduced by one worker"),
    "distributed-allreduce-ringx2": Architecture("allreduce", {"collective": "rings"},
                                                 "several rings at once, a part of the vector each"),
    "collective-allreduce": Architecture("allreduce", {"collective": "ring", "overlap": "backward"},
                                         "one ring for each layer, during the backward pass"),
    "horovod": Architecture("allreduce", {"collective": "ring", "overlap": "backward", "bucket": 64 << 20},
                            "one ring for layers of 64 MiB together, during the backward pass"),
    "distributed-allreduce-ringx1": Architecture("allreduce", {"collective": "ring"},
                                                 "one ring after the backward pass"),
    "caffe2": Architecture("allreduce", {"collective": "halving-doubling"}, "Gloo's halving and doubling"),
}
