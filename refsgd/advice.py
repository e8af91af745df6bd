"""Which strategy fits a cluster: every candidate's closed forms, ranked; where the ranking changes; what studies found.

Nothing here is an opinion: times, idleness, staleness, bytes and memory are formulas of `refsgd.theory`, and what is
said of accuracy are verdicts of `refsgd.studies`, named so that they can be looked up and repeated.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from refsgd import theory
from refsgd.algorithms import CATALOGUE
from refsgd.experiment import Usage, options_of
from refsgd.machine import Machine
from refsgd.theory import memory, stability
from refsgd.theory.prediction import DomainError


class Candidate(NamedTuple):
    """A strategy that is considered: an algorithm, its options, and where servers are."""

    algorithm: str
    options: dict[str, Any]
    collocated: bool = False  #: a server on every worker's node instead of one node for all


class Evidence(NamedTuple):
    """A claim of a study that speaks for or against a strategy's accuracy."""

    study: str
    part: str
    says: str


CANDIDATES = (
    Candidate("bsp", {}), Candidate("bsp", {}, True), Candidate("backup-workers", {"backups": 1}), Candidate("asp", {}), Candidate("asp", {}, True),
    Candidate("ssp", {"staleness": 3}), Candidate("ssp", {"staleness": 3}, True), Candidate("easgd", {"period": 4}),
    Candidate("allreduce", {"collective": "ring"}), Candidate("allreduce", {"collective": "halving-doubling"}), Candidate("dgc", {}),
    Candidate("local-sgd", {}), Candidate("gosgd", {"p": 0.1}), Candidate("adpsgd", {}), Candidate("dpsgd", {}))

#: what gradients are computed on: strategies of one group differ in time, not in what they compute at a given number of updates
GROUPS = {"one model": ("bsp", "backup-workers", "allreduce"), "compressed": ("dgc",), "stale gradients": ("asp", "ssp"),
          "replicas": ("easgd", "local-sgd", "gosgd", "adpsgd", "dpsgd")}

STALE = Evidence("jia2020", "figure7", "asynchronous accuracy falls from 4 to 12 workers")
DRIFT = Evidence("ko2021", "table3", "SSP with s = 10, EASGD and GoSGD fall with the number of workers")
FLAT = Evidence("ko2021", "table3", "BSP, ASP and AD-PSGD hardly depend on the number of workers")
#: what studies found of an algorithm's accuracy
EVIDENCE: dict[str, tuple[Evidence, ...]] = {
    "bsp": (FLAT,), "asp": (STALE, FLAT), "adpsgd": (FLAT,), "ssp": (STALE,), "easgd": (DRIFT,), "gosgd": (DRIFT,)}


#: figures of a strategy by the names of their closed forms
SHOWN = {"images_per_second": "images_per_second", "seconds": "seconds_per_iteration", "idle": "idle_ratio", "staleness": "staleness_mean",
         "bytes": "bytes_per_iteration"}


@dataclass(frozen=True)
class Strategy:
    """One candidate with its figures.

    Attributes
    ----------
    name, group, command : str
        What it is called; which of `GROUPS` it belongs to; the command that tries it.
    seconds : float
        Of a pass over the data, from the predicted images per second.
    images_per_second, idle, staleness, bytes, memory : float or None
        Predicted: all workers together; share of time waiting; mean, in updates; of an iteration of all nodes;
        of the fullest node [bytes].  None where no formula says.
    rate : float or None
        Largest stable learning rate at that staleness, relative to the synchronous one (`stability.constant_delay`).
    kind : str
        exact, approximation or bound: of the time.
    binding : str
        The largest term of an iteration besides computing.
    evidence : sequence of str
        What studies found: "study part: claim".
    formulas : dict of str to str
        The formula of each figure with its source, as `refsgd.theory` names them.
    rejected : str
        Why it is out of the question here; "" if it is not.
    """

    name: str
    group: str
    command: str
    seconds: float
    images_per_second: float
    idle: float | None
    staleness: float | None
    bytes: float | None
    memory: float
    rate: float | None
    kind: str
    binding: str
    evidence: tuple[str, ...]
    formulas: dict[str, str]
    rejected: str = ""


@dataclass(frozen=True)
class Advice:
    """Strategies, best first; where the best changes; what is not known.

    Attributes
    ----------
    strategies : tuple of Strategy
        Those that fit first, by seconds of a pass; the rejected after them.
    crossings : tuple of str
        In words: along which quantity which strategy becomes the fastest.
    unknown : tuple of str
    """

    machine: Machine
    strategies: tuple[Strategy, ...]
    crossings: tuple[str, ...]
    unknown: tuple[str, ...]

    def to_json(self) -> str:
        """As JSON, format 1."""
        return json.dumps({"format": 1, "machine": self.machine.to_json(), "strategies": [asdict(s) for s in self.strategies],
                           "crossings": self.crossings, "unknown": self.unknown}, indent=1)


