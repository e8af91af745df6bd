"""Predictions for federated algorithms, whose clients take several steps between messages."""

from __future__ import annotations

from dataclasses import replace

from refsgd.theory.algorithms.asp import PUSHES
from refsgd.theory.algorithms.bsp import known
from refsgd.theory.algorithms.peers import fresh
from refsgd.theory.estimate import certain, sampling
from refsgd.theory.phenomena import iteration, staleness
from refsgd.theory.phenomena.stragglers import sum_of
from refsgd.theory.prediction import Figures, Prediction
from refsgd.theory.setting import Setting, clocks, count, figures, unbounded, weaker

DRAWN = "no closed form: it depends on which clients are drawn, or on how many steps they take"
JOBS = "no closed form: jobs of several steps meet at the server in the order of arrival"


def _round(c: Setting, steps: int) -> Prediction:
    """Seconds of a round in which all take this many steps: BSP with their sums."""
    sums, u = [sum_of(time, steps) for time in c.times], steps * max(c.own)
    p = iteration.bsp([time for time, _ in sums], **c.network, duplex="half" if c.one_link else "full")
    closed = all(exact for _, exact in sums) and len(set(c.own)) == 1 and certain(c.machine.update)
    return replace(p, value=p.value + u, kind=weaker(p.kind, "exact" if closed else "approximation"),
                   lower=None, upper=None, terms={**p.terms, "update": p.terms.get("update", 0.0) + u})


def _all(c: Setting, h: int) -> Figures:
    """Rounds of h steps of all clients, the last perhaps shorter."""
    rounds, rest = divmod(c.steps, h)
    lengths = [h] * rounds + [rest] * (rest > 0)
    step, run = None, None
    if known(c):
        usual, last = _round(c, lengths[0]), _round(c, lengths[-1])
        step = replace(usual, value=usual.value / lengths[0],
                       terms={name: v / lengths[0] for name, v in usual.terms.items()})
        end = 0.0 if c.machine.colocated and c.workers == 1 else c.machine.latency
        total = usual.value * (len(lengths) - 1) + last.value + end
        run = Prediction(total, "s", weaker(usual.kind, last.kind),
                         {"rounds": total - end, "the end is announced": end,
                          **sampling(usual.error * (len(lengths) - 1) + last.error)},
                         "sum of rounds + latency", usual.source, usual.assumptions)
    sent = 2.0 * c.workers * c.nbytes
    out = figures(c, step, run, len(lengths), sent / h, fresh("a barrier in each round"),
                  clocks(c, h - 1, h, "a barrier every period"))
    out["bytes_sent"] = count(sent * len(lengths), "bytes", "2 m M x rounds", rounds=float(len(lengths)))
    return out


def fedavg(c: Setting) -> Figures:
    """Rounds of H steps of all clients, or of m that are drawn."""
    c = replace(c, servers=1)
    n, h = c.workers, c.whole("period", 8)
    m, partial = c.options.get("sampled") or n, h > 1 and bool(c.options.get("partial"))
    if m == n and not partial:
        return _all(c, h)
    out = _all(replace(c, workers=m, batches=c.batches[:m], images=c.images * m / n), h)
    out |= unbounded(c)
    out.leave(DRAWN, "seconds_per_iteration", "idle_by_cause", "idle_ratio")
    if partial or not c.alike:
        out.leave(DRAWN, "seconds", "images_per_second")
    elif len(set(c.batches)) > 1:
        out.leave(DRAWN, "images_per_second")
    return out


def scaffold(c: Setting) -> Figures:
    """FedAvg with two vectors in each message."""
    return fedavg(replace(c, nbytes=2 * c.nbytes))


def fedbuff(c: Setting) -> Figures:
    """Updates of K moves of jobs of H steps, of C clients at a time."""
    return _jobs(c, c.whole("buffer", (c.workers + 1) // 2))


def fedasync(c: Setting) -> Figures:
    """As FedBuff, one model at a time."""
    return _jobs(c, 1)


def async_diloco(c: Setting) -> Figures:
    """As FedBuff, one move at a time; the lengths of DyLU's jobs follow from their times."""
    out = _jobs(c, 1)
    if c.options.get("dylu") and c.workers > 1:
        for name in ("updates", "bytes_per_iteration", "bytes_sent", "staleness_mean"):
            out.pop(name, None)
            out.leave(JOBS, name)
    return out


def _jobs(c: Setting, size: int) -> Figures:
    """Jobs of H steps, `size` of them in an update: their number, and the staleness of ASP with such jobs."""
    c = replace(c, servers=1)
    n, h = c.workers, c.whole("period", 8)
    if n == size == 1:
        return _all(c, h)
    jobs = -(-c.steps // h)
    out = figures(c, None, None, -(-n * jobs // size), 2.0 * n * c.nbytes / h, unbounded(c))
    out["bytes_sent"] = count(2.0 * n * c.nbytes * jobs, "bytes", "2 M x jobs", jobs=float(n * jobs))
    out.without(PUSHES, "staleness_max").leave(JOBS, "staleness_mean")
    if c.options.get("concurrency") in (None, n) and not c.met and not c.queues:
        p = staleness.asp_run([sum_of(time, h)[0] for time in c.times], jobs, c.exchanges)
        out["staleness_mean"] = replace(p, value=p.value / size, kind="approximation",
                                        terms={"in jobs": p.value}, formula="(n-1)/K less the end of the run",
                                        units={"in jobs": "jobs"})
    return out
