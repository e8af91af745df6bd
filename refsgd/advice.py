"""Which strategy fits a cluster: every candidate's closed forms, ranked; where the ranking changes; what studies found.

Nothing here is an opinion: times, idleness, staleness, bytes and memory are formulas of `refsgd.theory`, and what is
said of accuracy are verdicts of `refsgd.studies`, named so that they can be looked up and repeated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from refsgd import theory
from refsgd.algorithms import CATALOGUE
from refsgd.arguments import Usage, check_speeds, options_of
from refsgd.experiment import has_servers
from refsgd.machine import Machine
from refsgd.theory import memory, stability
from refsgd.theory.prediction import DomainError, Prediction
from refsgd.units import written


class Candidate(NamedTuple):
    """A strategy that is considered: an algorithm, its options, and where servers are."""

    algorithm: str
    options: dict[str, Any]
    collocated: bool = False  #: a server on every worker's node instead of nodes of their own


class Evidence(NamedTuple):
    """A claim of a study that speaks for or against a strategy's accuracy."""

    study: str
    part: str
    says: str
    when: str  #: what was kept equal while workers were added


CANDIDATES = (
    Candidate("bsp", {}), Candidate("bsp", {}, True), Candidate("backup-workers", {"backups": 1}), Candidate("asp", {}), Candidate("asp", {}, True),
    Candidate("ssp", {"staleness": 3}), Candidate("ssp", {"staleness": 3}, True), Candidate("allreduce", {"collective": "ring"}),
    Candidate("allreduce", {"collective": "halving-doubling"}), Candidate("dgc", {"ratio": 0.01}), Candidate("easgd", {"period": 4}),
    Candidate("easgd", {"period": 4}, True), Candidate("local-sgd", {"period": 8}), Candidate("gosgd", {"p": 0.1}), Candidate("adpsgd", {}),
    Candidate("dpsgd", {}), Candidate("sgp", {}))

#: what gradients are computed on: strategies of one group differ in time, not in what they compute at a given number of updates
GROUPS = {"one model": ("bsp", "backup-workers", "allreduce"), "compressed": ("dgc",), "stale gradients": ("asp", "ssp"),
          "replicas": ("easgd", "local-sgd", "gosgd", "adpsgd", "dpsgd", "sgp")}

#: of each of these the fastest is worth a try: replicas differ in what they learn, so not only the fastest of them
TRIES = (*(members for name, members in GROUPS.items() if name != "replicas"), ("local-sgd",), ("easgd",), ("gosgd", "adpsgd", "dpsgd", "sgp"))

STALE = Evidence("jia2020", "figure7", "asynchronous accuracy falls from 4 to 12 workers", "equal updates of each worker")
DRIFT = Evidence("ko2021", "table3", "SSP with s = 10, EASGD and GoSGD fall with the number of workers", "equal passes over the images in all")
FLAT = Evidence("ko2021", "table3", "BSP, ASP and AD-PSGD hardly depend on the number of workers", "equal passes over the images in all")
#: what studies found of an algorithm's accuracy
EVIDENCE: dict[str, tuple[Evidence, ...]] = {
    "bsp": (FLAT,), "asp": (STALE, FLAT), "adpsgd": (FLAT,), "ssp": (STALE,), "easgd": (DRIFT,), "gosgd": (DRIFT,)}

#: pages of the documentation that explain a figure, by its name
PAGES = {"seconds": "docs/explanation/links", "idle": "docs/howto/results", "staleness": "docs/explanation/staleness",
         "bytes": "docs/howto/results", "ranking": "tutorials/14-which-strategy"}

#: figures of a strategy by the names of their closed forms
SHOWN = {"images_per_second": "images_per_second", "seconds": "seconds_per_iteration", "staleness": "staleness_mean", "bytes": "bytes_per_iteration"}


