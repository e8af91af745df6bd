"""Predictions for stale synchronous parallel SGD: fresh answers, lazy and eager caches, dynamic SSP."""

from __future__ import annotations

import math
from dataclasses import replace

from refsgd.theory.algorithms.asp import DRAWN, asp, drawn, shares_of
from refsgd.theory.phenomena import iteration, queues, server, staleness
from refsgd.theory.phenomena import ssp as slack
from refsgd.theory.prediction import DomainError, Figures, Prediction
from refsgd.theory.setting import Setting, clocks, figures, weaker

RULES = {"fresh": queues.Fresh, "lazy": queues.Lazy, "eager": queues.Eager}


def ssp(c: Setting) -> Figures:
    """SSP: waits like BSP for s = 0, like ASP for s = infinity or equal fixed times."""
    s = slack.check_slack(c.options.get("staleness", 3))
    refresh = str(c.options.get("refresh", "fresh"))
    if refresh not in RULES:
        raise DomainError(f"refresh {refresh!r}; expected fresh, lazy or eager")
    if refresh == "fresh" and (c.workers == 1 or (c.alike and (math.isinf(s) or (c.tied and s >= 1)))):
        out = asp(c)
    elif refresh == "fresh" and s == 0 and not c.placed:
        out = _bulk(c)
    else:
        out = _gated(c, s, refresh)
    out["staleness_max"] = staleness.ssp_bound(c.workers, s, c.steps)
    out |= clocks(c, s, s + 1, "started: s, completed: s + 1")
    return out


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


def _gated(c: Setting, s: float, refresh: str) -> Figures:
    """Bound and queues, evaluated together; the mean iteration in closed form where there is one."""
    links = c.links if refresh == "fresh" else c.network_of(False)
    path = queues.path(RULES[refresh], c.times, links, c.steps, s)
    paid = {"fresh": 1.0, "lazy": path.refreshes, "eager": 0.0}[refresh]
    lower = 0.0
    if refresh == "fresh" and not (c.placed or c.machine.colocated):
        lower = server.asp(c.times, **c.network).lower or 0.0
    elif c.alike and not c.machine.colocated:
        lower = max(iteration.mean_time(c.times), c.workers * max(c.transfer / c.servers, c.update))
    step, run, age = drawn(c, path, shares_of(c, path, paid), *DRAWN, lower=lower,
                           faithful=c.clear and (c.placed or not (c.tied and refresh != "fresh")))
    chained = refresh == "fresh" and c.alike and c.times[0].family == "exponential" and not any(c.exchanges)
    if chained and s < 1000 and slack.chain_size(c.workers, int(s)) <= slack.LARGEST_CHAIN:
        step = _chain(c, int(s))
    down = path.refreshes if refresh == "lazy" else 1.0
    sent = c.workers * (c.pushed + down * c.nbytes)
    out = figures(c, step, run, c.workers * c.steps, sent, {"staleness_mean": age})
    for name in ("bytes_per_iteration", "bytes_sent") if refresh == "lazy" else ():
        out[name] = Prediction(out[name].value, "bytes", "approximation", {"pulls per clock": down},
                               "M up, one pull when the cache is older than c - s", out[name].source, "",
                               {"pulls per clock": "1"})
    return out


def _chain(c: Setting, s: int) -> Prediction:
    """The iteration for equal exponential times without a network: E[T] / (1 - blocked share)."""
    mean, blocked = c.times[0].mean, slack.blocked_share(c.workers, s)
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
    path = queues.path(queues.Granting, c.times, c.links, c.steps, low, high)
    step, run, age = drawn(c, path, shares_of(c, path),
                           "closed network of links with granted clocks, by Monte Carlo",
                           "Zhao et al. 2019: the grants; Lindley 1952: the queues",
                           faithful=c.clear and (c.placed or not c.tied))
    return figures(c, step, run, c.workers * c.steps, c.workers * (c.pushed + c.nbytes),
                   {"staleness_mean": age, "staleness_max": staleness.ssp_bound(c.workers, high, c.steps)},
                   clocks(c, high, high + 1, "started: upper, completed: upper + 1"))