UNKNOWN = (
    "how many passes a strategy needs to an accuracy: no formula says; --seeds of `refsgd run` and the studies measure it on small nets",
    "whether your backward pass hides its exchange layer by layer: times here add computing and exchange (refsgd.theory.overlap)",
    "congestion, lost packets, failing nodes: links serve at full rate (see `refsgd run --fault` for failures)")


def advise(machine: Machine, *, parameters: int, workers: int, batch: int = 32, images: int = 50_000, servers: int = 1,
           activations: float = 0.0, memory_limit: float | None = None, staleness_limit: float | None = None,
           candidates: Sequence[Candidate] = CANDIDATES) -> Advice:
    """Rank strategies for a model on a cluster by the predicted time of a pass over the data.

    Parameters
    ----------
    machine : Machine
        With a law of compute times: of one gradient of `batch` images.
    parameters : int
        Of the model; 4 bytes each.
    workers, batch, images, servers : int
        n; images of a gradient; images of a pass; servers of the strategies that have one node for each.
    activations : float
        Bytes kept for one image, for the memory of a worker.
    memory_limit, staleness_limit : float, optional
        Bytes of a node; mean updates.  Strategies above are rejected and say so.
    candidates : sequence of Candidate

    Returns
    -------
    Advice

    Raises
    ------
    ValueError
        Sizes below 1, or a machine without a law of compute times.

    Examples
    --------
    >>> found = advise(Machine(compute="fixed(0.2)", bandwidth=1.25e9), parameters=25_557_032, workers=8)
    >>> found.strategies[0].name
    'gosgd p=0.1'
    """
    for name, value in (("parameters", parameters), ("workers", workers), ("batch", batch), ("images", images), ("servers", servers)):
        if value < 1:
            raise Usage(f"{name} {value}; expected at least 1")
    if machine.compute is None:
        raise Usage("the machine has no law of compute times; expected --compute LAW, or --flops and --rate")
    sizes = _Sizes(parameters, workers, batch, images, servers, activations)
    found = [s for c in candidates if (s := _strategy(c, machine, sizes)) is not None]
    judged = [_limited(s, memory_limit, staleness_limit) for s in found]
    judged.sort(key=lambda s: (bool(s.rejected), s.seconds))
    fitting = {s.name for s in judged if not s.rejected}
    return Advice(machine, tuple(judged), tuple(_crossings(machine, sizes, [c for c in candidates if _name(c, sizes) in fitting])), UNKNOWN)


class _Sizes(NamedTuple):
    parameters: int
    workers: int
    batch: int
    images: int
    servers: int
    activations: float


def _servers(c: Candidate, sizes: _Sizes) -> int:
    return sizes.workers if c.collocated else sizes.servers


def _name(c: Candidate, sizes: _Sizes) -> str:
    """The algorithm with its options, and servers where it has any."""
    options = "".join(f" {k}={v}" for k, v in c.options.items())
    if not _central(c.algorithm):
        return c.algorithm + options
    return f"{c.algorithm}{options} K={sizes.workers} collocated" if c.collocated else f"{c.algorithm}{options} K={sizes.servers}"


def _central(algorithm: str) -> bool:
    return "servers" in inspect.signature(CATALOGUE[algorithm]).parameters


def _figures(c: Candidate, machine: Machine, sizes: _Sizes) -> dict[str, Any] | None:
    """Its closed forms; None outside their domain."""
    defaults = {name: p.default for name, p in options_of(CATALOGUE[c.algorithm]).items()}
    steps = max(1, round(sizes.images / (sizes.workers * sizes.batch)))
    try:
        return dict(theory.predict(c.algorithm, machine.with_(collocated=c.collocated), workers=sizes.workers, servers=_servers(c, sizes),
                                   nbytes=4 * sizes.parameters, batch=sizes.batch, steps=steps, options={**defaults, **c.options}))
    except DomainError:
        return None


def _strategy(c: Candidate, machine: Machine, sizes: _Sizes) -> Strategy | None:
    figures = _figures(c, machine, sizes)
    if not figures or "images_per_second" not in figures:
        return None

    def value(key: str) -> float | None:
        return float(figures[key].value) if key in figures else None

    rate = float(figures["images_per_second"].value)
    tau = value("staleness_mean")
    terms = {k: v for k, v in figures["seconds_per_iteration"].terms.items() if not k.startswith(("compute", "standard error"))}
    share = figures["seconds_per_iteration"].value
    binding = max(terms, key=lambda k: terms[k]) if terms and max(terms.values()) > 0.02 * share else "computing"
    stable = stability.constant_delay(round(tau)).value / 2 if tau is not None else None
    return Strategy(_name(c, sizes), _group(c.algorithm), _command(c, machine, sizes), sizes.images / rate, rate, value("idle_ratio"), tau,
                    value("bytes_per_iteration"), _memory(c, sizes), stable, figures["images_per_second"].kind, binding,
                    tuple(f"{e.study} {e.part}: {e.says}" for e in EVIDENCE.get(c.algorithm, ())),
                    {name: "; ".join(filter(None, (figures[key].formula, figures[key].source))) for name, key in SHOWN.items() if key in figures})