@dataclass(frozen=True)
class Strategy:
    """One candidate with its figures.

    Attributes
    ----------
    name, group, command : str
        What it is called (K servers, K=n: one on each worker's node); which of `GROUPS` it belongs to; the command that tries it.
    page : str
        The page of the documentation that explains it.
    seconds : float
        Of a pass over the data, from the predicted images per second.
    images_per_second : float
        Predicted, of all workers together, without images whose gradients are dropped.
    idle : float
        Share of the images a second that the workers could compute without waiting, but do not.
    staleness, bytes : float or None
        Mean, in updates; of an iteration of all nodes.  None where no formula says.
    memory : float
        Of the fullest node [bytes].
    rate : float or None
        Largest stable learning rate at that staleness, relative to the synchronous one (`stability.constant_delay`);
        None for replicas and compressed gradients, of which that formula does not speak.
    kind : str
        exact, approximation or bound: of the time.
    binding : str
        The largest term of an iteration besides computing.
    evidence : sequence of str
        What studies found: "study part: claim (what was kept equal)".
    formulas : dict of str to str
        The formula of each figure with its source, as `refsgd.theory` names them.
    rejected : str
        Why it is out of the question here; "" if it is not.
    """

    name: str
    group: str
    command: str
    page: str
    seconds: float
    images_per_second: float
    idle: float
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
        In words: up to where a strategy is the fastest or within 2 % of it, and which one is from there on.
    unknown : tuple of str
    """

    machine: Machine
    strategies: tuple[Strategy, ...]
    crossings: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def tries(self) -> tuple[Strategy, ...]:
        """What is worth a try: the fastest that fits of each of `TRIES`, the fastest first."""
        first = {members: s for members in TRIES for s in reversed(self.strategies) if not s.rejected and s.name.split()[0] in members}
        return tuple(sorted(first.values(), key=lambda s: s.seconds))

    def to_json(self) -> str:
        """As JSON, format 1."""
        return json.dumps({"format": 1, "machine": self.machine.to_json(), "strategies": [asdict(s) for s in self.strategies],
                           "crossings": self.crossings, "unknown": self.unknown, "tries": [s.name for s in self.tries], "pages": PAGES}, indent=1)


UNKNOWN = (
    "how many passes a strategy needs to an accuracy, at which learning rate: no formula says; runs and studies measure it on small nets",
    "whether your backward pass hides its exchange layer by layer: times here add computing and exchange (refsgd.theory.overlap)",
    "congestion, lost packets, failing nodes: links serve at full rate (see `refsgd run --fault` for failures)")


def advise(machine: Machine, *, parameters: int, workers: int, batch: int = 32, images: int = 50_000, servers: int = 1,
           activations: float = 0.0, memory_limit: float | None = None, staleness_limit: float | None = None,
           candidates: Sequence[Candidate] = CANDIDATES, described: str = "") -> Advice:
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
        Bytes of a node, > 0; mean updates, >= 0.  Strategies above are rejected and say so.
    candidates : sequence of Candidate
    described : str
        Flags that describe the machine in commands, e.g. ``--machine FILE``; empty: those of its numbers.

    Returns
    -------
    Advice

    Raises
    ------
    ValueError
        Sizes below 1, limits that leave nothing, or a machine without a law of compute times.

    Examples
    --------
    >>> found = advise(Machine(compute="fixed(0.2)", bandwidth=1.25e9), parameters=25_557_032, workers=8)
    >>> found.strategies[0].name
    'gosgd p=0.1'
    """
    for name, value in (("parameters", parameters), ("workers", workers), ("batch", batch), ("images", images), ("servers", servers)):
        if value < 1:
            raise Usage(f"{name} {value}; expected at least 1")
    check_speeds(machine, workers)
    if memory_limit is not None and not memory_limit > 0:
        raise Usage(f"memory of {memory_limit:g} bytes; expected a number > 0")
    if staleness_limit is not None and not staleness_limit >= 0:
        raise Usage(f"mean staleness of at most {staleness_limit:g} updates; expected a number >= 0")
    if machine.compute is None:
        raise Usage("the machine has no law of compute times; expected --compute LAW, or --flops and --rate")
    sizes = _Sizes(parameters, workers, batch, images, servers, activations, described or _flags(machine))
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
    described: str


def _servers(c: Candidate, sizes: _Sizes) -> int:
    """K; 0 without a server.  Backup workers have one, however many are asked for."""
    if c.algorithm == "backup-workers":
        return 1
    if not has_servers(CATALOGUE[c.algorithm]):
        return 0
    return sizes.workers if c.collocated else sizes.servers


def _name(c: Candidate, sizes: _Sizes) -> str:
    """The algorithm with its options, and servers where it has any."""
    options = "".join(f" {v}" if isinstance(v, str) else f" {k}={v:g}" for k, v in c.options.items())
    servers = "n" if c.collocated else _servers(c, sizes)
    return f"{c.algorithm}{options}" + (f" K={servers}" if servers else "")


