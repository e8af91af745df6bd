"""Predictions for stale synchronous parallel SGD: fresh answers, lazy and eager caches, dynamic SSP, and
data centres of which each has SSP, BSP or ASP inside."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from refsgd.cluster.distributions import Distribution
from refsgd.theory.algorithms.asp import answered, asp, asp_seconds, read
from refsgd.theory.algorithms.bsp import bsp, known
from refsgd.theory.estimate import check_count
from refsgd.theory.phenomena import iteration, staleness
from refsgd.theory.phenomena import ssp as slack
from refsgd.theory.phenomena.stragglers import atoms, mean_of_maximum
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import QUEUES, Setting, clocks, count, figures, slices

RECURSION = ("F_i(c) = T_i(c) + E_i + max(F_i(c-1), max_j F_j(c-1-s)), by Monte Carlo",
             "Ho et al. 2013: the gate; Baccelli et al. 1992")
REFRESH = ("fresh", "lazy", "eager")
LOADED = 1.4  # load of a server's link or processor, of the pushes of n workers, that is still approximated


def ssp(c: Setting) -> Figures:
    """SSP: waits like BSP for s = 0, like ASP for s = infinity or equal fixed times."""
    s = slack.check_slack(c.option("staleness", 3))
    refresh = str(c.options.get("refresh", "fresh"))
    if refresh not in REFRESH:
        raise DomainError(f"refresh {refresh!r}; expected fresh, lazy or eager")
    if refresh == "fresh" and (c.workers == 1 or math.isinf(s) or (c.alike and c.tied and s >= 1)):
        out = asp(c)
    elif refresh != "fresh" or (s == 0 and c.update):  # then a round has n updates, some at once
        out = _open(c)
        if refresh == "lazy":
            out.leave("no closed form: reads depend on the age of the cache", "bytes_per_iteration",
                      "bytes_sent")
    elif s == 0 and known(c) and not c.shared:
        out = _bulk(c)
    else:
        out = _open(c) if c.met else _gated(c, int(s))
    out["staleness_max"] = staleness.ssp_bound(c.workers, s, c.steps)
    out |= clocks(c, s, s + 1, "started: s, completed: s + 1")
    return out


def _open(c: Setting) -> Figures:
    """The counts of SSP, whose times are left to a simulation."""
    return answered(c).leave(QUEUES, "staleness_mean")


def _bulk(c: Setting) -> Figures:
    """Slack 0 without time for updates: the times of BSP."""
    bulk, run = iteration.bsp_run(c.times, c.steps, **c.network)
    held = {"slack": bulk.terms["straggling"], "straggling": 0.0}
    step = replace(bulk, terms={**bulk.terms, **held}, upper=None)
    age = Prediction((c.workers - 1) / 2, "updates", "exact", {},
                     "(n-1)/2: all read together, applied one by one", staleness.SOURCE)
    out = answered(c, step, run)
    out["staleness_mean"] = age
    return out


def _gated(c: Setting, s: int) -> Figures:
    """The bound without queues by its chain or its recursion, with queues between ASP and BSP.

    How far from ASP towards BSP the bound brings the iteration is taken from the recursion, whose exchange is
    without the service for which pushes queue.
    """
    free = iteration.asp(c.times, **c.network)
    service, alone = max(c.transfer / c.servers, c.update), free.value - free.terms["queueing"]
    if c.queues and not (c.alike and c.workers * service < LOADED * alone):
        return _open(c)
    long = None if c.queues else _slowest(c) if c.tied else _chain(c, s)
    pace = long.value if long else None
    path = slack.gated(c.times, [e - service * c.queues for e in c.exchanges], s, c.steps, pace)
    if c.queues:
        step, run = _between(c, free, path, c.exchanges[0] - service)
        path = slack.gated(c.times, [e + free.terms["queueing"] for e in c.exchanges], s, c.steps)
    else:
        mean, lone = iteration.mean_time(c.times), math.fsum(c.exchanges) / c.workers
        step = long or path.pace.predicted(
            "s", {"compute E[T]": mean, "slack": path.pace.value - mean - lone, "transfer": lone}, *RECURSION)
        whole = step.value * c.steps
        end = path.end(c.steps, pace)
        run = end.predicted("s", {"iterations": whole, "excess of the last worker": end.value - whole},
                            *RECURSION)
    age = path.staleness.predicted("updates", {"mean": path.staleness.value}, *RECURSION,
                                   faithful=not c.queues, lower=0.0)
    out = answered(c, step, run)
    read(out, None if any(map(atoms, c.times)) else age)  # updates at one moment have no order
    return out


def _between(c: Setting, free: Prediction, path: slack.Gated, lone: float) -> tuple[Prediction, Prediction]:
    """Iteration and run between those of ASP and BSP, for equal workers that queue."""
    bulk = iteration.bsp(c.times, **c.network)
    least, most = c.times[0].mean + lone, mean_of_maximum(c.times) + lone
    share = min(max((path.pace.value - least) / (most - least), 0.0), 1.0)
    value = free.value + share * (bulk.value - free.value)
    terms = {**free.terms, "slack": share * (most - least)}
    terms["queueing"] = max(value - math.fsum(terms.values()) + terms["queueing"], 0.0)
    told = ("ASP + share (BSP - ASP), the share of the recursion without queues",
            "Ho et al. 2013: the gate; Lazowska et al. 1984: the queues", free.assumptions)
    end = value * c.steps + path.excess.value
    return (Prediction(value, "s", "approximation", terms, *told, lower=free.lower),
            Prediction(end, "s", "approximation", {"iterations": value * c.steps,
                                                   "excess of the last worker": path.excess.value}, *told))


def _slowest(c: Setting) -> Prediction:
    """The iteration for fixed times without queues: all follow the slowest worker."""
    rounds = [time.mean + e for time, e in zip(c.times, c.exchanges, strict=True)]
    mean, lone = iteration.mean_time(c.times), math.fsum(c.exchanges) / c.workers
    return Prediction(max(rounds), "s", "exact", {"compute E[T]": mean, "transfer": lone,
                                                  "slack": max(rounds) - mean - lone},
                      "max (T_i + E_i)", "Ho et al. 2013: the gate", "fixed times; no queues")


def _chain(c: Setting, s: int) -> Prediction | None:
    """The iteration for equal exponential times without a network: E[T] / (1 - blocked share)."""
    if not c.memoryless or s >= 1000 or slack.chain_size(c.workers, s) > slack.LARGEST_CHAIN:
        return None
    mean, blocked = c.times[0].mean, slack.blocked_share(c.workers, s)
    value = mean / (1 - blocked)
    return Prediction(value, "s", "exact",
                      {"compute E[T]": mean, "slack": value - mean, "blocked share": blocked},
                      "E[T] / (1 - blocked share)" + (", blocked share 1/(2s+3)" if c.workers == 2 else ""),
                      "Ho et al. 2013: the gate; lumped Markov chain", "equal exponential times; no network",
                      {"blocked share": "1"})


def dssp(c: Setting) -> Figures:
    """Dynamic SSP, whose server grants clocks; no worker waits if times are equal and fixed."""
    low, high = (c.whole(name, default) for name, default in (("lower", 3), ("upper", 15)))
    if not 0 <= low <= high:
        raise DomainError(f"lower {low}, upper {high}; dynamic SSP assumes 0 <= lower <= upper")
    if c.workers == 1 or (c.alike and c.tied and low >= 1):
        return ssp(c.with_options(staleness=high, refresh="fresh"))
    out = _open(c)
    out["staleness_max"] = staleness.ssp_bound(c.workers, high, c.steps)
    out |= clocks(c, high, high + 1, "started: upper, completed: upper + 1")
    return out


SIGNIFICANT = "the traffic between data centres depends on the data"
INSIDE = {rule.__name__: rule for rule in (bsp, ssp, asp)}


def approximate(c: Setting) -> Figures:
    """Data centres with equal shares of the workers, of which the slowest sets the pace; its times are lower
    bounds, since traffic between centres occupies the servers' links as well."""
    c.check_alone()
    number = check_count("centers", c.whole("centers", min(2, c.workers)))
    inside = str(c.options.get("local", bsp.__name__))
    if inside not in INSIDE or number > c.workers:
        raise DomainError(f"{number} centers of {c.workers} workers, inside {inside!r}; the formula assumes "
                          f"a worker for each and one of {', '.join(INSIDE)}")
    edges = [c.workers * k // number for k in range(number + 1)]
    sizes = [b - a for a, b in pairwise(edges)]
    if number == 1:
        return INSIDE[inside](c.with_options(refresh="fresh"))
    alone = [INSIDE[inside](_center(c, times)) for times in
             dict.fromkeys(tuple(c.times[a:b]) for a, b in pairwise(edges))]
    step: Prediction | None = None
    run = step
    if all("seconds" in found for found in alone):
        slowest = max(alone, key=lambda found: found["seconds"].value)
        step, run = slowest["seconds_per_iteration"], slowest["seconds"]
        if INSIDE[inside] is asp and not c.tied:  # the last of all centres
            run = asp_seconds(replace(c, machine=c.machine.with_(colocated=False)), step)
        step, run = replace(step, kind="approximation"), replace(run, kind="approximation")
    updates = c.steps * (number if INSIDE[inside] is bsp else c.workers)
    out = figures(c, step, run, updates, 2 * c.workers * c.nbytes)
    _bytes(c, out, sizes, inside)
    if c.transfer or not ((c.tied and c.alike) or math.isinf(float(c.option("ahead", 10)))):
        for name in ("seconds_per_iteration", "seconds", "images_per_second"):
            if name not in out:
                continue
            out[name] = replace(out[name], kind="bound", lower=None,
                                bound="upper" if name == "images_per_second" else "lower")
        out.without(SIGNIFICANT, "idle_ratio", "idle_by_cause")
    return out.without(SIGNIFICANT, "staleness_mean", "staleness_max", "clock_gap_max", "lead_max")


def _center(c: Setting, times: tuple[Distribution, ...]) -> Setting:
    """The setting of one data centre, whose workers take these times."""
    machine = c.machine.with_(compute=times, speeds=(), colocated=False)
    return replace(c.with_options(refresh="fresh"), workers=len(times), machine=machine)


def _bytes(c: Setting, out: Figures, sizes: Sequence[int], inside: str) -> None:
    """Set the bytes: models within the centres, and 8 per significant entry between them, if known."""
    total, share = 2.0 * c.workers * c.nbytes * c.steps, c.options.get("share")
    exact = share is not None and math.isinf(float(c.option("barrier", 4)))
    if share is not None:
        for part in (size // 4 for size in slices(c.nbytes, c.servers)):
            k = math.ceil(float(share) * part * (1 - 1e-12))
            for size in sizes:  # all updates but the last, which flushes
                own = c.steps if INSIDE[inside] is bsp else size * c.steps
                total += 8 * (len(sizes) - 1) * ((own - 1) * k + part)
    formula = ("2 n M within the centres, 8 k to each other centre" if exact
               else "2 n M within the centres, and the significant entries")
    for name, value in (("bytes_per_iteration", total / c.steps), ("bytes_sent", total)):
        out[name] = (count(value, "bytes", formula) if exact else
                     Prediction(value, "bytes", "bound", {}, formula, "the message protocol", bound="lower"))
