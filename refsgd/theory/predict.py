"""The table that the rest of the library reads: every figure of a run that a formula gives, by algorithm.

`predict` turns a `Machine` and sizes into a `Setting`, calls the algorithm's function in `ALGORITHMS`, and
gets back a dictionary from the names of figures to `Prediction`; a figure without a formula is absent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refsgd.machine import Law, Machine
from refsgd.theory import iteration, server, staleness
from refsgd.theory import ssp as slack
from refsgd.theory.prediction import DomainError, Kind, Prediction, check_count, check_law
from refsgd.theory.stragglers import mean_of_maximum, sum_law

Figures = dict[str, Prediction]


@dataclass(frozen=True)
class Setting:
    """What a formula is asked about: the machine in numbers and the sizes of the run."""

    machine: Machine
    workers: int
    servers: int
    nbytes: int
    batch: int
    steps: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def laws(self) -> list[Law]:
        """Compute time of each worker, slower or faster by its speed."""
        law = check_law("compute", self.machine.compute)
        return [law.scaled(1 / self.machine.speed(f"worker{i}")) for i in range(self.workers)]

    @property
    def transfer(self) -> float:
        """w: seconds of the whole model on one link."""
        return self.nbytes / self.machine.bandwidth

    @property
    def network(self) -> dict[str, Any]:
        """The arguments that every parameter-server formula takes."""
        m = self.machine
        return {"servers": self.servers, "transfer": self.transfer, "latency": m.latency, "update": m.update,
                "collocated": m.collocated}

    @property
    def busy(self) -> float:
        """Seconds of gradients of a worker in the whole run, mean over workers."""
        return self.steps * iteration.mean_time(self.laws)

    @property
    def exchange(self) -> float:
        """Seconds of a push and its answer that meet nobody else."""
        lone = 2 * self.machine.latency + (1 + 1 / self.servers) * self.transfer
        return lone + iteration.update_mean(self.machine.update)


def weaker(*kinds: Kind) -> Kind:
    """exact only if all are."""
    return "exact" if all(k == "exact" for k in kinds) else "approximation"


def count(value: float, unit: str, formula: str, **terms: float) -> Prediction:
    """A figure that is counted, hence exact."""
    return Prediction(float(value), unit, "exact", terms, formula, "the message protocol")


def figures(c: Setting, step: Prediction, run: Prediction, updates: int, sent: float) -> Figures:
    """What every algorithm has: times, throughput, updates, bytes and idleness with its causes.

    Parameters
    ----------
    step, run : Prediction
        Seconds per iteration (long run) with its terms; seconds of the whole run.
    updates : int
        Of one server (without servers: of each worker's replica).
    sent : float
        Bytes per iteration, of all nodes together.
    """
    images = Prediction(c.workers * c.batch / step.value if step.value else math.inf, "images/s", step.kind,
                        {"images per iteration": float(c.workers * c.batch), "iteration": step.value},
                        "n b / seconds_per_iteration", step.source, step.assumptions,
                        {"images per iteration": "images", "iteration": "s"})
    out = {
        "seconds_per_iteration": step, "images_per_second": images, "seconds": run,
        "updates": count(updates, "updates", "updates of one server"),
        "bytes_per_iteration": count(sent, "bytes", "all nodes together"),
        "bytes_sent": count(sent * c.steps, "bytes", "bytes_per_iteration x steps"),
    }
    if run.value > 0 and math.isfinite(run.value):
        out.update(_idleness(c, step, run))
    return out


def _idleness(c: Setting, step: Prediction, run: Prediction) -> Figures:
    """1 - (gradient seconds)/elapsed over the whole run, and its split by the iteration's terms."""
    idle = 1 - c.busy / run.value
    shares = {name: max(step.terms.get(name, 0.0), 0.0) * c.steps / run.value
              for name in ("transfer", "queueing", "slack", "partner", "update", "straggling")}
    known = math.fsum(shares.values())
    if known > idle > 0:
        shares = {name: v * idle / known for name, v in shares.items()}
    else:
        shares["straggling"] += max(idle - known, 0.0)  # those that end first wait for the last
    shares = {name: v for name, v in shares.items() if v > 0}
    ratio = Prediction(max(idle, 0.0), "1", run.kind, {"computing": c.busy, "elapsed": run.value},
                       "1 - steps x E[T] / seconds, mean over workers", step.source, step.assumptions,
                       {"computing": "s", "elapsed": "s"})
    causes = Prediction(max(idle, 0.0), "1", "approximation" if len(shares) > 1 else run.kind, shares,
                        "terms of the iteration x steps / seconds", step.source, step.assumptions)
    return {"idle_ratio": ratio, "idle_by_cause": causes}


def zero(unit: str, formula: str) -> Prediction:
    """A figure that is 0 by construction."""
    return Prediction(0.0, unit, "exact", {}, formula, "by construction")


def clocks(c: Setting, gap: float, lead: float, formula: str) -> Figures:
    """Largest gap of started and of completed iterations; upper bounds, met in long runs."""
    most = max(c.steps - 1, 0) if c.workers > 1 else 0
    out: Figures = {}
    for name, value, top in (("clock_gap_max", gap, most), ("lead_max", lead, most + 1 if c.workers > 1 and c.steps else 0)):
        out[name] = Prediction(float(min(value, top)), "iterations", "bound", {}, formula, "the gate", bound="upper")
    return out


def sequential(c: Setting) -> Figures:
    """One worker: E[T] and its own update, nothing else."""
    if c.workers != 1:
        raise DomainError(f"workers {c.workers}; sequential SGD assumes 1")
    u, mean = iteration.update_mean(c.machine.update), c.laws[0].mean
    step = Prediction(mean + u, "s", "exact", {"compute E[T]": mean, "update": u}, "E[T] + E[u]", "definition")
    run = Prediction(c.steps * (mean + u), "s", "exact", {"iterations": c.steps * (mean + u)}, "steps x iteration", "definition")
    return {**figures(c, step, run, c.steps, 0), "staleness_mean": zero("updates", "one worker"),
            "staleness_max": zero("updates", "one worker"), **clocks(c, 0, 0, "one worker")}


def bsp(c: Setting) -> Figures:
    """All push, the slowest decides, all are answered."""
    step = iteration.bsp(c.laws, **c.network)
    run = iteration.bsp_run(c.laws, c.steps, **c.network)
    return {**figures(c, step, run, c.steps, 2 * c.workers * c.nbytes),
            "staleness_mean": zero("updates", "a barrier before each update"),
            "staleness_max": zero("updates", "a barrier before each update"),
            **clocks(c, 1 if c.transfer else 0, 1, "nobody starts before all have ended; answers leave one by one")}


def last_of_sums(c: Setting) -> tuple[float, bool]:
    """E[max over workers of the sum of `steps` compute times] in seconds, and whether that is exact."""
    if not c.steps:
        return 0.0, True
    sums = [sum_law(law, c.steps) for law in c.laws]
    return mean_of_maximum([law for law, _ in sums]), all(exact for _, exact in sums)


def asp_seconds(c: Setting, step: Prediction) -> Prediction:
    """A whole asynchronous run: the worker that ends last.

    Without queues it takes E[max of sums] + steps x exchange.  Where pushes queue, the slowest worker's
    iterations are longer by the wait, and a worker that is late meets a shorter queue.  Equal fixed times come
    in turn from the first round on: the last worker is (n-1) services behind.
    """
    if not c.steps:
        return Prediction(0.0, "s", "exact", {}, "no iteration")
    free, queue = step.value * c.steps, step.terms["queueing"]
    fixed = len(set(c.laws)) == 1 and c.laws[0].family == "fixed" and step.kind == "exact"
    lone = step.terms["transfer"] + step.terms["update"]
    slowest = max(law.mean for law in c.laws)
    service = max(c.transfer / c.servers, iteration.update_mean(c.machine.update))
    exact = fixed or not service
    if fixed:
        total = slowest + lone + (c.workers - 1) * service + (c.steps - 1) * step.value
    elif all(math.isfinite(law.variance) for law in c.laws):
        compute, closed = last_of_sums(c)
        exact = exact and closed
        calm = (slowest + lone) / (slowest + lone + queue) if slowest + lone else 1.0
        total = c.steps * (slowest + lone + queue) + (compute - c.steps * slowest) * calm
    else:
        total, exact = c.steps * (slowest + lone + queue), False
    return Prediction(total, "s", weaker(step.kind, "exact" if exact else "approximation"),
                      {"iterations": free, "the last one's excess": total - free},
                      "E[max_i of the sum of steps times] + steps x (exchange + queueing)", step.source,
                      step.assumptions)


def asp(c: Setting) -> Figures:
    """Each push is applied and answered alone."""
    step = server.asp(c.laws, **c.network)
    out = figures(c, step, asp_seconds(c, step), c.workers * c.steps, 2 * c.workers * c.nbytes)
    law = c.laws[0]
    if c.steps:
        out["staleness_mean"] = staleness.asp_run(c.laws, c.steps, c.exchange)
    if c.workers == 1 or (len(set(c.laws)) == 1 and law.family == "fixed" and c.steps):
        out["staleness_max"] = Prediction(c.workers - 1.0, "updates", "exact", {}, "n - 1: the workers come in turn",
                                          staleness.SOURCE)
    elif len(set(c.laws)) == 1 and law.family == "exponential" and not c.exchange:
        out["staleness_max"] = staleness.geometric_maximum(c.workers, c.workers * c.steps)
    if len(set(c.laws)) == 1 and law.family == "fixed":
        return {**out, **clocks(c, 1, 1, "the workers come in turn")}
    return {**out, **clocks(c, math.inf, math.inf, "no bound but the length of the run")}


def ssp(c: Setting) -> Figures:
    """ASP with a gate: held by the slowest, queueing as in ASP."""
    s = slack.check_slack(c.options.get("staleness", 3))
    refresh = str(c.options.get("refresh", "fresh"))
    if refresh not in ("fresh", "lazy", "eager"):
        raise DomainError(f"refresh {refresh!r}; expected fresh, lazy or eager")
    step, path, quiet = (_ssp_fresh if refresh == "fresh" else _ssp_cached)(c, s, refresh)
    fixed = refresh == "fresh" and len(set(c.laws)) == 1 and c.laws[0].family == "fixed" and s >= 1
    if not c.steps:
        run = Prediction(0.0, "s", "exact", {}, "no iteration")
    elif fixed:
        run = asp_seconds(c, step)
    elif refresh == "fresh" and s == 0:
        bulk = iteration.bsp_run(c.laws, c.steps, **c.network)
        run = Prediction(bulk.value, "s", weaker(bulk.kind, step.kind), bulk.terms, bulk.formula, bulk.source)
    else:
        end = path.end + (step.value - path.seconds) * c.steps * (not quiet)
        if refresh != "fresh":  # the servers end with the last push
            end += c.machine.latency + c.transfer + iteration.update_mean(c.machine.update)
        run = Prediction(end, "s", step.kind, {"iterations": step.value * c.steps,
                                               "the last one's excess": end - step.value * c.steps},
                         "end of the recursion F_i(c)", step.source, step.assumptions)
    down = path.refreshes if refresh == "lazy" else 1.0
    out = figures(c, step, run, c.workers * c.steps, (1 + down) * c.workers * c.nbytes)
    if refresh == "lazy":
        for name in ("bytes_per_iteration", "bytes_sent"):
            p = out[name]
            out[name] = Prediction(p.value, p.unit, "approximation", {"pulls per clock": down},
                                   "M up, one pull when the cache is older than c - s", p.source, "", {"pulls per clock": "1"})
    out["staleness_max"] = staleness.ssp_bound(c.workers, s, c.steps)
    if c.steps and (quiet or refresh != "eager"):
        out["staleness_mean"] = _ssp_staleness(c, s, path, fixed, quiet, refresh)
    return {**out, **clocks(c, s, s + 1, "started: s, completed: s + 1")}


def _ssp_fresh(c: Setting, s: float, refresh: str) -> tuple[Prediction, slack.Path, bool]:
    """Iteration of SSP with answers at the gate.

    s = 0 waits like BSP, s = infinity like ASP.  Between them the recursion without queues says how far from
    ASP to BSP a slack of s lies, and the same share of the way is taken between their times with queues.
    """
    free = server.asp(c.laws, **c.network)
    lone = free.terms["transfer"] + free.terms["update"]
    quiet = not c.transfer and c.machine.update is None
    equal = len(set(c.laws)) == 1
    path = slack.recursion(c.laws, s, c.steps, lone if quiet else max(free.value - iteration.mean_time(c.laws), lone))
    if (equal and c.laws[0].family == "fixed" and s >= 1) or c.workers == 1 or (math.isinf(s) and equal):
        return Prediction(free.value, "s", free.kind, {**free.terms, "slack": 0.0}, free.formula, free.source,
                          "nobody is held: the workers come in turn"), path, quiet
    if quiet:
        plain = slack.ssp(c.laws, s, exchange=lone, steps=c.steps)
        terms = {**plain.terms, "transfer": plain.terms["exchange"]}
        terms.pop("exchange")
        return Prediction(plain.value, "s", plain.kind, terms, plain.formula, plain.source, plain.assumptions,
                          plain.units, lower=plain.lower), path, True
    bulk = iteration.bsp(c.laws, **c.network)
    if s == 0:
        share, kind = 1.0, weaker(bulk.kind, "exact" if c.machine.update is None else "approximation")
    else:
        floor = c.workers / math.fsum(1 / (law.mean + free.value - iteration.mean_time(c.laws)) for law in c.laws)
        ceiling = mean_of_maximum(c.laws) + free.value - iteration.mean_time(c.laws)
        share = min(max((path.seconds - floor) / (ceiling - floor), 0.0), 1.0) if ceiling > floor else 0.0
        kind = "approximation"
    value = free.value + share * (bulk.value - free.value)
    held = share * max(bulk.terms["straggling"], 0.0)
    terms = {"compute E[T]": iteration.mean_time(c.laws), "slack": held, "transfer": free.terms["transfer"],
             "update": free.terms["update"],
             "queueing": max(value - iteration.mean_time(c.laws) - held - lone, 0.0)}
    return Prediction(value, "s", kind, terms, "ASP + share (BSP - ASP), share from the recursion without queues",
                      "Ho et al. 2013: the gate", "queueing taken between ASP's and BSP's",
                      lower=min(free.value, bulk.value), upper=max(free.value, bulk.value)), path, False


def _ssp_cached(c: Setting, s: float, refresh: str) -> tuple[Prediction, slack.Path, bool]:
    """Iteration of SSP on a cache: lazy pays an exchange per read, eager waits for rows sent to all.

    Exact (recursion) without bandwidth and update times.  Else an approximation: a read takes 2 latency + 2 w
    + u behind its own push; the rows of an advance leave one by one, the last after (n + 1) w/K; and no clock
    is shorter than what a server's link has to carry in it.
    """
    u, alpha, w = iteration.update_mean(c.machine.update), c.machine.latency, c.transfer
    quiet = not w and not u
    g = w / c.servers
    read = 2 * alpha + 2 * w + u
    gate = 2 * alpha + u + w + c.workers * g
    arguments: dict[str, Any] = {"refresh": refresh, "gate": gate if refresh == "eager" else read}
    path = slack.recursion(c.laws, s, c.steps, read if refresh == "lazy" else 0.0, **arguments)
    if refresh == "lazy" and not quiet:
        load = g * path.refreshes  # per clock and worker on the outgoing link; pushes come in beside
        wait = server.mean_value_analysis(c.workers, path.seconds + g + u, max(g, u))[1] - max(g, u)
        path = slack.recursion(c.laws, s, c.steps, read + wait + load, refresh=refresh, gate=read + wait)
    plain = slack.ssp(c.laws, s, exchange=read if refresh == "lazy" else 0.0, steps=c.steps, **arguments) if quiet else None
    value = plain.value if plain else max(path.seconds, c.workers * max(g, u))
    mean = iteration.mean_time(c.laws)
    paid = min(read * path.refreshes, value - mean) if refresh == "lazy" else 0.0
    held = max(value - mean - paid, 0.0)
    terms = {"compute E[T]": mean, "slack": held, "transfer": max(paid - u * path.refreshes, 0.0) if paid else 0.0,
             "update": min(u * path.refreshes, paid) if refresh == "lazy" else 0.0}
    return Prediction(value, "s", plain.kind if plain else "approximation", terms,
                      "recursion F_i(c) with a read when the cache is too old (lazy) or rows at each advance (eager)",
                      "Ho et al. 2013; Dai et al. 2015", "no queueing" if quiet else "queueing averaged",
                      lower=max(mean, c.workers * max(g, u))), path, quiet


def _ssp_staleness(c: Setting, s: float, path: slack.Path, fixed: bool, quiet: bool, refresh: str) -> Prediction:
    """n-1 less the updates that come while a worker waits for its gate, less those left at the end."""
    n = c.workers
    if refresh == "fresh" and s == 0:
        return Prediction((n - 1) / 2, "updates", "exact", {}, "(n-1)/2: all read together, applied one by one",
                          staleness.SOURCE)
    if refresh == "fresh" and (fixed or n == 1 or math.isinf(s)):
        return staleness.asp_run(c.laws, c.steps, c.exchange)
    return Prediction(path.staleness, "updates", "exact" if quiet else "approximation",
                      {"long run of ASP": n - 1.0, "gate, caches, and reads left at the end": path.staleness - n + 1},
                      "updates of others between a read and its own update in the recursion, by Monte Carlo",
                      staleness.SOURCE, "no queueing", lower=0.0)


ALGORITHMS: dict[str, Callable[[Setting], Figures]] = {"sequential": sequential, "bsp": bsp, "asp": asp, "ssp": ssp}


def predict(algorithm: str, machine: Machine, *, workers: int, servers: int = 1, nbytes: int = 0, batch: int = 1,
            steps: int = 1, options: Mapping[str, Any] | None = None) -> Figures:
    """Every figure of a run that a formula gives.

    Parameters
    ----------
    algorithm : str
        A key of `ALGORITHMS`.
    machine : Machine
        Must state a compute law.
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
        Some of seconds_per_iteration, images_per_second, seconds, updates, bytes_per_iteration, bytes_sent,
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
    if algorithm not in ALGORITHMS:
        raise DomainError(f"no formula for algorithm {algorithm!r}; expected one of {', '.join(ALGORITHMS)}")
    check_count("workers", workers)
    check_count("servers", servers)
    check_count("nbytes", nbytes, 0)
    check_count("batch", batch, 0)
    check_count("steps", steps, 0)
    check_law("compute", machine.compute)
    return ALGORITHMS[algorithm](Setting(machine, workers, servers, nbytes, batch, steps, dict(options or {})))