def _figures(c: Candidate, machine: Machine, sizes: _Sizes) -> dict[str, Any] | None:
    """Its closed forms; None outside their domain, or where they say nothing of speed."""
    defaults = {name: p.default for name, p in options_of(CATALOGUE[c.algorithm]).items()}
    steps = max(1, round(sizes.images / (sizes.workers * sizes.batch)))
    try:
        found = theory.predict(c.algorithm, machine.with_(collocated=c.collocated), workers=sizes.workers, servers=max(_servers(c, sizes), 1),
                               nbytes=4 * sizes.parameters, batch=sizes.batch, steps=steps, options={**defaults, **c.options})
    except DomainError:
        return None
    return dict(found) if "images_per_second" in found else None


def _used(c: Candidate, sizes: _Sizes) -> float:
    """Share of the gradients that count: backup workers drop those of the last."""
    return 1 - min(int(c.options.get("backups", 0)), sizes.workers - 1) / sizes.workers


def _alone(machine: Machine, workers: int) -> list[float]:
    """Gradients a second of each worker that never waits."""
    return [1 / law.mean for i in range(workers) if (law := machine.law(f"worker{i}", "gradient")) is not None]


def _strategy(c: Candidate, machine: Machine, sizes: _Sizes) -> Strategy | None:
    figures = _figures(c, machine, sizes)
    if not figures:
        return None

    def value(key: str) -> float | None:
        return float(figures[key].value) if key in figures else None

    used = _used(c, sizes)
    rate = used * float(figures["images_per_second"].value)
    tau = value("staleness_mean")
    formulas = {name: "; ".join(filter(None, (figures[key].formula, figures[key].source))) for name, key in SHOWN.items() if key in figures}
    formulas["idle"] = "1 - images_per_second / (b sum 1/E[T_i])"
    if used < 1:
        formulas["images_per_second"] += f"; x {used:g}: the gradients that count"
    unwaited = _group(c.algorithm) in ("one model", "stale gradients")
    return Strategy(
        _name(c, sizes), _group(c.algorithm), _command(c, sizes), f"docs/algorithms/{c.algorithm}", sizes.images / rate, rate,
        max(1 - rate / (sizes.batch * sum(_alone(machine, sizes.workers))), 0.0), tau, value("bytes_per_iteration"), _memory(c, sizes),
        stability.constant_delay(round(tau)).value / 2 if unwaited and tau is not None else None, figures["images_per_second"].kind,
        _binding(figures["seconds_per_iteration"]), tuple(f"{e.study} {e.part}: {e.says} ({e.when})" for e in EVIDENCE.get(c.algorithm, ())),
        formulas, _piling(c, machine, sizes))


def _binding(step: Prediction) -> str:
    """The largest term of an iteration besides computing; "computing" if none is above 2 %."""
    terms = {k: v for k, v in step.terms.items() if not k.startswith(("compute", "standard error"))}
    return max(terms, key=lambda k: terms[k]) if terms and max(terms.values()) > 0.02 * step.value else "computing"


def _piling(c: Candidate, machine: Machine, sizes: _Sizes) -> str:
    """Why a strategy that waits for nobody is out: some link gets more than it can carry, so messages grow older without bound.

    GoSGD: worker i sends p/T_i models a second, and hears of the others p/(n - 1) sum 1/T_j.
    """
    if c.algorithm != "gosgd" or sizes.workers < 2:
        return ""
    own = np.asarray(_alone(machine, sizes.workers))
    busiest = c.options["p"] * 4 * sizes.parameters / machine.bandwidth * max(own.max(), (own.sum() - own.min()) / (sizes.workers - 1))
    return f"messages pile up: links would be busy {busiest:.3g} times as long as there is time" if busiest >= 1 else ""


def _memory(c: Candidate, sizes: _Sizes) -> float:
    """Bytes of the fullest node: a worker with one model on its way, and the server where it is beside it."""
    worker = float(memory.worker(sizes.parameters, sizes.activations, sizes.batch, buffers=4 * sizes.parameters).value)
    servers = _servers(c, sizes)
    if not servers:
        return worker
    server = float(memory.server(sizes.parameters, servers, workers=sizes.workers, collects=c.algorithm in ("bsp", "backup-workers")).value)
    return worker + server if c.collocated else max(worker, server)


def _command(c: Candidate, sizes: _Sizes) -> str:
    options = "".join(f" --{k.replace('_', '-')} {v}" for k, v in c.options.items())
    where = f" --servers {_servers(c, sizes)}" if has_servers(CATALOGUE[c.algorithm]) else ""
    return (f"refsgd run {c.algorithm}{options} --net phantom:{sizes.parameters} --data none --workers {sizes.workers}{where} --batch {sizes.batch} "
            f"--steps 20 {sizes.described}" + (" --collocated" if c.collocated else ""))


