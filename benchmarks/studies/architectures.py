"""The update architectures of TensorFlow's benchmarks, Horovod and Caffe2 by name: an algorithm, its options,
its placement. Several are the same run. Source: Graur, MSc thesis, TU Delft, 2019, chapter 2 and section 3.2.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple


class Architecture(NamedTuple):
    """One update architecture.

    Attributes
    ----------
    algorithm : str
        A name of the catalogue.
    options : dict
        The algorithm's own, and ``servers``.
    colocated : bool
        Servers share nodes with workers.
    forward : {"pull", "none"}
        What a pass without training moves: the model to every worker in each step, or nothing.
    says : str
    """

    algorithm: str
    options: dict[str, Any]
    colocated: bool
    forward: Literal["pull", "none"]
    says: str


ARCHITECTURES: dict[str, Architecture] = {
    "parameter-server": Architecture("bsp", {"servers": 1}, False, "pull",
                                     "a server on a node of its own; workers pull before and push after"),
    "parameter-server-collocated": Architecture("bsp", {"servers": 1}, True, "pull",
                                                "the same with the server beside one of the workers"),
    "replicated": Architecture("allreduce", {"collective": "ring"}, False, "none",
                               "a copy on every device of one host; gradients are summed locally"),
    "distributed-replicated": Architecture("bsp", {"servers": 1}, True, "none",
                                           "a copy on every worker beside the server's: forward passes need "
                                           "no network, training moves as much"),
    "independent": Architecture("independent", {}, False, "none",
                                "nobody talks to anybody: a yardstick of speed"),
    "distributed-allreduce-pscpu": Architecture("allreduce", {"collective": "pscpu"}, False, "none",
                                                "slices reduced by workers in turn"),
    "distributed-allreduce-root": Architecture("allreduce", {"collective": "root"}, False, "none",
                                               "everything reduced by one worker"),
    "distributed-allreduce-ringx1": Architecture("allreduce", {"collective": "ring"}, False, "none",
                                                 "one ring"),
    "distributed-allreduce-ringx2": Architecture("allreduce", {"collective": "rings"}, False, "none",
                                                 "several rings at once, a part of the vector each"),
    "collective-allreduce": Architecture("allreduce", {"collective": "ring"}, False, "none",
                                         "a ring between independent graphs"),
    "horovod": Architecture("allreduce", {"collective": "ring"}, False, "none", "a ring by NCCL or MPI"),
    "caffe2": Architecture("allreduce", {"collective": "halving-doubling"}, False, "none",
                           "Gloo's halving and doubling"),
}
