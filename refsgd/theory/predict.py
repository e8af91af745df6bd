"""Predictions by algorithm: `predict` calls the formula that an algorithm names for its machine and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from refsgd.cluster import prices, units
from refsgd.cluster.devices import Time
from refsgd.cluster.distributions import Distribution
from refsgd.cluster.links import Network
from refsgd.cluster.machine import Machine
from refsgd.theory.algorithms.allreduce import allreduce, dgc, in_step, zero
from refsgd.theory.algorithms.asp import asp, softsync, staleness_aware
from refsgd.theory.algorithms.bsp import backup_workers, bsp
from refsgd.theory.algorithms.fastest import k_async, k_sync, rennala, ringleader, ringmaster
from refsgd.theory.algorithms.federated import async_diloco, fedasync, fedavg, fedbuff, scaffold
from refsgd.theory.algorithms.fetching import downpour, easgd
from refsgd.theory.algorithms.gossip import adpsgd, ako, dpsgd, gosgd, pair_averaging, sgp
from refsgd.theory.algorithms.local import (
    adacomm,
    diloco,
    eager_diloco,
    local_sgd,
    noloco,
    post_local,
    streaming_diloco,
)
from refsgd.theory.algorithms.peers import hogwild, independent, sequential
from refsgd.theory.algorithms.pipeline import gpipe, pipedream
from refsgd.theory.algorithms.ssp import approximate, dssp, ssp
from refsgd.theory.estimate import LARGEST, WIDEST, Uncovered, check_count, check_distribution, replayed
from refsgd.theory.phenomena.layerwise import Plan
from refsgd.theory.phenomena.pipeline import Pipeline
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import TIMES, Setting
from refsgd.trace.metrics import PREDICTED

Formula = Callable[[Setting], Figures]


def _named(*formulas: Formula) -> dict[str, Formula]:
    """Functions by their names."""
    return {formula.__name__: formula for formula in formulas}


SERVED = _named(bsp, asp, ssp, dssp, softsync, staleness_aware, backup_workers, downpour, easgd, approximate,
                k_async, k_sync, rennala, ringmaster, ringleader, fedavg, scaffold, fedbuff, fedasync,
                async_diloco)
#: of algorithms without servers; on a flat machine each of their workers has its own host
PEERS = _named(sequential, independent, hogwild, allreduce, dgc, zero, local_sgd, post_local, adacomm,
               diloco, eager_diloco, streaming_diloco, noloco, gosgd, ako, adpsgd, pair_averaging, dpsgd, sgp,
               gpipe, pipedream)
ALGORITHMS = SERVED | PEERS  #: the formulas that algorithms name in their facts


def _check_covered(formula: Formula, c: Setting) -> None:
    """Raise Uncovered if no formula accounts for resources that nodes share."""
    m = c.machine
    if m.loads:
        raise Uncovered(f"no formula accounts for speeds that change over time (load of {m.loads[0]}): "
                        f"{formula.__name__} can only be simulated or measured")
    if max(c.workers, c.servers) > LARGEST:
        raise Uncovered(f"formulas of {formula.__name__} are evaluated for up to {LARGEST} workers, not for "
                        f"{max(c.workers, c.servers)}")
    if m.cores is not None and (busiest := _computing(formula, c)) > m.cores:
        raise Uncovered(f"no formula accounts for {busiest} programs of one host that share "
                        f"{units.counted(m.cores, 'core')}: {formula.__name__} can only be simulated or "
                        "measured")


def _computing(formula: Formula, c: Setting) -> int:
    """The most programs of one host that may compute at the same time; in BSP, workers or servers do."""
    servers: int | list[int] = 0 if formula in PEERS.values() else c.servers
    if c.plan and servers:
        servers = [part.server for part in c.plan.parts]
    on: dict[str, list[int]] = {}
    for number, host in enumerate(Network.of(c.machine, c.workers, servers).host.values()):
        on.setdefault(host, [0, 0])[number >= c.workers] += 1
    updating = c.machine.update is not None or bool(c.plan and c.plan.codec)
    return max(max(workers, servers * updating) if formula is bsp else workers + servers * updating
               for workers, servers in on.values())


def _served(formula: Formula, machine: Machine, servers: int) -> Machine:
    """The machine with servers of speed 1 and the same update times."""
    if formula in PEERS.values() or machine.update is None or not machine.server_speeds:
        return machine
    updates = {prices.at(machine, "server", k).update for k in range(servers)}
    if len(updates) > 1:
        raise Uncovered(f"servers of different speeds ({units.written(machine.server_speeds)}) have no "
                        f"formula: {formula.__name__} can only be simulated or measured")
    if formula is easgd:
        raise Uncovered("easgd has no formula for servers of a speed other than 1, because its workers "
                        "update too: it can only be simulated or measured")
    return machine.with_(update=updates.pop(), server_speeds=())


def _without_overhead(formula: Formula, c: Setting) -> Machine | None:
    """A machine without overheads on which the algorithm takes the same time, where there is one.

    * A step of a ring of equal peers is o + L + b m + o: the latency is L + 2 o.
    * A server that takes and sends n messages one by one, o each, is a link on which a model takes o; the
      workers' own two ends add 2 o to an iteration, which has two latencies: L + o.
    """
    m, o = c.machine, c.machine.overhead
    if o is None or m.hosts or m.groups or m.inside or m.colocated or m.updating or m.crowding or c.plan:
        return None
    plain = m.with_(overhead=None)
    if formula in (sequential, independent, hogwild) or (c.workers == 1 and formula in PEERS.values()):
        return plain
    if formula is allreduce and c.options.get("collective", "ring") == "ring" and not (
            c.nbytes % (4 * c.workers) or c.one_link) and in_step(c):
        return plain.with_(latency=m.latency + 2 * o.seconds(c.nbytes // c.workers))
    if formula is bsp and c.servers == 1 and c.nbytes and not c.transfer:
        end = o.seconds(c.nbytes)
        return plain.with_(latency=m.latency + end, bandwidth=c.nbytes / end)
    return None


def _figures(formula: Formula, c: Setting) -> Figures:
    """The algorithm's formulas; on a machine with overheads, where no other machine is as fast, of what does
    not depend on times."""
    m, in_order = c.machine, replayed(c.times + c.updates)
    if in_order:  # for one worker alone, the sum of its times is all that matters
        own = tuple(_mean_of(time, c.steps) for time in prices.each(m))
        m = m.with_(compute=own[0] if len(own) == 1 else own, update=_mean_of(m.update, c.steps))
        c = replace(c, machine=m)
    if not (m.overhead or m.updating or m.crowding or (in_order and c.workers > 1)):
        return formula(c)
    if not in_order and (other := _without_overhead(formula, c)) is not None:
        found = formula(replace(c, machine=other))
        return found.leave("overhead is one of the causes", "idle_by_cause") if other.linked else found
    found = formula(replace(c, machine=m.with_(overhead=None, updating=0.0, crowding=())))
    return found.leave("no closed form: overheads of messages, updates by their bytes, crowding and replayed "
                       "times, which are not independent, are simulated",
                       *TIMES, *(each for each in ("staleness_mean", "staleness_max")
                                 if each in found and found[each].source != "by construction"))


def _mean_of(time: Time | None, steps: int) -> Time | None:
    """A replayed time as the mean of its first `steps`; another time as it is."""
    if not isinstance(time, Distribution) or time.family != "replayed":
        return time
    return Distribution("fixed", (float(np.resize(time.parameters, steps).mean()),))


def _of_no_steps(found: Figures) -> Figures:
    """Turn the metrics of a run of one step into those of a run of none."""
    units = {name: p.unit for name, p in found.items()} | dict.fromkeys(found.open & {"seconds"}, "s")
    for name in ("seconds", "updates", "bytes_sent", "clock_gap_max", "lead_max"):
        if name in units:
            found[name] = Prediction(0.0, units[name], "exact", {}, "no iteration", "definition")
    found.without("no iteration, no time", "images_per_second", "idle_ratio", "idle_by_cause")
    return found.without("no iteration, no update", "staleness_mean", "staleness_max")


def predict(algorithm: str | Formula, machine: Machine, *, workers: int, servers: int = 1, nbytes: int = 0,
            batch: int | Sequence[int] = 1, images: int | None = None, steps: int = 1,
            options: Mapping[str, Any] | None = None, plan: Plan | None = None,
            pipeline: Pipeline | None = None, owner: str = "") -> Figures:
    """Predict every metric of a run for which there is a formula.

    Parameters
    ----------
    algorithm : str or callable
        A key of `ALGORITHMS`; algorithms of one schedule, such as SSP and CONSGD, share one.  Or a formula.
    machine : Machine
        Must state a compute distribution.
    workers, servers : int
        n and K, at least 1.
    nbytes : int
        M: bytes of the model on the wire.
    batch : int or sequence of int
        Images per worker and iteration, or for each worker.  Times do not depend on it.
    images : int, optional
        Images in all gradients of the run, where some have fewer than `batch`.
    steps : int
        Iterations of each worker.
    options : mapping
        The algorithm's own options, e.g. ``{"staleness": 3, "refresh": "lazy"}``.
    plan : Plan, optional
        How gradients travel in parts, see `refsgd.theory.phenomena.layerwise`.
    pipeline : Pipeline, optional
        Of a net in stages, see `refsgd.theory.phenomena.pipeline`.
    owner : str
        The algorithm that has these options and no others: a formula that needs another one is refused.

    Returns
    -------
    Figures
        Predictions of some of ``refsgd.trace.metrics.PREDICTED``; ``missing`` says why others are absent.
        All are absent, and `open` to a simulation of up to 2,000 nodes, if the options name a graph without
        a formula, if programs of a host share its processors, or if nodes share links in AD-PSGD, pair
        averaging, or collectives other than the ring; times are if messages have overheads.

    Raises
    ------
    DomainError
        If an assumption does not hold; the message names it.

    Examples
    --------
    >>> machine = Machine(compute="exponential(0.02)")
    >>> out = predict("bsp", machine, workers=8, nbytes=1000, batch=16, steps=100)
    >>> round(out["seconds_per_iteration"].value, 5), out["seconds_per_iteration"].kind
    (0.05436, 'exact')
    >>> predict("asp", machine.with_(latency=0.001), workers=4, steps=9).missing
    {'staleness_max': 'bounded only by the length of the run: others may make any number of updates'}
    """
    formula = algorithm if callable(algorithm) else ALGORITHMS.get(algorithm.replace("-", "_"))
    if formula is None:
        raise DomainError(f"no formula for algorithm {algorithm!r}; expected one of {', '.join(ALGORITHMS)}")
    check_count("workers", workers)
    check_count("servers", servers)
    check_count("nbytes", nbytes, 0)
    batches = tuple(batch) if isinstance(batch, Sequence) else (batch,) * workers
    for each in set(batches):
        check_count("batch", each, 0)
    if len(batches) != workers:
        raise DomainError(f"{len(batches)} batches for {workers} workers; expected one for each")
    check_count("steps", steps, 0)
    check_distribution("compute", prices.own(machine, 0))
    servers = 1 if formula in PEERS.values() else servers
    if images is None or not steps:
        images = sum(batches) * max(steps, 1)
    try:
        setting = Setting(_served(formula, machine, servers), workers, servers, nbytes, batches, images,
                          max(steps, 1), dict(options or {}), plan, pipeline,
                          owner and f"{formula.__name__} of {owner}")
        if plan and plan.unknown:
            raise Uncovered(plan.unknown)
        _check_covered(formula, setting)
        found = _figures(formula, setting)
    except Uncovered as why:
        simulable = max(workers, servers) <= WIDEST
        return (Figures().leave if simulable else Figures().without)(str(why), *PREDICTED)
    if formula in PEERS.values():
        found["updates"] = replace(found["updates"], formula="updates of each worker")
    if not steps:
        _of_no_steps(found)
    found.leave("its formula does not give it", *{*PREDICTED} - found.keys() - found.missing.keys())
    found.missing = {name: found.missing[name] for name in PREDICTED if name not in found}
    return found
