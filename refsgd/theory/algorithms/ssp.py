"""Figures of stale synchronous parallel SGD: fresh answers, lazy and eager caches, and a slack that its
server chooses (DSSP)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from refsgd.theory.algorithms.asp import asp_seconds
from refsgd.theory.phenomena import iteration, queues, server, staleness
from refsgd.theory.phenomena import ssp as slack
from refsgd.theory.phenomena.stragglers import mean_of_maximum
from refsgd.theory.prediction import DomainError, Prediction, kind_of, sampling
from refsgd.theory.setting import Figures, Setting, clocks, figures, throughput, weaker


def ssp(c: Setting) -> Figures:
    """ASP with a gate: held by the slowest, queueing as in ASP."""
    s = slack.check_slack(c.options.get("staleness", 3))
    refresh = str(c.options.get("refresh", "fresh"))
    if refresh not in ("fresh", "lazy", "eager"):
        raise DomainError(f"refresh {refresh!r}; expected fresh, lazy or eager")
    step, path, quiet = (_ssp_fresh if refresh == "fresh" else _ssp_cached)(c, s, refresh)
    if c.tied and refresh != "fresh" and c.workers > 1:
        # a cycle of several clocks, and rows that come in the moment of a start
        step = replace(step, kind="approximation")
    fixed = refresh == "fresh" and c.alike and c.times[0].family == "fixed" and s >= 1
    if not c.steps:
        run = Prediction(0.0, "s", "exact", {}, "no iteration")
    elif fixed:
        run = asp_seconds(c, step)
    elif refresh == "fresh" and s == 0:
        bulk = iteration.bsp_run(c.times, c.steps, **c.network)
        run = Prediction(bulk.value, "s", kind_of(bulk.faithful and step.faithful, bulk.error), bulk.terms,
                         bulk.formula, bulk.source)
    else:
        end = path.end + (step.value - path.seconds) * c.steps * (not quiet)
        if refresh != "fresh" and not path.whole:  # the servers end with the last push
            alone = c.machine.colocated and c.workers == 1
            end += (0.0 if alone else c.machine.latency + c.transfer) + iteration.update_mean(
                c.machine.update)
        run = Prediction(end, "s", kind_of(step.faithful, path.end_error),
                         {"iterations": step.value * c.steps,
                          "the last one's excess": end - step.value * c.steps, **sampling(path.end_error)},
                         "end of the network's run" if path.whole else "end of the recursion F_i(c)",
                         step.source, step.assumptions)
    down = path.refreshes if refresh == "lazy" else 1.0
    out = figures(c, step, run, c.workers * c.steps, (1 + down) * c.workers * c.nbytes)
    if refresh == "lazy":
        for name in ("bytes_per_iteration", "bytes_sent"):
            p = out[name]
            out[name] = Prediction(p.value, p.unit, "approximation", {"pulls per clock": down},
                                   "M up, one pull when the cache is older than c - s", p.source, "",
                                   {"pulls per clock": "1"})
    out["staleness_max"] = staleness.ssp_bound(c.workers, s, c.steps)
    if c.steps:
        out["staleness_mean"] = _ssp_staleness(c, s, path, fixed, quiet or (path.whole and step.faithful),
                                               refresh)
    return {**out, **clocks(c, s, s + 1, "started: s, completed: s + 1")}


def _ssp_fresh(c: Setting, s: float, refresh: str) -> tuple[Prediction, slack.Path, bool]:
    """Iteration of SSP with answers at the gate.

    s = 0 waits like BSP, s = infinity like ASP.  Between them the recursion without queues says how far from
    ASP to BSP a slack of s lies, and the same share of the way is taken between their times with queues.
    """
    free = server.asp(c.times, **c.network)
    queue, exchanges = free.terms["queueing"], c.exchanges
    lone = math.fsum(exchanges) / c.workers
    quiet = not c.transfer and c.machine.update is None
    if s >= 1 and not (quiet or c.machine.colocated) and c.steps and c.workers > 1 and not (
            c.alike and (c.tied or math.isinf(s))):
        return *_drawn(c, s, "fresh", free.lower or 0.0), False
    path = slack.recursion(c.times, s, c.steps, [e + queue for e in exchanges])
    if (c.alike and c.times[0].family == "fixed" and s >= 1) or c.workers == 1 or (math.isinf(s) and c.alike):
        return Prediction(free.value, "s", free.kind, {**free.terms, "slack": 0.0}, free.formula, free.source,
                          "nobody is held: the workers come in turn"), path, quiet
    if quiet:
        plain = slack.ssp(c.times, s, exchange=exchanges, steps=c.steps)
        terms = {**plain.terms, "transfer": plain.terms["exchange"]}
        terms.pop("exchange")
        same = len(set(exchanges)) == 1
        return Prediction(plain.value, "s", plain.kind if same else "approximation", terms, plain.formula,
                          plain.source,
                          plain.assumptions, plain.units, lower=plain.lower), path, True
    bulk, mean = iteration.bsp(c.times, **c.network), iteration.mean_time(c.times)
    floor = c.workers / math.fsum(1 / (time.mean + e + queue)
                                  for time, e in zip(c.times, exchanges, strict=True))
    value, kind, held = bulk.value, weaker(bulk.kind, "exact" if c.machine.update is None
                                           else "approximation"), bulk.terms["straggling"]
    if s >= 1 and c.alike:
        ceiling = mean_of_maximum(c.times) + lone + queue
        share = min(max((path.seconds - floor) / (ceiling - floor), 0.0), 1.0) if ceiling > floor else 0.0
        value, kind, held = free.value + share * (bulk.value - free.value), "approximation", share * held
    elif s >= 1:
        value, kind, held = path.seconds, "approximation", max(path.seconds - floor, 0.0)
    update = iteration.update_mean(c.machine.update)
    terms = {"compute E[T]": mean, "slack": held, "transfer": lone - update, "update": update,
             "queueing": max(value - mean - held - lone, 0.0),
             **sampling(bulk.error if kind == "numerical" else 0.0)}
    return Prediction(value, "s", kind, terms,
                      "ASP + share (BSP - ASP), share from the recursion; unequal workers: the recursion",
                      "Ho et al. 2013: the gate", "queueing taken between ASP's and BSP's"), path, False


def _ssp_cached(c: Setting, s: float, refresh: str) -> tuple[Prediction, slack.Path, bool]:
    """Iteration of SSP on a cache: lazy pays an exchange per read, eager waits for rows sent to all.

    Exact (recursion) without bandwidth and update times.  Else an approximation: a read takes 2 latency + 2 w
    + u behind its own push; the rows of an advance leave one by one, the last after (n + 1) w/K; and no clock
    is shorter than what a server's link has to carry in it.
    """
    u, alpha, w = iteration.update_mean(c.machine.update), c.machine.latency, c.transfer
    if (w or u) and not c.machine.colocated and c.steps:
        return *_drawn(c, s, refresh, max(iteration.mean_time(c.times), c.workers * max(w / c.servers, u))
                       if c.alike else 0.0), False
    if c.machine.colocated and c.workers == 1:
        alpha = w = 0.0
    quiet = not w and not u
    g = w / c.servers
    read = 2 * alpha + 2 * w + u
    gate = 2 * alpha + u + w + c.workers * g
    arguments: dict[str, Any] = {"refresh": refresh, "gate": gate if refresh == "eager" else read}
    path = slack.recursion(c.times, s, c.steps, read if refresh == "lazy" else 0.0, **arguments)
    if refresh == "lazy" and not quiet:
        load = g * path.refreshes  # per clock and worker on the outgoing link; pushes come in beside
        wait = server.mean_value_analysis(c.workers, path.seconds + g + u, max(g, u))[1] - max(g, u)
        path = slack.recursion(c.times, s, c.steps, read + wait + load, refresh=refresh, gate=read + wait)
    plain = slack.ssp(c.times, s, exchange=read if refresh == "lazy" else 0.0, steps=c.steps,
                      **arguments) if quiet else None
    value = plain.value if plain else max(path.seconds, c.workers * max(g, u))
    mean = iteration.mean_time(c.times)
    paid = min(read * path.refreshes, value - mean) if refresh == "lazy" else 0.0
    held = max(value - mean - paid, 0.0)
    terms = {"compute E[T]": mean, "slack": held, "transfer": max(paid - u * path.refreshes, 0.0) if paid
             else 0.0,
             "update": min(u * path.refreshes, paid) if refresh == "lazy" else 0.0,
             **sampling(plain.error if plain else 0.0)}
    return Prediction(value, "s", plain.kind if plain else "approximation", terms,
                      "recursion F_i(c) with a read when the cache is too old (lazy) or rows at each advance "
                      "(eager)",
                      "Ho et al. 2013; Dai et al. 2015", "no queueing" if quiet else "queueing averaged",
                      lower=max(mean, c.workers * max(g, u))), path, quiet


def _drawn(c: Setting, s: float, refresh: str, lower: float) -> tuple[Prediction, slack.Path]:
    """Gate and queues together: the closed network of links, drawn."""
    path = queues.parameter_server(c.times, c.links, s, c.steps, refresh)
    paid = {"fresh": 1.0, "lazy": path.refreshes, "eager": 0.0}[refresh]
    step = Prediction(path.seconds, "s",
                      kind_of(c.servers == 1 and not (c.tied and refresh != "fresh"), path.error),
                      terms_of(c, path, paid), "closed network of links with a gate, by Monte Carlo",
                      "Ho et al. 2013: the gate; Lindley 1952: the queues",
                      "first come first served" if c.servers == 1
                      else "pushes reach all servers in one order", lower=lower)
    return step, path


def terms_of(c: Setting, path: slack.Path, paid: float) -> dict[str, float]:
    """Terms of a drawn iteration: an exchange that meets nobody, what queues add to it, and the rest is
    slack.
    """
    u, mean = iteration.update_mean(c.machine.update), iteration.mean_time(c.times)
    room = max(path.seconds - mean, 0.0)
    lone = min(paid * (math.fsum(c.exchanges) / c.workers - u), room)
    update = min(paid * u, room - lone)
    queue = min(path.queued * (paid > 0), room - lone - update)
    terms = {"compute E[T]": mean, "slack": room - lone - update - queue, "transfer": lone, "update": update,
             "queueing": queue}
    return {**terms, **sampling(path.error)}


def _ssp_staleness(c: Setting, s: float, path: slack.Path, fixed: bool, sure: bool,
                   refresh: str) -> Prediction:
    """n-1 less the updates that come while a worker waits for its gate, less those left at the end."""
    n = c.workers
    if refresh == "fresh" and s == 0:
        return Prediction((n - 1) / 2, "updates", "exact", {},
                          "(n-1)/2: all read together, applied one by one",
                          staleness.SOURCE)
    if refresh == "fresh" and (fixed or n == 1 or math.isinf(s)):
        return staleness.asp_run(c.times, c.steps, c.exchanges)
    sure = sure and (c.alike or path.whole) and not (c.tied and refresh != "fresh")
    return Prediction(path.staleness, "updates", kind_of(sure, path.age_error),
                      {"long run of ASP": n - 1.0,
                       "gate, caches, and reads left at the end": path.staleness - n + 1,
                       **sampling(path.age_error)},
                      "updates of others between a read and its own update, by Monte Carlo",
                      staleness.SOURCE, "" if path.whole else "no queueing", lower=0.0)


def dssp(c: Setting) -> Figures:
    """Dynamic SSP waits at most as SSP(lower) does and leads by at most `upper`."""
    low, high = (int(c.options.get(name, default)) for name, default in (("lower", 3), ("upper", 15)))
    if not 0 <= low <= high:
        raise DomainError(f"lower {low}, upper {high}; dynamic SSP assumes 0 <= lower <= upper")
    if c.steps and c.workers > 1 and not c.tied and not c.machine.colocated:
        return _granted(c, low, high)
    quick, slow = (ssp(c.with_options(staleness=s, refresh="fresh")) for s in (high, low))
    out = {k: v for k, v in slow.items() if not k.startswith(("idle", "staleness_mean"))}
    for name in ("seconds_per_iteration", "seconds"):
        a, b = quick[name], slow[name]
        same, formula = a.value == b.value and b.faithful, "between SSP(upper) and SSP(lower)"
        out[name] = Prediction((a.value + b.value) / 2, "s", kind_of(same, b.error),
                               {"SSP(upper)": a.value, "SSP(lower)": b.value, **sampling(b.error * same)},
                               formula, "Zhao et al. 2019",
                               b.assumptions, lower=min(a.value, b.value), upper=max(a.value, b.value))
    for name in ("idle_ratio", "staleness_mean"):
        if name in quick and name in slow:
            a, b = quick[name], slow[name]
            out[name] = Prediction((a.value + b.value) / 2, b.unit, "approximation",
                                   {"SSP(upper)": a.value, "SSP(lower)": b.value},
                                   "between SSP(upper) and SSP(lower)", "Zhao et al. 2019", b.assumptions)
    out["images_per_second"] = throughput(c, out["seconds_per_iteration"])
    return {**out, **{k: quick[k] for k in ("clock_gap_max", "lead_max", "staleness_max")}}


def _granted(c: Setting, lower: int, upper: int) -> Figures:
    """Dynamic SSP with the clocks that its server grants, drawn."""
    path = queues.granting(c.times, c.links, lower, upper, c.steps)
    formula, source = ("closed network of links with granted clocks, by Monte Carlo",
                       "Zhao et al. 2019: the grants; Lindley 1952: the queues")

    def drawn(value: float, unit: str, error: float, terms: dict[str, float]) -> Prediction:
        return Prediction(value, unit, kind_of(c.servers == 1, error), {**terms, **sampling(error)}, formula,
                          source, "first come first served")

    step = drawn(path.seconds, "s", path.error, terms_of(c, path, 1.0))
    out = figures(c, step, drawn(path.end, "s", path.end_error, {"last": path.end}), c.workers * c.steps,
                  2 * c.workers * c.nbytes)
    out["staleness_mean"] = drawn(path.staleness, "updates", path.age_error, {"mean": path.staleness})
    out["staleness_max"] = staleness.ssp_bound(c.workers, upper, c.steps)
    return {**out, **clocks(c, upper, upper + 1, "started: upper, completed: upper + 1")}
