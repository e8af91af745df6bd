"""Predictions for workers that fetch from servers and push to them periodically: Downpour, EASGD.

A worker waits for its fetches and not for its pushes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from refsgd.theory.algorithms.asp import PUSHES, read
from refsgd.theory.algorithms.peers import free
from refsgd.theory.estimate import Uncovered, certain, check_count, kind_of
from refsgd.theory.phenomena import iteration, staleness
from refsgd.theory.prediction import Figures, Prediction
from refsgd.theory.setting import RUN, Setting, clocks, count, figures, unbounded, zero


def lone(c: Setting, fetch_every: int, behind: float = 0.0) -> Prediction:
    """Seconds per iteration without queueing, if workers wait for fetches but not for pushes.

    `behind` is the share of fetches that directly follow a push of the same worker and also wait for that
    push's w and update; a request has no payload.
    """
    alpha, w = _path(c)
    exchange, waits = (2 * alpha + w + behind * w) / fetch_every, behind * c.update / fetch_every
    rounds = [time.mean + exchange + waits for time in c.times]
    return Prediction(c.workers / math.fsum(1 / r if r else math.inf for r in rounds), "s", "exact",
                      {"compute E[T]": iteration.mean_time(c.times), "transfer": exchange, "update": waits,
                       "queueing": 0.0},
                      "E[T] + (2 latency + w, after its own push + w + u)/n_fetch",
                      "Dean et al. 2012; Zhang et al. 2015", "a fetch waits, a push does not")


def _path(c: Setting) -> tuple[float, float]:
    """Latency to a server, and w on the way; 0 for a lone worker on the same host."""
    return (0.0, 0.0) if c.machine.colocated and c.workers == 1 else (c.machine.latency, c.transfer)


def _busy(c: Setting) -> bool:
    """Whether servers' links or processors take time, or workers' distances from them differ."""
    if c.placed:
        return True
    if c.machine.colocated and c.workers == 1:
        return c.machine.update is not None
    distant = c.machine.colocated and c.machine.latency > 0
    return bool(c.transfer or c.machine.update is not None or distant)


def downpour(c: Setting) -> Figures:
    """Downpour: pushes at t = 0, n_push, 2 n_push, ... and at the end, fetches at t = 0, n_fetch, ..."""
    if int(c.options.get("stages", 1)) > 1:
        raise Uncovered("no formula follows the stages of a replica that push and fetch by themselves: this "
                        "can only be simulated or measured")
    push, fetch = (check_count(name, c.whole(name, 1)) for name in ("push_every", "fetch_every"))
    pushes, fetches = -(-c.steps // push) + ((c.steps - 1) % push > 0), -(-c.steps // fetch)
    step: Prediction | None = None
    run, age = step, step
    turns = c.workers == c.servers == push == fetch == 1 and not (c.placed or c.machine.colocated)
    if turns or not _busy(c):  # no worker waits for the last push, and no push precedes the first fetch
        step = lone(c, fetch, 1 / push if math.gcd(fetch, push) == 1 else 0.0)
        run = free(c, step, tail=_path(c)[0], more=fetches * fetch - c.steps)
        if push == fetch == 1:
            age = replace(staleness.asp_run(c.times, c.steps, c.exchanges), kind="approximation")
    small = c.pushed / c.nbytes if c.nbytes else 1.0  # a gradient on the wire
    out = figures(c, step, run, c.workers * pushes, c.workers * c.nbytes * (small / push + 1 / fetch),
                  unbounded(c))
    read(out, age)
    out["bytes_sent"] = count(c.workers * (c.pushed * pushes + c.nbytes * fetches), "bytes",
                              "n M (pushes + fetches)")
    return out.without(PUSHES, "staleness_max")


def easgd(c: Setting) -> Figures:
    """EASGD: elastic exchange with the centre at t = 0, period, ...; workers update their own replicas."""
    h = check_count("period", c.whole("period", 4))
    exchanges = -(-c.steps // h)
    if c.options.get("mode") == "sync":
        out = _exchanging(c, h, None, None, exchanges)
        out["staleness_mean"] = zero("updates", "forces are added to the centre that they were computed from")
        out |= clocks(c, 2 * h - 1, 2 * h, "the next centre is sent once all forces on this one have arrived")
        return out
    step: Prediction | None = None
    run = step
    if not c.met and (len(set(c.times)) == 1 or not _busy(c)):
        step = _elastic(c, h)
        after = (c.steps - h * (exchanges - 1)) * (step.terms["compute E[T]"] + step.terms["own update"])
        first = (c.workers - 1) * max(c.transfer / c.servers, c.update) * c.tied  # all begin with a fetch
        end = _path(c)[0] + _force(c)  # of the last force, beside which workers compute
        late = max(end - after, 0.0)
        if c.workers == 1:
            late -= h * step.terms["queueing"]  # waited for before each fetch; none follows the last force
        run = free(c, step, own=1, more=exchanges * h - c.steps, tail=late + first)
        if end > after and not c.tied:
            run = replace(run, kind="approximation")
    out = _exchanging(c, h, step, run, c.workers * exchanges)
    if c.machine.latency or not c.tied:
        out.leave("no closed form: forces of others arrive between a fetch and its force", "staleness_mean")
    else:
        out.without("workers that ask at the same moment have no order: fixed times without latency",
                    "staleness_mean")
    return out.without(RUN, "clock_gap_max", "lead_max")


def _force(c: Setting) -> float:
    """Seconds until a lone worker's force is applied, without latency; several workers' forces queue."""
    return _path(c)[1] + c.update if c.workers == 1 else 0.0


def _elastic(c: Setting, h: int) -> Prediction:
    """The iteration of EASGD's workers, and what they wait at the busier of a server's link and processor, or
    a lone worker for its last force where h iterations take less time than that."""
    step, own = lone(c, h), math.fsum(c.own) / c.workers
    terms = {**step.terms, "update": step.terms["update"] + own, "own update": own}
    value, service = step.value + own, max(c.transfer / c.servers, c.update) if c.workers > 1 else 0.0
    if force := _force(c):
        wait = max(force / h - step.terms["compute E[T]"] - own, 0.0)
        known = c.tied and certain(c.machine.update) and (not wait or c.servers == 1)
        return replace(step, value=value + wait, terms={**terms, "queueing": wait}, kind=kind_of(known),
                       formula=step.formula + "; h iterations take at least the force's w + u")
    if not service or c.tied:
        least = max(value, c.workers * service / h)
        return replace(step, value=least, terms={**terms, "queueing": least - value},
                       kind="approximation" if service else step.kind)
    # as ASP's workers, with a period's times in place of T
    rate, _ = iteration.mean_value_analysis(c.workers, h * value, service)
    queue = max(c.workers / rate / h - value, 0.0)
    return replace(step, value=value + queue, terms={**terms, "queueing": queue}, kind="approximation",
                   formula=step.formula + ", by mean-value analysis of a period", lower=value)


def _exchanging(c: Setting, h: int, step: Prediction | None, run: Prediction | None,
                updates: int) -> Figures:
    """The metrics with an exchange, a model each way, at the start of every h iterations."""
    out = figures(c, step, run, updates, 2 * c.workers * c.nbytes / h)
    out["bytes_sent"] = count(2.0 * c.workers * c.nbytes * -(-c.steps // h), "bytes",
                              "2 n M ceil(steps/period)")
    return out.without("forces of all others may arrive between a fetch and its force", "staleness_max")
