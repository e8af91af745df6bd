"""Figures of workers that fetch from servers, and push to them, now and then: Downpour, EASGD."""

from __future__ import annotations

import math
from dataclasses import replace

from refsgd.theory.algorithms.peers import free
from refsgd.theory.phenomena import iteration, periodic, queues, staleness
from refsgd.theory.phenomena import ssp as slack
from refsgd.theory.phenomena.stragglers import sum_of
from refsgd.theory.prediction import Prediction, check_count, kind_of, sampling
from refsgd.theory.setting import Figures, Setting, clocks, count, figures, zero


def reached(c: Setting, step: Prediction) -> Prediction:
    """Servers that share nodes with workers: some of the traffic is free, which the formula leaves out."""
    if c.machine.colocated and c.workers > 1 and step.kind == "exact":
        return replace(step, kind="approximation")
    return step


def near(c: Setting) -> Setting:
    """A single worker on its server's node has no network."""
    if c.machine.colocated and c.workers == 1:
        return replace(c, machine=c.machine.with_(latency=0.0, bandwidth=math.inf, colocated=False))
    return c


def _queues(c: Setting) -> bool:
    """Whether the servers' links or processors take time, and their network can be drawn."""
    return bool(c.steps and not c.machine.colocated and (c.transfer or c.machine.update is not None)
                and c.workers > 1)


def _fetched(c: Setting, step: Prediction, path: slack.Path) -> tuple[Prediction, Prediction]:
    """Iteration and run of workers that fetch through queues; the terms of `step`, with the queueing that is
    seen.
    """
    clear = c.servers == 1 and not c.tied
    queue = max(path.seconds - step.value + step.terms.get("queueing", 0.0), 0.0)
    terms = {**step.terms, "queueing": queue, **sampling(path.error)}
    formula = "closed network of links, by Monte Carlo"
    return (Prediction(path.seconds, "s", kind_of(clear, path.error), terms, formula,
                       "Lindley 1952: the queues", "first come first served"),
            Prediction(path.end, "s", kind_of(clear, path.end_error),
                       {"last": path.end, **sampling(path.end_error)}, formula,
                       "Lindley 1952: the queues"))


def _fetched_age(path: slack.Path, clear: bool) -> Prediction:
    """Updates between a fetch and the application of what was computed with it."""
    return Prediction(path.staleness, "updates", kind_of(clear, path.age_error),
                      {"mean": path.staleness, **sampling(path.age_error)},
                      "updates between a fetch and its push, by Monte Carlo", "Lindley 1952: the queues")


def downpour(c: Setting) -> Figures:
    """Push at t = 0, n_push, 2 n_push, ... and at the end; fetch at t = 0, n_fetch, ..."""
    c = near(c)
    push, fetch = (check_count(name, int(c.options.get(name, 1))) for name in ("push_every", "fetch_every"))
    step = reached(c,
                   periodic.downpour(c.times, fetch, servers=c.servers, transfer=c.transfer,
                                     latency=c.machine.latency,
                                        update=c.machine.update, push_every=push))
    pushes = -(-c.steps // push) + (c.steps > 0 and (c.steps - 1) % push > 0)
    fetches = -(-c.steps // fetch)
    tail = c.machine.latency  # the last push has nobody waiting for it, the first fetch has no push before it
    run, path = free(c, step, tail=tail, more=fetches * fetch - c.steps), None
    if c.steps and not c.machine.colocated and c.workers > 1 and (_queues(c) or push > 1 or fetch > 1):
        path = queues.fetching(c.times, c.links, c.steps, fetch_every=fetch, push_every=push)
    if path is not None and _queues(c):
        step, run = _fetched(c, step, path)
    out = figures(c, step, run, c.workers * pushes, c.workers * c.nbytes * (1 / push + 1 / fetch))
    out["bytes_sent"] = count(c.workers * c.nbytes * (pushes + fetches), "bytes", "n M (pushes + fetches)")
    if path is not None:
        # without it all ask at one moment
        out["staleness_mean"] = _fetched_age(path, step.faithful and c.machine.latency > 0)
    elif push == 1 and c.alike and c.steps:
        long = staleness.downpour(c.workers, fetch)
        whole = staleness.asp_run(c.times, c.steps, c.exchanges)
        ends = whole.value / (c.workers - 1) if c.workers > 1 else 1.0
        out["staleness_mean"] = Prediction(long.value * ends, "updates", "approximation",
                                           {"long run": long.value}, long.formula,
                                           long.source, long.assumptions)
    return {**out, **clocks(c, math.inf, math.inf, "no bound but the length of the run")}


def easgd(c: Setting) -> Figures:
    """Elastic exchange with the centre at t = 0, period, ...; each worker updates its own replica."""
    c, h = near(c), check_count("period", int(c.options.get("period", 4)))
    own, exchanges = math.fsum(c.own) / c.workers, -(-c.steps // h)
    sync = c.options.get("mode") == "sync"
    step = reached(c,
                   periodic.easgd(c.times, h, servers=c.servers, transfer=c.transfer,
                                  latency=c.machine.latency,
                                     update=c.machine.update))
    # the next centre is shown when all forces of the last one are in: SSP with slack 1 over sums of H times
    if sync:
        cycle = h * (math.fsum(step.terms[part] for part in ("transfer", "update", "queueing")) + own)
        sums = [sum_of(time, h)[0] for time in c.times]
        gate = slack.ssp(sums, 1, exchange=cycle, steps=max(exchanges, 1))
        step = Prediction(gate.value / h - own, "s", "approximation",
                          {**step.terms, "straggling": gate.terms["slack"] / h}, gate.formula,
                          "Zhang et al. 2015", gate.assumptions)
    step = replace(step, value=step.value + own,
                   terms={**step.terms, "update": step.terms["update"] + own, "own update": own})
    # computing beside the last force
    after = (c.steps - h * (exchanges - 1)) * (iteration.mean_time(c.times) + own)
    tail = max(c.machine.latency + c.transfer + iteration.update_mean(c.machine.update) - after, 0.0)
    run = free(c, step, own=1, more=exchanges * h - c.steps, tail=0.0 if sync else tail)
    if sync and c.steps:
        rest = c.steps - h * (exchanges - 1)  # the last round is shorter
        end = slack.recursion(sums, 1, exchanges,
                              cycle).end - (h - rest) * (max(time.mean for time in c.times) + own)
        run = Prediction(end, "s", "approximation", {"last worker": end},
                         "end of the recursion F_i(c), slack 1", step.source, step.assumptions)
    if tail and len(set(c.times)) > 1:
        run = replace(run, kind="approximation")
    path = None
    if not sync and c.steps and not c.machine.colocated:
        path = queues.fetching(c.times, c.links, c.steps, fetch_every=h, elastic=True,
                                 own=[c.machine.distribution("update", c.machine.speed(i))
                                      for i in range(c.workers)])
    if path is not None and _queues(c):
        step, run = _fetched(c, step, path)
    out = figures(c, step, run, exchanges * (1 if sync else c.workers), 2 * c.workers * c.nbytes / h)
    if sync:
        out["staleness_mean"] = zero("updates", "all forces are of the centre that they are added to")
        out |= clocks(c, 2 * h - 1, 2 * h, "the next centre is shown when all forces of this one are in")
    # Without latency, tied workers ask at one moment again and again: nobody is first.
    elif path is not None and (c.machine.latency or not c.tied):
        out["staleness_mean"] = _fetched_age(path, step.faithful and c.machine.latency > 0)
    out["bytes_sent"] = count(2.0 * c.workers * c.nbytes * exchanges, "bytes", "2 n M ceil(steps/period)")
    return out
