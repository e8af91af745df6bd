"""Predictions for stale synchronous parallel SGD: fresh answers, lazy and eager caches, dynamic SSP."""

from __future__ import annotations

import math
from dataclasses import replace

from refsgd.theory.algorithms.asp import asp, read
from refsgd.theory.algorithms.bsp import known
from refsgd.theory.phenomena import iteration, server, staleness
from refsgd.theory.phenomena import ssp as slack
from refsgd.theory.phenomena.stragglers import atoms, mean_of_maximum
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import QUEUES, Setting, clocks, figures, weaker

RECURSION = ("F_i(c) = T_i(c) + E_i + max(F_i(c-1), max_j F_j(c-1-s)), by Monte Carlo",
             "Ho et al. 2013: the gate; Baccelli et al. 1992")
REFRESH = ("fresh", "lazy", "eager")
LOADED = 1.4  # load of a server's link or processor, of the pushes of n workers, that is still approximated


def ssp(c: Setting) -> Figures:
    """SSP: waits like BSP for s = 0, like ASP for s = infinity or equal fixed times."""
    s = slack.check_slack(c.options.get("staleness", 3))
    refresh = str(c.options.get("refresh", "fresh"))
    if refresh not in REFRESH:
        raise DomainError(f"refresh {refresh!r}; expected fresh, lazy or eager")
    if refresh == "fresh" and (c.workers == 1 or math.isinf(s) or (c.alike and c.tied and s >= 1)):
        out = asp(c)
    elif refresh == "fresh" and s == 0 and known(c) and not c.shared:
        out = _bulk(c)
    elif refresh == "fresh" and not c.met:
        out = _gated(c, int(s))
    else:
        out = _open(c)
        if refresh == "lazy":
            out.leave("no closed form: reads depend on the age of the cache", "bytes_per_iteration",
                      "bytes_sent")
    out["staleness_max"] = staleness.ssp_bound(c.workers, s, c.steps)
    out |= clocks(c, s, s + 1, "started: s, completed: s + 1")
    return out


def _open(c: Setting) -> Figures:
    """The counts of SSP, whose times are left to a simulation."""
    return figures(c, None, None, c.workers * c.steps, c.workers * (c.pushed + c.nbytes)).leave(
        QUEUES, "staleness_mean")


def _bulk(c: Setting) -> Figures:
    """Slack 0: the times of BSP, but one update per push."""
    bulk, run = iteration.bsp(c.times, **c.network), iteration.bsp_run(c.times, c.steps, **c.network)
    kind = weaker(bulk.kind, "exact" if c.machine.update is None else "approximation")
    held = {"slack": bulk.terms["straggling"], "straggling": 0.0}
    step = replace(bulk, kind=kind, terms={**bulk.terms, **held}, upper=None)
    age = Prediction((c.workers - 1) / 2, "updates", "exact", {},
                     "(n-1)/2: all read together, applied one by one", staleness.SOURCE)
    return figures(c, step, replace(run, kind=weaker(kind, run.kind)), c.workers * c.steps,
                   c.workers * (c.pushed + c.nbytes), {"staleness_mean": age})


def _gated(c: Setting, s: int) -> Figures:
    """The bound without queues by its chain or its recursion, with queues between ASP and BSP.

    How far from ASP towards BSP the bound brings the iteration is taken from the recursion, whose exchange is
    without the service for which pushes queue.
    """
    free = server.asp(c.times, **c.network)
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
    out = figures(c, step, run, c.workers * c.steps, c.workers * (c.pushed + c.nbytes))
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
    mean, equal = c.times[0].mean, c.alike and c.times[0].family == "exponential" and not any(c.exchanges)
    if not equal or s >= 1000 or slack.chain_size(c.workers, s) > slack.LARGEST_CHAIN:
        return None
    blocked = slack.blocked_share(c.workers, s)
    value = mean / (1 - blocked)
    return Prediction(value, "s", "exact",
                      {"compute E[T]": mean, "slack": value - mean, "blocked share": blocked},
                      "E[T] / (1 - blocked share)" + (", blocked share 1/(2s+3)" if c.workers == 2 else ""),
                      "Ho et al. 2013: the gate; lumped Markov chain", "equal exponential times; no network",
                      {"blocked share": "1"})


def dssp(c: Setting) -> Figures:
    """Dynamic SSP, whose server grants clocks; no worker waits if times are equal and fixed."""
    low, high = (int(c.options.get(name, default)) for name, default in (("lower", 3), ("upper", 15)))
    if not 0 <= low <= high:
        raise DomainError(f"lower {low}, upper {high}; dynamic SSP assumes 0 <= lower <= upper")
    if c.workers == 1 or (c.alike and c.tied and low >= 1):
        return ssp(c.with_options(staleness=high, refresh="fresh"))
    out = _open(c)
    out["staleness_max"] = staleness.ssp_bound(c.workers, high, c.steps)
    out |= clocks(c, high, high + 1, "started: upper, completed: upper + 1")
    return out
