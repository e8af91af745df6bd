"""The strategies considered for a cluster, their groups, and what studies found about their accuracy.

A strategy is an algorithm with its options, the placement of its servers, and the exchange of its gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Candidate(NamedTuple):
    """A strategy to consider: an algorithm, its options, and the placement of servers."""

    algorithm: str
    options: dict[str, Any]
    colocated: bool = False  #: a server on every worker's node instead of nodes of their own
    exchange: Mapping[str, Any] = MappingProxyType({})  #: how gradients travel, as `refsgd run` takes it


class Evidence(NamedTuple):
    """A study's claim for or against a strategy's accuracy."""

    study: str
    part: str
    says: str
    when: str  #: what was kept constant as workers were added
    against: bool = True  #: whether it counts against the strategy


RING = {"collective": "ring"}
#: buckets of 25 MB during the backward pass, as in PyTorch's DDP
DDP = {"overlap": "backward", "bucket": 25_000_000}
#: chunks in the order in which the next forward pass needs them (Jayarajan et al. 2019)
P3 = {"layout": "chunks:1000000", "balance": "size", "overlap": "both", "priority": True}

#: the strategies considered; among ties, an earlier one is preferred
CANDIDATES = (
    Candidate("allreduce", RING), Candidate("allreduce", RING, exchange=DDP),
    Candidate("allreduce", {"collective": "halving-doubling"}), Candidate("bsp", {}),
    Candidate("bsp", {}, True), Candidate("bsp", {}, True, P3), Candidate("backup-workers", {"backups": 1}),
    Candidate("asp", {}), Candidate("asp", {}, True), Candidate("asp", {}, True, P3),
    Candidate("ssp", {"staleness": 3}), Candidate("ssp", {"staleness": 3}, True),
    Candidate("dgc", {"ratio": 0.01}), Candidate("allreduce", RING, exchange={"compress": "fp16"}),
    Candidate("allreduce", RING, exchange={**DDP, "compress": "powersgd:4"}),
    Candidate("local-sgd", {"period": 8}), Candidate("easgd", {"period": 4}),
    Candidate("easgd", {"period": 4}, True),
    Candidate("gosgd", {"p": 0.1}), Candidate("adpsgd", {}), Candidate("dpsgd", {}), Candidate("sgp", {}))

#: groups by what gradients are computed on: strategies of one group differ in time, not in their state after
#: a given number of updates
GROUPS = {"one model": ("bsp", "backup-workers", "allreduce", "zero", "gpipe"),
          "stale gradients": ("asp", "ssp"), "compressed": ("dgc",),
          "replicas": ("easgd", "local-sgd", "gosgd", "adpsgd", "dpsgd", "sgp")}

#: why a pass may improve accuracy less than one of synchronous SGD, by group
COSTS = {"stale gradients": "it applies stale gradients",
         "compressed": "it delays or rounds parts of each gradient", "replicas": "its replicas differ"}

#: PyTorch's counterpart, by algorithm or codec; for others nothing is built in
PYTORCH = {
    "allreduce": "torch.nn.parallel.DistributedDataParallel (DDP), which exchanges buckets of "
                 "bucket_cap_mb=25 MB during the backward pass; "
                 "for larger batches accumulate gradients under ddp.no_sync()",
    "fp16": "ddp.register_comm_hook(None, fp16_compress_hook), from "
            "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "powersgd": "ddp.register_comm_hook(PowerSGDState(..., matrix_approximation_rank=4), powerSGD_hook)",
    "bsp": "DistributedDataParallel (DDP) computes the same, with allreduce instead of servers",
    "zero": "stage 1: torch.distributed.optim.ZeroRedundancyOptimizer; stages 2 and 3: "
            "torch.distributed.fsdp.fully_shard, with and without reshard_after_forward=False",
    "gpipe": "torch.distributed.pipelining: a PipelineStage on each node and Schedule1F1B",
    "dgc": "ddp.register_comm_hook(PowerSGDState(...), powerSGD_hook), from "
           "torch.distributed.algorithms.ddp_comm_hooks; low rank instead "
           "of the largest entries",
    "local-sgd": "torch.distributed.optim.PostLocalSGDOptimizer with PeriodicModelAverager(period={period}), "
                 "and post_localSGD_hook on DDP"}

#: the fastest of each is worth trying; there are several kinds of replicas because they learn differently
TRIES = (*(members for name, members in GROUPS.items() if name != "replicas"), ("local-sgd",), ("easgd",),
         ("gosgd", "adpsgd", "dpsgd", "sgp"))

STALE = Evidence("jia2020", "figure7", "asynchronous accuracy falls from 4 to 12 workers",
                 "equal updates of each worker")
DRIFT = Evidence("ko2021", "table3", "SSP with s = 10, EASGD and GoSGD fall with the number of workers",
                 "equal total passes over the images")
FLAT = Evidence("ko2021", "table3", "BSP, ASP and AD-PSGD hardly depend on the number of workers",
                "equal total passes over the images", False)

#: the studies' findings about an algorithm's accuracy
EVIDENCE: dict[str, tuple[Evidence, ...]] = {
    "bsp": (FLAT,), "asp": (STALE, FLAT), "adpsgd": (FLAT,), "ssp": (STALE,), "easgd": (DRIFT,),
    "gosgd": (DRIFT,)}


def group_of(candidate: Candidate) -> str:
    """A strategy's group in `GROUPS`."""
    if "compress" in candidate.exchange:
        return "compressed"
    return next(name for name, members in GROUPS.items() if candidate.algorithm in members)
