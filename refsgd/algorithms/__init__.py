"""The catalogue: one readable file per consistency algorithm.

`CATALOGUE` maps the names of the command line to deployment functions
``f(problem, workers, steps, sgd[, servers, rotated], *, options)``; the keyword-only parameters are the
algorithm's own options, the others mean the same everywhere.

Parameters
----------
problem : Objective
    The objective to minimise.
workers : int
    n, at least 1.
steps : int
    Iterations of each worker, which SSP calls clocks, >= 0.
sgd : SGD
    The update rule of each server's part, or of each replica.
servers : int
    K, at least 1.
rotated : bool
    Worker i begins with server i: for deployments in which every worker's node has a server.
"""

from __future__ import annotations

from collections.abc import Callable

from refsgd.algorithms.allreduce import allreduce, dgc, zero
from refsgd.algorithms.averaging import diloco, easgd, local_sgd, post_local
from refsgd.algorithms.baselines import independent, sequential
from refsgd.algorithms.gossip import adpsgd, dpsgd, gosgd, pair_averaging, sgp
from refsgd.algorithms.pipeline import gpipe, pipedream
from refsgd.algorithms.server import (
    approximate,
    asp,
    backup_workers,
    bsp,
    consgd,
    dc_asgd,
    downpour,
    dssp,
    dynsgd,
    sandblaster,
    softsync,
    ssp,
    staleness_aware,
    strads,
)
from refsgd.algorithms.shared_memory import hogwild
from refsgd.effects import Deployment

CATALOGUE: dict[str, Callable[..., Deployment]] = {
    "sequential": sequential.sequential,
    "bsp": bsp.bsp,
    "asp": asp.asp,
    "ssp": ssp.ssp,
    "easgd": easgd.easgd,
    "downpour": downpour.downpour,
    "backup-workers": backup_workers.backup_workers,
    "softsync": softsync.softsync,
    "staleness-aware": staleness_aware.staleness_aware,
    "dc-asgd": dc_asgd.dc_asgd,
    "consgd": consgd.consgd,
    "dynsgd": dynsgd.dynsgd,
    "dssp": dssp.dssp,
    "approximate": approximate.approximate,
    "allreduce": allreduce.allreduce,
    "dgc": dgc.dgc,
    "zero": zero.zero,
    "gosgd": gosgd.gosgd,
    "adpsgd": adpsgd.adpsgd,
    "pair-averaging": pair_averaging.pair_averaging,
    "independent": independent.independent,
    "hogwild": hogwild.hogwild,
    "local-sgd": local_sgd.local_sgd,
    "post-local": post_local.post_local,
    "diloco": diloco.diloco,
    "dpsgd": dpsgd.dpsgd,
    "sgp": sgp.sgp,
    "gpipe": gpipe.gpipe,
    "pipedream": pipedream.pipedream,
    "sandblaster": sandblaster.sandblaster,
    "strads": strads.strads,
}
