"""Predictions for workers that fetch from servers and push to them periodically: Downpour, EASGD."""

from __future__ import annotations

import math
from dataclasses import replace

from refsgd.theory.algorithms.asp import PUSHES, drawn
from refsgd.theory.algorithms.peers import free
from refsgd.theory.estimate import Uncovered, check_count
from refsgd.theory.phenomena import gate, iteration, queues, staleness
from refsgd.theory.prediction import Figures, Prediction
from refsgd.theory.setting import RUN, Setting, clocks, count, figures, unbounded, zero

DRAWN = "closed network of links, by Monte Carlo", "Lindley 1952: the queues"


def lone(c: Setting, fetch_every: int, behind: float = 0.0) -> Prediction:
    """Seconds per iteration without queueing, if workers wait for fetches but not for pushes.

    A fetch takes 2 latency + w, since its request has no payload.  `behind` is the share of fetches that
    directly follow a push of the same worker and also wait for that push's w and update.
    """
    alpha, w = _latency(c), 0.0 if c.links.near and c.workers == 1 else c.transfer
    exchange, waits = (2 * alpha + w + behind * w) / fetch_every, behind * c.update / fetch_every
    if c.placed:
        each = [gate.lone(c.links.over(c.workers), i, 0.0, True) for i in range(c.workers)]
        exchange = (math.fsum(each) / c.workers + behind * w) / fetch_every
    rounds = [time.mean + exchange + waits for time in c.times]
    return Prediction(c.workers / math.fsum(1 / r if r else math.inf for r in rounds), "s", "exact",
                      {"compute E[T]": iteration.mean_time(c.times), "transfer": exchange, "update": waits,
                       "queueing": 0.0},
                      "E[T] + (2 latency + w, after its own push + w + u)/n_fetch",
                      "Dean et al. 2012; Zhang et al. 2015", "a fetch waits, a push does not")


def _latency(c: Setting) -> float:
    """Seconds to a server; 0 for a lone worker on the same host."""
    return 0.0 if c.links.near and c.workers == 1 else c.machine.latency


def _busy(c: Setting) -> bool:
    """Whether servers' links or processors take time, or workers' distances from them differ."""
    if c.placed:
        return True
    if c.machine.colocated and c.workers == 1:
        return c.machine.update is not None
    distant = c.machine.colocated and c.machine.latency > 0
    return bool(c.transfer or c.machine.update is not None or distant)


def _fetched(c: Setting, step: Prediction, path: queues.Path) -> tuple[Prediction, Prediction, Prediction]:
    """Iteration, run and staleness of workers that fetch through queues."""
    terms = {**step.terms, "queueing": max(path.pace.value - step.value, 0.0)}
    return drawn(c, path, terms, *DRAWN, faithful=c.clear and (c.placed or not c.tied))


def _age(c: Setting, path: queues.Path) -> Prediction:
    """Mean updates between a fetch and its push; without latency, simultaneous fetches have no order."""
    sure = c.placed or (c.machine.latency > 0 and not (_busy(c) and (c.tied or not c.clear)))
    return path.staleness.predicted("updates", {"mean": path.staleness.value},
                                    "updates between a fetch and its push, by Monte Carlo", DRAWN[1],
                                    faithful=sure and path.whole)


def downpour(c: Setting) -> Figures:
    """Downpour: pushes at t = 0, n_push, 2 n_push, ... and at the end, fetches at t = 0, n_fetch, ..."""
    if int(c.options.get("stages", 1)) > 1:
        raise Uncovered("no formula follows the stages of a replica that push and fetch by themselves: this "
                        "can only be simulated or measured")
    push, fetch = (check_count(name, int(c.options.get(name, 1))) for name in ("push_every", "fetch_every"))
    step = lone(c, fetch, 1 / push if math.gcd(fetch, push) == 1 else 0.0)
    pushes, fetches = -(-c.steps // push) + ((c.steps - 1) % push > 0), -(-c.steps // fetch)
    if push == fetch == 1 and not _busy(c):
        age = replace(staleness.asp_run(c.times, c.steps, c.exchanges), kind="approximation")
    else:
        path = queues.path(queues.Fetching, c.times, c.links, c.steps, fetch, push, False,
                           own=[None] * c.workers)
        age = _age(c, path)
    if _busy(c):
        step, run, _ = _fetched(c, step, path)
    else:  # no worker waits for the last push, and no push precedes the first fetch
        run = free(c, step, tail=_latency(c), more=fetches * fetch - c.steps)
    small = c.pushed / c.nbytes if c.nbytes else 1.0  # a gradient on the wire
    out = figures(c, step, run, c.workers * pushes, c.workers * c.nbytes * (small / push + 1 / fetch),
                  {"staleness_mean": age}, unbounded(c))
    out["bytes_sent"] = count(c.workers * (c.pushed * pushes + c.nbytes * fetches), "bytes",
                              "n M (pushes + fetches)")
    return out.without(PUSHES, "staleness_max")


def easgd(c: Setting) -> Figures:
    """EASGD: elastic exchange with the centre at t = 0, period, ...; workers update their own replicas."""
    h, own = check_count("period", int(c.options.get("period", 4))), math.fsum(c.own) / c.workers
    sync = c.options.get("mode") == "sync"
    rule = queues.Centred if sync else queues.Fetching
    path = queues.path(rule, c.times, c.links, c.steps, h, 1, True, own=c.updates)
    step, exchanges = lone(c, h), -(-c.steps // h)
    step = replace(step, value=step.value + own,
                   terms={**step.terms, "update": step.terms["update"] + own, "own update": own})
    if sync:
        step, run, _ = _fetched(c, step, path)
        out = _exchanging(c, h, step, run, exchanges)
        out["staleness_mean"] = zero("updates", "forces are added to the centre that they were computed from")
        out |= clocks(c, 2 * h - 1, 2 * h, "the next centre is sent once all forces on this one have arrived")
        return out
    if _busy(c):
        step, run, _ = _fetched(c, step, path)
    else:
        # computing that overlaps with the last force
        after = (c.steps - h * (exchanges - 1)) * (iteration.mean_time(c.times) + own)
        run = free(c, step, own=1, more=exchanges * h - c.steps, tail=max(_latency(c) - after, 0.0))
        if _latency(c) > after and len(set(c.times)) > 1:
            run = replace(run, kind="approximation")
    out = _exchanging(c, h, step, run, c.workers * exchanges)
    if c.machine.latency or not c.tied:
        out["staleness_mean"] = _age(c, path)
    else:
        out.without("workers that ask at the same moment have no order: fixed times without latency",
                    "staleness_mean")
    return out.without(RUN, "clock_gap_max", "lead_max")


def _exchanging(c: Setting, h: int, step: Prediction, run: Prediction, updates: int) -> Figures:
    """The metrics with an exchange, a model each way, at the start of every h iterations."""
    out = figures(c, step, run, updates, 2 * c.workers * c.nbytes / h)
    out["bytes_sent"] = count(2.0 * c.workers * c.nbytes * -(-c.steps // h), "bytes",
                              "2 n M ceil(steps/period)")
    return out.without("forces of all others may arrive between a fetch and its force", "staleness_max")
