"""The table that the rest of the library reads: every figure of a run that a formula gives, by algorithm.

`predict` turns a `Machine` and sizes into a `Setting`, calls the algorithm's function in `ALGORITHMS`, and
gets back a dictionary from the names of figures to `Prediction`; a figure without a formula is absent, and
`refsgd.theory.absent` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from refsgd.cluster.machine import Machine
from refsgd.theory.algorithms.allreduce import allreduce, dgc
from refsgd.theory.algorithms.alone import hogwild, independent, sequential
from refsgd.theory.algorithms.asp import approximate, asp, softsync, staleness_aware
from refsgd.theory.algorithms.backup import backup
from refsgd.theory.algorithms.bsp import bsp
from refsgd.theory.algorithms.fetching import downpour, easgd
from refsgd.theory.algorithms.gossip import GOSSIP
from refsgd.theory.algorithms.local import diloco, local_sgd, post_local
from refsgd.theory.algorithms.ssp import dssp, ssp
from refsgd.theory.prediction import LARGEST, DomainError, TooWide, check_count, check_distribution
from refsgd.theory.setting import Figures, Setting

ALGORITHMS: dict[str, Callable[[Setting], Figures]] = {
    "sequential": sequential, "bsp": bsp, "asp": asp, "ssp": ssp, "allreduce": allreduce, "dgc": dgc,
    "independent": independent,
    "hogwild": hogwild, "backup-workers": backup, "softsync": softsync, "staleness-aware": staleness_aware,
    "dc-asgd": asp,
    "downpour": downpour, "easgd": easgd, "local-sgd": local_sgd, "post-local": post_local, "diloco": diloco,
    "consgd": ssp,
    "dynsgd": ssp, "dssp": dssp, "approximate": approximate, **GOSSIP,
}


#: algorithms without servers: each of their programs that compute has a host of its own
SERVERLESS = {"adpsgd", "allreduce", "dgc", "diloco", "dpsgd", "gosgd", "hogwild", "independent", "local-sgd",
              "pair-averaging", "post-local",
              "sequential", "sgp"}


def _share(name: str, c: Setting) -> bool:
    """Whether updates and gradients of one host may compete for processors, for which no formula accounts.

    Under BSP's barrier a worker waits while the servers beside it update, so only servers can meet there.
    """
    m = c.machine
    if m.cores is None or m.update is None or not m.colocated or name in SERVERLESS:
        return False
    together = -(-c.servers // c.workers)  # servers on the fullest host
    return together + (name != "bsp") > m.cores


def predict(algorithm: str, machine: Machine, *, workers: int, servers: int = 1, nbytes: int = 0,
            batch: int = 1,
            steps: int = 1, options: Mapping[str, Any] | None = None) -> Figures:
    """Every figure of a run that a formula gives.

    Parameters
    ----------
    algorithm : str
        A key of `ALGORITHMS`.
    machine : Machine
        Must state a compute distribution.
    workers, servers : int
        n and K, at least 1.
    nbytes : int
        M: bytes of the model on the wire.
    batch : int
        Images per worker and iteration.
    steps : int
        Iterations of each worker.
    options : mapping
        The algorithm's own options, e.g. ``{"staleness": 3, "refresh": "lazy"}``.

    Returns
    -------
    dict of str to Prediction
        Empty where the options name a graph without a formula, where updates share processors with gradients,
        for more workers than formulas are evaluated for, and on half-duplex links for all but BSP with one
        server and what sends nothing; else some of
        seconds_per_iteration, images_per_second, seconds, updates, bytes_per_iteration, bytes_sent,
        staleness_mean, staleness_max, idle_ratio, idle_by_cause, clock_gap_max, lead_max.

    Raises
    ------
    DomainError
        Where an assumption does not hold; the message names it.

    Examples
    --------
    >>> machine = Machine(compute="exponential(0.02)")
    >>> out = predict("bsp", machine, workers=8, nbytes=1000, batch=16, steps=100)
    >>> round(out["seconds_per_iteration"].value, 5), out["seconds_per_iteration"].kind
    (0.05436, 'exact')
    """
    name = algorithm.replace("_", "-")
    if name not in ALGORITHMS:
        raise DomainError(f"no formula for algorithm {algorithm!r}; expected one of {', '.join(ALGORITHMS)}")
    check_count("workers", workers)
    check_count("servers", servers)
    check_count("nbytes", nbytes, 0)
    check_count("batch", batch, 0)
    check_count("steps", steps, 0)
    check_distribution("compute", machine.compute)
    setting = Setting(machine, workers, servers, nbytes, batch, steps, dict(options or {}))
    if max(workers, servers) > LARGEST or _share(name, setting):
        return {}
    if setting.one_link and not (name in ("sequential", "independent", "hogwild")
                                   or (name == "bsp" and servers == 1)):
        return {}
    try:
        found = ALGORITHMS[name](setting)
    except TooWide:
        return {}
    if name in SERVERLESS and "updates" in found:
        found["updates"] = replace(found["updates"], formula="updates of each worker")
    return found