def _flags(machine: Machine) -> str:
    """The machine's numbers as flags of the command line."""
    said = {"compute": f"'{machine.compute}'", "latency": f"{machine.latency:g}",
            "bandwidth": f"{machine.bandwidth:g}" if np.isfinite(machine.bandwidth) else "", "update": f"'{machine.update}'" if machine.update else "",
            "speeds": written(machine.speeds)}
    return " ".join(f"--{name} {value}" for name, value in said.items() if value)


def _limited(s: Strategy, memory_limit: float | None, staleness_limit: float | None) -> Strategy:
    why = [s.rejected] if s.rejected else []
    if memory_limit is not None and s.memory > memory_limit:
        why.append(f"needs {s.memory / 1e9:.2f} GB of memory, {memory_limit / 1e9:.2f} are there")
    if staleness_limit is not None and (s.staleness is None or s.staleness > staleness_limit):
        why.append("its staleness is not known" if s.staleness is None else f"mean staleness {s.staleness:.1f} updates, at most {staleness_limit:g} wanted")
    return Strategy(**{**s.__dict__, "rejected": "; ".join(why)})


def _group(algorithm: str) -> str:
    return next(name for name, members in GROUPS.items() if algorithm in members)


def _crossings(machine: Machine, sizes: _Sizes, candidates: Sequence[Candidate]) -> list[str]:
    """Where, within a group, another candidate becomes the fastest, along workers, bandwidth and latency.

    SSP is left out: it lies between BSP and ASP.  So is one server where servers on all nodes are a candidate: they share its load.
    """
    spread = {c.algorithm for c in candidates if c.collocated} if sizes.servers == 1 else set()
    bandwidth = machine.bandwidth if np.isfinite(machine.bandwidth) else 1e10
    axes: dict[str, list[float]] = {
        "workers": [2, 4, 8, 16, 32, 64], "bandwidth": list(bandwidth * np.geomspace(0.01, 100, 5)),
        "latency": list((machine.latency or 1e-5) * np.geomspace(0.01, 1000, 6))}
    out = []
    for group, members in GROUPS.items():
        inside = [c for c in candidates if c.algorithm in members and c.algorithm != "ssp" and (c.collocated or c.algorithm not in spread)]
        for axis, values in axes.items() if len(inside) > 1 else ():
            out += [f"{group}: {text}" for text in _along(axis, values, machine, sizes, inside)]
    return out


GAIN = 1.02  #: by how much another candidate must be faster before the ranking is said to change: below, formulas tie


def _along(axis: str, values: Sequence[float], machine: Machine, sizes: _Sizes, candidates: Sequence[Candidate]) -> list[str]:
    """Changes of the fastest candidate along one quantity: between values of a grid, then halved towards the change."""

    def rates(x: float, some: Sequence[Candidate]) -> dict[str, float]:
        if axis == "workers":
            return _rates(some, machine, sizes._replace(workers=int(x)))
        return _rates(some, machine.with_(**{axis: float(x)}), sizes)

    out, before = [], None
    for x in values:
        found = rates(x, candidates)
        if not found:
            continue
        best = max(found, key=lambda name: found[name])
        if before and found[best] > GAIN * found.get(before[0], 0.0):
            low, high = before[1], x
            two = [c for c in candidates if _name(c, sizes) in (before[0], best)]
            for _ in range(4):
                middle = float(np.sqrt(low * high)) if axis != "workers" else (low + high) // 2
                then = rates(middle, two)
                low, high = (low, middle) if then.get(best, 0.0) > GAIN * then.get(before[0], 0.0) else (middle, high)
            out.append(f"{before[0]} up to {_amount(axis, low)}, {best} from {_amount(axis, high)} on")
        if not before or found[best] > GAIN * found.get(before[0], 0.0):
            before = best, x
        else:
            before = before[0], x
    return out


def _rates(candidates: Sequence[Candidate], machine: Machine, sizes: _Sizes) -> dict[str, float]:
    """Images a second of those that a formula speaks of and whose messages do not pile up."""
    return {_name(c, sizes): _used(c, sizes) * float(figures["images_per_second"].value) for c in candidates
            if not _piling(c, machine, sizes) and (figures := _figures(c, machine, sizes))}


def _amount(axis: str, x: float) -> str:
    return {"workers": f"{x:g} workers", "bandwidth": f"{x / 1e9:.2g} GB/s", "latency": f"a latency of {1e3 * x:.2g} ms"}[axis]