def _memory(c: Candidate, sizes: _Sizes) -> float:
    """Bytes of the fullest node: a worker with one model on its way, and the server where it is beside it."""
    worker = float(memory.worker(sizes.parameters, sizes.activations, sizes.batch, buffers=4 * sizes.parameters).value)
    if not _central(c.algorithm):
        return worker
    server = float(memory.server(sizes.parameters, _servers(c, sizes), workers=sizes.workers, collects=c.algorithm in ("bsp", "backup-workers")).value)
    return worker + server if c.collocated else max(worker, server)


def _command(c: Candidate, machine: Machine, sizes: _Sizes) -> str:
    options = "".join(f" --{k.replace('_', '-')} {v}" for k, v in c.options.items())
    where = (f" --servers {_servers(c, sizes)}" if _central(c.algorithm) else "") + (" --collocated" if c.collocated else "")
    link = f" --latency {machine.latency:g}" + (f" --bandwidth {machine.bandwidth:g}" if np.isfinite(machine.bandwidth) else "")
    return (f"refsgd run {c.algorithm}{options} --net phantom:{sizes.parameters} --data none --workers {sizes.workers}{where} --batch {sizes.batch} "
            f"--steps 20 --compute '{machine.compute}'{link}")


def _limited(s: Strategy, memory_limit: float | None, staleness_limit: float | None) -> Strategy:
    why = []
    if memory_limit is not None and s.memory > memory_limit:
        why.append(f"needs {s.memory / 1e9:.2f} GB of memory, {memory_limit / 1e9:.2f} are there")
    if staleness_limit is not None and (s.staleness is None or s.staleness > staleness_limit):
        why.append("its staleness is not known" if s.staleness is None else f"mean staleness {s.staleness:.1f} updates, at most {staleness_limit:g} wanted")
    return Strategy(**{**s.__dict__, "rejected": "; ".join(why)})


def _group(algorithm: str) -> str:
    return next(name for name, members in GROUPS.items() if algorithm in members)


def _crossings(machine: Machine, sizes: _Sizes, candidates: Sequence[Candidate]) -> list[str]:
    """Where, within a group, another candidate becomes the fastest, along workers, bandwidth and latency.

    SSP is left out: it lies between BSP and ASP.  So is a group in which somebody never waits: nothing is faster.
    """
    assert machine.compute is not None
    bandwidth = machine.bandwidth if np.isfinite(machine.bandwidth) else 1e10
    axes: dict[str, list[float]] = {
        "workers": [2, 4, 8, 16, 32, 64], "bandwidth": list(bandwidth * np.geomspace(0.01, 100, 5)),
        "latency": list((machine.latency or 1e-5) * np.geomspace(0.001, 1000, 7))}
    out = []
    for group, members in GROUPS.items():
        inside = [c for c in candidates if c.algorithm in members and c.algorithm != "ssp"]
        if len(inside) < 2:
            continue
        if any(c.algorithm == "gosgd" for c in inside):
            out.append(f"{group}: gosgd never waits, so nothing in this group is faster anywhere; adpsgd and others mix more")
            continue
        for axis, values in axes.items():
            out += [f"{group}: {text}" for text in _along(axis, values, machine, sizes, inside)]
    return out


def _along(axis: str, values: Sequence[float], machine: Machine, sizes: _Sizes, candidates: Sequence[Candidate]) -> list[str]:
    """Changes of the fastest candidate along one quantity."""
    out, before = [], None
    for x in values:
        at = sizes._replace(workers=int(x)) if axis == "workers" else sizes
        best = _fastest(candidates, machine if axis == "workers" else machine.with_(**{axis: float(x)}), at)
        if best is not None:
            if before and before[0] != best:
                out.append(f"{before[0]} is fastest at {axis} {_amount(axis, before[1])}, {best} at {_amount(axis, x)}")
            before = best, x
    return out


def _fastest(candidates: Sequence[Candidate], machine: Machine, sizes: _Sizes) -> str | None:
    """Algorithm and options of the fastest; K=n where a server is on every node."""
    rates = {}
    for c in candidates:
        figures = _figures(c, machine, sizes)
        if figures and "images_per_second" in figures:
            rates[_name(c, sizes).replace(f"K={sizes.workers} collocated", "K=n collocated")] = float(figures["images_per_second"].value)
    return max(rates, key=lambda k: rates[k]) if rates else None


def _amount(axis: str, x: float) -> str:
    return {"workers": f"{x:g}", "bandwidth": f"{x / 1e9:.3g} GB/s", "latency": f"{1e3 * x:.3g} ms"}[axis]
