"""The default strategies: a table of algorithms with their options, kind, and name in PyTorch.

A new strategy is a new row.  Everything else about an algorithm is asked of it or of its prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Evidence(NamedTuple):
    """A study's claim for or against a strategy's accuracy."""

    study: str
    part: str
    says: str
    when: str  #: what was kept constant as workers were added
    against: bool = True  #: whether it counts against the strategy


class Kind(NamedTuple):
    """What gradients are computed on: passes over the data are comparable only within a kind."""

    title: str
    cost: str = ""  #: why a pass may improve accuracy less than one of synchronous SGD


ONE = Kind("one model, synchronous")
LARGER = Kind("larger batches", "it makes fewer updates, with larger batches")
STALE = Kind("stale gradients", "it applies stale gradients")
COMPRESSED = Kind("compressed gradients", "it delays or rounds parts of each gradient")
REPLICAS = Kind("replicas, one for each worker", "its replicas differ")
KINDS = (ONE, LARGER, STALE, COMPRESSED, REPLICAS)


class Candidate(NamedTuple):
    """A strategy to consider."""

    algorithm: str
    options: Mapping[str, Any] = MappingProxyType({})  #: as `refsgd.run` takes them
    kind: Kind = ONE
    pytorch: str = ""  #: PyTorch's counterpart; "" if nothing is built in
    evidence: tuple[Evidence, ...] = ()
    label: str = ""  #: the options in a name; "": their values
    beside: bool = False  #: a server beside each worker instead of a few servers
    dropped: int = 0  #: gradients of each iteration that have no effect
    nodes: int = 1  #: nodes that compute each batch together
    piece: int = 0  #: parameters in each message, where a model is sent in many
    accumulate: int = 1  #: batches whose gradients a worker adds; the exchange may overlap the last

    @property
    def name(self) -> str:
        """The algorithm with its options."""
        said = [f"{v}" if isinstance(v, str) else f"{k}={v:g}" for k, v in self.options.items()]
        return " ".join([self.algorithm, *([self.label] if self.label else said)])


STALER = Evidence("jia2020", "figure7", "asynchronous accuracy falls from 4 to 12 workers",
                  "equal updates of each worker")
DRIFT = Evidence("ko2021", "table3", "SSP with s = 10, EASGD and GoSGD fall with the number of workers",
                 "equal total passes over the images")
FLAT = Evidence("ko2021", "table3", "BSP, ASP and AD-PSGD hardly depend on the number of workers",
                "equal total passes over the images", False)

RING = {"collective": "ring"}
#: buckets of 25 MB during the backward pass, as in PyTorch's DDP
DDP = {**RING, "overlap": "backward", "bucket": 25_000_000}
#: chunks in the order in which the next forward pass needs them (Jayarajan et al. 2019)
CHUNK = 1_000_000  #: bytes
P3 = {"layout": f"chunks:{CHUNK}", "balance": "size", "overlap": "both", "priority": True}
PARALLEL = "DistributedDataParallel, buckets of bucket_cap_mb=25"
SUMMED = "with no_sync() in 3 of 4 steps"
HOOK = "DistributedDataParallel with register_comm_hook"
SPLIT = "distributed.pipelining: a PipelineStage on each node, Schedule1F1B"


def local(period: int) -> Candidate:
    """Local SGD with this many steps between two averages."""
    return Candidate("local-sgd", {"period": period}, REPLICAS,
                     f"PostLocalSGDOptimizer with PeriodicModelAverager(period={period}), and "
                     "post_localSGD_hook")


#: strategies whose exchange is hidden or in pairs, so that a trace's does not say how long it takes
UNTRACED = (
    Candidate("streaming-diloco", {"period": 64}, REPLICAS,
              "torchft.local_sgd.DiLoCo(sync_every=64, fragment_sync_delay=1), model in fragments"),
    Candidate("eager-diloco", {"period": 64}, REPLICAS), Candidate("noloco", {"period": 64}, REPLICAS))

#: the strategies considered; among ties, an earlier one is preferred
CANDIDATES = (
    Candidate("allreduce", RING, ONE, "DistributedDataParallel, one bucket: bucket_cap_mb above the model's"),
    Candidate("allreduce", DDP, ONE, PARALLEL, label="ring overlap"),
    Candidate("allreduce", {"collective": "hierarchical"}, ONE,
              "DistributedDataParallel; NCCL chooses rings or trees over hosts (NCCL_ALGO)"),
    Candidate("allreduce", {"collective": "halving-doubling"}, ONE,
              "DistributedDataParallel with backend gloo"),
    Candidate("bsp", {}, ONE, evidence=(FLAT,)),
    Candidate("bsp", {}, ONE, evidence=(FLAT,), beside=True),
    Candidate("backup-workers", {"backups": 1}, ONE, dropped=1),
    Candidate("allreduce", RING, LARGER, f"DistributedDataParallel, one bucket, {SUMMED}",
              label="ring accumulate=4", accumulate=4),
    Candidate("allreduce", DDP, LARGER, f"{PARALLEL}, {SUMMED}",
              label="ring overlap accumulate=4", accumulate=4),
    Candidate("asp", {}, STALE, evidence=(STALER, FLAT)),
    Candidate("asp", {}, STALE, evidence=(STALER, FLAT), beside=True),
    Candidate("ssp", {"staleness": 3}, STALE, evidence=(STALER,)),
    Candidate("ssp", {"staleness": 3}, STALE, evidence=(STALER,), beside=True),
    Candidate("dgc", {"ratio": 0.01}, COMPRESSED),
    Candidate("allreduce", {**RING, "compress": "fp16"}, COMPRESSED, f"{HOOK}(None, fp16_compress_hook)",
              label="ring fp16"),
    Candidate("allreduce", {**DDP, "compress": "fp16"}, COMPRESSED, f"{HOOK}(None, fp16_compress_hook)",
              label="ring overlap fp16"),
    Candidate("diloco", {"period": 64}, REPLICAS, "torchft.local_sgd.DiLoCo(sync_every=64)"),
    *UNTRACED, local(8),
    Candidate("easgd", {"period": 4}, REPLICAS, evidence=(DRIFT,)),
    Candidate("easgd", {"period": 4}, REPLICAS, evidence=(DRIFT,), beside=True),
    Candidate("gosgd", {"p": 0.1}, REPLICAS, evidence=(DRIFT,)),
    Candidate("adpsgd", {}, REPLICAS, evidence=(FLAT,)), Candidate("dpsgd", {}, REPLICAS),
    Candidate("sgp", {}, REPLICAS),
    # many messages, which take the longest to simulate, come last
    Candidate("allreduce", {**DDP, "compress": "powersgd:4"}, COMPRESSED,
              f"{HOOK}(PowerSGDState(..., matrix_approximation_rank=4), powerSGD_hook)",
              label="ring overlap powersgd:4"),
    Candidate("bsp", P3, ONE, evidence=(FLAT,), label="P3", beside=True, piece=CHUNK // 4),
    Candidate("asp", P3, STALE, evidence=(STALER, FLAT), label="P3", beside=True, piece=CHUNK // 4))

#: strategies for traces, by their times of computing: no option that needs layers or bytes
TRACED = (Candidate("allreduce", {}, ONE, "DistributedDataParallel"),
          *(c for c in CANDIDATES if c not in UNTRACED and not c.beside
            and not {"collective", "compress", "ratio"} & set(c.options)),
          Candidate("backup-workers", {"backups": 2}, ONE, dropped=2), *map(local, (2, 4, 16)))


def divided(workers: int, batch: int) -> list[Candidate]:
    """Divisions of a model that no node can hold: ZeRO, and pipelines of numbers that divide the workers."""
    sharded = ("distributed.optim.ZeroRedundancyOptimizer, here without overlap",
               "fully_shard(reshard_after_forward=False), here without its prefetch",
               "distributed.fsdp.fully_shard, here without its prefetch")
    found = [Candidate("zero", {"stage": stage}, ONE, name) for stage, name in enumerate(sharded, 1)]
    return found + [
        Candidate("gpipe", {"stages": depth, "micro": depth * each, "passes": "1f1b"}, ONE, SPLIT,
                  nodes=depth)
        for depth in range(2, workers + 1) if workers % depth == 0
        # micro-batches a node: 4, 16 or more, of no fewer than 4 images unless the batch is small
        for each in sorted({min(4, batch), min(16, batch), max(1, batch // 4)})]
